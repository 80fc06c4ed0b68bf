"""The sessions of all clients: found, begun, taken over, ended.

Every server knows all lasting sessions, connected or not, because what is published must be kept
for those that are not. `load` reads them from their records.
"""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ringdove import limits
from ringdove.errors import LimitExceeded, PacketRefused, RecordConflict
from ringdove.frontends.mqtt.session import (
    FLIGHT_PREFIX,
    NEVER_S,
    SESSION_PREFIX,
    STRIPE_SETTINGS,
    Flight,
    Session,
    decode_flight,
    decode_session,
    encode_record,
    record_name,
)
from ringdove.pending import Pending
from ringdove.protocol.mqtt.packets import V5, Reason
from ringdove.protocol.mqtt.topics import parse_filter
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ringdove.frontends.mqtt.access import Identity
    from ringdove.frontends.mqtt.connection import Connection
    from ringdove.frontends.mqtt.peers import Peers
    from ringdove.frontends.mqtt.routes import Routes
    from ringdove.frontends.mqtt.session import SessionRecord
    from ringdove.protocol.mqtt.packets import Connect
    from ringdove.stores.base import Record, Store

#: Records that one look at the store takes.
_PAGE: Final = 1_000

#: Sessions that one sweep ends.
_ENDED_PER_SWEEP_MAX: Final = 1_000


