"""Sending, as far as the sender does it: what messages become before a controller takes them.

Messages of one call become one *parcel* per stripe, so a call costs one commit per stripe however
many they are. A client of a server builds its parcels itself, with the same code as the library in
one process; the controller (enqueue.py) only has to check and store them.

    order loose            any stripe; the controller chooses
    order key              the key's hash; so a key's messages stay on one stripe
    order strict           the one stripe
    delivery exactly-once  without keys: the producer's hash; so a retry, through whichever
                           controller, meets its first attempt
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

from ringdove import limits
from ringdove.core.attributes import Attributes, are_plain
from ringdove.core.block import Block, key_hash
from ringdove.core.dedup import PRODUCER_BYTES_MAX, Appended, Segment
from ringdove.core.tuples import maker
from ringdove.errors import (
    ClientError,
    InvalidArgument,
    LocalProtocolError,
    MessageTooLarge,
    QueueNotFound,
    RingdoveError,
    SequenceRefused,
    SettingsStale,
)
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringdove.controllers.catalog import QueueInfo
    from ringdove.core.columns import Buffer


class Sequencer:
    """A producer's identity and its place in its sequence on each stripe."""

    __slots__ = ("_next", "_start", "id")

    def __init__(self, producer_id: bytes, start: int = 0) -> None:
        if not 0 < len(producer_id) <= PRODUCER_BYTES_MAX:
            raise InvalidArgument(f"A producer's name has 1 to {PRODUCER_BYTES_MAX} bytes.")
        self.id = producer_id
        self._start = start
        self._next: dict[int, int] = {}

    def take(self, stripe_number: int, count: int) -> int:
        """The sequence number of the first of `count` messages for a stripe."""
        first = self._next.get(stripe_number, self._start)
        self._next[stripe_number] = first + count
        return first


class Outgoing(NamedTuple):
    """Messages of one send, column by column; every column given has one entry per body."""

    bodies: Sequence[Buffer]
    keys: Sequence[bytes] | None = None
    attributes: Sequence[Attributes | None] | None = None
    #: Message ids: one that the queue has seen within `dedup_ms` is not stored again.
    ids: Sequence[bytes | None] | None = None
    priority: int = 0
    #: Wait before delivery; None for the queue's own.
    delay_ms: int | None = None
    compression: str = "none"
    #: Send times to keep, when messages are moved rather than new.
    sent_ms: Sequence[int] | None = None
    #: Who sends, for exactly-once queues; and, filled by the first attempt, the sequence number on
    #: each stripe, so that a second attempt repeats the first.
    producer: Sequencer | None = None
    sequences: dict[int, int] | None = None


class Sent(NamedTuple):
    """Where one message is."""

    stripe: StripeId
    offset: int
    #: The queue had it already; nothing was stored.
    duplicate: bool = False


class SentBatch(Sequence[Sent]):
    """Where the messages of one send are, in their order; costs nothing until it is looked at."""

    __slots__ = ("_count", "_found", "_parts")

    def __init__(self, count: int) -> None:
        self._count = count
        self._parts: list[tuple[Sequence[int], StripeId, Appended]] = []
        self._found: list[Sent] | None = None

    def add(self, positions: Sequence[int], stripe: StripeId, answer: Appended) -> None:
        """Note that the messages at `positions` are at consecutive offsets of a stripe."""
        self._parts.append((positions, stripe, answer))

    def parts(self) -> Sequence[tuple[Sequence[int], StripeId, Appended]]:
        """What was noted by `add`."""
        return self._parts

    @property
    def duplicates(self) -> int:
        """How many messages the queue had already."""
        return sum(len(positions) for positions, _, answer in self._parts if answer.duplicate)

    def _all(self) -> list[Sent]:
        if self._found is None:
            found = {}
            for positions, stripe, (base, duplicate) in self._parts:
                for step, position in enumerate(positions):
                    offset = base + step if base >= 0 else -1
                    found[position] = Sent(stripe, offset, duplicate)
            self._found = [found[position] for position in range(self._count)]
        return self._found

    @overload
    def __getitem__(self, index: int) -> Sent: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sent]: ...
    def __getitem__(self, index: int | slice) -> Sent | list[Sent]:
        return self._all()[index]

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"SentBatch({self._count} messages, {self.duplicates} duplicates)"


