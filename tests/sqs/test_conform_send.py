"""Sending: what a message may be, and what the reply says of it."""

import pytest

from sqs.clients import later, refused
from sqs.conftest import maker

_TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
_ID_RULE = "can only include alphanumeric and punctuation characters. 1 to 128 in length."


def _text(value: str, kind: str = "String") -> dict[str, str]:
    return {"DataType": kind, "StringValue": value}


def _token(parameter: str, value: str) -> str:
    """What is said of a group or deduplication id that is none."""
    return f"Value {value} for parameter {parameter} is invalid. Reason: {parameter} {_ID_RULE}"


_BAD_TOKENS = pytest.mark.parametrize(
    "token", ["", "a" * 129, "group 123"], ids=["empty", "long", "blank"]
)


# -- bodies -----------------------------------------------------------------------------------------


def test_the_reply_has_a_checksum_and_an_id(queue):
    reply = queue.send("message")
    assert set(reply) == {"MD5OfMessageBody", "MessageId"}
    assert reply["MD5OfMessageBody"] == "78e731027d8fd50ed642340b7c9a63b3"
    message = queue.one()
    assert set(message) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
    assert message["MessageId"] == reply["MessageId"]
    assert message["MD5OfBody"] == reply["MD5OfMessageBody"]
    assert message["Body"] == "message"


def test_a_message_is_sent_received_and_deleted(server, queue):
    queue.send("once")
    queue.delete(queue.one())
    later(server, 31)
    assert queue.receive() == []
    assert queue.counts() == (0, 0, 0)


@pytest.mark.parametrize("options", [{"MessageBody": ""}, {}], ids=["empty", "missing"])
def test_a_message_needs_a_body(queue, options):
    with refused("MissingParameter", "The request must contain the parameter MessageBody."):
        queue.call("send_message", **options)


@pytest.mark.parametrize(
    "body",
    [
        '"&quot;&quot;\r',
        '{\r\n"machineID" : "d357006e26ff47439e1ef894225d4307"\r\n}',
        "<a href='b'>&amp; ]]></a>",
        "line\r\nline\nline\r",
        " blanks at both ends ",
        "\ttabs\t",
        "50% + 50% = 1; a&b=c",
        "gr\u00fc\u00df \u4f60\u597d \U0001f54a \ud7ff\ue000\ufffd",
        "\u0085 \u2028 \u00a0",
    ],
)
def test_a_body_comes_back_as_it_was_sent(queue, body):
    queue.send(body)
    assert queue.bodies() == [body]


@pytest.mark.parametrize("character", ["\x00", "\x08", "\x13", "\uffff", "\x1f", "\ufffe"])
def test_characters_that_xml_cannot_carry_are_refused(queue, character):
    message = (
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF "
        "| #xE000 to #xFFFD | #x10000 to #x10FFFF"
    )
    with refused("InvalidMessageContents", message):
        queue.send(f"before{character}after")


