"""Tags of queues, and permissions for other accounts."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from sqs.clients import Queue, fresh_name, refused

_ONE, _OTHER = "111111111111", "222222222222"


def _tags(queue: Queue) -> dict[str, str]:
    return queue.call("list_queue_tags").get("Tags", {})


# -- tags -------------------------------------------------------------------------------------------


def test_a_queue_without_tags_has_none_to_list(queue):
    assert queue.call("list_queue_tags") == {}


def test_tags_are_put_on_and_taken_off(queue):
    assert queue.call("tag_queue", Tags={"tag1": "value1", "tag2": "value2", "tag3": ""}) == {}
    assert queue.call("list_queue_tags") == {
        "Tags": {"tag1": "value1", "tag2": "value2", "tag3": ""}
    }
    assert queue.call("untag_queue", TagKeys=["tag2"]) == {}
    assert _tags(queue) == {"tag1": "value1", "tag3": ""}
    queue.call("untag_queue", TagKeys=["tag1", "tag3"])
    assert queue.call("list_queue_tags") == {}


def test_tags_that_are_put_on_at_the_same_time_are_all_there(queue):
    tags = {f"tag{number}": "x" for number in range(12)}
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda key: queue.call("tag_queue", Tags={key: "x"}), tags))
    assert _tags(queue) == tags


def test_tags_are_case_sensitive(queue):
    queue.call("tag_queue", Tags={"MyTag": "value1", "mytag": "value2"})
    queue.call("untag_queue", TagKeys=["MYTAG"])
    assert _tags(queue) == {"MyTag": "value1", "mytag": "value2"}


def test_taking_off_what_is_not_there_is_no_error(queue):
    queue.call("tag_queue", Tags={"tag1": "value1"})
    queue.call("untag_queue", TagKeys=["tag1", "tag2"])
    assert queue.call("list_queue_tags") == {}


def test_a_tag_is_overwritten_and_others_stay(queue):
    queue.call("tag_queue", Tags={"tag1": "value1", "tag2": "value2"})
    queue.call("tag_queue", Tags={"tag1": "VALUE1", "tag3": "value3"})
    assert _tags(queue) == {"tag1": "VALUE1", "tag2": "value2", "tag3": "value3"}


@pytest.mark.parametrize("fifo", [False, True])
def test_a_queue_is_created_with_tags(sqs, fifo):
    tags = {"tag1": "value1", "tag2": "value2", "tag3": ""}
    attributes = {"FifoQueue": "true"} if fifo else {}
    name = fresh_name(fifo=fifo)
    url = sqs.create_queue(QueueName=name, Attributes=attributes, tags=tags)["QueueUrl"]
    assert Queue(sqs, url).call("list_queue_tags") == {"Tags": tags}


def test_a_tag_is_any_text(queue):
    tags = {"key with blanks/and:more": "gr\u00fc\u00df & <more>", "k" * 128: "v" * 256}
    queue.call("tag_queue", Tags=tags)
    assert _tags(queue) == tags


def test_tagging_needs_tags(queue):
    with refused("MissingParameter", "The request must contain the parameter Tags."):
        queue.call("tag_queue", Tags={})


def test_untagging_needs_keys(queue):
    message = "Tag keys must be between 1 and 128 characters in length."
    with refused("InvalidParameterValue", message):
        queue.call("untag_queue", TagKeys=[])


def test_a_queue_has_at_most_50_tags(queue):
    tags = {f"tag{number}": "x" for number in range(51)}
    with refused("InvalidParameterValue", f"Too many tags added for queue {queue.name}."):
        queue.call("tag_queue", Tags=tags)
    assert queue.call("list_queue_tags") == {}
    tags.pop("tag50")
    queue.call("tag_queue", Tags=tags)
    with refused("InvalidParameterValue", f"Too many tags added for queue {queue.name}."):
        queue.call("tag_queue", Tags={"another": "x"})
    assert _tags(queue) == tags


# -- permissions --------------------------------------------------------------------------------------


def test_permissions_that_change_at_the_same_time_are_all_kept(queue):
    def permit(label: str) -> None:
        given = {"AWSAccountIds": [_ONE], "Actions": ["SendMessage"]}
        queue.call("add_permission", Label=label, **given)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(permit, "abcdefgh"))
        changes = [pool.submit(queue.call, "remove_permission", Label=label) for label in "abcd"]
        changes += [pool.submit(permit, label) for label in "ijkl"]
        for change in changes:
            change.result()
    found = queue.call("get_queue_attributes", AttributeNames=["Policy"])["Attributes"]["Policy"]
    assert {own["Sid"] for own in json.loads(found)["Statement"]} == set("efghijkl")


def _permit(queue: Queue, label: str, accounts: list[str], actions: list[str]) -> None:
    assert queue.call("add_permission", Label=label, AWSAccountIds=accounts, Actions=actions) == {}


def _policy(queue: Queue) -> dict[str, object]:
    return json.loads(queue.attribute("Policy"))


def _statement(queue: Queue, label: str, principal: object, action: object) -> dict[str, object]:
    return {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": principal},
        "Action": action,
        "Resource": queue.arn,
    }


def _root(account: str) -> str:
    return f"arn:aws:iam::{account}:root"


def test_permissions_are_a_policy(queue):
    _permit(queue, "first", [_ONE, _OTHER], ["ReceiveMessage"])
    first = _statement(queue, "first", [_root(_ONE), _root(_OTHER)], "SQS:ReceiveMessage")
    document = {
        "Version": "2008-10-17",
        "Id": f"{queue.arn}/SQSDefaultPolicy",
        "Statement": [first],
    }
    assert _policy(queue) == document
    _permit(queue, "second", [_ONE], ["ReceiveMessage", "DeleteMessage"])
    actions = ["SQS:ReceiveMessage", "SQS:DeleteMessage"]
    second = _statement(queue, "second", _root(_ONE), actions)
    assert _policy(queue) == {**document, "Statement": [first, second]}
    assert queue.call("remove_permission", Label="first") == {}
    assert _policy(queue) == {**document, "Statement": [second]}
    queue.call("remove_permission", Label="second")
    assert queue.call("get_queue_attributes", AttributeNames=["Policy"]) == {}


def test_every_action_may_be_permitted(queue):
    _permit(queue, "all", [_ONE], ["*"])
    assert _policy(queue)["Statement"] == [_statement(queue, "all", _root(_ONE), "SQS:*")]


def test_a_permission_joins_the_policy_that_is_there(queue):
    own = _statement(queue, "own", "*", "SQS:SendMessage")
    queue.set(Policy=json.dumps({"Version": "2012-10-17", "Statement": [own]}))
    _permit(queue, "more", [_ONE], ["SendMessage"])
    more = _statement(queue, "more", _root(_ONE), "SQS:SendMessage")
    assert _policy(queue)["Statement"] == [own, more]


def test_a_label_is_used_once(queue):
    _permit(queue, "label", [_ONE], ["ReceiveMessage"])
    message = "Value label for parameter Label is invalid. Reason: Already exists."
    with refused("InvalidParameterValue", message):
        _permit(queue, "label", [_ONE], ["SendMessage"])


def test_a_label_that_is_not_there_is_not_removed(queue):
    message = "Value label for parameter Label is invalid. Reason: can't find label."
    with refused("InvalidParameterValue", message):
        queue.call("remove_permission", Label="label")
    _permit(queue, "other", [_ONE], ["ReceiveMessage"])
    with refused("InvalidParameterValue", message):
        queue.call("remove_permission", Label="label")


@pytest.mark.parametrize(
    "action", ["RemovePermission", "AddPermission", "CreateQueue", "DeleteQueue", "ListQueues",
               "SetQueueAttributes", "TagQueue", "UntagQueue", "ListQueueTags"],
)  # fmt: skip
def test_what_only_the_owner_may_is_not_permitted(queue, action):
    message = (
        f"Value SQS:{action} for parameter ActionName is invalid. "
        "Reason: Only the queue owner is allowed to invoke this action."
    )
    with refused("InvalidParameterValue", message):
        _permit(queue, "label", [_ONE], [action])


@pytest.mark.parametrize("action", ["Foo", "SendMessageBatch", ""])
def test_what_is_no_action_is_not_permitted(queue, action):
    with refused("InvalidParameterValue"):
        _permit(queue, "label", [_ONE], [action])


@pytest.mark.parametrize(
    ("accounts", "actions", "code"),
    [
        ([_ONE], [], "MissingParameter"),
        ([_ONE], None, "MissingParameter"),
    ],
)
def test_a_permission_needs_actions(queue, accounts, actions, code):
    given = {"AWSAccountIds": accounts, "Actions": actions}
    with refused(code):
        queue.call("add_permission", Label="l", **{k: v for k, v in given.items() if v is not None})


@pytest.mark.parametrize("label", [{}, {"Label": ""}])
def test_a_permission_needs_a_label(queue, label):
    message = "The request must contain the parameter Label."
    with refused("MissingParameter", message):
        queue.call("add_permission", AWSAccountIds=[_ONE], Actions=["SendMessage"], **label)
    with refused("MissingParameter", message):
        queue.call("remove_permission", **label)


def test_a_permission_has_at_most_7_actions(queue):
    actions = [
        "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl",
        "ListDeadLetterSourceQueues", "PurgeQueue", "ReceiveMessage", "SendMessage",
    ]  # fmt: skip
    with refused("OverLimit", "8 Actions were found, maximum allowed is 7."):
        _permit(queue, "label", [_ONE], actions)
    _permit(queue, "label", [_ONE], actions[:7])


def test_a_policy_has_at_most_20_permissions(queue):
    for number in range(20):
        _permit(queue, f"label-{number}", [_ONE], ["SendMessage"])
    with refused("OverLimit", "21 Statements were found, maximum allowed is 20."):
        _permit(queue, "label-20", [_ONE], ["SendMessage"])
