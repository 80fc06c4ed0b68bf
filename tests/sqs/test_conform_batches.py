"""Batches: what fails them whole, and what fails one entry."""

import pytest

from sqs.clients import Queue, later, refused

_PREFIX = "AWS.SimpleQueueService."
_BAD_ID = (
    "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
    "It can be at most 80 letters long."
)
_ENTRIES = {
    "send_message_batch": {"MessageBody": "x"},
    "delete_message_batch": {"ReceiptHandle": "x"},
    "change_message_visibility_batch": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
}
_SHAPES = {
    "send_message_batch": "SendMessageBatchRequestEntry",
    "delete_message_batch": "DeleteMessageBatchRequestEntry",
    "change_message_visibility_batch": "ChangeMessageVisibilityBatchRequestEntry",
}
_EACH = pytest.mark.parametrize("method", _ENTRIES)


def _ask(queue: Queue, method: str, *ids: str | None) -> dict[str, object]:
    """A batch of entries that differ in their ids only; None for one without."""
    entries = [{**_ENTRIES[method], **({} if i is None else {"Id": i})} for i in ids]
    return queue.call(method, Entries=entries)


def _refusal(reply: dict[str, list[dict[str, object]]]) -> tuple[object, object]:
    """Code and message of the only entry that failed, which was the sender's fault."""
    [failed] = reply["Failed"]
    assert failed["SenderFault"] is True
    return failed["Code"], failed["Message"]


def _no_handle(text: str) -> str:
    return f'The input receipt handle "{text}" is not a valid receipt handle.'


# -- the whole batch ----------------------------------------------------------------------------------


@_EACH
def test_a_batch_has_at_least_one_entry(queue, method):
    message = f"There should be at least one {_SHAPES[method]} in the request."
    with refused(_PREFIX + "EmptyBatchRequest", message):
        _ask(queue, method)


@_EACH
@pytest.mark.parametrize("count", [11, 20])
def test_a_batch_has_at_most_ten_entries(queue, method, count):
    message = f"Maximum number of entries per request are 10. You have sent {count}."
    with refused(_PREFIX + "TooManyEntriesInBatchRequest", message):
        _ask(queue, method, *[str(number) for number in range(count)])


@_EACH
@pytest.mark.parametrize(
    "bad", ["", "a" * 81, "invalid:id", "a b", ".!@#$%^&*()+=", "\u00e4"],
    ids=["empty", "long", "colon", "blank", "signs", "umlaut"],
)  # fmt: skip
def test_the_id_of_an_entry_is_short_and_plain(queue, method, bad):
    with refused(_PREFIX + "InvalidBatchEntryId", _BAD_ID):
        _ask(queue, method, "good", bad)
    assert queue.counts() == (0, 0, 0)


@_EACH
def test_the_ids_of_entries_differ(queue, method):
    with refused(_PREFIX + "BatchEntryIdsNotDistinct", "Id id_2 repeated."):
        _ask(queue, method, "id_1", "id_2", "id_2", "id_1")
    assert queue.counts() == (0, 0, 0)


@_EACH
def test_every_entry_has_an_id(queue, method):
    message = f"The request must contain the parameter {_SHAPES[method]}.2.Id."
    with refused("MissingParameter", message):
        _ask(queue, method, "1", None)


# -- sending ----------------------------------------------------------------------------------------


def test_a_batch_is_sent_and_received_in_order(queue):
    bodies = ["message-0", "message-1"]
    reply = queue.send_batch(*[{"Id": f"{i}", "MessageBody": b} for i, b in enumerate(bodies)])
    assert set(reply) == {"Successful"}
    assert [entry["Id"] for entry in reply["Successful"]] == ["0", "1"]
    for entry, body in zip(reply["Successful"], bodies, strict=True):
        assert set(entry) == {"Id", "MessageId", "MD5OfMessageBody"}
        message = queue.one()
        assert (message["Body"], message["MessageId"]) == (body, entry["MessageId"])
        assert message["MD5OfBody"] == entry["MD5OfMessageBody"]


def test_an_id_may_have_80_letters(queue):
    reply = queue.send_batch({"Id": "aZ09-_" + "a" * 74, "MessageBody": "x"})
    assert set(reply) == {"Successful"}


