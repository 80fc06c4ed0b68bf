"""Receiving and settling: lease, acknowledge, extend, release, bury; peek and redrive.

Every message has a receipt of its own. A request that settles answers 200 only when all of its
receipts were good; otherwise it is a problem, whose `results` say what became of each.
"""

from __future__ import annotations

import base64
import binascii
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove import limits
from ringdove.controllers.catalog import no_subscription
from ringdove.core.receipt import Receipt
from ringdove.core.stripe import Part
from ringdove.errors import (
    ClientError,
    InvalidArgument,
    NotAuthorized,
    ReceiptStale,
    RingdoveError,
)
from ringdove.frontends.rest import shapes
from ringdove.frontends.rest.problems import Explained
from ringdove.frontends.rest.routes import Call, Route, answer, answer_raw
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.controllers.visiting import Received
    from ringdove.core.block import Block
    from ringdove.frontends.exchange import HttpResponse

    Settled = list[int | ClientError]

_log = logging.getLogger(__name__)

_QUEUE = "/v1/queues/{queue}"
_encode = msgspec.json.Encoder().encode


# -- receiving -------------------------------------------------------------------------------------


async def receive(call: Call) -> HttpResponse:
    """Lease messages, waiting for the first as long as the client does."""
    ask: shapes.ReceiveQuery = call.query
    lease_ms = shapes.given(ask.lease_ms)
    received = await call.drive(
        call.broker.receive(call.queue, ask.subscription, ask.max, ask.wait, lease_ms),
        parks=ask.wait > 0,
    )
    rows, rest = _fit(received)
    if rest:
        try:
            await call.drive(call.broker.unlease(rest))
        except RingdoveError as error:
            _log.info("Messages beyond an answer's size could not be given back: %s", error)
    return _messages(rows)


def _fit(received: list[Received]) -> tuple[list[bytes], list[Receipt]]:
    """The messages that go in one answer, at least one; and receipts for those that do not."""
    rows: list[bytes] = []
    rest: list[Receipt] = []
    nbytes = 0
    for run in received:
        for offset, row in _leased(run):
            if rows and nbytes + len(row) > shapes.ANSWER_BYTES_MAX:
                rest.append(run.receipt._replace(lo=offset))
                nbytes = shapes.ANSWER_BYTES_MAX
                break
            nbytes += len(row)
            rows.append(row)
    return rows, rest


def _leased(run: Received) -> Iterator[tuple[int, bytes]]:
    for part in run.delivered.parts:
        for offset, fields in _fields(part, run.receipt.number):
            receipt = run.receipt._replace(lo=offset, hi=offset + 1).encode()
            row = shapes.Received(
                **fields,
                receives=run.receives,
                lease_until_ms=run.until_ms,
                receipt=base64.urlsafe_b64encode(receipt).decode(),
            )
            yield offset, _encode(row)


