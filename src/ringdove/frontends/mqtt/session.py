"""What the gateway knows of one client: subscriptions, and what is on its way in and out.

A session that survives its connection is *lasting*. Its messages of QoS 1 and 2 wait in a stripe of
its own, and everything about it that must outlive the server is in two records:

    record mqtt/session/CLIENT   identity, expiry, subscriptions, the stripe: changes rarely
    record mqtt/flight/CLIENT    what is under way: see `Flight`

The identifier of a message on its way to the client follows from its offset in the stripe, so a
message that is sent again, even by another server after a crash, has the identifier it had before;
the client recognises it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from ringdove import limits
from ringdove.core.settings import QueueSettings
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from ringdove.frontends.mqtt.connection import Connection
    from ringdove.frontends.mqtt.message import Message
    from ringdove.frontends.mqtt.turn import Turn
    from ringdove.pending import Driven, Pending

SESSION_PREFIX: Final = "mqtt/session/"
FLIGHT_PREFIX: Final = "mqtt/flight/"
WILL_PREFIX: Final = "mqtt/will/"

#: An expiry that means never.
NEVER_S: Final = 0xFFFF_FFFF

#: Bytes of a name that stands in a record's key as it is; longer ones are hashed.
_NAME_BYTES_MAX: Final = 200

_PACKET_IDS: Final = 0xFFFF

#: A session's stripe: unbounded in time, bounded in bytes.
STRIPE_SETTINGS: Final = QueueSettings.make(
    bytes_max=limits.MQTT_SESSION_BYTES_MAX,
    body_bytes_max=limits.BODY_BYTES_MAX,
    when_full="drop-oldest",
    retention_ms=limits.DURATION_MS_MAX,
    dedup_ms=limits.MQTT_DEDUP_MS,
)


def record_name(name: str) -> str:
    """A client's or topic's name as it stands in the key of a record."""
    raw = name.encode()
    if len(raw) <= _NAME_BYTES_MAX:
        return name
    return f"{name[:32]}\x7f{hashlib.sha256(raw).hexdigest()}"


class Subscription(msgspec.Struct, array_like=True, eq=False):
    """One topic filter of a session."""

    #: As the client wrote it, with `$share/GROUP/` if it is shared.
    pattern: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    #: What version 5 calls the subscription identifier; 0 for none.
    id: int = 0


class SessionRecord(msgspec.Struct, array_like=True):
    """See the module."""

    client_id: str
    #: Unique to this session: one of the same client that began anew has another.
    uid: str
    expiry_s: int
    #: When its connection ended; 0 while there is one.
    gone_ms: int
    #: Which server has the connection.
    owner: str
    #: The `queue` of the stripe's id; 0 when there is no stripe.
    stripe: int
    subscriptions: list[Subscription]
    #: Whose it is; empty if nobody's in particular, such as that of an operator.
    user: str = ""


class Flight(msgspec.Struct, array_like=True):
    """What is on its way in or out of a lasting session."""

    #: Offsets below are done, and those in `done`.
    floor: int = 0
    done: set[int] = set()
    #: Done messages of QoS 2 for which the client has not said PUBCOMP.
    released: set[int] = set()
    #: Offsets below may have been sent.
    sent: int = 0
    #: Times that identifiers of messages from the client were released.
    releases: int = 0
    #: Identifiers of messages of QoS 2 from the client that are stored and not released.
    incoming: set[int] = set()
    #: Those that may be stored, with `releases` when they came: see `Session.begin_storing`.
    storing: dict[int, int] = {}


encode_record = msgspec.msgpack.Encoder().encode
decode_session = msgspec.msgpack.Decoder(SessionRecord).decode
decode_flight = msgspec.msgpack.Decoder(Flight).decode


class Session:
    """See the module. Of a session that is not lasting, only a part is used."""

    __slots__ = (
        "_last_id", "again", "alone", "attached", "backlog", "backlog_bytes", "client_id",
        "connection", "cursor", "expiry_s", "flight", "gaps", "gone_ms", "owner", "pump", "storing",
        "stripe", "subscriptions", "uid", "under_way", "user", "version",
    )  # fmt: skip

    def __init__(self, client_id: str, uid: str, expiry_s: int = 0) -> None:
        self.client_id = client_id
        self.uid = uid
        self.expiry_s = expiry_s
        self.user = ""
        self.gone_ms = 0
        #: The server that had its connection last, and the version of its record.
        self.owner = ""
        self.version: int | None = None
        #: Whether other servers know what it subscribes to here.
        self.attached = False
        self.subscriptions: dict[str, Subscription] = {}
        self.connection: Connection | None = None
        self.stripe: StripeId | None = None
        self.flight = Flight()
        #: Where to read on in the stripe, and who does.
        self.cursor = 0
        self.pump: Driven | None = None
        #: Offsets that no message has, by their first, where the floor has not come to them yet.
        self.gaps: dict[int, int] = {}
        #: Whether something may have come since the pump has begun to read.
        self.again = False
        #: Identifier and offset of messages of the stripe that were sent over this connection.
        self.under_way: dict[int, int] = {}
        #: Identifiers of messages of QoS 2 that this process is storing, and what will tell
        #: whether it could: their turn, and their mark in it.
        self.storing: dict[int, tuple[Turn, int]] = {}
        #: Messages that wait for room on the connection, of a session that is not lasting.
        self.backlog: deque[Message] | None = None
        self.backlog_bytes = 0
        self._last_id = 0
        #: Done when the last of those is who change it, one after the other: `Sessions.alone`.
        self.alone: Pending[None] | None = None

    @classmethod
    def load(cls, record: SessionRecord, flight: Flight) -> Session:
        """A lasting session from its records."""
        session = cls(record.client_id, record.uid, record.expiry_s)
        session.gone_ms = record.gone_ms
        session.owner = record.owner
        session.user = record.user
        session.stripe = StripeId(record.stripe, 0, 0) if record.stripe else None
        session.subscriptions = {one.pattern: one for one in record.subscriptions}
        session.flight = flight
        return session

    def record(self) -> SessionRecord:
        """Its record."""
        return SessionRecord(
            self.client_id, self.uid, self.expiry_s, self.gone_ms, self.owner,
            self.stripe.queue if self.stripe is not None else 0, list(self.subscriptions.values()),
            self.user,
        )  # fmt: skip

    @property
    def lasting(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_s > 0

    def expired(self, now_ms: int) -> bool:
        """Whether its time without a connection is over."""
        return (
            0 < self.gone_ms <= now_ms - self.expiry_s * 1000
            and self.connection is None
            and self.expiry_s != NEVER_S
        )

    # -- in -------------------------------------------------------------------------------------

    def begin_storing(self, packet_id: int, turn: Turn, mark: int) -> bytes:
        """A message of QoS 2 has come: what makes it recognisable if it comes again.

        Queues drop what they have seen by it. It is the same until the identifier is released, even
        if the server crashes: the flight that knows it is durable no later than the message.
        """
        self.storing[packet_id] = (turn, mark)
        releases = self.flight.storing.setdefault(packet_id, self.flight.releases)
        return f"{self.uid}.{releases}.{packet_id}".encode()

    def end_storing(self, packet_id: int, *, stored: bool) -> None:
        """It is stored; or not, and then the client tries again unless it is told (`release`)."""
        del self.storing[packet_id]
        if stored:
            self.flight.storing.pop(packet_id, None)
            self.flight.incoming.add(packet_id)

    def release(self, packet_id: int) -> None:
        """The client may use the identifier for another message, once it is told so."""
        self.flight.incoming.discard(packet_id)
        self.flight.storing.pop(packet_id, None)
        self.flight.releases += 1

    # -- out ------------------------------------------------------------------------------------

    def packet_id_of(self, offset: int) -> int:
        """The identifier of a message of the stripe."""
        return offset % _PACKET_IDS + 1

    def next_id(self, in_use: Callable[[int], bool]) -> int:
        """A free identifier, where none follows from an offset."""
        while True:
            self._last_id = self._last_id % _PACKET_IDS + 1
            if not in_use(self._last_id):
                return self._last_id

    def finish(self, offset: int) -> bool:
        """A message of the stripe is done; whether the floor has risen."""
        flight = self.flight
        if offset != flight.floor:
            if offset > flight.floor:
                flight.done.add(offset)
            return False
        flight.floor = offset + 1
        self._raise_floor()
        return True

    def skip_to(self, offset: int) -> None:
        """There is nothing between the floor and `offset` any more."""
        flight = self.flight
        if offset > flight.floor:
            passed = [lo for lo in self.gaps if lo <= offset]
            flight.floor = max(offset, *(self.gaps.pop(lo) for lo in passed), 0)
            flight.done = {one for one in flight.done if one >= flight.floor}
            self._raise_floor()

    def skip(self, lo: int, hi: int) -> None:
        """There is no message between two offsets, the first of which may be above the floor."""
        if lo <= self.flight.floor:
            self.skip_to(hi)
        else:
            self.gaps[lo] = hi

    def _raise_floor(self) -> None:
        flight = self.flight
        while True:
            if flight.floor in flight.done:
                flight.done.discard(flight.floor)
                flight.floor += 1
            elif flight.floor in self.gaps:
                flight.floor = self.gaps.pop(flight.floor)
            else:
                return

    def rewind(self) -> None:
        """A new connection: whatever is not done will be sent again."""
        self.cursor = self.flight.floor
        self.gaps.clear()
        self.under_way.clear()
