"""A message between its publisher and its subscribers, and its stored form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.protocol.mqtt.packets import Publish, Will

if TYPE_CHECKING:
    from ringdove.core.attributes import Attributes
    from ringdove.protocol.mqtt.packets import Properties

#: Attributes of a message in its queue, beside `topic`.
_NAMED = ("content_type", "response_topic", "correlation_data")

#: User properties that become attributes of a message in its queue.
_USER_MAX = 50


class Message(msgspec.Struct, array_like=True, gc=False):
    """What subscribers get. In a session's stripe, QoS and flags are those for that session."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    #: When nobody wants it any more; 0 for never.
    expires_ms: int = 0
    #: Without those that belong to one connection.
    properties: dict[str, Any] | None = None
    #: Identifiers of the subscriptions it matches.
    ids: list[int] = []

    @classmethod
    def of(cls, packet: Publish | Will, now_ms: int) -> Message:
        """The message of a packet that came now."""
        properties = packet.properties
        expires_ms = 0
        if properties is not None:
            expiry_s = properties.get("message_expiry_interval")
            if expiry_s is not None:
                expires_ms = now_ms + expiry_s * 1000
            properties = {
                name: value
                for name, value in properties.items()
                if name not in ("message_expiry_interval", "will_delay_interval")
            } or None
        return cls(packet.topic, packet.payload, packet.qos, packet.retain, expires_ms, properties)

    def expired(self, now_ms: int) -> bool:
        """Whether it is too late for it."""
        return 0 < self.expires_ms <= now_ms

    def packet(self, packet_id: int, now_ms: int, *, dup: bool = False) -> Publish:
        """The packet that carries it to a client."""
        properties = self.properties
        if self.expires_ms or self.ids:
            properties = dict(properties or ())
            if self.expires_ms:
                left_ms = max(0, self.expires_ms - now_ms)
                properties["message_expiry_interval"] = -(-left_ms // 1000)
            if self.ids:
                properties["subscription_identifier"] = self.ids
        return Publish(self.topic, self.payload, self.qos, packet_id, self.retain, dup, properties)


encode_message = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Message).decode


def attributes_of(topic: str | None, properties: Properties | None) -> Attributes | None:
    """What a queue's consumers learn of a message beside its body."""
    if properties is None:
        return None if topic is None else {"topic": topic}
    found: Attributes = {} if topic is None else {"topic": topic}
    for name in _NAMED:
        if name in properties:
            found[name] = properties[name]
    for name, value in properties.get("user_property", ())[:_USER_MAX]:
        found[f"user.{name}"] = value
    return found or None
