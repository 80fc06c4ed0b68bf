"""Rules for messages: what may be sent, how it is measured, and the checksums of the API."""

from __future__ import annotations

import hashlib
import re
import string
from typing import TYPE_CHECKING, Any

from ringdove.protocol.sqs.errors import SqsError, invalid, invalid_value, missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.protocol.sqs.shapes import AttributeValue, Entry, Held

#: Bytes of a message with its attributes, and of a whole batch.
MESSAGE_BYTES_MAX = 1024 * 1024

ENTRIES_MAX = 10
ATTRIBUTES_MAX = 10
DELAY_S_MAX = 900
VISIBILITY_S_MAX = 43_200
WAIT_S_MAX = 20
RECEIVE_MAX = 10

#: Messages of one queue that may be received and neither deleted nor visible again.
IN_FLIGHT_MAX = 120_000

#: Characters that XML, and so the API, cannot carry.
ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TOKEN = re.compile(rf"[A-Za-z0-9{re.escape(string.punctuation)}]{{1,128}}")
_ATTRIBUTE_NAME = re.compile(r"[\w.-]+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_TYPES = ("String", "Number", "Binary")

#: How no sender's attribute may begin; the queue's own notes on dead letters begin with our name.
_RESERVED = ("aws.", "amazon.", "ringdove.", ".")

_ILLEGAL_TEXT = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | "
    "#xE000 to #xFFFD | #x10000 to #x10FFFF"
)


def check_body(body: str) -> None:
    """Refuse characters that XML cannot carry."""
    if not body.isprintable() and ILLEGAL.search(body):
        raise SqsError("InvalidMessageContents", _ILLEGAL_TEXT)


def check_token(value: str, parameter: str) -> None:
    """Refuse an id of a group or for deduplication that is none."""
    if not _TOKEN.fullmatch(value):
        raise invalid_value(
            value,
            parameter,
            f"{parameter} can only include alphanumeric and punctuation characters. "
            "1 to 128 in length.",
        )


def check_range(value: int, parameter: str, low: int, high: int, reason: str) -> None:
    """Refuse a number outside its range, with the reason the API gives."""
    if not low <= value <= high:
        raise invalid_value(value, parameter, reason)


def check_delay(seconds: int) -> None:
    """Refuse a delay outside its range."""
    reason = f"DelaySeconds must be >= 0 and <= {DELAY_S_MAX}."
    check_range(seconds, "DelaySeconds", 0, DELAY_S_MAX, reason)


def check_visibility(seconds: int, reason: str) -> None:
    """Refuse a visibility timeout outside its range."""
    check_range(seconds, "VisibilityTimeout", 0, VISIBILITY_S_MAX, reason)


def check_entries(entries: Sequence[Entry | Held], action: str) -> None:
    """Refuse a batch that is empty or too long, or whose ids are wrong or repeat."""
    if not entries:
        raise SqsError(
            "EmptyBatchRequest",
            f"There should be at least one {action}RequestEntry in the request.",
        )
    if len(entries) > ENTRIES_MAX:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {ENTRIES_MAX}. "
            f"You have sent {len(entries)}.",
        )
    seen = set()
    for number, entry in enumerate(entries, 1):
        if entry.id is None:
            raise missing(f"{action}RequestEntry.{number}.Id")
        if not _ENTRY_ID.fullmatch(entry.id):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and "
                "underscores. It can be at most 80 letters long.",
            )
        if entry.id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {entry.id} repeated.")
        seen.add(entry.id)


# -- attributes ---------------------------------------------------------------------------------


def check_attributes(attributes: dict[str, AttributeValue]) -> None:
    """Refuse message attributes with impossible names, types or values."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise invalid(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum "
            f"[{ATTRIBUTES_MAX}]."
        )
    for name, attribute in attributes.items():
        _check_name(name)
        _check_value(name, attribute)


def _check_name(name: str) -> None:
    if not name:
        raise invalid("The request must contain non-empty message (user) attribute names.")
    if len(name.encode()) > 256:
        raise invalid("Message (user) attribute names must be shorter than 256 Bytes")
    if not _ATTRIBUTE_NAME.fullmatch(name):
        raise invalid(
            "Message (user) attributes name can only contain upper and lower score characters, "
            "digits, periods, hyphens and underscores. "
        )
    if name.lower().startswith(_RESERVED) or name.endswith(".") or ".." in name:
        raise invalid(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These "
            "strings are reserved for internal use. Additionally, they cannot start or end with "
            "'.'."
        )


def _check_value(name: str, attribute: AttributeValue) -> None:
    kind = attribute.data_type or ""
    if attribute.string_list_values or attribute.binary_list_values:
        raise invalid("Message attribute list values in SendMessage operation are not supported.")
    if not (kind or attribute.string_value or attribute.binary_value):
        raise invalid(
            f"The message (user) attribute '{name}' must contain a non-empty message attribute "
            "value."
        )
    if len(kind) > 256:
        raise invalid("Message (user) attribute types must be shorter than 256 Bytes")
    base = kind.partition(".")[0]
    if not kind:
        raise invalid(f"The message attribute '{name}' must contain a message attribute type.")
    if base not in _TYPES:
        raise invalid(
            f"The type of message (user) attribute '{name}' is invalid. You must use only the "
            "following supported type prefixes: Binary, Number, String."
        )
    value = attribute.binary_value if base == "Binary" else attribute.string_value
    if not value:
        raise invalid(
            f"Message (user) attribute '{name}' must contain a non-empty value of type '{base}'."
        )
    if base == "String" and ILLEGAL.search(str(value)):
        raise invalid(_ILLEGAL_TEXT)
    if base == "Number" and not _NUMBER.fullmatch(str(value)):
        raise invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")


def check_system_attributes(attributes: dict[str, AttributeValue]) -> None:
    """Refuse anything but a trace header."""
    for name, attribute in attributes.items():
        if name != "AWSTraceHeader":
            raise invalid(f"Message system attribute name '{name}' is invalid.")
        if attribute.data_type != "String" or not attribute.string_value:
            raise invalid("The value of the system attribute 'AWSTraceHeader' must be a String.")


def attributes_bytes(attributes: dict[str, AttributeValue]) -> int:
    """What attributes add to the size of a message."""
    return sum(
        len(name.encode())
        + len((own.data_type or "").encode())
        + len((own.string_value or "").encode())
        + len(own.binary_value or b"")
        for name, own in attributes.items()
    )


def md5(text: bytes) -> str:
    """The API's checksum of a body."""
    return hashlib.md5(text, usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: dict[str, dict[str, Any]]) -> str:
    """The API's checksum of attributes in their JSON form, with binary values as bytes."""
    digest = hashlib.md5(usedforsecurity=False)

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(4, "big") + part)

    for name in sorted(attributes):
        own = attributes[name]
        add(name.encode())
        add(own["DataType"].encode())
        if "BinaryValue" in own:
            digest.update(b"\x02")
            add(own["BinaryValue"])
        else:
            digest.update(b"\x01")
            add(own["StringValue"].encode())
    return digest.hexdigest()


def wanted(name: str, filters: Sequence[str]) -> bool:
    """Whether a receiver has asked for a message attribute."""
    for own in filters:
        if own in ("All", "*", ".*", name):
            return True
        if own.endswith(".*") and name.startswith(own[:-2]):
            return True
    return False