class Sessions:
    """See the module."""

    def __init__(self, store: Store, routes: Routes, peers: Peers) -> None:
        self._store = store
        self._routes = routes
        self._peers = peers
        self._known: dict[str, Session] = {}
        #: Clients whose session is being opened or ended.
        self._busy: dict[str, Pending[None]] = {}

    @property
    def count(self) -> int:
        """How many sessions there are, connected or not."""
        return len(self._known)

    def get(self, client_id: str) -> Session | None:
        """The session of a client."""
        return self._known.get(client_id)

    @asynccontextmanager
    async def alone(self, session: Session) -> AsyncIterator[None]:
        """Change a session and its record when those are done who came before."""
        before, mine = session.alone, Pending[None]()
        session.alone = mine
        try:
            if before is not None:
                await before
            yield
        finally:
            mine.resolve(None)

    async def load(self) -> None:
        """Read the lasting sessions. None of them has a connection here."""
        after = ""
        while records := await self._store.scan(SESSION_PREFIX, after, _PAGE):
            for record in records:
                await self._load(record)
            after = records[-1].key
        self.orphan()

    def orphan(self) -> None:
        """Sessions whose server has ended have no connection any more."""
        now_ms = self._store.clock.now_ms()
        for session in self._known.values():
            if session.connection is None and session.owner not in self._peers.alive:
                session.gone_ms = session.gone_ms or now_ms

    async def refresh(self, client_id: str) -> Session | None:
        """The session as its record says it is now, which another server may have written."""
        record = await self._store.get(SESSION_PREFIX + record_name(client_id))
        known = self._known.get(client_id)
        if record is None:
            if known is not None and known.version is not None and known.connection is None:
                self.drop(known)
            return None
        if known is not None and known.version == record.version:
            return known
        if known is not None and known.connection is not None:
            return known
        return await self._load(record)

    async def _load(self, record: Record) -> Session:
        stored = decode_session(record.value)
        found = await self._store.get(FLIGHT_PREFIX + record_name(stored.client_id))
        session = Session.load(stored, decode_flight(found.value) if found else Flight())
        session.version = record.version
        if session.stripe is not None:
            await self._open_stripe(session)
            for offset in session.flight.released:
                session.finish(offset)
        before = self._known.get(session.client_id)
        if before is not None:
            self.drop(before)
        self._known[session.client_id] = session
        for subscription in session.subscriptions.values():
            self._routes.add(session, subscription)
        return session

    def drop(self, session: Session) -> None:
        """Forget a session here, whatever is stored of it."""
        self.detach(session)
        for pattern in session.subscriptions:
            self._routes.remove(session, pattern)
        if self._known.get(session.client_id) is session:
            del self._known[session.client_id]

    def attach(self, session: Session) -> None:
        """Its client is connected here: other servers must know what it wants to see."""
        if not session.attached:
            session.attached = True
            for pattern in session.subscriptions:
                self._peers.subscribed(pattern)

    def detach(self, session: Session) -> None:
        """Its client is connected here no more."""
        if session.attached:
            session.attached = False
            for pattern in session.subscriptions:
                self._peers.unsubscribed(pattern)

    async def _open_stripe(self, session: Session) -> None:
        """See that the stripe is there, and how far the client has come in it."""
        stripe = session.stripe
        assert stripe is not None
        await self._store.create(stripe, STRIPE_SETTINGS, 1)
        [subscription] = (await self._store.stats(stripe)).subscriptions
        session.skip_to(subscription.floor)

    # -- beginning ------------------------------------------------------------------------------

    async def open(
        self, connection: Connection, packet: Connect, client_id: str, expiry_s: int
    ) -> tuple[Session, bool]:
        """The session of a client that connects, and whether it was there before."""
        while client_id in self._busy:
            await self._busy[client_id]
        self._busy[client_id] = done = Pending[None]()
        try:
            return await self._open(connection, packet, client_id, expiry_s)
        finally:
            del self._busy[client_id]
            done.resolve(None)

    async def _open(
        self, connection: Connection, packet: Connect, client_id: str, expiry_s: int
    ) -> tuple[Session, bool]:
        session = self._known.get(client_id)
        if self._peers.shared and (session is None or session.connection is None):
            session = await self.refresh(client_id) or self._known.get(client_id)
        if session is not None and session.connection is not None:
            before, session.connection = session.connection, None
            before.end(Reason.SESSION_TAKEN_OVER, "Another connection has begun.")
        if session is not None and (
            packet.clean_start
            or not session.lasting
            or session.expired(self._store.clock.now_ms())
            or not _may_resume(connection.identity, session)
        ):
            async with self.alone(session):
                await self._end(session)
            session = None
        present = session is not None
        if session is None:
            if len(self._known) >= limits.MQTT_SESSIONS_MAX:
                raise LimitExceeded(f"There are {len(self._known)} sessions, the most.")
            session = self._known[client_id] = Session(client_id, secrets.token_hex(8))
        async with self.alone(session):
            await self._begin(session, connection, expiry_s)
        return session, present

    async def _begin(self, session: Session, connection: Connection, expiry_s: int) -> None:
        """A connection has a session now, new or not."""
        identity = connection.identity
        if identity is not None:
            session.user = identity.name
            for pattern in _forbidden(identity, session):
                del session.subscriptions[pattern]
                self._routes.remove(session, pattern)
        was_lasting = session.lasting
        session.expiry_s = expiry_s
        session.gone_ms = 0
        session.owner = self._peers.name
        session.version = None
        session.connection = connection
        connection.session = session
        await self._peers.connected(session.client_id)
        if session.lasting or was_lasting:
            await self.save(session)

    async def save(self, session: Session) -> None:
        """Write the session's record, unless another server has it by now: RecordConflict."""
        await self._write(session, session.record())
        self._peers.session(session.client_id)

    async def _write(self, session: Session, record: SessionRecord) -> None:
        key = SESSION_PREFIX + record_name(session.client_id)
        expect = session.version if self._peers.shared else None
        session.version = (await self._store.put(key, encode_record(record), expect)).version

    async def give_stripe(self, session: Session) -> None:
        """See that a lasting session has a stripe for its messages; RecordConflict as `save`.

        Its record names the stripe before there is one, so that none is ever forgotten.
        """
        if session.stripe is not None or not session.lasting:
            return
        stripe = StripeId(secrets.randbits(62) | 1, 0, 0)
        record = session.record()
        record.stripe = stripe.queue
        await self._write(session, record)
        await self._store.create(stripe, STRIPE_SETTINGS, 1)
        session.stripe = session.stripe or stripe

    # -- ending ---------------------------------------------------------------------------------

    async def leave(self, session: Session, expiry_s: int | None) -> None:
        """The session's connection has ended; it stays for its expiry."""
        if expiry_s is not None:
            session.expiry_s = expiry_s
        session.gone_ms = self._store.clock.now_ms()
        if not session.lasting:
            await self._end_unless_opened(session)
            return
        async with self.alone(session):
            if self._known.get(session.client_id) is not session:
                return  # It was ended meanwhile.
            try:
                await self.save(session)
            except RecordConflict:
                return  # Another server has taken it over.
            key = FLIGHT_PREFIX + record_name(session.client_id)
            await self._store.put(key, encode_record(session.flight))

    async def _end_unless_opened(self, session: Session) -> None:
        """End a session, before its client begins another one; unless it is being opened."""
        if session.client_id in self._busy:
            return
        self._busy[session.client_id] = done = Pending[None]()
        try:
            async with self.alone(session):
                await self._end(session)
        finally:
            del self._busy[session.client_id]
            done.resolve(None)

    async def _end(self, session: Session) -> None:
        """Forget a session and everything that waits for it."""
        self.drop(session)
        session.subscriptions = {}
        name = record_name(session.client_id)
        if session.stripe is not None:
            stripe, session.stripe = session.stripe, None
            await self._store.delete(stripe)
        if session.version is not None:
            await self._store.remove(FLIGHT_PREFIX + name)
            await self._store.remove(SESSION_PREFIX + name)
            self._peers.session(session.client_id)

    def expired(self) -> list[Session]:
        """Sessions whose time is over, some at a time."""
        now_ms = self._store.clock.now_ms()
        found = []
        for session in self._known.values():
            if session.expired(now_ms) and session.client_id not in self._busy:
                found.append(session)
                if len(found) == _ENDED_PER_SWEEP_MAX:
                    break
        return found

    async def expire(self, session: Session) -> None:
        """End a session whose time is over, unless its client has just come back."""
        if session.expired(self._store.clock.now_ms()):
            await self._end_unless_opened(session)


