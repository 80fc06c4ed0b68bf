"""What the frames of the native protocol say: one MessagePack value per verb and direction.

Values are arrays; fields may be added at the end, and a reader ignores what it does not know.
Blocks travel beside them (frames.py). Verbs below `REPLY` are requests; the answer has the same
number and the verb `REPLY`, or `ERROR`. docs/protocol.md draws the life of a message.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import msgspec

from ringdove import errors, limits
from ringdove.core.settings import QueueSettings  # noqa: TC001  msgspec reads it at run time
from ringdove.errors import RemoteProtocolError, RingdoveError, SequenceRefused

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PROTOCOL_VERSION: Final = 1

#: What this side can do beyond version 1; both sides use what both name.
FEATURES: Final = ("stream",)


class Verb(IntEnum):
    """What a frame asks or answers."""

    HELLO = 1
    PING = 2
    #: Takes a receive back, by its number; wants no answer of its own.
    CANCEL = 3
    SEND = 10
    RECEIVE = 11
    ACKNOWLEDGE = 12
    EXTEND = 13
    RELEASE = 14
    BURY = 15
    REDRIVE = 16
    UNLEASE = 17
    CREATE = 20
    GET = 21
    LIST = 22
    CHANGE = 23
    DELETE = 24
    PURGE = 25
    STATS = 26
    SUBSCRIPTIONS = 27
    SUBSCRIBE = 28
    UNSUBSCRIBE = 29
    READ = 30
    POSITION = 31
    ADVANCE = 32
    STREAM = 40
    STREAM_ACK = 41
    STREAM_CLOSE = 42
    ACCOUNT = 50
    TIER = 60
    #: Asks a primary for a copy of everything and all that is written from then on; what it pushes,
    #: with the request's number; and what the standby has done of it, which wants no answer.
    FOLLOW = 61
    COMMIT = 62
    APPLIED = 63
    REPLY = 128
    ERROR = 129
    #: Pushed by the server: a block of a stream, with the stream's number; the end of a stream; the
    #: server is about to close the connection.
    BLOCK = 130
    STREAM_ENDED = 131
    GOODBYE = 132


_U63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_U16 = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
_U8 = Annotated[int, msgspec.Meta(ge=0, le=255)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=limits.DURATION_MS_MAX / 1000)]

#: Queue, number and level of a stripe; and, of a receipt, epoch, token, first and end offset, and
#: the subscription.
Stripe = tuple[_U63, _U16, _U8]
WireReceipt = tuple[_U63, _U16, _U8, _U32, _U63, _U63, _U63, str]

#: Asks for something to be done with accounts, or of the manager of tiers: the command, and its
#: arguments by name.
Command = tuple[str, dict[str, Any]]


class WireError(msgspec.Struct, array_like=True):
    """Why something was refused: the class's code, and what its text says."""

    code: str
    text: str
    #: The sequence number expected, where that is what is wrong.
    expected: int = 0


class Hello(msgspec.Struct, array_like=True):
    """Asks to begin: the first frame of a connection."""

    version: int
    client: str
    features: list[str] = []
    credentials: bytes = b""


class Welcome(msgspec.Struct, array_like=True):
    """Answers `Hello`: what the server is and takes."""

    version: int
    server: str
    features: list[str]
    frame_bytes_max: int
    #: Requests that may wait for answers on this connection.
    in_flight_max: int
    #: The client should send something at least this often.
    idle_s: float
    #: Names the store behind the server, the same at every address that leads to it.
    store: str = ""


class WireSegment(msgspec.Struct, array_like=True):
    """One block of a parcel, and how a repetition of it is recognised."""

    producer: bytes | None = None
    sequence: int = 0
    span: int = 1
    message_id: bytes | None = None
    gaps: bool = False


class Send(msgspec.Struct, array_like=True):
    """Stores blocks on one stripe; there are as many as segments."""

    queue: str
    version: int
    #: Number of the stripe, -1 for any.
    number: int
    level: int
    delay_ms: int | None
    segments: list[WireSegment]


class Stored(msgspec.Struct, array_like=True):
    """Answers `Send`: per segment the first offset and whether it was a repetition, or an error."""

    stripe: Stripe
    answers: list[tuple[int, bool, WireError | None]]


class Receive(msgspec.Struct, array_like=True):
    """Leases messages, waiting for the first."""

    queue: str
    subscription: str
    max: int
    wait_s: Seconds | None
    lease_ms: int | None


class WireRun(msgspec.Struct, array_like=True):
    """One leased run; `blocks` of the frame's blocks belong to it."""

    receipt: WireReceipt
    until_ms: int
    receives: int
    first_ms: int
    blocks: int


class Settle(msgspec.Struct, array_like=True):
    """Acknowledges, extends, releases or unleases; `value` is a lease or delay in ms."""

    receipts: list[WireReceipt]
    value: int | None = None


class Bury(msgspec.Struct, array_like=True):
    """Moves leased messages to the dead-letter queue; the frame holds them."""

    queue: str
    receipt: WireReceipt
    reason: str
    blocks: int


class Redrive(msgspec.Struct, array_like=True):
    """Sends dead letters back."""

    queue: str
    target: str | None
    max: int | None


