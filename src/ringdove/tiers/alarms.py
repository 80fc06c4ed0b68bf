"""What is wrong, by pure rules from what brokers report (M5).

    lost        a broker has fallen silent
    upstream    a relay has had nowhere to pull from for `AWAY_MS`, or cannot pull a queue
    diverged    a relay's copy is not what its upstream has
    spool       a relay has stopped pulling because its spool is full
    lag         messages come late: from `LAG` of them, until less than the second
    disk        a disk is nearly full, likewise
    mismatch    blocks came damaged within the last `MISMATCH_MS`, and were asked for again

An alarm is raised once and stays until its cause has been away for `CLEAR_AFTER_MS`: what comes and
goes is one alarm, not many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from ringdove.tiers.registry import Known, Seen

KINDS = ("lost", "upstream", "diverged", "spool", "lag", "disk", "mismatch")

CLEAR_AFTER_MS = 10_000
AWAY_MS = 5_000
MISMATCH_MS = 60_000


class Threshold(NamedTuple):
    """From where an alarm is raised, and below what its cause is gone."""

    upper: float
    lower: float

    def passed(self, value: float, *, raised: bool) -> bool:
        """Whether a value is cause for an alarm, given that there is one already or not."""
        return value >= (self.lower if raised else self.upper)


#: In milliseconds, and as a share of the disk.
LAG = Threshold(30_000, 10_000)
DISK = Threshold(0.90, 0.85)


class Alarm(msgspec.Struct):
    """Something that is or was wrong."""

    kind: str
    broker: str
    #: Empty where it concerns the whole broker.
    queue: str = ""
    text: str = ""
    raised_ms: int = 0
    #: When its cause was last there.
    seen_ms: int = 0
    #: 0 while it is raised.
    cleared_ms: int = 0

    @property
    def key(self) -> str:
        """Names the alarm, as long as it is raised."""
        return f"{self.kind}/{self.broker}/{self.queue}"


def causes(
    brokers: Iterable[Seen], missing: Mapping[str, Known], raised: Collection[str], now_ms: int
) -> list[Alarm]:
    """An alarm for everything that is wrong now; `raised` has the keys of those there are."""
    found = [
        Alarm("lost", name, text=f"Broker {name} of level {known.level} has fallen silent.")
        for name, known in missing.items()
    ]
    for seen in brokers:
        away = bool(seen.away_ms) and now_ms - seen.away_ms >= AWAY_MS
        if away and not seen.report.upstream:
            text = f"Broker {seen.report.name} has no upstream to pull from."
            found.append(Alarm("upstream", seen.report.name, text=text))
        found += _of_broker(seen, raised, now_ms)
        found += _of_queues(seen, raised, away=away)
    return found


def _of_broker(seen: Seen, raised: Collection[str], now_ms: int) -> Iterator[Alarm]:
    name, load = seen.report.name, seen.report.load
    disk = Alarm("disk", name, text=f"The disk of broker {name} is {load.disk:.0%} full.")
    if DISK.passed(load.disk, raised=disk.key in raised):
        yield disk
    if seen.mismatched_ms and now_ms - seen.mismatched_ms < MISMATCH_MS:
        text = f"Broker {name} got damaged blocks and asked for them again."
        yield Alarm("mismatch", name, text=text)


def _of_queues(seen: Seen, raised: Collection[str], *, away: bool) -> Iterator[Alarm]:
    name = seen.report.name
    for queue in seen.report.queues:
        what = f"queue {queue.name} at broker {name}"
        if away and queue.state == "away" and seen.report.upstream:
            text = f"The {what} is not pulled: {queue.reason or 'nobody knows why.'}"
            yield Alarm("upstream", name, queue.name, text)
        if queue.state == "full":
            text = f"The spool of {what} is full: {queue.reason or 'it has stopped pulling.'}"
            yield Alarm("spool", name, queue.name, text)
        if queue.state == "diverged":
            text = f"The {what} has diverged: {queue.reason or 'its upstream has other messages.'}"
            yield Alarm("diverged", name, queue.name, text)
        lag = Alarm("lag", name, queue.name, f"The {what} is {queue.lag_ms / 1000:.0f} s late.")
        if LAG.passed(queue.lag_ms, raised=lag.key in raised):
            yield lag


class Changes(NamedTuple):
    """What has become of alarms."""

    raised: list[Alarm]
    #: Still raised: with the present text, and the time.
    kept: list[Alarm]
    cleared: list[Alarm]


def judge(
    found: Iterable[Alarm], raised: Mapping[str, Alarm], now_ms: int, watching_ms: int
) -> Changes:
    """Which alarms begin, go on and end; nobody has watched before `watching_ms`."""
    present = {alarm.key: alarm for alarm in found}
    changes = Changes([], [], [])
    for key, alarm in present.items():
        before = raised.get(key)
        alarm.raised_ms, alarm.seen_ms = before.raised_ms if before else now_ms, now_ms
        (changes.kept if before else changes.raised).append(alarm)
    for key, alarm in raised.items():
        if key not in present and now_ms - max(alarm.seen_ms, watching_ms) >= CLEAR_AFTER_MS:
            changes.cleared.append(msgspec.structs.replace(alarm, cleared_ms=now_ms))
    return changes