def _may_resume(identity: Identity | None, session: Session) -> bool:
    """Whether somebody may go on with a session, and have what waits for it."""
    if identity is None or identity.name == session.user:
        return True
    return not session.user and not _forbidden(identity, session)


def _forbidden(identity: Identity, session: Session) -> list[str]:
    """The filters of a session that somebody may not subscribe to, or not any more."""
    parsed = {pattern: parse_filter(pattern) for pattern in session.subscriptions}
    return [
        pattern
        for pattern, found in parsed.items()
        if found is None or not identity.may_receive(found.pattern)
    ]


def wanted_expiry_s(packet: Connect, expiry_s_max: int) -> int:
    """How long a client's session shall outlive its connection."""
    if packet.version == V5:
        expiry_s: int = (packet.properties or {}).get("session_expiry_interval", 0)
    else:
        expiry_s = 0 if packet.clean_start else NEVER_S
    return min(expiry_s, expiry_s_max)


def wanted_client_id(packet: Connect) -> str:
    """The client's identifier, or one of our own where it left that to us."""
    if packet.client_id:
        if len(packet.client_id.encode()) > limits.MQTT_CLIENT_ID_BYTES_MAX:
            raise PacketRefused(
                f"A client identifier has at most {limits.MQTT_CLIENT_ID_BYTES_MAX} bytes.",
                Reason.CLIENT_ID_INVALID,
            )
        return packet.client_id
    if packet.version != V5 and not packet.clean_start:
        raise PacketRefused(
            "A session that stays needs a client identifier.", Reason.CLIENT_ID_INVALID
        )
    return f"auto-{secrets.token_hex(8)}"
