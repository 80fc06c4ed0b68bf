"""Dead-letter queues: redrive policies, and how messages get there."""

import json

import pytest

from sqs.clients import ACCOUNT, REGION, Queue, fresh_name, later, refused


def _policy(queue: Queue, **changes: object) -> str:
    return json.dumps({"deadLetterTargetArn": queue.arn, "maxReceiveCount": 42, **changes})


def _arn(name: str, service: str = "sqs") -> str:
    return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{name}"


def _wrong(text: str, reason: str) -> str:
    return f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}"


@pytest.fixture
def dead(make):
    """A queue for dead letters."""
    return make()


@pytest.fixture
def source(make, dead):
    """A queue whose messages are dead letters when they come for the second time."""
    return make(RedrivePolicy=_policy(dead, maxReceiveCount=1), VisibilityTimeout="10")


# -- policies ---------------------------------------------------------------------------------------


def test_a_policy_is_given_at_creation(make, dead):
    queue = make(RedrivePolicy=_policy(dead, maxReceiveCount=2))
    found = json.loads(queue.attribute("RedrivePolicy"))
    assert found == {"deadLetterTargetArn": dead.arn, "maxReceiveCount": 2}


@pytest.mark.parametrize("count", [1, 42, "42", 1000])
def test_a_count_is_a_number_or_the_text_of_one(queue, dead, count):
    queue.set(RedrivePolicy=_policy(dead, maxReceiveCount=count))
    found = json.loads(queue.attribute("RedrivePolicy"))
    assert found["deadLetterTargetArn"] == dead.arn
    assert int(found["maxReceiveCount"]) == int(count)
    if isinstance(count, int):
        assert found["maxReceiveCount"] == count


def test_an_empty_policy_takes_it_away(server, source, dead):
    source.set(RedrivePolicy="")
    assert source.call("get_queue_attributes", AttributeNames=["RedrivePolicy"]) == {}
    assert "RedrivePolicy" not in source.attributes("All")
    source.send("x")
    for _ in range(3):
        assert source.bodies() == ["x"]
        later(server, 11)
    assert dead.receive() == []


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (
            {"maxReceiveCount": 5},
            "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.",
        ),
        (
            {"deadLetterTargetArn": _arn("any")},
            "Redrive policy does not contain mandatory attribute: maxReceiveCount.",
        ),
        (
            {"deadLetterTargetArn": "dummy", "maxReceiveCount": 42},
            "Invalid value for deadLetterTargetArn.",
        ),
        (
            {"deadLetterTargetArn": _arn("any", "sns"), "maxReceiveCount": 42},
            "Only SQS queues are valid resources for deadLetterTargetArn.",
        ),
        (
            {"deadLetterTargetArn": _arn("unknown"), "maxReceiveCount": 42},
            "Dead letter target does not exist.",
        ),
        (
            {"deadLetterTargetArn": _arn("any"), "maxReceiveCount": 42, "colour": "blue"},
            "Only following attributes are supported: [maxReceiveCount, deadLetterTargetArn].",
        ),
    ],
)
def test_what_is_said_of_a_wrong_policy(sqs, queue, policy, reason):
    text = json.dumps(policy)
    with refused("InvalidParameterValue", _wrong(text, reason)):
        queue.set(RedrivePolicy=text)
    with refused("InvalidParameterValue", _wrong(text, reason)):
        sqs.create_queue(QueueName=fresh_name(), Attributes={"RedrivePolicy": text})


@pytest.mark.parametrize("count", [-36, 0, 1001, 4023])
def test_a_message_is_received_1_to_1000_times(queue, dead, count):
    text = _policy(dead, maxReceiveCount=count)
    reason = (
        f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 "
        "both inclusive."
    )
    with refused("InvalidParameterValue", _wrong(text, reason)):
        queue.set(RedrivePolicy=text)


@pytest.mark.parametrize("count", ["foo", "", None, [], 1.5])
def test_a_count_that_is_no_number_is_refused(queue, dead, count):
    with refused("InvalidParameterValue"):
        queue.set(RedrivePolicy=_policy(dead, maxReceiveCount=count))


@pytest.mark.parametrize("text", ["no JSON", "[]", '"text"', "5"])
def test_what_is_no_map_is_no_policy(queue, text):
    message = (
        "Invalid value for the parameter RedrivePolicy. "
        "Reason: Redrive policy is not a valid JSON map."
    )
    with refused("InvalidAttributeValue", message):
        queue.set(RedrivePolicy=text)


def test_dead_letters_go_to_a_queue_of_the_same_type(queue, fifo):
    reason = "Dead-letter queue must be same type of queue as the source.."
    for own, target in ((queue, fifo), (fifo, queue)):
        text = _policy(target)
        with refused("InvalidParameterValue", _wrong(text, reason)):
            own.set(RedrivePolicy=text)


