"""Alarms as records, and those who are told of them.

    tier/alarm/now/KIND/BROKER/QUEUE      an alarm that is raised
    tier/alarm/past/TIME/KIND/...         one that was; expires, and there are at most `PAST_MAX`

Any manager may raise and clear: a record is written by one of them, whose write the others find,
and that one tells the log and the webhook.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ringdove.errors import RecordConflict
from ringdove.tiers.alarms import Alarm, causes, judge
from ringdove.tiers.registry import BROKER_EXPIRES_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.tiers.registry import Registry

_log = logging.getLogger(__name__)

#: Alarms remembered after they were cleared, and for how long.
PAST_MAX = 1_000
PAST_EXPIRES_MS = 30 * 24 * 3600 * 1000

#: Alarms raised at a time: beyond, something is so wrong that more of them would tell nothing.
NOW_MAX = 10_000

#: How often the record of a raised alarm says that its cause is still there.
_SEEN_AGAIN_MS = 3_000

_NOW, _PAST = "tier/alarm/now/", "tier/alarm/past/"


class Alarms:
    """The alarms of a store, raised and cleared by what its registry knows."""

    def __init__(self, registry: Registry, tell: Callable[[str, Alarm], None]) -> None:
        self._registry = registry
        self._store = registry.store
        #: Called with "raised" or "cleared" and the alarm.
        self._tell = tell
        self._watching_ms = self._store.clock.now_ms()
        #: Counters since the start, by kind; how many were raised at the last look, and how many
        #: brokers reported.
        self.raised: Counter[str] = Counter()
        self.present: Counter[str] = Counter()
        self.brokers = 0

    async def now(self) -> list[Alarm]:
        """Those that are raised."""
        return [alarm for alarm, _ in await self._now()]

    async def past(self, count_max: int = PAST_MAX) -> list[Alarm]:
        """Those that were, the latest first."""
        records = await self._store.scan(_PAST, count_max=2 * PAST_MAX)
        latest = sorted((_decode(record.value) for record in records), key=_cleared, reverse=True)
        return latest[:count_max]

    async def look(self) -> None:
        """Raise and clear what is to be."""
        now_ms = self._store.clock.now_ms()
        written = {alarm.key: (alarm, version) for alarm, version in await self._now()}
        brokers = await self._registry.brokers()
        self.brokers = len(brokers)
        missing = await self._registry.missing()
        if now_ms - self._watching_ms < BROKER_EXPIRES_MS:
            missing = {}  # Brokers must have had the time to report.
        found = causes(brokers.values(), missing, written, now_ms)
        alarms = {key: alarm for key, (alarm, _) in written.items()}
        changes = judge(found[:NOW_MAX], alarms, now_ms, self._watching_ms)
        for alarm in changes.raised:
            await self._raise(alarm)
        for alarm in changes.kept:
            before, version = written[alarm.key]
            if now_ms - before.seen_ms >= _SEEN_AGAIN_MS:
                with contextlib.suppress(RecordConflict):  # Another manager has said it.
                    await self._store.put(_NOW + alarm.key, _encode(alarm), version)
        for alarm in changes.cleared:
            await self._clear(alarm, written[alarm.key][1])
        gone = {alarm.key for alarm in changes.cleared}
        stay = [alarm for key, alarm in alarms.items() if key not in gone]
        self.present = Counter(alarm.kind for alarm in stay + changes.raised)

    async def _now(self) -> list[tuple[Alarm, int]]:
        records = await self._store.scan(_NOW, count_max=NOW_MAX)
        return [(_decode(record.value), record.version) for record in records]

    async def _raise(self, alarm: Alarm) -> None:
        with contextlib.suppress(RecordConflict):  # Another manager was first, and tells it.
            await self._store.put(_NOW + alarm.key, _encode(alarm), 0)
            self.raised[alarm.kind] += 1
            self._tell("raised", alarm)

    async def _clear(self, alarm: Alarm, version: int) -> None:
        past = f"{_PAST}{alarm.raised_ms:015}/{alarm.key}"
        await self._store.put(past, _encode(alarm), expires_ms=alarm.cleared_ms + PAST_EXPIRES_MS)
        with contextlib.suppress(RecordConflict):
            if await self._store.remove(_NOW + alarm.key, version):
                self._tell("cleared", alarm)
        records = await self._store.scan(_PAST, count_max=2 * PAST_MAX)
        for record in records[: max(0, len(records) - PAST_MAX)]:
            await self._store.remove(record.key)


def log_alarm(event: str, alarm: Alarm) -> None:
    """Write an alarm to the log."""
    level = logging.WARNING if event == "raised" else logging.INFO
    _log.log(level, "Alarm %s (%s): %s", event, alarm.kind, alarm.text)


def _cleared(alarm: Alarm) -> int:
    return alarm.cleared_ms


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Alarm).decode
