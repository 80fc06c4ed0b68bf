"""The four ways to dequeue, as pure state machines (T4.1, T4.2).

A *call* is one receiver's request for up to `want` messages from a queue of several stripes. Its
machine is told what happens and answers what to do next:

    Try(stripe)      lease from a stripe, then say `tried`
    Look()           read every stripe's counter, then say `looked`
    Park(until_ms)   hold the request; say `woken` at that time or, where `watch` is set, as soon as
                     something arrives
    Answer()         reply with what was found, perhaps nothing

    poll      conventional: try a few stripes in turn, answer at once even when there is nothing
    retry     RDS: like poll, but on a miss hold the reply and try again after the sleep time
    monitor   PMS: look at the counters periodically, go to the fullest stripes first, hold while no
              stripe has anything
    wake      ours: on a miss hold the reply until something arrives or becomes due; there is no
              sleep time to trade against latency

The same machines run in the controller under the real clock and in simulations under a simulated
one; they know neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from ringdove.core.tuples import maker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringdove.core.settings import QueueSettings


class Try(NamedTuple):
    """Lease from the stripe at this position of the call's order."""

    stripe: int


class Look(NamedTuple):
    """Read how many messages each stripe has."""


class Park(NamedTuple):
    """Hold the request."""

    #: When to go on at the latest; None for never.
    until_ms: int | None
    #: Go on also when something arrives, or at `due_ms`, when something becomes deliverable.
    watch: bool
    due_ms: int | None = None


class Answer(NamedTuple):
    """Reply with what was found."""


Action = Try | Look | Park | Answer

_try = maker(Try)
_ANSWER = Answer()


class DequeueCall(ABC):
    """One request. Say `start`, then whatever the last action asks for."""

    def __init__(
        self, want: int, stripes: int, deadline_ms: int | None, tries_max: int, pause_ms: int
    ) -> None:
        self.want = want
        #: Messages found so far, and visits that found some or none.
        self.found = 0
        self.hits = 0
        self.misses = 0
        self._stripes = stripes
        self._deadline_ms = deadline_ms
        self._tries_max = min(tries_max, stripes)
        self._pause_ms = pause_ms
        self._tried = 0
        self._next = 0
        self._due_ms: int | None = None

    @abstractmethod
    def start(self, now_ms: int) -> Action:
        """Begin, or begin a further round."""

    def line_up(self, now_ms: int) -> Action:
        """Begin behind others who wait: there is nothing, and what comes is for them first."""
        return self.start(now_ms)

    @abstractmethod
    def _missed(self, now_ms: int) -> Action:
        """A round has found nothing."""

    def tried(self, found: int, now_ms: int, due_ms: int | None = None) -> Action:
        """A visit found so many; `due_ms` is when the stripe has something by time alone."""
        self.found += found
        if found:
            self.hits += 1
        else:
            self.misses += 1
        self._tried += 1
        return self._go_on(now_ms, due_ms)

    def skipped(self, count: int, now_ms: int, due_ms: int | None) -> Action:
        """The stripe to be tried and those after it, so many, are known to have nothing."""
        self.misses += count
        self._tried += count
        self._next += count - 1
        return self._go_on(now_ms, due_ms)

    @property
    def tries_left(self) -> int:
        """How many stripes this round may still try, with the one that is to be tried."""
        return self._tries_max - self._tried

    def _go_on(self, now_ms: int, due_ms: int | None) -> Action:
        if due_ms is not None and (self._due_ms is None or due_ms < self._due_ms):
            self._due_ms = due_ms
        if self.found < self.want and self._tried < self._tries_max:
            return self._visit()
        return _ANSWER if self.found else self._missed(now_ms)

    def looked(self, depths: Sequence[int], now_ms: int) -> Action:  # noqa: ARG002
        """The counters as they were; only `monitor` asks for them."""
        return self.start(now_ms)

    def woken(self, now_ms: int) -> Action:
        """Something arrived, or the time has come."""
        return self._last_round(now_ms) if self._over(now_ms) else self.start(now_ms)

    def _last_round(self, now_ms: int) -> Action:  # noqa: ARG002
        return Answer()

    def _begin_round(self) -> Try:
        self._tried = 0
        self._due_ms = None
        return self._visit()

    def _visit(self) -> Try:
        stripe = self._next % self._stripes
        self._next += 1
        return _try((stripe,))

    def _over(self, now_ms: int) -> bool:
        return self._deadline_ms is not None and self._deadline_ms <= now_ms

    def _pause(self, now_ms: int) -> Action:
        """Hold for the pause, or until the deadline."""
        if self._over(now_ms):
            return Answer()
        until_ms = now_ms + self._pause_ms
        return Park(
            until_ms if self._deadline_ms is None else min(until_ms, self._deadline_ms), watch=False
        )


