"""One tree of errors.

`ClientError` means: the request was wrong or cannot be served now; reply and keep the connection.
`FatalClientError` means: reply, then close. `RemoteProtocolError` says that bytes from elsewhere
are not what their format promises; `LocalProtocolError` that our own side was about to break the
format. `StoreUnavailable` and `StoreCorrupted` concern the place where data is kept. Every class
has a `code`, the stable word that front ends translate into their own.
"""

from __future__ import annotations

from typing import ClassVar


class RingdoveError(Exception):
    """The root of every error that Ringdove raises on purpose."""

    code: ClassVar[str] = "error"


class ClientError(RingdoveError):
    """The request cannot be served as it is; the connection stays usable."""

    code = "client_error"


class InvalidArgument(ClientError):
    """A value is outside what the operation accepts."""

    code = "invalid_argument"


class QueueNotFound(ClientError):
    """No queue has this name."""

    code = "queue_not_found"


class QueueExists(ClientError):
    """A queue of this name exists with other settings."""

    code = "queue_exists"


class SettingsRefused(ClientError):
    """A setting is unknown, out of range, or makes no sense together with another."""

    code = "settings_refused"


class SettingsStale(ClientError):
    """The caller used an older version of the queue's settings; read them again and retry."""

    code = "settings_stale"


class SubscriptionNotFound(ClientError):
    """The queue has no subscription of this name."""

    code = "subscription_not_found"


class SubscriptionExists(ClientError):
    """A subscription of this name exists already."""

    code = "subscription_exists"


class SubscriptionBusy(ClientError):
    """The subscription is streamed from, or was received from and cannot be streamed."""

    code = "subscription_busy"


class MessageTooLarge(ClientError):
    """A body, key or attribute exceeds its limit."""

    code = "message_too_large"


class QueueFull(ClientError):
    """The queue has reached `bytes_max`; nothing was stored."""

    code = "queue_full"


class QueueIsCopy(ClientError):
    """The queue is a relay's copy of another broker's; only its origin takes messages."""

    code = "queue_is_copy"


class ReceiptStale(ClientError):
    """The lease named by the receipt has ended and its messages may be with somebody else."""

    code = "receipt_stale"


class SequenceRefused(ClientError):
    """An exactly-once append does not continue its producer's sequence."""

    code = "sequence_refused"

    def __init__(self, message: str, expected: int = 0) -> None:
        super().__init__(message)
        #: The sequence number that the stripe expects next.
        self.expected = expected


class FenceStale(ClientError):
    """Somebody else has claimed the subscription since; the reader must begin again."""

    code = "fence_stale"


class OffsetTrimmed(ClientError):
    """The offset asked for has been trimmed."""

    code = "offset_trimmed"


class LimitExceeded(ClientError):
    """A named limit has been reached."""

    code = "limit_exceeded"


class RecordConflict(ClientError):
    """The record has another version than the caller expected."""

    code = "record_conflict"


class WaitTimeout(ClientError):
    """The operation did not finish in the time given."""

    code = "timeout"


class ConnectionClosed(ClientError):
    """The connection or store has been closed."""

    code = "closed"


class FatalClientError(RingdoveError):
    """The request is such that the connection cannot go on."""

    code = "fatal_client_error"


class NotAuthorized(FatalClientError):
    """The caller is not who it must be."""

    code = "not_authorized"


class NotIdentified(NotAuthorized):
    """The caller gave no credentials, or such as nobody has."""

    code = "not_identified"


class RemoteProtocolError(RingdoveError):
    """Bytes received are not what their format promises."""

    code = "remote_protocol_error"


class LocalProtocolError(RingdoveError):
    """Our own side asked for something that the format cannot express."""

    code = "local_protocol_error"


class StoreUnavailable(RingdoveError):
    """The store cannot serve now; nothing was changed, and a retry may succeed."""

    code = "store_unavailable"


class StoreFull(StoreUnavailable):
    """The disk is full; sends are refused, receives and acknowledgements go on."""

    code = "store_full"


class StoreLocked(StoreUnavailable):
    """Another process has the data directory open for writing."""

    code = "store_locked"


class StoreCorrupted(RingdoveError):
    """Stored data is not what was written."""

    code = "store_corrupted"


class FormatUnknown(StoreCorrupted):
    """The data directory has a format version that this program does not know."""

    code = "format_unknown"


class JavaNotFound(RingdoveError):
    """Spark needs a Java, and none that it can use is there."""

    code = "java_not_found"


class PipelineFailed(RingdoveError):
    """An update of a pipeline ended with an error; the next one goes on where it was."""

    code = "pipeline_failed"


class AvroInvalid(RemoteProtocolError):
    """A body is not what its Avro schema says."""

    code = "avro_invalid"


class PacketRefused(RemoteProtocolError):
    """An MQTT packet is malformed or not allowed where it came; the connection ends."""

    code = "packet_refused"

    def __init__(self, message: str, reason: int = 0x82) -> None:
        super().__init__(message)
        #: MQTT's reason code, to be told to the other side; a protocol error unless more is known.
        self.reason = reason
