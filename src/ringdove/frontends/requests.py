"""What the verbs of the native protocol do: one coroutine each, from a frame to an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.controllers.sending import Parcel
from ringdove.core.dedup import Segment
from ringdove.core.receipt import Receipt
from ringdove.core.tuples import maker
from ringdove.errors import ClientError, InvalidArgument, RingdoveError
from ringdove.protocol import messages
from ringdove.protocol.frames import blocks_of
from ringdove.protocol.messages import Verb
from ringdove.stores.base import Start, StripeId

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.controllers.enqueue import Begun
    from ringdove.controllers.visiting import Received
    from ringdove.core.block import Block
    from ringdove.core.dedup import Appended
    from ringdove.core.stripe import Part
    from ringdove.protocol.frames import Frame

    Reply = tuple[bytes, list[Block]]
    Handler = Callable[[Broker, Frame], Coroutine[Any, Any, Reply]]


_decode_send = messages.decoder(messages.Send)
_decode_settle = messages.decoder(messages.Settle)
_segment, _make_parcel = maker(Segment), maker(Parcel)


def _parcel(frame: Frame) -> tuple[str, int, Parcel]:
    """The parcel in a frame, its queue, and the version of the settings it was made for."""
    ask = _decode_send(frame.meta)
    segments = []
    for block, s in zip(blocks_of(frame, len(ask.segments)), ask.segments, strict=True):
        placed = False
        segments.append(
            _segment((block, s.producer, s.sequence, s.span, s.gaps, s.message_id, placed))
        )
    return ask.queue, ask.version, _make_parcel((ask.number, ask.level, segments, ask.delay_ms))


async def _send(broker: Broker, frame: Frame) -> Reply:
    return encode_stored(*await broker.deliver(*_parcel(frame)))


def begin_send(broker: Broker, frame: Frame) -> Begun | None:
    """Begin a send without a coroutine; None when something has to be waited for before that."""
    return broker.begin_to_deliver(*_parcel(frame))


def encode_stored(stripe: StripeId, answers: Iterable[Appended | ClientError]) -> Reply:
    """The answer to a send."""
    told: list[tuple[int, bool, messages.WireError | None]] = [
        (-1, False, messages.encode_error(answer))
        if isinstance(answer, RingdoveError)
        else (answer.base, answer.duplicate, None)
        for answer in answers
    ]
    return messages.encode(messages.Stored(stripe, told)), []


def encode_received(received: list[Received]) -> Reply:
    """The answer to a receive."""
    runs, blocks = [], []
    for receipt, until_ms, receives, first_ms, delivered in received:
        parts = delivered.parts
        for block, start, stop in parts:
            blocks.append(block if stop - start == block.count else block.slice(start, stop))
        runs.append(messages.WireRun(receipt, until_ms, receives, first_ms, len(parts)))
    return messages.encode(runs), blocks


def fit(received: list[Received], bytes_max: int) -> tuple[list[Received], list[Received]]:
    """What of a receive goes in one frame, at least a block; and what does not."""
    if len(received) == 1 and len(received[0].delivered.parts) == 1:
        return received, []
    kept: list[Received] = []
    rest: list[Received] = []
    nbytes = 0
    for run in received:
        parts = run.delivered.parts
        for position, part in enumerate(parts):
            nbytes += part.nbytes
            if nbytes > bytes_max and (kept or position):
                cut = part.block.base + part.start
                if position:
                    kept.append(_portion(run, run.receipt.lo, cut, parts[:position]))
                rest.append(_portion(run, cut, run.receipt.hi, parts[position:]))
                break
        else:
            kept.append(run)
    return kept, rest


def _portion(run: Received, lo: int, hi: int, parts: list[Part]) -> Received:
    return run._replace(
        receipt=run.receipt._replace(lo=lo, hi=hi),
        delivered=run.delivered._replace(parts=parts),
    )


def _answers(answers: Iterable[int | ClientError]) -> Reply:
    told = [
        messages.encode_error(answer) if isinstance(answer, RingdoveError) else answer
        for answer in answers
    ]
    return messages.encode(told), []


def _receipts(ask: messages.Settle) -> list[Receipt]:
    return [Receipt._make(receipt) for receipt in ask.receipts]


async def _acknowledge(broker: Broker, frame: Frame) -> Reply:
    ask = _decode_settle(frame.meta)
    return _answers(await broker.acknowledge(_receipts(ask)))


async def _extend(broker: Broker, frame: Frame) -> Reply:
    ask = _decode_settle(frame.meta)
    return _answers(await broker.extend(_receipts(ask), ask.value or 0))


async def _release(broker: Broker, frame: Frame) -> Reply:
    ask = _decode_settle(frame.meta)
    return _answers(await broker.release(_receipts(ask), ask.value))


async def _unlease(broker: Broker, frame: Frame) -> Reply:
    ask = _decode_settle(frame.meta)
    return _answers(await broker.unlease(_receipts(ask)))


async def _bury(broker: Broker, frame: Frame) -> Reply:
    ask: messages.Bury = messages.decode(messages.Bury, frame.meta)
    receipt = Receipt._make(ask.receipt)
    await broker.bury(ask.queue, receipt, blocks_of(frame, ask.blocks), ask.reason)
    return b"", []


async def _redrive(broker: Broker, frame: Frame) -> Reply:
    ask: messages.Redrive = messages.decode(messages.Redrive, frame.meta)
    return messages.encode(await broker.redrive(ask.queue, ask.target, ask.max)), []


def _info(info: QueueInfo) -> messages.WireInfo:
    return messages.WireInfo(*info[:5])


async def _create(broker: Broker, frame: Frame) -> Reply:
    ask: messages.Settings = messages.decode(messages.Settings, frame.meta)
    return messages.encode(_info(await broker.create_queue(ask.queue, ask.settings))), []


async def _get(broker: Broker, frame: Frame) -> Reply:
    return messages.encode(_info(await broker.get_queue(messages.decode(str, frame.meta)))), []


async def _list(broker: Broker, frame: Frame) -> Reply:
    found = await broker.list_queues(messages.decode(str, frame.meta))
    return messages.encode([_info(info) for info in found]), []


async def _change(broker: Broker, frame: Frame) -> Reply:
    ask: messages.Settings = messages.decode(messages.Settings, frame.meta)
    return messages.encode(_info(await broker.change_queue(ask.queue, ask.settings))), []


async def _delete(broker: Broker, frame: Frame) -> Reply:
    await broker.delete_queue(messages.decode(str, frame.meta))
    return b"", []


async def _purge(broker: Broker, frame: Frame) -> Reply:
    return messages.encode(await broker.purge_queue(messages.decode(str, frame.meta))), []


async def _stats(broker: Broker, frame: Frame) -> Reply:
    stats = await broker.queue_stats(messages.decode(str, frame.meta))
    stripes = [
        messages.WireStripeStats(stripe, *state[:-1], subscriptions=list(state.subscriptions))
        for stripe, state in stats.stripes.items()
    ]
    return messages.encode(stripes), []


async def _subscriptions(broker: Broker, frame: Frame) -> Reply:
    return messages.encode(await broker.subscriptions(messages.decode(str, frame.meta))), []


async def _subscribe(broker: Broker, frame: Frame) -> Reply:
    ask: messages.Subscribe = messages.decode(messages.Subscribe, frame.meta)
    await broker.subscribe(
        ask.queue, ask.subscription, Start(*ask.start), keep_default=ask.keep_default
    )
    return b"", []


async def _unsubscribe(broker: Broker, frame: Frame) -> Reply:
    queue, subscription = messages.decode(tuple[str, str], frame.meta)
    await broker.unsubscribe(queue, subscription)
    return b"", []


async def _read(broker: Broker, frame: Frame) -> Reply:
    ask: messages.Read = messages.decode(messages.Read, frame.meta)
    blocks = await broker.read(
        StripeId(*ask.stripe),
        ask.offset,
        ask.messages_max,
        min(ask.bytes_max, limits.BLOCK_BYTES_MAX),
        skip_trimmed=ask.skip_trimmed,
    )
    while len(blocks) > 1 and sum(block.nbytes for block in blocks) > limits.BLOCK_BYTES_MAX:
        blocks.pop()  # More would not go in one frame.
    return messages.encode(len(blocks)), blocks


async def _position(broker: Broker, frame: Frame) -> Reply:
    ask: messages.Position = messages.decode(messages.Position, frame.meta)
    return messages.encode(await broker.position(StripeId(*ask.stripe), Start(*ask.start))), []


async def _advance(broker: Broker, frame: Frame) -> Reply:
    ask: messages.Advance = messages.decode(messages.Advance, frame.meta)
    await broker.advance(StripeId(*ask.stripe), ask.subscription, ask.offset)
    return b"", []


async def _account(broker: Broker, frame: Frame) -> Reply:
    command, arguments = messages.decode(messages.Command, frame.meta)
    return messages.encode(await broker.account(command, arguments)), []


async def _tier(broker: Broker, frame: Frame) -> Reply:  # noqa: ARG001
    messages.decode(messages.Command, frame.meta)
    raise InvalidArgument(
        "This server is no manager of tiers: one is started by 'ringdove serve --manager'."
    )


HANDLERS: dict[int, Handler] = {
    Verb.SEND: _send,
    Verb.ACKNOWLEDGE: _acknowledge,
    Verb.EXTEND: _extend,
    Verb.RELEASE: _release,
    Verb.BURY: _bury,
    Verb.REDRIVE: _redrive,
    Verb.UNLEASE: _unlease,
    Verb.CREATE: _create,
    Verb.GET: _get,
    Verb.LIST: _list,
    Verb.CHANGE: _change,
    Verb.DELETE: _delete,
    Verb.PURGE: _purge,
    Verb.STATS: _stats,
    Verb.SUBSCRIPTIONS: _subscriptions,
    Verb.SUBSCRIBE: _subscribe,
    Verb.UNSUBSCRIBE: _unsubscribe,
    Verb.READ: _read,
    Verb.POSITION: _position,
    Verb.ADVANCE: _advance,
    Verb.ACCOUNT: _account,
    Verb.TIER: _tier,
}