# -- attributes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "md5"),
    [
        ({"Foo": _text("Bar")}, "ae7155c6026991b6d54b11589678bf9c"),
        ({"MyAttribute": _text("foobar")}, "adb59cd4678ea5a855436b949cd07ab6"),
        ({"k": _text("x")}, "a45daa70926828a2f0a1db3418e6feb4"),
        ({"Hello": _text("World")}, "7db7fb1ba7f41366a8ea5eb18220b26d"),
        ({"timestamp": _text("1493147359900", "Number")}, "235c5c510d26fb653d073faed50ae77c"),
        ({"timestamp": _text("1493147359901", "Number")}, "994258b45346a2cc3f9cbb611aa7af30"),
        (
            {"SOME_Valid.attribute-Name": _text("1493147359900", "Number")},
            "36655e7e9d7c0e8479fa3f3f42247ae7",
        ),
        (
            {"timestamp": _text("1493147359900", "Number.java.lang.Long")},
            "2e2e4876d8e0bd6b8c2c8f556831c349",
        ),
        (
            {"timestamp": _text("1493147359901", "Number.java.lang.Long")},
            "cfa7c73063c6e2dbf9be34232a1978cf",
        ),
        (
            {"UserId": _text("1234567890123456789012", "Number.bigint")},
            "797ab158d73dcb5242dedc4412c8e855",
        ),
        ({"somevalue": _text("somevalue", "String.custom")}, "9e05cca738e70ff6c6041e82d5e77ef1"),
        (
            {"attrib1": _text("2345"), "attrib2": _text("true")},
            "c92eae09ef2c14cd949cc265ebc9cb50",
        ),
        (
            {
                "attr1": {
                    "DataType": "Binary",
                    "BinaryValue": b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c"
                    b"-2d2482211f6489da-01",
                }
            },
            "8cbe4db156db8a94db8b801b7addb984",
        ),
        (
            {
                "id": _text("2018fc74-4f77-1a5a-1be0-c2d037d5052b"),
                "contentType": _text("application/json"),
                "timestamp": _text("1602845432024", "Number.java.lang.Long"),
            },
            "b12289320bb6e494b18b645ef562b4a9",
        ),
        (
            {
                "id": _text("453ae55e-f03b-21a6-a4b1-70c2e2e8fe71"),
                "mybin": {"DataType": "Binary", "BinaryValue": b"kekchebukek"},
                "timestamp": _text("1603134247654", "Number.java.lang.Long"),
                "contentType": _text("application/json"),
            },
            "049075255ebc53fb95f7f9f3cedf3c50",
        ),
    ],
)
def test_attributes_come_back_with_their_checksum(queue, attributes, md5):
    reply = queue.send("derp", MessageAttributes=attributes)
    assert reply["MD5OfMessageAttributes"] == md5
    assert reply["MD5OfMessageBody"] == "58fd9edd83341c29f1aebba81c31e257"
    message = queue.one(MessageAttributeNames=["All"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == md5


def test_attributes_are_still_there_at_the_next_receive(server, queue):
    attributes = {"attr1": _text("val1"), "attr2": {"DataType": "Binary", "BinaryValue": b"\x00"}}
    queue.send(MessageAttributes=attributes)
    for _ in range(2):
        message = queue.one(MessageAttributeNames=["All"])
        assert message["MessageAttributes"] == attributes
        later(server, 31)


@pytest.mark.parametrize("name", ["attr.1\u00f8\u00df\u00e4", "a", "A-b_c.9", "n" * 255])
def test_names_that_attributes_may_have(queue, name):
    queue.send(MessageAttributes={name: _text("val1")})
    assert queue.one(MessageAttributeNames=["All"])["MessageAttributes"] == {name: _text("val1")}


@pytest.mark.parametrize(
    "name",
    [
        "AWS.x", "aWs.x", "Amazon.x", "AMAZON.x", ".x", "x.", "x..y", "x!", 'x"', "x\u00a7",
        "(x", "x?", "x y", "n" * 257,
    ],
)  # fmt: skip
def test_names_that_attributes_may_not_have(queue, name):
    with refused("InvalidParameterValue"):
        queue.send(MessageAttributes={name: _text("val1")})


@pytest.mark.parametrize("kind", ["Invalid", "string", "Number." + "x" * 256, "StringX"])
def test_types_that_attributes_may_not_have(queue, kind):
    with refused("InvalidParameterValue"):
        queue.send(MessageAttributes={"attr": _text("1", kind)})


@pytest.mark.parametrize("value", ["before\x08after", "before\x0bafter", "\x00"])
def test_values_that_attributes_may_not_have(queue, value):
    with refused("InvalidParameterValue"):
        queue.send(MessageAttributes={"attr": _text(value)})


_WRONG_TYPE = (
    "The type of message (user) attribute 'Hello' is invalid. You must use only the following "
    "supported type prefixes: Binary, Number, String."
)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "ErrorDetails",
            _text(""),
            "Message (user) attribute 'ErrorDetails' must contain a non-empty value of type 'String'.",
        ),
        (
            "Hello",
            {},
            "The message (user) attribute 'Hello' must contain a non-empty message attribute value.",
        ),
        (
            "Hello",
            _text("world", "Number"),
            "Can't cast the value of message (user) attribute 'Hello' to a number.",
        ),
        (
            "Hello",
            _text("world", "InvalidType"),
            _WRONG_TYPE,
        ),
        ("", _text("x"), "The request must contain non-empty message (user) attribute names."),
    ],
)
def test_what_is_said_of_a_wrong_attribute(queue, name, value, message):
    with refused("InvalidParameterValue", message):
        queue.send(MessageAttributes={name: value})


