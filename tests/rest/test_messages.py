"""Sending over REST: every form of body, and that a mistake in one leaves nothing behind."""

import base64
import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from rest.caller import Answer, Caller, QueueCaller
from rest.conftest import serve_rest
from ringdove import limits
from ringdove.core.block import Block, key_hash
from ringdove.frontends.rest import shapes
from server.running import ServerThread

BLOCK = "application/vnd.ringdove.block"
NDJSON = "application/x-ndjson"


def post(queue: QueueCaller, body: Any, kind: str = "application/json", **query: Any) -> Answer:
    headers = {"Content-Type": kind}
    return queue.caller.call("POST", f"{queue.path}/messages", body, headers=headers, **query)


def refused(
    queue: QueueCaller,
    status: int,
    code: str,
    body: Any,
    kind: str = "application/json",
    **query: Any,
) -> Any:
    """The problem of a send; nothing of it was stored."""
    headers = {"Content-Type": kind}
    path = f"{queue.path}/messages"
    told = queue.caller.problem(status, code, "POST", path, body, headers=headers, **query)
    assert queue.caller.ok("GET", f"{queue.path}/stats")["messages"] == 0
    return told


def bodies(queue: QueueCaller) -> list[str]:
    return [message["body"] for message in queue.receive(max=1000)]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


# -- JSON ------------------------------------------------------------------------------------------


def test_a_message_goes_in_and_comes_out_as_it_was(queue: QueueCaller):
    message = {
        "body": "21.5 °C", "key": "meter-7", "attributes": {
            "unit": "C", "n": 3, "x": 1.5, "yes": True, "none": None, "list": [1, "a", None],
            "bytes": {"base64": encoded(b"\xff\x00")}, "many": [{"base64": encoded(b"\xfe")}],
        },
    }  # fmt: skip
    answer = post(queue, message)
    assert answer.status == 201
    assert answer.json == {
        "messages": [{"stripe": 0, "priority": 0, "offset": 0, "duplicate": False}]
    }
    [received] = queue.receive()
    assert {name: received[name] for name in message} == message
    assert received["receives"] == 1
    assert (received["stripe"], received["priority"], received["offset"]) == (0, 0, 0)
    assert received["lease_until_ms"] > received["sent_ms"] > 1_600_000_000_000


def test_a_body_that_is_no_text_goes_as_base64(queue: QueueCaller):
    queue.send({"body_base64": encoded(b"\xff\x00"), "key_base64": encoded(b"\xfe")})
    [received] = queue.receive()
    assert received["body_base64"] == encoded(b"\xff\x00")
    assert received["key_base64"] == encoded(b"\xfe")
    assert not {"body", "key", "attributes"} & set(received)


@pytest.mark.parametrize("value", [{"t": 21.50}, [1, 2], 3, 1.5, True, {"ü": "ß"}])
def test_a_body_that_is_json_is_stored_as_its_json(queue: QueueCaller, value):
    queue.send({"body": value})
    assert json.loads(bodies(queue)[0]) == value


def test_json_as_a_body_is_stored_to_the_letter(queue: QueueCaller):
    post(queue, b'{"body": {"t" : 21.50} }')
    assert bodies(queue) == ['{"t" : 21.50}']


@pytest.mark.parametrize("text", ["", "\x00\x1f\x7f", '"\\/', "\u2028", "😀"])
def test_any_text_is_a_body(queue: QueueCaller, text):
    queue.send({"body": text})
    queue.send(text.encode(), "text/plain")
    assert bodies(queue) == [text, text]


def test_many_messages_go_in_their_order(queue: QueueCaller):
    places = queue.send({"messages": [{"body": str(n)} for n in range(1000)]})
    assert [place["offset"] for place in places] == list(range(1000))
    assert bodies(queue) == [str(n) for n in range(1000)]


