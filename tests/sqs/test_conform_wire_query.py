"""The query protocol byte by byte: forms and query strings in, XML out."""

import base64
import hashlib
import re
from typing import Any

import pytest

from sqs.clients import NO_QUEUE, Answer, Queue, Wire, path_of, refused
from sqs.conftest import maker

_XMLNS = "http://queue.amazonaws.com/doc/2012-11-05/"
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NO_QUEUE = "The specified queue does not exist for this wsdl version."


class Door:
    """One way to bring a query request: how, and where to."""

    def __init__(self, wire: Wire, queue: Queue, how: str, where: str) -> None:
        self._ask = {"GET": wire.get, "POST": wire.post, "POST-bare": wire.post_bare}[how]
        self._at = "/" if where == "root" else queue.url
        self._queue = {"QueueUrl": queue.url} if where == "root" else {}

    def __call__(self, action: str, **fields: Any) -> Answer:
        return self._ask(action, self._at, **self._queue, **fields)


@pytest.fixture(params=["GET", "POST", "POST-bare"])
def how(request) -> str:
    return request.param


@pytest.fixture(params=["root", "queue"])
def door(request, wire, place, how) -> Door:
    return Door(wire, place, how, request.param)


def _plain(answer: Answer) -> str:
    """The body, with its request id struck out."""
    assert answer.status == 200, answer
    assert answer.kind == "text/xml"
    text = answer.body.decode()
    assert re.fullmatch(_UUID, answer.headers["x-amzn-requestid"])
    assert answer.headers["x-amzn-requestid"] in text
    return text.replace(answer.headers["x-amzn-requestid"], "ID").removeprefix(
        '<?xml version="1.0"?>'
    )


def _whole(action: str, result: str) -> str:
    return (
        f'<{action}Response xmlns="{_XMLNS}">{result}<ResponseMetadata><RequestId>ID</RequestId>'
        f"</ResponseMetadata></{action}Response>"
    )


# -- every door -------------------------------------------------------------------------------------


def test_a_message_is_sent_received_and_deleted(door, place):
    sent = door("SendMessage", MessageBody="foobar")
    md5 = "3858f62230ac3c915f300c664312c63f"
    [message_id] = sent.all("MessageId")
    result = (
        f"<SendMessageResult><MessageId>{message_id}</MessageId>"
        f"<MD5OfMessageBody>{md5}</MD5OfMessageBody></SendMessageResult>"
    )
    assert _plain(sent) == _whole("SendMessage", result)
    received = door("ReceiveMessage")
    [handle] = received.all("ReceiptHandle")
    result = (
        f"<ReceiveMessageResult><Message><MessageId>{message_id}</MessageId>"
        f"<ReceiptHandle>{handle}</ReceiptHandle><MD5OfBody>{md5}</MD5OfBody>"
        "<Body>foobar</Body></Message></ReceiveMessageResult>"
    )
    assert _plain(received) == _whole("ReceiveMessage", result)
    deleted = door("DeleteMessage", ReceiptHandle=handle)
    assert _plain(deleted) == _whole("DeleteMessage", "")
    assert place.counts() == (0, 0, 0)


def test_an_empty_receive_has_an_empty_result(door):
    assert _plain(door("ReceiveMessage")) == _whole("ReceiveMessage", "<ReceiveMessageResult/>")


def test_attributes_are_asked_for_by_number(door, place):
    answer = door("GetQueueAttributes", AttributeName_1="QueueArn", AttributeName_2="DelaySeconds")
    result = (
        "<GetQueueAttributesResult>"
        f"<Attribute><Name>QueueArn</Name><Value>{answer.all('Value')[0]}</Value></Attribute>"
        "<Attribute><Name>DelaySeconds</Name><Value>0</Value></Attribute>"
        "</GetQueueAttributesResult>"
    )
    assert _plain(answer) == _whole("GetQueueAttributes", result)
    assert answer.all("Value")[0].endswith(f":{place.name}")