class Parcel(NamedTuple):
    """What a send puts on one stripe."""

    #: Number of the stripe, ANY_STRIPE when the controller may choose.
    number: int
    level: int
    segments: list[Segment]
    #: Wait before delivery; None for the queue's own.
    delay_ms: int | None = None


ANY_STRIPE = -1

#: What became of a parcel: the stripe, and an answer per segment.
Delivered = tuple[StripeId, list[Appended | ClientError]]


_parcel, _segment, _sent = maker(Parcel), maker(Segment), maker(Sent)

#: The fields of a segment behind its block, if its sender makes no claim about repetition.
_NO_CLAIM = tuple(Segment._field_defaults.values())


class Queues(Protocol):
    """Where a sender looks up queues."""

    #: The queue of that name, if it was looked up before.
    known: Callable[[str], QueueInfo | None]

    async def get(self, name: str) -> QueueInfo:
        """The queue, or QueueNotFound."""
        ...

    async def refresh(self, name: str) -> QueueInfo:
        """The queue, read anew."""
        ...


class Deliver(Protocol):
    """The way to the enqueue controller."""

    async def __call__(self, queue: str, version: int, parcel: Parcel) -> Delivered:
        """Store a parcel; SettingsStale when it was made for other settings."""
        ...


class Sender:
    """Turns sends into parcels, and has them delivered."""

    def __init__(self, queues: Queues, deliver: Deliver, now_ms: Callable[[], int]) -> None:
        self._queues = queues
        self._deliver = deliver
        self.now_ms = now_ms

    async def send(self, queue: str, outgoing: Outgoing) -> SentBatch:
        """Store the messages; when this returns they are as durable as the queue promises."""
        if not outgoing.bodies:
            return SentBatch(0)
        if outgoing.producer is not None and outgoing.sequences is None:
            outgoing = outgoing._replace(sequences={})
        try:
            info = self._queues.known(queue) or await self._queues.get(queue)
            return await self._send(info, outgoing)
        except (SettingsStale, QueueNotFound):
            info = await self._queues.refresh(queue)
        return await self._send(info, outgoing)

    async def send_one(self, queue: str, body: bytes) -> Sent:
        """`send` for a message that is nothing but its body, in fewer steps where it can be."""
        info = self._queues.known(queue)
        if info is not None:
            settings = info.settings
            plain = settings.order != "key" and settings.delivery == "at-least-once"
            if plain and len(body) <= settings.body_bytes_max:
                number = ANY_STRIPE if settings.stripes > 1 else 0
                block = Block.one(body, self.now_ms())
                parcel = _parcel((number, 0, [_segment((block, *_NO_CLAIM))], None))
                try:
                    stripe, [answer] = await self._deliver(queue, info.version, parcel)
                    if isinstance(answer, RingdoveError):
                        raise answer
                    return _sent((stripe, *answer))
                except (SettingsStale, QueueNotFound):
                    await self._queues.refresh(queue)
        return (await self.send(queue, Outgoing([body])))[0]

    async def _send(self, info: QueueInfo, outgoing: Outgoing) -> SentBatch:
        admit(info, outgoing)
        if outgoing.producer is not None and not info.settings.exactly_once:
            outgoing = outgoing._replace(producer=None)
        sent = SentBatch(len(outgoing.bodies))
        for parcel, positions in parcels(info, outgoing, self.now_ms()):
            stripe, answers = await self._deliver(info.name, info.version, parcel)
            for segment, mine, answer in zip(parcel.segments, positions, answers, strict=True):
                if isinstance(answer, SequenceRefused):
                    await self._send_rest(info, stripe, segment, answer, mine, sent)
                elif isinstance(answer, RingdoveError):
                    raise answer
                else:
                    sent.add(mine, stripe, answer)
        return sent

    async def _send_rest(
        self,
        info: QueueInfo,
        stripe: StripeId,
        segment: Segment,
        refusal: SequenceRefused,
        positions: Sequence[int],
        sent: SentBatch,
    ) -> None:
        """A producer that started over cut its blocks elsewhere: send only what is new."""
        known = refusal.expected - segment.sequence
        if not 0 < known < segment.block.count:
            raise refusal
        rest = segment._replace(
            block=segment.block.slice(known, segment.block.count),
            sequence=refusal.expected,
            span=segment.block.count - known,
        )
        parcel = Parcel(stripe.number, stripe.level, [rest])
        _, [answer] = await self._deliver(info.name, info.version, parcel)
        if isinstance(answer, RingdoveError):
            raise answer
        sent.add(positions[:known], stripe, Appended(-1, duplicate=True))
        sent.add(positions[known:], stripe, answer)


