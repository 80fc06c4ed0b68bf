"""What clients subscribe to: checked, remembered where the session lasts, then answered."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.errors import PacketRefused, RingdoveError
from ringdove.frontends.mqtt.message import encode_message
from ringdove.frontends.mqtt.publishing import shaped
from ringdove.frontends.mqtt.routes import Target
from ringdove.frontends.mqtt.session import Subscription
from ringdove.protocol.mqtt.packets import Filter, Reason
from ringdove.protocol.mqtt.properties import forbidden
from ringdove.protocol.mqtt.topics import LEVELS_MAX, SHARED, parse_filter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringdove.frontends.mqtt.connection import Connection
    from ringdove.frontends.mqtt.gateway import Gateway
    from ringdove.frontends.mqtt.session import Session
    from ringdove.protocol.mqtt.packets import Subscribe, Unsubscribe


class Subscriber:
    """See the module."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    # -- more -----------------------------------------------------------------------------------

    def subscribe(self, connection: Connection, session: Session, packet: Subscribe) -> None:
        """A client subscribes."""
        work = self._alone(session, partial(self._subscribe, connection, session, packet))
        self._gateway.runner.spawn(work, partial(_done, connection))

    async def _alone(self, session: Session, work: Callable[[], Awaitable[None]]) -> None:
        """Do something when those are done who came before, unless the session has ended."""
        async with self._gateway.sessions.alone(session):
            if self._gateway.sessions.get(session.client_id) is session:
                await work()

    async def _subscribe(self, connection: Connection, session: Session, packet: Subscribe) -> None:
        identifier = (packet.properties or {}).get("subscription_identifier", [0])[0]
        reasons: list[int] = []
        #: Filters that were granted, and whether they are new.
        granted: list[tuple[Filter, bool]] = []
        for one in packet.filters:
            reason = self._judge(connection, session, one)
            reasons.append(reason)
            if reason < 0x80:
                new = one.pattern not in session.subscriptions
                granted.append((one, new))
                session.subscriptions[one.pattern] = Subscription(
                    one.pattern, one.qos, one.no_local, one.retain_as_published, identifier
                )
        if session.lasting and granted:
            if any(one.qos for one, _ in granted):
                await self._gateway.sessions.give_stripe(session)
            await self._gateway.sessions.save(session)
        for one, new in granted:
            self._gateway.routes.add(session, session.subscriptions[one.pattern])
            if new:
                self._gateway.peers.subscribed(one.pattern)
        if not connection.open:
            return
        connection.machine.subscribed(packet.packet_id, reasons)
        for one, new in granted:
            if one.retain_handling == 0 or (one.retain_handling == 1 and new):
                self._send_retained(connection, session, session.subscriptions[one.pattern])
        self._gateway.deliveries.refill(session)
        connection.flush()

    def _judge(self, connection: Connection, session: Session, wanted: Filter) -> int:
        parsed = parse_filter(wanted.pattern)
        if parsed is None or wanted.pattern.count("/") >= LEVELS_MAX:
            return Reason.TOPIC_FILTER_INVALID
        if parsed.group and wanted.no_local:
            raise forbidden("A shared subscription cannot be without local messages.")
        identity = connection.identity
        if identity is not None and not identity.may_receive(parsed.pattern):
            return Reason.NOT_AUTHORIZED
        if (
            wanted.pattern not in session.subscriptions
            and len(session.subscriptions) >= limits.MQTT_SUBSCRIPTIONS_MAX
        ):
            return Reason.QUOTA_EXCEEDED
        return wanted.qos

    def _send_retained(
        self, connection: Connection, session: Session, subscription: Subscription
    ) -> None:
        """Give a new subscriber what is retained; a shared subscription gets nothing."""
        if subscription.pattern.startswith(SHARED):
            return
        deliveries, turns = self._gateway.deliveries, self._gateway.turns
        ids = [subscription.id] if subscription.id else []
        target = Target(session, subscription.qos, False, True, ids)  # noqa: FBT003
        stored = False
        for message in self._gateway.retained.find(subscription.pattern, deliveries.now_ms()):
            copy = shaped(message, target)
            if copy.qos and session.stripe is not None:
                turns.now.append(session, encode_message(copy), None)
                stored = True
            else:
                deliveries.offer(session, connection, copy)
        if stored:
            turns.now.then.append(lambda _: deliveries.refill(session))
        deliveries.flush()

    # -- fewer ----------------------------------------------------------------------------------

    def unsubscribe(self, connection: Connection, session: Session, packet: Unsubscribe) -> None:
        """A client subscribes no more."""
        work = self._alone(session, partial(self._unsubscribe, connection, session, packet))
        self._gateway.runner.spawn(work, partial(_done, connection))

    async def _unsubscribe(
        self, connection: Connection, session: Session, packet: Unsubscribe
    ) -> None:
        reasons: list[int] = []
        for pattern in packet.patterns:
            if parse_filter(pattern) is None:
                reasons.append(Reason.TOPIC_FILTER_INVALID)
            elif session.subscriptions.pop(pattern, None) is None:
                reasons.append(Reason.NO_SUBSCRIPTION_EXISTED)
            else:
                self._gateway.routes.remove(session, pattern)
                self._gateway.peers.unsubscribed(pattern)
                reasons.append(Reason.SUCCESS)
        if session.lasting:
            await self._gateway.sessions.save(session)
        connection.machine.unsubscribed(packet.packet_id, reasons)
        connection.flush()


def _done(connection: Connection, _: None, error: BaseException | None) -> None:
    if isinstance(error, PacketRefused):
        connection.end(error.reason, str(error))
    elif isinstance(error, RingdoveError):
        connection.end(Reason.UNSPECIFIED_ERROR, str(error))
    elif error is not None:
        raise error
