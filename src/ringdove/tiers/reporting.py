"""A broker's reports to the manager, once a second, and what it is told in return."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.client.remote import RemoteBackend
from ringdove.errors import RingdoveError
from ringdove.log import event_logger
from ringdove.tiers.background import Background
from ringdove.tiers.pulling import Pulled
from ringdove.tiers.reports import (
    Beaten,
    BrokerReport,
    Load,
    Place,
    QueueReport,
    Where,
    grown,
    to_wire,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ringdove.controllers.broker import Broker
    from ringdove.tiers.relay import Relay

#: Seconds between reports.
BEAT_S = 1.0

#: Seconds for an answer of the manager, and for the last one.
_ANSWER_S = 2.0
_LEAVE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a broker is."""

    name: str
    level: int
    region: str
    #: Where clients reach it.
    url: str
    networks: tuple[str, ...] = ()
    #: Its data directory, whose disk is watched.
    directory: Path | None = None


class Managers:
    """The way to the managers, of which any will do; connects when first asked."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._backend: RemoteBackend | None = None

    async def ask(self, command: str, arguments: dict[str, Any]) -> Any:
        """What the manager answers; raises when none can be reached."""
        if self._backend is None:
            backend = RemoteBackend(self._url, timeout_s=_ANSWER_S, session_s=_ANSWER_S)
            await backend.open()
            self._backend = backend
        try:
            return await self._backend.tier(command, arguments)
        except RingdoveError:
            await self.close()
            raise

    async def where(self, ask: Where) -> list[Place]:
        """Where to connect, best first."""
        return msgspec.convert(await self.ask("where", to_wire(ask)), list[Place])

    async def close(self) -> None:
        """Let go. Idempotent."""
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()


class Reporter(Background):
    """Reports a broker until it is closed."""

    def __init__(
        self,
        broker: Broker,
        identity: Identity,
        managers: Managers,
        relay: Relay | None,
        connections: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._identity = identity
        self._managers = managers
        self._relay = relay
        self._connections = connections
        #: Whether the managers are told when it ends. Not where another process may have the name.
        self.leaves = True
        self._started_ms = broker.store.clock.now_ms()
        self._cpu = (time.monotonic(), _cpu_s())
        #: Messages pulled at the last report, by queue, and when that was.
        self._before: dict[str, int] = {}
        self._before_s = time.monotonic()
        #: Queues that could not be looked at, the last time.
        self._unreported: set[str] = set()
        self._log = event_logger("ringdove.tiers")

    async def close(self) -> None:
        """Report no more, and say so, so that nobody misses it. Idempotent."""
        reported = self._task is not None and self.leaves
        await super().close()
        if reported:
            with contextlib.suppress(RingdoveError, OSError, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._managers.ask("leave", {"name": self._identity.name})
        await self._managers.close()

    async def run(self) -> None:
        """Report, once a second."""
        silent = False
        while True:
            try:
                report = await self.report()
                told = await self._managers.ask("beat", {"report": to_wire(report)})
                beaten = msgspec.convert(told, Beaten)
                if beaten.go and report.upstream and self._relay is not None:
                    self._relay.move()
                silent = False
            except (RingdoveError, OSError, msgspec.ValidationError) as error:
                if not silent:
                    self._log.warning("no manager", reason=str(error))
                silent = True
            await asyncio.sleep(BEAT_S)

    async def report(self) -> BrokerReport:
        """The broker as it is now."""
        identity, relay = self._identity, self._relay
        upstream = relay.upstream.name if relay is not None and relay.upstream else ""
        return BrokerReport(
            identity.name,
            identity.level,
            identity.region,
            identity.url,
            list(identity.networks),
            upstream,
            load=self._load(),
            queues=await self._queues(),
            started_ms=self._started_ms,
        )

    def _load(self) -> Load:
        before_s, before_cpu_s = self._cpu
        now_s, now_cpu_s = self._cpu = time.monotonic(), _cpu_s()
        cpu = (now_cpu_s - before_cpu_s) / max(now_s - before_s, 1e-3)
        load = Load(cpu=round(cpu, 3), connections=self._connections())
        if self._identity.directory is not None:
            disk = shutil.disk_usage(self._identity.directory)
            load.disk = round(disk.used / disk.total, 3)
        return load

    async def _queues(self) -> list[QueueReport]:
        now_s = time.monotonic()
        passed_s, self._before_s = max(now_s - self._before_s, 1e-3), now_s
        pulled_by = self._relay.pulled if self._relay is not None else {}
        reports = []
        for info in await self._broker.list_queues():
            try:
                stats = await self._broker.queue_stats(info.name)
            except RingdoveError as error:  # One queue must not hide the broker.
                if info.name not in self._unreported:
                    self._log.warning("not reported", queue=info.name, reason=str(error))
                self._unreported.add(info.name)
                continue
            self._unreported.discard(info.name)
            consumed: dict[str, int] = {}
            for stripe in stats.stripes.values():
                for sub in stripe.subscriptions:
                    consumed[sub.name] = consumed.get(sub.name, 0) + sub.floor
            stored = sum(stripe.tail for stripe in stats.stripes.values())
            rate = grown(self._before.get(info.name, stored), stored) / passed_s
            self._before[info.name] = stored
            pulled = pulled_by.get(info.name, Pulled(state=""))
            reports.append(
                QueueReport(
                    info.name, info.id, stored, stats.messages, stats.nbytes, consumed,
                    round(rate, 1), pulled.behind, pulled.lag_ms, pulled.mismatches,
                    pulled.state, pulled.reason,
                )
            )  # fmt: skip
        return reports


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system