class Settings(msgspec.Struct, array_like=True):
    """Creates or changes a queue."""

    queue: str
    settings: dict[str, Any]


class WireInfo(msgspec.Struct, array_like=True):
    """A queue as the catalogue knows it."""

    name: str
    id: int
    settings: QueueSettings
    version: int
    created_ms: int


class WireStripeStats(msgspec.Struct, array_like=True):
    """The state of one stripe."""

    stripe: Stripe
    epoch: int
    head: int
    tail: int
    nbytes: int
    oldest_ms: int
    subscriptions: list[tuple[str, int, int, int, int]]


class Subscribe(msgspec.Struct, array_like=True):
    """Adds a subscription."""

    queue: str
    subscription: str
    start: tuple[str, int]
    keep_default: bool = False


class Read(msgspec.Struct, array_like=True):
    """Reads blocks by offset."""

    stripe: Stripe
    offset: _U63
    messages_max: int
    skip_trimmed: bool
    bytes_max: _U63 = limits.BLOCK_BYTES_MAX


class Position(msgspec.Struct, array_like=True):
    """Finds an offset."""

    stripe: Stripe
    start: tuple[str, int]


class Advance(msgspec.Struct, array_like=True):
    """Says that a subscription is done with everything below an offset."""

    stripe: Stripe
    subscription: str
    offset: _U63


class Stream(msgspec.Struct, array_like=True):
    """Begins to stream a subscription; its frames carry this request's number from then on."""

    queue: str
    subscription: str
    #: Who streams: the same owner may take its own claim over at once.
    owner: bytes
    #: Next offset wanted by stripe, for those who keep their position themselves.
    positions: list[tuple[Stripe, _U63]]
    window_bytes: int
    lease_ms: int
    #: How blocks that are not compressed yet are to be compressed on their way: zstd, lz4 or none.
    compression: str = "none"
    #: End with OffsetTrimmed where what is wanted is not stored any more, instead of going on with
    #: the oldest message.
    exact: bool = False


class Streaming(msgspec.Struct, array_like=True):
    """Answers `Stream`: the fence, and where each stripe starts."""

    fence: int
    positions: list[tuple[Stripe, int]]


class StreamAck(msgspec.Struct, array_like=True):
    """Everything of a stripe below `next` is done; or, with `resend`, `next` is wanted again.

    `freed_bytes` of blocks have left the receiver's window (-1 for `next` says only that); with
    `resend` it is how many are still in it, because those that were lost are in it no more.
    """

    stripe: Stripe
    next: int
    freed_bytes: int
    resend: bool = False


class Follow(msgspec.Struct, array_like=True):
    """Asks to be the standby."""

    #: Id of what the standby's directory will hold.
    member: str


class Following(msgspec.Struct, array_like=True):
    """Answers `Follow`: a copy is on its way."""

    #: Name of the broker.
    name: str


class Commit(msgspec.Struct, array_like=True):
    """Entries that were written to an environment, or a piece of a copy of it."""

    durability: Literal["disk", "memory"]
    #: Counts the commits of the environment.
    number: int
    #: Number of the database, key, and value; nil deletes.
    edits: list[tuple[_U8, bytes, bytes | None]]
    #: Whether the next frame of the environment belongs to the same commit.
    more: bool = False
    #: Whether the copy of everything is whole with this one.
    whole: bool = False


class Applied(msgspec.Struct, array_like=True):
    """The standby has everything up to a commit, as durably as the primary."""

    durability: Literal["disk", "memory"]
    number: int


#: The MessagePack form of a value.
encode: Final[Callable[[Any], bytes]] = msgspec.msgpack.Encoder().encode

_decoders: dict[Any, Callable[[Any], Any]] = {}


def decoder(kind: type[T]) -> Callable[[Any], T]:
    """What makes a value of `kind` of its MessagePack form, or raises RemoteProtocolError."""
    read = msgspec.msgpack.Decoder(kind).decode

    def decode(meta: Any) -> T:
        try:
            return read(meta)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"A frame's meta cannot be read: {error}") from error

    return decode


def decode(kind: Any, meta: Any) -> Any:
    """A value of `kind` from its MessagePack form, or RemoteProtocolError."""
    read = _decoders.get(kind)
    if read is None:
        read = _decoders[kind] = decoder(kind)
    return read(meta)


def encode_error(error: RingdoveError) -> WireError:
    """An error as it travels."""
    expected = error.expected if isinstance(error, SequenceRefused) else 0
    return WireError(error.code, str(error), expected)


def decode_error(wire: WireError) -> RingdoveError:
    """The error that travelled; an unknown code gives the root class."""
    kind = _errors_by_code().get(wire.code, RingdoveError)
    if kind is SequenceRefused:
        return SequenceRefused(wire.text, wire.expected)
    return kind(wire.text)


_by_code: dict[str, type[RingdoveError]] = {}


def _errors_by_code() -> dict[str, type[RingdoveError]]:
    if not _by_code:
        _by_code.update(
            (kind.code, kind)
            for kind in vars(errors).values()
            if isinstance(kind, type) and issubclass(kind, RingdoveError)
        )
    return _by_code
