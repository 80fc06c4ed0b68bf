"""Receiving: how many, how long to wait, and what comes along with a body."""

import pytest

from ringdove.controllers.sending import Outgoing
from server.running import wait_for
from sqs.clients import ACCOUNT, later, meanwhile, parked, protocol_of, refused, texts

#: Longer than any test may take: a receive that waits so long has not been woken.
_LONG_S = 20
_SOON = pytest.mark.timeout(15)

_ATTRIBUTES = {
    "General": {"DataType": "String", "StringValue": "Kenobi"},
    "Hello": {"DataType": "String", "StringValue": "There"},
    "Help.Me": {"DataType": "String", "StringValue": "Me"},
}
_ALL_MD5 = "4c360f3fdafd970e05fae2f149d997f5"
_STANDARD = {
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
}


# -- how many ---------------------------------------------------------------------------------------


def test_one_message_comes_when_no_number_is_given(queue):
    queue.send_all("a", "b")
    assert texts(queue.call("receive_message")["Messages"]) == ["a"]


def test_up_to_ten_messages_come(queue):
    for _ in range(2):
        queue.send_all(*"abcdefghij")
    assert len(queue.receive(10)) == 10


@pytest.mark.parametrize("count", [11, 0, -1])
def test_a_receive_is_of_1_to_10_messages(queue, count):
    message = (
        f"Value {count} for parameter MaxNumberOfMessages is invalid. "
        "Reason: Must be between 1 and 10, if provided."
    )
    with refused("InvalidParameterValue", message):
        queue.receive(count)


def test_single_messages_and_those_of_a_batch_come_together(queue):
    queue.send_all("a", "b")
    queue.send("c")
    assert sorted(queue.bodies(3)) == ["a", "b", "c"]


def test_messages_come_in_the_order_in_which_they_were_sent(queue):
    queue.send_all("a", "b")
    assert [queue.bodies(1), queue.bodies(1), queue.bodies(1)] == [["a"], ["b"], []]


def test_a_message_that_comes_back_is_the_oldest_again(server, make):
    queue = make(VisibilityTimeout="10")
    queue.send("first")
    assert queue.bodies(1) == ["first"]
    queue.send("second")
    later(server, 11)
    assert queue.bodies(1) == ["first"]


# -- waiting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_s", [0, 1])
def test_an_empty_queue_gives_an_empty_reply(queue, wait_s):
    assert queue.call("receive_message", WaitTimeSeconds=wait_s) == {}


@pytest.mark.parametrize("seconds", [21, -1])
def test_a_wait_is_0_to_20_seconds(queue, seconds):
    message = (
        f"Value {seconds} for parameter WaitTimeSeconds is invalid. "
        "Reason: Must be >= 0 and <= 20, if provided."
    )
    with refused("InvalidParameterValue", message):
        queue.receive(WaitTimeSeconds=seconds)


@_SOON
def test_a_receive_does_not_wait_to_be_filled(queue):
    queue.send_all("a", "b")
    assert len(queue.receive(3, WaitTimeSeconds=_LONG_S)) == 2


@_SOON
def test_a_waiting_receive_gets_what_is_sent_meanwhile(server, queue):
    waiting = meanwhile(lambda: queue.bodies(WaitTimeSeconds=_LONG_S))
    wait_for(lambda: parked(server), "the receiver waits")
    queue.send("at last")
    assert waiting.result() == ["at last"]


@_SOON
def test_a_queue_makes_receivers_wait(server, make):
    queue = make(ReceiveMessageWaitTimeSeconds=str(_LONG_S))
    waiting = meanwhile(queue.bodies)
    wait_for(lambda: parked(server), "the receiver waits")
    queue.send("at last")
    assert waiting.result() == ["at last"]


@_SOON
def test_a_receiver_need_not_wait_although_the_queue_would(make):
    queue = make(ReceiveMessageWaitTimeSeconds=str(_LONG_S))
    assert queue.receive(WaitTimeSeconds=0) == []