def test_all_attributes_are_asked_for(door, place):
    answer = door("GetQueueAttributes", AttributeName_1="All")
    found = dict(zip(answer.all("Name"), answer.all("Value"), strict=True))
    known = place.attributes("All")
    assert found.pop("QueueArn").rpartition(":")[2] == place.name
    known.pop("QueueArn")
    assert found == known


def test_an_unknown_action_is_refused(door):
    message = "The action FooBar is not valid for this endpoint."
    assert door("FooBar").error == (400, "InvalidAction", message)


def test_a_missing_parameter_is_named(door):
    message = "The request must contain the parameter MessageBody."
    assert door("SendMessage").error == (400, "MissingParameter", message)


def test_an_unknown_attribute_is_named(door):
    answer = door("GetQueueAttributes", AttributeName_1="Foobar")
    assert answer.error == (400, "InvalidAttributeName", "Unknown Attribute Foobar.")


def test_an_error_is_a_document_of_its_own(door):
    answer = door("GetQueueAttributes", AttributeName_1="Foobar")
    assert answer.kind == "text/xml"
    identity = answer.headers["x-amzn-requestid"]
    assert answer.body.decode() == (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{_XMLNS}"><Error><Type>Sender</Type>'
        "<Code>InvalidAttributeName</Code><Message>Unknown Attribute Foobar.</Message><Detail/>"
        f"</Error><RequestId>{identity}</RequestId></ErrorResponse>"
    )


def test_a_queue_is_deleted(door, json_sqs, place):
    assert _plain(door("DeleteQueue")) == _whole("DeleteQueue", "")
    with refused(NO_QUEUE):
        json_sqs.get_queue_url(QueueName=place.name)
    for action in ("DeleteQueue", "ReceiveMessage", "GetQueueAttributes"):
        assert door(action).error == (400, NO_QUEUE, _NO_QUEUE)


def test_the_version_of_the_api_may_be_given(door):
    assert door("GetQueueAttributes", Version="2012-11-05", AttributeName_1="All").status == 200


# -- where --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
def test_some_actions_are_not_for_queues(wire, place, how, action):
    door = Door(wire, place, how, "queue")
    message = f"The action {action} is not valid for this endpoint."
    assert door(action, QueueName="any").error == (400, "InvalidAction", message)


def test_queues_are_created_found_and_listed_at_the_root(wire, how):
    door = Door(wire, Queue(None, "none"), how, "root")
    name = f"at-root-{how}"
    created = door("CreateQueue", QueueName=name, Attribute_1_Name="DelaySeconds",
                   Attribute_1_Value="7")  # fmt: skip
    [url] = created.all("QueueUrl")
    assert path_of(url) == f"/000000000000/{name}"
    result = f"<CreateQueueResult><QueueUrl>{url}</QueueUrl></CreateQueueResult>"
    assert _plain(created) == _whole("CreateQueue", result)
    assert door("GetQueueUrl", QueueName=name).all("QueueUrl") == [url]
    assert door("ListQueues", QueueNamePrefix=name).all("QueueUrl") == [
        own for own in door("ListQueues").all("QueueUrl") if f"/{name}" in own
    ]


@pytest.mark.parametrize("own", [True, False])
def test_the_url_of_any_queue_is_asked_for_at_a_queue(wire, json_sqs, place, own):
    queue = place if own else maker(json_sqs)()
    answer = wire.get("GetQueueUrl", place.url, QueueName=queue.name)
    assert answer.all("QueueUrl") == [queue.url]


def test_the_url_in_the_fields_goes_before_the_path(wire, json_sqs, place):
    other = maker(json_sqs)()
    answer = wire.get(
        "GetQueueAttributes", place.url, QueueUrl=other.url, AttributeName_1="QueueArn"
    )
    assert answer.all("Value")[0].endswith(f":{other.name}")


@pytest.mark.parametrize("accept", ["", "application/json", "text/html"])
def test_no_action_is_an_unknown_operation(wire, place, accept):
    headers = {"Accept": accept} if accept else {}
    answer = wire.ask("GET", path_of(place.url), **headers)
    assert answer.status == 404
    assert answer.kind == "text/xml"
    assert answer.body.strip() == b"<UnknownOperationException/>"


