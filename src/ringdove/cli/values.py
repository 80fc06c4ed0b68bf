"""Values as people write them: 30s, 5m, 64MiB, name=value."""

from __future__ import annotations

import re
from typing import Any

from ringdove.errors import InvalidArgument

_DURATIONS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {
    "": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip
#: A number that is written as programs print it: 0012 is a serial number, and text.
_PLAIN = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def duration_ms(text: str) -> int:
    """Milliseconds from 500, 500ms, 30s, 5m, 2h or 4d."""
    return _scaled(text, _DURATIONS, "duration", "500ms, 30s, 5m, 2h or 4d")


def duration_s(text: str) -> float:
    """Seconds from 250us, 2ms, 1.5s and so on; finer than milliseconds."""
    match = _NUMBER.fullmatch(text)
    if match is not None and match[2].lower() == "us":
        return float(match[1]) / 1e6
    if match is not None and match[2].lower() in _DURATIONS:
        return float(match[1]) * _DURATIONS[match[2].lower()] / 1e3
    raise InvalidArgument(f"{text!r} is no duration: write for example 250us, 2ms or 1.5s.")


def size_bytes(text: str) -> int:
    """Bytes from 4096, 64KiB, 10MB and so on."""
    return _scaled(text, _SIZES, "size", "4096, 64KiB or 10MB")


def attribute(text: str) -> tuple[str, Any]:
    """A name and its value from name=value; numbers become numbers."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InvalidArgument(f"{text!r} is no attribute: write name=value.")
    return name, number(value) if _PLAIN.fullmatch(value) else value


def number(text: str) -> int | float:
    """A number from 5 or 0.5."""
    if not _PLAIN.fullmatch(text):
        raise InvalidArgument(f"{text!r} is no number: write for example 5, or none.")
    return float(text) if set(text) & set(".eE") else int(text)


def _scaled(text: str, units: dict[str, int], what: str, examples: str) -> int:
    match = _NUMBER.fullmatch(text)
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidArgument(f"{text!r} is no {what}: write for example {examples}.")
    return round(float(match[1]) * factor)