@_SOON
def test_a_waiting_receive_gets_a_message_whose_delay_ends(queue):
    queue.send("delayed", DelaySeconds=1)
    assert queue.receive() == []
    assert queue.bodies(WaitTimeSeconds=_LONG_S) == ["delayed"]


@_SOON
def test_a_waiting_receive_gets_a_message_that_becomes_visible(queue):
    queue.send("again")
    first = queue.one(VisibilityTimeout=1)
    second = queue.one(WaitTimeSeconds=_LONG_S)
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]


@_SOON
def test_many_waiting_receivers_get_one_message_each(server, queue):
    waiting = [meanwhile(lambda: queue.bodies(1, WaitTimeSeconds=_LONG_S)) for _ in range(3)]
    wait_for(lambda: parked(server) == 3, "the receivers wait")
    queue.send_all("a", "b", "c")
    assert sorted(body for one in waiting for body in one.result()) == ["a", "b", "c"]


# -- system attributes --------------------------------------------------------------------------------


def test_times_are_whole_milliseconds(queue):
    before_ms = int(queue.attribute("CreatedTimestamp")) * 1000
    queue.send()
    found = queue.one(AttributeNames=["All"])["Attributes"]
    sent, first = (found["SentTimestamp"], found["ApproximateFirstReceiveTimestamp"])
    for stamp in (sent, first):
        assert stamp.isdecimal()
        assert before_ms <= int(stamp) < before_ms + 60_000
    assert int(sent) <= int(first)


def test_receives_are_counted_and_the_first_is_remembered(server, queue):
    queue.send()
    first = queue.one(AttributeNames=["All"])["Attributes"]
    later(server, 31)
    second = queue.one(AttributeNames=["All"])["Attributes"]
    assert (first["ApproximateReceiveCount"], second["ApproximateReceiveCount"]) == ("1", "2")
    for name in ("ApproximateFirstReceiveTimestamp", "SentTimestamp", "SenderId"):
        assert first[name] == second[name]


def test_all_system_attributes_of_a_standard_message(queue):
    queue.send()
    found = queue.one(MessageSystemAttributeNames=["All"])["Attributes"]
    assert set(found) == _STANDARD
    assert found["SenderId"] == ACCOUNT


def test_all_system_attributes_of_a_fifo_message(fifo):
    sent = fifo.send("x", "group-1", MessageDeduplicationId="dedup-1")
    found = fifo.one(MessageSystemAttributeNames=["All"])["Attributes"]
    assert set(found) == _STANDARD | {"MessageDeduplicationId", "MessageGroupId", "SequenceNumber"}
    assert found["MessageGroupId"] == "group-1"
    assert found["MessageDeduplicationId"] == "dedup-1"
    assert found["SequenceNumber"] == sent["SequenceNumber"]


@pytest.mark.parametrize("parameter", ["AttributeNames", "MessageSystemAttributeNames"])
@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["All"], _STANDARD),
        (["SenderId"], {"SenderId"}),
        (["SenderId", "SentTimestamp"], {"SenderId", "SentTimestamp"}),
        (["SenderId", "SequenceNumber"], {"SenderId"}),
        (["All", "SenderId"], _STANDARD),
        (["SequenceNumber"], set()),
        ([], set()),
    ],
)
def test_system_attributes_are_asked_for_by_name(queue, parameter, names, found):
    queue.send()
    message = queue.one(**{parameter: names})
    assert set(message.get("Attributes", {})) == found
    assert ("Attributes" in message) == bool(found)


def test_the_old_and_the_new_list_of_names_together(sqs, queue):
    queue.send()
    found = queue.one(AttributeNames=["SenderId"], MessageSystemAttributeNames=["All"])
    wanted = _STANDARD if protocol_of(sqs) == "json" else {"SenderId"}
    assert set(found["Attributes"]) == wanted


