"""Attributes of queues: which there are, what they may be, what comes back."""

import json

import pytest

from sqs.clients import Queue, fresh_name, later, refused

_FRESH = {
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
    "VisibilityTimeout": "30",
}
_FRESH_FIFO = {
    **_FRESH,
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoQueue": "true",
    "FifoThroughputLimit": "perQueue",
}
_RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}
_SOME_POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": "*",
                "Action": "sqs:SendMessage",
                "Resource": "arn:aws:sqs:eu-north-1:000000000000:any",
            }
        ],
    }
)


def _all(queue: Queue) -> dict[str, str]:
    """All attributes but those that differ from queue to queue."""
    found = queue.attributes("All")
    assert found.pop("QueueArn").endswith(f":{queue.name}")
    for name in ("CreatedTimestamp", "LastModifiedTimestamp"):
        stamp = found.pop(name)
        assert stamp.isdecimal()
        assert len(stamp) == 10
    return found


# -- reading ----------------------------------------------------------------------------------------


def test_a_fresh_queue_has_the_usual_attributes(queue):
    assert _all(queue) == _FRESH


def test_a_fresh_fifo_queue_has_some_more(make):
    assert _all(make(fifo=True, ContentBasedDeduplication="false")) == _FRESH_FIFO


def test_only_what_is_asked_for_comes_back(queue):
    found = queue.attributes("QueueArn", "CreatedTimestamp", "VisibilityTimeout")
    assert set(found) == {"QueueArn", "CreatedTimestamp", "VisibilityTimeout"}
    assert found["VisibilityTimeout"] == "30"
    assert queue.attributes("QueueArn") == {"QueueArn": found["QueueArn"]}


@pytest.mark.parametrize(
    "name",
    ["Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId", "FifoQueue"],
)
def test_what_a_queue_does_not_have_is_left_out(queue, name):
    assert queue.call("get_queue_attributes", AttributeNames=[name]) == {}
    assert queue.attributes(name, "DelaySeconds") == {"DelaySeconds": "0"}


def test_nothing_asked_is_nothing_answered(queue):
    assert queue.call("get_queue_attributes") == {}


@pytest.mark.parametrize("names", [["Foobar"], ["All", "Foobar"], ["DelaySeconds", "Foobar"]])
def test_an_unknown_attribute_fails_the_whole_question(queue, names):
    with refused("InvalidAttributeName", "Unknown Attribute Foobar."):
        queue.attributes(*names)


def test_an_empty_name_is_an_unknown_attribute(queue):
    with refused("InvalidAttributeName", "Unknown Attribute ."):
        queue.attributes("")


# -- changing ---------------------------------------------------------------------------------------


def test_attributes_are_given_at_creation_and_changed_later(make):
    queue = make(MessageRetentionPeriod="604800", ReceiveMessageWaitTimeSeconds="10")
    before = {**_FRESH, "MessageRetentionPeriod": "604800", "ReceiveMessageWaitTimeSeconds": "10"}
    assert _all(queue) == before
    change = {"MaximumMessageSize": "2048", "VisibilityTimeout": "69", "DelaySeconds": "420"}
    queue.set(**change)
    assert _all(queue) == {**before, **change}


def test_a_change_moves_the_time_of_the_last_one(server, queue):
    before = queue.attributes("CreatedTimestamp", "LastModifiedTimestamp")
    assert before["CreatedTimestamp"] == before["LastModifiedTimestamp"]
    later(server, 2)
    queue.set(DelaySeconds="1")
    after = queue.attributes("CreatedTimestamp", "LastModifiedTimestamp")
    assert after["CreatedTimestamp"] == before["CreatedTimestamp"]
    assert int(after["LastModifiedTimestamp"]) >= int(before["LastModifiedTimestamp"]) + 2


@pytest.mark.parametrize("name", _RANGES)
def test_the_ends_of_a_range_are_within(make, name):
    key = {"KmsMasterKeyId": "k"} if name.startswith("Kms") else {}
    for value in _RANGES[name]:
        queue = make(**{name: str(value)}, **key)
        assert queue.attribute(name) == str(value)


#: An empty period of a key is the usual one.
_BAD_NUMBERS = [
    (name, bad)
    for name in _RANGES
    for bad in ("low", "high", "", " 61", "-45", "544.43", "true", "many")
    if bad or not name.startswith("Kms")
]


@pytest.mark.parametrize(("name", "bad"), _BAD_NUMBERS)
def test_a_number_out_of_range_or_none_at_all_is_refused(sqs, queue, name, bad):
    low, high = _RANGES[name]
    value = {"low": str(low - 1), "high": str(high + 1)}.get(bad, bad)
    message = f"Invalid value for the parameter {name}."
    with refused("InvalidAttributeValue", message):
        sqs.create_queue(QueueName=fresh_name(), Attributes={name: value})
    with refused("InvalidAttributeValue", message):
        queue.set(**{name: value})


