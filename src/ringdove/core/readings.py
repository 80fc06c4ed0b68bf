"""Readings of smart meters: what a simulated fleet sends, and what the ready-made pipeline reads.

    {"device": "meter-7-0012", "sequence": 3, "time": "2026-01-01T12:00:00Z", "kwh": 0.0421,
     "voltage": 230.9, "signal_dbm": -82, "check": "5f3c0a11"}

A device counts its readings from 0; `check` is the CRC-32 of all that stands before it.
"""

from __future__ import annotations

import json
import math
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from datetime import datetime

_CHECK = b', "check": "'
_DEVICE = b'{"device": "'
_SEQUENCE = b'", "sequence": '

#: Meters with a fault: one has a sensor that is stuck, one sits at the end of a weak line.
_STUCK, _WEAK = 2, 3


def device_name(number: int, seed: int) -> str:
    """The name of a meter of the fleet that a seed stands for."""
    return f"meter-{seed}-{number:04}"


def make_reading(
    number: int, seed: int, sequence: int, at: datetime, chance: random.Random
) -> bytes:
    """What a meter says at a time, in UTC."""
    reading = {
        "device": device_name(number, seed),
        "sequence": sequence,
        "time": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "kwh": _kwh(at, chance),
        "voltage": _voltage(number, chance),
        "signal_dbm": -70 - number % 30 + chance.randint(-3, 3),
    }
    told = json.dumps(reading).encode()[:-1]
    return told + _CHECK + b'%08x"}' % zlib.crc32(told)


def is_intact(body: bytes) -> bool:
    """Whether a reading is as its meter has sent it."""
    told, mark, check = body.rpartition(_CHECK)
    return bool(mark) and check == b'%08x"}' % zlib.crc32(told)


def who_and_which(body: bytes) -> tuple[str, int] | None:
    """Device and sequence number of a reading; None when it is none."""
    name, _, rest = body.removeprefix(_DEVICE).partition(_SEQUENCE)
    number = rest.partition(b",")[0]
    if not body.startswith(_DEVICE) or not number.isdigit():
        return None
    return name.decode(errors="replace"), int(number)


def _kwh(at: datetime, chance: random.Random) -> float:
    """More in the morning and in the evening; now and then somebody charges a car."""
    hour = at.hour + at.minute / 60
    usual = (
        0.02 + 0.03 * math.exp(-((hour - 7.5) ** 2) / 4) + 0.05 * math.exp(-((hour - 19) ** 2) / 6)
    )
    return round(usual * chance.uniform(0.7, 1.3) + (0.9 if chance.random() < 0.002 else 0), 4)


def _voltage(number: int, chance: random.Random) -> float:
    if number == _STUCK:
        return 230.0
    return round(chance.gauss(205 if number == _WEAK else 231, 2.5), 1)