def test_a_url_with_a_region_in_its_path_is_a_queue(wire, place):
    path = f"/queue/eu-north-1{path_of(place.url)}"
    answer = wire.get("GetQueueAttributes", path, AttributeName_1="DelaySeconds")
    assert answer.all("Value") == ["0"]


def test_a_signature_may_stand_in_the_query_string(wire, place):
    signature = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": "anybody/20260101/eu-west-3/sqs/aws4_request",
        "X-Amz-Date": "20260101T000000Z",
        "X-Amz-Expires": "60",
        "X-Amz-SignedHeaders": "host",
        "X-Amz-Signature": "0" * 64,
    }
    listed = wire.get("ListQueues", QueueNamePrefix=place.name, **signature)
    assert listed.all("QueueUrl") == [place.url]
    asked = wire.get("GetQueueAttributes", place.url, AttributeName_1="QueueArn", **signature)
    assert asked.all("Value") == [f"arn:aws:sqs:eu-west-3:000000000000:{place.name}"]


# -- JSON replies to query requests ---------------------------------------------------------------------


def test_a_list_is_given_as_json_on_request(wire, place):
    answer = wire.get("ListQueues", accept="application/json", QueueNamePrefix=place.name)
    assert answer.kind == "application/json"
    [urls] = answer.json["ListQueuesResponse"]["ListQueuesResult"].values()
    assert urls == [place.url]
    assert wire.get("ListQueues").kind == "text/xml"


@pytest.mark.parametrize("body", ['{"foo": "ba\rr", "foo2": "ba&quot;r&quot;"}', "<&>"])
def test_a_message_is_given_as_json_on_request(wire, place, body):
    place.send(body)
    answer = wire.get("ReceiveMessage", place.url, accept="application/json")
    result = answer.json["ReceiveMessageResponse"]["ReceiveMessageResult"]
    assert result["messages"][0]["Body"] == body


def test_attributes_are_given_as_json_on_request(wire, place):
    answer = wire.get(
        "GetQueueAttributes", place.url, accept="application/json", AttributeName_1="DelaySeconds"
    )
    result = answer.json["GetQueueAttributesResponse"]["GetQueueAttributesResult"]
    assert result["Attributes"] == [{"Name": "DelaySeconds", "Value": "0"}]


def test_an_error_is_given_as_json_on_request(wire, place):
    answer = wire.get("ListQueues", place.url, accept="application/json")
    assert answer.status == 400
    error = answer.json["Error"]
    assert error["Code"] == "InvalidAction"
    assert error["Message"] == "The action ListQueues is not valid for this endpoint."


# -- lists and maps in fields ---------------------------------------------------------------------------


def test_numbers_order_the_fields_of_a_list(wire, place):
    wire.post(
        "SendMessageBatch",
        place.url,
        SendMessageBatchRequestEntry_10_Id="ten",
        SendMessageBatchRequestEntry_10_MessageBody="last",
        SendMessageBatchRequestEntry_2_Id="two",
        SendMessageBatchRequestEntry_2_MessageBody="first",
    )
    assert place.bodies() == ["first", "last"]


def test_a_batch_has_entries_with_attributes(wire, place):
    entry = "SendMessageBatchRequestEntry_1_"
    answer = wire.post("SendMessageBatch", place.url, **{
        f"{entry}Id": "one",
        f"{entry}MessageBody": "x",
        f"{entry}MessageAttribute_1_Name": "k",
        f"{entry}MessageAttribute_1_Value_DataType": "String",
        f"{entry}MessageAttribute_1_Value_StringValue": "x",
        "SendMessageBatchRequestEntry_2_Id": "two",
        "SendMessageBatchRequestEntry_2_MessageBody": "\x01",
    })  # fmt: skip
    [ok, failed] = answer.xml[0]
    assert ok.tag == f"{{{_XMLNS}}}SendMessageBatchResultEntry"
    assert failed.tag == f"{{{_XMLNS}}}BatchResultErrorEntry"
    assert answer.all("Id") == ["one", "two"]
    assert answer.all("MD5OfMessageAttributes") == ["a45daa70926828a2f0a1db3418e6feb4"]
    assert (answer.all("SenderFault"), answer.all("Code")) == (["true"], ["InvalidMessageContents"])