def test_one_wrong_value_changes_nothing(queue):
    with refused("InvalidAttributeValue"):
        queue.set(DelaySeconds="5", VisibilityTimeout="-1")
    assert queue.attribute("DelaySeconds") == "0"


@pytest.mark.parametrize(
    "name",
    [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "QueueArn",
        "Colour",
    ],
)
def test_what_cannot_be_set_is_unknown(queue, name):
    with refused("InvalidAttributeName", f"Unknown Attribute {name}."):
        queue.set(**{name: "1"})


def test_a_change_must_change_something(queue):
    message = "The request must contain the parameter Attribute.Name."
    for options in ({}, {"Attributes": {}}):
        with refused("MissingParameter", message):
            queue.call("set_queue_attributes", **options)


def test_json_numbers_and_nulls_are_taken(wire, place):
    given = {"DelaySeconds": 400, "VisibilityTimeout": None}
    answer = wire.json("SetQueueAttributes", {"QueueUrl": place.url, "Attributes": given})
    assert answer.status == 200
    found = place.attributes("DelaySeconds", "VisibilityTimeout")
    assert found == {"DelaySeconds": "400", "VisibilityTimeout": "30"}


# -- FIFO -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_standard_queue_stays_one(queue, value):
    with refused("InvalidAttributeName", "Unknown Attribute FifoQueue."):
        queue.set(FifoQueue=value)


def test_a_fifo_queue_stays_one(fifo):
    fifo.set(FifoQueue="true")
    message = (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )
    with refused("InvalidAttributeValue", message):
        fifo.set(FifoQueue="false")
    assert fifo.attribute("FifoQueue") == "true"


def test_content_based_deduplication_is_switched_on_and_off(make):
    queue = make(fifo=True)
    on = {**_FRESH_FIFO, "ContentBasedDeduplication": "true"}
    assert _all(queue) == on
    queue.set(ContentBasedDeduplication="false")
    assert _all(queue) == _FRESH_FIFO
    queue.set(ContentBasedDeduplication="true")
    assert _all(queue) == on


@pytest.mark.parametrize(
    ("name", "value"), [("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue")]
)
def test_a_standard_queue_gets_no_fifo_attribute_later(queue, name, value):
    message = f"You can specify the {name} only when FifoQueue is set to true."
    with refused("InvalidAttributeName", message):
        queue.set(**{name: value})


def test_throughput_per_group_needs_deduplication_per_group(make, fifo):
    message = (
        "The perMessageGroupId value is allowed only when the value for DeduplicationScope is "
        "messageGroup"
    )
    with refused("InvalidParameterValue", message):
        fifo.set(FifoThroughputLimit="perMessageGroupId")
    with refused("InvalidParameterValue", message):
        make(fifo=True, FifoThroughputLimit="perMessageGroupId")


def test_high_throughput_is_switched_on_and_off(fifo):
    high = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    fifo.set(**high)
    assert fifo.attributes(*high) == high
    low = {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}
    fifo.set(**low)
    assert fifo.attributes(*low) == low


@pytest.mark.parametrize(
    "name", ["DeduplicationScope", "FifoThroughputLimit", "ContentBasedDeduplication"]
)
def test_a_word_that_is_none_of_the_choices_is_refused(fifo, name):
    with refused("InvalidAttributeValue", f"Invalid value for the parameter {name}."):
        fifo.set(**{name: "perhaps"})


# -- encryption -------------------------------------------------------------------------------------


def test_a_key_switches_the_other_encryption_off(queue):
    queue.set(KmsMasterKeyId="testKeyId", KmsDataKeyReusePeriodSeconds="6000")
    key = {"KmsMasterKeyId": "testKeyId", "KmsDataKeyReusePeriodSeconds": "6000"}
    assert _all(queue) == {**_FRESH, **key, "SqsManagedSseEnabled": "false"}


def test_the_defaults_take_the_key_away(queue):
    queue.set(KmsMasterKeyId="testKeyId", KmsDataKeyReusePeriodSeconds="6000")
    queue.set(KmsMasterKeyId="", KmsDataKeyReusePeriodSeconds="300")
    assert _all(queue) == {**_FRESH, "SqsManagedSseEnabled": "false"}


def test_a_key_alone_has_the_usual_period(make):
    queue = make(KmsMasterKeyId="testKeyId")
    key = {"KmsMasterKeyId": "testKeyId", "KmsDataKeyReusePeriodSeconds": "300"}
    assert _all(queue) == {**_FRESH, **key, "SqsManagedSseEnabled": "false"}
    queue.set(SqsManagedSseEnabled="true")
    assert _all(queue) == _FRESH


def test_there_is_one_encryption_at_a_time(queue):
    message = (
        "You can use one type of server-side encryption (SSE) at one time. "
        "You can either enable KMS SSE or SQS SSE."
    )
    with refused("InvalidAttributeName", message):
        queue.set(KmsMasterKeyId="testKeyId", SqsManagedSseEnabled="true")


