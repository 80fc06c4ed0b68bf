"""Limits of messages and queues that are not sizes in bytes."""

import pytest

from ringdove.protocol.sqs import rules
from sqs.clients import bare, fresh_name, later, refused
from sqs.conftest import maker


def _attributes(count: int) -> dict[str, dict[str, str]]:
    return {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(count)}


def test_a_message_may_have_ten_attributes(queue):
    queue.send(MessageAttributes=_attributes(10))
    assert queue.one(MessageAttributeNames=["All"])["MessageAttributes"] == _attributes(10)


def test_a_message_has_at_most_ten_attributes(queue):
    message = "Number of message attributes [11] exceeds the allowed maximum [10]."
    with refused("InvalidParameterValue", message):
        queue.send(MessageAttributes=_attributes(11))


def test_the_trace_header_is_not_one_of_the_ten(queue):
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "some-trace-id"}}
    queue.send(MessageAttributes=_attributes(10), MessageSystemAttributes=trace)
    assert queue.counts() == (1, 0, 0)


_TOO_MANY = (
    "Too many messages have been received without being deleted.\n"
    "Please delete your received messages or let them timeout before receiving more."
)


@pytest.fixture
def few(monkeypatch):
    """A limit that can be reached."""
    monkeypatch.setattr(rules, "IN_FLIGHT_MAX", 5)


@pytest.mark.usefixtures("few")
def test_there_is_a_limit_to_the_messages_in_flight(server, make):
    queue = make()
    queue.send_all(*"abcdefg")
    while queue.counts()[1] < 5:
        queue.receive(1)
    with refused("OverLimit", _TOO_MANY):
        queue.receive(1)
    later(server, 31)
    assert queue.bodies(1) == ["a"]


@pytest.mark.usefixtures("few")
def test_a_fifo_queue_gives_nothing_beyond_the_limit(server, make):
    queue = make(fifo=True)
    queue.send_all("a/1", "b/1", "c/1", "d/1", "e/1", "f/1")
    while queue.counts()[1] < 5:
        queue.receive(1)
    assert queue.receive(1) == []
    later(server, 31)
    assert len(queue.bodies(1)) == 1


def test_a_thousand_messages_go_through_a_queue(json_sqs):
    queue = maker(json_sqs)()
    for hundred in range(10):
        for ten in range(10):
            queue.send_all(*[f"{hundred}{ten}{one}" for one in range(10)])
    seen = []
    while held := queue.receive():
        seen += [message["Body"] for message in held]
        entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(held)]
        assert set(queue.call("delete_message_batch", Entries=entries)) == {"Successful"}
    assert seen == [f"{number:03d}" for number in range(1000)]
    assert queue.counts() == (0, 0, 0)


def test_a_list_has_at_most_a_thousand_queues(server, json_sqs):
    prefix = fresh_name("many")

    async def fill() -> None:
        for number in range(1001):
            await server.server._broker.create_queue(f"{prefix}-{number:04d}", {})

    server.call(fill())
    reply = bare(json_sqs.list_queues(QueueNamePrefix=prefix))
    assert set(reply) == {"QueueUrls"}
    assert len(reply["QueueUrls"]) == 1000
    page = bare(json_sqs.list_queues(QueueNamePrefix=prefix, MaxResults=1000))
    rest = json_sqs.list_queues(
        QueueNamePrefix=prefix, MaxResults=1000, NextToken=page["NextToken"]
    )
    assert len(bare(rest)["QueueUrls"]) == 1
