"""The control packets of MQTT 3.1.1 and 5 as plain values.

One set of structures serves both versions. Reasons are always those of version 5; `codec` writes
the fewer codes of 3.1.1 where that version has any. Properties are a dictionary by the names in
`properties`, and None when there are none, which is all that 3.1.1 knows.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import msgspec

#: Protocol levels as CONNECT says them.
V311: Final = 4
V5: Final = 5

Properties = dict[str, Any]


class Reason(IntEnum):
    """Why something was done, granted or refused; from 0x80 on it was refused."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_INVALID = 0x85
    BAD_CREDENTIALS = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1
    WILDCARDS_NOT_SUPPORTED = 0xA2


class Will(msgspec.Struct, gc=False):
    """What the server publishes for a client that goes without saying goodbye."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


class Connect(msgspec.Struct, gc=False):
    """A client's first packet."""

    client_id: str = ""
    version: int = V5
    clean_start: bool = True
    keep_alive_s: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties | None = None


class ConnAck(msgspec.Struct, gc=False):
    """The server's first packet."""

    session_present: bool = False
    reason: int = 0
    properties: Properties | None = None


class Publish(msgspec.Struct, gc=False):
    """A message; `packet_id` is 0 for QoS 0."""

    topic: str
    payload: bytes
    qos: int = 0
    packet_id: int = 0
    retain: bool = False
    dup: bool = False
    properties: Properties | None = None


class PubAck(msgspec.Struct, gc=False):
    """A message of QoS 1 has been taken over."""

    packet_id: int
    reason: int = 0
    properties: Properties | None = None


class PubRec(msgspec.Struct, gc=False):
    """A message of QoS 2 has been taken over; its number is still in use."""

    packet_id: int
    reason: int = 0
    properties: Properties | None = None


class PubRel(msgspec.Struct, gc=False):
    """The sender will not repeat that message."""

    packet_id: int
    reason: int = 0
    properties: Properties | None = None


class PubComp(msgspec.Struct, gc=False):
    """The number of that message is free again."""

    packet_id: int
    reason: int = 0
    properties: Properties | None = None


class Filter(msgspec.Struct, gc=False):
    """One topic filter of a SUBSCRIBE with its options."""

    pattern: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    #: Retained messages: 0 always, 1 for a new subscription, 2 never.
    retain_handling: int = 0


class Subscribe(msgspec.Struct, gc=False):
    """Ask for messages."""

    packet_id: int
    filters: list[Filter]
    properties: Properties | None = None


class SubAck(msgspec.Struct, gc=False):
    """What was granted, filter by filter."""

    packet_id: int
    reasons: list[int]
    properties: Properties | None = None


class Unsubscribe(msgspec.Struct, gc=False):
    """Ask for no more messages."""

    packet_id: int
    patterns: list[str]
    properties: Properties | None = None


class UnsubAck(msgspec.Struct, gc=False):
    """What became of it, filter by filter; 3.1.1 has no reasons."""

    packet_id: int
    reasons: list[int] = []
    properties: Properties | None = None


class PingReq(msgspec.Struct, gc=False):
    """A sign of life."""


class PingResp(msgspec.Struct, gc=False):
    """The answer to it."""


class Disconnect(msgspec.Struct, gc=False):
    """The last packet; only clients send it in 3.1.1."""

    reason: int = 0
    properties: Properties | None = None


class Auth(msgspec.Struct, gc=False):
    """A step of an authentication by several messages; version 5 only."""

    reason: int = 0
    properties: Properties | None = None


Packet = (
    Connect | ConnAck | Publish | PubAck | PubRec | PubRel | PubComp | Subscribe | SubAck
    | Unsubscribe | UnsubAck | PingReq | PingResp | Disconnect | Auth
)  # fmt: skip
