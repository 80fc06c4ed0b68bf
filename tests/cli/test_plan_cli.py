"""The command `plan`: on paper, and of a running server."""

import json
import socket
import subprocess
import threading
import time
import urllib.request

import pytest

import ringdove
from cli.shell import Shell
from ringdove.cli import EXIT_REFUSED, EXIT_STORE
from ringdove.cli.advising import advising, as_metrics
from server.running import PATIENCE_S, PROGRAM, ServerThread

BASICS = ("plan", "--rate", "200", "--service", "20ms")


@pytest.fixture
def shell(capfd, monkeypatch):
    return Shell(capfd, monkeypatch)


def test_a_plan_in_json_has_its_curves(shell):
    found = json.loads(shell(*BASICS, "--loss", "0.01", "--target-p99", "150ms", "--json"))
    assert found["p99_ms"] <= 150
    assert found["threads"] in [row["threads"] for row in found["by_threads"]]


def test_a_plan_is_told_and_drawn(shell, tmp_path):
    out = shell(*BASICS, "--target-p99", "150ms", "--plot", str(tmp_path / "plan.png"))
    assert "turning_point_threads" in out
    assert "threads receive, on 1 controller (1 server)" in shell.err
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        (*BASICS, "--target-p99", "soon"),
        (*BASICS, "--target-p99", "1ms"),
        ("plan", "--from", "ringdove://127.0.0.1:1"),
        ("plan", "--from", "http://127.0.0.1:1", "--listen", "here"),
    ],
)
def test_what_cannot_be_planned_is_refused(shell, arguments):
    shell(*arguments, code=EXIT_REFUSED)
    assert shell.err.startswith("ringdove: ")


def test_metrics_may_need_the_servers_token(shell, tmp_path):
    with ServerThread(tmp_path / "data", token="word") as server:
        asked = ("plan", "--from", server.http_url, "--over", "10ms")
        shell(*asked, code=EXIT_STORE)
        assert "401" in shell.err
        shell(*asked, "--token", "word", code=EXIT_REFUSED)
        assert "there are none" in shell.err


def test_a_server_that_does_not_answer_is_told(shell):
    shell("plan", "--from", "http://127.0.0.1:1", code=EXIT_STORE)
    assert "does not give its metrics" in shell.err


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal", b"what?\r\n"]
)
def test_a_server_that_dies_while_it_answers_is_told(shell, answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        shell("plan", "--from", f"http://127.0.0.1:{port}", "--over", "1ms", code=EXIT_STORE)
        thread.join()
    assert "does not give its metrics" in shell.err


def test_where_a_plan_cannot_listen_is_told(shell):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        shell("plan", "--from", "http://127.0.0.1:1", "--listen", place, code=EXIT_STORE)
    assert f"Cannot listen on {place}" in shell.err
    shell("plan", "--from", "http://127.0.0.1:1", "--listen", "localhost:70000", code=EXIT_REFUSED)


@pytest.fixture
def busy(tmp_path):
    """A server with a queue, and four receivers that take 20 ms for a message."""
    over = threading.Event()

    def receive(url):
        with ringdove.connect(url) as connection:
            queue = connection.queue("work")
            while not over.is_set():
                batch = queue.receive(max=1, wait=0.2)
                if batch:
                    over.wait(0.02)
                    batch.ack()

    def send(url):
        with ringdove.connect(url) as connection:
            queue = connection.queue("work")
            while not over.wait(0.01):
                queue.send(b"x")

    with ServerThread(tmp_path / "data") as server:
        with ringdove.connect(server.url) as connection:
            connection.create_queue("work", durability="memory")
        threads = [threading.Thread(target=receive, args=(server.url,)) for _ in range(4)]
        threads.append(threading.Thread(target=send, args=(server.url,)))
        for thread in threads:
            thread.start()
        try:
            yield server
        finally:
            over.set()
            for thread in threads:
                thread.join()


def test_a_running_server_is_calibrated_from_its_metrics(busy, shell):
    found = json.loads(shell("plan", "--from", busy.http_url, "--over", "2s", "--json"))
    seen = found["observed"]
    assert found["action"] in ("in", "stay", "out")
    assert 1 <= found["threads"] <= 5
    assert seen["service_s"] > 0.002
    assert 0 < seen["rate_per_s"] <= 110
    assert found["threads_wanted"] >= 1
    out = shell("plan", "--from", busy.http_url, "--queue", "work", "--over", "1s")
    assert "threads are busy" in out


def test_autoscalers_get_json_and_metrics():
    answer = {
        "action": "out", "threads": 3, "threads_wanted": 5, "servers_wanted": 1,
        "observed": {"queue": "q", "utilisation": 0.9},
    }  # fmt: skip
    with advising("127.0.0.1", 0) as (place, show):
        first = json.load(urllib.request.urlopen(f"http://{place}/", timeout=10))
        assert first["action"] == "unknown"
        show(answer)
        assert json.load(urllib.request.urlopen(f"http://{place}/", timeout=10)) == answer
        text = urllib.request.urlopen(f"http://{place}/metrics", timeout=10).read().decode()
    assert 'ringdove_plan_action{queue="q"} 1.0' in text
    assert 'ringdove_plan_threads_wanted{queue="q"} 5.0' in text
    assert as_metrics({"action": "unknown"}) == b""


def test_a_plan_listens_for_autoscalers(busy, tmp_path):

    with subprocess.Popen(
        [*PROGRAM, "plan", "--from", busy.http_url, "--over", "500ms", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            url = process.stdout.readline().strip()
            deadline_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline_s:
                found = json.load(urllib.request.urlopen(url, timeout=10))
                if found["action"] != "unknown":
                    break
                time.sleep(0.1)
            assert found["observed"]["queue"] == "work"
        finally:
            process.terminate()
