"""The live stream: what was asked for and no more, once a second, for as long as it is allowed."""

import http.client
import json
import socket
from contextlib import contextmanager

import pytest

from console.test_server import PASSWORD, make_account
from ringdove import limits
from server.running import PATIENCE_S, ServerThread, wait_for


class Stream:
    """Reads server-sent events."""

    def __init__(self, console, **query: object) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE_S)
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        self._connection.request("GET", f"/console/api/live?{asked}", headers=console.headers)
        self.response = self._connection.getresponse()

    def next(self, kind: str = "message"):
        """The data of the next event of a kind."""
        found = "message"
        while line := self.response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            if name == "event":
                found = value
            if name == "data" and found == kind:
                assert self.response.readline() == b"\n"
                return json.loads(value)
        return self.next(kind) if not self.response.closed else None

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@contextmanager
def stream(console, **query):
    opened = Stream(console, **query)
    try:
        yield opened
    finally:
        opened.close()


def feeds(server: ServerThread) -> int:
    return len(server.server._console.live.feeds)


def test_a_page_gets_what_it_asks_for_and_no_more(rd, console):
    rd.create_queue("asked", stripes=2).send_many([b"x"] * 5)
    rd.create_queue("other").send("x")
    with stream(console, queue="asked", queues="asked,missing") as live:
        told = live.next()
        assert live.response.headers["content-type"] == "text/event-stream"
        assert told.keys() == {"at_ms", "server", "queue", "queues", "tally"}
        assert told["tally"].keys() == {"delivered", "again", "late", "repeated"}
        assert told["queues"].keys() == {"asked"}
        assert told["queues"]["asked"]["waiting"] == 5
        assert (told["queue"]["messages"], len(told["queue"]["stripes"])) == (5, 2)
        rd.queue("asked").send("one more")
        assert wait_for(lambda: live.next()["queues"]["asked"]["waiting"] == 6, "a new snapshot")


def test_totals_count_every_queue(rd, console):
    for number in range(20):
        rd.create_queue(f"q{number:02}").send_many([b"x"] * number)
    with stream(console, totals=1) as live:
        wait_for(lambda: live.next()["totals"]["queues"] == 20, "the new queues")
        totals = live.next()["totals"]
    assert (totals["queues"], totals["counted"], totals["waiting"]) == (20, 20, 190)
    assert next(iter(totals["deepest"])) == "q19"
    assert len(totals["deepest"]) == 8


def test_delays_are_counted_from_arrival_to_delivery(rd, console):
    queue = rd.create_queue("readings")
    queue.send("x")
    with stream(console) as live:
        before = sum(live.next()["server"]["delays"])
        queue.receive()
        wait_for(lambda: sum(live.next()["server"]["delays"]) == before + 1, "a counted delay")


def test_an_account_is_told_of_its_own_queues_only(server, rd, console):
    own = f"{make_account(server, 'shop', 'operator')}.orders"
    rd.create_queue(own).send("x")
    rd.create_queue("somebody-elses").send_many([b"x"] * 9)
    console.sign_in(name="shop", password=PASSWORD)
    with stream(console, totals=1, queues=f"{own},somebody-elses", fabric=1) as live:
        wait_for(lambda: live.next()["totals"]["queues"], "the new queues")
        told = live.next()
    assert told.keys() == {"at_ms", "totals", "queues"}
    assert told["queues"].keys() == told["totals"]["deepest"].keys() == {own}
    assert told["totals"]["messages"] == 1
    with stream(console, queue="somebody-elses") as live:
        assert live.next()["queue"] is None


def test_the_stream_ends_with_the_session(server, console):
    make_account(server, "shop", "admin")
    console.sign_in(name="shop", password=PASSWORD)
    with stream(console) as live:
        live.next()
        console.ask("DELETE", "session")
        assert "Sign in" in live.next("ended")


def test_who_leaves_is_forgotten(server, console):
    live = Stream(console, totals=1)
    live.next()
    assert feeds(server) == 1
    live.close()
    wait_for(lambda: feeds(server) == 0, "the feed's end")


def test_there_are_only_so_many(server, console, monkeypatch):
    monkeypatch.setattr(limits, "FEEDS_MAX", 1)
    with stream(console) as live:
        live.next()
        assert console.ask("GET", "live").status == 429


def test_who_does_not_read_has_nothing_piled_up_for_him(server, rd, console):
    names = [rd.create_queue(f"queue-with-a-long-name-{n:03}").name for n in range(100)]
    with socket.create_connection(("127.0.0.1", console.port), PATIENCE_S) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        path = f"/console/api/live?queues={','.join(names)}"
        deaf.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        wait_for(lambda: feeds(server) == 1, "the feed")
        (connection,) = (c for c in server.server._http.connections if c._feed is not None)
        feed = connection._feed
        connection.pause_writing()
        pieces = [feed._write(b"data: x\n\n") for _ in range(3)]
        connection.resume_writing()
        assert pieces == [False, False, False]
        assert feed._write(b"data: x\n\n")


def test_a_server_that_closes_ends_its_streams(tmp_path):
    from console.conftest import ConsoleCaller

    with ServerThread(tmp_path, memory=True, port=-1) as server:
        live = Stream(ConsoleCaller(server))
        live.next()
        server.ask_to_stop()
        while live.response.readline():
            pass
        live.close()


@pytest.mark.parametrize("query", ["nothing=1", "totals=maybe", "queue=a&queue=b"])
def test_a_question_that_is_none_is_refused(console, query):
    assert console.at("GET", f"/console/api/live?{query}").status == 400
