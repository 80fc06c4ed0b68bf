"""Queue attributes: their rules, and which settings of a Ringdove queue they are.

What has no counterpart among the settings is kept in the queue's `notes`, under "sqs.NAME".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.protocol.sqs.errors import SqsError, invalid, invalid_value
from ringdove.protocol.sqs.policy import STATEMENTS_MAX, count_statements, is_sound

if TYPE_CHECKING:
    from ringdove.core.settings import QueueSettings

NOTE = "sqs."
TAG = "tag."

#: Attributes that are whole numbers, with their ranges.
_RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1024, 1024 * 1024),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}

_WORDS = {
    "FifoQueue": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "SqsManagedSseEnabled": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}

_FREE = ("Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId")

SETTABLE = (*_RANGES, *_WORDS, *_FREE)

_COUNTERS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)

READABLE = (*SETTABLE, *_COUNTERS, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn")

_ARN = re.compile(r"arn:[a-z-]+:sqs:[a-z0-9-]*:(\d{12}):([\w.-]{1,96})", re.ASCII)
_ANY_ARN = re.compile(r"arn:[a-z-]+:(?!sqs:)[a-z0-9-]+:[a-z0-9-]*:\d{12}:.{1,256}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_NUMBER = re.compile(r"[0-9]{1,9}")

#: What the decoder raises for a text that is no JSON, or is nested without end.
_NOT_JSON = (msgspec.MsgspecError, UnicodeError, RecursionError)


def check_name(name: str) -> str:
    """The name of a queue, or why it is none."""
    stem = name.removesuffix(".fifo")
    if not _NAME.fullmatch(stem) or len(name) > 80:
        raise invalid(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )
    return name


def parse_arn(arn: str) -> tuple[str, str] | None:
    """Account and name of the queue that an ARN names."""
    match = _ARN.fullmatch(arn)
    return (match[1], match[2]) if match else None


def check(
    attributes: dict[str, str], known: dict[str, str], *, fifo: bool, creating: bool
) -> dict[str, str]:
    """The attributes in their plain form, or the error that the first wrong one earns.

    `known` are those that the queue has.
    """
    checked = {}
    for name, value in attributes.items():
        if name not in SETTABLE:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        if not fifo and name in _FIFO_ONLY:
            raise SqsError("InvalidAttributeName", _FIFO_ONLY[name].format(name))
        checked[name] = _check_value(name, value)
    if not creating and checked.get("FifoQueue") == "false":
        raise SqsError(
            "InvalidAttributeValue",
            "Invalid value for the parameter FifoQueue. "
            "Reason: Modifying queue type is not supported.",
        )
    if (
        checked.get("FifoThroughputLimit") == "perMessageGroupId"
        and (checked.get("DeduplicationScope") or known.get("DeduplicationScope")) != "messageGroup"
    ):
        raise invalid(
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope is "
            "messageGroup"
        )
    if checked.get("KmsMasterKeyId") and checked.get("SqsManagedSseEnabled") == "true":
        raise SqsError(
            "InvalidAttributeName",
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE.",
        )
    return checked


_FIFO_ONLY = {
    "FifoQueue": "Unknown Attribute {}.",
    "ContentBasedDeduplication": "Unknown Attribute {}.",
    "DeduplicationScope": "You can specify the {} only when FifoQueue is set to true.",
    "FifoThroughputLimit": "You can specify the {} only when FifoQueue is set to true.",
}


def _check_value(name: str, value: str) -> str:
    if name in _RANGES:
        if name == "KmsDataKeyReusePeriodSeconds" and not value:
            return value
        low, high = _RANGES[name]
        if not _NUMBER.fullmatch(value) or not low <= int(value) <= high:
            raise _bad_value(name)
        return str(int(value))
    if name in _WORDS:
        words = {word.lower(): word for word in _WORDS[name]}
        if value.lower() not in words:
            raise _bad_value(name)
        return words[value.lower()]
    if name == "Policy" and value:
        _check_policy(value)
    return value


def _bad_value(name: str) -> SqsError:
    return SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")


def _check_policy(value: str) -> None:
    try:
        document = msgspec.json.decode(value)
    except _NOT_JSON:
        document = None
    if not is_sound(document):
        raise _bad_value("Policy")
    count = count_statements(document)
    if count > STATEMENTS_MAX:
        raise invalid(
            f"{count} statements were found in the submitted policy, max allowed is "
            f"{STATEMENTS_MAX}"
        )


class Redrive(msgspec.Struct):
    """A redrive policy: where messages go that were received too often."""

    account: str
    queue: str
    receives_max: int


def parse_redrive(text: str) -> Redrive | None:
    """The redrive policy in an attribute; None for one that takes the policy away."""
    if not text:
        return None
    try:
        policy = msgspec.json.decode(text)
    except _NOT_JSON:
        policy = None
    if not isinstance(policy, dict):
        raise SqsError(
            "InvalidAttributeValue",
            "Invalid value for the parameter RedrivePolicy. "
            "Reason: Redrive policy is not a valid JSON map.",
        )
    if not policy:
        return None
    for key in ("maxReceiveCount", "deadLetterTargetArn"):
        if key not in policy:
            raise invalid_value(
                text,
                "RedrivePolicy",
                f"Redrive policy does not contain mandatory attribute: {key}.",
            )
    if len(policy) > 2:
        raise invalid_value(
            text,
            "RedrivePolicy",
            "Only following attributes are supported: [maxReceiveCount, deadLetterTargetArn].",
        )
    arn = str(policy["deadLetterTargetArn"])
    found = parse_arn(arn)
    if found is None:
        reason = "Invalid value for deadLetterTargetArn."
        if _ANY_ARN.fullmatch(arn):
            reason = "Only SQS queues are valid resources for deadLetterTargetArn."
        raise invalid_value(text, "RedrivePolicy", reason)
    count = str(policy["maxReceiveCount"])
    if not _NUMBER.fullmatch(count) or not 1 <= int(count) <= 1000:
        raise invalid_value(
            text,
            "RedrivePolicy",
            f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 "
            "both inclusive.",
        )
    return Redrive(*found, int(count))


class RedriveAllow(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Which queues may have this one as their dead-letter queue."""

    redrive_permission: str
    source_queue_arns: list[str] = []

    def allows(self, source_arn: str) -> bool:
        """Whether a queue may send its dead letters here."""
        if self.redrive_permission == "byQueue":
            return source_arn in self.source_queue_arns
        return self.redrive_permission == "allowAll"


