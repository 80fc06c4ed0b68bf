"""Who is there: brokers and clients by their heartbeats, kept as records of a store.

    tier/broker/NAME    what a broker last reported; expires after `BROKER_EXPIRES_MS`
    tier/known/NAME     that there is such a broker; so one that falls silent is missed
    tier/client/NAME    a producer or consumer; expires after `CLIENT_EXPIRES_MS`

Several managers may share a store. What one keeps in memory is a copy of these records, at most
`LOOK_MS` old, and heartbeats on their way to the store. They are written together `FLUSH_S` apart,
so a thousand brokers cost a few commits a second, not a thousand. A manager that dies loses a
quarter of a second of them, and hears everybody again within one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from ringdove.client.address import parse
from ringdove.core.settings import check_name
from ringdove.errors import InvalidArgument, StoreUnavailable
from ringdove.pending import Pending
from ringdove.tiers import routing
from ringdove.tiers.reports import (
    BrokerReport,
    ClientReport,
    grown,
)
from ringdove.tiers.routing import Candidate, Routes

if TYPE_CHECKING:
    from ringdove.stores.base import Record, Store

_log = logging.getLogger(__name__)

#: How long a report counts: a broker misses five before others are sent elsewhere.
BROKER_EXPIRES_MS = 5_000

#: Clients report less often, because there are many of them; a third of this apart.
CLIENT_EXPIRES_MS = 30_000

#: How long a broker that is silent stays known, and how often that is written again.
KNOWN_EXPIRES_MS = 7 * 24 * 3600 * 1000
_KNOWN_AGAIN_MS = 24 * 3600 * 1000

#: Seconds between two writes of what was heard.
FLUSH_S = 0.25

#: Age of what is known from other managers.
LOOK_MS = 500

#: Weight of the newest value in the averages of rate and processor: what lasts a second or two does
#: not count for much.
_WEIGHT = 0.2

_BROKER, _KNOWN, _CLIENT = "tier/broker/", "tier/known/", "tier/client/"


class Seen(msgspec.Struct):
    """A broker's last report, and what follows from those before."""

    #: Its processor's load is an average; what it takes to start does not count.
    report: BrokerReport
    #: When it was heard, and since when without a gap.
    at_ms: int
    since_ms: int
    #: Messages stored per second.
    rate: float = 0.0
    #: Since when it has been away from its upstream, and when its hash mismatches last grew; 0 for
    #: never.
    away_ms: int = 0
    mismatched_ms: int = 0


class Known(msgspec.Struct):
    """A broker that has reported once, and is missed if it falls silent."""

    level: int
    region: str
    url: str
    #: Where it pulled from.
    upstream: str = ""
    #: When this was written.
    at_ms: int = 0


class SeenClient(msgspec.Struct):
    """A client's last report."""

    report: ClientReport
    at_ms: int


def heard(before: Seen | None, report: BrokerReport, now_ms: int) -> Seen:
    """What is known of a broker after a report; `before` counts while it has not expired."""
    replace = msgspec.structs.replace
    seen = Seen(replace(report, load=replace(report.load, cpu=0.0)), now_ms, now_ms)
    if before is not None and before.report.started_ms == report.started_ms:
        seen.since_ms = before.since_ms
        seen.rate = _rate(before, report, now_ms)
        seen.report.load.cpu = _average(before.report.load.cpu, report.load.cpu)
        grown = _mismatches(report) > _mismatches(before.report)
        seen.mismatched_ms = now_ms if grown else before.mismatched_ms
    elif _mismatches(report):
        seen.mismatched_ms = now_ms
    if is_away(report):
        seen.away_ms = (before.away_ms if before is not None else 0) or now_ms
    return seen


def is_away(report: BrokerReport) -> bool:
    """Whether a broker has no upstream that should have one, or does not pull all it should."""
    if report.level == 0 or not report.serving:
        return False
    return not report.upstream or any(queue.state == "away" for queue in report.queues)


def _is_elsewhere(before: BrokerReport, report: BrokerReport) -> bool:
    """Whether a broker has changed in a way that askers must learn of at once."""
    return (before.level, before.region, before.url, before.serving) != (
        report.level, report.region, report.url, report.serving,
    )  # fmt: skip


