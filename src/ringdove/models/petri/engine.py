"""Runs a net: tokens, time and chance.

At any moment transitions that may be able to fire are in `_todo`, by priority. One is chosen at
random and tried; if it cannot fire it leaves the list until one of its places gets a token. When
the list is empty, time moves on to the next token that becomes ready. All chance comes from one
generator, so a seed gives the same run everywhere.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringdove.errors import InvalidArgument
from ringdove.models.petri.compiling import plan_of, source_of
from ringdove.models.petri.flattening import flatten
from ringdove.models.petri.net import Observe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ringdove.models.petri.net import Net

#: Firings at one moment after which a net is said to run away.
_FIRINGS_AT_ONCE_MAX = 1_000_000


@dataclass(slots=True)
class Seen:
    """What an `Observe` has noted."""

    values: list[float] = field(default_factory=list)

    def forget(self, now_s: float) -> None:  # noqa: ARG002
        """Begin anew."""
        self.values.clear()


@dataclass(slots=True)
class Counted:
    """What a `Count` has noted: token-seconds, and seconds with at least one token."""

    count: int = 0
    since_s: float = 0.0
    begun_s: float = 0.0
    area: float = 0.0
    busy_s: float = 0.0

    def forget(self, now_s: float) -> None:
        """Begin anew."""
        self.begun_s = self.since_s = now_s
        self.area = self.busy_s = 0.0

    def mean(self, now_s: float) -> float:
        """Tokens on average until now."""
        return (self.area + self.count * (now_s - self.since_s)) / (now_s - self.begun_s)

    def busy(self, now_s: float) -> float:
        """The share of time with at least one token, until now."""
        rest_s = now_s - self.since_s if self.count else 0.0
        return (self.busy_s + rest_s) / (now_s - self.begun_s)


class Simulation:
    """One run of a net."""

    def __init__(
        self,
        net: Net,
        values: Mapping[str, Any] | None = None,
        seed: int = 0,
        *,
        checked: bool = False,
    ) -> None:
        self._flat = flatten(net)
        self._plan = plan_of(net, self._flat)
        self._colours = {colours.name: colours for colours in net.colours}
        self._random = random.Random(seed)
        self._heap: list[tuple[float, int, int, Any]] = []
        levels = max((t.priority for t in self._flat.transitions.values()), default=0) + 1
        self._todo: list[list[int]] = [[] for _ in range(levels)]
        self._tried = [False] * len(self._flat.transitions)
        self._monitors: list[Seen | Counted] = [
            Seen() if isinstance(monitor, Observe) else Counted() for monitor in net.monitors
        ]
        self._names = [monitor.name for monitor in net.monitors]
        self.now_s = 0.0
        self.fired = 0
        self._scope = self._make_scope(dict(values or {}))
        # The text is made of the net's inscriptions, which are code of this program.
        exec(compile(source_of(self._plan, checked=checked), "<net>", "exec"), self._scope)  # noqa: S102
        self._fire = [self._scope[f"fire_{n}"] for n in range(len(self._flat.transitions))]
        self._add = [self._scope[f"add_{n}"] for n in range(len(self._flat.places))]
        self._start()

    # -- running --------------------------------------------------------------------------------

    def run(self, until_s: float = math.inf, firings_max: int | None = None) -> None:
        """Go on until a time, until nothing can happen, or for so many firings."""
        heap, add = self._heap, self._add
        last = math.inf if firings_max is None else self.fired + firings_max
        while True:
            self._settle(last)
            if self.fired >= last:
                return
            if not heap or heap[0][0] > until_s:
                break
            self.now_s = now_s = heap[0][0]
            while heap and heap[0][0] == now_s:
                _, _, place, token = heapq.heappop(heap)
                add[place](token)
        if until_s < math.inf:
            self.now_s = until_s

    def _settle(self, last: float) -> None:
        """Fire all that can at this moment."""
        fire, tried, chance, now_s = self._fire, self._tried, self._random.random, self.now_s
        fired = self.fired
        last = min(last, fired + _FIRINGS_AT_ONCE_MAX)
        while fired < last:
            for todo in self._todo:
                if todo:
                    break
            else:
                break
            at = int(chance() * len(todo)) if len(todo) > 1 else 0
            number = todo[at]
            if fire[number](now_s):
                fired += 1
            else:
                todo[at] = todo[-1]
                todo.pop()
                tried[number] = False
        if fired == self.fired + _FIRINGS_AT_ONCE_MAX:
            raise InvalidArgument(f"The net never rests at {now_s} s: a transition fires for ever.")
        self.fired = fired

    # -- what there is to see -------------------------------------------------------------------

    def forget(self) -> None:
        """Have all monitors begin anew, for example after a warm-up."""
        for monitor in self._monitors:
            monitor.forget(self.now_s)

    def seen(self, name: str) -> list[float]:
        """What an `Observe` has noted."""
        monitor = self._monitors[self._names.index(name)]
        assert isinstance(monitor, Seen)
        return monitor.values

    def mean(self, name: str) -> float:
        """The mean number of tokens that a `Count` has noted."""
        return self._counted(name).mean(self.now_s)

    def busy(self, name: str) -> float:
        """The share of time in which a `Count` has seen a token."""
        return self._counted(name).busy(self.now_s)

    def _counted(self, name: str) -> Counted:
        monitor = self._monitors[self._names.index(name)]
        assert isinstance(monitor, Counted)
        return monitor

    def marking(self, name: str) -> Counter[Any]:
        """The tokens of a place, ready or not."""
        number = self._plan.places[name]
        later = [token for _, _, place, token in self._heap if place == number]
        index = itertools.chain.from_iterable(self._scope[f"_index_{number}"].values())
        if self._plan.kinds[number] == "both":
            return Counter(entry[0] for entry in index)
        return Counter([*later, *self._scope[f"_line_{number}"], *index])

    @property
    def places(self) -> list[str]:
        """The names of all places."""
        return list(self._flat.places)

    # -- the start ------------------------------------------------------------------------------

    def _make_scope(self, values: dict[str, Any]) -> dict[str, Any]:
        """What the compiled functions see."""
        scope = values | {
            "random": self._random.random,
            "exponential": self._random.expovariate,
            "_heap": self._heap,
            "_push": heapq.heappush,
            "_serial": itertools.count().__next__,
            "_todo": self._todo,
            "_tried": self._tried,
            "_monitors": self._monitors,
            "_check": self._check,
            "_drop": _drop,
            "_unlist": _unlist,
            "_shuffled": self._shuffled,
            "_first_line": _first_line,
            "_first_both": _first_both,
        }
        for number in range(len(self._flat.places)):
            scope[f"_line_{number}"] = deque()
            scope[f"_index_{number}"] = {}
        return scope

    def _start(self) -> None:
        """Put the first tokens in their places; every transition may be able to fire."""
        for number, place in enumerate(self._flat.places.values()):
            for token in eval(place.initial, self._scope):  # noqa: S307 (code of this program)
                self._check(number, token)
                kept = token
                if self._plan.kinds[number] == "both":
                    key = eval(place.key, self._scope, {"token": token})  # noqa: S307
                    kept = [token, False, key, True]
                    self._scope[f"_index_{number}"].setdefault(key, []).append(kept)
                self._add[number](kept)
                for monitor in self._plan.counted.get(number, []):
                    counted = self._monitors[monitor]
                    assert isinstance(counted, Counted)
                    counted.count += 1
        for number, transition in enumerate(self._flat.transitions.values()):
            if not self._tried[number]:
                self._tried[number] = True
                self._todo[transition.priority].append(number)

    def _check(self, number: int, token: Any) -> None:
        place = list(self._flat.places.values())[number]
        if not self._colours[place.colours].has(token):
            raise InvalidArgument(f"{place.name} got {token!r}; its tokens are {place.colours}.")

    def _shuffled(self, tokens: Iterable[Any]) -> list[Any]:
        shuffled = list(tokens)
        self._random.shuffle(shuffled)
        return shuffled


def _drop(entry: list[Any], index: dict[Any, list[Any]]) -> None:
    """Take a token of a place that keeps entries."""
    entry[1] = True
    _unlist(index, entry[2], entry)


def _unlist(index: dict[Any, list[Any]], key: Any, token: Any) -> None:
    tokens = index[key]
    tokens.remove(token)
    if not tokens:
        del index[key]


def _first_line(line: deque[Any]) -> tuple[Any, ...]:
    return (line[0],) if line else ()


def _first_both(line: deque[list[Any]]) -> tuple[list[Any], ...]:
    """The first entry that is not gone."""
    while line and line[0][1]:
        line.popleft()
    return (line[0],) if line else ()
