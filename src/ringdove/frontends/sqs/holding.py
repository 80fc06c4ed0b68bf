"""What a receiver does with messages it holds: DeleteMessage, ChangeMessageVisibility, batches."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import InvalidArgument, ReceiptStale, RingdoveError
from ringdove.frontends.sqs.translate import batch_reply, failure, read_handle
from ringdove.protocol.sqs import rules
from ringdove.protocol.sqs.errors import SqsError, invalid_value
from ringdove.protocol.sqs.shapes import need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.controllers.broker import Broker
    from ringdove.core.receipt import Receipt
    from ringdove.frontends.exchange import Drive
    from ringdove.frontends.sqs.view import QueueView
    from ringdove.protocol.sqs import shapes


def _read(queue: QueueView, handle: str) -> tuple[Receipt, int]:
    """The receipt of a handle, and when it was given."""
    receipt = None
    with contextlib.suppress(ValueError, InvalidArgument):
        receipt, received_ms = read_handle(handle)
    if receipt is None or (receipt.queue, receipt.subscription) != (queue.id, DEFAULT_SUBSCRIPTION):
        raise SqsError(
            "ReceiptHandleIsInvalid",
            f'The input receipt handle "{handle}" is not a valid receipt handle.',
        )
    return receipt, received_ms


async def delete(
    broker: Broker, drive: Drive, queue: QueueView, ask: shapes.Held
) -> dict[str, Any] | None:
    """See DeleteMessage of the API."""
    handle = need(ask.receipt_handle or None, "ReceiptHandle")
    [answer] = await drive(broker.acknowledge([_read(queue, handle)[0]], earlier=True))
    _check_deleted(queue, handle, answer)
    return None


def _check_deleted(queue: QueueView, handle: str, answer: int | RingdoveError) -> None:
    if isinstance(answer, ReceiptStale):
        if queue.fifo:
            raise invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")
    elif isinstance(answer, RingdoveError):
        raise answer


async def delete_batch(
    broker: Broker, drive: Drive, queue: QueueView, ask: shapes.HeldBatch
) -> dict[str, Any]:
    """See DeleteMessageBatch of the API."""
    entries: list[shapes.Held] = need(ask.entries, "Entries")
    rules.check_entries(entries, "DeleteMessageBatch")
    receipts, failed = _receipts(queue, entries)
    answers = await drive(broker.acknowledge(list(receipts.values()), earlier=True))
    handles = {entry.id: entry.receipt_handle for entry in entries}
    successful = []
    for name, answer in zip(receipts, answers, strict=True):
        try:
            _check_deleted(queue, handles[name] or "", answer)
            successful.append({"Id": name})
        except SqsError as error:
            failed.append(failure(name, error))
    return batch_reply(successful, failed)


def _receipts(
    queue: QueueView, entries: Sequence[shapes.Held]
) -> tuple[dict[str, Receipt], list[dict[str, Any]]]:
    receipts: dict[str, Receipt] = {}
    failed = []
    for entry in entries:
        name = entry.id or ""
        try:
            handle = need(entry.receipt_handle or None, "ReceiptHandle")
            receipts[name] = _read(queue, handle)[0]
        except SqsError as error:
            failed.append(failure(name, error))
    return receipts, failed


async def change_visibility(
    broker: Broker, drive: Drive, queue: QueueView, ask: shapes.Held
) -> dict[str, Any] | None:
    """See ChangeMessageVisibility of the API."""
    handle: str = need(ask.receipt_handle or None, "ReceiptHandle")
    seconds: int = need(ask.visibility_timeout, "VisibilityTimeout")
    reason = f"Must be between 0 and {rules.VISIBILITY_S_MAX}."
    rules.check_visibility(seconds, reason)
    await _change(broker, drive, queue, handle, seconds)
    return None


async def _change(
    broker: Broker, drive: Drive, queue: QueueView, handle: str, seconds: int
) -> None:
    receipt, received_ms = _read(queue, handle)
    passed_ms = broker.store.clock.now_ms() - received_ms
    if passed_ms + seconds * 1000 > rules.VISIBILITY_S_MAX * 1000:
        raise invalid_value(
            seconds,
            "VisibilityTimeout",
            "Total VisibilityTimeout for the message is beyond the limit "
            f"[{rules.VISIBILITY_S_MAX} seconds].",
        )
    change = (
        broker.extend([receipt], seconds * 1000, earlier=True)
        if seconds
        else broker.release([receipt], 0, earlier=True)
    )
    [answer] = await drive(change)
    if isinstance(answer, RingdoveError) and not isinstance(answer, ReceiptStale):
        raise answer
    if not isinstance(answer, int) or not answer:
        raise invalid_value(
            handle,
            "ReceiptHandle",
            "Message does not exist or is not available for visibility timeout change.",
        )


async def change_visibility_batch(
    broker: Broker, drive: Drive, queue: QueueView, ask: shapes.HeldBatch
) -> dict[str, Any]:
    """See ChangeMessageVisibilityBatch of the API."""
    entries: list[shapes.Held] = need(ask.entries, "Entries")
    rules.check_entries(entries, "ChangeMessageVisibilityBatch")
    successful, failed = [], []
    reason = f"VisibilityTimeout must be an integer between 0 and {rules.VISIBILITY_S_MAX}."
    for number, entry in enumerate(entries, 1):
        name = entry.id or ""
        timeout = f"ChangeMessageVisibilityBatchRequestEntry.{number}.VisibilityTimeout"
        try:
            handle = need(entry.receipt_handle or None, "ReceiptHandle")
            seconds = need(entry.visibility_timeout, timeout)
            rules.check_visibility(seconds, reason)
            await _change(broker, drive, queue, handle, seconds)
            successful.append({"Id": name})
        except SqsError as error:
            failed.append(failure(name, error))
    return batch_reply(successful, failed)
