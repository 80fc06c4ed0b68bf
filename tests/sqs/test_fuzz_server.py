"""Random requests to a live server: it never fails, never hangs, and goes on serving.

And what it accepts comes back as it was sent, whichever protocol is used for which half.
"""

import base64
import json
import socket
import string
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ringdove.core.receipt import Receipt
from ringdove.frontends.sqs.translate import handle_of
from ringdove.protocol.sqs import rules
from ringdove.protocol.sqs.shapes import ACTIONS
from ringdove.stores.base import Start
from server.running import ServerThread
from sqs.foreign_requests import FIELDS, MEMBERS, settings_for, texts, values
from sqs.foreign_signing import PATIENCE_S, PROTOCOLS, Answer, Asker, Spy, Wired

ACCOUNT = "000000000000"


class Place:
    """A server with a queue of each kind, in front of somebody who signs nothing."""

    def __init__(self, server: ServerThread) -> None:
        self.server = server
        self.asker = Asker(server.http_port)
        self.asker.must("json", "CreateQueue", QueueName="fuzz")
        self.asker.must(
            "json",
            "CreateQueue",
            QueueName="fuzz.fifo",
            Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"},
        )
        self.asker.must("json", "SendMessage", QueueUrl="fuzz", MessageBody="m")
        handle = self.asker.must("json", "ReceiveMessage", QueueUrl="fuzz").one("ReceiptHandle")
        #: Strings that lead further into the server than others.
        self.known = [
            "fuzz", "fuzz.fifo", f"/{ACCOUNT}/fuzz", f"http://x/{ACCOUNT}/fuzz.fifo", handle,
            f"arn:aws:sqs:us-east-1:{ACCOUNT}:fuzz", "All", "VisibilityTimeout", "String",
            "Number", "Binary", "AWSTraceHeader", "a", "http://[", "//[::", "0", "10",
            base64.b64encode(b'{"taskId":"x","sourceArn":"arn:aws:sqs:a:000000000000:fuzz"}').decode(),
        ]  # fmt: skip

    def serves(self) -> bool:
        """Whether it still does what it should."""
        self.asker.must("json", "CreateQueue", QueueName="alive")
        self.asker.must("json", "SendMessage", QueueUrl="alive", MessageBody="m")
        answer = self.asker.must("query", "ReceiveMessage", QueueUrl="alive")
        return answer.one("Body") == "m"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with ServerThread("nowhere", port=-1, memory=True) as server:
        made = Place(server)
        yield made
        assert made.serves()


def check(answer: Answer) -> None:
    """An answer that may be given to anything."""
    assert answer.status < 500, answer
    kind = answer.headers["content-type"]
    if kind == "text/xml":
        assert ET.fromstring(answer.body) is not None
    elif kind != "text/plain; version=0.0.4; charset=utf-8" and answer.body:
        json.loads(answer.body)
    if answer.status != 200 and "json" in kind and "x-amzn-query-error" in answer.headers:
        assert json.loads(answer.body)["__type"].startswith("com.amazonaws.sqs#")


#: Nobody waits in these tests: neither in a call nor by an attribute of the queue.
waits = st.sampled_from([0, -1, 21, "x", None])


def spiced(known: list[str]) -> st.SearchStrategy[Any]:
    """Values for members, with a good share of strings that mean something."""
    return st.sampled_from(known) | values | st.lists(st.sampled_from(known), max_size=3)


# -- whole requests -----------------------------------------------------------------------------


@settings_for(150)
@given(data=st.data())
def test_any_json_request_gets_a_sensible_answer(place, data):
    action = data.draw(st.sampled_from(sorted(ACTIONS)) | texts.filter(str.isprintable))
    assume("\n" not in action and action.isascii())
    assume(action != "DeleteQueue")
    some = spiced(place.known)
    inner = st.dictionaries(st.sampled_from(MEMBERS), some, max_size=4)
    members = data.draw(
        st.fixed_dictionaries(
            {"QueueUrl": st.sampled_from(place.known)},
            optional={
                **{name: some for name in MEMBERS if name not in ("QueueUrl", "WaitTimeSeconds")},
                "WaitTimeSeconds": waits,
                "Entries": st.lists(inner, max_size=3) | some,
                "MessageAttributes": st.dictionaries(texts, inner, max_size=3),
                "Attributes": st.dictionaries(
                    texts | st.sampled_from(ATTRIBUTES), texts, max_size=3
                ),
            },
        )
    )
    path = data.draw(st.sampled_from(["/", f"/{ACCOUNT}/fuzz", "/x", "//", "/queue/r/x/y"]))
    body = json.dumps(members).encode()
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
    check(place.asker.send(place.asker.sign(path, headers, body)))


