"""Sizes: of messages, of batches, and of what counts towards them."""

import pytest

from sqs.clients import refused

_MAX = 1_048_576
_KIB = 1024


def _too_long(limit: int) -> str:
    return (
        f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes."
    )


def _text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def test_a_body_may_have_a_mebibyte(queue):
    queue.send("a" * _MAX)
    assert queue.one()["Body"] == "a" * _MAX


def test_a_body_has_at_most_a_mebibyte(queue):
    with refused("InvalidParameterValue", _too_long(_MAX)):
        queue.send("a" * (_MAX + 1))
    assert queue.counts() == (0, 0, 0)


def test_attributes_count_with_name_type_and_value(queue):
    used = len("key" + "String" + "value")
    queue.send("a" * (_MAX - used), MessageAttributes={"key": _text("value")})
    with refused("InvalidParameterValue", _too_long(_MAX)):
        queue.send("a" * (_MAX - used + 1), MessageAttributes={"key": _text("value")})


def test_the_trace_header_does_not_count(make):
    queue = make(MaximumMessageSize="1024")
    queue.send("a" * _KIB, MessageSystemAttributes={"AWSTraceHeader": _text("some-trace-id")})
    assert queue.counts() == (1, 0, 0)


def test_a_queue_may_take_less(queue):
    queue.set(MaximumMessageSize="1024")
    queue.send("a" * _KIB)
    with refused("InvalidParameterValue", _too_long(_KIB)):
        queue.send("a" * (_KIB + 1))
    with refused("InvalidParameterValue", _too_long(_KIB)):
        queue.send("a" * _KIB, MessageAttributes={"k": _text("v")})


def test_characters_count_as_the_bytes_of_their_utf_8(make):
    queue = make(MaximumMessageSize="1024")
    queue.send("\u00e4" * 512)
    with refused("InvalidParameterValue", _too_long(_KIB)):
        queue.send("\u00e4" * 513)


def test_a_queue_that_takes_more_again_takes_it(make):
    queue = make(MaximumMessageSize="1024")
    queue.set(MaximumMessageSize="2048")
    queue.send("a" * 2048)
    assert queue.counts() == (1, 0, 0)


# -- batches ----------------------------------------------------------------------------------------


def _entries(*sizes: int) -> list[dict[str, str]]:
    return [{"Id": str(n), "MessageBody": "a" * size} for n, size in enumerate(sizes)]


def _batch_too_long(size: int) -> str:
    return f"Batch requests cannot be longer than {_MAX} bytes. You have sent {size} bytes."


@pytest.mark.parametrize("sizes", [(_MAX,), (_MAX - 1, 1), (_MAX // 2, _MAX // 2)])
def test_a_batch_may_have_a_mebibyte_in_all(queue, sizes):
    assert set(queue.send_batch(*_entries(*sizes))) == {"Successful"}


@pytest.mark.parametrize("sizes", [(_MAX + 1,), (_MAX, 1), (_MAX // 2, _MAX // 2 + 1)])
def test_a_batch_has_at_most_a_mebibyte_in_all(queue, sizes):
    with refused("AWS.SimpleQueueService.BatchRequestTooLong", _batch_too_long(_MAX + 1)):
        queue.send_batch(*_entries(*sizes))
    assert queue.counts() == (0, 0, 0)


def test_attributes_count_in_a_batch_too(queue):
    entries = _entries(_MAX - 1000, 1000 - len("kString"))
    entries[1]["MessageAttributes"] = {"k": _text("v")}
    with refused("AWS.SimpleQueueService.BatchRequestTooLong", _batch_too_long(_MAX + 1)):
        queue.send_batch(*entries)


def test_the_limit_of_a_queue_is_for_each_message_of_a_batch(make):
    queue = make(MaximumMessageSize="2048")
    assert set(queue.send_batch(*_entries(2048, 1))) == {"Successful"}
    assert queue.counts() == (2, 0, 0)


def test_a_message_beyond_the_limit_of_its_queue_fails_alone(make):
    queue = make(MaximumMessageSize="1024")
    reply = queue.send_batch(*_entries(1024, 1025))
    [sent] = reply["Successful"]
    assert set(sent) == {"Id", "MD5OfMessageBody", "MessageId"}
    assert sent["Id"] == "0"
    assert reply["Failed"] == [
        {
            "Id": "1",
            "SenderFault": True,
            "Code": "InvalidParameterValue",
            "Message": "One or more parameters cannot be validated. "
            "Reason: Message must be shorter than 1024 bytes.",
        }
    ]


def test_ten_messages_of_a_tenth_come_back_whole(queue):
    size = _MAX // 10
    queue.send_batch(*_entries(*[size] * 10))
    assert [len(body) for body in queue.bodies()] == [size] * 10
