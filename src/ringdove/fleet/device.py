"""One device: makes readings, delivers each until it is acknowledged, loses its connection."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from ringdove.core.readings import device_name, make_reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.fleet.ledger import Ledger
    from ringdove.fleet.plan import Plan

#: Seconds to wait for an answer, where the protocol does not say.
ANSWER_S = 30.0

#: Seconds to wait after the first attempt that failed, and at most.
_PAUSE_S, _PAUSE_S_MAX = 0.5, 8.0


class Busy(Exception):
    """The server takes nothing now."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"The server asks for {wait_s} s of patience.")
        self.wait_s = wait_s


class Link(Protocol):
    """A device's way to the server; what goes wrong on it is an OSError."""

    async def open(self) -> None:
        """Connect."""
        ...

    async def send(self, body: bytes) -> None:
        """Deliver a reading; returns when the server has acknowledged it. Busy if it has not."""
        ...

    def close(self) -> None:
        """Hang up, at once and without a word. Idempotent."""
        ...


class Device:
    """See the module. Readings and their times follow from the plan's seed and the number."""

    def __init__(
        self,
        number: int,
        plan: Plan,
        ledger: Ledger,
        make_link: Callable[[Device], Link],
        trouble: random.Random,
    ) -> None:
        self.number = number
        self.name = device_name(number, plan.seed)
        self._plan = plan
        self._ledger = ledger
        self._chance = random.Random(f"{plan.seed}/{number}")
        #: That of all devices: trouble on the way changes neither readings nor their times.
        self.trouble = trouble
        self._link = make_link(self)
        self._connected = False
        #: Whether a reading is on its way, and whether it is the last.
        self.delivering = False
        self.retired = False

    async def live(self, began_s: float) -> None:
        """Make the readings of a run that began at a time, and deliver each, however late."""
        clock = asyncio.get_running_loop().time
        plan = self._plan
        due_s = began_s + self._chance.uniform(0, plan.period_s)
        while due_s < began_s + plan.seconds and not self.retired:
            await asyncio.sleep(due_s - clock())
            self.delivering = True
            sequence = self._ledger.note_sent(self.number)
            await self._deliver(sequence)
            self.delivering = False
            if self.trouble.random() < plan.drop:
                self.hang_up()
            due_s += plan.period_s * (1 + plan.jitter * self._chance.uniform(-1, 1))

    def hang_up(self) -> None:
        """Lose the connection."""
        self._link.close()
        self._ledger.connected -= self._connected
        self._connected = False

    async def _deliver(self, sequence: int) -> None:
        now = datetime.now(UTC)
        body = make_reading(self.number, self._plan.seed, sequence, now, self._chance)
        pause_s = _PAUSE_S
        while True:
            try:
                await self._connect()
                await self._link.send(body)
            except Busy as busy:
                self._ledger.put_off += 1
                await asyncio.sleep(busy.wait_s * self.trouble.uniform(1, 1.5))
            except OSError as error:
                self._ledger.failure = str(error) or type(error).__name__
                self.hang_up()
                self._ledger.repeated += 1
                await asyncio.sleep(pause_s * self.trouble.uniform(0.5, 1))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            else:
                self._ledger.note_acknowledged(self.number, sequence)
                return

    async def _connect(self) -> None:
        if not self._connected:
            await self._link.open()
            self._connected = True
            self._ledger.connected += 1
            self._ledger.connects += 1
