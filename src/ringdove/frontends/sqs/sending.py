"""SendMessage and SendMessageBatch."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from ringdove.controllers.accounts import owner_of
from ringdove.controllers.sending import Outgoing, Sent
from ringdove.errors import QueueNotFound, RingdoveError, SettingsStale
from ringdove.frontends.sqs.translate import (
    DEDUP,
    SENDER,
    TRACE,
    as_attributes,
    as_json,
    batch_reply,
    failure,
    message_id,
    sequence_number,
)
from ringdove.protocol.sqs import rules
from ringdove.protocol.sqs.errors import SqsError, invalid, invalid_value, missing
from ringdove.protocol.sqs.shapes import need

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.controllers.broker import Broker
    from ringdove.core.attributes import Attributes
    from ringdove.frontends.exchange import Drive
    from ringdove.frontends.sqs.view import Caller, QueueView
    from ringdove.protocol.sqs import shapes


class Incoming:
    """A message on its way in: checked, measured, in the queue's own terms."""

    __slots__ = (
        "attributes", "body", "dedup", "delay_ms", "group", "md5_attributes", "md5_system",
        "nbytes",
    )  # fmt: skip

    def __init__(self, caller: Caller, queue: QueueView, entry: shapes.Entry) -> None:
        if not entry.message_body:
            raise missing("MessageBody")
        self.body = _encode_body(entry.message_body)
        given = entry.message_attributes or {}
        self.nbytes = len(self.body) + (rules.attributes_bytes(given) if given else 0)
        rules.check_body(entry.message_body)
        self.attributes: Attributes = {}
        self.md5_attributes = self.md5_system = ""
        if given:
            rules.check_attributes(given)
            self.md5_attributes = rules.md5_of_attributes(as_json(given))
            self.attributes = as_attributes(given)
        self._take_system(caller, entry)
        self.group = entry.message_group_id
        self.dedup: bytes | None = None
        self._identify(queue, entry)
        self.delay_ms = _delay(queue, entry.delay_seconds)
        if caller.own is not None and caller.account != owner_of(queue.name)[0]:
            self.attributes[SENDER] = caller.account

    def _take_system(self, caller: Caller, entry: shapes.Entry) -> None:
        trace = caller.trace
        if entry.message_system_attributes:
            system = entry.message_system_attributes
            rules.check_system_attributes(system)
            self.md5_system = rules.md5_of_attributes(as_json(system))
            trace = system["AWSTraceHeader"].string_value or ""
        if trace:
            self.attributes[TRACE] = trace

    def _identify(self, queue: QueueView, entry: shapes.Entry) -> None:
        explicit = entry.message_deduplication_id
        if explicit is not None:
            if not queue.fifo:
                raise invalid_value(
                    explicit,
                    "MessageDeduplicationId",
                    "The request include parameter that is not valid for this queue type.",
                )
            rules.check_token(explicit, "MessageDeduplicationId")
        if queue.fifo and self.group is None:
            raise missing("MessageGroupId")
        if self.group is not None:
            rules.check_token(self.group, "MessageGroupId")
        if not queue.fifo:
            return
        if explicit is None and not queue.by_content:
            raise invalid(
                "The queue should either have ContentBasedDeduplication enabled or "
                "MessageDeduplicationId provided explicitly"
            )
        if explicit is not None:
            self.attributes[DEDUP] = explicit
        text = explicit or hashlib.sha256(self.body).hexdigest()
        scope = self.group if queue.per_group and self.group else ""
        parts = (queue.salt, scope.encode(), text.encode())
        self.dedup = hashlib.sha256(b"\0".join(parts)).digest()


def _encode_body(body: str) -> bytes:
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise SqsError("InvalidMessageContents", "The body has half of a surrogate pair.") from None


def _delay(queue: QueueView, seconds: int | None) -> int | None:
    if seconds is None:
        return None
    if queue.fifo:
        if seconds:
            raise invalid_value(
                seconds,
                "DelaySeconds",
                "The request include parameter that is not valid for this queue type.",
            )
        return None
    rules.check_delay(seconds)
    return seconds * 1000


def _check_size(parcel: Incoming, queue: QueueView) -> None:
    if parcel.nbytes > queue.max_bytes:
        raise invalid(
            "One or more parameters are invalid. "
            f"Reason: Message must be shorter than {queue.max_bytes} bytes."
        )