class PollCall(DequeueCall):
    """Conventional: never holds."""

    def start(self, now_ms: int) -> Action:  # noqa: ARG002
        """Try the next stripes in turn."""
        return self._begin_round()

    def _missed(self, now_ms: int) -> Action:  # noqa: ARG002
        return Answer()


class RetryCall(DequeueCall):
    """RDS: holds a request that missed for the sleep time, then tries again."""

    def start(self, now_ms: int) -> Action:  # noqa: ARG002
        """Try the next stripes in turn."""
        return self._begin_round()

    def _missed(self, now_ms: int) -> Action:
        return self._pause(now_ms)


class MonitorCall(DequeueCall):
    """PMS: goes where the counters say, fullest first."""

    def start(self, now_ms: int) -> Action:  # noqa: ARG002
        """Ask for the counters."""
        return Look()

    def looked(self, depths: Sequence[int], now_ms: int) -> Action:
        """Try the fullest stripes, or hold while all are empty."""
        fullest = sorted(range(len(depths)), key=lambda stripe: -depths[stripe])
        self._plan = [stripe for stripe in fullest if depths[stripe] > 0][: self._tries_max]
        self._tried = 0
        if not self._plan:
            return self._missed(now_ms)
        return Try(self._plan[0])

    def tried(self, found: int, now_ms: int, due_ms: int | None = None) -> Action:
        """Go on to the next fullest."""
        action = super().tried(found, now_ms, due_ms)
        if not isinstance(action, Try):
            return action
        if self._tried < len(self._plan):
            return Try(self._plan[self._tried])
        return Answer() if self.found else self._missed(now_ms)

    def _missed(self, now_ms: int) -> Action:
        return self._pause(now_ms)


def _watch(until_ms: int | None, due_ms: int | None) -> Park:
    return Park(until_ms, watch=True, due_ms=due_ms)


class WakeCall(DequeueCall):
    """Ours: holds until there is something."""

    def start(self, now_ms: int) -> Action:  # noqa: ARG002
        """Try every stripe in turn."""
        return self._begin_round()

    def line_up(self, now_ms: int) -> Action:  # noqa: ARG002
        """Hold at once."""
        return _watch(self._deadline_ms, None)

    def _missed(self, now_ms: int) -> Action:
        if self._due_ms is not None and self._due_ms <= now_ms and not self._over(now_ms):
            return self._begin_round()
        return Answer() if self._over(now_ms) else _watch(self._deadline_ms, self._due_ms)

    def woken(self, now_ms: int) -> Action:  # noqa: ARG002
        """Look, also for the last time."""
        return self._begin_round()


_CALLS: dict[str, Callable[..., DequeueCall]] = {
    "poll": PollCall,
    "retry": RetryCall,
    "monitor": MonitorCall,
    "wake": WakeCall,
}


def make_call(
    settings: QueueSettings, want: int, stripes: int, deadline_ms: int | None
) -> DequeueCall:
    """The machine for one request, by the queue's settings."""
    wake = settings.dequeue == "wake"
    return _CALLS[settings.dequeue](
        want,
        stripes,
        deadline_ms,
        stripes if wake else settings.dequeue_tries,
        settings.dequeue_pause_ms,
    )
