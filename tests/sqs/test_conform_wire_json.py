"""The JSON protocol byte by byte."""

import base64
import re

import pytest

from sqs.clients import NO_QUEUE, fresh_name, path_of

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_KIND = "application/x-amz-json-1.0"
_AT = pytest.mark.parametrize("at", ["root", "queue"])


def _where(place, at: str) -> str:
    return "/" if at == "root" else place.url


@_AT
def test_a_message_is_sent_received_and_deleted(wire, place, at):
    url, path = {"QueueUrl": place.url}, _where(place, at)
    sent = wire.json("SendMessage", {**url, "MessageBody": "foobar"}, path)
    assert sent.status == 200
    md5 = "3858f62230ac3c915f300c664312c63f"
    assert sent.json == {"MD5OfMessageBody": md5, "MessageId": sent.json["MessageId"]}
    [message] = wire.json("ReceiveMessage", url, path).json["Messages"]
    handle = message.pop("ReceiptHandle")
    assert message == {
        "MessageId": sent.json["MessageId"],
        "MD5OfBody": md5,
        "Body": "foobar",
    }
    assert wire.json("DeleteMessage", {**url, "ReceiptHandle": handle}, path).status == 200
    assert wire.json("ReceiveMessage", url, path).body == b"{}"
    assert place.counts() == (0, 0, 0)


def test_a_reply_has_a_type_and_an_id(wire):
    first, second = wire.json("ListQueues"), wire.json("ListQueues")
    assert first.kind == _KIND
    for answer in (first, second):
        assert re.fullmatch(_UUID, answer.headers["x-amzn-RequestId"])
    assert first.headers["x-amzn-requestid"] != second.headers["x-amzn-requestid"]


@pytest.mark.parametrize(
    ("action", "members"),
    [
        ("DeleteMessage", None),
        ("SetQueueAttributes", {"Attributes": {"DelaySeconds": "0"}}),
        ("TagQueue", {"Tags": {"a": "b"}}),
        ("UntagQueue", {"TagKeys": ["a"]}),
        ("PurgeQueue", {}),
        ("DeleteQueue", {}),
    ],
)
def test_actions_without_a_result_say_nothing(wire, place, action, members):
    if members is None:
        place.send("x")
        members = {"ReceiptHandle": place.one()["ReceiptHandle"]}
    answer = wire.json(action, {"QueueUrl": place.url, **members})
    assert answer.status == 200
    assert answer.kind == _KIND
    assert answer.body in (b"", b"{}")


@pytest.mark.parametrize("action", ["ReceiveMessage", "ListQueueTags", "GetQueueAttributes"])
def test_nothing_is_an_empty_object(wire, place, action):
    assert wire.json(action, {"QueueUrl": place.url}).body == b"{}"


def test_no_sources_are_an_empty_list(wire, place):
    answer = wire.json("ListDeadLetterSourceQueues", {"QueueUrl": place.url})
    assert answer.json == {"queueUrls": []}


@_AT
def test_an_error_has_a_kind_and_a_header_for_old_clients(wire, place, at):
    members = {"QueueUrl": f"{wire.base}/000000000000/unknown"}
    answer = wire.json("ReceiveMessage", members, _where(place, at))
    assert answer.status == 400
    assert answer.kind == _KIND
    assert answer.headers["x-amzn-query-error"] == f"{NO_QUEUE};Sender"
    assert re.fullmatch(_UUID, answer.headers["x-amzn-RequestId"])
    assert answer.json == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }


def test_a_success_has_no_header_of_an_error(wire):
    assert "x-amzn-query-error" not in wire.json("ListQueues").headers


def test_a_queue_is_named_by_the_path_alone(wire, place):
    answer = wire.json("SendMessage", {"MessageBody": "x"}, place.url)
    assert answer.status == 200
    assert place.bodies() == ["x"]


def test_a_queue_must_be_named(wire):
    message = "The request must contain the parameter QueueUrl."
    answer = wire.json("SendMessage", {"MessageBody": "x"})
    assert answer.json_error == (400, "MissingRequiredParameterException", message)