def test_an_id_is_stored_once(queue: QueueCaller):
    assert queue.send({"body": "a", "id": "1"})[0]["duplicate"] is False
    again = queue.send({"messages": [{"body": "a", "id": "1"}, {"body": "b"}]})
    assert [place["duplicate"] for place in again] == [True, False]
    assert queue.send(b"a", "text/plain", id="1")[0] == again[0]
    assert bodies(queue) == ["a", "b"]


def test_priorities_and_delays_may_differ_within_a_request(rest: Caller):
    queue = QueueCaller(rest, "urgent").create(priority=9)
    places = queue.send(
        {
            "messages": [
                {"body": "low"},
                {"body": "later", "delay_ms": 60_000},
                {"body": "high", "priority": 9},
                {"body": "low too"},
            ]
        }
    )
    assert [place["priority"] for place in places] == [0, 0, 9, 0]
    assert bodies(queue) == ["high", "low", "low too"]


def test_keys_choose_the_stripe(rest: Caller):
    queue = QueueCaller(rest, "orders").create(order="key", stripes=8)
    keys = [f"key-{n}" for n in range(32)]
    places = queue.send({"messages": [{"body": "x", "key": key} for key in keys]})
    assert [place["stripe"] for place in places] == [key_hash(key.encode()) % 8 for key in keys]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({}, "either 'body' or 'body_base64'"),
        ({"body": "a", "body_base64": ""}, "either 'body' or 'body_base64'"),
        ({"body": None}, "'body' is null"),
        ({"body_base64": "?"}, "base64"),
        ({"body_base64": 5}, "body_base64: expected"),
        ({"bdy": "a"}, "Did you mean 'body'?"),
        ({"body": "a", "key": 5}, "key: expected str"),
        ({"body": "a", "key": "a", "key_base64": "YQ=="}, "not both"),
        ({"body": "a", "attributes": []}, "attributes: expected object"),
        ({"body": "a", "attributes": {"a": {}}}, "missing required field base64"),
        ({"body": "a", "attributes": {"a": [[]]}}, "got array"),
        ({"body": "a", "attributes": {"a": 2**64}}, "cannot be stored"),
        ({"body": "a", "attributes": {"a": [0] * 65}}, "of length <= 64"),
        ({"body": "a", "attributes": {str(n): 0 for n in range(65)}}, "of length <= 64"),
        ({"body": "a", "id": ""}, "id: expected str of length >= 1"),
        ({"body": "a", "priority": 10}, "priority: expected int <= 9"),
        ({"body": "a", "priority": 1}, "takes priorities 0 to 0"),
        ({"body": "a", "delay_ms": -1}, "delay_ms: expected int >= 0"),
        ({"body": "a", "delay_ms": limits.DURATION_MS_MAX}, "below the queue's retention_ms"),
        ({"messages": []}, "messages: expected array of length >= 1"),
        ({"messages": {}}, "messages: expected array"),
        ({"body": "a", "messages": [{"body": "a"}]}, "Give either one message or 'messages'"),
        ({"priority": 1, "messages": [{"body": "a"}]}, "Give either one message or 'messages'"),
    ],
)
def test_a_message_that_is_none_is_refused(queue: QueueCaller, message, told):
    assert told in refused(queue, 400, "InvalidArgument", message)["detail"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"1", b'{"body":"\xff"}', b'{"body":{"a":"\xff"}}', b'{"body":"\\ud800"}',
     b'{"body":' + b"[" * 100_000, b'{"body":"a"} x'],
)  # fmt: skip
def test_what_is_no_json_is_refused(queue: QueueCaller, body: bytes):
    refused(queue, 400, "InvalidArgument", body)


def test_all_messages_are_refused_for_one(queue: QueueCaller):
    for bad in [
        {},
        {"body": "x" * (limits.BODY_BYTES_MAX_DEFAULT + 1)},
        {"body": "a", "priority": 1},
    ]:
        answer = post(queue, {"messages": [{"body": "good"}, {"body": "good"}, bad]})
        assert answer.status in (400, 413)
        assert answer.json["message"] == 2
        assert "In message 2: " in answer.json["detail"]
        assert answer.json["detail"].endswith("Nothing was stored.")
    assert bodies(queue) == []


