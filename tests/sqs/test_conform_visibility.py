"""Visibility and receipt handles: how long a message is out, and what its handles are good for."""

import pytest

from server.running import wait_for
from sqs.clients import later, meanwhile, parked, refused, texts

_GONE = "Message does not exist or is not available for visibility timeout change."
_EXPIRED = "The receipt handle has expired."


def _handle(message: dict[str, str], reason: str) -> str:
    return (
        f"Value {message['ReceiptHandle']} for parameter ReceiptHandle is invalid. Reason: {reason}"
    )


def _no_handle(text: str) -> str:
    return f'The input receipt handle "{text}" is not a valid receipt handle.'


# -- timeouts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fifo", [False, True])
def test_a_received_message_is_invisible_for_a_while(server, make, fifo):
    queue = make(fifo=fifo, VisibilityTimeout="10")
    queue.send_all("g/1")
    first = queue.one()
    later(server, 8)
    assert queue.receive() == []
    assert queue.counts() == (0, 1, 0)
    later(server, 3)
    second = queue.one()
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]


def test_messages_in_flight_are_counted(server, queue):
    queue.send_all("a", "b", "c", "d", "e", "f")
    queue.one(VisibilityTimeout=10)
    assert queue.counts() == (5, 1, 0)
    later(server, 11)
    assert queue.counts() == (6, 0, 0)


def test_a_receiver_chooses_its_own_timeout(server, make):
    queue = make(VisibilityTimeout="2")
    queue.send("x")
    queue.one(VisibilityTimeout=10)
    later(server, 5)
    assert queue.receive() == []
    later(server, 6)
    assert queue.bodies() == ["x"]


@pytest.mark.parametrize("seconds", [-1, 43_201])
def test_a_receiver_chooses_at_most_12_hours(queue, seconds):
    message = (
        f"Value {seconds} for parameter VisibilityTimeout is invalid. "
        "Reason: Must be >= 0 and <= 43200, if provided."
    )
    with refused("InvalidParameterValue", message):
        queue.receive(VisibilityTimeout=seconds)


def test_a_message_received_for_no_time_stays_visible(queue):
    queue.send("x")
    first = queue.one(VisibilityTimeout=0)
    second = queue.one()
    assert second["MessageId"] == first["MessageId"]
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    assert queue.receive() == []


def test_a_queue_may_have_no_timeout_at_all(make):
    queue = make(VisibilityTimeout="0")
    queue.send("x")
    assert [queue.bodies() for _ in range(3)] == [["x"]] * 3


# -- changing ---------------------------------------------------------------------------------------


def test_a_message_is_given_back_at_once(queue):
    queue.send("x")
    message = queue.one()
    assert queue.hide(message, 0) == {}
    assert queue.counts() == (1, 0, 0)
    assert queue.one()["MessageId"] == message["MessageId"]


def test_giving_back_is_for_once(server, make):
    queue = make(VisibilityTimeout="10")
    queue.send("x")
    queue.hide(queue.one(), 0)
    queue.one()
    later(server, 8)
    assert queue.receive() == []
    later(server, 3)
    assert queue.bodies() == ["x"]


def test_a_message_is_kept_longer_again_and_again(server, make):
    queue = make(VisibilityTimeout="10")
    queue.send("x")
    message = queue.one()
    for _ in range(4):
        later(server, 8)
        queue.hide(message, 10)
    assert queue.receive() == []
    later(server, 11)
    assert queue.bodies() == ["x"]


def test_a_message_is_kept_for_less_time(server, queue):
    queue.send("x")
    queue.hide(queue.one(), 5)
    later(server, 6)
    assert queue.bodies() == ["x"]


def test_a_message_that_is_visible_again_is_hidden_again(server, queue):
    queue.send("x")
    message = queue.one(VisibilityTimeout=5)
    later(server, 6)
    assert queue.counts() == (1, 0, 0)
    queue.hide(message, 10)
    assert queue.counts() == (0, 1, 0)
    assert queue.receive() == []
    later(server, 11)
    assert queue.bodies() == ["x"]


def test_a_deleted_message_is_not_hidden(queue):
    queue.send("x")
    message = queue.one()
    queue.delete(message)
    with refused("InvalidParameterValue", _handle(message, _GONE)):
        queue.hide(message, 42)


@pytest.mark.parametrize("seconds", [-10, 43_201])
def test_a_message_is_hidden_for_at_most_12_hours(queue, seconds):
    queue.send("x")
    message = queue.one()
    text = (
        f"Value {seconds} for parameter VisibilityTimeout is invalid. "
        "Reason: Must be between 0 and 43200."
    )
    with refused("InvalidParameterValue", text):
        queue.hide(message, seconds)


def test_a_message_is_hidden_for_at_most_12_hours_in_all(server, queue):
    queue.send("x")
    message = queue.one()
    later(server, 10)
    for seconds in (43_200, 43_195):
        text = (
            f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total "
            "VisibilityTimeout for the message is beyond the limit [43200 seconds]."
        )
        with refused("InvalidParameterValue", text):
            queue.hide(message, seconds)
    queue.hide(message, 43_185)


