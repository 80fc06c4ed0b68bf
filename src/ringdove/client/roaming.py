"""Brokers of tiers, one after the other, as the managers say (M5, M6).

A client with a URL `tiers://MANAGER:PORT` asks the managers where to connect when it begins and
whenever it has lost its broker, and tries the places in the order given. While it is connected it
reports itself, and is told when another broker is clearly better. Without a manager it stays where
it is; should that broker be lost too, it tries the places that it was told of before.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import socket
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove import limits
from ringdove.client.address import Address, Asker, Endpoint, parse
from ringdove.client.link import Link, LinkOptions
from ringdove.errors import FatalClientError, InvalidArgument, RingdoveError, StoreUnavailable
from ringdove.protocol import messages
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import Request

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds for a manager to answer, for all of them to be tried, and to say goodbye to one.
_ANSWER_S = 2.0
_LEAVE_S = 0.5

#: Places that share the time to connect; there may be many more, and most can be reached.
_TRIED_MAX = 3

#: Seconds between reports, until a manager has said how long one counts; and of that, the share.
_BEAT_S = 10.0
_BEATS_PER_EXPIRY = 3


class _Broker(NamedTuple):
    name: str
    endpoint: Endpoint


class ManagedEndpoints:
    """See the module; `Endpoints` has the contract."""

    differ = True

    def __init__(
        self,
        address: Address,
        asker: Asker,
        options: LinkOptions,
        loop: asyncio.AbstractEventLoop,
        leave: Callable[[str], None],
    ) -> None:
        host = re.sub(r"[^A-Za-z0-9_]", "_", socket.gethostname())
        self._name = f"{host[: limits.NAME_CHARS_MAX // 2]}-{secrets.token_hex(8)}"
        self._managers = Address(address.endpoints)
        self._asker = asker
        # Half of the time to connect is for the broker.
        connect_s = min(options.connect_s / 2, _ANSWER_S)
        self._options = replace(options, connect_s=connect_s, session_s=_ANSWER_S, on_state=None)
        self._loop = loop
        #: Called to end the connection there is, with the reason.
        self._leave = leave
        self._manager: Link | None = None
        #: All that the managers named last, and those of them that are still to be tried.
        self._told: list[_Broker] = []
        self._to_try: deque[_Broker] = deque()
        self._trying: _Broker | None = None
        #: Name of the broker it is connected to, and of those that could not be reached since.
        self._at = ""
        self._avoid: list[str] = []
        self._beats: asyncio.Task[None] | None = None
        #: Set when there is a new connection to report.
        self._arrived = asyncio.Event()

    def __str__(self) -> str:
        return f"the managers {', '.join(map(str, self._managers.endpoints))} of tiers"

    @property
    def count(self) -> int:
        """See Endpoints."""
        return min(max(1, len(self._told)), _TRIED_MAX)

    # -- places ---------------------------------------------------------------------------------

    async def next(self) -> Endpoint:
        """See Endpoints."""
        if not self._to_try:
            self._to_try = deque(await self._find())
        self._trying = self._to_try.popleft()
        return self._trying.endpoint

    async def _find(self) -> list[_Broker]:
        asker = self._asker
        try:
            places = await self._ask("where", {**await self._self(), "avoid": self._avoid})
            found = self._read(places)
        except (RingdoveError, OSError, TimeoutError) as error:
            if self._told:
                return self._told
            if isinstance(error, FatalClientError | InvalidArgument):
                raise
            raise StoreUnavailable(f"No manager says where to connect: {error}") from error
        if not found:
            near = f" in {asker.region}" if asker.region else ""
            raise StoreUnavailable(f"The managers know no broker for a {asker.role}{near}.")
        self._told = found
        return found

    def _read(self, places: list[dict[str, Any]]) -> list[_Broker]:
        """The brokers in an answer; they take the managers' token where they name none."""
        token = self._managers.endpoints[0].token
        return [
            _Broker(place["name"], replace(endpoint, token=endpoint.token or token))
            for place in places
            for endpoint in parse(place["url"]).endpoints
        ]

    def welcomed(self, endpoint: Endpoint) -> None:  # noqa: ARG002
        """See Endpoints."""
        assert self._trying is not None
        self._at = self._trying.name
        self._avoid = []
        self._to_try.clear()
        self._arrived.set()
        if self._beats is None:
            self._beats = self._loop.create_task(self._beat())

    def ended(self, endpoint: Endpoint) -> None:  # noqa: ARG002
        """See Endpoints."""
        assert self._trying is not None
        self._at = ""
        if self._trying.name not in self._avoid:
            self._avoid.append(self._trying.name)

    # -- the managers ---------------------------------------------------------------------------

    async def _self(self) -> dict[str, Any]:
        """Who asks; its address is the one by which it reaches the manager."""
        asker, host = self._asker, (await self._reach()).own_host
        return {
            "name": self._name, "role": asker.role, "region": asker.region, "at": self._at,
            "addresses": [host] if host else [],
        }  # fmt: skip

    async def _reach(self) -> Link:
        if self._manager is None:
            self._manager = Link(self._managers, self._options, self._loop)
            try:
                await self._manager.open()
            except BaseException:
                await self._let_go()
                raise
        return self._manager

    async def _ask(self, command: str, arguments: dict[str, Any]) -> Any:
        manager = await self._reach()
        request = Request(Verb.TIER, messages.encode((command, arguments)))
        request.deadline_s = self._loop.time() + _ANSWER_S
        manager.submit(request)
        try:
            return messages.decode(Any, (await request.answer).meta)
        except BaseException:
            await self._let_go()
            raise

    async def _let_go(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            await manager.close()

    async def _beat(self) -> None:
        """Report, and go where the managers say."""
        pause_s = _BEAT_S
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), pause_s)
            self._arrived.clear()
            try:
                report = await self._self()
                beaten = await self._ask("beat_client", {"report": report})
                pause_s = beaten["expires_ms"] / 1000 / _BEATS_PER_EXPIRY
                places = self._read(beaten["go"])
            except (RingdoveError, OSError, TimeoutError):
                continue
            if places and self._at and self._at == report["at"]:
                self._to_try = deque(places)
                self._leave(f"The managers send this client to {places[0].name}.")

    async def close(self) -> None:
        """See Endpoints."""
        beats, self._beats = self._beats, None
        if beats is not None:
            beats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beats
            if self._manager is not None:
                with contextlib.suppress(RingdoveError, OSError, TimeoutError):
                    async with asyncio.timeout(_LEAVE_S):
                        await self._ask("leave_client", {"name": self._name})
        await self._let_go()