# -- NDJSON ----------------------------------------------------------------------------------------


def test_lines_are_messages(queue: QueueCaller):
    lines = b'{"body":"a","key":"k"}\r\n\n  \n{"body":{"b":1}}\n{"body_base64":"/w=="}'
    places = queue.send(lines, NDJSON)
    assert [place["offset"] for place in places] == [0, 1, 2]
    received = queue.receive(max=10)
    assert [m.get("body", m.get("body_base64")) for m in received] == ["a", '{"b":1}', "/w=="]


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        (b"{", 400, "InvalidArgument"),
        (b"{}", 400, "InvalidArgument"),
        (b'{"body":"\xff"}', 400, "InvalidArgument"),
        (b'{"body":"a","priority":1}', 400, "InvalidArgument"),
        (b'{"body":"a","attributes":{"a":18446744073709551616}}', 400, "InvalidArgument"),
        (b'{"body":"%b"}' % (b"x" * 1_048_577), 413, "MessageTooLarge"),
        (b'{"body":"a","key":"%b"}' % ("ä" * 1000).encode(), 413, "MessageTooLarge"),
    ],
)
def test_one_bad_line_refuses_all(queue: QueueCaller, line, status, code):
    good = b'{"body":"good"}\n'
    told = refused(queue, status, code, good + b"\n" + good + line + b"\n" + good, NDJSON)
    assert told["line"] == 4
    assert "In line 4: " in told["detail"]


def test_no_lines_are_no_messages(queue: QueueCaller):
    assert (
        "one JSON object per line"
        in refused(queue, 400, "InvalidArgument", b"\n \n", NDJSON)["detail"]
    )


def test_too_many_lines_are_refused(queue: QueueCaller):
    line = b'{"body":""}\n'
    told = refused(queue, 413, "MessageTooLarge", line * (shapes.SEND_MESSAGES_MAX + 1), NDJSON)
    assert "at most 65536 messages" in told["detail"]
    assert len(queue.send(line * shapes.SEND_MESSAGES_MAX, NDJSON)) == shapes.SEND_MESSAGES_MAX


def test_attributes_have_a_limit_over_a_request(queue: QueueCaller):
    values = json.dumps([1.5] * 64)
    attributes = ",".join(f'"{n}":{values}' for n in range(64))
    line = b'{"body":"","attributes":{%b}}\n' % attributes.encode()
    told = refused(queue, 413, "MessageTooLarge", line * 500, NDJSON)
    assert "send fewer messages at once" in told["detail"]


# -- a body that is the message --------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/octet-stream", "application/x-www-form-urlencoded", "a/b", ""],
)
def test_any_other_body_is_the_message(queue: QueueCaller, kind):
    queue.send(b"key=value&\xff", kind)
    assert queue.receive()[0]["body_base64"] == encoded(b"key=value&\xff")


def test_parameters_go_with_a_plain_body(rest: Caller):
    queue = QueueCaller(rest, "q").create(priority=3)
    [place] = queue.send(
        b"21.5", "text/plain; charset=utf-8", key="mètre", priority=3, attributes='{"unit":"C"}'
    )
    assert place["priority"] == 3
    [received] = queue.receive()
    assert (received["body"], received["key"]) == ("21.5", "mètre")
    assert received["attributes"] == {"unit": "C"}
    queue.send(b"later", "text/plain", delay_ms=60_000)
    assert queue.receive() == []