async def send(
    broker: Broker, drive: Drive, caller: Caller, queue: QueueView, ask: shapes.SendMessage
) -> dict[str, Any]:
    """See SendMessage of the API."""
    parcel = Incoming(caller, queue, ask)
    _check_size(parcel, queue)
    sent = await _put(broker, queue, parcel)
    if sent is None:
        [sent] = await drive(broker.send(queue.name, _outgoing([parcel])))
    return _sent(queue, parcel, sent)


async def _put(broker: Broker, queue: QueueView, parcel: Incoming) -> Sent | None:
    """Send the short way, together with what others send; None where there is none."""
    if parcel.dedup is not None or parcel.delay_ms is not None:
        return None
    key = b"" if parcel.group is None else parcel.group.encode()
    put = broker.enqueuer.put(queue.info, parcel.body, key, parcel.attributes or None)
    if put is None:
        return None
    stripe, pending = put
    try:
        [answer] = await pending
    except (SettingsStale, QueueNotFound):
        return None
    if isinstance(answer, RingdoveError):
        raise answer
    return Sent(stripe, answer.base)


async def send_batch(
    broker: Broker, drive: Drive, caller: Caller, queue: QueueView, ask: shapes.SendBatch
) -> dict[str, Any]:
    """See SendMessageBatch of the API: what can be sent goes in one commit per delay."""
    entries: list[shapes.Entry] = need(ask.entries, "Entries")
    rules.check_entries(entries, "SendMessageBatch")
    parcels: dict[str, Incoming] = {}
    failed: list[dict[str, Any]] = []
    for number, entry in enumerate(entries, 1):
        name = entry.id or ""
        try:
            need(entry.message_body or None, f"SendMessageBatchRequestEntry.{number}.MessageBody")
            parcels[name] = Incoming(caller, queue, entry)
        except SqsError as error:
            if queue.fifo and error.kind != "InvalidMessageContents":
                raise invalid(error.message) from None
            failed.append(failure(name, error))
    total = sum(parcel.nbytes for parcel in parcels.values())
    if total > rules.MESSAGE_BYTES_MAX:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {rules.MESSAGE_BYTES_MAX} bytes. "
            f"You have sent {total} bytes.",
        )
    for name, parcel in list(parcels.items()):
        if parcel.nbytes > queue.max_bytes:
            del parcels[name]
            reason = f"Message must be shorter than {queue.max_bytes} bytes."
            text = f"One or more parameters cannot be validated. Reason: {reason}"
            failed.append(failure(name, invalid(text)))
    sent = await drive(_send_all(broker, queue, list(parcels.values())))
    successful = [
        {"Id": name, **_sent(queue, parcel, place)}
        for (name, parcel), place in zip(parcels.items(), sent, strict=True)
    ]
    return batch_reply(successful, failed)


async def _send_all(broker: Broker, queue: QueueView, parcels: list[Incoming]) -> list[Sent]:
    """Send messages of one delay together, in order."""
    groups: dict[int | None, list[int]] = {}
    for position, parcel in enumerate(parcels):
        groups.setdefault(parcel.delay_ms, []).append(position)
    found: dict[int, Sent] = {}
    for positions in groups.values():
        batch = await broker.send(queue.name, _outgoing([parcels[p] for p in positions]))
        found.update(zip(positions, batch, strict=True))
    return [found[position] for position in range(len(parcels))]


def _outgoing(parcels: Sequence[Incoming]) -> Outgoing:
    keyed = any(parcel.group for parcel in parcels)
    attributed = any(parcel.attributes for parcel in parcels)
    identified = any(parcel.dedup for parcel in parcels)
    return Outgoing(
        [parcel.body for parcel in parcels],
        keys=[(parcel.group or "").encode() for parcel in parcels] if keyed else None,
        attributes=[parcel.attributes for parcel in parcels] if attributed else None,
        ids=[parcel.dedup for parcel in parcels] if identified else None,
        delay_ms=parcels[0].delay_ms,
    )


def _sent(queue: QueueView, parcel: Incoming, sent: Sent) -> dict[str, Any]:
    reply = {
        "MessageId": message_id(sent.stripe.place(sent.offset)),
        "MD5OfMessageBody": rules.md5(parcel.body),
    }
    if parcel.md5_attributes:
        reply["MD5OfMessageAttributes"] = parcel.md5_attributes
    if parcel.md5_system:
        reply["MD5OfMessageSystemAttributes"] = parcel.md5_system
    if queue.fifo:
        reply["SequenceNumber"] = sequence_number(sent.offset)
    return reply
