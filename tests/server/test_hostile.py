"""Clients that misbehave: each is told why, or cut off, and nobody else notices."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ringdove
from ringdove import errors, limits
from ringdove.core.block import Block
from ringdove.frontends import native
from ringdove.frontends.connection import Connection
from ringdove.protocol import messages
from ringdove.protocol.messages import Verb
from server.running import ServerThread, wait_for
from server.wire import RawClient, error_of, frame

BLOCK = Block.build([b"body"], sent_ms=1)
HUGE = 2**64 - 1


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """A server that looks for dead connections often, so that tests need not wait."""
    monkeypatch.setattr(native, "_SWEEP_S", 0.02)
    with ServerThread(tmp_path / "data", http=-1) as running:
        yield running


@pytest.fixture
def raw(server: ServerThread) -> Iterator[RawClient]:
    """A client that has not said hello."""
    with RawClient(server.port) as client:
        yield client


@pytest.fixture
def known(raw: RawClient) -> RawClient:
    """A client that has been welcomed."""
    return raw.hello()


@pytest.fixture(autouse=True)
def others_go_on(rd: ringdove.Connection) -> Iterator[None]:
    """A well-behaved client works before, and after whatever the test does."""
    assert_works(rd)
    yield
    assert_works(rd)


def assert_works(rd: ringdove.Connection) -> None:
    queue = rd.create_queue("good")
    queue.send(b"hello")
    [message] = queue.receive(max=10, wait=10)
    assert message.body == b"hello"
    message.ack()


def send_to(queue: str, **changes: Any) -> messages.Send:
    fields: dict[str, Any] = {
        "version": 1, "number": 0, "level": 0, "delay_ms": None,
        "segments": [messages.WireSegment()], **changes,
    }  # fmt: skip
    return messages.Send(queue, **fields)


# -- before the welcome ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(60)],
    ids=["HTTP", "TLS"],
)
def test_another_protocol_is_told_so(raw: RawClient, data):
    raw.write(data)
    error = raw.goodbye()
    assert isinstance(error, errors.RemoteProtocolError)
    assert "no frame" in str(error)


def test_random_bytes_are_refused(server: ServerThread):
    for _ in range(20):
        with RawClient(server.port) as client:
            client.write(os.urandom(1_000))
            assert isinstance(client.goodbye(), errors.RemoteProtocolError)
    assert server.server.native.refused == 20


def test_another_verb_than_hello_is_refused(raw: RawClient):
    raw.send(Verb.LIST, 1, "")
    error = raw.goodbye()
    assert isinstance(error, errors.RemoteProtocolError)
    assert "HELLO" in str(error)


def test_another_version_is_refused(raw: RawClient):
    raw.send(Verb.HELLO, 0, messages.Hello(2, "from the future"))
    error = raw.goodbye()
    assert isinstance(error, errors.FatalClientError)
    assert "version 2" in str(error)


@pytest.mark.parametrize("meta", [b"", b"\xc1", b"\x90", messages.encode([1])])
def test_a_hello_that_cannot_be_read_is_refused(raw: RawClient, meta):
    raw.send(Verb.HELLO, 0, meta)
    assert isinstance(raw.goodbye(), errors.RemoteProtocolError)


def test_a_long_hello_is_refused_by_its_header(raw: RawClient):
    raw.write(frame(Verb.HELLO, 0, bytes(limits.FRAME_BYTES_MAX_BEFORE_HELLO + 1))[:20])
    error = raw.goodbye()
    assert isinstance(error, errors.RemoteProtocolError)
    assert "at most 16384" in str(error)


@pytest.mark.parametrize("begin", [b"", frame(Verb.HELLO, 0, messages.Hello(1, "slow"))[:-1]])
def test_a_hello_that_does_not_come_is_not_waited_for(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch, begin
):
    monkeypatch.setattr(limits, "HELLO_S_MAX", 0.2)
    with RawClient(server.port) as client:
        client.write(begin)
        error = client.goodbye()
    assert isinstance(error, errors.LimitExceeded)
    assert "did not arrive in time" in str(error)


def test_a_hello_that_drips_is_not_waited_for(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "HELLO_S_MAX", 0.3)
    data = frame(Verb.HELLO, 0, messages.Hello(1, "x" * 8_000))
    with RawClient(server.port) as client:
        assert drip(client, data) < len(data)
        assert isinstance(client.goodbye(), errors.LimitExceeded)


def drip(client: RawClient, data: bytes) -> int:
    """Write a byte at a time until the server has had enough; answers how many went."""
    client.socket.settimeout(0.005)
    for at in range(len(data)):
        client.write(data[at : at + 1])
        try:
            client._arrived.append(client.next())
        except TimeoutError:
            continue
        client.socket.settimeout(60)
        return at
    raise AssertionError("the server took everything")


# -- after the welcome: bytes ----------------------------------------------------------------------


def test_an_oversized_frame_is_refused_by_its_header(known: RawClient):
    header = bytearray(frame(Verb.SEND, 1)[:20])
    header[:4] = (limits.FRAME_BYTES_MAX + 1).to_bytes(4, "little")
    known.write(bytes(header))
    error = known.goodbye()
    assert isinstance(error, errors.RemoteProtocolError)
    assert "announces" in str(error)


def test_a_damaged_frame_ends_the_connection(known: RawClient):
    data = bytearray(frame(Verb.LIST, 1, "some prefix"))
    data[-1] ^= 1
    known.write(bytes(data))
    error = known.goodbye()
    assert isinstance(error, errors.RemoteProtocolError)
    assert "damaged" in str(error)


def test_rubbish_after_good_frames_ends_the_connection(known: RawClient):
    assert known.ask(Verb.PING, 1).verb == Verb.REPLY
    known.write(os.urandom(1_000))
    assert isinstance(known.goodbye(), errors.RemoteProtocolError)


def test_a_frame_that_drips_is_not_waited_for(known: RawClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "FRAME_S_MAX", 0.3)
    drip(known, frame(Verb.LIST, 1, "x" * 20_000))
    error = known.goodbye()
    assert isinstance(error, errors.LimitExceeded)
    assert "did not arrive in time" in str(error)


def test_who_is_always_within_some_frame_is_not_taken_for_slow(
    known: RawClient, monkeypatch: pytest.MonkeyPatch
):
    """A busy client's reads end within a frame, again and again; each frame comes in time."""
    monkeypatch.setattr(limits, "FRAME_S_MAX", 0.3)
    ping = frame(Verb.PING, 7, b"x" * 100)
    known.write(ping[:50])
    deadline_s = time.monotonic() + 1.5
    while time.monotonic() < deadline_s:
        known.write(ping[50:] + ping[:50])
        answer = known.next()
        assert answer.verb == Verb.REPLY, error_of(answer)