def test_an_empty_body_is_an_empty_message(queue: QueueCaller):
    queue.send(None)
    assert bodies(queue) == [""]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"attributes": "{"}, "attributes must be a JSON object"),
        ({"attributes": "[]"}, "attributes must be a JSON object"),
        ({"attributes": '{"a":{"b":1}}'}, "attributes must be a JSON object"),
        ({"priority": "x"}, "priority is 'x': expected int"),
        ({"delay_ms": "-1"}, "delay_ms is '-1': expected int >= 0"),
        ({"id": ""}, "id is '': expected str of length >= 1"),
        ({"ky": "a"}, "Did you mean 'key'?"),
        ({"token": "hunter2"}, "there is no query parameter 'token'"),
    ],
)
def test_a_parameter_that_is_wrong_is_refused(queue: QueueCaller, query, told):
    found = refused(queue, 400, "InvalidArgument", b"x", "text/plain", **query)
    assert told in found["detail"]
    assert "hunter2" not in found["detail"]


@pytest.mark.parametrize("kind", ["application/json", NDJSON, BLOCK])
def test_parameters_do_not_go_with_messages_that_speak_for_themselves(queue: QueueCaller, kind):
    told = refused(queue, 400, "InvalidArgument", b'{"body":"a"}', kind, key="k")
    assert "leave key out" in told["detail"]


