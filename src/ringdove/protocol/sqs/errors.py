"""The errors of the SQS API: one class, and a table of what each kind is called where."""

from __future__ import annotations

from typing import NamedTuple


class _Kind(NamedTuple):
    #: What the query protocol, and the header of compatibility in the JSON one, call it.
    legacy: str
    status: int = 400


class SqsError(Exception):
    """A refusal, by the name that the JSON protocol has for it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    @property
    def legacy(self) -> str:
        """The code of the query protocol, which SDKs show as `Error.Code`."""
        return _KINDS.get(self.kind, _Kind(self.kind)).legacy

    @property
    def status(self) -> int:
        """The HTTP status."""
        return _KINDS.get(self.kind, _Kind(self.kind)).status

    @property
    def sender(self) -> bool:
        """Whether the sender is to blame."""
        return self.status < 500


def invalid(message: str) -> SqsError:
    """A parameter has a value that cannot be."""
    return SqsError("InvalidParameterValueException", message)


def invalid_value(value: object, parameter: str, reason: str) -> SqsError:
    """The same, in the API's usual words."""
    return invalid(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> SqsError:
    """A parameter is missing."""
    return SqsError(
        "MissingRequiredParameterException", f"The request must contain the parameter {parameter}."
    )


def no_queue() -> SqsError:
    """The queue does not exist."""
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


_PREFIX = "AWS.SimpleQueueService."

#: Kinds whose legacy code is not their name, or whose status is not 400.
_KINDS = {
    "InvalidParameterValueException": _Kind("InvalidParameterValue"),
    "MissingRequiredParameterException": _Kind("MissingParameter"),
    "QueueDoesNotExist": _Kind(_PREFIX + "NonExistentQueue"),
    "QueueNameExists": _Kind("QueueAlreadyExists"),
    "QueueDeletedRecently": _Kind(_PREFIX + "QueueDeletedRecently"),
    "PurgeQueueInProgress": _Kind(_PREFIX + "PurgeQueueInProgress", 403),
    "BatchRequestTooLong": _Kind(_PREFIX + "BatchRequestTooLong"),
    "TooManyEntriesInBatchRequest": _Kind(_PREFIX + "TooManyEntriesInBatchRequest"),
    "EmptyBatchRequest": _Kind(_PREFIX + "EmptyBatchRequest"),
    "InvalidBatchEntryId": _Kind(_PREFIX + "InvalidBatchEntryId"),
    "BatchEntryIdsNotDistinct": _Kind(_PREFIX + "BatchEntryIdsNotDistinct"),
    "InvalidAddress": _Kind("InvalidAddress", 404),
    "InvalidSecurity": _Kind("InvalidSecurity", 403),
    "MessageNotInflight": _Kind(_PREFIX + "MessageNotInflight"),
    "UnsupportedOperation": _Kind(_PREFIX + "UnsupportedOperation"),
    "ResourceNotFoundException": _Kind("ResourceNotFoundException", 404),
    "OverLimit": _Kind("OverLimit", 403),
    "RequestThrottled": _Kind("RequestThrottled", 403),
    "AccessDeniedException": _Kind("AccessDenied", 403),
    "InvalidClientTokenId": _Kind("InvalidClientTokenId", 403),
    "MissingAuthenticationToken": _Kind("MissingAuthenticationToken", 403),
    "SignatureDoesNotMatch": _Kind("SignatureDoesNotMatch", 403),
    "UnknownOperationException": _Kind("UnknownOperationException", 404),
    "InternalFailure": _Kind("InternalFailure", 500),
    "ServiceUnavailable": _Kind("ServiceUnavailable", 503),
}