def parse_redrive_allow(text: str) -> RedriveAllow:
    """The policy in an attribute; empty means that all may."""
    if not text:
        return RedriveAllow("allowAll")
    try:
        allow = msgspec.json.decode(text, type=RedriveAllow)
    except _NOT_JSON:
        allow = RedriveAllow("?")
    by_queue = allow.redrive_permission == "byQueue"
    if allow.redrive_permission not in ("allowAll", "denyAll", "byQueue"):
        raise SqsError(
            "InvalidAttributeValue",
            "Invalid value for the parameter RedriveAllowPolicy. Reason: Amazon SQS can't create "
            "the redrive allow policy, as it\u2019s in an unsupported format.",
        )
    reason = ""
    if by_queue and not allow.source_queue_arns:
        reason = (
            "When you specify the byQueue permission type, you must also specify one or more "
            "sourceQueueArns values."
        )
    elif not by_queue and allow.source_queue_arns:
        reason = (
            "To specify one or more source queue ARNs, you must set redrivePermission to byQueue."
        )
    elif len(allow.source_queue_arns) > 10:
        reason = "The maximum number of source queue ARNs you can specify is 10."
    if reason:
        raise invalid_value(
            text,
            "RedriveAllowPolicy",
            f"Amazon SQS can't create the redrive allow policy. {reason}",
        )
    return allow


# -- to and from the settings of a queue --------------------------------------------------------


def fifo_settings() -> dict[str, Any]:
    """What makes a queue a FIFO queue."""
    return {"order": "key", "delivery": "exactly-once", "dedup_ms": 300_000}


def settings_of(attributes: dict[str, str]) -> dict[str, Any]:
    """The settings that checked attributes ask for; redrive policies aside."""
    found: dict[str, Any] = {}
    for name, setting, factor in _SETTINGS:
        if name in attributes:
            found[setting] = max(_LEAST[setting], int(attributes[name]) * factor)
    return found


def notes_of(attributes: dict[str, str]) -> dict[str, str | None]:
    """The notes that they leave; None for one that goes."""
    found: dict[str, str | None] = {}
    for name, value in attributes.items():
        if name in _NOTED:
            default = _DEFAULTS.get(name, "")
            found[NOTE + name] = None if value == default else value
    if attributes.get("KmsMasterKeyId"):
        found[NOTE + "SqsManagedSseEnabled"] = "false"
    elif attributes.get("SqsManagedSseEnabled") == "true":
        found[NOTE + "KmsMasterKeyId"] = found[NOTE + "KmsDataKeyReusePeriodSeconds"] = None
    return found


def described(settings: QueueSettings) -> dict[str, str]:
    """The attributes of a queue that follow from its settings and notes; arn and times aside."""
    found = {name: str(getattr(settings, setting) // factor) for name, setting, factor in _SETTINGS}
    fifo = settings.order != "loose"
    for name in _NOTED:
        if name in _FIFO_ONLY and not fifo:
            continue
        value = settings.notes.get(NOTE + name, _DEFAULTS.get(name, ""))
        if value:
            found[name] = value
    if fifo:
        found["FifoQueue"] = "true"
    if "KmsMasterKeyId" not in found:
        found.pop("KmsDataKeyReusePeriodSeconds", None)
    return found


#: Attribute, setting, and how many of the setting's units one of the attribute's is.
_SETTINGS = (
    ("VisibilityTimeout", "lease_ms", 1000),
    ("DelaySeconds", "delay_ms", 1000),
    ("MessageRetentionPeriod", "retention_ms", 1000),
    ("MaximumMessageSize", "body_bytes_max", 1),
)
_LEAST = {"lease_ms": 1, "delay_ms": 0, "retention_ms": 1, "body_bytes_max": 1}

_NOTED = (
    "ReceiveMessageWaitTimeSeconds",
    "SqsManagedSseEnabled",
    "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds",
    "Policy",
    "RedrivePolicy",
    "RedriveAllowPolicy",
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
)
_DEFAULTS = {
    "ReceiveMessageWaitTimeSeconds": "0",
    "KmsDataKeyReusePeriodSeconds": "300",
    "SqsManagedSseEnabled": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
