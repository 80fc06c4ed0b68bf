"""What clients of a server saw, held against what the server has stored in the end.

This knows nothing of how Ringdove works: only what was asked, what was answered when, when the
server was killed, and the logs of the queues.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ringdove.client.delivery import MessageId

if TYPE_CHECKING:
    from ringdove.stores.base import StripeId


class Row(NamedTuple):
    """A message and where it is."""

    id: MessageId
    body: bytes


class Kill(NamedTuple):
    """When a server was killed: it died between the two."""

    from_s: float
    to_s: float


class Delivery(NamedTuple):
    """A message that a consumer received, and when it asked for it."""

    asked_s: float
    row: Row


@dataclass
class Block:
    """Messages that were sent as one, and what became of that."""

    queue: str
    producer: str
    begun_s: float
    bodies: list[bytes] = field(default_factory=list)
    done_s: float | None = None
    #: Where the client says they are; None for one that is not told.
    placed: list[MessageId | None] = field(default_factory=list)
    error: BaseException | None = None

    def kills(self, kills: list[Kill]) -> int:
        """How many kills may have come between the send and its answer."""
        assert self.done_s is not None
        return sum(self.begun_s <= kill.to_s and kill.from_s <= self.done_s for kill in kills)


@dataclass
class Evidence:
    """Everything that the checker is told."""

    kills: list[Kill] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    deliveries: dict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    #: When the server said that a message is done, by queue.
    done: dict[str, list[tuple[float, MessageId]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    #: What the streaming reader applied, in its order, and the fences it had.
    applied: list[Row] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    #: What is stored in the end, stripe by stripe.
    logs: dict[str, list[Row]] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)


def check(seen: Evidence, exactly_once: set[str], streamed: str) -> list[str]:
    """Every promise that was broken, as sentences."""
    faults = list(seen.troubles)
    for queue, log in seen.logs.items():
        blocks = [block for block in seen.blocks if block.queue == queue]
        faults += _check_answers(blocks, log)
        faults += _check_copies(seen, blocks, log, once=queue in exactly_once)
        faults += _check_deliveries(seen, queue, log)
        if queue in exactly_once:
            faults += _check_order(blocks, log)
    faults += _check_stream(seen, seen.logs[streamed])
    return faults


def repeated(log: list[Row]) -> int:
    """How many messages of a log are repetitions."""
    return len(log) - len({row.body for row in log})


def _check_answers(blocks: list[Block], log: list[Row]) -> list[str]:
    """Nothing that was answered is lost, and all is where the answer said."""
    faults = []
    stored = {row.body for row in log}
    at = {row.id: row.body for row in log}
    for block in blocks:
        name = f"{block.queue}: a block of {block.producer} ({block.bodies[0]!r}...)"
        if block.done_s is None or block.error is not None:
            faults.append(f"{name} failed: {block.error!r}")
            continue
        lost = [body for body in block.bodies if body not in stored]
        if lost:
            faults.append(f"{name} was answered, and {len(lost)} messages of it are lost")
        wrong = [
            (place, body)
            for place, body in zip(block.placed, block.bodies, strict=True)
            if place is not None and at.get(place) != body
        ]
        if wrong:
            faults.append(
                f"{name}: {len(wrong)} messages are not where the answer said: {wrong[0]}"
            )
    return faults


def _check_copies(seen: Evidence, blocks: list[Block], log: list[Row], *, once: bool) -> list[str]:
    """A message is repeated only if its send was under way at a kill, and never where forbidden."""
    faults = []
    copies = Counter(row.body for row in log)
    for block in blocks:
        if block.done_s is None:
            continue
        allowed = 1 if once else 1 + block.kills(seen.kills)
        most = max(copies.pop(body, 0) for body in block.bodies)
        if most > allowed:
            faults.append(
                f"{block.queue}: {block.bodies[0]!r} of {block.producer} or one after it is stored "
                f"{most} times; {allowed} at most"
            )
    if copies:
        faults.append(
            f"{len(copies)} messages are stored that nobody sent, e.g. {next(iter(copies))!r}"
        )
    return faults


def _check_deliveries(seen: Evidence, queue: str, log: list[Row]) -> list[str]:
    """Everything stored is received, as it is stored, and nothing again once it is done."""
    faults = []
    got = {delivery.row for delivery in seen.deliveries[queue]}
    missed, invented = set(log) - got, got - set(log)
    if missed:
        faults.append(f"{queue}: {len(missed)} messages were never received, e.g. {min(missed)}")
    if invented:
        faults.append(f"{queue}: {len(invented)} were received and are not stored: {min(invented)}")
    done_s = {message_id: at_s for at_s, message_id in reversed(seen.done[queue])}
    back = [d for d in seen.deliveries[queue] if d.asked_s > done_s.get(d.row.id, float("inf"))]
    if back:
        faults.append(f"{queue}: {len(back)} messages came back after they were done: {back[0]}")
    return faults


def _check_order(blocks: list[Block], log: list[Row]) -> list[str]:
    """The messages of one producer are stored in the order in which it sent them."""
    faults = []
    sent: dict[str, list[bytes]] = defaultdict(list)
    for block in blocks:
        sent[block.producer] += block.bodies
    place = {row.body: at for at, row in enumerate(log)}
    for producer, bodies in sent.items():
        places = [place[body] for body in bodies if body in place]
        if places != sorted(places):
            faults.append(f"the messages of {producer} are out of order")
    return faults


def _check_stream(seen: Evidence, log: list[Row]) -> list[str]:
    """The reader that keeps its position has applied each stripe in order, exactly once."""
    faults = []
    stored: dict[StripeId, list[Row]] = defaultdict(list)
    applied: dict[StripeId, list[Row]] = defaultdict(list)
    for rows, by_stripe in ((log, stored), (seen.applied, applied)):
        for row in rows:
            by_stripe[row.id.stripe].append(row)
    for stripe, rows in stored.items():
        if applied[stripe] != rows:
            pairs = zip(applied[stripe], rows, strict=False)
            at = next(
                (at for at, (a, b) in enumerate(pairs) if a != b),
                min(len(applied[stripe]), len(rows)),
            )
            faults.append(
                f"the stream of {stripe} has {len(applied[stripe])} messages, its log {len(rows)}; "
                f"they differ from {at} on: {applied[stripe][at : at + 1]} {rows[at : at + 1]}"
            )
    if seen.fences != sorted(seen.fences):
        faults.append("a fence is smaller than one before it")
    return faults
