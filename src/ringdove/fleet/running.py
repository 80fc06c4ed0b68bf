"""A run of a fleet: devices, a checker if wanted, and the report."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import time
from typing import TYPE_CHECKING, Any

from ringdove.errors import LimitExceeded
from ringdove.fleet.checking import Checker
from ringdove.fleet.device import Device
from ringdove.fleet.ledger import Ledger
from ringdove.fleet.links import Gateways, link_maker
from ringdove.fleet.plan import check
from ringdove.tracing import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ringdove.fleet.plan import Plan

    #: Told now and then how far a run is, with the seconds since its start.
    OnTick = Callable[["Fleet", float], None]

#: Seconds that readings on their way have at the end of a run, and when somebody stops it.
_PATIENCE_S = 60.0
_PATIENCE_STOPPED_S = 2.0

_TICK_S = 0.5

#: Files that a process has open besides its devices' sockets.
_FILES_SPARE = 200


class Fleet:
    """Devices of a plan; `check_url` is where a checker receives, None for no checker.

    `trace_to` is a directory for traces as Parquet (docs/traces.md).
    """

    def __init__(
        self, plan: Plan, check_url: str | None = None, trace_to: Path | None = None
    ) -> None:
        self.plan = check(plan)
        self._check_url = check_url
        self._stopped = asyncio.Event()
        self._tracer = None if trace_to is None else Tracer(plan.queue, trace_to)
        self.ledger = Ledger(plan, time.perf_counter, self._tracer)

    def stop(self) -> None:
        """End the run early; there is a report all the same."""
        self._stopped.set()

    async def run(self, on_tick: OnTick | None = None) -> dict[str, Any]:
        """Have all devices live, and answer the report; raises what a device was refused with."""
        _allow_files(self.plan.devices)
        gateways = Gateways(self.plan) if self.plan.protocol == "native" else None
        make_link = link_maker(self.plan, gateways)
        trouble = random.Random(self.plan.seed)
        devices = [
            Device(number, self.plan, self.ledger, make_link, trouble)
            for number in range(self.plan.devices)
        ]
        checker = None
        if self._check_url is not None:
            checker = Checker(self._check_url, self.plan, self.ledger)
            await checker.open()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ticks = asyncio.create_task(self._tick(on_tick, began_s)) if on_tick is not None else None
        try:
            await self._live(devices, began_s)
            seconds = loop.time() - began_s
            if checker is not None:
                await checker.finish(hurry=self._stopped.is_set())
        finally:
            for device in devices:
                device.hang_up()
            if ticks is not None:
                ticks.cancel()
            if checker is not None:
                await checker.close()
            if gateways is not None:
                await gateways.close()
            if self._tracer is not None:
                self._tracer.close()
        report = self.ledger.report(seconds, checked=checker is not None)
        return {"protocol": self.plan.protocol, "devices": self.plan.devices, **report}

    async def _live(self, devices: list[Device], began_s: float) -> None:
        """Until all devices have delivered what they made, or there is no time left."""
        lives = [asyncio.create_task(device.live(began_s)) for device in devices]
        over: asyncio.Future[Any] = asyncio.gather(*lives)
        stop: asyncio.Future[Any] = asyncio.create_task(self._stopped.wait())
        left_s = self.plan.seconds + _PATIENCE_S
        try:
            await asyncio.wait({over, stop}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                over.result()
            elif stop.done():
                await self._let_finish(devices, lives)
        finally:
            for task in (*lives, stop):
                task.cancel()
            await asyncio.gather(over, stop, return_exceptions=True)

    async def _let_finish(self, devices: list[Device], lives: list[asyncio.Task[None]]) -> None:
        """Give readings that are on their way a moment to arrive."""
        delivering = [
            life
            for device, life in zip(devices, lives, strict=True)
            if device.delivering and not life.done()
        ]
        if delivering:
            await asyncio.wait(delivering, timeout=_PATIENCE_STOPPED_S)

    async def _tick(self, on_tick: OnTick, began_s: float) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                on_tick(self, loop.time() - began_s)
                await asyncio.sleep(_TICK_S)


def _allow_files(devices: int) -> None:
    """Have the system give this process a socket for each device."""
    wanted = devices + _FILES_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise LimitExceeded(
            f"{devices} devices need {wanted} open files, and this system allows {hard}: raise "
            "the limit (ulimit -n), or use fewer devices."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
