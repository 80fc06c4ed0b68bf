"""The JSON that goes in and out, and how much of it at most."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from ringdove import limits
from ringdove.core.settings import QueueSettings  # noqa: TC001  msgspec reads it at run time
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION

#: Messages of one send: a block of the largest count.
SEND_MESSAGES_MAX = limits.BLOCK_MESSAGES_MAX

#: Encoded attributes of one send, in bytes: with the bodies of a request they fit in one block.
SEND_ATTRIBUTES_BYTES_MAX = limits.BLOCK_BYTES_MAX // 4

#: Messages of one receive, and receipts of one request to settle them: each is an object of JSON.
RECEIVE_MESSAGES_MAX = 10_000

#: Seconds that a receive waits: proxies and clients commonly give up after 30.
WAIT_S_MAX = 20

#: Bytes of JSON after which an answer takes no further message; the first is always taken.
ANSWER_BYTES_MAX = 32 * 1024 * 1024

#: Messages of one look at a queue; a person reads them.
PEEK_MESSAGES_MAX = 1_000

#: Receipts of one burial, and messages of one redrive: each costs two commits, and the client
#: waits.
BURY_RECEIPTS_MAX = 1_000
REDRIVE_MESSAGES_MAX = 10_000
REDRIVE_MESSAGES = 1_000

#: Queues of one page of the list.
LIST_QUEUES_MAX = 1_000
LIST_QUEUES = 100

T = TypeVar("T")

_Duration = Annotated[int, Meta(ge=0, le=limits.DURATION_MS_MAX)]
_Lease = Annotated[int, Meta(ge=1, le=limits.DURATION_MS_MAX)]
_Priority = Annotated[int, Meta(ge=0, le=limits.PRIORITY_MAX)]
_MessageId = Annotated[str, Meta(min_length=1, max_length=limits.MESSAGE_ID_BYTES_MAX)]
_Key = Annotated[str, Meta(max_length=limits.KEY_BYTES_MAX)]
_Subscription = Annotated[str, Meta(description="The reader group.")]


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    """What a client gives: a name that is not known is a mistake."""


class _Sparse(msgspec.Struct, omit_defaults=True):
    """What a client gets: what is not there is left out."""


def given(value: T | UnsetType) -> T | None:
    """What was given in a query, if anything was."""
    return None if value is UNSET else value


# -- queries ---------------------------------------------------------------------------------------


class NoQuery(_Strict):
    """No parameters."""


class ListQuery(_Strict):
    """Which queues to list."""

    prefix: Annotated[str, Meta(description="What the names start with.")] = ""
    after: Annotated[str, Meta(description="`next` of the page before.")] = ""
    max: Annotated[int, Meta(ge=1, le=LIST_QUEUES_MAX, description="Queues of one page.")] = (
        LIST_QUEUES
    )


class SendQuery(_Strict):
    """What goes with a body that is the message itself."""

    key: Annotated[_Key, Meta(description="One key, one order.")] | UnsetType = UNSET
    id: Annotated[_MessageId, Meta(description="Stored once within dedup_ms.")] | UnsetType = UNSET
    priority: Annotated[_Priority, Meta(description="Higher ones first.")] | UnsetType = UNSET
    delay_ms: Annotated[_Duration, Meta(description="Wait before delivery.")] | UnsetType = UNSET
    attributes: (
        Annotated[str, Meta(description="The attributes, as a JSON object.")] | UnsetType
    ) = UNSET


class ReceiveQuery(_Strict):
    """How many messages, and how long to wait for the first."""

    max: Annotated[int, Meta(ge=1, le=RECEIVE_MESSAGES_MAX, description="Messages at most.")] = 1
    wait: Annotated[
        float, Meta(ge=0, le=WAIT_S_MAX, description="Seconds to wait for the first message.")
    ] = 0
    lease_ms: (
        Annotated[_Lease, Meta(description="How long they are yours; else as the queue says.")]
        | UnsetType
    ) = UNSET
    subscription: _Subscription = DEFAULT_SUBSCRIPTION


class PeekQuery(_Strict):
    """How many messages to look at."""

    max: Annotated[int, Meta(ge=1, le=PEEK_MESSAGES_MAX, description="Messages at most.")] = 10
    subscription: _Subscription = DEFAULT_SUBSCRIPTION


# -- bodies ----------------------------------------------------------------------------------------


class Binary(_Strict):
    """Bytes, where JSON has only text."""

    base64: bytes


_Scalar = str | int | float | bool | None | Binary
AttributeValue = (
    str
    | int
    | float
    | bool
    | None
    | Binary
    | Annotated[list[_Scalar], Meta(max_length=limits.ATTRIBUTE_LIST_MAX)]
)


class NewMessage(_Strict):
    """A message to send: `body` or `body_base64`, and what goes with it."""

    #: Text is stored as text; any other value as its JSON.
    body: Raw | UnsetType = UNSET
    body_base64: bytes | None = None
    key: _Key | None = None
    #: A key that is no text.
    key_base64: bytes | None = None
    attributes: (
        Annotated[dict[str, AttributeValue], Meta(max_length=limits.ATTRIBUTES_MAX)] | None
    ) = None
    id: _MessageId | None = None
    priority: _Priority = 0
    delay_ms: _Duration | None = None


_NewMessages = Annotated[list[NewMessage], Meta(min_length=1, max_length=SEND_MESSAGES_MAX)]


class NewMessages(_Strict):
    """Messages to send."""

    messages: _NewMessages


class Posted(NewMessage):
    """One message, or several under `messages`."""

    messages: _NewMessages | UnsetType = UNSET


_Receipts = Annotated[list[str], Meta(min_length=1, max_length=RECEIVE_MESSAGES_MAX)]


class Acknowledge(_Strict):
    """Messages that are done."""

    receipts: _Receipts


class Extend(_Strict):
    """Messages to keep, for `lease_ms` from now; else as long as the queue says."""

    receipts: _Receipts
    lease_ms: _Lease | None = None


class Release(_Strict):
    """Messages to give back, after `delay_ms`; else after the queue's back-off."""

    receipts: _Receipts
    delay_ms: _Duration | None = None