def test_queues_are_created_and_listed(wire):
    name = fresh_name()
    created = wire.json(
        "CreateQueue", {"QueueName": name, "Attributes": {"DelaySeconds": "7"}, "tags": {"a": "b"}}
    )
    url = created.json["QueueUrl"]
    assert created.json == {"QueueUrl": url}
    assert path_of(url) == f"/000000000000/{name}"
    assert wire.json("ListQueues", {"QueueNamePrefix": name}).json == {"QueueUrls": [url]}
    assert wire.json("GetQueueUrl", {"QueueName": name}).json == {"QueueUrl": url}
    found = wire.json("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["DelaySeconds"]})
    assert found.json == {"Attributes": {"DelaySeconds": "7"}}
    assert wire.json("ListQueueTags", {"QueueUrl": url}).json == {"Tags": {"a": "b"}}


@pytest.mark.parametrize("host", ["queues.example", "queues.example:8080"])
def test_a_url_has_the_host_by_which_the_server_was_called(wire, place, host):
    answer = wire.json("GetQueueUrl", {"QueueName": place.name}, Host=host)
    assert answer.json == {"QueueUrl": f"http://{host}{path_of(place.url)}"}


def test_no_body_is_an_empty_request(wire, place):
    answer = wire.json("ListQueues", b"")
    assert answer.status == 200
    assert place.url in answer.json["QueueUrls"]


def test_the_type_of_the_request_may_be_plain_json(wire, place):
    answer = wire.json("GetQueueUrl", {"QueueName": place.name}, Content_Type="application/json")
    assert answer.json == {"QueueUrl": place.url}


def test_unknown_members_are_not_looked_at(wire, place):
    members = {"QueueUrl": place.url, "MessageBody": "x", "Colour": "blue"}
    assert wire.json("SendMessage", members).status == 200


def test_null_is_as_good_as_nothing(wire, place):
    members = {
        "QueueUrl": place.url,
        "MessageBody": "x",
        "DelaySeconds": None,
        "MessageAttributes": None,
        "MessageGroupId": None,
    }
    assert wire.json("SendMessage", members).status == 200


def test_binary_values_are_base64(wire, place):
    value = {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\x00\xff").decode()}
    members = {"QueueUrl": place.url, "MessageBody": "x", "MessageAttributes": {"b": value}}
    wire.json("SendMessage", members)
    asked = {"QueueUrl": place.url, "MessageAttributeNames": ["All"]}
    [message] = wire.json("ReceiveMessage", asked).json["Messages"]
    assert message["MessageAttributes"] == {"b": value}


def test_a_batch_tells_whose_fault_it_was(wire, place):
    entries = [{"Id": "1", "MessageBody": "x"}, {"Id": "2", "MessageBody": "\x01"}]
    answer = wire.json("SendMessageBatch", {"QueueUrl": place.url, "Entries": entries})
    assert answer.status == 200
    [failed] = answer.json["Failed"]
    assert (failed["Id"], failed["SenderFault"]) == ("2", True)
    assert failed["Code"] == "InvalidMessageContents"
    assert [entry["Id"] for entry in answer.json["Successful"]] == ["1"]


@pytest.mark.parametrize(
    "action",
    ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"],
)
def test_a_batch_needs_entries(wire, place, action):
    answer = wire.json(action, {"QueueUrl": place.url})
    message = "The request must contain the parameter Entries."
    assert answer.json_error == (400, "MissingRequiredParameterException", message)


@pytest.mark.parametrize("body", [b"no JSON", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"QueueUrl":'])
def test_what_is_no_json_object_is_refused(wire, body):
    answer = wire.json("SendMessage", body)
    assert answer.json_error[:2] == (400, "SerializationException")


_STRUCTURE = "Start of structure or map found where not expected."
_LIST = "Start of list found where not expected"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"MessageBody": {"a": 1}}, _STRUCTURE),
        ({"MessageBody": ["a"]}, _LIST),
        (
            {"MessageBody": "x", "DelaySeconds": "soon"},
            "STRING_VALUE can not be converted to an Integer",
        ),
        ({"MessageBody": "x", "MessageGroupId": {}}, _STRUCTURE),
    ],
)
def test_a_member_of_the_wrong_type_is_refused(wire, place, members, message):
    answer = wire.json("SendMessage", {"QueueUrl": place.url, **members})
    assert answer.json_error == (400, "SerializationException", message)


def test_an_attribute_of_the_wrong_type_is_refused(wire, place):
    for action in ("SetQueueAttributes", "CreateQueue"):
        members = {"QueueUrl": place.url, "QueueName": fresh_name()}
        answer = wire.json(action, {**members, "Attributes": {"DelaySeconds": {}}})
        assert answer.json_error == (400, "SerializationException", _STRUCTURE)
        answer = wire.json(action, {**members, "Attributes": {"DelaySeconds": True}})
        message = "Invalid value for the parameter DelaySeconds."
        assert answer.json_error == (400, "InvalidAttributeValue", message)


@pytest.mark.parametrize("target", ["AmazonSQS.FooBar", "FooBar", "", "AmazonSQS.", "a.b.c"])
def test_an_unknown_action_is_refused(wire, target):
    answer = wire.ask("POST", "/", b"{}", X_Amz_Target=target, Content_Type=_KIND)
    assert answer.status in (400, 404)
    assert answer.json["__type"].endswith("#UnknownOperationException")


def test_a_queue_name_must_be_given(wire):
    for action in ("CreateQueue", "GetQueueUrl"):
        assert wire.json(action, {}).status == 400
