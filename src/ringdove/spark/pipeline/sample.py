"""Readings to try a pipeline with: a day of a fleet of meters, with all that goes wrong in one.

A few messages come twice, a few are no readings. One meter falls silent, one has a sensor that is
stuck, one sits at the end of a weak line. The same seed makes the same readings, another
one those of another fleet.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from ringdove.core.readings import device_name, make_reading

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Readings of one meter come so far apart.
STEP = timedelta(minutes=5)
_A_DAY = 24 * 12

#: One in so many is sent again, lost on the way, or spoilt.
_AGAIN, _LOST, _SPOILT = 50, 1_000, 100

_NOT_READINGS = (
    lambda good: good[: len(good) // 2],
    lambda good: good.replace(b'"kwh": ', b'"kwh": -'),
    lambda _: b"\xff\xfe\x00 not even text",
    lambda _: b'{"hello": "world"}',
    lambda good: good.replace(b'"time": "2', b'"time": "3'),
)


class Sample(NamedTuple):
    """A message to send: its key is its device."""

    body: bytes
    key: bytes


class Counts(NamedTuple):
    """What a sample has in it."""

    messages: int
    readings: int
    duplicates: int
    dead_letters: int


def make_samples(
    count: int, end: datetime | None = None, seed: int = 7
) -> tuple[list[Sample], Counts]:
    """About so many readings that end at a time, by default now, and what is among them."""
    chance = random.Random(seed)
    made: list[Sample] = []
    duplicates = dead = 0
    for sample in _readings(count, end or datetime.now(UTC), seed):
        if chance.randrange(_SPOILT) == 0:
            spoil = _NOT_READINGS[dead % len(_NOT_READINGS)]
            made.append(sample._replace(body=spoil(sample.body)))
            dead += 1
            continue
        made.append(sample)
        if chance.randrange(_AGAIN) == 0:
            made.append(sample)
            duplicates += 1
    return made, Counts(len(made), len(made) - duplicates - dead, duplicates, dead)


def _readings(count: int, end: datetime, seed: int) -> Iterator[Sample]:
    chance = random.Random(seed)
    steps = min(_A_DAY, max(count, 1))
    meters = max(1, count // steps)
    for step in range(steps):
        at = end - STEP * (steps - step)
        for number in range(meters):
            if chance.randrange(_LOST) == 0 or (number == 1 and step > steps // 2):
                continue
            body = make_reading(number, seed, step, at, chance)
            yield Sample(body, device_name(number, seed).encode())