def test_silence_ends_the_connection(known: RawClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "IDLE_S_MAX", 0.3)
    error = known.goodbye()
    assert isinstance(error, errors.LimitExceeded)
    assert "Nothing was heard" in str(error)


def test_pings_keep_a_connection(known: RawClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "IDLE_S_MAX", 1)
    deadline_s = time.monotonic() + 2
    while time.monotonic() < deadline_s:
        assert known.ask(Verb.PING, 3).number == 3
        time.sleep(0.02)


def test_a_client_that_vanishes_leaves_nothing_behind(server: ServerThread, rd):
    rd.create_queue("q")
    before = len(server.server.native.connections)
    for number in range(20):
        with RawClient(server.port) as client:
            client.hello()
            client.send(Verb.RECEIVE, number, messages.Receive("q", "default", 1, 60, None))
            wait_for(
                lambda: server.server.native.broker.dequeuer.parked == 1, "a receiver is parked"
            )
        wait_for(lambda: server.server.native.broker.dequeuer.parked == 0, "no receiver is parked")
    wait_for(lambda: len(server.server.native.connections) == before, "all are gone")
    rd.queue("q").send(b"not lost")
    assert rd.queue("q").receive(wait=10)[0].body == b"not lost"


# -- after the welcome: requests -------------------------------------------------------------------


