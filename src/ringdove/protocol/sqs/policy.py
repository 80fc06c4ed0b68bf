"""Access policies of queues: the documents that AddPermission writes and others bring along."""

from __future__ import annotations

from typing import Any

import msgspec

from ringdove.protocol.sqs.errors import SqsError, invalid_value, missing

#: Actions that AddPermission can give to others.
SHAREABLE = (
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "PurgeQueue",
    "ReceiveMessage",
    "SendMessage",
)
_OWNER_ONLY = (
    "AddPermission",
    "CancelMessageMoveTask",
    "CreateQueue",
    "DeleteQueue",
    "ListMessageMoveTasks",
    "ListQueueTags",
    "ListQueues",
    "RemovePermission",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
)
_ACTIONS_MAX = 7


def allows(policy: str, account: str, action: str) -> bool:
    """Whether a policy lets another account do something; a denial wins.

    Conditions are not evaluated: a statement that has some never allows, and always denies.
    """
    allowed = False
    for statement in _statements(_parse(policy)):
        conditional = "Condition" in statement
        if not _names(statement, account) or not _covers(statement, action):
            continue
        if statement.get("Effect") == "Deny":
            return False
        allowed |= statement.get("Effect") == "Allow" and not conditional
    return allowed


def add(policy: str, arn: str, label: str, accounts: list[str], actions: list[str]) -> str:
    """The policy with another statement."""
    if not actions:
        raise missing("Actions")
    if not accounts:
        raise invalid_value("[]", "PrincipalId", "Unable to verify.")
    if len(actions) > _ACTIONS_MAX:
        raise SqsError(
            "OverLimit",
            f"{len(actions)} Actions were found, maximum allowed is {_ACTIONS_MAX}.",
        )
    for action in actions:
        if action in _OWNER_ONLY:
            raise invalid_value(
                f"SQS:{action}",
                "ActionName",
                "Only the queue owner is allowed to invoke this action.",
            )
        if action not in (*SHAREABLE, "*"):
            raise invalid_value(
                f"SQS:{action}",
                "ActionName",
                "Please refer to the appropriate WSDL for a list of valid actions. ",
            )
    document = _parse(policy) or {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [],
    }
    statements = _statements(document)
    if any(statement.get("Sid") == label for statement in statements):
        raise invalid_value(label, "Label", "Already exists.")
    statements.append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{own}:root" for own in accounts])},
            "Action": _one_or_all([f"SQS:{action}" for action in actions]),
            "Resource": arn,
        }
    )
    return _text({**document, "Statement": statements})


def remove(policy: str, label: str) -> str:
    """The policy without a statement; empty when nothing is left."""
    document = _parse(policy)
    statements = _statements(document)
    kept = [statement for statement in statements if statement.get("Sid") != label]
    if len(kept) == len(statements):
        raise invalid_value(label, "Label", "can't find label.")
    return _text({**document, "Statement": kept}) if kept else ""


def _parse(policy: str) -> dict[str, Any]:
    if not policy:
        return {}
    found = msgspec.json.decode(policy)
    return found if isinstance(found, dict) else {}


def _text(document: dict[str, Any]) -> str:
    return msgspec.json.encode(document).decode()


def _statements(document: dict[str, Any]) -> list[dict[str, Any]]:
    found = document.get("Statement", [])
    found = found if isinstance(found, list) else [found]
    return [statement for statement in found if isinstance(statement, dict)]


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _as_list(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _names(statement: dict[str, Any], account: str) -> bool:
    principal = statement.get("Principal")
    if isinstance(principal, dict):
        principal = principal.get("AWS", [])
    return any(
        own in ("*", account) or own.startswith(f"arn:aws:iam::{account}:")
        for own in _as_list(principal)
    )


def _covers(statement: dict[str, Any], action: str) -> bool:
    for own in _as_list(statement.get("Action", [])):
        name = own.lower().removeprefix("sqs:")
        if name == "*" or name == action.lower():
            return True
        if name.endswith("*") and action.lower().startswith(name[:-1]):
            return True
    return False
