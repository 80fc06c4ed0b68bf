"""Messages on their way out: what a user may give, as the columns that a block wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.client.arguments import check_attributes, check_send
from ringdove.controllers.sending import Outgoing
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringdove.core.attributes import Attributes

Text = bytes | str
Body = bytes | bytearray | memoryview | str


class NewMessage(NamedTuple):
    """A message to send, when it is more than its body."""

    body: Body
    #: Messages with one key stay in order on queues with order 'key'.
    key: Text | None = None
    #: Values are text, numbers, booleans or bytes.
    attributes: Attributes | None = None
    #: The queue stores a message id only once within its `dedup_ms`.
    id: Text | None = None


def as_bytes(value: Any, what: str) -> bytes:
    """Bytes from bytes-like or text, or InvalidArgument."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(f"A {what} is bytes or text, not {type(value).__name__}.")


def single(message: NewMessage, priority: int, delay_ms: int | None) -> Outgoing:
    """One message as columns."""
    body, key, attributes, message_id = message
    check_send(priority, delay_ms)
    if attributes is not None:
        check_attributes(attributes)
    return Outgoing(
        [as_bytes(body, "body")],
        [as_bytes(key, "key")] if key else None,
        [attributes] if attributes else None,
        None if message_id is None else [as_bytes(message_id, "message id")],
        priority,
        delay_ms,
    )


def columns(messages: Iterable[Body | NewMessage], **options: Any) -> Outgoing:
    """Messages as columns. A list of plain bytes passes untouched."""
    if isinstance(messages, str | bytes | bytearray | memoryview):
        raise InvalidArgument("send_many takes several messages, in a list; send takes one.")
    items: list[Any] = messages if isinstance(messages, list) else list(messages)
    kinds = set(map(type, items))
    if kinds <= {bytes}:
        return Outgoing(items, **options)
    if NewMessage not in kinds:
        return Outgoing([as_bytes(item, "body") for item in items], **options)
    full = [item if isinstance(item, NewMessage) else NewMessage(item) for item in items]
    for item in full:
        if item.attributes is not None:
            check_attributes(item.attributes)
    keyed = any(item.key for item in full)
    identified = any(item.id is not None for item in full)
    return Outgoing(
        [as_bytes(item.body, "body") for item in full],
        keys=[as_bytes(item.key or b"", "key") for item in full] if keyed else None,
        attributes=[item.attributes for item in full] if any(i.attributes for i in full) else None,
        ids=(
            [None if item.id is None else as_bytes(item.id, "message id") for item in full]
            if identified
            else None
        ),
        **options,
    )
