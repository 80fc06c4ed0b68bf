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
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import OffsetTrimmed, RingdoveError
from ringdove.frontends.mqtt.message import decode_message, encode_message
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

#: Events that wait while the bus cannot be written.
_UNSENT_MAX: Final = 10_000


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
        self._unsent: list[bytes] = []
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
        """Be dead for the others."""
        if self._reader is not None:
            self._reader.cancel()
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
            await self._send([_encode(_Event(self.name, "connected", client_id))])

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
        if not self._unsent:
            self._runner.loop.call_soon(self._flush)
        self._unsent.append(_encode(_Event(self.name, kind, text, body, stored or [])))

    def _flush(self) -> None:
        events, self._unsent = self._unsent, []
        if events:
            self._runner.spawn(self._send(events), _ended)

    async def _send(self, events: list[bytes]) -> None:
        block = Block.build(events, sent_ms=self._store.clock.now_ms())
        try:
            await self._store.append(_BUS, [Segment(block)], 0)
        except RingdoveError as error:
            _log.warning("Other gateways cannot be told now: %s", error)
            self._unsent[:0] = events[:_UNSENT_MAX]
            self._runner.loop.call_later(_WAIT_S, self._flush)

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
