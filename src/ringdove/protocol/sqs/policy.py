"""Access policies of queues: the documents that AddPermission writes and others bring along."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.protocol.sqs.errors import SqsError, invalid_value, missing

if TYPE_CHECKING:
    from collections.abc import Callable

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
STATEMENTS_MAX = 20

_VERSIONS = ("2008-10-17", "2012-10-17")
_MEMBERS = {"Version", "Id", "Statement"}
_STATEMENT_MEMBERS = {
    "Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource",
    "Condition",
}  # fmt: skip


def is_sound(document: Any) -> bool:
    """Whether a document looks like a policy at all."""
    if not isinstance(document, dict) or not document.keys() <= _MEMBERS:
        return False
    if document.get("Version", _VERSIONS[0]) not in _VERSIONS:
        return False
    found = document.get("Statement")
    found = found if isinstance(found, list) else [found]
    return all(
        isinstance(statement, dict) and statement and statement.keys() <= _STATEMENT_MEMBERS
        for statement in found
    )


def count_statements(document: dict[str, Any]) -> int:
    """How many statements it has."""
    return len(_statements(document))


def allows(policy: str, arn: str, account: str, action: str) -> bool:
    """Whether a policy lets another account do something to the queue; a denial wins.

    However wide a statement is, it gives away only what AddPermission could. Conditions are not
    evaluated: a statement that has some never allows, and always denies. Nor does one ever allow
    that only says what it is not for.
    """
    if action not in SHAREABLE:
        return False
    allowed = False
    for statement in _statements(_parse(policy)):
        if (
            _covers(statement, "Principal", lambda own: _names(own, account))
            and _covers(statement, "Action", lambda own: _means(own, action))
            and _covers(statement, "Resource", lambda own: _is_queue(own, arn))
        ):
            if statement.get("Effect") != "Allow":
                return False
            allowed |= not any(name in statement for name in _VAGUE)
    return allowed


_VAGUE = ("Condition", "NotPrincipal", "NotAction", "NotResource")


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
    if len(statements) >= STATEMENTS_MAX:
        raise SqsError(
            "OverLimit",
            f"{len(statements) + 1} Statements were found, maximum allowed is {STATEMENTS_MAX}.",
        )
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


def _covers(statement: dict[str, Any], field: str, test: Callable[[str], bool]) -> bool:
    """Whether what a statement says in a field, or in its opposite, is meant."""
    opposite = f"Not{field}" in statement
    given = statement.get(f"Not{field}" if opposite else field, "*" if field == "Resource" else [])
    if isinstance(given, dict):
        given = given.get("AWS", [])
    return any(test(own) for own in _as_list(given)) != opposite


def _names(principal: str, account: str) -> bool:
    return principal in ("*", account) or principal.startswith(f"arn:aws:iam::{account}:")


def _means(pattern: str, action: str) -> bool:
    return _fits(pattern.lower().removeprefix("sqs:"), action.lower())


def _is_queue(pattern: str, arn: str) -> bool:
    """Whether a resource is the queue; in whichever region, for a server has only one."""
    parts = pattern.split(":")
    if len(parts) == 6:
        parts[3] = "*"
    return _fits(":".join(parts), arn)


def _fits(pattern: str, text: str) -> bool:
    """Whether a text is what a pattern stands for, in which only `*` and `?` are wildcards."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))