class Bury(_Strict):
    """Messages for the dead-letter queue."""

    receipts: Annotated[list[str], Meta(min_length=1, max_length=BURY_RECEIPTS_MAX)]
    reason: Annotated[str, Meta(max_length=1_000)] = "buried by the receiver"


class Redrive(_Strict):
    """Dead letters to send back to where they came from, or to `target`."""

    target: str | None = None
    max: Annotated[int, Meta(ge=1, le=REDRIVE_MESSAGES_MAX)] = REDRIVE_MESSAGES


class Subscribe(_Strict):
    """Where a subscription starts: at a word, an offset of every stripe, or a time."""

    start: Literal["earliest", "latest"] | None = None
    offset: Annotated[int, Meta(ge=0, le=limits.OFFSET_MAX)] | None = None
    time_ms: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    #: Keep the subscription `default` although it is unused.
    keep_default: bool = False


# -- answers ---------------------------------------------------------------------------------------


class Queue(msgspec.Struct):
    """A queue with all its settings."""

    name: str
    settings: QueueSettings
    #: Grows with every change of the settings.
    version: int
    created_ms: int


class Queues(msgspec.Struct):
    """A page of queues; `next` is null on the last."""

    queues: list[Queue]
    next: str | None


class Counts(msgspec.Struct):
    """Messages of a subscription: deliverable, with a receiver, and due later."""

    waiting: int
    leased: int
    delayed: int


class Subscription(msgspec.Struct):
    """A reader group and its messages."""

    name: str
    waiting: int
    leased: int
    delayed: int


class Subscriptions(msgspec.Struct):
    """The reader groups of a queue."""

    subscriptions: list[Subscription]


class Stripe(msgspec.Struct):
    """A physical queue: the first offset stored, and the next to be given."""

    stripe: int
    priority: int
    head: int
    tail: int
    bytes: int
    oldest_ms: int | None


class Stats(msgspec.Struct):
    """The state of a queue."""

    name: str
    messages: int
    bytes: int
    #: When the oldest message stored came.
    oldest_ms: int | None
    subscriptions: dict[str, Counts]
    stripes: list[Stripe]


class Position(msgspec.Struct):
    """Where a message is; a duplicate was there before and is not stored again."""

    stripe: int
    priority: int
    offset: int
    duplicate: bool


class Stored(msgspec.Struct):
    """Where the messages are, in the order of the request."""

    messages: list[Position]


class Message(_Sparse, kw_only=True):
    """A message; `body_base64` and `key_base64` stand for what is no text."""

    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: bytes | UnsetType = UNSET
    #: Bytes among the values are objects: {"base64": "..."}.
    attributes: dict[str, Any] | UnsetType = UNSET
    sent_ms: int
    stripe: int
    priority: int
    offset: int


class Received(Message, kw_only=True):
    """A message that is leased, with the receipt that settles it."""

    receives: int
    lease_until_ms: int
    receipt: str


class Messages(msgspec.Struct):
    """Messages without a lease."""

    messages: list[Message]


class ReceivedMessages(msgspec.Struct):
    """Leased messages."""

    messages: list[Received]


class Result(_Sparse):
    """What became of a receipt: how many messages it settled, or why it was refused."""

    messages: int
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class Results(msgspec.Struct):
    """What became of each receipt, in the order of the request."""

    results: list[Result]


class Purged(msgspec.Struct):
    """How many messages were dropped."""

    purged: int


class Moved(msgspec.Struct):
    """How many messages went back."""

    moved: int
