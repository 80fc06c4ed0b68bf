"""A flat net as Python functions: for each transition one that fires it if it can.

How a place keeps tokens depends on the arcs that take from it:

    line      all take any token             _line: deque of colours, in the order they became ready
    index     all ask by key                 _index: key -> list of colours
    both      some ask by key, or ahead of   entries [colour, gone, key, ready], in _line when ready
              a token's time                 and in _index from the start

A transition for which one token is as good as another (new variables, no guard, no key that
follows from a choice) is compiled to straight code: look at a token of each place, take them.
Others search: a loop for each arc, nested.

A transition that cannot fire is left alone until one of its places gets a token. So the engine
never scans the net; that is also why there are no arcs that ask for the absence of tokens.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ringdove.errors import InvalidArgument
from ringdove.models.petri.net import Count

if TYPE_CHECKING:
    from ringdove.models.petri.flattening import FlatNet
    from ringdove.models.petri.net import Give, Net, Observe, Place, Take, Transition

Kind = Literal["line", "index", "both"]

_INDENT = "    "


@dataclass(slots=True)
class Plan:
    """What the engine must know of a net besides its code."""

    flat: FlatNet
    kinds: list[Kind]
    #: Numbers of places and transitions by name.
    places: dict[str, int]
    transitions: dict[str, int]
    #: Of each place: transitions to try again when a token is ready, and when one is there at all.
    on_ready: list[list[int]]
    on_given: list[list[int]]
    #: Monitors by the number of what they look at.
    counted: dict[int, list[int]] = field(default_factory=dict)
    observed: dict[int, list[tuple[int, Observe]]] = field(default_factory=dict)


def plan_of(net: Net, flat: FlatNet) -> Plan:
    """How places keep their tokens, and who waits for them."""
    places = {name: number for number, name in enumerate(flat.places)}
    transitions = {name: number for number, name in enumerate(flat.transitions)}
    takes: list[list[tuple[int, Take]]] = [[] for _ in places]
    for number, transition in enumerate(flat.transitions.values()):
        for take in transition.takes:
            takes[places[take.place]].append((number, take))
    kinds = [
        _kind(place.key, [take for _, take in found])
        for place, found in zip(flat.places.values(), takes, strict=True)
    ]
    plan = Plan(
        flat,
        kinds,
        places,
        transitions,
        [sorted({number for number, take in found if not take.ahead}) for found in takes],
        [sorted({number for number, take in found if take.ahead}) for found in takes],
    )
    for number, monitor in enumerate(net.monitors):
        if isinstance(monitor, Count):
            plan.counted.setdefault(_known(places, monitor.place), []).append(number)
        else:
            at = _known(transitions, monitor.transition)
            plan.observed.setdefault(at, []).append((number, monitor))
    return plan


def _known(numbers: dict[str, int], name: str) -> int:
    if name not in numbers:
        raise InvalidArgument(f"A monitor looks at {name}; there are: {', '.join(numbers)}.")
    return numbers[name]


def _kind(key: str, takes: list[Take]) -> Kind:
    if any(take.by and not key for take in takes):
        raise InvalidArgument(f"{takes[0].place} has no key; arcs cannot ask by one.")
    if any(take.ahead and not take.by for take in takes):
        raise InvalidArgument(f"An arc from {takes[0].place} is ahead of time; it must ask by key.")
    if all(take.by and not take.ahead for take in takes) and takes:
        return "index"
    return "both" if any(take.by for take in takes) else "line"


def source_of(plan: Plan, *, checked: bool = False) -> str:
    """The functions `fire_0`, `fire_1`, ... and `add_0`, `add_1`, ... of a net.

    `checked` has every token looked at: whether it is of its place's colour set.
    """
    lines: list[str] = []
    adding = [_Adding(plan, number, place, checked) for number, place in _numbered(plan)]
    for place in adding:
        lines += place.function()
    for number, transition in enumerate(plan.flat.transitions.values()):
        lines += _Firing(plan, number, transition, adding).function()
    return "\n".join(lines)


def _numbered(plan: Plan) -> list[tuple[int, Place]]:
    return list(enumerate(plan.flat.places.values()))


def _indented(lines: list[str], depth: int = 1) -> list[str]:
    return [_INDENT * depth + line for line in lines]


def _wake(plan: Plan, place: int, numbers: list[int]) -> list[str]:
    """Have transitions tried again, now that a place has a token.

    One that also takes from a line which is empty cannot fire; it is woken when that gets a token.
    """
    lines = []
    transitions = list(plan.flat.transitions.values())
    for number in numbers:
        transition = transitions[number]
        others = {plan.places[take.place] for take in transition.takes if not take.by} - {place}
        ready = "".join(f" and _line_{other}" for other in sorted(others))
        lines += [
            f"if not _tried[{number}]{ready}:",
            f"{_INDENT}_tried[{number}] = True",
            f"{_INDENT}_todo[{transition.priority}].append({number})",
        ]
    return lines


def _counted(plan: Plan, place: int, change: int) -> list[str]:
    """Have monitors note that a place has more tokens, or fewer."""
    lines = []
    for monitor in plan.counted.get(place, []):
        lines += [
            f"_m = _monitors[{monitor}]",
            "if now > _m.since_s and _m.count:",
            f"{_INDENT}_m.area += _m.count * (now - _m.since_s)",
            f"{_INDENT}_m.busy_s += now - _m.since_s",
            "_m.since_s = now",
            f"_m.count += {change}",
        ]
    return lines


class _Adding:
    """The code by which a place gets a token."""

    def __init__(self, plan: Plan, number: int, place: Place, checked: bool) -> None:  # noqa: FBT001
        self._plan = plan
        self._number = number
        self._place = place
        self._kind = plan.kinds[number]
        self._checked = checked

    def function(self) -> list[str]:
        """`add_N(token)`, for one whose time has come; of kind `both`, for its entry."""
        gone = []
        if self._kind == "both":
            gone = ["if token[1]:", f"{_INDENT}return", "token[3] = True"]
        body = _indented([*gone, *self._ready("token", first=False)])
        return [f"def add_{self._number}(token):  # {self._place.name}", *body, ""]

    def give(self, arc: Give) -> list[str]:
        """Add a token that a transition gives."""
        n, lines, kept = self._number, [f"token = {arc.value}"], "token"
        if self._checked:
            lines.append(f"_check({n}, token)")
        if self._kind == "both":
            kept = "_entry"
            lines += [
                f"_key = {self._place.key}",
                "_entry = [token, False, _key, False]",
                f"_index_{n}.setdefault(_key, []).append(_entry)",
                *_wake(self._plan, n, self._plan.on_given[n]),
            ]
        ready = self._ready(kept, first=arc.first)
        if self._kind == "both":
            ready.insert(0, "_entry[3] = True")
        if arc.delay:
            ready = [
                f"_delay = {arc.delay}",
                "if _delay > 0:",
                f"{_INDENT}_push(_heap, (now + _delay, _serial(), {n}, {kept}))",
                "else:",
                *_indented(ready),
            ]
        lines += ready
        lines += _counted(self._plan, n, +1)
        return [f"if {arc.when}:", *_indented(lines)] if arc.when else lines

    def _ready(self, kept: str, *, first: bool) -> list[str]:
        """Put a token, or its entry, where arcs find it, and have them look."""
        n = self._number
        if self._kind == "index":
            put = f"_index_{n}.setdefault({self._place.key}, []).append(token)"
        else:
            put = f"_line_{n}.{'appendleft' if first else 'append'}({kept})"
        return [put, *_wake(self._plan, n, self._plan.on_ready[n])]


@dataclass(slots=True)
class _Arc:
    """One arc into a transition, as code."""

    place: int
    kind: Kind
    take: Take
    pick: str
    #: Which arc of its transition it is.
    order: int
    #: The variables that it binds, and the conditions that it sets to those bound before.
    target: str = ""
    conditions: list[str] = field(default_factory=list)

    @property
    def by_key(self) -> bool:
        return bool(self.take.by)

    @property
    def tokens(self) -> str:
        """All tokens that it may take."""
        if self.by_key:
            return f"_index_{self.place}.get({self.take.by}, ())"
        return f"_line_{self.place}"

    @property
    def chooses(self) -> bool:
        """Whether another token would do if one does not."""
        return not self.by_key and self.pick != "first"

    @property
    def unready(self) -> bool:
        """Whether it may come upon tokens whose time it must wait for."""
        return self.kind == "both" and self.by_key and not self.take.ahead

    def look(self) -> list[str]:
        """Straight code: bind the first token, or give up."""
        n, k = self.place, self.order
        if self.by_key:
            lines = [f"_found_{k} = _index_{n}.get({self.take.by})"]
            lines += [f"if not _found_{k}:", f"{_INDENT}return False"]
            first = f"_found_{k}[0]"
        else:
            lines = []
            if self.kind == "both":
                lines += [f"while _line_{n} and _line_{n}[0][1]:", f"{_INDENT}_line_{n}.popleft()"]
            lines += [f"if not _line_{n}:", f"{_INDENT}return False"]
            first = f"_line_{n}[0]"
            if self.pick == "random":
                lines.append(f"_at_{k} = int(random() * len(_line_{n}))")
                first = f"_line_{n}[_at_{k}]"
        if self.kind == "both":
            lines.append(f"_entry_{k} = {first}")
            first = f"_entry_{k}[0]"
        return [*lines, f"{self.target} = {first}"]

    def remove(self) -> list[str]:
        """Straight code: take the token that was looked at."""
        n, k = self.place, self.order
        if self.kind == "both":
            return [f"_drop(_entry_{k}, _index_{n})"]
        if self.by_key:
            key = self.take.by
            return [
                f"if len(_found_{k}) == 1:",
                f"{_INDENT}del _index_{n}[{key}]",
                "else:",
                f"{_INDENT}del _found_{k}[0]",
            ]
        if self.pick == "random":
            return [f"del _line_{n}[_at_{k}]"]
        return [f"_line_{n}.popleft()"]

    def search(self) -> list[str]:
        """A loop over the tokens that may do, its body still to come."""
        k = self.order
        order = {"any": "tuple", "random": "_shuffled", "first": f"_first_{self.kind}"}
        candidates = f"{'tuple' if self.by_key else order[self.pick]}({self.tokens})"
        lines = [f"for _token_{k} in {candidates}:"]
        value = f"_token_{k}[0]" if self.kind == "both" else f"_token_{k}"
        body = [f"{self.target} = {value}"]
        refused = list(self.conditions)
        if self.kind == "both":
            refused.append(f"_token_{k}[1]")
        if self.unready:
            refused.append(f"not _token_{k}[3]")
        body += [f"if {' or '.join(refused)}:", f"{_INDENT}continue"] if refused else []
        return lines + _indented(body)

    def removed(self) -> list[str]:
        """After a search: take the token found."""
        n, k = self.place, self.order
        if self.kind == "both":
            return [f"_drop(_token_{k}, _index_{n})"]
        if self.by_key:
            return [f"_unlist(_index_{n}, {self.take.by}, _token_{k})"]
        return [f"_line_{n}.remove(_token_{k})"]


class _Firing:
    """The code of one transition."""

    def __init__(
        self, plan: Plan, number: int, transition: Transition, adding: list[_Adding]
    ) -> None:
        self._plan = plan
        self._number = number
        self._transition = transition
        self._adding = adding
        bound: set[str] = set()
        picks = [place.pick for place in plan.flat.places.values()]
        self._arcs = []
        for order, take in enumerate(transition.takes):
            place = plan.places[take.place]
            arc = _Arc(place, plan.kinds[place], take, picks[place], order)
            arc.target, arc.conditions = _pattern(take.pattern, bound, order)
            self._arcs.append(arc)

    def function(self) -> list[str]:
        """`fire_N(now)`: fires if it can, and says whether it did."""
        body = self._straight() if self._is_straight() else self._searching()
        head = f"def fire_{self._number}(now):  # {self._transition.name}"
        return [head, *_indented(body), ""]

    def _is_straight(self) -> bool:
        """Whether any token that an arc can take will do."""
        places = [arc.place for arc in self._arcs]
        if self._transition.guard or len(set(places)) < len(places):
            return False
        chosen: set[str] = set()
        for arc in self._arcs:
            if arc.conditions or arc.unready or (arc.kind == "both" and arc.pick == "random"):
                return False
            if chosen & _names(arc.take.by):
                return False
            if arc.chooses:
                chosen |= _names(arc.take.pattern)
        return True

    def _straight(self) -> list[str]:
        lines = [line for arc in self._arcs for line in arc.look()]
        lines += [line for arc in self._arcs for line in arc.remove()]
        return [*lines, *self._effects(), "return True"]

    def _searching(self) -> list[str]:
        lines: list[str] = []
        depth = 0
        for arc in self._arcs:
            lines += _indented(arc.search(), depth)
            depth += 1
            lines += _indented(self._apart(arc), depth)
        if self._transition.guard:
            unfit = [f"if not ({self._transition.guard}):", f"{_INDENT}continue"]
            lines += _indented(unfit, depth)
        taken = [line for arc in self._arcs for line in arc.removed()]
        lines += _indented([*taken, *self._effects(), "return True"], depth)
        return [*lines, "return False"]

    def _apart(self, arc: _Arc) -> list[str]:
        """Two arcs from one place take two tokens."""
        others = [f"_token_{o.order}" for o in self._arcs[: arc.order] if o.place == arc.place]
        if not others:
            return []
        if arc.kind == "both":
            used = " or ".join(f"{other} is _token_{arc.order}" for other in others)
        else:
            same = " + ".join(f"({other} == _token_{arc.order})" for other in others)
            used = f"{arc.tokens}.count(_token_{arc.order}) <= {same}"
        return [f"if {used}:", f"{_INDENT}continue"]

    def _effects(self) -> list[str]:
        lines = []
        for arc in self._arcs:
            lines += _counted(self._plan, arc.place, -1)
        lines += [f"{name} = {value}" for name, value in self._transition.let.items()]
        for number, monitor in self._plan.observed.get(self._number, []):
            note = f"_monitors[{number}].values.append({monitor.value})"
            lines += [f"if {monitor.when}:", _INDENT + note] if monitor.when else [note]
        for give in self._transition.gives:
            lines += self._adding[self._plan.places[give.place]].give(give)
        return lines


def _names(text: str) -> set[str]:
    """The variables of an expression."""
    if not text:
        return set()
    tree = ast.parse(text, mode="eval")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _pattern(text: str, bound: set[str], order: int) -> tuple[str, list[str]]:
    """What an arc assigns to, and what must not hold; variables bound before become conditions."""
    conditions: list[str] = []
    names: list[str] = []

    def target(node: ast.expr) -> str:
        if isinstance(node, ast.Tuple):
            return f"({', '.join(target(part) for part in node.elts)},)"
        if isinstance(node, ast.Name) and node.id not in bound and node.id not in names:
            names.append(node.id)
            return node.id
        if not isinstance(node, ast.Name | ast.Constant):
            raise InvalidArgument(f"An arc binds {text!r}; it can bind names and tuples of them.")
        fresh = f"_same_{order}_{len(conditions)}"
        conditions.append(f"{fresh} != {ast.unparse(node)}")
        return fresh

    written = target(ast.parse(text, mode="eval").body)
    bound.update(names)
    return written, conditions