def parcels(
    info: QueueInfo, outgoing: Outgoing, now_ms: int
) -> Iterator[tuple[Parcel, list[Sequence[int]]]]:
    """The parcels of a send, each with the positions of its segments' messages.

    Each is made, and takes its sequence numbers, when it is asked for: right before it is sent.
    """
    if outgoing.ids is not None:
        yield from _parcels_by_id(info, outgoing, now_ms)
        return
    for number, positions in _place(info, outgoing).items():
        part = outgoing if positions is None else _pick(outgoing, positions)
        whole = positions if positions is not None else range(len(outgoing.bodies))
        producer, sequence = _claim(part, number)
        segments: list[Segment] = []
        spans: list[Sequence[int]] = []
        for first, block in _blocks(part, now_ms):
            segments.append(Segment(block, producer, sequence + first, block.count))
            spans.append(whole[first : first + block.count])
        yield Parcel(number, outgoing.priority, segments, outgoing.delay_ms), spans


def _parcels_by_id(
    info: QueueInfo, outgoing: Outgoing, now_ms: int
) -> Iterator[tuple[Parcel, list[Sequence[int]]]]:
    """Messages with ids are judged one by one, in one commit per stripe."""
    assert outgoing.ids is not None
    groups: dict[int, list[int]] = {}
    for position, message_id in enumerate(outgoing.ids):
        key = outgoing.keys[position] if outgoing.keys else b""
        home = key_hash(key if info.settings.order == "key" else message_id or b"")
        groups.setdefault(home % info.settings.stripes, []).append(position)
    for number, positions in groups.items():
        segments = []
        for position in positions:
            [(_, block)] = _blocks(_pick(outgoing, [position]), now_ms)
            segments.append(Segment(block, message_id=outgoing.ids[position] or None))
        spans: list[Sequence[int]] = [[position] for position in positions]
        yield Parcel(number, outgoing.priority, segments, outgoing.delay_ms), spans


def _place(info: QueueInfo, outgoing: Outgoing) -> dict[int, list[int] | None]:
    """Which messages go to which stripe; None means all of them."""
    settings = info.settings
    if settings.stripes == 1:
        return {0: None}
    if settings.order == "key":
        assert outgoing.keys is not None
        placed: dict[int, list[int]] = {}
        for position, key in enumerate(outgoing.keys):
            placed.setdefault(key_hash(key) % settings.stripes, []).append(position)
        return dict(placed)
    if outgoing.producer is not None:
        return {key_hash(outgoing.producer.id) % settings.stripes: None}
    return {ANY_STRIPE: None}


def _blocks(outgoing: Outgoing, now_ms: int) -> list[tuple[int, Block]]:
    """The messages as blocks, each with the position of its first message."""
    count = len(outgoing.bodies)
    lengths = list(map(len, outgoing.bodies))
    blocks = []
    first = 0
    while first < count:
        last = _block_end(lengths, first)
        part = outgoing if (first, last) == (0, count) else _pick(outgoing, range(first, last))
        block = Block.build(
            part.bodies,
            sent_ms=now_ms if part.sent_ms is None else part.sent_ms,
            keys=part.keys,
            attributes=part.attributes,
            priority=outgoing.priority,
            compression=outgoing.compression,
        )
        blocks.append((first, block))
        first = last
    return blocks