ATTRIBUTES = [
    "VisibilityTimeout", "DelaySeconds", "Policy", "RedrivePolicy", "RedriveAllowPolicy",
    "KmsMasterKeyId", "FifoQueue", "MaximumMessageSize", "DeduplicationScope",
]  # fmt: skip


@settings_for(150)
@given(data=st.data())
def test_any_query_request_gets_a_sensible_answer(place, data):
    action = data.draw(st.sampled_from(sorted(ACTIONS)) | texts)
    assume(action != "DeleteQueue")
    parts = st.lists(st.sampled_from(FIELDS), min_size=1, max_size=6).map(".".join)
    fields = data.draw(st.dictionaries(parts, texts | st.sampled_from(place.known), max_size=10))
    fields = {k: v for k, v in fields.items() if not k.startswith("WaitTime")}
    fields |= {"QueueUrl": data.draw(st.sampled_from(place.known)), "WaitTimeSeconds": "0"}
    form = place.asker.make("query", action, **fields)
    if data.draw(st.booleans()):
        form = form._replace(method="GET", target="/?" + form.body.decode(), body=b"")
    if data.draw(st.booleans()):
        form = form._replace(headers={**form.headers, "Accept": "application/json"})
    check(place.asker.send(form))


@settings_for(150)
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"]),
    st.text(string.printable, max_size=30).map(lambda t: "/" + t.translate(_BLANKS)),
    st.dictionaries(
        st.sampled_from(
            ["X-Amz-Target", "Authorization", "Content-Type", "Accept", "Host", "X-Amzn-Trace-Id",
             "X-Amz-Date", "Expect", "Range", "Content-Encoding", "Cookie", "Origin"]
        ),
        st.text(string.printable, max_size=30).map(lambda t: t.translate(_BLANKS)),
        max_size=5,
    ),
    st.binary(max_size=60),
)  # fmt: skip
def test_any_http_request_gets_an_answer(place, method, target, headers, body):
    assume(headers.get("Expect") is None or headers["Expect"].lower() != "100-continue")
    check(place.asker.send(Wired(method, target, headers, body)))


_BLANKS = {ord(blank): "_" for blank in " \t\n\r\x0b\x0c"}

GOOD = b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: AmazonSQS.ListQueues\r\nContent-Length: 2\r\n\r\n{}"


