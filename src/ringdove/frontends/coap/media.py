"""Content formats of CoAP and the media types that they stand for.

A message keeps the type of its body in an attribute, by its name as HTTP and MQTT write it.
"""

from __future__ import annotations

from typing import Any

#: The attribute.
ATTRIBUTE = "content_type"

TEXT = 0
LINK_FORMAT = 40
OCTETS = 42
JSON = 50

_TYPES = {
    TEXT: "text/plain",
    LINK_FORMAT: "application/link-format",
    41: "application/xml",
    OCTETS: "application/octet-stream",
    47: "application/exi",
    JSON: "application/json",
    60: "application/cbor",
    110: "application/senml+json",
    112: "application/senml+cbor",
}
_FORMATS = {name: number for number, name in _TYPES.items()}

#: Of formats that are not in the table, so that they come back as they went.
_OTHER = "coap/"


def type_of(content: int) -> str:
    """The media type of a content format."""
    return _TYPES.get(content) or f"{_OTHER}{content}"


def format_of(media_type: Any) -> int | None:
    """The content format of a media type; None when it has none."""
    if not isinstance(media_type, str):
        return None
    name = media_type.partition(";")[0].strip().lower()
    number = name.removeprefix(_OTHER)
    if name.startswith(_OTHER) and number.isdecimal() and int(number) < 1 << 16:
        return int(number)
    return _FORMATS.get(name)