@pytest.mark.parametrize("missing", ["ReceiptHandle", "VisibilityTimeout"])
def test_a_change_needs_a_handle_and_a_time(queue, missing):
    given = {"ReceiptHandle": "x", "VisibilityTimeout": 1}
    del given[missing]
    with refused("MissingParameter", f"The request must contain the parameter {missing}."):
        queue.call("change_message_visibility", **given)


@pytest.mark.timeout(15)
def test_a_waiting_receiver_gets_what_is_given_back(server, queue):
    queue.send("x")
    message = queue.one()
    waiting = meanwhile(lambda: queue.bodies(WaitTimeSeconds=20))
    wait_for(lambda: parked(server), "the receiver waits")
    queue.hide(message, 0)
    assert waiting.result() == ["x"]


# -- handles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["garbage", "INVALID", "AQEB", "not base64 at all!", "x" * 300])
def test_a_handle_that_was_never_given_is_invalid(queue, text):
    for call in (
        lambda: queue.delete({"ReceiptHandle": text}),
        lambda: queue.hide({"ReceiptHandle": text}, 1),
    ):
        with refused("ReceiptHandleIsInvalid", _no_handle(text)):
            call()


def test_a_handle_of_another_queue_is_invalid(make):
    one, other = make(), make()
    one.send("x")
    message = one.one()
    with refused("ReceiptHandleIsInvalid", _no_handle(message["ReceiptHandle"])):
        other.delete(message)
    with refused("ReceiptHandleIsInvalid", _no_handle(message["ReceiptHandle"])):
        other.hide(message, 1)


def test_a_delete_needs_a_handle(queue):
    with refused("MissingParameter", "The request must contain the parameter ReceiptHandle."):
        queue.call("delete_message")


@pytest.mark.parametrize("fifo", [False, True])
def test_a_message_is_deleted_again_and_again(make, fifo):
    queue = make(fifo=fifo)
    queue.send_all("g/1")
    message = queue.one()
    for _ in range(3):
        assert queue.call("delete_message", ReceiptHandle=message["ReceiptHandle"]) == {}


def test_a_message_given_back_is_still_deleted_by_its_handle(queue):
    queue.send("x")
    message = queue.one()
    queue.hide(message, 0)
    queue.delete(message)
    assert queue.counts() == (0, 0, 0)
    assert queue.receive() == []


def test_a_message_that_is_visible_again_is_still_deleted_by_its_handle(server, queue):
    queue.send("x")
    message = queue.one()
    later(server, 31)
    queue.delete(message)
    assert queue.receive() == []


def test_a_message_of_a_fifo_queue_is_not_deleted_once_it_is_visible_again(server, fifo):
    fifo.send("x", "g")
    message = fifo.one()
    later(server, 31)
    with refused("InvalidParameterValue", _handle(message, _EXPIRED)):
        fifo.delete(message)
    assert fifo.bodies() == ["x"]


def test_a_message_of_a_fifo_queue_is_deleted_as_long_as_it_was_kept(server, fifo):
    fifo.send_all("a/1", "b/1")
    short, long = fifo.receive()
    fifo.hide(long, 60)
    later(server, 31)
    with refused("InvalidParameterValue", _handle(short, _EXPIRED)):
        fifo.delete(short)
    fifo.delete(long)
    assert fifo.bodies() == ["a/1"]


def test_a_message_of_a_fifo_queue_received_for_no_time_is_not_deleted(server, fifo):
    fifo.send("x", "g")
    message = fifo.one(VisibilityTimeout=0)
    later(server, 0.01)
    with refused("InvalidParameterValue", _handle(message, _EXPIRED)):
        fifo.delete(message)


def test_the_first_handle_deletes_a_message_received_again(server, queue):
    queue.send("x")
    first = queue.one()
    later(server, 31)
    second = queue.one()
    queue.delete(first)
    later(server, 31)
    assert queue.receive() == []
    queue.delete(second)


def test_the_first_handle_gives_a_message_back_that_was_received_again(server, queue):
    queue.send("x")
    first = queue.one()
    later(server, 31)
    queue.one()
    queue.hide(first, 0)
    assert queue.bodies() == ["x"]


# -- retention --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fifo", [False, True])
def test_an_old_message_disappears(server, make, fifo):
    queue = make(fifo=fifo, MessageRetentionPeriod="60")
    queue.send_all("g/1")
    later(server, 50)
    queue.send_all("g/2")
    later(server, 15)
    assert queue.bodies() == ["g/2"]


def test_an_old_message_disappears_although_it_is_in_flight(server, make):
    queue = make(MessageRetentionPeriod="60")
    queue.send("x")
    message = queue.one(VisibilityTimeout=30)
    later(server, 61)
    assert queue.receive() == []
    queue.delete(message)
    assert texts(queue.receive()) == []