def test_the_entries_of_a_batch_have_attributes_groups_and_delays(server, queue):
    attributes = {"k": {"DataType": "String", "StringValue": "x"}}
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "some-trace-id"}}
    reply = queue.send_batch(
        {"Id": "1", "MessageBody": "late", "DelaySeconds": 5},
        {"Id": "2", "MessageBody": "attributes", "MessageAttributes": attributes},
        {"Id": "3", "MessageBody": "system", "MessageSystemAttributes": trace},
        {"Id": "4", "MessageBody": "group", "MessageGroupId": "g"},
    )
    _, second, third, _ = reply["Successful"]
    assert second["MD5OfMessageAttributes"] == "a45daa70926828a2f0a1db3418e6feb4"
    assert third["MD5OfMessageSystemAttributes"] == "fdce4f2818803f2f73becc09a54792c0"
    found = queue.receive(MessageAttributeNames=["All"], AttributeNames=["All"])
    assert sorted(message["Body"] for message in found) == ["attributes", "group", "system"]
    by_body = {message["Body"]: message for message in found}
    assert by_body["attributes"]["MessageAttributes"] == attributes
    assert by_body["system"]["Attributes"]["AWSTraceHeader"] == "some-trace-id"
    assert by_body["group"]["Attributes"]["MessageGroupId"] == "g"
    later(server, 6)
    assert queue.bodies() == ["late"]


def test_a_wrong_character_fails_one_entry(queue):
    bodies = {str(number): f"body {number}" for number in range(9)} | {"9": "\x01"}
    reply = queue.send_batch(*[{"Id": i, "MessageBody": b} for i, b in bodies.items()])
    assert [entry["Id"] for entry in reply["Successful"]] == list(bodies)[:9]
    assert reply["Failed"][0]["Id"] == "9"
    assert _refusal(reply)[0] == "InvalidMessageContents"
    assert len(queue.receive()) == 9


@pytest.mark.parametrize("seconds", [-1, 901])
def test_a_wrong_delay_fails_one_entry(queue, seconds):
    reply = queue.send_batch(
        {"Id": "good", "MessageBody": "x"},
        {"Id": "bad", "MessageBody": "x", "DelaySeconds": seconds},
    )
    assert [entry["Id"] for entry in reply["Successful"]] == ["good"]
    message = (
        f"Value {seconds} for parameter DelaySeconds is invalid. "
        "Reason: DelaySeconds must be >= 0 and <= 900."
    )
    assert _refusal(reply) == ("InvalidParameterValue", message)


@pytest.mark.parametrize("body", [{}, {"MessageBody": ""}], ids=["missing", "empty"])
def test_no_body_fails_one_entry(queue, body):
    reply = queue.send_batch({"Id": "1", **body}, {"Id": "2", "MessageBody": "x"})
    assert [entry["Id"] for entry in reply["Successful"]] == ["2"]
    message = "The request must contain the parameter SendMessageBatchRequestEntry.1.MessageBody."
    assert _refusal(reply) == ("MissingParameter", message)


@pytest.mark.parametrize(
    "wrong",
    [
        {"MessageDeduplicationId": "1"},
        {"MessageGroupId": " "},
        {"MessageAttributes": {"k": {"DataType": "Wrong", "StringValue": "x"}}},
        {"MessageAttributes": {"k": {"DataType": "String", "StringValue": ""}}},
    ],
)
def test_what_a_standard_queue_does_not_take_fails_one_entry(queue, wrong):
    reply = queue.send_batch(
        {"Id": "bad", "MessageBody": "x", **wrong}, {"Id": "good", "MessageBody": "y"}
    )
    assert [entry["Id"] for entry in reply["Successful"]] == ["good"]
    assert _refusal(reply)[0] == "InvalidParameterValue"
    assert queue.bodies() == ["y"]


def test_a_batch_in_which_all_failed_has_no_successes(queue):
    reply = queue.send_batch({"Id": "1", "MessageBody": "\x01"}, {"Id": "2", "MessageBody": "\x02"})
    assert set(reply) == {"Failed"}
    assert [entry["Id"] for entry in reply["Failed"]] == ["1", "2"]


def test_a_missing_group_fails_the_whole_batch_of_a_fifo_queue(fifo):
    message = "The request must contain the parameter MessageGroupId."
    with refused("InvalidParameterValue", message):
        fifo.send_batch(
            {"Id": "1", "MessageBody": "x", "MessageGroupId": "g"}, {"Id": "2", "MessageBody": "y"}
        )
    assert fifo.receive() == []


def test_a_missing_deduplication_id_fails_the_whole_batch_of_a_fifo_queue(make):
    queue = make(fifo=True, ContentBasedDeduplication="false")
    message = (
        "The queue should either have ContentBasedDeduplication enabled or "
        "MessageDeduplicationId provided explicitly"
    )
    good = {"MessageBody": "x", "MessageGroupId": "g"}
    with refused("InvalidParameterValue", message):
        queue.send_batch({"Id": "1", **good, "MessageDeduplicationId": "1"}, {"Id": "2", **good})
    assert queue.receive() == []


def test_a_batch_for_a_fifo_queue_has_sequence_numbers(fifo):
    entries = [{"Id": i, "MessageBody": i, "MessageGroupId": "g"} for i in "abc"]
    numbers = [entry["SequenceNumber"] for entry in fifo.send_batch(*entries)["Successful"]]
    assert numbers == sorted(set(numbers))
    assert fifo.bodies() == ["a", "b", "c"]


# -- deleting ---------------------------------------------------------------------------------------