def _claim(part: Outgoing, number: int) -> tuple[bytes | None, int]:
    """Producer and first sequence number of messages for a stripe, the same at every attempt."""
    if part.producer is None:
        return None, 0
    sequences = part.sequences if part.sequences is not None else {}
    if number not in sequences:
        sequences[number] = part.producer.take(number, len(part.bodies))
    return part.producer.id, sequences[number]


def admit(info: QueueInfo, outgoing: Outgoing) -> None:
    """Refuse what the queue does not take, before anything is stored."""
    settings = info.settings
    longest = max(map(len, outgoing.bodies))
    if longest > settings.body_bytes_max:
        raise MessageTooLarge(
            f"A body of {longest} bytes exceeds body_bytes_max of queue {info.name!r}, "
            f"which is {settings.body_bytes_max}."
        )
    if not 0 <= outgoing.priority <= settings.priority:
        raise InvalidArgument(
            f"Queue {info.name!r} takes priorities 0 to {settings.priority}, not "
            f"{outgoing.priority}; raise its setting 'priority' for more."
        )
    if settings.order == "key" and (outgoing.keys is None or not all(outgoing.keys)):
        raise InvalidArgument(
            f"Queue {info.name!r} keeps messages in order by key: every message needs a key."
        )
    if settings.ordered and outgoing.delay_ms is not None:
        raise InvalidArgument(
            f"Queue {info.name!r} keeps order, so single messages cannot be delayed; "
            "set delay_ms on the queue instead."
        )
    if outgoing.delay_ms is not None and not 0 <= outgoing.delay_ms < settings.retention_ms:
        raise InvalidArgument(
            f"delay_ms is {outgoing.delay_ms}; it must be 0 or more and below the queue's "
            f"retention_ms of {settings.retention_ms}."
        )
    _admit_columns(outgoing)


def _admit_columns(outgoing: Outgoing) -> None:
    if outgoing.keys is not None and max(map(len, outgoing.keys)) > limits.KEY_BYTES_MAX:
        raise MessageTooLarge(f"A key has at most {limits.KEY_BYTES_MAX} bytes.")
    if outgoing.attributes is not None:
        # Many messages may share the same attributes.
        for attributes in {id(one): one for one in outgoing.attributes if one}.values():
            _admit_attributes(attributes)
    for message_id in outgoing.ids or ():
        if message_id is not None and not 0 < len(message_id) <= limits.MESSAGE_ID_BYTES_MAX:
            raise InvalidArgument(
                f"A message id has 1 to {limits.MESSAGE_ID_BYTES_MAX} bytes, not {len(message_id)}."
            )


def _admit_attributes(attributes: Attributes) -> None:
    if len(attributes) > limits.ATTRIBUTES_MAX:
        raise MessageTooLarge(f"A message has at most {limits.ATTRIBUTES_MAX} attributes.")
    for name, value in attributes.items():
        if not are_plain({name: value}):
            raise InvalidArgument(
                f"Attribute {name!r} is of type {type(value).__name__}: names are text; values are "
                "text, numbers, booleans, bytes, None, or flat lists of these."
            )


def _block_end(lengths: list[int], first: int) -> int:
    """How far a block that starts at `first` may reach."""
    last = min(len(lengths), first + limits.BLOCK_MESSAGES_MAX)
    if sum(lengths[first:last]) <= _BODIES_BYTES_MAX:
        return last
    nbytes = 0
    for position in range(first, last):
        nbytes += lengths[position]
        if nbytes > _BODIES_BYTES_MAX:
            if position == first:
                raise LocalProtocolError(f"A body of {nbytes} bytes fits in no block.")
            return position
    return last


#: Bytes of bodies in one block of a send; leaves room for keys and attributes.
_BODIES_BYTES_MAX = limits.BLOCK_BYTES_MAX // 2


def _pick(outgoing: Outgoing, positions: Sequence[int]) -> Outgoing:
    """The messages at some positions."""

    def column(values: Sequence[Any] | None) -> list[Any] | None:
        return None if values is None else [values[position] for position in positions]

    return outgoing._replace(
        bodies=column(outgoing.bodies) or [],
        keys=column(outgoing.keys),
        attributes=column(outgoing.attributes),
        sent_ms=column(outgoing.sent_ms),
        ids=None,
    )