def test_the_old_and_the_new_list_of_names_may_be_the_same(queue):
    queue.send()
    names = ["SenderId", "SentTimestamp"]
    found = queue.one(AttributeNames=names, MessageSystemAttributeNames=names)
    assert set(found["Attributes"]) == set(names)


# -- message attributes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "found", "md5"),
    [
        ([], [], None),
        (["All"], ["General", "Hello", "Help.Me"], _ALL_MD5),
        (["*"], ["General", "Hello", "Help.Me"], _ALL_MD5),
        ([".*"], ["General", "Hello", "Help.Me"], _ALL_MD5),
        (["Foo"], [], None),
        (["Foo", "Bar"], [], None),
        (["Hello", "General"], ["General", "Hello"], "fca026605781cb4126a1e9044df24232"),
        (["Foo", "Hello"], ["Hello"], "a311262e065454b75da111d535b8dacd"),
        (["Hel.*"], ["Hello", "Help.Me"], "83fee93c1bcd8b9a5a923ffacdc636c7"),
        (["AWS."], [], None),
        (["..foo"], [], None),
    ],
)
def test_message_attributes_are_asked_for_by_name(queue, names, found, md5):
    sent = queue.send("msg", MessageAttributes=_ATTRIBUTES)
    assert sent["MD5OfMessageAttributes"] == _ALL_MD5
    assert sent["MD5OfMessageBody"] == "6e2baaf3b97dbeef01c0043275f9a0e7"
    message = queue.one(MessageAttributeNames=names)
    assert message.get("MessageAttributes") == ({n: _ATTRIBUTES[n] for n in found} or None)
    assert message.get("MD5OfMessageAttributes") == md5


def test_a_message_without_attributes_has_none_to_show(queue):
    queue.send()
    message = queue.one(MessageAttributeNames=["All"])
    assert not {"MessageAttributes", "MD5OfMessageAttributes"} & set(message)


# -- attempts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "a" * 129, "an attempt"], ids=["empty", "long", "blank"])
def test_the_id_of_an_attempt_has_1_to_128_characters_without_blanks(fifo, token):
    message = (
        f"Value {token} for parameter ReceiveRequestAttemptId is invalid. Reason: "
        "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. "
        "1 to 128 in length."
    )
    with refused("InvalidParameterValue", message):
        fifo.receive(ReceiveRequestAttemptId=token)


def test_a_standard_queue_has_no_attempts(queue):
    with refused("InvalidParameterValue"):
        queue.receive(ReceiveRequestAttemptId="1")


@pytest.mark.xfail(strict=True, reason="attempts are checked, and not remembered")
def test_a_repeated_attempt_gets_the_same_messages(fifo):
    fifo.send_all("a/1", "a/2", "b/1")
    first = fifo.receive(2, ReceiveRequestAttemptId="attempt-1")
    again = fifo.receive(2, ReceiveRequestAttemptId="attempt-1")
    assert [m["ReceiptHandle"] for m in again] == [m["ReceiptHandle"] for m in first]
    assert texts(again) == ["a/1", "a/2"]


def test_another_attempt_gets_other_messages(fifo):
    fifo.send_all("a/1", "b/1")
    assert fifo.bodies(1, ReceiveRequestAttemptId="attempt-1") == ["a/1"]
    assert fifo.bodies(1, ReceiveRequestAttemptId="attempt-2") == ["b/1"]


def test_whatever_types_others_wrote_beside_attributes_they_are_received(server, queue):
    odd = {"ringdove:types": ["a", "b=Binary", "c=Number", 7], "a": "x", "b": "y", "c": b"z"}
    outgoing = Outgoing([b"body"], attributes=[odd])
    server.call(server.server.native.broker.send(queue.name, outgoing))
    [message] = queue.receive(MessageAttributeNames=["All"])
    assert {n: own["DataType"] for n, own in message["MessageAttributes"].items()} == {
        "a": "String", "b": "String", "c": "Binary",
    }  # fmt: skip