@pytest.mark.parametrize(
    "value",
    [
        {"DataType": "String", "StringListValues": ["a"]},
        {"DataType": "Binary", "BinaryListValues": [b"a"]},
    ],
)
def test_a_value_is_no_list(json_sqs, value):
    message = "Message attribute list values in SendMessage operation are not supported."
    with refused("InvalidParameterValue", message):
        maker(json_sqs)().send(MessageAttributes={"Hello": value})


# -- system attributes --------------------------------------------------------------------------------


def test_a_trace_header_has_a_checksum_of_its_own(queue):
    plain = queue.send("x", MessageAttributes={"k": _text("x")})
    assert "MD5OfMessageSystemAttributes" not in plain
    traced = queue.send(
        "x",
        MessageAttributes={"k": _text("x")},
        MessageSystemAttributes={"AWSTraceHeader": _text(_TRACE)},
    )
    assert traced["MD5OfMessageAttributes"] == plain["MD5OfMessageAttributes"]
    assert traced["MD5OfMessageSystemAttributes"] == "5ae4d5d7636402d80f4eb6d213245a88"
    one, other = queue.receive(AttributeNames=["AWSTraceHeader"])
    assert "Attributes" not in one
    assert other["Attributes"] == {"AWSTraceHeader": _TRACE}


def test_a_trace_header_alone_has_only_its_own_checksum(queue):
    reply = queue.send(MessageSystemAttributes={"AWSTraceHeader": _text("some-trace-id")})
    assert reply["MD5OfMessageSystemAttributes"] == "fdce4f2818803f2f73becc09a54792c0"
    assert "MD5OfMessageAttributes" not in reply


def test_a_trace_header_of_the_request_is_kept(sqs, queue):
    def add(request, **_):
        request.headers["X-Amzn-Trace-Id"] = _TRACE

    sqs.meta.events.register("before-sign.sqs.SendMessage", add)
    try:
        reply = queue.send()
    finally:
        sqs.meta.events.unregister("before-sign.sqs.SendMessage", add)
    assert "MD5OfMessageSystemAttributes" not in reply
    assert queue.one(AttributeNames=["All"])["Attributes"]["AWSTraceHeader"] == _TRACE


def test_there_is_no_other_system_attribute_to_send(queue):
    with refused("InvalidParameterValue", "Message system attribute name 'Hello' is invalid."):
        queue.send(MessageSystemAttributes={"Hello": _text("World")})


# -- groups and deduplication -------------------------------------------------------------------------


def test_a_standard_queue_takes_a_group(queue):
    reply = queue.send("fair", "tenant-1")
    assert set(reply) == {"MD5OfMessageBody", "MessageId"}
    found = queue.one(AttributeNames=["All"])["Attributes"]
    assert found["MessageGroupId"] == "tenant-1"
    assert not {"MessageDeduplicationId", "SequenceNumber"} & set(found)


def test_the_groups_of_a_standard_queue_lock_nothing(queue):
    queue.send("one", "g")
    queue.send("two", "g")
    assert queue.bodies(1) == ["one"]
    assert queue.bodies(1) == ["two"]


@_BAD_TOKENS
def test_a_group_has_1_to_128_characters_without_blanks(queue, fifo, token):
    for own in (queue, fifo):
        with refused("InvalidParameterValue", _token("MessageGroupId", token)):
            own.send("x", token)


