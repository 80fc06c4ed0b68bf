"""From the gateway to the subscribers.

Messages of a session with a stripe are read from it, as far as the client has room, whenever
something may have come: no more is in memory than is on its way. Messages of QoS 0, and all of a
session that ends with its connection, go straight from the publisher; those for which there is no
room wait in a bounded backlog.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import OffsetTrimmed, QueueNotFound, RingdoveError
from ringdove.frontends.mqtt.message import decode_message
from ringdove.frontends.mqtt.publishing import shaped
from ringdove.protocol.mqtt.packets import Reason

if TYPE_CHECKING:
    from ringdove.core.block import Block
    from ringdove.frontends.mqtt.connection import Connection
    from ringdove.frontends.mqtt.message import Message
    from ringdove.frontends.mqtt.routes import Target
    from ringdove.frontends.mqtt.session import Session
    from ringdove.frontends.mqtt.turn import Turns
    from ringdove.pending import Runner
    from ringdove.stores.base import Store

_log = logging.getLogger(__name__)

#: Seconds after which one looks for messages even if none was heard of.
_WATCH_S = 30.0


class Deliveries:
    """See the module."""

    def __init__(self, store: Store, runner: Runner, turns: Turns, *, shared: bool) -> None:
        self._store = store
        #: Whether others may fill a session's stripe, too.
        self._shared = shared
        self._runner = runner
        self._turns = turns
        self.now_ms = store.clock.now_ms
        #: Connections that have something to write.
        self.dirty: set[Connection] = set()
        #: Messages that found no room.
        self.dropped = 0

    def flush(self) -> None:
        """Write what has gathered, one write for each connection."""
        dirty, self.dirty = self.dirty, set()
        for connection in dirty:
            connection.flush()

    # -- messages that are not stored for the session -------------------------------------------

    def deliver(self, session: Session, message: Message, target: Target) -> None:
        """A message has come for a session."""
        qos = min(message.qos, target.qos)
        if qos and session.stripe is not None:
            self.refill(session)
            return
        connection = session.connection
        if connection is not None and connection.open:
            self.offer(session, connection, shaped(message, target))

    def offer(self, session: Session, connection: Connection, message: Message) -> None:
        """Send a message that waits nowhere else, or keep it until there is room."""
        if not message.qos:
            if connection.writable:
                connection.send(message, 0, self.now_ms())
            else:
                self.dropped += 1
        elif connection.room > 0 and not session.backlog:
            packet_id = session.next_id(connection.machine.in_use)
            connection.send(message, packet_id, self.now_ms())
        else:
            self._postpone(session, connection, message)

    def _postpone(self, session: Session, connection: Connection, message: Message) -> None:
        if session.backlog is None:
            session.backlog = deque()
        session.backlog_bytes += len(message.payload) + len(message.topic)
        if (
            len(session.backlog) >= limits.MQTT_BACKLOG_MAX
            or session.backlog_bytes > limits.MQTT_BACKLOG_BYTES_MAX
        ):
            connection.end(Reason.QUOTA_EXCEEDED, "Messages come faster than you take them.")
            return
        session.backlog.append(message)

    def _advance_backlog(self, session: Session, connection: Connection) -> None:
        backlog = session.backlog
        now_ms = self.now_ms()
        while backlog and connection.room > 0:
            message = backlog.popleft()
            session.backlog_bytes -= len(message.payload) + len(message.topic)
            if not message.expired(now_ms):
                packet_id = session.next_id(connection.machine.in_use)
                connection.send(message, packet_id, now_ms)

    # -- messages of a stripe -------------------------------------------------------------------

    def resume(self, session: Session, connection: Connection) -> None:
        """A client is back: repeat what it has not completed, then go on."""
        self.pause(session)
        session.rewind()
        for offset in sorted(session.flight.released):
            packet_id = session.packet_id_of(offset)
            session.under_way[packet_id] = offset
            connection.machine.release(packet_id)
        self.dirty.add(connection)
        self.refill(session)

    def refill(self, session: Session) -> None:
        """Send on, as far as there is room."""
        connection = session.connection
        if connection is None or not connection.machine.accepted or connection.room <= 0:
            return
        if session.backlog:
            self._advance_backlog(session, connection)
            self.dirty.add(connection)
        if session.stripe is None:
            return
        if session.pump is None or session.pump.over:
            session.pump = self._runner.spawn(self._pump(session), _pumped)
        else:
            session.again = True

    def pause(self, session: Session) -> None:
        """Read no more from the session's stripe."""
        if session.pump is not None:
            session.pump.cancel()
            session.pump = None

    async def _pump(self, session: Session) -> None:
        """Send what there is; on a fabric, wait for what others append, while there is room."""
        try:
            while session.stripe is not None:
                session.again = False
                watch = self._store.watch(session.stripe) if self._shared else None
                if await self._pump_once(session) or session.again:
                    continue
                connection = session.connection
                if watch is None or connection is None or connection.room <= 0:
                    return
                await watch.until(_WATCH_S)
        except QueueNotFound:
            return  # The session has ended.

    async def _pump_once(self, session: Session) -> bool:
        """Read and send once; whether there may be more and room for it."""
        connection, stripe = session.connection, session.stripe
        if connection is None or stripe is None or connection.room <= 0:
            return False
        at = session.cursor
        try:
            blocks = await self._store.read(stripe, at, connection.room, limits.MQTT_READ_BYTES_MAX)
        except OffsetTrimmed:
            head = (await self._store.stats(stripe)).head
            session.cursor = max(session.cursor, head)
            session.skip_to(head)
            return True
        if connection is not session.connection or at != session.cursor:
            return True  # Another connection has begun meanwhile.
        sent = [self._send_block(session, connection, block) for block in blocks]
        connection.flush()
        return any(sent) and all(sent)

    def _send_block(self, session: Session, connection: Connection, block: Block) -> bool:
        """Send what there is room for; whether that was all."""
        flight = session.flight
        now_ms = self.now_ms()
        if block.base > session.cursor:
            session.skip(session.cursor, block.base)  # What is missing before it was dropped.
            session.cursor = block.base
        first = session.cursor - block.base
        for offset, body in enumerate(block.bodies(first), session.cursor):
            if connection.room <= 0:
                return False
            packet_id = session.packet_id_of(offset)
            if connection.machine.in_use(packet_id):
                return False
            session.cursor = offset + 1
            if offset in flight.done or offset in flight.released:
                continue
            message = decode_message(body)
            again = offset < flight.sent
            session.under_way[packet_id] = offset
            if (message.expired(now_ms) and not again) or not connection.send(
                message, packet_id, now_ms, dup=again
            ):
                self._finish(session, packet_id)
            flight.sent = max(flight.sent, offset + 1)
        return True

    def acknowledged(self, session: Session, packet_id: int) -> None:
        """The client has a message of QoS 1."""
        self._finish(session, packet_id)
        self.refill(session)

    def received(self, connection: Connection, session: Session, packet_id: int) -> None:
        """The client has a message of QoS 2: tell it when that is remembered."""
        offset = session.under_way.get(packet_id)
        if offset is None or session.stripe is None:
            connection.machine.release(packet_id)
            return
        session.flight.released.add(offset)
        turn = self._turns.now
        turn.flights.add(session)
        turn.then.append(partial(self._remembered, connection, session, packet_id, offset))

    def _remembered(
        self,
        connection: Connection,
        session: Session,
        packet_id: int,
        offset: int,
        error: RingdoveError | None,
    ) -> None:
        if error is not None:
            connection.end(Reason.UNSPECIFIED_ERROR, str(error))
            return
        # Not before: a position behind the message must not be durable before the note of it is.
        self._finish_offset(session, offset)
        if connection.open:
            connection.machine.release(packet_id)
            connection.flush()

    def completed(self, session: Session, packet_id: int) -> None:
        """The client has forgotten the identifier of a message of QoS 2."""
        offset = session.under_way.pop(packet_id, None)
        if offset is not None:
            session.flight.released.discard(offset)
        self.refill(session)

    def _finish(self, session: Session, packet_id: int) -> None:
        offset = session.under_way.pop(packet_id, None)
        if offset is not None:
            self._finish_offset(session, offset)

    def _finish_offset(self, session: Session, offset: int) -> None:
        if session.finish(offset) and session.stripe is not None:
            # After a crash the position may be an older one: then QoS 1 comes again, and what is
            # noted of QoS 2 is in the flight's record.
            commit = self._store.commit(
                session.stripe, DEFAULT_SUBSCRIPTION, session.flight.floor, lazy=True
            )
            self._runner.spawn(commit, _pumped)


def _pumped(_: None, error: BaseException | None) -> None:
    if error is not None and not isinstance(error, QueueNotFound):
        _log.warning("Messages of a session could not be read or ended: %r", error)