@settings_for(100)
@given(
    st.binary(max_size=100),
    st.lists(st.tuples(st.integers(0, len(GOOD)), st.binary(max_size=4)), max_size=4),
    st.integers(0, len(GOOD)),
)
@example(b"", [], 10)
@example(b"\0" * 100, [], 0)
@example(GOOD * 3, [], len(GOOD))
@example(
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", [], 0
)
@example(b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", [], 0)
@example(b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n", [], 0)
@example(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", [], 0)
@example(b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", [], 0)
@example(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\nCONNECT x:1 HTTP/1.1\r\n\r\n", [], 0)
@example(b"GET http://x/%00%ff/../?Action=%00 HTTP/1.0\r\n\r\n", [], 0)
@example(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [], 0)
def test_any_bytes_get_an_answer_or_the_end(place, front, edits, keep):
    """Here the client says that nothing more will come, and reads to the end."""
    spoilt = bytearray(GOOD)
    for at, piece in edits:
        spoilt[at : at + len(piece)] = piece
    answer = b""
    with socket.create_connection(("127.0.0.1", place.server.http_port), PATIENCE_S) as plain:
        try:
            plain.sendall(front + bytes(spoilt[:keep]))
            plain.shutdown(socket.SHUT_WR)
            while data := plain.recv(65_536):
                answer += data
        except TimeoutError:
            raise
        except OSError:
            pass  # Hung up on, which is an answer.
    assert b"HTTP/1.1 5" not in answer
    assert not answer or answer.startswith(b"HTTP/1.1 ")


@settings_for(60)
@given(
    st.sampled_from(["fuzz", "fuzz.fifo"]),
    st.fixed_dictionaries(
        {},
        optional={
            "number": st.integers(0, 2**16 - 1),
            "level": st.integers(0, 255),
            "epoch": st.integers(0, 2**32 - 1),
            "token": st.integers(0, 2**64 - 1),
            "lo": st.integers(0, 3) | st.integers(0, 2**64 - 1),
            "hi": st.integers(0, 3) | st.integers(0, 2**64 - 1),
            "subscription": texts,
        },
    ),
    st.integers(0, 2**40),
)
def test_a_handle_that_was_made_up_settles_nothing(place, name, forged, received_ms):
    """Even if its maker knows the form: he does not know the token."""
    queue = place.server.call(place.server.server.native.broker.get_queue(name))
    parts = {"number": 0, "level": 0, "epoch": 1, "token": 7, "lo": 0, "hi": 1, **forged}
    receipt = Receipt(queue.id, subscription=parts.pop("subscription", "default"), **parts)
    handle = handle_of(receipt, received_ms)
    before = place.server.call(place.server.server.native.broker.queue_stats(name))
    for action, members in (
        ("DeleteMessage", {}),
        ("ChangeMessageVisibility", {"VisibilityTimeout": 0}),
        ("ChangeMessageVisibility", {"VisibilityTimeout": 9}),
    ):
        answer = place.asker.ask("json", action, QueueUrl=name, ReceiptHandle=handle, **members)
        check(answer)
    assert place.server.call(place.server.server.native.broker.queue_stats(name)) == before


def test_a_queue_that_is_read_by_other_means_is_no_failure(place):
    """As a topic, it has subscriptions of its own and none for SQS."""
    broker = place.server.server.native.broker
    place.asker.must("json", "CreateQueue", QueueName="topic")
    place.server.call(broker.subscribe("topic", "readers", Start("earliest")))
    for protocol in PROTOCOLS:
        place.asker.must(protocol, "SendMessage", QueueUrl="topic", MessageBody="m")
        place.asker.must(protocol, "GetQueueAttributes", QueueUrl="topic", AttributeNames=["All"])
        answer = place.asker.ask(protocol, "ReceiveMessage", QueueUrl="topic")
        assert answer.code == "AWS.SimpleQueueService.UnsupportedOperation"
        assert answer.status == 400


# -- strangers ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed() -> Iterator[tuple[ServerThread, Spy]]:
    """A server with an account and its queue, and who watches over its store."""
    with ServerThread("nowhere", port=-1, memory=True) as server:
        broker = server.server.native.broker
        _, key = server.call(broker.accounts.create("shop", account_id="111111111111"))
        owner = Asker(server.http_port, key.id, key.secret)
        owner.must("json", "CreateQueue", QueueName="fuzz")
        owner.must("json", "SendMessage", QueueUrl="fuzz", MessageBody="m")
        yield server, Spy(broker.store)


@settings_for(60)
@given(
    action=st.sampled_from(sorted(ACTIONS)),
    protocol=st.sampled_from(PROTOCOLS),
    key=st.sampled_from(["", "111111111111", "AKIAIOSFODNN7EXAMPLE"]),
    members=st.dictionaries(
        st.sampled_from([name for name in MEMBERS if name != "QueueUrl"]),
        texts | st.sampled_from(["fuzz", "1", "arn:aws:sqs:us-east-1:111111111111:fuzz"]),
        max_size=5,
    ),
    path=st.sampled_from(["/", "/111111111111/fuzz", "/queue/us-east-1/111111111111/fuzz"]),
)
def test_nothing_that_a_stranger_sends_reaches_the_store(
    closed, action, protocol, key, members, path
):
    server, spy = closed
    stranger = Asker(server.http_port, key, "guess")
    url = "http://x/111111111111/fuzz"
    with spy.nothing():
        answer = stranger.ask(protocol, action, path=path, QueueUrl=url, **members)
    assert answer.status in (400, 403), answer
    check(answer)


# -- there and back -----------------------------------------------------------------------------

#: What the API can carry, with a good share of what is hard to write in JSON, forms or XML.
letters = st.one_of(
    st.sampled_from("\t\n\r &<>\"'%+=;/\\]?#\u2028\u0085\u00a0\ufffd\U0001f600\U0010ffff\u0300"),
    st.characters(exclude_categories=("Cs",)),
).filter(lambda letter: not rules.ILLEGAL.search(letter))
bodies = st.text(letters, min_size=1, max_size=40)
names = st.text(string.ascii_letters + string.digits + "_-.øß", min_size=1, max_size=20).filter(
    lambda name: (
        name.strip(".") == name
        and ".." not in name
        and not name.lower().startswith(("aws.", "amazon.", "ringdove."))
    )
)
kinds = st.sampled_from(["", ".custom", ".Ünïcode", ".a=b,c", ".int"])
message_attributes = st.dictionaries(
    names,
    st.one_of(
        st.builds(lambda k, v: {"DataType": "String" + k, "StringValue": v}, kinds, bodies),
        st.builds(
            lambda k, v: {"DataType": "Number" + k, "StringValue": v},
            kinds,
            st.sampled_from(["1", "-2.5", "+3e10", "007", ".5", "123456789012345678901234567890"]),
        ),
        st.builds(
            lambda k, v: {"DataType": "Binary" + k, "BinaryValue": v},
            kinds,
            st.binary(min_size=1, max_size=30),
        ),
    ),
    max_size=4,
)


def received(answer: Answer, protocol: str) -> list[dict[str, Any]]:
    """The messages of a reply, in one form."""
    if protocol == "json":
        found = json.loads(answer.body).get("Messages", [])
        for message in found:
            for own in message.get("MessageAttributes", {}).values():
                if "BinaryValue" in own:
                    own["BinaryValue"] = base64.b64decode(own["BinaryValue"])
        return found
    return [
        _from_xml(message)
        for message in ET.fromstring(answer.body).iter()
        if _tag(message) == "Message"
    ]


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _from_xml(element: ET.Element) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for child in element:
        if _tag(child) == "MessageAttribute":
            name, value = child
            own = {_tag(part): part.text or "" for part in value}
            if "BinaryValue" in own:
                own["BinaryValue"] = base64.b64decode(own["BinaryValue"])
            found.setdefault("MessageAttributes", {})[name.text] = own
        elif _tag(child) == "Attribute":
            name, value = child
            found.setdefault("Attributes", {})[name.text] = value.text or ""
        else:
            found[_tag(child)] = child.text or ""
    return found


@pytest.mark.parametrize("back", PROTOCOLS)
@pytest.mark.parametrize("there", PROTOCOLS)
@settings_for(60)
@given(body=bodies, attributes=message_attributes, trace=st.none() | bodies)
@example("\r", {"a": {"DataType": "String", "StringValue": "\r\n\t"}}, "\r")
@example("]]>&#13;&amp;", {}, None)
@example("\u0085\u2028", {"x.y": {"DataType": "Binary.z", "BinaryValue": bytes(range(256))}}, None)
def test_a_message_comes_back_as_it_was_sent(place, there, back, body, attributes, trace):
    members: dict[str, Any] = {"MessageBody": body}
    if attributes:
        members["MessageAttributes"] = attributes
    if trace is not None:
        header = {"DataType": "String", "StringValue": trace}
        members["MessageSystemAttributes"] = {"AWSTraceHeader": header}
    place.asker.must("json", "CreateQueue", QueueName="back")
    sent = place.asker.must(there, "SendMessage", QueueUrl="back", **members)
    answer = place.asker.must(
        back,
        "ReceiveMessage",
        QueueUrl="back",
        MessageAttributeNames=["All"],
        AttributeNames=["All"],
    )
    place.asker.must("json", "PurgeQueue", QueueUrl="back")
    [message] = received(answer, back)
    assert message["Body"] == body
    assert message.get("MessageAttributes", {}) == attributes
    assert message["MessageId"] == sent.one("MessageId")
    assert message["MD5OfBody"] == sent.one("MD5OfMessageBody")
    assert message.get("MD5OfMessageAttributes") == (
        sent.one("MD5OfMessageAttributes") if attributes else None
    )
    assert message["Attributes"].get("AWSTraceHeader") == trace


@pytest.mark.parametrize("back", PROTOCOLS)
@pytest.mark.parametrize("there", PROTOCOLS)
@settings_for(30)
@given(
    tags=st.dictionaries(
        st.text(letters, min_size=1, max_size=20).filter(
            lambda k: not k.lower().startswith("aws:")
        ),
        st.text(letters, max_size=20),
        min_size=1,
        max_size=4,
    ),
    key=st.text(letters, max_size=20),
)
def test_tags_and_attributes_come_back_as_they_were_given(place, there, back, tags, key):
    asker = place.asker
    asker.must(there, "CreateQueue", QueueName="tagged")
    asker.must(there, "TagQueue", QueueUrl="tagged", Tags=tags)
    asker.must(there, "SetQueueAttributes", QueueUrl="tagged", Attributes={"KmsMasterKeyId": key})
    told = asker.must(back, "ListQueueTags", QueueUrl="tagged")
    kept = asker.must(
        back, "GetQueueAttributes", QueueUrl="tagged", AttributeNames=["KmsMasterKeyId"]
    )
    asker.must(there, "DeleteQueue", QueueUrl="tagged")
    if back == "json":
        assert json.loads(told.body)["Tags"] == tags
        assert json.loads(kept.body).get("Attributes", {}).get("KmsMasterKeyId", "") == key
    else:
        assert dict(zip(told.all("Key"), told.all("Value"), strict=True)) == tags
        assert (kept.all("Value") or [""]) == [key]


@settings_for(60)
@given(st.text(max_size=10))
@example("\x00")
@example("\ufffe")
@example("a\x0b")
def test_what_the_api_cannot_carry_is_refused(place, body):
    assume(not body or rules.ILLEGAL.search(body))
    for protocol in PROTOCOLS:
        answer = place.asker.ask(protocol, "SendMessage", QueueUrl="fuzz", MessageBody=body)
        assert answer.code == ("InvalidMessageContents" if body else "MissingParameter")
        check(answer)