@_BAD_TOKENS
def test_a_deduplication_id_has_1_to_128_characters_without_blanks(fifo, token):
    with refused("InvalidParameterValue", _token("MessageDeduplicationId", token)):
        fifo.send("x", "g", MessageDeduplicationId=token)


def test_ids_may_have_128_characters_and_any_punctuation(fifo):
    marks = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    for token in ("a" * 128, marks):
        fifo.send(token, token, MessageDeduplicationId=token)
        [message] = fifo.receive(AttributeNames=["All"])
        assert message["Attributes"]["MessageGroupId"] == token
        assert message["Attributes"]["MessageDeduplicationId"] == token


def test_a_standard_queue_takes_no_deduplication_id(queue):
    with refused("InvalidParameterValue"):
        queue.send(MessageDeduplicationId="1")


def test_a_fifo_queue_needs_a_group(fifo):
    with refused("MissingParameter", "The request must contain the parameter MessageGroupId."):
        fifo.send(MessageDeduplicationId="1")


def test_a_fifo_queue_needs_a_deduplication_id_or_the_content(make):
    queue = make(fifo=True, ContentBasedDeduplication="false")
    message = (
        "The queue should either have ContentBasedDeduplication enabled or "
        "MessageDeduplicationId provided explicitly"
    )
    with refused("InvalidParameterValue", message):
        queue.send("x", "g")
    assert queue.send("x", "g", MessageDeduplicationId="1")["SequenceNumber"]


# -- delays -----------------------------------------------------------------------------------------


def test_a_delayed_message_is_counted_and_comes_later(server, queue):
    queue.send("at once")
    queue.send("later", DelaySeconds=5)
    queue.send("much later", DelaySeconds=900)
    assert queue.bodies() == ["at once"]
    assert queue.counts() == (0, 1, 2)
    later(server, 6)
    assert queue.counts() == (1, 1, 1)
    assert queue.bodies() == ["later"]


def test_delayed_messages_are_counted_before_anybody_receives(server, make):
    queue, fifo = make(), make(fifo=True, DelaySeconds="5")
    queue.send("at once")
    queue.send("later", DelaySeconds=5)
    fifo.send("later", "g")
    assert queue.counts() == (1, 0, 1)
    assert fifo.counts() == (0, 0, 1)


def test_a_queue_delays_what_does_not_say_otherwise(server, make):
    queue = make(DelaySeconds="5")
    queue.send("usual")
    queue.send("at once", DelaySeconds=0)
    assert queue.bodies() == ["at once"]
    later(server, 6)
    assert queue.bodies() == ["usual"]


@pytest.mark.parametrize("seconds", [-234, -1, 901, 54524])
def test_a_delay_is_0_to_900_seconds(queue, seconds):
    message = (
        f"Value {seconds} for parameter DelaySeconds is invalid. "
        "Reason: DelaySeconds must be >= 0 and <= 900."
    )
    with refused("InvalidParameterValue", message):
        queue.send(DelaySeconds=seconds)


@pytest.mark.parametrize("seconds", [2, 5])
def test_a_message_of_a_fifo_queue_has_no_delay_of_its_own(fifo, seconds):
    message = (
        f"Value {seconds} for parameter DelaySeconds is invalid. Reason: The request include "
        "parameter that is not valid for this queue type."
    )
    with refused("InvalidParameterValue", message):
        fifo.send("x", "g", DelaySeconds=seconds)


def test_a_message_of_a_fifo_queue_may_have_a_delay_of_0(fifo):
    fifo.send("x", "g", DelaySeconds=0)
    assert fifo.bodies() == ["x"]


@pytest.mark.parametrize("options", [{}, {"DelaySeconds": 0}])
def test_a_fifo_queue_delays_all_its_messages(server, make, options):
    queue = make(fifo=True, DelaySeconds="5")
    queue.send("1", "g", **options)
    assert queue.receive() == []
    later(server, 6)
    assert queue.bodies() == ["1"]
