"""HTTP that is none, or too much: refused or cut off, and others are served meanwhile."""

import socket
from collections.abc import Iterator

import pytest

from rest.caller import Caller, QueueCaller
from ringdove import limits
from server.running import ServerThread, wait_for

POST = b"POST /v1/queues/readings/messages HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /v1/queues HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(autouse=True)
def others_go_on(queue: QueueCaller) -> Iterator[None]:
    """A well-behaved client is served afterwards, and nothing was stored that should not be."""
    yield
    queue.send({"body": "hello"})
    [message] = queue.receive(max=10)
    assert message["body"] == "hello"
    queue.settle("ack", [message])


def exchange(port: int, data: bytes, patience_s: float = 30) -> bytes:
    """What the server says to these bytes until it closes; fails when it does not."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience_s) as client:
        try:
            client.sendall(data)
        except OSError:
            return b""
        return read_all(client)


def read_all(client: socket.socket) -> bytes:
    told = b""
    try:
        while data := client.recv(65_536):
            told += data
    except ConnectionError:
        pass
    return told


@pytest.mark.parametrize(
    "data",
    [
        # Two lengths: where the next request begins is a matter of opinion.
        POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        POST + b"Content-Length: 5, 5\r\n\r\nhello",
        POST + b"Content-Length: -5\r\n\r\nhello",
        POST + b"Content-Length: +5\r\n\r\nhello",
        POST + b"Content-Length: 0x5\r\n\r\nhello",
        POST + b"Content-Length: 99999999999999999999999\r\n\r\nhello",
        POST + b"Transfer-Encoding: gzip\r\n\r\nhello",
        POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n",
        # Heads that are none.
        b"GET /v1/queues HTTP/1.1\nHost: x\n\n",
        GET + b"A: b\r\n c\r\n\r\n",
        GET + b"A: b\x00c\r\n\r\n",
        GET + b"A b: c\r\n\r\n",
        GET + b"Abc\r\n\r\n",
        GET + b": c\r\n\r\n",
        b"GET /v1/queues HTTP/9.9\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"BREW /v1/queues HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET v1/queues HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/queues/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/queues?prefix=\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT a:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + bytes(60),
        b"\x00\xff" * 500,
    ],
    ids=range(32),
)
def test_what_is_no_http_is_refused_and_cut_off(server: ServerThread, data: bytes):
    told = exchange(server.http_port, data + GET + b"\r\n")
    assert told.startswith(b"HTTP/1.1 400 ") or not told
    assert b"200 OK" not in told


def test_a_star_is_no_queue(server: ServerThread):
    told = exchange(server.http_port, b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 4")


def test_chunks_are_joined(server: ServerThread, queue: QueueCaller):
    chunks = (
        b"".join(b"1;name=value\r\n%c\r\n" % byte for byte in b"hello") + b"0\r\nTrailer: x\r\n\r\n"
    )
    head = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    told = exchange(server.http_port, head + chunks)
    assert told.startswith(b"HTTP/1.1 201 ")
    [message] = queue.receive()
    assert message["body"] == "hello"
    queue.settle("ack", [message])


def test_requests_one_after_the_other_keep_their_order(server: ServerThread, queue: QueueCaller):
    one = POST + b"Content-Length: 1\r\n\r\n%c"
    data = b"".join(one % byte for byte in b"abcde")
    told = exchange(server.http_port, data + GET + b"Connection: close\r\n\r\n")
    assert told.count(b"HTTP/1.1 201 ") == 5
    received = queue.receive(max=10)
    assert [message["body"] for message in received] == list("abcde")
    queue.settle("ack", received)


def test_a_head_is_not_charged_for_the_body_before_it(server: ServerThread, queue: QueueCaller):
    body = b"x" * 100_000
    one = POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    last = GET + b"Connection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as client:
        client.sendall(one + one + last[:10])
        told = client.recv(12)
        client.sendall(last[10:])
        told += read_all(client)
    assert told.count(b"HTTP/1.1 201 ") == 2
    assert told.count(b"HTTP/1.1 200 ") == 1
    queue.settle("ack", queue.receive(max=2))


def test_a_request_that_ends_early_stores_nothing(server: ServerThread, queue: QueueCaller):
    for data in (POST, POST + b"Content-Length: 10\r\n\r\nhalf", POST[:20]):
        with socket.create_connection(("127.0.0.1", server.http_port)) as client:
            client.sendall(data)
    assert queue.waiting() == 0


def test_bytes_that_come_one_by_one_are_a_request(server: ServerThread, queue: QueueCaller):
    data = POST + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello"
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(data)):
            client.sendall(data[at : at + 1])
        assert read_all(client).startswith(b"HTTP/1.1 201 ")
    queue.settle("ack", queue.receive())


def test_a_slow_body_is_given_up(server: ServerThread, queue: QueueCaller, monkeypatch):
    monkeypatch.setattr(limits, "FRAME_S_MAX", 0.2)
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as client:
        client.sendall(POST + b"Content-Length: 1000000\r\n\r\nslow")
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")
    assert queue.waiting() == 0


def test_many_slow_clients_do_not_stop_others(server: ServerThread, queue: QueueCaller):
    clients = []
    try:
        for _ in range(200):
            client = socket.create_connection(("127.0.0.1", server.http_port), timeout=30)
            client.sendall(POST + b"Content-Length: 1000\r\n\r\n" + b"x" * 10)
            clients.append(client)
        queue.send({"body": "quick"})
        queue.settle("ack", queue.receive())
    finally:
        for client in clients:
            client.close()


def test_a_body_beyond_the_limit_is_refused_while_it_comes(
    server: ServerThread, queue: QueueCaller
):
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as client:
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = bytes(1024 * 1024)
        chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
        for _ in range(limits.HTTP_BODY_BYTES_MAX // len(piece) + 1):
            client.sendall(chunk)
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_flood_of_headers_is_cut_off(server: ServerThread):
    headers = b"".join(b"X-%d: 1\r\n" % n for n in range(100_000))
    told = exchange(server.http_port, GET + headers + b"Connection: close\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 4") or not told


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/queues?prefix=",
        GET + b"X: ",
    ],
    ids=["target", "header"],
)
def test_a_head_without_end_is_cut_off(server: ServerThread, head: bytes):
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=5) as client:
        client.sendall(head)
        try:
            for _ in range(64):
                client.sendall(b"a" * 65_536)
            told = client.recv(1000)
        except ConnectionError:
            return
        assert told.startswith(b"HTTP/1.1 4") or not told


def test_a_head_that_does_not_come_is_not_waited_for(server: ServerThread, monkeypatch):
    monkeypatch.setattr(limits, "FRAME_S_MAX", 0.2)
    monkeypatch.setattr(limits, "HELLO_S_MAX", 0.2)
    for head in (b"", GET[:5], GET):
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as client:
            client.sendall(head)
            told = read_all(client)
            assert told.startswith(b"HTTP/1.1 408 ") or not told


def test_a_client_that_does_not_read_harms_nobody(server: ServerThread, rest: Caller):
    queue = QueueCaller(rest, "large").create(body_bytes_max=limits.BODY_BYTES_MAX)
    queue.send(b"x" * limits.BODY_BYTES_MAX, "text/plain")
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as client:
        client.sendall(b"GET /v1/queues/large/peek HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(10):
            assert rest.call("GET", "/queues/large").status == 200
        assert client.recv(12) == b"HTTP/1.1 200"


def test_a_server_does_not_count_those_who_left(server: ServerThread):
    clients = [socket.create_connection(("127.0.0.1", server.http_port)) for _ in range(50)]
    for client in clients:
        client.close()
    front = server.server._http
    wait_for(lambda: not front.connections, "all connections are gone")
