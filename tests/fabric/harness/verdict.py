"""Judges a history: what was lost, doubled, invented, out of order, and when service was missing.

Pure, and it knows nothing of how Ringdove works: only what was asked, what was answered when, and
what was there in the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fabric.harness.history import Delivery, History, Promise, Row, Send

#: Width of the bins of a timeline.
BIN_S = 0.1


class Verdict(msgspec.Struct):
    """What became of the messages of one queue. The lists name bodies; all but two are faults."""

    sent: int = 0
    acknowledged: int = 0
    #: Errors that senders were told, attempts that they repeated included.
    error_replies: int = 0
    #: Acknowledged, and never received.
    lost: list[str] = []
    #: Acknowledged or received, and not stored.
    vanished: list[str] = []
    #: Received or stored, and sent by nobody.
    unexpected: list[str] = []
    #: Of unknown outcome, and there in the end. No fault.
    recovered: list[str] = []
    #: Refused with the promise that they are not stored, and stored.
    undead: list[str] = []
    #: Stored more than once. No fault unless the queue is exactly-once.
    duplicated: list[str] = []
    #: Not where the answer to their sender said.
    misplaced: list[str] = []
    #: Received at a place where another message was received or is stored.
    replaced: list[str] = []
    #: Received again although it was acknowledged before that was asked for.
    back: list[str] = []
    #: Keys whose messages are stored, or were first received, in another order than sent.
    disordered: list[str] = []

    def faults(self, promise: Promise) -> dict[str, list[str]]:
        """What must not be, by name."""
        names = ["lost", "vanished", "unexpected", "undead", "misplaced", "replaced", "back"]
        names += ["duplicated"] * promise.exactly_once + ["disordered"] * promise.by_key
        return {name: found for name in names if (found := getattr(self, name))}


def judge(history: History) -> dict[str, Verdict]:
    """The verdict on every queue."""
    return {queue: _judge(history, queue) for queue in history.promises}


def faults(history: History) -> list[str]:
    """Every promise that was broken, as sentences."""
    told = list(history.troubles)
    for queue, verdict in judge(history).items():
        for name, found in verdict.faults(history.promises[queue]).items():
            told.append(f"{queue}: {len(found)} {name}, e.g. {', '.join(found[:3])}")
    return told


def _judge(history: History, queue: str) -> Verdict:
    sends = [send for send in history.sends if send.queue == queue]
    deliveries = [delivery for delivery in history.deliveries if delivery.queue == queue]
    log = history.logs.get(queue, [])
    by_body = {send.body: send for send in sends}
    stored = Counter(row.body for row in log)
    received = {delivery.body for delivery in deliveries}
    found = received | stored.keys()
    at = {row.place: row.body for row in log}
    acknowledged = [send for send in sends if send.outcome == "ok"]
    return Verdict(
        sent=len(sends),
        acknowledged=len(acknowledged),
        error_replies=sum(len(send.errors) for send in sends),
        lost=[send.body for send in acknowledged if send.body not in received],
        vanished=sorted(received.union(s.body for s in acknowledged) - stored.keys()),
        unexpected=sorted(found - by_body.keys()),
        recovered=[s.body for s in sends if s.outcome == "unknown" and s.body in found],
        undead=[s.body for s in sends if s.outcome == "failed" and s.body in found],
        duplicated=sorted(body for body, count in stored.items() if count > 1),
        misplaced=[
            s.body for s in acknowledged if s.place is not None and at.get(s.place) != s.body
        ],
        replaced=_replaced(deliveries, log),
        back=_back(deliveries),
        disordered=_disordered(acknowledged, deliveries, log),
    )


def _replaced(deliveries: Iterable[Delivery], log: Iterable[Row]) -> list[str]:
    """Bodies received at places that other bodies have."""
    body_at = {row.place: row.body for row in log}
    return sorted({d.body for d in deliveries if body_at.setdefault(d.place, d.body) != d.body})


def _back(deliveries: Iterable[Delivery]) -> list[str]:
    """Bodies that came again after the answer to their acknowledgement."""
    done_s: dict[tuple[int, int], float] = {}
    for delivery in deliveries:
        if delivery.done_s is not None:
            known_s = done_s.get(delivery.place, delivery.done_s)
            done_s[delivery.place] = min(known_s, delivery.done_s)
    never = float("inf")
    return [d.body for d in deliveries if d.asked_s > done_s.get(d.place, never)]


def _disordered(
    acknowledged: Sequence[Send], deliveries: Sequence[Delivery], log: Sequence[Row]
) -> list[str]:
    """Keys with a message that was sent when an earlier one was acknowledged, and is before it.

    The first time that a message is stored or received counts.
    """
    stored = _firsts(row.body for row in log)
    received = _firsts(d.body for d in sorted(deliveries, key=lambda d: d.came_s))
    by_key: dict[str, list[Send]] = defaultdict(list)
    for send in acknowledged:
        if send.key:
            by_key[send.key].append(send)
    return sorted(
        key
        for key, sends in by_key.items()
        if _is_disordered(sends, stored) or _is_disordered(sends, received)
    )


def _firsts(bodies: Iterable[str]) -> dict[str, int]:
    first: dict[str, int] = {}
    for at, body in enumerate(bodies):
        first.setdefault(body, at)
    return first


def _is_disordered(sends: Sequence[Send], at: dict[str, int]) -> bool:
    """Whether a send stands before one that was acknowledged when it began."""
    there = [send for send in sends if send.body in at]
    ended = sorted(there, key=lambda send: send.ended_s)
    highest, next_ended = -1, 0
    for send in sorted(there, key=lambda send: send.invoked_s):
        while next_ended < len(ended) and ended[next_ended].ended_s <= send.invoked_s:
            highest = max(highest, at[ended[next_ended].body])
            next_ended += 1
        if at[send.body] < highest:
            return True
    return False


# -- availability -------------------------------------------------------------------------------


class Bin(NamedTuple):
    """What senders saw in a tenth of a second."""

    from_s: float
    acknowledged: int
    errors: int


def timeline(sends: Iterable[Send], bin_s: float = BIN_S) -> list[Bin]:
    """Acknowledgements and errors over time, by when they came, without gaps."""
    good: Counter[int] = Counter()
    bad: Counter[int] = Counter()
    for send in sends:
        bad.update(int(at_s / bin_s) for at_s, _ in send.errors)
        if send.outcome == "ok":
            good[int(send.ended_s / bin_s)] += 1
    if not good and not bad:
        return []
    last = max([*good, *bad])
    return [Bin(number * bin_s, good[number], bad[number]) for number in range(last + 1)]


def longest_silence_s(sends: Iterable[Send], from_s: float, to_s: float) -> float:
    """The longest time within a span in which nothing was acknowledged."""
    ends = sorted(s.ended_s for s in sends if s.outcome == "ok" and from_s <= s.ended_s <= to_s)
    times = [from_s, *ends, to_s]
    return max(later - earlier for earlier, later in zip(times, times[1:], strict=False))
