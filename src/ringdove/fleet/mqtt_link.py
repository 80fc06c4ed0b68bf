"""A device's MQTT connection: version 5, QoS 1, one message on its way at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ringdove.errors import ClientError, InvalidArgument
from ringdove.fleet.device import Busy
from ringdove.fleet.tcp_link import TcpLink
from ringdove.protocol.mqtt.codec import Decoder, encode
from ringdove.protocol.mqtt.packets import V5, ConnAck, Connect, PubAck, Publish, Reason
from ringdove.protocol.mqtt.rules import queue_of, topic_of

if TYPE_CHECKING:
    from ringdove.fleet.device import Device
    from ringdove.fleet.plan import Plan
    from ringdove.protocol.mqtt.packets import Packet

_REFUSED = 0x80

#: Refusals after which the same message may be taken later.
_LATER = {
    Reason.SERVER_UNAVAILABLE, Reason.SERVER_BUSY, Reason.QUOTA_EXCEEDED,
    Reason.CONNECTION_RATE_EXCEEDED, Reason.MESSAGE_RATE_TOO_HIGH, Reason.SERVER_SHUTTING_DOWN,
}  # fmt: skip


class MqttLink(TcpLink["ConnAck | PubAck"]):
    """See the module."""

    def __init__(self, plan: Plan, device: Device) -> None:
        super().__init__(plan.address)
        topic = plan.topic or _topic_for(plan.queue)
        self._topic = topic.replace("{queue}", plan.queue).replace("{device}", device.name)
        user, _, password = (plan.token or "").rpartition(":")
        self._hello = Connect(
            device.name,
            V5,
            keep_alive_s=min(65_535, 60 + math.ceil(2 * plan.period_s)),
            username=user or (device.name if plan.token else None),
            password=password.encode() if plan.token else None,
        )
        self._id = 0
        self._decoder = Decoder(V5)

    async def open(self) -> None:
        """See Link."""
        self._decoder = Decoder(V5)
        await super().open()
        self._judge(await self._ask(self._hello))

    async def send(self, body: bytes) -> None:
        """See Link."""
        self._id = self._id % 65_535 + 1
        self._judge(await self._ask(Publish(self._topic, body, 1, self._id)))

    async def _ask(self, packet: Packet) -> ConnAck | PubAck:
        return await self.ask(encode(packet, V5))

    def _judge(self, answer: ConnAck | PubAck) -> None:
        if answer.reason in _LATER:
            raise Busy(1)
        if answer.reason >= _REFUSED:
            told = (answer.properties or {}).get("reason_string", "")
            raise ClientError(f"The server answers {answer.reason:#04x}. {told}".strip())

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        for packet in self._decoder.feed(data):
            if isinstance(packet, ConnAck) or (
                isinstance(packet, PubAck) and packet.packet_id == self._id
            ):
                self.answered(packet)
        if self._decoder.failure is not None:
            self.close()


def _topic_for(queue: str) -> str:
    """The topic whose messages go to a queue where no rule says otherwise."""
    topic = topic_of(queue)
    if topic is None or queue_of(topic) != queue:
        raise InvalidArgument(
            f"No topic leads to queue {queue!r} by itself: give one, and the server a rule."
        )
    return topic
