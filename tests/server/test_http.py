"""The HTTP port itself: connections, keep-alive, pipelining, draining, who sees the metrics."""

import json
import socket
import urllib.error
import urllib.request

import pytest

from ringdove.client.sync import connect
from server.running import PATIENCE_S, ServerThread, wait_for


class Raw:
    """A connection that writes bytes and reads responses."""

    def __init__(self, server: ServerThread) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.http_port), PATIENCE_S)
        self._file = self.socket.makefile("rb")

    def write(self, *lines: str, body: bytes = b"") -> None:
        head = "\r\n".join([*lines, "Host: here", "", ""])
        self.socket.sendall(head.encode() + body)

    def read(self, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        length = 0 if method == "HEAD" else int(headers.get("content-length", 0))
        return status, headers, self._file.read(length)

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def is_over(self) -> bool:
        return self._file.read(1) == b""

    def ask_sqs(self, action: str, **members: object) -> None:
        body = json.dumps(members).encode()
        self.write(
            "POST / HTTP/1.1",
            f"X-Amz-Target: AmazonSQS.{action}",
            f"Content-Length: {len(body)}",
            body=body,
        )

    def sqs(self, action: str, **members: object) -> dict:
        self.ask_sqs(action, **members)
        status, _, body = self.read()
        assert status == 200, body
        return json.loads(body or b"{}")


@pytest.fixture
def raw(server: ServerThread):
    connection = Raw(server)
    yield connection
    connection.close()


def parked(server: ServerThread) -> int:
    return server.server._broker.dequeuer.parked


def test_a_connection_serves_one_request_after_the_other(raw):
    for _ in range(3):
        raw.write("GET /healthz HTTP/1.1")
        status, headers, body = raw.read()
        assert (status, body) == (200, b"ok\n")
        assert "connection" not in headers
        assert headers["date"].endswith("GMT")


@pytest.mark.parametrize(
    "lines", [("GET /healthz HTTP/1.1", "Connection: close"), ("GET /healthz HTTP/1.0",)]
)
def test_a_client_that_wants_only_one_answer_gets_one(raw, lines):
    raw.write(*lines)
    status, headers, _ = raw.read()
    assert (status, headers["connection"]) == (200, "close")
    assert raw.is_over()


def test_the_head_of_a_response_can_be_had_alone(raw):
    raw.write("HEAD /healthz HTTP/1.1")
    status, headers, body = raw.read("HEAD")
    assert (status, headers["content-length"], body) == (200, "3", b"")
    raw.write("GET /healthz HTTP/1.1")
    assert raw.read()[2] == b"ok\n"


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(raw):
    raw.write(
        "POST / HTTP/1.1",
        "X-Amz-Target: AmazonSQS.ListQueues",
        "Expect: 100-continue",
        "Content-Length: 2",
    )
    assert raw.read()[0] == 100
    raw.socket.sendall(b"{}")
    assert raw.read()[0] == 200


def test_an_offer_to_speak_otherwise_is_not_taken_up(raw):
    raw.write("GET /healthz HTTP/1.1", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
    status, headers, body = raw.read()
    assert (status, headers["connection"], body) == (200, "close", b"ok\n")
    assert raw.is_over()


def test_only_get_is_served_on_the_servers_own_paths(raw):
    raw.write("POST /healthz HTTP/1.1", "Content-Length: 0")
    status, headers, _ = raw.read()
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_responses_keep_the_order_of_requests_even_if_one_waits(server, raw):
    url = raw.sqs("CreateQueue", QueueName="ordered")["QueueUrl"]
    raw.ask_sqs("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    raw.ask_sqs("ListQueues")
    wait_for(lambda: parked(server), "the receive to be parked")
    with connect(server.url) as rd:
        rd.queue("ordered").send(b"hello")
    assert json.loads(raw.read()[2])["Messages"][0]["Body"] == "hello"
    assert "QueueUrls" in json.loads(raw.read()[2])


def test_a_client_that_leaves_takes_no_message_with_it(server, raw):
    url = raw.sqs("CreateQueue", QueueName="left")["QueueUrl"]
    leaver = Raw(server)
    leaver.ask_sqs("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    wait_for(lambda: parked(server), "the receive to be parked")
    leaver.close()
    wait_for(lambda: not parked(server), "the receive to end")
    raw.sqs("SendMessage", QueueUrl=url, MessageBody="hello")
    [message] = raw.sqs(
        "ReceiveMessage", QueueUrl=url, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert message["Attributes"] == {"ApproximateReceiveCount": "1"}


def test_a_server_that_closes_answers_those_who_wait(server, raw):
    url = raw.sqs("CreateQueue", QueueName="closing")["QueueUrl"]
    idle = Raw(server)
    raw.ask_sqs("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    wait_for(lambda: parked(server), "the receive to be parked")
    server.ask_to_stop()
    status, headers, _ = raw.read()
    assert (status, headers["connection"]) == (503, "close")
    assert raw.is_over()
    assert idle.is_over()
    idle.close()


def test_an_idle_connection_is_closed_in_time(server, raw, monkeypatch):
    raw.write("GET /healthz HTTP/1.1")
    raw.read()
    monkeypatch.setattr("ringdove.limits.IDLE_S_MAX", 0)
    raw.write("GET /healthz HTTP/1.1")
    raw.read()
    assert raw.is_over()


def test_metrics_tell_of_http(raw):
    raw.write("GET /nothing HTTP/1.1")
    raw.read()
    raw.write("GET /metrics HTTP/1.1")
    text = raw.read()[2].decode()
    assert "ringdove_http_requests_total 1.0" in text
    assert "ringdove_http_refused_total 1.0" in text


def _status(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as response:
            return response.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.parametrize(
    ("given", "status"),
    [({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "Bearer word"}, 200)],
)
def test_metrics_need_the_servers_token(tmp_path, given, status):
    with ServerThread(tmp_path, token="word") as server:
        assert _status(f"{server.http_url}/metrics", **given) == status
        assert _status(f"{server.http_url}/healthz") == 200