def test_encryption_is_switched_off(queue):
    queue.set(SqsManagedSseEnabled="false")
    assert queue.attribute("SqsManagedSseEnabled") == "false"


# -- policies ---------------------------------------------------------------------------------------


def test_a_policy_comes_back_word_for_word(make, queue):
    queue.set(Policy=_SOME_POLICY)
    assert queue.attributes("Policy") == {"Policy": _SOME_POLICY}
    assert make(Policy=_SOME_POLICY).attribute("Policy") == _SOME_POLICY


def test_an_empty_policy_takes_it_away(queue):
    queue.set(Policy=_SOME_POLICY)
    queue.set(Policy="")
    assert queue.call("get_queue_attributes", AttributeNames=["Policy"]) == {}
    assert "Policy" not in queue.attributes("All")


def test_a_policy_may_have_one_statement_without_a_list(queue):
    [statement] = json.loads(_SOME_POLICY)["Statement"]
    text = json.dumps({"Version": "2008-10-17", "Id": "mine", "Statement": statement})
    queue.set(Policy=text)
    assert queue.attribute("Policy") == text


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '"text"',
        "5",
        "null",
        '{"Version": "2012-10-17", "Statement": [], "Colour": "blue"}',
        '{"Version": "1999-12-31", "Statement": [{"Effect": "Allow"}]}',
        '{"Version": "2012-10-17"}',
        '{"Version": "2012-10-17", "Statement": [{}]}',
        '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Colour": "blue"}]}',
    ],
)
def test_what_is_no_policy_is_refused(sqs, queue, text):
    message = "Invalid value for the parameter Policy."
    with refused("InvalidAttributeValue", message):
        queue.set(Policy=text)
    with refused("InvalidAttributeValue", message):
        sqs.create_queue(QueueName=fresh_name(), Attributes={"Policy": text})


def test_a_policy_has_up_to_20_statements(queue):
    document = json.loads(_SOME_POLICY)
    document["Statement"] *= 20
    queue.set(Policy=json.dumps(document))
    document["Statement"] = document["Statement"] * 2
    message = "40 statements were found in the submitted policy, max allowed is 20"
    with refused("InvalidParameterValue", message):
        queue.set(Policy=json.dumps(document))


_NEEDS_QUEUES = (
    "When you specify the byQueue permission type, you must also specify one or more "
    "sourceQueueArns values."
)
_SOURCES = [f"arn:aws:sqs:eu-north-1:000000000000:source-{number}" for number in range(11)]


@pytest.mark.parametrize(
    "policy",
    [
        {"redrivePermission": "allowAll"},
        {"redrivePermission": "denyAll"},
        {"redrivePermission": "byQueue", "sourceQueueArns": _SOURCES[:10]},
    ],
)
def test_a_redrive_allow_policy_comes_back_word_for_word(queue, policy):
    text = json.dumps(policy)
    queue.set(RedriveAllowPolicy=text)
    assert queue.attributes("RedriveAllowPolicy") == {"RedriveAllowPolicy": text}
    queue.set(RedriveAllowPolicy="")
    assert queue.call("get_queue_attributes", AttributeNames=["RedriveAllowPolicy"]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        "{}",
        '{"redrivePermission": "perhaps"}',
        '{"redrivePermission": "allowAll", "colour": "blue"}',
        '{"redrivePermission": "byQueue", "sourceQueueArns": "one"}',
        '{"redrivePermission": "byQueue", "sourceQueueArns": [1]}',
    ],
)
def test_what_is_no_redrive_allow_policy_is_refused(queue, text):
    message = (
        "Invalid value for the parameter RedriveAllowPolicy. Reason: Amazon SQS can't create the "
        "redrive allow policy, as it\u2019s in an unsupported format."
    )
    with refused("InvalidAttributeValue", message):
        queue.set(RedriveAllowPolicy=text)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (
            {"redrivePermission": "byQueue"},
            _NEEDS_QUEUES,
        ),
        (
            {"redrivePermission": "byQueue", "sourceQueueArns": []},
            _NEEDS_QUEUES,
        ),
        (
            {"redrivePermission": "byQueue", "sourceQueueArns": _SOURCES},
            "The maximum number of source queue ARNs you can specify is 10.",
        ),
        (
            {"redrivePermission": "allowAll", "sourceQueueArns": _SOURCES[:1]},
            "To specify one or more source queue ARNs, you must set redrivePermission to byQueue.",
        ),
        (
            {"redrivePermission": "denyAll", "sourceQueueArns": _SOURCES[:1]},
            "To specify one or more source queue ARNs, you must set redrivePermission to byQueue.",
        ),
    ],
)
def test_a_redrive_allow_policy_names_up_to_10_queues_or_none(queue, policy, reason):
    text = json.dumps(policy)
    message = (
        f"Value {text} for parameter RedriveAllowPolicy is invalid. "
        f"Reason: Amazon SQS can't create the redrive allow policy. {reason}"
    )
    with refused("InvalidParameterValue", message):
        queue.set(RedriveAllowPolicy=text)
