"""ReceiveMessage."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from ringdove.controllers.deadletter import ORIGIN, RECEIVES, SOURCE
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.frontends.sqs.translate import (
    DEDUP,
    SENDER,
    TRACE,
    handle_of,
    message_attributes,
    message_id,
    sequence_number,
)
from ringdove.protocol.sqs import rules
from ringdove.protocol.sqs.errors import SqsError, invalid_value
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.visiting import Received
    from ringdove.core.attributes import Attributes
    from ringdove.core.block import Block
    from ringdove.frontends.exchange import Drive
    from ringdove.frontends.sqs.view import Caller, QueueView
    from ringdove.protocol.sqs import shapes


async def receive(
    broker: Broker, drive: Drive, caller: Caller, queue: QueueView, ask: shapes.ReceiveMessage
) -> dict[str, Any]:
    """See ReceiveMessage of the API."""
    count = 1 if ask.max_number_of_messages is None else ask.max_number_of_messages
    reason = f"Must be between 1 and {rules.RECEIVE_MAX}, if provided."
    rules.check_range(count, "MaxNumberOfMessages", 1, rules.RECEIVE_MAX, reason)
    wait_s = queue.wait_s if ask.wait_time_seconds is None else ask.wait_time_seconds
    reason = f"Must be >= 0 and <= {rules.WAIT_S_MAX}, if provided."
    rules.check_range(wait_s, "WaitTimeSeconds", 0, rules.WAIT_S_MAX, reason)
    lease_ms = None
    if ask.visibility_timeout is not None:
        reason = f"Must be >= 0 and <= {rules.VISIBILITY_S_MAX}, if provided."
        rules.check_range(
            ask.visibility_timeout, "VisibilityTimeout", 0, rules.VISIBILITY_S_MAX, reason
        )
        lease_ms = max(1, ask.visibility_timeout * 1000)
    system, wanted = _filters(queue, ask)
    if queue.in_flight_left < count:
        await _count_in_flight(broker, drive, queue)
        if queue.in_flight_left <= 0:
            return _too_many_in_flight(queue)
    received = await drive(
        broker.receive(queue.name, DEFAULT_SUBSCRIPTION, count, wait_s, lease_ms), parks=wait_s > 0
    )
    now_ms = broker.store.clock.now_ms()
    found = [
        _message(caller, queue, run, block, position, now_ms, system, wanted)
        for run, block, position in _each(received)
    ]
    queue.in_flight_left -= len(found)
    return {"Messages": found} if found else {}


def _filters(queue: QueueView, ask: shapes.ReceiveMessage) -> tuple[Sequence[str], Sequence[str]]:
    attempt = ask.receive_request_attempt_id
    if attempt is not None:
        if not queue.fifo:
            raise invalid_value(
                attempt,
                "ReceiveRequestAttemptId",
                "The request include parameter that is not valid for this queue type.",
            )
        rules.check_token(attempt, "ReceiveRequestAttemptId")
    system = [*(ask.attribute_names or ()), *(ask.message_system_attribute_names or ())]
    for name in system:
        if name not in _SYSTEM_NAMES:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    return system, ask.message_attribute_names or ()


async def _count_in_flight(broker: Broker, drive: Drive, queue: QueueView) -> None:
    """How many more may be in flight; counting is rare while there are few."""
    stats = await drive(broker.queue_stats(queue.name))
    _, leased, _ = stats.subscriptions.get(DEFAULT_SUBSCRIPTION, (0, 0, 0))
    queue.in_flight_left = rules.IN_FLIGHT_MAX - leased


def _too_many_in_flight(queue: QueueView) -> dict[str, Any]:
    """What a receiver is told then: nothing, when the queue is a FIFO queue."""
    if queue.fifo:
        return {}
    raise SqsError(
        "OverLimit",
        "Too many messages have been received without being deleted.\n"
        "Please delete your received messages or let them timeout before receiving more.",
    )


def _each(received: list[Received]) -> Iterator[tuple[Received, Block, int]]:
    for run in received:
        for block in run.delivered.blocks:
            for position in range(block.count):
                yield run, block, position


def _message(
    caller: Caller,
    queue: QueueView,
    run: Received,
    block: Block,
    position: int,
    now_ms: int,
    system: Sequence[str],
    wanted: Sequence[str],
) -> dict[str, Any]:
    offset = block.base + position
    [body] = block.bodies(position, position + 1)
    [attributes] = block.attributes(position, position + 1)
    stripe = StripeId(run.receipt.queue, run.receipt.number, run.receipt.level)
    origin = attributes.get(ORIGIN)
    receipt = run.receipt._replace(lo=offset, hi=offset + 1)
    text, wrapped = _decode_body(body)
    message: dict[str, Any] = {
        "MessageId": message_id(origin if isinstance(origin, bytes) else stripe.place(offset)),
        "ReceiptHandle": handle_of(receipt, now_ms),
        "MD5OfBody": rules.md5(text.encode()),
        "Body": text,
    }
    if system:
        known = _system_attributes(caller, queue, run, block, position, attributes)
        chosen = known if "All" in system else {n: v for n, v in known.items() if n in system}
        if chosen:
            message["Attributes"] = chosen
    if wrapped:
        attributes = {**attributes, "ringdove.encoding": "base64"}
    if wanted and (asked := message_attributes(attributes, wanted)):
        message["MD5OfMessageAttributes"] = rules.md5_of_attributes(asked)
        message["MessageAttributes"] = asked
    return message


def _decode_body(body: bytes) -> tuple[str, bool]:
    """A body as text; one that is no text the API could carry, in base64."""
    try:
        text = body.decode()
        rules.check_body(text)
    except (UnicodeDecodeError, SqsError):
        return base64.b64encode(body).decode(), True
    return text, False


def _system_attributes(
    caller: Caller,
    queue: QueueView,
    run: Received,
    block: Block,
    position: int,
    attributes: Attributes,
) -> dict[str, str]:
    before = attributes.get(RECEIVES)
    count = run.receives + (before if isinstance(before, int) else 0)
    found = {
        "SenderId": str(attributes.get(SENDER) or caller.url(queue.name).rsplit("/", 2)[1]),
        "SentTimestamp": str(block.sent_times_ms(position, position + 1)[0]),
        "ApproximateReceiveCount": str(count),
        "ApproximateFirstReceiveTimestamp": str(run.first_ms),
    }
    [key] = block.keys(position, position + 1)
    if key:
        found["MessageGroupId"] = key.decode(errors="replace")
    if queue.fifo:
        [body] = block.bodies(position, position + 1)
        explicit = attributes.get(DEDUP)
        found["MessageDeduplicationId"] = str(explicit or hashlib.sha256(body).hexdigest())
        found["SequenceNumber"] = sequence_number(block.base + position)
    if TRACE in attributes:
        found["AWSTraceHeader"] = str(attributes[TRACE])
    source = attributes.get(SOURCE)
    if isinstance(source, str):
        found["DeadLetterQueueSourceArn"] = caller.arn(source)
    return found


_SYSTEM_NAMES = (
    "All",
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
    # Names of queue attributes are taken, and mean nothing here.
    "Policy",
    "VisibilityTimeout",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
    "ApproximateNumberOfMessagesDelayed",
    "DelaySeconds",
    "ReceiveMessageWaitTimeSeconds",
    "RedrivePolicy",
    "FifoQueue",
    "ContentBasedDeduplication",
)
