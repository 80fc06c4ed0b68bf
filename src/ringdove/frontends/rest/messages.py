"""Sending: one message, many, NDJSON, raw blocks, or a body that is the message itself.

The content type decides. Whatever comes is read and checked to its end before anything is stored,
so a mistake in the last line leaves nothing behind; then it costs one commit per stripe, and one
more for each other priority or delay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET

from ringdove import limits
from ringdove.controllers.enqueue import check_parcel
from ringdove.controllers.sending import ANY_STRIPE, Outgoing, Parcel, admit
from ringdove.core.attributes import encode
from ringdove.core.block import HEADER_BYTES, Block, block_bytes
from ringdove.core.dedup import Segment
from ringdove.errors import (
    InvalidArgument,
    LocalProtocolError,
    MessageTooLarge,
    RemoteProtocolError,
    RingdoveError,
)
from ringdove.frontends.rest import shapes
from ringdove.frontends.rest.problems import Explained
from ringdove.frontends.rest.reading import JSON_FAILURES, media_type, read_json
from ringdove.frontends.rest.routes import BLOCK, JSON, NDJSON, Call, Route, answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.core.attributes import Attributes
    from ringdove.frontends.exchange import HttpResponse


class _Item(NamedTuple):
    """A message that is fit to be sent."""

    body: bytes
    key: bytes
    attributes: Attributes | None
    #: Of the attributes, when they are stored.
    attributes_bytes: int
    id: bytes | None
    priority: int
    delay_ms: int | None


class _Items(NamedTuple):
    """Messages, and what the request calls the place of each: a line, or a position."""

    items: list[_Item]
    word: str
    places: Sequence[int]


async def send(call: Call) -> HttpResponse:
    """Store what the request holds; when this is answered it is as durable as the queue says."""
    kind = media_type(call.request)
    if kind in (JSON, NDJSON, BLOCK):
        _refuse_query(call.query, kind)
    if kind == BLOCK:
        blocks = _split_blocks(call.request.body)
        delay_ms = shapes.given(call.query.delay_ms)
        stored = await call.drive(_deliver(call.broker, call.queue, blocks, delay_ms))
    else:
        if kind == NDJSON:
            given = _read_lines(call.request.body)
        elif kind == JSON:
            given = _read_object(call.request.body)
        else:
            given = _Items([_read_plain(call.request.body, call.query)], "message", [0])
        stored = await call.drive(_store(call.broker, call.queue, given))
    return answer(shapes.Stored(stored), 201)


def _refuse_query(query: shapes.SendQuery, kind: str) -> None:
    """Parameters describe a body that is the message; others say for themselves what they are."""
    given = {n for n in query.__struct_fields__ if getattr(query, n) is not UNSET}
    surplus = sorted(given - {"delay_ms"} if kind == BLOCK else given)
    if surplus:
        raise InvalidArgument(
            f"A body of type {kind} says for itself what its messages are: "
            f"leave {', '.join(surplus)} out of the query."
        )


# -- reading ---------------------------------------------------------------------------------------


def _read_plain(body: bytes, query: shapes.SendQuery) -> _Item:
    given = None
    if query.attributes is not UNSET:
        try:
            given = read_json(dict[str, shapes.AttributeValue], query.attributes.encode())
        except InvalidArgument as error:
            raise InvalidArgument(f"attributes must be a JSON object: {error}") from None
    return _Item(
        body,
        (shapes.given(query.key) or "").encode(),
        *_attributes(given),
        None if query.id is UNSET else query.id.encode(),
        shapes.given(query.priority) or 0,
        shapes.given(query.delay_ms),
    )


def _read_object(body: bytes) -> _Items:
    posted: shapes.Posted = read_json(shapes.Posted, body)
    if posted.messages is UNSET:
        return _Items([_item(posted)], "message", [0])
    if posted != shapes.Posted(messages=posted.messages):
        raise InvalidArgument(
            "Give either one message or 'messages'; what concerns a message stands in it."
        )
    places = range(len(posted.messages))
    items = []
    for place, message in zip(places, posted.messages, strict=True):
        try:
            items.append(_item(message))
        except RingdoveError as error:
            raise _placed(error, "message", place) from None
    return _checked(_Items(items, "message", places))


def _read_lines(body: bytes) -> _Items:
    items: list[_Item] = []
    places: list[int] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line or line.isspace():
            continue
        if len(items) >= shapes.SEND_MESSAGES_MAX:
            raise MessageTooLarge(
                f"A request holds at most {shapes.SEND_MESSAGES_MAX} messages: "
                f"send those from line {number} on in another one."
            )
        try:
            items.append(_item(read_json(shapes.NewMessage, line)))
        except RingdoveError as error:
            raise _placed(error, "line", number) from None
        places.append(number)
    if not items:
        raise InvalidArgument("There is no message in the body: one JSON object per line.")
    return _checked(_Items(items, "line", places))


def _item(message: shapes.NewMessage) -> _Item:
    if message.key is not None and message.key_base64 is not None:
        raise InvalidArgument("Give 'key' or 'key_base64', not both.")
    return _Item(
        _body(message),
        (message.key or "").encode() or message.key_base64 or b"",
        *_attributes(message.attributes),
        None if message.id is None else message.id.encode(),
        message.priority,
        message.delay_ms,
    )


def _body(message: shapes.NewMessage) -> bytes:
    raw, binary = message.body, message.body_base64
    if (raw is UNSET) == (binary is None):
        raise InvalidArgument(
            "A message has either 'body' or 'body_base64'. To send JSON itself as a message, put "
            "it under 'body', or choose another content type."
        )
    if binary is not None:
        return binary
    assert raw is not UNSET
    data = bytes(raw)
    if data == b"null":
        raise InvalidArgument("'body' is null: leave nothing out, or send an empty text.")
    try:
        if data.startswith(b'"'):
            return msgspec.json.decode(data, type=str).encode()
        data.decode()
    except JSON_FAILURES as error:
        raise InvalidArgument(f"'body' is no JSON in UTF-8: {error}.") from None
    return data


def _attributes(given: dict[str, Any] | None) -> tuple[Attributes | None, int]:
    """The attributes, None for none, and their size; refused here if they cannot be stored."""
    if not given:
        return None, 0
    found = {
        name: [_value(v) for v in value] if isinstance(value, list) else _value(value)
        for name, value in given.items()
    }
    try:
        return found, len(encode(found))
    except LocalProtocolError as error:
        raise InvalidArgument(str(error)) from None


def _value(value: Any) -> Any:
    return value.base64 if isinstance(value, shapes.Binary) else value


def _checked(given: _Items) -> _Items:
    """Refuse attributes that would not fit in the blocks of their bodies."""
    nbytes = sum(item.attributes_bytes for item in given.items)
    if nbytes > shapes.SEND_ATTRIBUTES_BYTES_MAX:
        raise MessageTooLarge(
            f"The attributes of a request take at most {shapes.SEND_ATTRIBUTES_BYTES_MAX} bytes, "
            f"not {nbytes}: send fewer messages at once."
        )
    return given


def _placed(error: RingdoveError, word: str, place: int) -> Explained:
    """The error, with the place where it is: nothing was stored because of it."""
    told = type(error)(f"In {word} {place}: {error} Nothing was stored.")
    return Explained(told, **{word: place})


def _split_blocks(body: bytes) -> list[Block]:
    """The blocks in the body, one after the other, each verified."""
    blocks: list[Block] = []
    count = at = 0
    view = memoryview(body)
    while at < len(view) or not blocks:
        rest = len(view) - at
        length = block_bytes(view, at) if rest >= HEADER_BYTES else HEADER_BYTES
        if rest < length:
            raise RemoteProtocolError(
                f"Block {len(blocks)} of the body ends too early: {rest} bytes of {length}."
            )
        block = Block.decode(view[at : at + length])
        count += block.count
        if count > shapes.SEND_MESSAGES_MAX:
            raise MessageTooLarge(
                f"A request holds at most {shapes.SEND_MESSAGES_MAX} messages: "
                f"send the blocks from {len(blocks)} on in another one."
            )
        blocks.append(block)
        at += length
    return blocks


# -- storing ---------------------------------------------------------------------------------------


async def _store(broker: Broker, queue: str, given: _Items) -> list[shapes.Position]:
    info = await broker.get_queue(queue)
    groups = _groups(given.items)
    try:
        for outgoing, _ in groups:
            admit(info, outgoing)
    except RingdoveError as error:
        raise _blame(error, info, given) from None
    found: dict[int, shapes.Position] = {}
    for outgoing, positions in groups:
        sent = await broker.send(queue, outgoing)
        for position, (stripe, offset, duplicate) in zip(positions, sent, strict=True):
            found[position] = shapes.Position(stripe.number, stripe.level, offset, duplicate)
    return [found[position] for position in range(len(given.items))]


def _groups(items: list[_Item]) -> list[tuple[Outgoing, list[int]]]:
    """The messages by priority and delay, in their order, each with their positions."""
    groups: dict[tuple[int, int | None], list[int]] = {}
    for position, item in enumerate(items):
        groups.setdefault((item.priority, item.delay_ms), []).append(position)
    return [
        (_outgoing([items[p] for p in positions], *shared), positions)
        for shared, positions in groups.items()
    ]


def _outgoing(items: list[_Item], priority: int, delay_ms: int | None) -> Outgoing:
    return Outgoing(
        [item.body for item in items],
        keys=[item.key for item in items] if any(item.key for item in items) else None,
        attributes=(
            [item.attributes for item in items] if any(item.attributes for item in items) else None
        ),
        ids=[item.id for item in items] if any(item.id for item in items) else None,
        priority=priority,
        delay_ms=delay_ms,
    )


def _blame(error: RingdoveError, info: QueueInfo, given: _Items) -> RingdoveError:
    """The error with the place of the first message that the queue does not take."""
    if len(given.items) > 1:
        for item, place in zip(given.items, given.places, strict=True):
            try:
                admit(info, _outgoing([item], item.priority, item.delay_ms))
            except RingdoveError as own:
                return _placed(own, given.word, place)
    return error


async def _deliver(
    broker: Broker, queue: str, blocks: list[Block], delay_ms: int | None
) -> list[shapes.Position]:
    """Store blocks as they are: one parcel for each stripe and priority."""
    info = await broker.get_queue(queue)
    groups: dict[tuple[int, int], list[int]] = {}
    for position, block in enumerate(blocks):
        groups.setdefault((_home(info, block), block.priority), []).append(position)
    parcels = [
        (Parcel(*home, [Segment(blocks[p]) for p in positions], delay_ms), positions)
        for home, positions in groups.items()
    ]
    for parcel, _ in parcels:
        check_parcel(info, parcel)
    found: dict[int, list[shapes.Position]] = {}
    for parcel, positions in parcels:
        stripe, answers = await broker.deliver(queue, info.version, parcel)
        for position, stored in zip(positions, answers, strict=True):
            if isinstance(stored, RingdoveError):
                raise stored
            found[position] = [
                shapes.Position(stripe.number, stripe.level, offset, stored.duplicate)
                for offset in range(stored.base, stored.base + blocks[position].count)
            ]
    return [place for position in range(len(blocks)) for place in found[position]]


def _home(info: QueueInfo, block: Block) -> int:
    """The stripe of a block; by its first key where keys decide, and `check_parcel` does the rest.

    Keys are checked here because blocks do not limit them.
    """
    if block.keyed and max(map(len, block.keys())) > limits.KEY_BYTES_MAX:
        raise MessageTooLarge(f"A key has at most {limits.KEY_BYTES_MAX} bytes.")
    settings = info.settings
    if settings.order == "key":
        return int(block.key_hashes()[0] % settings.stripes)
    return 0 if settings.stripes == 1 else ANY_STRIPE


def _documented() -> dict[str, Any]:
    """The bodies that a send takes, for the OpenAPI."""
    return {
        JSON: (shapes.NewMessage, shapes.NewMessages),
        NDJSON: str,
        BLOCK: bytes,
        "text/plain": str,
        "application/octet-stream": bytes,
    }


ROUTES: Iterable[Route] = [
    Route(
        "POST", "/v1/queues/{queue}/messages", send, "send", "Send messages",
        {201: shapes.Stored}, (404, 409, 413, 415, 507),
        query=shapes.SendQuery, media=_documented(),
    ),
]  # fmt: skip