def assert_refused(client: RawClient, kind: type[Exception], verb: int, *rest: Any) -> str:
    """A request is answered with an error, and the connection goes on."""
    answer = client.ask(verb, 5, *rest)
    assert (answer.verb, answer.number) == (Verb.ERROR, 5)
    error = error_of(answer)
    assert isinstance(error, kind), error
    assert client.ask(Verb.PING, 6).number == 6
    return str(error)


@pytest.mark.parametrize("verb", [0, 99, Verb.REPLY, Verb.BLOCK, Verb.HELLO, 255])
def test_an_unknown_verb_is_refused_and_the_connection_goes_on(known: RawClient, verb):
    assert f"no verb {int(verb)}" in assert_refused(known, errors.RemoteProtocolError, verb)


def test_meta_that_cannot_be_read_is_refused_and_the_connection_goes_on(known: RawClient):
    unanswered = (Verb.STREAM_ACK, Verb.APPLIED)
    verbs = [v for v in Verb if Verb.SEND <= v < Verb.REPLY and v not in unanswered]
    for verb in verbs:
        assert_refused(known, errors.RemoteProtocolError, verb, b"\xc1")


def test_a_number_that_is_under_way_ends_the_connection(known: RawClient):
    receive = messages.Receive("good", "default", 1, 60, None)
    known.send(Verb.RECEIVE, 5, receive)
    known.send(Verb.RECEIVE, 5, receive)
    error = known.goodbye()
    assert isinstance(error, errors.RemoteProtocolError)
    assert "under way" in str(error)


def test_a_damaged_block_is_refused_and_the_connection_goes_on(known: RawClient):
    good = bytes(BLOCK.buffer)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        data = bytearray(frame(Verb.SEND, 5, send_to("good"), BLOCK))
        data[-len(good) :] = bad
        known.write(bytes(data))
        answer = known.next()
        assert answer.verb == Verb.ERROR, f"byte {at}"
        assert isinstance(error_of(answer), errors.RemoteProtocolError)
    stored = known.ask(Verb.SEND, 5, send_to("good"), BLOCK)
    assert stored.verb == Verb.REPLY
    assert known.ask(Verb.PURGE, 5, "good").verb == Verb.REPLY


@pytest.mark.parametrize("blocks", [0, 2])
def test_another_number_of_blocks_than_segments_is_refused(known: RawClient, blocks):
    told = assert_refused(
        known, errors.RemoteProtocolError, Verb.SEND, send_to("good"), *[BLOCK] * blocks
    )
    assert "last block" in told