def test_a_queue_may_refuse_the_dead_letters_of_others(queue, dead):
    dead.set(RedriveAllowPolicy=json.dumps({"redrivePermission": "denyAll"}))
    with refused("InvalidParameterValue"):
        queue.set(RedrivePolicy=_policy(dead))
    chosen = {"redrivePermission": "byQueue", "sourceQueueArns": [queue.arn]}
    dead.set(RedriveAllowPolicy=json.dumps(chosen))
    queue.set(RedrivePolicy=_policy(dead))
    dead.set(RedriveAllowPolicy=json.dumps({"redrivePermission": "allowAll"}))
    queue.set(RedrivePolicy=_policy(dead))


def test_the_sources_of_a_queue_are_listed(make, dead):
    assert dead.call("list_dead_letter_source_queues").get("queueUrls", []) == []
    sources = [make(RedrivePolicy=_policy(dead)) for _ in range(3)]
    urls = sorted(source.url for source in sources)
    assert dead.call("list_dead_letter_source_queues") == {"queueUrls": urls}
    first = dead.call("list_dead_letter_source_queues", MaxResults=2)
    assert first["queueUrls"] == urls[:2]
    rest = dead.call("list_dead_letter_source_queues", MaxResults=2, NextToken=first["NextToken"])
    assert rest == {"queueUrls": urls[2:]}


# -- moving -----------------------------------------------------------------------------------------


def test_a_message_received_too_often_is_a_dead_letter(server, source, dead):
    source.send("x")
    assert source.bodies() == ["x"]
    later(server, 11)
    assert dead.receive() == []
    assert source.call("receive_message", WaitTimeSeconds=0) == {}
    assert dead.bodies() == ["x"]
    assert source.counts() == (0, 0, 0)


@pytest.mark.parametrize("receives", [2, 3])
def test_a_message_is_received_as_often_as_the_policy_says(make, dead, receives):
    queue = make(RedrivePolicy=_policy(dead, maxReceiveCount=receives))
    queue.send("x")
    for _ in range(receives):
        queue.hide(queue.one(), 0)
    assert queue.receive() == []
    assert dead.bodies() == ["x"]


def test_a_deleted_message_is_no_dead_letter(server, source, dead):
    source.send("x")
    source.delete(source.one())
    later(server, 11)
    assert source.receive() == []
    assert dead.receive() == []


def test_a_dead_letter_keeps_what_it_had(server, source, dead):
    attributes = {"k": {"DataType": "Number", "StringValue": "7"}}
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "some-trace-id"}}
    sent = source.send("x", MessageAttributes=attributes, MessageSystemAttributes=trace)
    before = source.one(AttributeNames=["All"])["Attributes"]
    assert "DeadLetterQueueSourceArn" not in before
    later(server, 11)
    assert source.receive() == []
    letter = dead.one(AttributeNames=["All"], MessageAttributeNames=["All"])
    assert letter["MessageId"] == sent["MessageId"]
    assert letter["MessageAttributes"] == attributes
    assert letter["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    found = letter["Attributes"]
    assert found["AWSTraceHeader"] == "some-trace-id"
    assert found["SentTimestamp"] == before["SentTimestamp"]
    assert found["SenderId"] == before["SenderId"]
    assert found["ApproximateReceiveCount"] == "2"
    assert found["DeadLetterQueueSourceArn"] == source.arn


def test_a_dead_letter_is_received_and_deleted_like_any_message(server, source, dead):
    source.send("x")
    source.one()
    later(server, 11)
    assert source.receive() == []
    dead.delete(dead.one())
    later(server, 31)
    assert dead.receive() == []


def test_a_policy_for_a_queue_with_messages_counts_from_then_on(server, queue, dead):
    queue.send("x")
    queue.hide(queue.one(), 0)
    queue.redrive_to(dead)
    assert queue.receive() == []
    assert dead.bodies() == ["x"]


def test_dead_letters_of_a_fifo_queue(server, make):
    dead = make(fifo=True)
    source = make(fifo=True, VisibilityTimeout="10")
    source.redrive_to(dead)
    source.send("one", "g", MessageDeduplicationId="1")
    source.send("two", "g", MessageDeduplicationId="2")
    assert source.bodies(1) == ["one"]
    later(server, 11)
    assert source.bodies(1) == ["two"]
    [letter] = dead.receive(AttributeNames=["All"])
    assert letter["Body"] == "one"
    assert letter["Attributes"]["MessageGroupId"] == "g"
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == source.arn


def test_the_group_of_a_dead_letter_goes_on(server, make):
    dead = make(fifo=True)
    source = make(fifo=True, VisibilityTimeout="10")
    source.redrive_to(dead)
    source.send("one", "g")
    source.one()
    later(server, 11)
    assert source.receive() == []
    assert dead.bodies() == ["one"]
    source.send("two", "g")
    assert source.bodies() == ["two"]