def _fields(part: Part, number: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The offset of each message, and its fields as JSON has them."""
    block, start, stop = part
    columns = zip(
        range(block.base + start, block.base + stop),
        block.bodies(start, stop),
        block.keys(start, stop),
        block.attributes(start, stop),
        block.sent_times_ms(start, stop),
        strict=True,
    )
    for offset, body, key, attributes, sent_ms in columns:
        fields: dict[str, Any] = _text("body", body)
        if key:
            fields |= _text("key", key)
        if attributes:
            fields["attributes"] = {name: _plain(value) for name, value in attributes.items()}
        fields |= {
            "sent_ms": sent_ms,
            "stripe": number,
            "priority": block.priority,
            "offset": offset,
        }
        yield offset, fields


def _text(name: str, data: bytes) -> dict[str, Any]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": data}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": value}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _messages(rows: list[bytes]) -> HttpResponse:
    return answer_raw(b'{"messages":[%b]}' % b",".join(rows))


async def peek(call: Call) -> HttpResponse:
    """Look at messages from the oldest that is not done on; leased ones are among them."""
    ask: shapes.PeekQuery = call.query
    return _messages(await call.drive(_peek(call.broker, call.queue, ask.subscription, ask.max)))


async def _peek(broker: Broker, queue: str, subscription: str, left: int) -> list[bytes]:
    rows: list[bytes] = []
    stats = await broker.queue_stats(queue)
    if subscription not in stats.subscriptions:
        raise no_subscription(queue, subscription, stats.subscriptions)
    nbytes = 0
    for stripe, state in sorted(stats.stripes.items(), key=lambda s: (-s[0].level, s[0].number)):
        floor = next(s.floor for s in state.subscriptions if s.name == subscription)
        if left <= 0 or floor >= state.tail:
            continue
        for block in await broker.read(stripe, floor, left):
            part = Part(block, 0, min(block.count, max(0, left)))
            left -= part.stop
            for _, fields in _fields(part, stripe.number):
                row = _encode(shapes.Message(**fields))
                nbytes += len(row)
                if rows and nbytes > shapes.ANSWER_BYTES_MAX:
                    return rows
                rows.append(row)
    return rows


# -- settling --------------------------------------------------------------------------------------


async def acknowledge(call: Call) -> HttpResponse:
    """Mark messages done, as durably as they were sent."""
    broker = call.broker
    return await _settle(call, lambda _, receipts: broker.acknowledge(receipts))


async def extend(call: Call) -> HttpResponse:
    """Keep messages longer."""
    broker, lease_ms = call.broker, call.body.lease_ms
    return await _settle(
        call,
        lambda info, receipts: broker.extend(receipts, lease_ms or info.settings.lease_ms),
    )


async def release(call: Call) -> HttpResponse:
    """Give messages back."""
    broker, delay_ms = call.broker, call.body.delay_ms
    return await _settle(call, lambda _, receipts: broker.release(receipts, delay_ms))


async def bury(call: Call) -> HttpResponse:
    """Move messages to the dead-letter queue."""
    broker, reason = call.broker, call.body.reason
    return await _settle(call, lambda info, receipts: _bury(broker, info, receipts, reason))


async def _settle(
    call: Call, act: Callable[[QueueInfo, list[Receipt]], Awaitable[Settled]]
) -> HttpResponse:
    async def work() -> Settled:
        info = await call.broker.get_queue(call.queue)
        return await act(info, read_receipts(info, call.body.receipts))

    settled = await call.drive(work())
    results = [
        shapes.Result(0, type(one).__name__, str(one))
        if isinstance(one, RingdoveError)
        else shapes.Result(one)
        for one in settled
    ]
    refusals = [one for one in settled if isinstance(one, RingdoveError)]
    if not refusals:
        return answer(shapes.Results(results))
    told = str(refusals[0])
    if len(settled) > 1:
        told = f"{len(refusals)} of {len(settled)} receipts were refused: see 'results'. {told}"
    raise Explained(type(refusals[0])(told), results=results)


def read_receipts(info: QueueInfo, texts: Sequence[str]) -> list[Receipt]:
    """The receipts, all of them of this queue; else nothing is done to any."""
    found = []
    for position, text in enumerate(texts):
        try:
            padded = text + "=" * (-len(text) % 4)
            receipt = Receipt.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (ValueError, binascii.Error):
            raise InvalidArgument(f"receipts[{position}] is no receipt of a message.") from None
        except InvalidArgument as error:
            raise InvalidArgument(f"receipts[{position}]: {error}") from None
        if receipt.queue != info.id:
            raise InvalidArgument(
                f"receipts[{position}] is of another queue than {info.name!r}, or of one of that "
                "name that was deleted."
            )
        settings = info.settings
        if (
            receipt.number >= settings.stripes
            or receipt.level > settings.priority
            or not receipt.lo < receipt.hi <= limits.OFFSET_MAX
        ):
            raise InvalidArgument(f"receipts[{position}] names no message of the queue.")
        found.append(receipt)
    return found


async def _bury(broker: Broker, info: QueueInfo, receipts: list[Receipt], reason: str) -> Settled:
    """Bury what the receipts still hold: extending them says so, and gives time."""
    if info.settings.dead_letter is None:
        raise InvalidArgument(
            f"Queue {info.name!r} has no dead-letter queue to bury messages in; "
            "set 'dead_letter' to the name of one."
        )
    settled = await broker.extend(receipts, info.settings.lease_ms)
    reader = _Reader(broker)
    for position, receipt in enumerate(receipts):
        if isinstance(settled[position], RingdoveError):
            continue
        try:
            settled[position] = await _bury_one(broker, info.name, receipt, reader, reason)
        except ClientError as error:
            settled[position] = error
    return settled


async def _bury_one(
    broker: Broker, queue: str, receipt: Receipt, reader: _Reader, reason: str
) -> int:
    at = receipt.lo
    while at < receipt.hi:
        block = await reader.block(receipt, at)
        end = min(block.end, receipt.hi)
        piece = block.slice(at - block.base, end - block.base)
        await broker.bury(queue, receipt._replace(lo=at, hi=end), [piece], reason)
        at = end
    return receipt.hi - receipt.lo


class _Reader:
    """Reads messages by receipt; those of one block only once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stripe: StripeId | None = None
        self._block: Block | None = None

    async def block(self, receipt: Receipt, offset: int) -> Block:
        """A block that holds the message at `offset`."""
        stripe = StripeId(receipt.queue, receipt.number, receipt.level)
        block = self._block
        if block is None or stripe != self._stripe or not block.base <= offset < block.end:
            blocks = await self._broker.read(stripe, offset, 1, skip_trimmed=False)
            if not blocks:
                raise ReceiptStale("The message that the receipt names is not stored any more.")
            self._stripe, self._block = stripe, blocks[0]
            block = blocks[0]
        return block


async def redrive(call: Call) -> HttpResponse:
    """Of a dead-letter queue: send messages back to where they came from, or to `target`."""
    ask: shapes.Redrive = call.body
    if ask.target == call.queue:
        raise InvalidArgument("The target is the queue itself: nothing would move.")
    await _check_redrive(call, ask.target)
    return answer(
        shapes.Moved(await call.drive(call.broker.redrive(call.queue, ask.target, ask.max)))
    )


async def _check_redrive(call: Call, target: str | None) -> None:
    """Who redrives sends; without a target, to any queue that a message claims to come from."""
    if target is not None:
        await call.check(target, "send")
        return
    try:
        await call.check(None, "manage")
    except NotAuthorized:
        raise NotAuthorized(
            "Name the 'target': without one, messages go to whichever queue they say they came "
            "from, which only the operator may ask for."
        ) from None


ROUTES = [
    Route(
        "POST", f"{_QUEUE}/receive", receive, "receive", "Lease messages, waiting for the first",
        {200: shapes.ReceivedMessages}, (404, 409), query=shapes.ReceiveQuery,
    ),
    Route(
        "GET", f"{_QUEUE}/peek", peek, "receive", "Look at the oldest messages, leasing none",
        {200: shapes.Messages}, (404,), query=shapes.PeekQuery,
    ),
    Route(
        "POST", f"{_QUEUE}/ack", acknowledge, "receive", "Mark messages done",
        {200: shapes.Results}, (404, 409, 415), body=shapes.Acknowledge, required=True,
    ),
    Route(
        "POST", f"{_QUEUE}/extend", extend, "receive", "Keep messages longer",
        {200: shapes.Results}, (404, 409, 415), body=shapes.Extend, required=True,
    ),
    Route(
        "POST", f"{_QUEUE}/release", release, "receive", "Give messages back",
        {200: shapes.Results}, (404, 409, 415), body=shapes.Release, required=True,
    ),
    Route(
        "POST", f"{_QUEUE}/bury", bury, "receive", "Move messages to the dead-letter queue",
        {200: shapes.Results}, (404, 409, 410, 415, 507), body=shapes.Bury, required=True,
    ),
    Route(
        "POST", f"{_QUEUE}/redrive", redrive, "manage", "Send dead letters back",
        {200: shapes.Moved}, (404, 409, 415, 507), body=shapes.Redrive,
    ),
]  # fmt: skip
