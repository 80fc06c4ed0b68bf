"""From a publisher to the queue and to the subscribers.

A message goes, in the turn in which it came, to the queue of its topic, to the stripes of lasting
sessions that want it, and to the retained messages. When the turn is over it is acknowledged; only
then do subscribers see it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ringdove.errors import (
    InvalidArgument,
    LimitExceeded,
    MessageTooLarge,
    NotAuthorized,
    QueueFull,
    RingdoveError,
    StoreFull,
)
from ringdove.frontends.mqtt.message import Message, attributes_of, encode_message
from ringdove.frontends.mqtt.retained import RETAINED_PREFIX
from ringdove.frontends.mqtt.session import record_name
from ringdove.protocol.mqtt.packets import V5, Publish, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from ringdove.frontends.mqtt.connection import Connection
    from ringdove.frontends.mqtt.delivery import Deliveries
    from ringdove.frontends.mqtt.peers import Peers
    from ringdove.frontends.mqtt.retained import Retained
    from ringdove.frontends.mqtt.routes import Route, Routes, Target
    from ringdove.frontends.mqtt.session import Session
    from ringdove.frontends.mqtt.turn import Turn, Turns

#: Why a message was refused, as far as MQTT has words for it.
_REASONS: dict[type[RingdoveError], Reason] = {
    QueueFull: Reason.QUOTA_EXCEEDED,
    StoreFull: Reason.QUOTA_EXCEEDED,
    LimitExceeded: Reason.QUOTA_EXCEEDED,
    MessageTooLarge: Reason.QUOTA_EXCEEDED,
    NotAuthorized: Reason.NOT_AUTHORIZED,
    InvalidArgument: Reason.IMPLEMENTATION_SPECIFIC,
}

#: Topics that are the server's own.
SYSTEM = "$SYS/"


#: A message until its turn is over: who published it, None when the server did itself; his session,
#: which the connection may have lost by the end of the turn; the packet;
#: what subscribers get, and who they are, if there are any; the mark by which its turn knows
#: whether it was stored; and what the server wants to be called then.
Post = tuple[
    "Connection | None",
    "Session | None",
    "Publish",
    "Message | None",
    "Iterable[Target]",
    int,
    "Callable[[RingdoveError | None], None] | None",
]


class Publisher:
    """See the module."""

    def __init__(
        self,
        turns: Turns,
        routes: Routes,
        retained: Retained,
        deliveries: Deliveries,
        peers: Peers,
    ) -> None:
        self._turns = turns
        self._routes = routes
        self._retained = retained
        self._deliveries = deliveries
        self._peers = peers
        peers.on_publish = self._heard
        peers.on_share = self._heard_share

    def publish(self, connection: Connection, packet: Publish) -> None:
        """A client publishes."""
        session = connection.session
        assert session is not None
        turn = self._turn()
        mark = turn.mark()
        message: Message | None = None
        targets: Iterable[Target] = ()
        try:
            if connection.identity is not None and not connection.identity.may_send(packet.topic):
                raise NotAuthorized("This topic is not for you.")
            if packet.qos == 2 and session.lasting:
                if not _came_before(turn, mark, session, packet.packet_id):
                    message_id = session.begin_storing(packet.packet_id, turn, mark)
                    turn.flights.add(session)
                    message, targets = self._store(turn, mark, session, packet, message_id)
            else:
                message, targets = self._store(turn, mark, session, packet, None)
        except RingdoveError as error:
            turn.refused[mark] = error
        turn.posts.append((connection, session, packet, message, targets, mark, None))

    def _store(
        self, turn: Turn, mark: int, session: Session, packet: Publish, message_id: bytes | None
    ) -> tuple[Message | None, Iterable[Target]]:
        route = self._routes.find(packet.topic)
        if not packet.retain and not route.wanted and not self._peers.listening:
            self._put(turn, mark, route, packet, message_id)
            return None, ()
        message = Message.of(packet, self._deliveries.now_ms())
        # Before anything is stored: what is refused must not be.
        record = self._retained.admit(message) if packet.retain else None
        self._put(turn, mark, route, packet, message_id)
        targets = self._address(turn, mark, route, message, message_id, session)
        if record is not None:
            self._retain(turn, mark, message, record)
        return message, targets

    def publish_message(
        self,
        message: Message,
        then: Callable[[RingdoveError | None], None] | None = None,
        *,
        stored: bool = True,
    ) -> None:
        """The server publishes; `then` is called when it is stored. Not `stored`: in no queue."""
        turn = self._turn()
        packet = Publish(message.topic, message.payload, message.qos, 0, message.retain)
        packet.properties = message.properties
        route = self._routes.find(message.topic)
        mark = turn.mark()
        targets: Iterable[Target] = ()
        try:
            own = not stored and message.topic.startswith(SYSTEM)
            record = self._retained.admit(message) if message.retain and not own else None
            if stored:
                self._put(turn, mark, route, packet, None)
            targets = self._address(turn, mark, route, message, None, None)
            if record is not None:
                self._retain(turn, mark, message, record)
            elif message.retain:
                self._retained.keep(message, 0)
        except RingdoveError as error:
            turn.refused[mark] = error
        turn.posts.append((None, None, packet, message, targets, mark, then))

    def _turn(self) -> Turn:
        turn = self._turns.now
        if not turn.posts:
            turn.then.append(partial(self._stored, turn))
        return turn

    def _put(
        self, turn: Turn, mark: int, route: Route, packet: Publish, message_id: bytes | None
    ) -> None:
        if route.queue is None:
            return
        attributes = route.attributes
        if packet.properties is not None:
            attributes = attributes_of(route.topic, packet.properties)
        turn.put(mark, route.queue, packet.payload, route.key, attributes, message_id)

    def _address(
        self,
        turn: Turn,
        mark: int,
        route: Route,
        message: Message,
        message_id: bytes | None,
        publisher: Session | None,
    ) -> Iterable[Target]:
        """Give copies to lasting sessions; who gets one later."""
        targets = [
            one for one in route.chosen() if one.session is not publisher or not one.no_local
        ]
        for target in targets:
            session = target.session
            if _in_stripe(message, target):
                turn.append(session, encode_message(shaped(message, target)), message_id, mark)
        return targets

    def _retain(self, turn: Turn, mark: int, message: Message, record: bytes) -> None:
        """Keep a message for later subscribers; those who come before it is stored have it too."""
        before = self._retained.keep(message, len(record))
        turn.kept[mark] = (message, before)
        if (record or before is not None) and not message.topic.startswith(SYSTEM):
            key = RETAINED_PREFIX + record_name(message.topic)
            turn.retain(key, record, message.expires_ms, mark)

    # -- afterwards -----------------------------------------------------------------------------

    def _stored(self, turn: Turn, _: RingdoveError | None) -> None:
        deliveries = self._deliveries
        for mark, (kept, before) in reversed(turn.kept.items()):
            if turn.error_of(mark) is not None:
                self._retained.undo(kept, before)
        for connection, session, packet, message, targets, mark, then in turn.posts:
            error = turn.error_of(mark)
            if connection is not None:
                if packet.qos == 2 and session is not None:
                    self._note(turn, mark, connection, session, packet.packet_id, error)
                self._answer(connection, packet, error)
            elif then is not None:
                then(error)
            if message is not None and error is None:
                for target in targets:
                    deliveries.deliver(target.session, message, target)
                if mark in turn.kept and not message.topic.startswith(SYSTEM):
                    self._peers.retained(message)
                if self._peers.listening:
                    stored = [one.session.client_id for one in targets if _in_stripe(message, one)]
                    served = self._routes.find(message.topic).shared
                    self._peers.publish(message, served, stored)
        deliveries.flush()

    def _heard(self, message: Message, stored: Container[str]) -> None:
        """Something was published elsewhere: give it to those whose stripe does not have it."""
        for target in self._routes.find(message.topic).targets:
            if target.session.client_id not in stored:
                self._deliver_heard(message, target)
        self._deliveries.flush()

    def _heard_share(self, message: Message, pattern: str) -> None:
        route = self._routes.find(message.topic)
        if pattern in route.shared:
            self._deliver_heard(message, route.member(pattern))
            self._deliveries.flush()

    def _deliver_heard(self, message: Message, target: Target) -> None:
        session = target.session
        if not _in_stripe(message, target):
            self._deliveries.deliver(session, message, target)
        elif session.connection is not None:
            # The other server did not know of this session, or of its subscription, yet.
            turn = self._turns.now
            turn.append(session, encode_message(shaped(message, target)), None)
            turn.then.append(lambda _: self._deliveries.refill(session))

    def _note(
        self,
        turn: Turn,
        mark: int,
        connection: Connection,
        session: Session,
        packet_id: int,
        error: RingdoveError | None,
    ) -> None:
        """Note what became of a message of QoS 2."""
        if session.storing.get(packet_id) == (turn, mark):
            session.end_storing(packet_id, stored=error is None)
            self._turns.now.flights.add(session)
        if error is not None and connection.open and connection.machine.version == V5:
            # It is told, so the identifier may stand for another message, which must not be taken
            # for this one: that may be stored in spite of its error.
            session.release(packet_id)
            self._turns.now.flights.add(session)

    def _answer(self, connection: Connection, packet: Publish, error: RingdoveError | None) -> None:
        if error is None:
            connection.stored(packet, 0)
        else:
            reason = _REASONS.get(type(error), Reason.UNSPECIFIED_ERROR)
            if packet.qos and connection.machine.version != V5:
                # Version 3.1.1 cannot say no; without an answer the client will try again.
                connection.end(reason, str(error))
                return
            connection.stored(packet, reason)
        self._deliveries.dirty.add(connection)


def _came_before(turn: Turn, mark: int, session: Session, packet_id: int) -> bool:
    """Whether a message came over a connection that broke: it is answered as that one is."""
    first = session.storing.get(packet_id)
    if first is not None:
        turn.repeats[mark] = first
    return first is not None or packet_id in session.flight.incoming


def _in_stripe(message: Message, target: Target) -> bool:
    """Whether a session gets a message through its stripe."""
    return bool(message.qos and target.qos and target.session.stripe is not None)


def shaped(message: Message, target: Target) -> Message:
    """The message as one session gets it."""
    return Message(
        message.topic,
        message.payload,
        min(message.qos, target.qos),
        message.retain and target.retain_as_published,
        message.expires_ms,
        message.properties,
        target.ids,
    )