@pytest.mark.parametrize(
    ("kind", "verb", "value"),
    [
        (errors.QueueNotFound, Verb.GET, "missing"),
        (errors.QueueNotFound, Verb.RECEIVE, messages.Receive("missing", "default", 1, 0, None)),
        (errors.SubscriptionNotFound, Verb.RECEIVE, messages.Receive("good", "no", 1, 0, None)),
        (errors.InvalidArgument, Verb.RECEIVE, messages.Receive("good", "default", 0, 0, None)),
        (errors.InvalidArgument, Verb.RECEIVE, messages.Receive("good", "default", HUGE, 0, None)),
        (errors.InvalidArgument, Verb.RECEIVE, messages.Receive("good", "default", 1, 0, -1)),
        (errors.SettingsRefused, Verb.CREATE, messages.Settings("new", {"stripes": HUGE})),
        (errors.SettingsRefused, Verb.CREATE, messages.Settings("new", {"unknown": 1})),
        (errors.InvalidArgument, Verb.CREATE, messages.Settings("bad name", {})),
        (errors.InvalidArgument, Verb.CREATE, messages.Settings("x" * 10_000, {})),
        (errors.InvalidArgument, Verb.POSITION, messages.Position((1, 0, 0), ("never", 0))),
        (errors.InvalidArgument, Verb.STREAM, messages.Stream("good", "s", b"o", [], 0, 1_000)),
        (errors.InvalidArgument, Verb.STREAM, messages.Stream("good", "s", b"o", [], HUGE, 1_000)),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(known: RawClient, kind, verb, value):
    if verb == Verb.POSITION:
        info = messages.decode(messages.WireInfo, known.ask(Verb.GET, 1, "good").meta)
        value = messages.Position((info.id, 0, 0), value.start)
    assert_refused(known, kind, verb, value)


def strange_requests(queue: int) -> Iterator[tuple[Verb, Any]]:
    """Well-formed requests with values that no client sends; `queue` is the id of "good"."""
    for wait_s in (math.nan, math.inf, -math.inf, 1e308):
        yield Verb.RECEIVE, messages.Receive("good", "default", 1, wait_s, None)
    for at, value in ((0, -1), (1, -1), (1, 2**16), (2, -1), (2, 256), (2, HUGE)):
        stripe = [queue, 0, 0]
        stripe[at] = value
        receipt = (*stripe, 1, 1, 0, 1, "default")
        yield Verb.READ, messages.Read(tuple(stripe), 0, 10, skip_trimmed=True)
        yield Verb.POSITION, messages.Position(tuple(stripe), ("time", 0))
        for verb in (Verb.ACKNOWLEDGE, Verb.EXTEND, Verb.RELEASE):
            yield verb, messages.Settle([receipt], 1_000)
    for name in ("self", "name"):
        yield Verb.CHANGE, messages.Settings("good", {name: 1})


def test_strange_values_are_refused_as_the_client_s_fault(known: RawClient):
    info = messages.decode(messages.WireInfo, known.ask(Verb.GET, 1, "good").meta)
    blamed = []
    for verb, value in strange_requests(info.id):
        answer = known.ask(verb, 5, value)
        fault = errors.ClientError | errors.RemoteProtocolError
        if answer.verb == Verb.ERROR and not isinstance(error_of(answer), fault):
            blamed.append(f"{verb.name} {value}: {error_of(answer)}")
    assert not blamed, "\n".join(blamed)


def test_strange_values_do_not_end_the_connection(known: RawClient):
    info = messages.decode(messages.WireInfo, known.ask(Verb.GET, 1, "good").meta)
    for verb, value in strange_requests(info.id):
        answer = known.ask(verb, 5, value)
        assert answer.number == 5
        assert answer.verb in (Verb.ERROR, Verb.REPLY)
    assert known.ask(Verb.PING, 6).number == 6


# -- streams ---------------------------------------------------------------------------------------


@pytest.fixture
def streamed(known: RawClient) -> tuple[int, int, int]:
    """The stripe of a queue whose only subscription may be streamed from."""
    answer = known.ask(Verb.CREATE, 1, messages.Settings("streamed", {}))
    assert known.ask(Verb.SEND, 2, send_to("streamed"), BLOCK).verb == Verb.REPLY
    return messages.decode(messages.WireInfo, answer.meta).id, 0, 0


def stream_of(**changes: Any) -> messages.Stream:
    fields: dict[str, Any] = {
        "subscription": "default", "owner": b"me", "positions": [], "window_bytes": 1 << 20,
        "lease_ms": 30_000, **changes,
    }  # fmt: skip
    return messages.Stream("streamed", **fields)


@pytest.mark.parametrize("offset", [-1, 2**53, HUGE])
@pytest.mark.parametrize("number", [0, -1, 2**16])
def test_a_stream_from_nowhere_is_answered(known: RawClient, streamed, number, offset):
    stripe = (streamed[0], number, 0)
    answer = known.ask(Verb.STREAM, 5, stream_of(positions=[(stripe, offset)]))
    assert answer.number == 5
    assert answer.verb in (Verb.ERROR, Verb.REPLY)
    known.send(Verb.PING, 6)
    wait_for(lambda: known.next().number == 6, "the connection goes on")


@pytest.mark.parametrize("resend", [False, True])
@pytest.mark.parametrize("number", [-1, 2**16])
def test_an_acknowledgement_of_an_impossible_stripe_is_refused(
    known: RawClient, streamed, resend, number
):
    assert known.ask(Verb.STREAM, 5, stream_of()).verb == Verb.REPLY
    assert known.next().verb == Verb.BLOCK
    known.send(Verb.STREAM_ACK, 5, messages.StreamAck((streamed[0], number, 0), 1, 0, resend))
    assert isinstance(known.goodbye(), errors.RemoteProtocolError)


@pytest.mark.parametrize("resend", [False, True])
def test_an_acknowledgement_of_a_stripe_that_the_stream_has_not_is_ignored(
    known: RawClient, streamed, resend
):
    assert known.ask(Verb.STREAM, 5, stream_of()).verb == Verb.REPLY
    assert known.next().verb == Verb.BLOCK
    known.send(Verb.STREAM_ACK, 5, messages.StreamAck((streamed[0], 1, 0), 1, 0, resend))
    assert known.ask(Verb.PING, 6).number == 6


def test_an_acknowledgement_of_no_stream_is_ignored(known: RawClient):
    known.send(Verb.STREAM_ACK, 77, messages.StreamAck((1, 0, 0), 1, 0))
    assert known.ask(Verb.PING, 6).number == 6


def test_the_number_of_an_open_stream_is_not_used_again(known: RawClient, streamed):
    assert known.ask(Verb.STREAM, 5, stream_of()).verb == Verb.REPLY
    assert known.next().verb == Verb.BLOCK
    known.send(Verb.STREAM, 5, stream_of())
    assert isinstance(known.goodbye(), errors.RemoteProtocolError)


# -- clients that do not read ----------------------------------------------------------------------


def prepare_large(rd: ringdove.Connection) -> tuple[Verb, int, messages.Read]:
    """Store a large message; the request that reads it."""
    queue = rd.create_queue("large", body_bytes_max=8 << 20)
    queue.send(os.urandom(8 << 20))
    return Verb.READ, 9, messages.Read((queue.info().id, 0, 0), 0, 1, skip_trimmed=True)


def blocked_connection(server: ServerThread) -> Connection:
    """The connection whose client does not take its answers."""
    found = wait_for(
        lambda: [c for c in list(server.server.native.connections) if not c.writable],
        "the server notices that its answers are not taken",
    )
    return found[0]


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE_BUFFER_BYTES", 64 * 1024)


@pytest.fixture
def deaf(small_buffers: None, server: ServerThread) -> Iterator[RawClient]:
    """A client with little room for answers."""
    with RawClient(server.port, receive_bytes=4096) as client:
        yield client.hello()


def test_who_does_not_read_is_not_read_from(server: ServerThread, rd, deaf: RawClient):
    read = prepare_large(rd)
    deaf.send(*read)
    connection = blocked_connection(server)
    heard_s = connection.heard_s
    for number in range(20):
        deaf.send(read[0], 10 + number, read[2])
    for _ in range(5):
        assert_works(rd)
    assert connection.heard_s == heard_s
    assert connection._transport.get_write_buffer_size() < 9 << 20
    # It takes its answers at last: everything is answered, in order.
    numbers = [deaf.next().number for _ in range(21)]
    assert numbers == [9, *range(10, 30)]


def test_who_takes_far_too_little_is_dropped(
    server: ServerThread, rd, deaf: RawClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "WRITE_BUFFER_BYTES_MAX", 24 << 20)
    read = prepare_large(rd)
    held: list[int] = []
    write = Connection._write

    def watched(self: Connection, *rest: Any) -> None:
        write(self, *rest)
        if self._transport is not None:
            held.append(self._transport.get_write_buffer_size())

    monkeypatch.setattr(Connection, "_write", watched)
    deaf.write(b"".join(frame(read[0], number, read[2]) for number in range(200)))
    count = len(server.server.native.connections)
    wait_for(lambda: len(server.server.native.connections) < count, "it is dropped")
    assert max(held) < (24 + 9) << 20
    assert deaf.closed()


def test_who_neither_reads_nor_writes_is_dropped(
    server: ServerThread, rd, deaf: RawClient, monkeypatch: pytest.MonkeyPatch
):
    """Closing politely would wait for ever for its answers to be taken."""
    read = prepare_large(rd)
    deaf.send(*read)
    connection = blocked_connection(server)
    monkeypatch.setattr(limits, "IDLE_S_MAX", 1)
    native_server = server.server.native
    wait_for(lambda: connection not in native_server.connections, "it is dropped", patience_s=3)
    assert native_server.refused >= 1


def test_receivers_that_wait_do_not_keep_pings_from_their_turn(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
):
    """More of them than requests may be under way; the client is not taken for silent."""
    monkeypatch.setattr(limits, "REQUESTS_IN_FLIGHT_MAX", 2)
    monkeypatch.setattr(limits, "IDLE_S_MAX", 1)
    with RawClient(server.port) as client:
        client.hello()
        for number in (1, 2, 3):
            client.send(Verb.RECEIVE, number, messages.Receive("empty", "default", 1, 2, None))
        numbers = set()
        while numbers != {1, 2, 3}:
            client.send(Verb.PING, 9)
            while (answer := client.next()).number != 9:
                assert answer.verb == Verb.REPLY, error_of(answer)
                numbers.add(answer.number)
            time.sleep(0.02)


@pytest.fixture(autouse=True)
def empty_queue(rd: ringdove.Connection) -> None:
    rd.create_queue("empty")


def test_receivers_that_wait_do_not_keep_a_send_from_its_turn(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
):
    """As many receives as may be under way wait for what the next request sends."""
    monkeypatch.setattr(limits, "REQUESTS_IN_FLIGHT_MAX", 4)
    with RawClient(server.port) as client:
        client.hello()
        for number in range(1, 5):
            client.send(Verb.RECEIVE, number, messages.Receive("empty", "default", 1, 3, None))
        wait_for(lambda: server.server.native.broker.dequeuer.parked == 4, "all are parked")
        client.send(Verb.SEND, 9, send_to("empty"), BLOCK)
        answers = [client.next() for _ in range(2)]
        assert 9 in [answer.number for answer in answers]


def test_a_flood_of_connections_does_no_harm(server: ServerThread):
    clients = [RawClient(server.port) for _ in range(200)]
    for client in clients:
        client.hello()
    for client in clients:
        client.close()
    wait_for(lambda: len(server.server.native.connections) <= 1, "all are gone")


def test_more_connections_than_allowed_are_closed(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 3)
    with RawClient(server.port) as one, RawClient(server.port) as two:
        one.hello()
        two.hello()
        with RawClient(server.port) as three:
            assert three.closed()
        assert one.ask(Verb.PING, 1).number == 1


def test_the_scratch_buffer_is_not_mixed_up_between_connections(server: ServerThread):
    """Two clients whose frames arrive in alternating pieces."""
    ping = [frame(Verb.PING, number, bytes([number]) * 5_000) for number in (1, 2)]
    with RawClient(server.port) as one, RawClient(server.port) as two:
        clients = [one.hello(), two.hello()]
        for at in range(0, len(ping[0]), 500):
            for client, data in zip(clients, ping, strict=True):
                client.write(data[at : at + 500])
        assert [client.next().number for client in clients] == [1, 2]