def _mismatches(report: BrokerReport) -> int:
    return sum(queue.mismatches for queue in report.queues)


def _rate(before: Seen, report: BrokerReport, now_ms: int) -> float:
    passed_ms = now_ms - before.at_ms
    if passed_ms <= 0:
        return before.rate
    stored = {queue.id: queue.stored for queue in before.report.queues}
    came = sum(grown(stored.get(queue.id, 0), queue.stored) for queue in report.queues)
    return _average(before.rate, came * 1000 / passed_ms)


def _average(before: float, value: float) -> float:
    return before + (value - before) * _WEIGHT


class Registry:
    """See the module."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._seen: dict[str, Seen] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self._known: dict[str, Known] = {}
        #: By key: what was heard and is to be written, and until when it counts.
        self._unwritten: dict[str, tuple[bytes, int]] = {}
        self._routes: Routes | None = None
        self._routed_ms = 0
        self._looked_ms = 0
        self._looking: Pending[None] | None = None

    # -- hearing --------------------------------------------------------------------------------

    async def hear(self, report: BrokerReport) -> Seen:
        """A broker has reported itself."""
        check_name(report.name, "broker")
        parse(report.url)
        routing.check(report)
        await self._look()
        now_ms = self.store.clock.now_ms()
        before = self.heard(report.name)
        if before is not None and report.started_ms < before.report.started_ms:
            raise InvalidArgument(
                f"Another broker is called {report.name!r}, at {before.report.url}, and started "
                "later: give each a name of its own."
            )
        seen = self._seen[report.name] = heard(before, report, now_ms)
        if before is None or _is_elsewhere(before.report, report):
            self._routes = None
        self._write_later(_BROKER + report.name, seen, now_ms + BROKER_EXPIRES_MS)
        await self._know(report, now_ms)
        return seen

    async def _know(self, report: BrokerReport, now_ms: int) -> None:
        before = self._known.get(report.name)
        known = Known(report.level, report.region, report.url, report.upstream, now_ms)
        if before is not None and now_ms - before.at_ms < _KNOWN_AGAIN_MS:
            known.at_ms = before.at_ms
        if known != before:
            self._known[report.name] = known
            value = msgspec.msgpack.encode(known)
            await self.store.put(_KNOWN + report.name, value, expires_ms=now_ms + KNOWN_EXPIRES_MS)

    def hear_client(self, report: ClientReport) -> None:
        """A producer or consumer has reported itself."""
        check_name(report.name, "client")
        now_ms = self.store.clock.now_ms()
        seen = SeenClient(report, now_ms)
        self._write_later(_CLIENT + report.name, seen, now_ms + CLIENT_EXPIRES_MS)

    async def forget_client(self, name: str) -> bool:
        """A client has closed its session; answers whether it was known."""
        waiting = self._unwritten.pop(_CLIENT + name, None) is not None
        return await self.store.remove(_CLIENT + name) or waiting

    def _write_later(self, key: str, value: Seen | SeenClient, expires_ms: int) -> None:
        self._unwritten[key] = (msgspec.msgpack.encode(value), expires_ms)

    async def forget(self, name: str) -> bool:
        """A broker has left, or is not missed any more; answers whether it was known."""
        known = self._known.pop(name, None) is not None
        self._seen.pop(name, None)
        self._routes = None
        self._unwritten.pop(_BROKER + name, None)
        for key in (_BROKER + name, _KNOWN + name):
            known = await self.store.remove(key) or known
        return known

    async def flush(self) -> None:
        """Write what was heard; what cannot be written is tried again while it counts."""
        entries = list(self._unwritten.items())
        writes = (self.store.put(key, value, expires_ms=end) for key, (value, end) in entries)
        answers = await asyncio.gather(*writes, return_exceptions=True)
        now_ms = self.store.clock.now_ms()
        failures = []
        for (key, entry), answer in zip(entries, answers, strict=True):
            failed = isinstance(answer, BaseException) and entry[1] > now_ms
            if failed:
                failures.append(answer)
            elif self._unwritten.get(key) is entry:
                del self._unwritten[key]
        if failures:
            _log.warning("%d heartbeats could not be written: %s", len(failures), failures[0])

    # -- looking --------------------------------------------------------------------------------

    async def brokers(self) -> dict[str, Seen]:
        """The brokers that reported lately, by name."""
        await self._look()
        oldest_ms = self.store.clock.now_ms() - BROKER_EXPIRES_MS
        return {name: seen for name, seen in self._seen.items() if seen.at_ms > oldest_ms}

    async def missing(self) -> dict[str, Known]:
        """The brokers that are known and did not report lately, by name."""
        brokers = await self.brokers()
        return {name: known for name, known in self._known.items() if name not in brokers}

    def heard(self, name: str) -> Seen | None:
        """The broker of that name, if it reported lately as far as this manager knows."""
        seen = self._seen.get(name)
        oldest_ms = self.store.clock.now_ms() - BROKER_EXPIRES_MS
        return seen if seen is not None and seen.at_ms > oldest_ms else None

    async def routes(self) -> Routes:
        """The brokers and how busy they were within the last `LOOK_MS`, to say where to go."""
        now_ms = self.store.clock.now_ms()
        if self._routes is None or now_ms - self._routed_ms >= LOOK_MS:
            brokers = await self.brokers()
            self._routes = Routes(
                Candidate(seen.report, seen.at_ms - seen.since_ms) for seen in brokers.values()
            )
            self._routed_ms = now_ms
        return self._routes

    async def clients(self) -> list[SeenClient]:
        """The producers and consumers that reported lately, by name."""
        found = {record.key: record.value for record in await self._scan(_CLIENT)}
        found |= {k: value for k, (value, _) in self._unwritten.items() if k.startswith(_CLIENT)}
        return [_decode_client(found[key]) for key in sorted(found)]

    async def _look(self) -> None:
        """Read what others have written, unless that was done just now.

        While the store is away, what is known counts: brokers go on reporting.
        """
        if self.store.clock.now_ms() - self._looked_ms < LOOK_MS:
            return
        if self._looking is not None:
            await self._looking
            await self._look()  # Nothing is left to do, unless who looked was interrupted.
            return
        looking = self._looking = Pending()
        unwritten = set(self._unwritten)
        try:
            self._take_brokers(await self._scan(_BROKER), unwritten)
            self._take_known(await self._scan(_KNOWN))
            self._looked_ms = self.store.clock.now_ms()
        except StoreUnavailable as error:
            self._looking = None
            if not self._looked_ms:
                looking.fail(error)
                raise
            self._looked_ms = self.store.clock.now_ms()
            _log.warning("What other managers know cannot be read: %s", error)
        except Exception as error:
            self._looking = None
            looking.fail(error)
            raise
        except BaseException:
            self._looking = None
            looking.resolve(None)
            raise
        self._looking = None
        looking.resolve(None)

    async def _scan(self, prefix: str) -> list[Record]:
        found: list[Record] = []
        page = await self.store.scan(prefix)
        while page:
            found += page
            page = await self.store.scan(prefix, after=page[-1].key)
        return found

    def _take_brokers(self, records: list[Record], unwritten: set[str]) -> None:
        """Take what is written; what was not yet when it was read may be by now."""
        written = {record.key.removeprefix(_BROKER): record for record in records}
        for name in [name for name in self._seen if name not in written]:
            if _BROKER + name not in unwritten | self._unwritten.keys():
                del self._seen[name]
        # A version begins again once its record has expired; the time of that does not.
        versions = {name: (record.version, record.expires_ms) for name, record in written.items()}
        for name, record in written.items():
            if self._versions.get(name) == versions[name] and name in self._seen:
                continue
            seen, mine = _decode_broker(record.value), self._seen.get(name)
            if mine is None or seen.at_ms > mine.at_ms:
                self._seen[name] = seen
        self._versions = versions

    def _take_known(self, records: list[Record]) -> None:
        self._known = {r.key.removeprefix(_KNOWN): _decode_known(r.value) for r in records}


_decode_broker = msgspec.msgpack.Decoder(Seen).decode
_decode_client = msgspec.msgpack.Decoder(SeenClient).decode
_decode_known = msgspec.msgpack.Decoder(Known).decode
