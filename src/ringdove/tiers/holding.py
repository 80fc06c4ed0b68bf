"""A directory's right to serve: asked for, renewed in time, and given up in time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import msgspec

from ringdove.client.address import parse
from ringdove.client.link import Link, LinkOptions
from ringdove.errors import ConnectionClosed, RingdoveError
from ringdove.protocol import messages
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import Request, SessionState
from ringdove.tiers import grants
from ringdove.tiers.grants import OWN_SHARE, RENEW_SHARE, Grant, Verdict

#: Seconds for an answer, and of silence after which another manager is tried: short beside a lease.
_ANSWER_S = 0.8
_SILENCE_S = 0.4

#: Where there is none that counts sleep, one that does not must do.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: Seconds before a manager that did not answer is asked again.
_AGAIN_S = 0.1


def now_s() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class Grantors:
    """The managers, as one directory asks them; any of them will do."""

    def __init__(self, managers: str, lease_ms: int) -> None:
        self._address = parse(managers)
        self._lease_ms = lease_ms
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        #: Why there was no answer, the last time.
        self.trouble = ""

    async def ask(
        self, command: str, name: str, member: str, answer_s: float = _ANSWER_S, **more: Any
    ) -> Verdict | None:
        """What a manager answers, or None when none does so in time."""
        request = grants.Request(name, member, lease_ms=self._lease_ms, **more)
        wire = Request(
            Verb.TIER, messages.encode((f"grant.{command}", msgspec.to_builtins(request)))
        )
        try:
            async with asyncio.timeout(answer_s):
                link = await self._open()
                link.submit(wire)
                frame = await wire.answer
            return msgspec.convert(messages.decode(Any, frame.meta), Verdict)
        except (TimeoutError, OSError, RingdoveError, msgspec.ValidationError) as error:
            self.trouble = str(error) or f"no answer within {answer_s:.1f} s"
            if self._link is not None:
                self._link.abandon(wire)
            return None

    async def _open(self) -> Link:
        async with self._opening:
            link = self._link
            if link is None or link.session.state is SessionState.CLOSED:
                options = LinkOptions(connect_s=_ANSWER_S, silence_s=_SILENCE_S)
                link = Link(self._address, options, asyncio.get_running_loop())
                try:
                    await link.open()
                except BaseException:
                    await link.close()
                    raise
                self._link = link
            return link

    async def close(self) -> None:
        """Let go. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()


class Holding:
    """A grant in use: how long it lasts, on this process's own clock."""

    def __init__(self, grantors: Grantors, grant: Grant, asked_s: float) -> None:
        self.name = grant.name
        self.url = grant.url
        self._grantors = grantors
        self._member = grant.holder
        self._term = grant.term
        self._lease_s = grant.lease_ms / 1000
        self._until_s = self._end_s(asked_s)
        self._step = 0
        self._recording = asyncio.Lock()
        #: Whether it is recorded that nobody is in sync: then nobody else can be granted, and this
        #: directory may serve without a manager.
        self._alone = True
        #: Why it is over; empty while it is not.
        self.lost = ""
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _end_s(self, asked_s: float) -> float:
        return asked_s + self._lease_s * OWN_SHARE

    def check(self) -> None:
        """Raise unless this process may serve now; from any thread."""
        if not self.lost and not self._alone and now_s() >= self._until_s:
            self.lose(f"the lease has lapsed ({self._grantors.trouble or 'this process was late'})")
        if self.lost:
            raise ConnectionClosed("This server serves no more; connect again, to the other one.")

    def lose(self, reason: str) -> None:
        """It is over, for good; from any thread."""
        self.lost = self.lost or reason
        with contextlib.suppress(RuntimeError):  # The loop was closed.
            self._loop.call_soon_threadsafe(self._over.set)

    async def keep(self) -> None:
        """Renew until it is over."""
        while not self.lost:
            asked_s = now_s()
            left_s = _ANSWER_S if self._alone else min(_ANSWER_S, self._until_s - asked_s)
            verdict = await self._ask("renew", url=self.url, answer_s=left_s)
            if verdict is not None and not verdict.granted:
                self.lose("another process was granted")
            elif verdict is not None:
                self._until_s = self._end_s(asked_s)
            with contextlib.suppress(ConnectionClosed):
                self.check()
            pause_s = _AGAIN_S if verdict is None else self._lease_s * RENEW_SHARE
            try:
                async with asyncio.timeout(pause_s):
                    await self._over.wait()
            except TimeoutError:
                continue

    async def record(self, in_sync: str) -> bool:
        """Record who is in sync, empty for nobody; False when that could not be done."""
        async with self._recording:
            self._step += 1
            if in_sync:
                if now_s() >= self._until_s:
                    return False  # It could not stop in time.
                self._alone = False
            elif self._alone:
                return not self.lost  # So it is recorded already: no manager need be asked.
            while not self.lost:
                verdict = await self._ask("sync", in_sync=in_sync, step=self._step)
                if verdict is None:
                    await asyncio.sleep(_AGAIN_S)
                elif verdict.granted:
                    self._alone = not in_sync
                    return True
                else:
                    self.lose("another process was granted")
            return False

    async def release(self) -> None:
        """Give it back: nothing is served any more."""
        await self._ask("release")

    async def _ask(self, command: str, **more: Any) -> Verdict | None:
        return await self._grantors.ask(command, self.name, self._member, term=self._term, **more)