def test_handles_are_deleted_and_hidden_in_batches(wire, place):
    place.send_all("a", "b")
    one, other = (message["ReceiptHandle"] for message in place.receive())
    hidden = wire.post(
        "ChangeMessageVisibilityBatch",
        place.url,
        ChangeMessageVisibilityBatchRequestEntry_1_Id="one",
        ChangeMessageVisibilityBatchRequestEntry_1_ReceiptHandle=one,
        ChangeMessageVisibilityBatchRequestEntry_1_VisibilityTimeout="0",
    )
    tag = "ChangeMessageVisibilityBatchResultEntry"
    assert f"<{tag}><Id>one</Id></{tag}>" in _plain(hidden)
    deleted = wire.post(
        "DeleteMessageBatch",
        place.url,
        DeleteMessageBatchRequestEntry_1_Id="other",
        DeleteMessageBatchRequestEntry_1_ReceiptHandle=other,
    )
    tag = "DeleteMessageBatchResultEntry"
    assert f"<{tag}><Id>other</Id></{tag}>" in _plain(deleted)
    assert place.counts() == (1, 0, 0)


def test_message_attributes_have_types_and_binary_values_in_base64(wire, place):
    binary = base64.b64encode(b"\x00\xff").decode()
    sent = wire.post(
        "SendMessage",
        place.url,
        MessageBody="x",
        MessageAttribute_1_Name="b",
        MessageAttribute_1_Value_DataType="Binary",
        MessageAttribute_1_Value_BinaryValue=binary,
        MessageAttribute_2_Name="n",
        MessageAttribute_2_Value_DataType="Number",
        MessageAttribute_2_Value_StringValue="7",
        MessageSystemAttribute_1_Name="AWSTraceHeader",
        MessageSystemAttribute_1_Value_DataType="String",
        MessageSystemAttribute_1_Value_StringValue="some-trace-id",
    )
    assert sent.all("MD5OfMessageSystemAttributes") == ["fdce4f2818803f2f73becc09a54792c0"]
    text = _plain(
        wire.post(
            "ReceiveMessage",
            place.url,
            MessageAttributeName_1="All",
            AttributeName_1="AWSTraceHeader",
        )
    )
    trace = "<Attribute><Name>AWSTraceHeader</Name><Value>some-trace-id</Value></Attribute>"
    assert trace in text
    for name, tag, value, kind in (
        ("b", "BinaryValue", binary, "Binary"),
        ("n", "StringValue", "7", "Number"),
    ):
        [inner] = re.findall(
            rf"<MessageAttribute><Name>{name}</Name><Value>(.*?)</Value></MessageAttribute>", text
        )
        assert f"<DataType>{kind}</DataType>" in inner
        assert f"<{tag}>{value}</{tag}>" in inner


def test_tags_are_keys_and_values(wire, place):
    tagged = wire.post("TagQueue", place.url, Tag_1_Key="a", Tag_1_Value="1", Tag_2_Key="b",
                       Tag_2_Value="")  # fmt: skip
    assert _plain(tagged) == _whole("TagQueue", "")
    listed = wire.post("ListQueueTags", place.url)
    assert "<Tag><Key>a</Key><Value>1</Value></Tag>" in _plain(listed)
    assert place.call("list_queue_tags") == {"Tags": {"a": "1", "b": ""}}
    wire.post("UntagQueue", place.url, TagKey_1="a", TagKey_2="b")
    assert _plain(wire.post("ListQueueTags", place.url)) == _whole(
        "ListQueueTags", "<ListQueueTagsResult/>"
    )


