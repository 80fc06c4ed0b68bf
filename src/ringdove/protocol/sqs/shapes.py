"""What each SQS action is asked with.

Every member may be missing: which ones an action needs is a rule of the API with an error of its
own (`need`), not a matter of decoding.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ringdove.protocol.sqs.errors import missing


class Shape(msgspec.Struct, rename="pascal"):
    """The members of a request, named as in the API."""


class AttributeValue(Shape):
    """A message attribute."""

    data_type: str | None = None
    string_value: str | None = None
    binary_value: bytes | None = None
    #: Part of the API and refused by it.
    string_list_values: Any = None
    binary_list_values: Any = None


#: Values of queue attributes are text; numbers and truth are taken too.
QueueAttributes = dict[str, str | int | float | bool | None]


class QueueRequest(Shape):
    """Names a queue: the whole of DeleteQueue, PurgeQueue and ListQueueTags."""

    queue_url: str | None = None


class CreateQueue(Shape):
    """See the API."""

    queue_name: str | None = None
    attributes: QueueAttributes | None = None
    tags: dict[str, str] | None = msgspec.field(name="tags", default=None)


class GetQueueUrl(Shape):
    """See the API."""

    queue_name: str | None = None
    queue_owner_aws_account_id: str | None = msgspec.field(
        name="QueueOwnerAWSAccountId", default=None
    )


class ListQueues(Shape):
    """See the API."""

    queue_name_prefix: str | None = None
    max_results: int | None = None
    next_token: str | None = None


class ListSources(QueueRequest):
    """See ListDeadLetterSourceQueues of the API."""

    max_results: int | None = None
    next_token: str | None = None


class GetAttributes(QueueRequest):
    """See GetQueueAttributes of the API."""

    attribute_names: list[str] | None = None


class SetAttributes(QueueRequest):
    """See SetQueueAttributes of the API."""

    attributes: QueueAttributes | None = None


class AddPermission(QueueRequest):
    """See the API."""

    label: str | None = None
    aws_account_ids: list[str] | None = msgspec.field(name="AWSAccountIds", default=None)
    actions: list[str] | None = None


class RemovePermission(QueueRequest):
    """See the API."""

    label: str | None = None


class TagQueue(QueueRequest):
    """See the API."""

    tags: dict[str, str] | None = None


class UntagQueue(QueueRequest):
    """See the API."""

    tag_keys: list[str] | None = None


class Entry(Shape):
    """A message to send: the members that a batch's entries share with SendMessage."""

    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] | None = None
    message_system_attributes: dict[str, AttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None
    id: str | None = None


class SendMessage(Entry):
    """See the API."""

    queue_url: str | None = None


class SendBatch(QueueRequest):
    """See SendMessageBatch of the API."""

    entries: list[Entry] | None = None


class ReceiveMessage(QueueRequest):
    """See the API."""

    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class Held(Shape):
    """A received message, by its handle: an entry of a batch."""

    receipt_handle: str | None = None
    visibility_timeout: int | None = None
    id: str | None = None


class HeldMessage(Held):
    """See DeleteMessage and ChangeMessageVisibility of the API."""

    queue_url: str | None = None


class HeldBatch(QueueRequest):
    """See DeleteMessageBatch and ChangeMessageVisibilityBatch of the API."""

    entries: list[Held] | None = None


class StartMove(Shape):
    """See StartMessageMoveTask of the API."""

    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class CancelMove(Shape):
    """See CancelMessageMoveTask of the API."""

    task_handle: str | None = None


class ListMoves(Shape):
    """See ListMessageMoveTasks of the API."""

    source_arn: str | None = None
    max_results: int | None = None


ACTIONS: dict[str, type[Shape]] = {
    "AddPermission": AddPermission,
    "CancelMessageMoveTask": CancelMove,
    "ChangeMessageVisibility": HeldMessage,
    "ChangeMessageVisibilityBatch": HeldBatch,
    "CreateQueue": CreateQueue,
    "DeleteMessage": HeldMessage,
    "DeleteMessageBatch": HeldBatch,
    "DeleteQueue": QueueRequest,
    "GetQueueAttributes": GetAttributes,
    "GetQueueUrl": GetQueueUrl,
    "ListDeadLetterSourceQueues": ListSources,
    "ListMessageMoveTasks": ListMoves,
    "ListQueueTags": QueueRequest,
    "ListQueues": ListQueues,
    "PurgeQueue": QueueRequest,
    "ReceiveMessage": ReceiveMessage,
    "RemovePermission": RemovePermission,
    "SendMessage": SendMessage,
    "SendMessageBatch": SendBatch,
    "SetQueueAttributes": SetAttributes,
    "StartMessageMoveTask": StartMove,
    "TagQueue": TagQueue,
    "UntagQueue": UntagQueue,
}


def texts(attributes: QueueAttributes | None) -> dict[str, str]:
    """Queue attributes as text, without those that are null."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (attributes or {}).items()
        if value is not None
    }


def need(value: Any, parameter: str) -> Any:
    """The value, or the API's error for a missing one."""
    if value is None:
        raise missing(parameter)
    return value
