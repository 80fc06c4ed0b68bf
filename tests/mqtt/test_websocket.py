"""MQTT over WebSocket: frames cut anywhere, bad requests, and a client that others wrote."""

import os
import queue
import socket

import paho.mqtt.client as paho
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion

from ringdove import limits
from ringdove.errors import RemoteProtocolError
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import Decoder, encode
from ringdove.protocol.mqtt.packets import V5, Reason
from ringdove.protocol.websocket import HEAD_BYTES_MAX, FrameStream, Handshake, frame

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: chat, mqtt\r\n\r\n"
)


@pytest.fixture
def version():
    return 5


def masked(payload, first=0x82):
    """A frame as clients send it."""
    count = len(payload)
    if count < 126:
        head = bytes((first, 0x80 | count))
    elif count < 1 << 16:
        head = bytes((first, 0x80 | 126)) + count.to_bytes(2, "big")
    else:
        head = bytes((first, 0x80 | 127)) + count.to_bytes(8, "big")
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def handshake():
    return Handshake("/mqtt", ("mqtt",))


def test_the_handshake_of_the_standard_is_answered_whole_and_bytewise():
    shake = handshake()
    answer = shake.feed(REQUEST + b"rest")
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in answer
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in answer
    assert (shake.accepted, shake.rest) == (True, b"rest")
    shake = handshake()
    answers = [shake.feed(REQUEST[at : at + 1]) for at in range(len(REQUEST))]
    assert b"".join(answers) == answer


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (b"GET /mqtt", b"POST /mqtt", b"405"),
        (b"GET /mqtt", b"GET /other", b"404"),
        (b"Upgrade: WebSocket", b"Upgrade: h2c", b"426"),
        (b"Version: 13", b"Version: 8", b"426"),
        (b"chat, mqtt", b"chat", b"400"),
        (b"Host: x", b"Host: " + b"x" * HEAD_BYTES_MAX, b"431"),
    ],
)
def test_bad_requests_are_refused(before, after, status):
    shake = handshake()
    request = REQUEST.replace(before, after)
    answer = shake.feed(request if status != b"431" else request[:-4])
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert shake.accepted is False


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.binary(max_size=70_000) | st.binary(max_size=300), max_size=3), st.integers(1, 5000)
)
def test_payloads_come_out_as_they_went_in(payloads, step):
    data = b"".join(map(masked, payloads))
    stream = FrameStream(limits.MQTT_PACKET_BYTES_MAX)
    found = [stream.feed(data[at : at + step]) for at in range(0, len(data), step)]
    assert b"".join(found) == b"".join(payloads)
    assert stream.answers == b""


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40))
def test_any_bytes_are_payload_or_refused(data):
    stream = FrameStream(1000)
    try:
        stream.feed(data)
    except RemoteProtocolError:
        return
    assert len(stream.answers) < 200


def test_a_message_may_come_in_several_frames_with_a_ping_between():
    stream = FrameStream(1000)
    data = masked(b"one ", 0x02) + masked(b"?", 0x89) + masked(b"two", 0x80)
    assert stream.feed(data) == b"one two"
    assert stream.answers == frame(b"?", 0xA)


def test_a_close_is_answered():
    stream = FrameStream(1000)
    assert stream.feed(masked(b"\x03\xe8bye", 0x88) + masked(b"late")) == b""
    assert stream.closed
    assert stream.answers == frame(b"\x03\xe8", 0x8)


@pytest.mark.parametrize(
    "bad",
    [
        frame(b"not masked"),
        masked(b"text", 0x81),
        masked(b"", 0x80),
        masked(b"x", 0x02) + masked(b"y", 0x82),
        masked(b"x" * 1001),
        masked(b"x", 0xC2),
        masked(b"x" * 126, 0x89),
        masked(b"x", 0x8B),
    ],
    ids=range(8),  # Masks are drawn at random; names must not be.
)
def test_bad_frames_are_refused(bad):
    with pytest.raises(RemoteProtocolError):
        FrameStream(1000).feed(bad)


def test_paho_speaks_through_a_websocket(own_server):
    server = own_server(mqtt_ws=0)
    got = queue.Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2, transport="websockets")
    client.on_message = lambda *args: got.put(args[2].payload)
    client.on_subscribe = lambda *args: client.publish("a", b"x" * 100_000, 2)
    client.on_connect = lambda *args: client.subscribe("a", 2)
    client.connect("127.0.0.1", server.server.mqtt_ws_port)
    client.loop_start()
    assert got.get(timeout=30) == b"x" * 100_000
    client.disconnect()
    client.loop_stop()


def test_what_is_no_websocket_is_told_so(own_server):
    server = own_server(mqtt_ws=0)
    for sent, status in ((b"GET / HTTP/1.1\r\n\r\n", b"404"), (REQUEST + b"\x82\x01x", b"101")):
        with socket.create_connection(
            ("127.0.0.1", server.server.mqtt_ws_port), timeout=30
        ) as plain:
            plain.sendall(sent)
            answer = b""
            while data := plain.recv(4096):
                answer += data
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert status == b"404" or answer.endswith(b"\x88\x02\x03\xea")


def answer_to(server, origin, **connect):
    """What CONNECT is answered when a page from somewhere sends it."""
    extra = b"" if origin is None else b"Origin: " + origin.encode() + b"\r\n"
    hello = encode(p.Connect("", V5, True, **connect), V5)
    with socket.create_connection(("127.0.0.1", server.server.mqtt_ws_port), timeout=30) as page:
        page.sendall(REQUEST.replace(b"Host: x\r\n", b"Host: x\r\n" + extra) + masked(hello))
        said = page.makefile("rb")
        while said.readline().strip():
            pass
        _, count = said.read(2)
        [answer] = Decoder(V5).feed(said.read(count))
    return answer.reason


def test_pages_of_other_sites_are_not_let_in_where_everybody_is(own_server):
    server = own_server(mqtt_ws=0)
    for own in (None, "http://localhost:3000", "https://127.0.0.1", "http://[::1]:80"):
        assert answer_to(server, own) == 0, own
    for foreign in ("https://example.org", "null", "http://localhost.example.org", "http://["):
        assert answer_to(server, foreign) == Reason.NOT_AUTHORIZED, foreign
    server.stop()
    server = own_server(mqtt_ws=0, token="secret")
    page = "https://example.org"
    assert answer_to(server, page, password=b"secret") == 0
    assert answer_to(server, page) == Reason.BAD_CREDENTIALS