def test_permissions_are_lists_of_accounts_and_actions(wire, place):
    answer = wire.post("AddPermission", place.url, Label="l", AWSAccountId_1="1" * 12,
                       ActionName_1="SendMessage", ActionName_2="ReceiveMessage")  # fmt: skip
    assert _plain(answer) == _whole("AddPermission", "")
    assert '"Action":["SQS:SendMessage","SQS:ReceiveMessage"]' in place.attribute("Policy")


def test_attributes_are_set_by_name_and_value(wire, place):
    answer = wire.post("SetQueueAttributes", place.url, Attribute_1_Name="DelaySeconds",
                       Attribute_1_Value="7")  # fmt: skip
    assert _plain(answer) == _whole("SetQueueAttributes", "")
    assert place.attribute("DelaySeconds") == "7"


def test_a_single_attribute_may_go_without_a_number(wire, place):
    wire.post("SetQueueAttributes", place.url, Attribute_Name="DelaySeconds", Attribute_Value="7")
    assert place.attribute("DelaySeconds") == "7"


# -- text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", ["a b+c%20d&e=f", "\r\n\t", "<&>\"'", "gr\u00fc\u00df \U0001f54a", "]]>"]
)
def test_text_survives_forms_and_xml(wire, place, how, body):
    ask = {"GET": wire.get, "POST": wire.post, "POST-bare": wire.post_bare}[how]
    sent = ask("SendMessage", place.url, MessageBody=body)
    assert sent.all("MD5OfMessageBody") == [hashlib.md5(body.encode()).hexdigest()]
    received = ask("ReceiveMessage", place.url)
    assert received.all("Body") == [body]


def test_a_carriage_return_is_written_as_a_reference(wire, place):
    place.send("a\rb")
    answer = wire.get("ReceiveMessage", place.url)
    assert b"<Body>a&#13;b</Body>" in answer.body or b"<Body>a&#xD;b</Body>" in answer.body


@pytest.mark.parametrize("field", ["MaxNumberOfMessages", "WaitTimeSeconds", "VisibilityTimeout"])
def test_a_number_that_is_none_is_refused(wire, place, field):
    answer = wire.post("ReceiveMessage", place.url, **{field: "ten"})
    assert answer.status == 400
    assert answer.all("Type") == ["Sender"]


@pytest.mark.parametrize(
    ("action", "members"),
    [
        ("ListDeadLetterSourceQueues", ["QueueUrl"]),
        ("ListQueues", ["QueueUrl"]),
    ],
)
def test_urls_are_repeated_elements(wire, json_sqs, action, members):
    dead, one, other = (maker(json_sqs)() for _ in range(3))
    for queue in (one, other):
        queue.redrive_to(dead)
    answer = wire.post(action, QueueUrl=dead.url)
    assert {one.url, other.url} <= set(answer.all("QueueUrl"))
    assert [child.tag for child in answer.xml[0]] == [
        f"{{{_XMLNS}}}QueueUrl" for _ in answer.all("QueueUrl")
    ]


def test_move_tasks_are_repeated_elements(wire, json_sqs):
    dead, source = (maker(json_sqs)() for _ in range(2))
    source.redrive_to(dead)
    started = wire.post("StartMessageMoveTask", SourceArn=dead.arn)
    assert len(started.all("TaskHandle")) == 1
    answer = wire.post("ListMessageMoveTasks", SourceArn=dead.arn)
    [entry] = answer.xml[0]
    assert entry.tag == f"{{{_XMLNS}}}ListMessageMoveTasksResultEntry"
    assert answer.all("SourceArn") == [dead.arn]
    assert answer.all("ApproximateNumberOfMessagesMoved") == ["0"]


@pytest.mark.parametrize(
    "headers", [{"Sec_Fetch_Site": "cross-site"}, {"Origin": "https://evil.example"}]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_site_gets_nothing_done(wire, place, method, headers):
    path = f"{path_of(place.url)}?Action=DeleteQueue&Version=2012-11-05"
    answer = wire.ask(method, path, **headers)
    assert answer.status == 403
    assert b"AccessDenied" in answer.body
    assert place.call("get_queue_attributes", AttributeNames=["QueueArn"])["Attributes"]