def test_a_body_may_be_as_large_as_the_queue_says(rest: Caller):
    queue = QueueCaller(rest, "large").create(body_bytes_max=limits.BODY_BYTES_MAX)
    body = bytes(range(256)) * (limits.BODY_BYTES_MAX // 256)
    queue.send(body, "application/octet-stream")
    told = post(queue, body + b"x", "application/octet-stream")
    assert (told.status, told.json["code"]) == (413, "MessageTooLarge")
    [received] = queue.receive()
    assert base64.b64decode(received["body_base64"]) == body


def test_a_body_beyond_all_limits_is_refused(queue: QueueCaller):
    # It is refused by its announced length, so the client may be cut off while it still writes.
    with contextlib.suppress(ConnectionError):
        answer = post(queue, bytes(limits.HTTP_BODY_BYTES_MAX + 1), "application/octet-stream")
        assert answer.status == 413
    assert bodies(queue) == []


def test_a_compressed_body_is_refused(queue: QueueCaller):
    headers = {"Content-Encoding": "gzip"}
    path = f"{queue.path}/messages"
    told = queue.caller.problem(415, "MediaTypeUnsupported", "POST", path, b"x", headers=headers)
    assert "send them plain" in told["detail"]


def test_an_ordered_queue_wants_keys(rest: Caller):
    queue = QueueCaller(rest, "orders").create(order="key")
    assert (
        "every message needs a key"
        in refused(queue, 400, "InvalidArgument", {"body": "a"})["detail"]
    )
    told = refused(
        queue, 400, "InvalidArgument", {"messages": [{"body": "a", "key": "k"}, {"body": "b"}]}
    )
    assert told["message"] == 1


def test_a_full_queue_asks_to_come_back(rest: Caller):
    queue = QueueCaller(rest, "small").create(bytes_max=1000, body_bytes_max=1000)
    queue.send(b"x" * 500, "text/plain")
    answer = post(queue, b"x" * 900, "text/plain")
    assert (answer.status, answer.json["code"]) == (429, "QueueFull")
    assert answer.headers["retry-after"] == "1"


# -- blocks ----------------------------------------------------------------------------------------


def raw(*blocks: Block) -> bytes:
    return b"".join(bytes(block.buffer) for block in blocks)


def test_a_block_is_stored_as_it_is(queue: QueueCaller):
    block = Block.build(
        [b"a", b"\xff"], sent_ms=[7, 8], keys=[b"k", b""], attributes=[{"n": b"\xff"}, None],
        compression="zstd",
    )  # fmt: skip
    places = queue.send(raw(block), BLOCK)
    assert [place["offset"] for place in places] == [0, 1]
    first, second = queue.receive(max=2)
    assert (first["body"], first["key"], first["sent_ms"]) == ("a", "k", 7)
    assert first["attributes"] == {"n": {"base64": "/w=="}}
    assert (second["body_base64"], second["sent_ms"]) == ("/w==", 8)


def test_several_blocks_go_where_they_belong(rest: Caller):
    queue = QueueCaller(rest, "q").create(order="key", stripes=4)
    keys = [b"key-%d" % n for n in range(8)]
    blocks = [Block.build([b"1", b"2"], sent_ms=1, keys=[key, key]) for key in keys]
    places = queue.send(raw(*blocks), BLOCK)
    assert [p["stripe"] for p in places] == [key_hash(k) % 4 for k in keys for _ in range(2)]
    mixed = Block.build([b"1"] * 8, sent_ms=1, keys=keys)
    answer = post(queue, raw(blocks[0], mixed), BLOCK)
    assert (answer.status, answer.json["code"]) == (400, "InvalidArgument")
    assert rest.ok("GET", f"{queue.path}/stats")["messages"] == 16


def test_a_block_goes_to_its_priority_and_may_be_delayed(rest: Caller):
    queue = QueueCaller(rest, "q").create(priority=2, stripes=3)
    low, high = (Block.build([b"x"], sent_ms=1, priority=p) for p in (0, 2))
    assert [place["priority"] for place in queue.send(raw(low, high), BLOCK)] == [0, 2]
    queue.send(raw(low), BLOCK, delay_ms=60_000)
    assert len(queue.receive(max=10)) == 2
    higher = Block.build([b"x"], sent_ms=1, priority=3)
    assert post(queue, raw(higher), BLOCK).status == 400


GOOD = Block.build([b"body"], sent_ms=1)


@pytest.mark.parametrize(
    "data",
    [b"", b"x", raw(GOOD)[:-1], raw(GOOD) + b"x", raw(GOOD, GOOD)[:-1], bytes(64), bytes(1000),
     raw(GOOD)[:70] + b"\xff" + raw(GOOD)[71:], raw(GOOD)[:52] + b"\xff\xff\xff\xff" + raw(GOOD)[56:]],
)  # fmt: skip
def test_what_is_no_block_is_refused(queue: QueueCaller, data: bytes):
    refused(queue, 400, "RemoteProtocolError", data, BLOCK)


def test_blocks_have_the_limits_of_messages(queue: QueueCaller):
    many = Block.build([b""] * limits.BLOCK_MESSAGES_MAX, sent_ms=1)
    refused(queue, 413, "MessageTooLarge", raw(GOOD, many), BLOCK)
    key = Block.build([b""], sent_ms=1, keys=[b"k" * (limits.KEY_BYTES_MAX + 1)])
    refused(queue, 413, "MessageTooLarge", raw(GOOD, key), BLOCK)
    body = Block.build([bytes(limits.BODY_BYTES_MAX_DEFAULT + 1)], sent_ms=1)
    refused(queue, 413, "MessageTooLarge", raw(GOOD, body), BLOCK)
    late = GOOD.defer(5)
    refused(queue, 400, "InvalidArgument", raw(GOOD, late), BLOCK)


# -- together --------------------------------------------------------------------------------------


def test_sends_at_the_same_time_all_arrive(queue: QueueCaller):
    def sender(number: int) -> None:
        for step in range(25):
            queue.send({"body": f"{number}.{step}"})

    threads = [threading.Thread(target=sender, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = bodies(queue)
    assert sorted(received) == sorted(f"{n}.{s}" for n in range(4) for s in range(25))
    for number in range(4):
        own = [body for body in received if body.startswith(f"{number}.")]
        assert own == [f"{number}.{step}" for step in range(25)]


def test_what_was_stored_outlives_the_server(tmp_path: Path):
    with ServerThread(tmp_path / "data", port=-1) as server:
        serve_rest(server)
        queue = QueueCaller(Caller(server.http_port), "q").create(stripes=4)
        queue.send(b'{"body":"kept"}\n' * 100, NDJSON)
        server.stop()
        server.start()
        serve_rest(server)
        assert bodies(queue) == ["kept"] * 100