def test_a_batch_is_deleted(server, queue):
    queue.send_all("a", "b", "c")
    entries = [{"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"]} for m in queue.receive()]
    reply = queue.call("delete_message_batch", Entries=entries)
    assert reply == {"Successful": [{"Id": "a"}, {"Id": "b"}, {"Id": "c"}]}
    later(server, 31)
    assert queue.receive() == []


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("delete_message_batch", {}),
        ("change_message_visibility_batch", {"VisibilityTimeout": 5}),
    ],
)
def test_a_wrong_handle_fails_one_entry(queue, method, more):
    queue.send("x")
    good = {"Id": "good", "ReceiptHandle": queue.one()["ReceiptHandle"], **more}
    bad = {"Id": "bad", "ReceiptHandle": "fake-receipt-handle-1", **more}
    reply = queue.call(method, Entries=[good, bad])
    assert reply["Successful"] == [{"Id": "good"}]
    assert reply["Failed"][0]["Id"] == "bad"
    assert _refusal(reply) == ("ReceiptHandleIsInvalid", _no_handle("fake-receipt-handle-1"))


@pytest.mark.parametrize("method", ["delete_message_batch", "change_message_visibility_batch"])
@pytest.mark.parametrize("handle", [{}, {"ReceiptHandle": ""}], ids=["missing", "empty"])
def test_no_handle_fails_one_entry(queue, method, handle):
    entry = {**_ENTRIES[method], "Id": "1"}
    del entry["ReceiptHandle"]
    reply = queue.call(method, Entries=[{**entry, **handle}])
    assert set(reply) == {"Failed"}
    message = "The request must contain the parameter ReceiptHandle."
    assert _refusal(reply) == ("MissingParameter", message)


def test_an_expired_handle_fails_one_entry_of_a_fifo_queue(server, fifo):
    fifo.send_all("a/1", "b/1")
    one, other = fifo.receive()
    fifo.hide(other, 60)
    later(server, 31)
    entries = [
        {"Id": "1", "ReceiptHandle": one["ReceiptHandle"]},
        {"Id": "2", "ReceiptHandle": other["ReceiptHandle"]},
    ]
    reply = fifo.call("delete_message_batch", Entries=entries)
    assert reply["Successful"] == [{"Id": "2"}]
    message = (
        f"Value {one['ReceiptHandle']} for parameter ReceiptHandle is invalid. "
        "Reason: The receipt handle has expired."
    )
    assert _refusal(reply) == ("InvalidParameterValue", message)


# -- changing visibility ------------------------------------------------------------------------------


def test_a_batch_is_given_back(queue):
    queue.send_all("a", "b", "c")
    entries = [
        {"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"], "VisibilityTimeout": 0}
        for m in queue.receive()
    ]
    reply = queue.call("change_message_visibility_batch", Entries=entries)
    assert reply == {"Successful": [{"Id": "a"}, {"Id": "b"}, {"Id": "c"}]}
    assert sorted(queue.bodies()) == ["a", "b", "c"]


def test_each_entry_has_its_own_timeout(server, queue):
    queue.send_all("a", "b")
    entries = [
        {"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"], "VisibilityTimeout": seconds}
        for m, seconds in zip(queue.receive(), (5, 60), strict=True)
    ]
    queue.call("change_message_visibility_batch", Entries=entries)
    later(server, 31)
    assert queue.bodies() == ["a"]


def test_a_missing_timeout_fails_one_entry(queue):
    queue.send("x")
    entry = {"Id": "1", "ReceiptHandle": queue.one()["ReceiptHandle"]}
    reply = queue.call("change_message_visibility_batch", Entries=[entry])
    name = "ChangeMessageVisibilityBatchRequestEntry.1.VisibilityTimeout"
    assert _refusal(reply) == (
        "MissingParameter",
        f"The request must contain the parameter {name}.",
    )


@pytest.mark.parametrize("seconds", [-85, 43_201])
def test_a_wrong_timeout_fails_one_entry(queue, seconds):
    queue.send("x")
    handle = queue.one()["ReceiptHandle"]
    entry = {"Id": "1", "ReceiptHandle": handle, "VisibilityTimeout": seconds}
    reply = queue.call("change_message_visibility_batch", Entries=[entry])
    message = (
        f"Value {seconds} for parameter VisibilityTimeout is invalid. "
        "Reason: VisibilityTimeout must be an integer between 0 and 43200."
    )
    assert _refusal(reply) == ("InvalidParameterValue", message)


def test_a_deleted_message_fails_one_entry(queue):
    queue.send_all("a", "b")
    one, other = queue.receive()
    queue.delete(one)
    entries = [
        {"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"], "VisibilityTimeout": 9}
        for m in (one, other)
    ]
    reply = queue.call("change_message_visibility_batch", Entries=entries)
    assert reply["Successful"] == [{"Id": "b"}]
    assert _refusal(reply)[0] == "InvalidParameterValue"
