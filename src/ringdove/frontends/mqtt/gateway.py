"""The MQTT gateway of a server: listens, lets clients in, and brings the parts together.

    connection -> publishing -> turn -> store          from devices into queues
    store -> delivery -> connection                    from queues and publishers to devices

docs/mqtt.md tells what it promises; docs/adr/0014 why it keeps its state as it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove import limits
from ringdove.errors import LimitExceeded, PacketRefused, RingdoveError, StoreUnavailable
from ringdove.frontends.exchange import is_local
from ringdove.frontends.mqtt.access import Doorman, Permissions
from ringdove.frontends.mqtt.connection import Connection
from ringdove.frontends.mqtt.delivery import Deliveries
from ringdove.frontends.mqtt.downlink import Downlinks
from ringdove.frontends.mqtt.message import Message
from ringdove.frontends.mqtt.peers import SIGN_S, Peers
from ringdove.frontends.mqtt.publishing import Publisher
from ringdove.frontends.mqtt.retained import Retained
from ringdove.frontends.mqtt.routes import Routes
from ringdove.frontends.mqtt.session import NEVER_S
from ringdove.frontends.mqtt.sessions import Sessions, wanted_client_id, wanted_expiry_s
from ringdove.frontends.mqtt.statistics import Statistics
from ringdove.frontends.mqtt.subscribing import Subscriber
from ringdove.frontends.mqtt.turn import Turns
from ringdove.frontends.mqtt.websocket import WebSocket
from ringdove.frontends.mqtt.wills import Wills
from ringdove.pending import Runner
from ringdove.protocol.mqtt.packets import Reason
from ringdove.protocol.mqtt.rules import Rules
from ringdove.protocol.mqtt.session import TOPIC_ALIAS_MAX

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from ringdove.controllers.broker import Broker
    from ringdove.frontends.mqtt.access import Identity
    from ringdove.frontends.mqtt.session import Session
    from ringdove.protocol.mqtt.packets import Connect, Properties, Publish
    from ringdove.protocol.mqtt.session import Ended

_log = logging.getLogger(__name__)

_BACKLOG = 4096

#: Seconds between two looks at the clock for keep-alives, wills and sessions.
_SWEEP_S = 0.5

#: Seconds after which it is looked at again whether somebody may still be connected.
_CHECK_S = 30

#: Seconds between two tellings of $SYS.
_SYSTEM_S = 10


class GatewayConfig(msgspec.Struct, frozen=True):
    """What a gateway may be told."""

    rules: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    token: str | None = None
    #: The longest keep-alive time that clients may choose; 0 for any.
    keep_alive_s_max: int = 0
    #: The longest time that a session may outlive its connection; 0 for any.
    session_s_max: int = 0


class Gateway:
    """See the module."""

    def __init__(
        self, broker: Broker, loop: asyncio.AbstractEventLoop, config: GatewayConfig
    ) -> None:
        self.loop = loop
        self.runner = Runner(loop)
        self.config = config
        self.statistics = Statistics()
        self.connections: set[Connection] = set()
        rules = Rules(config.rules)
        store = broker.store
        self.peers = Peers(store, self.runner, secrets.token_hex(8))
        self._doorman = Doorman(broker, config.token, Permissions(config.permissions), rules)
        self.turns = Turns(broker, self.runner)
        self.routes = Routes(rules)
        self.retained = Retained()
        self.deliveries = Deliveries(store, self.runner, self.turns, shared=self.peers.shared)
        self.publisher = Publisher(
            self.turns, self.routes, self.retained, self.deliveries, self.peers
        )
        self.sessions = Sessions(store, self.routes, self.peers)
        self.wills = Wills(store, self.runner, self.publisher, self.peers)
        self.peers.on_retained = self._retained_elsewhere
        self.peers.on_session = lambda client_id: self._note(self.sessions.refresh(client_id))
        self.peers.on_connected = self._connected_elsewhere
        self.subscriber = Subscriber(self)
        self.downlinks = Downlinks(broker, self.runner, self.routes, self.publisher)
        self._rules = rules
        self._store = store
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = False
        #: Sessions whose end is being noted; set when there are none, and no connections.
        self._leaving = 0
        self._quiet = asyncio.Event()
        self._began_s = loop.time()
        self._told_s = self._signed_s = self._checked_s = float("-inf")

    # -- beginning and end ----------------------------------------------------------------------

    async def open(self) -> None:
        """Read what was remembered."""
        await self.peers.open()
        await self.sessions.load()
        await self.retained.load(self._store)
        await self.wills.load()
        self.downlinks.open(self._rules.downlinks)
        self._sweep()

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, *, websocket: bool = False
    ) -> int:
        """Listen on an address; answers the port, which is a free one for 0."""

        def make() -> asyncio.Protocol:
            connection = Connection(self)
            return WebSocket(connection, local=is_local(host)) if websocket else connection

        listener = await self.loop.create_server(make, host, port, ssl=tls, backlog=_BACKLOG)
        self._listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Answer what has come, then say goodbye to every client."""
        self._closing = True
        for listener in self._listeners:
            listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.downlinks.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limits.DRAIN_S_MAX):
                await self.turns.settled()
                for connection in list(self.connections):
                    connection.end(Reason.SERVER_SHUTTING_DOWN, "The server is closing.")
                while self.connections or self._leaving:
                    self._quiet.clear()
                    await self._quiet.wait()
                await self.turns.settled()
            await self.peers.close()
        for connection in list(self.connections):
            connection.abort()

    def connected(self, connection: Connection) -> None:
        """Somebody has connected."""
        self.connections.add(connection)
        if len(self.connections) > limits.CONNECTIONS_MAX or self._closing:
            self.statistics.refused += 1
            connection.abort()

    # -- letting in -----------------------------------------------------------------------------

    def connect(self, connection: Connection, packet: Connect) -> None:
        """A client wants to be let in."""

        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._refuse(connection, error)

        self.runner.spawn(self._connect(connection, packet), done)

    async def _connect(self, connection: Connection, packet: Connect) -> None:
        client_id = wanted_client_id(packet)
        if connection.foreign and await self._doorman.is_open():
            raise PacketRefused(
                "Without a token or accounts, pages of other sites are not let in.",
                Reason.NOT_AUTHORIZED,
            )
        connection.identity = await self._doorman.identify(
            packet, client_id, connection.certificate()
        )
        will = packet.will
        identity = connection.identity
        connection.unasked = self._doorman.is_unasked(identity)
        if identity is not None:
            identity.checked_s = self.loop.time()
        if will is not None and identity is not None and not identity.may_send(will.topic):
            raise PacketRefused("The will's topic is not for you.", Reason.NOT_AUTHORIZED)
        expiry_s = wanted_expiry_s(packet, self.config.session_s_max or NEVER_S)
        session, present = await self.sessions.open(connection, packet, client_id, expiry_s)
        if not present:
            self.wills.hurry(client_id)  # Of the session that was ended for this one.
        await self.wills.begin(client_id, will)
        if session.connection is not connection or not connection.open:
            return  # It has gone meanwhile, or was taken over.
        machine = connection.machine
        machine.window = min(machine.window, limits.MQTT_WINDOW_MAX)
        machine.remember(session.flight.incoming)
        connection.keep_alive_s = self._keep_alive_s(packet)
        properties = self._welcome(packet, client_id, expiry_s)
        machine.accept(session_present=present, properties=properties)
        self.sessions.attach(session)
        connection.let_in()
        self.deliveries.resume(session, connection)
        self.deliveries.flush()

    def _keep_alive_s(self, packet: Connect) -> int:
        longest_s = self.config.keep_alive_s_max
        if longest_s and not 0 < packet.keep_alive_s <= longest_s:
            return longest_s
        return packet.keep_alive_s

    def _welcome(self, packet: Connect, client_id: str, expiry_s: int) -> Properties:
        """What a client of version 5 is told of this server."""
        properties: Properties = {
            "receive_maximum": limits.MQTT_RECEIVE_MAXIMUM,
            "maximum_packet_size": limits.MQTT_PACKET_BYTES_MAX,
            "topic_alias_maximum": TOPIC_ALIAS_MAX,
        }
        if client_id != packet.client_id:
            properties["assigned_client_identifier"] = client_id
        keep_alive_s = self._keep_alive_s(packet)
        if keep_alive_s != packet.keep_alive_s:
            properties["server_keep_alive"] = keep_alive_s
        if expiry_s != (packet.properties or {}).get("session_expiry_interval", 0):
            properties["session_expiry_interval"] = expiry_s
        return properties

    def _refuse(self, connection: Connection, error: BaseException) -> None:
        self.statistics.refused += 1
        if isinstance(error, PacketRefused):
            connection.end(error.reason, str(error))
        elif isinstance(error, LimitExceeded):
            connection.end(Reason.QUOTA_EXCEEDED, str(error))
        elif isinstance(error, StoreUnavailable):
            connection.end(Reason.SERVER_UNAVAILABLE, str(error))
        else:
            if not isinstance(error, RingdoveError):
                _log.error("A client could not be let in.", exc_info=error)
            connection.end(Reason.UNSPECIFIED_ERROR, str(error))

    # -- what clients do ------------------------------------------------------------------------

    def publish(self, connection: Connection, packet: Publish) -> None:
        """A client publishes."""
        self.statistics.messages_in += 1
        self.publisher.publish(connection, packet)

    def released(self, connection: Connection, session: Session, packet_id: int) -> None:
        """A client releases an identifier of QoS 2: tell it when that is remembered."""
        if not session.lasting:
            connection.machine.complete(packet_id)
            return
        session.release(packet_id)

        def remembered(error: RingdoveError | None) -> None:
            if error is not None:
                connection.end(Reason.UNSPECIFIED_ERROR, str(error))
            elif connection.open:
                connection.machine.complete(packet_id)
                connection.flush()

        turn = self.turns.now
        turn.flights.add(session)
        turn.then.append(remembered)

    def ended(self, connection: Connection, event: Ended) -> None:
        """A connection ends in good order, or is ended."""
        self._leave(connection, goodbye=event.goodbye, expiry_s=event.session_expiry_s)

    def disconnected(self, connection: Connection) -> None:
        """A connection is over."""
        self.connections.discard(connection)
        self.deliveries.dirty.discard(connection)
        self._leave(connection, goodbye=False, expiry_s=None)
        self._quiet.set()

    def _leave(self, connection: Connection, *, goodbye: bool, expiry_s: int | None) -> None:
        session, connection.session = connection.session, None
        if session is None:
            return
        if goodbye:
            self._note(self.wills.void(session.client_id))
        elif not self._closing:
            self.wills.lost(session)
        if session.connection is connection:
            session.connection = None
            self.deliveries.pause(session)
            self.sessions.detach(session)
            self._note(self.sessions.leave(session, expiry_s))

    def _retained_elsewhere(self, message: Message) -> None:
        """Another server has a message retained, or none any more."""
        self.retained.keep(message, len(message.topic) + len(message.payload))

    def _connected_elsewhere(self, client_id: str) -> None:
        """A client of this server has connected to another one, which has its session now."""
        session = self.sessions.get(client_id)
        if session is not None and session.connection is not None:
            connection, session.connection = session.connection, None
            self.wills.forget(client_id)
            self.deliveries.pause(session)
            self.sessions.drop(session)
            connection.end(Reason.SESSION_TAKEN_OVER, "Another connection has begun.")
            self._note(self.sessions.refresh(client_id))

    async def _sign(self) -> None:
        """Show that this server lives; take over what those who do not have left."""
        await self.peers.sign()
        self.sessions.orphan()
        await self.wills.load()

    async def _check_again(self, connection: Connection, identity: Identity) -> None:
        """Let somebody go whose key, password or account does not count any more."""
        if connection.session is not None and not await self._doorman.is_still(identity):
            connection.end(Reason.NOT_AUTHORIZED, "The key, the password or the account is gone.")

    async def _check_unasked(self) -> None:
        """Let those go who came in because everybody might, if that is over."""
        if not await self._doorman.is_open():
            for connection in list(self.connections):
                if connection.unasked and connection.session is not None:
                    connection.end(Reason.NOT_AUTHORIZED, "The server asks who you are now.")

    def _note(self, work: Coroutine[Any, Any, object]) -> None:
        """Have the end of a session or will noted, or an account looked at."""

        def noted(_: object, error: BaseException | None) -> None:
            self._leaving -= 1
            self._quiet.set()
            if error is not None:
                _log.warning("A session could not be noted, or an account not read: %r", error)

        self._leaving += 1
        self.runner.spawn(work, noted)

    # -- time -----------------------------------------------------------------------------------

    def _sweep(self) -> None:
        now_s = self.loop.time()
        for connection in list(self.connections):
            connection.expire(now_s)
            identity = connection.identity
            if identity is not None and now_s - identity.checked_s >= _CHECK_S:
                identity.checked_s = now_s
                self._note(self._check_again(connection, identity))
        if now_s - self._checked_s >= _CHECK_S:
            self._checked_s = now_s
            self._note(self._check_unasked())
        for session in self.sessions.expired():
            self.wills.hurry(session.client_id)
            self._note(self.sessions.expire(session))
        self.wills.sweep()
        self.retained.sweep(self.deliveries.now_ms())
        if self.peers.shared and now_s - self._signed_s >= SIGN_S:
            self._signed_s = now_s
            self._note(self._sign())
        if now_s - self._told_s >= _SYSTEM_S:
            self._told_s = now_s
            self._tell()
        self._sweeper = self.loop.call_later(_SWEEP_S, self._sweep)

    def _tell(self) -> None:
        """Publish $SYS."""
        statistics = self.statistics
        statistics.connections = len(self.connections)
        statistics.sessions = self.sessions.count
        statistics.subscriptions = self.routes.subscriptions
        statistics.retained = self.retained.count
        uptime_s = int(self.loop.time() - self._began_s)
        for topic, value in statistics.topics(uptime_s, self.deliveries.dropped).items():
            message = Message(topic, value.encode(), retain=True)
            self.publisher.publish_message(message, stored=False)
