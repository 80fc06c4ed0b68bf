"""The gateways of a fabric: what each must know of the others.

Sessions, retained messages and wills are in the store, which all of them share. What has changed,
and what clients elsewhere want to see at once, they tell one another on a *bus*: a stripe that
everybody appends to and reads. Nothing on it must survive; what must is in a record before.

    connected CLIENT    it has connected here: if it is connected with you, let it go
    session CLIENT      its record has changed: read it
    retained MESSAGE    keep it, or forget it if it is empty
    publish MESSAGE     for subscribers but those in whose stripe the publisher's server has put it
    share MESSAGE       for one of a group that has members with you, and none with me
    interest FILTER     somebody here subscribes to it; `no-interest`: nobody does any more
    hello               a new gateway: tell it your interests

A gateway whose record `mqtt/server/NAME` has vanished is dead: its clients are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import OffsetTrimmed, RingdoveError
from ringdove.frontends.mqtt.message import decode_message, encode_message
from ringdove.pending import Pending
from ringdove.protocol.mqtt.topics import SHARED, FilterTree, parse_filter
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from ringdove.frontends.mqtt.message import Message
    from ringdove.pending import Driven, Runner
    from ringdove.stores.base import Store

_log = logging.getLogger(__name__)

SERVER_PREFIX: Final = "mqtt/server/"

#: The bus; no queue has this number, because theirs are odd.
_BUS: Final = StripeId(0x6D71_7474, 0, 0)
_BUS_SETTINGS: Final = QueueSettings.make(copies=1, retention_ms=60_000, body_bytes_max=1 << 24)

#: Milliseconds after which a gateway that says nothing is dead, and seconds between two signs.
_ALIVE_MS: Final = 20_000
SIGN_S: Final = 5.0

_READ_MESSAGES: Final = 1_000
_READ_BYTES: Final = 1 << 22
_WAIT_S: Final = 1.0

#: Events, and their bytes, that wait while the bus cannot be written; and that are written at once.
_UNSENT_MAX: Final = 50_000
_UNSENT_BYTES_MAX: Final = 1 << 26
_WRITE_MESSAGES: Final = 1_000
_WRITE_BYTES: Final = 1 << 22

#: Events that may be missed: they are for those who are here now. The others are state.
_PASSING: Final = ("publish", "share")


class _Event(msgspec.Struct, array_like=True):
    origin: str
    kind: str
    text: str = ""
    body: bytes = b""
    #: Clients whose stripe has the message.
    stored: list[str] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Event).decode


class Peers:
    """See the module. Where only one process can have the store, there are none."""

    def __init__(self, store: Store, runner: Runner, name: str) -> None:
        self._store = store
        self._runner = runner
        self.name = name
        #: Whether others may have the store too.
        self.shared = store.node_of(_BUS) is not None
        #: What to do when others say something.
        self.on_connected: Callable[[str], None] = _ignore
        #: Clients that have connected here, until that has come around on the bus. What others said
        #: of them before that is older.
        self._announced: dict[str, int] = {}
        self.on_session: Callable[[str], None] = _ignore
        self.on_retained: Callable[[Message], None] = _ignore
        self.on_publish: Callable[[Message, Container[str]], None] = _ignore
        self.on_share: Callable[[Message, str], None] = _ignore
        #: How many subscribe here, and who does elsewhere.
        self._own: dict[str, int] = {}
        self._elsewhere: FilterTree[tuple[str, str]] = FilterTree()
        self._cursor = 0
        self._reader: Driven | None = None
        #: What is to be told, in its order, with whether it may be missed; and what tells it.
        self._unsent: deque[tuple[bytes, bool]] = deque()
        self._unsent_bytes = 0
        self._telling = False
        self._teller: Driven | None = None
        self._turn = 0
        self.alive: set[str] = {name}

    async def open(self) -> None:
        """Listen to the bus, and say hello."""
        if not self.shared:
            return
        await self._store.create(_BUS, _BUS_SETTINGS, 1)
        self._cursor = (await self._store.stats(_BUS)).tail
        await self.sign()
        self._reader = self._runner.spawn(self._listen(), _ended)
        self._tell("hello")

    async def close(self) -> None:
        """Be dead for the others, soon if they cannot be told."""
        if self._reader is None:
            return
        self._reader.cancel()
        if self._teller is not None:
            self._teller.cancel()
        self._telling = True  # By nobody else from now on.
        while self._unsent and await self._write(self._take()):
            pass
        with contextlib.suppress(RingdoveError):
            await self._store.remove(SERVER_PREFIX + self.name)

    async def sign(self) -> None:
        """Show that this gateway lives, and see which others do."""
        if not self.shared:
            return
        until_ms = self._store.clock.now_ms() + _ALIVE_MS
        await self._store.put(SERVER_PREFIX + self.name, b"", expires_ms=until_ms)
        records = await self._store.scan(SERVER_PREFIX)
        self.alive = {record.key[len(SERVER_PREFIX) :] for record in records} | {self.name}
        for entry in [entry for entry in self._elsewhere if entry[0] not in self.alive]:
            self._elsewhere.remove(_filter(entry[1]), entry)

    # -- telling --------------------------------------------------------------------------------

    async def connected(self, client_id: str) -> None:
        """Tell the others that a client has connected here, before the client knows it.

        So what a client does later, elsewhere, comes later on the bus.
        """
        if self.shared:
            self._announced[client_id] = self._announced.get(client_id, 0) + 1
            event = (_encode(_Event(self.name, "connected", client_id)), False)
            if not await self._write([event]):
                self._begin_to_tell()

    def session(self, client_id: str) -> None:
        """Tell the others that a session's record has changed."""
        self._tell("session", client_id)

    def retained(self, message: Message) -> None:
        """Tell the others what is retained now."""
        self._tell("retained", body=encode_message(message))

    @property
    def listening(self) -> bool:
        """Whether anybody elsewhere subscribes to anything."""
        return self._elsewhere.count > 0

    def publish(self, message: Message, served: Container[str], stored: list[str]) -> None:
        """Tell those elsewhere who subscribe.

        Groups that were `served` here get nothing more, nor do clients for whom it is `stored`.
        """
        if not self._elsewhere.count:
            return
        groups: dict[str, list[str]] = {}
        plain = False
        for owner, pattern in self._elsewhere.find(message.topic):
            if not pattern.startswith(SHARED):
                plain = True
            elif pattern not in served:
                groups.setdefault(pattern, []).append(owner)
        body = encode_message(message) if plain or groups else b""
        if plain:
            self._tell("publish", body=body, stored=stored)
        for pattern, owners in groups.items():
            self._turn += 1
            self._tell("share", f"{owners[self._turn % len(owners)]} {pattern}", body)

    def subscribed(self, pattern: str) -> None:
        """Somebody here subscribes."""
        count = self._own[pattern] = self._own.get(pattern, 0) + 1
        if count == 1:
            self._tell("interest", pattern)

    def unsubscribed(self, pattern: str) -> None:
        """Somebody here subscribes no more."""
        count = self._own.get(pattern, 0) - 1
        if count > 0:
            self._own[pattern] = count
        elif self._own.pop(pattern, None):
            self._tell("no-interest", pattern)

    def _tell(
        self, kind: str, text: str = "", body: bytes = b"", stored: list[str] | None = None
    ) -> None:
        if not self.shared:
            return
        event = _encode(_Event(self.name, kind, text, body, stored or []))
        self._unsent.append((event, kind in _PASSING))
        self._unsent_bytes += len(event)
        if len(self._unsent) > _UNSENT_MAX or self._unsent_bytes > _UNSENT_BYTES_MAX:
            self._make_room()
        self._begin_to_tell()

    def _make_room(self) -> None:
        """The bus was away for long: give up what may be missed, and only then what is oldest.

        Half of the room is free then, so this is seldom done, however much there is to tell.
        """
        kept = deque(event for event in self._unsent if not event[1])
        state = len(kept)
        nbytes = sum(len(event) for event, _ in kept)
        while len(kept) > _UNSENT_MAX // 2 or nbytes > _UNSENT_BYTES_MAX // 2:
            nbytes -= len(kept.popleft()[0])
        _log.warning(
            "Other gateways are not told of %d messages and %d changes.",
            len(self._unsent) - state,
            state - len(kept),
        )
        self._unsent, self._unsent_bytes = kept, nbytes

    def _begin_to_tell(self) -> None:
        if not self._telling:
            self._telling = True
            self._runner.loop.call_soon(self._tell_on)

    def _tell_on(self) -> None:
        self._teller = self._runner.spawn(self._tell_all(), self._told)

    def _told(self, _: None, error: BaseException | None) -> None:
        self._telling = False
        _ended(None, error)
        if self._unsent:
            self._begin_to_tell()

    async def _tell_all(self) -> None:
        """Write what is to be told, one block after the other, so that it keeps its order."""
        while self._unsent:
            if not await self._write(self._take()):
                await Pending[None]().until(_WAIT_S)

    def _take(self) -> list[tuple[bytes, bool]]:
        """The next events that are written together."""
        taken: list[tuple[bytes, bool]] = []
        nbytes = 0
        while self._unsent and len(taken) < _WRITE_MESSAGES and nbytes < _WRITE_BYTES:
            taken.append(self._unsent.popleft())
            nbytes += len(taken[-1][0])
        self._unsent_bytes -= nbytes
        return taken

    async def _write(self, events: list[tuple[bytes, bool]]) -> bool:
        """Write events; whether that was possible. If not, they are to be told before others."""
        block = Block.build([event for event, _ in events], sent_ms=self._store.clock.now_ms())
        try:
            await self._store.append(_BUS, [Segment(block)], 0)
        except RingdoveError as error:
            _log.warning("Other gateways cannot be told now: %s", error)
            self._unsent.extendleft(reversed(events))
            self._unsent_bytes += sum(len(event) for event, _ in events)
            return False
        return True

    # -- listening ------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            watch = self._store.watch(_BUS)
            try:
                blocks = await self._store.read(_BUS, self._cursor, _READ_MESSAGES, _READ_BYTES)
            except OffsetTrimmed:
                self._cursor = (await self._store.stats(_BUS)).head
                continue
            except RingdoveError as error:
                _log.info("The bus of the gateways cannot be read now: %s", error)
                await watch.until(_WAIT_S)
                continue
            for block in blocks:
                self._cursor = block.end
                for body in block.bodies():
                    event = _decode(body)
                    try:
                        if event.origin == self.name:
                            self._came_around(event)
                        else:
                            self._hear(event)
                    except RingdoveError as error:
                        _log.warning("What another gateway says cannot be done here: %s", error)
            if not blocks:
                await watch.until(_WAIT_S)

    def _came_around(self, event: _Event) -> None:
        if event.kind == "connected":
            left = self._announced.pop(event.text, 0) - 1
            if left > 0:
                self._announced[event.text] = left

    def _hear(self, event: _Event) -> None:
        match event.kind:
            case "connected":
                if event.text not in self._announced:
                    self.on_connected(event.text)
            case "session":
                self.on_session(event.text)
            case "retained":
                self.on_retained(decode_message(event.body))
            case "publish":
                self.on_publish(decode_message(event.body), event.stored)
            case "share":
                owner, _, pattern = event.text.partition(" ")
                if owner == self.name:
                    self.on_share(decode_message(event.body), pattern)
            case "interest":
                self._elsewhere.add(_filter(event.text), (event.origin, event.text))
            case "no-interest":
                self._elsewhere.remove(_filter(event.text), (event.origin, event.text))
            case "hello":
                for pattern in self._own:
                    self._tell("interest", pattern)


def _filter(pattern: str) -> str:
    parsed = parse_filter(pattern)
    return pattern if parsed is None else parsed.pattern


def _ignore(*_: object) -> None:
    return


def _ended(_: object, error: BaseException | None) -> None:
    if error is not None and not isinstance(error, asyncio.CancelledError):
        _log.error("The bus of the gateways does not work.", exc_info=error)
