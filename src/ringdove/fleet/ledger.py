"""What became of every reading, and the figures that follow from it (B5).

A reading is lost when it was acknowledged and never came; one that nobody acknowledged may have
come or not. Order is looked at device by device: devices do not wait for each other.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.core.consistency import measure
from ringdove.core.readings import device_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.fleet.plan import Plan
    from ringdove.tracing import Tracer


class Counts(NamedTuple):
    """How far a run is."""

    connected: int
    sent: int
    acknowledged: int
    received: int


class _Story:
    """What is known of one device: its readings by sequence number."""

    __slots__ = ("acknowledged", "arrivals", "sent_s")

    def __init__(self) -> None:
        self.sent_s = array("d")
        self.acknowledged = bytearray()
        #: Sequence numbers in the order in which they came.
        self.arrivals = array("q")


class Ledger:
    """Notes; times are seconds of one clock."""

    def __init__(
        self, plan: Plan, clock: Callable[[], float], tracer: Tracer | None = None
    ) -> None:
        self._seed = plan.seed
        self._clock = clock
        self._tracer = tracer
        self._stories = [_Story() for _ in range(plan.devices)]
        self._answers_s = array("d")
        self._ways_s = array("d")
        self.sent = 0
        self.acknowledged = 0
        self.received = 0
        self.damaged = 0
        self.unexpected = 0
        self.connects = 0
        #: Why an attempt failed, the last time.
        self.failure = ""
        self.connected = 0
        #: Attempts beyond the first of a reading: the connection was lost, or there was no answer;
        #: and those that the server put off because it was busy.
        self.repeated = 0
        self.put_off = 0

    def counts(self) -> Counts:
        """How far the run is."""
        return Counts(self.connected, self.sent, self.acknowledged, self.received)

    def note_sent(self, device: int) -> int:
        """A device has made a reading; answers its sequence number."""
        story = self._stories[device]
        story.sent_s.append(self._clock())
        story.acknowledged.append(0)
        self.sent += 1
        sequence = len(story.sent_s) - 1
        if self._tracer is not None:
            self._tracer.sent(self._id(device, sequence))
        return sequence

    def note_acknowledged(self, device: int, sequence: int) -> None:
        """The server has said that it has a reading."""
        story = self._stories[device]
        story.acknowledged[sequence] = 1
        self._answers_s.append(self._clock() - story.sent_s[sequence])
        self.acknowledged += 1

    def note_received(self, device: int, sequence: int, *, intact: bool) -> None:
        """The checker has received a reading."""
        if not 0 <= device < len(self._stories) or sequence >= len(self._stories[device].sent_s):
            self.unexpected += 1
            return
        story = self._stories[device]
        story.arrivals.append(sequence)
        self._ways_s.append(self._clock() - story.sent_s[sequence])
        self.received += 1
        self.damaged += not intact
        if self._tracer is not None:
            self._tracer.received(self._id(device, sequence), intact)

    def _id(self, device: int, sequence: int) -> bytes:
        return f"{device_name(device, self._seed)}/{sequence}".encode()

    def missing(self) -> int:
        """Readings that were acknowledged and have not come."""
        return sum(_missing(story) for story in self._stories)

    def report(self, seconds: float, *, checked: bool) -> dict[str, Any]:
        """The figures of the run."""
        told: dict[str, Any] = {
            "seconds": round(seconds, 2),
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "unacknowledged": self.sent - self.acknowledged,
            "acknowledged_per_s": round(self.acknowledged / seconds, 1) if seconds else 0.0,
            "connects": self.connects,
            "repeated": self.repeated,
            "put_off": self.put_off,
            **_percentiles("answer", self._answers_s),
        }
        if self.sent and not self.acknowledged:
            told["failure"] = self.failure
        return told | self._checked() if checked else told

    def _checked(self) -> dict[str, Any]:
        found = [measure(range(len(s.sent_s)), s.arrivals) for s in self._stories]
        arrived = [one.sent - one.lost for one in found]
        total = sum(arrived) or 1
        return {
            "received": self.received,
            "lost": self.missing(),
            "duplicated": sum(one.duplicated for one in found),
            "damaged": self.damaged,
            "unexpected": self.unexpected,
            "out_of_order_rate": round(
                sum(f.out_of_order_rate * n for f, n in zip(found, arrived, strict=True)) / total, 6
            ),
            "displacement": round(
                sum(f.displacement * n for f, n in zip(found, arrived, strict=True)) / total, 4
            ),
            **_percentiles("latency", self._ways_s),
        }


def _missing(story: _Story) -> int:
    come = set(story.arrivals)
    return sum(
        acknowledged and sequence not in come
        for sequence, acknowledged in enumerate(story.acknowledged)
    )


def _percentiles(name: str, times_s: array[float]) -> dict[str, float]:
    """Percentiles in milliseconds; nothing when there are no times."""
    if not times_s:
        return {}
    ordered = sorted(times_s)
    last = len(ordered) - 1
    marks = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {f"{name}_{m}_ms": round(1000 * ordered[round(q * last)], 2) for m, q in marks.items()}
