"""Between messages of the SQS API and messages of a queue.

A message's group is its key, its attributes are attributes, its deduplication id is the message id.
What a plain message has no place for goes into attributes whose names no SQS attribute can have:
they contain a colon.
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from ringdove.controllers.deadletter import PREFIX
from ringdove.core.receipt import Receipt
from ringdove.protocol.sqs import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.core.attributes import Attributes
    from ringdove.protocol.sqs import shapes
    from ringdove.protocol.sqs.errors import SqsError

#: Types that do not follow from the value, the deduplication id, X-Ray's header, and the account of
#: a sender who is not the owner.
TYPES = "ringdove:types"
DEDUP = "ringdove:dedup"
TRACE = "ringdove:trace"
SENDER = "ringdove:sender"
_OWN = (TYPES, DEDUP, TRACE, SENDER)

_TIME = struct.Struct(">Q")


def message_id(place: bytes) -> str:
    """The API's id of a message, from where it was first stored."""
    return as_uuid(xxhash.xxh3_128_hexdigest(place))


def as_uuid(digits: str) -> str:
    """Thirty-two hexadecimal digits as a random UUID; ten times faster than `uuid`."""
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def handle_of(receipt: Receipt, received_ms: int) -> str:
    """The API's name of a received message: its receipt, and when it was received."""
    return base64.b64encode(receipt.encode() + _TIME.pack(received_ms)).decode()


def read_handle(handle: str) -> tuple[Receipt, int]:
    """Receipt and time of a handle; ValueError or InvalidArgument when it is none."""
    data = base64.b64decode(handle, validate=True)
    if len(data) < _TIME.size:
        raise ValueError(handle)
    receipt = Receipt.decode(data[: -_TIME.size])
    return receipt, _TIME.unpack(data[-_TIME.size :])[0]


def sequence_number(offset: int) -> str:
    """Twenty digits that grow with the offset."""
    return str(10**19 + offset)


def as_json(given: dict[str, shapes.AttributeValue]) -> dict[str, dict[str, Any]]:
    """Attributes in the form of the API's replies."""
    return {
        name: {"DataType": own.data_type, "BinaryValue": own.binary_value}
        if (own.data_type or "").startswith("Binary")
        else {"DataType": own.data_type, "StringValue": own.string_value}
        for name, own in given.items()
    }


def as_attributes(given: dict[str, shapes.AttributeValue]) -> Attributes:
    """As the queue keeps them: text and bytes; types that do not follow from that, beside."""
    found: Attributes = {}
    types: list[str] = []
    for name, own in given.items():
        if (own.data_type or "").startswith("Binary"):
            found[name] = own.binary_value
        else:
            found[name] = own.string_value
        if own.data_type not in ("String", "Binary"):
            types.append(f"{name}={own.data_type}")
    if types:
        found[TYPES] = types
    return found


def message_attributes(attributes: Attributes, filters: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The attributes that a receiver has asked for, in the API's form."""
    listed = attributes.get(TYPES)
    # Others than this dialect may have written it.
    pairs = [str(item).partition("=") for item in (listed if isinstance(listed, list) else ())]
    types = {name: kind for name, _, kind in pairs}
    found: dict[str, dict[str, Any]] = {}
    for name, value in attributes.items():
        if name in _OWN or name.startswith(PREFIX) or value is None:
            continue
        if rules.wanted(name, filters):
            found[name] = _value(value, types.get(name))
    return found


def _value(value: Any, data_type: str | None) -> dict[str, Any]:
    if isinstance(value, bytes):
        kind = data_type if data_type and data_type.startswith("Binary") else "Binary"
        return {"DataType": kind, "BinaryValue": value}
    if isinstance(value, str):
        kind = data_type if data_type and not data_type.startswith("Binary") else "String"
        return {"DataType": kind, "StringValue": value}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"DataType": "Number", "StringValue": str(value)}
    return {"DataType": "String", "StringValue": msgspec.json.encode(value).decode()}


def failure(name: str, error: SqsError) -> dict[str, Any]:
    """An entry of a batch that failed."""
    return {
        "Id": name,
        "SenderFault": error.sender,
        "Code": error.legacy,
        "Message": error.message,
    }


def batch_reply(successful: list[dict[str, Any]], failed: list[dict[str, Any]]) -> dict[str, Any]:
    """The reply to a batch: only lists with something in them."""
    reply: dict[str, Any] = {}
    if successful:
        reply["Successful"] = successful
    if failed:
        reply["Failed"] = failed
    return reply
