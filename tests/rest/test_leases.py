"""Receiving and settling over REST."""

import base64
import json
import threading
import time
from typing import Any

import pytest

from rest.caller import Caller, QueueCaller
from ringdove.core.block import Block
from ringdove.core.receipt import Receipt
from ringdove.frontends.rest import shapes
from server.running import ServerThread, wait_for


def test_a_receive_leases_and_an_ack_ends_it(queue: QueueCaller):
    queue.send({"messages": [{"body": "a"}, {"body": "b"}]})
    first, second = queue.receive(max=10)
    assert (first["body"], second["body"]) == ("a", "b")
    assert queue.receive() == []
    assert queue.settle("ack", [first, second]) == [{"messages": 1}, {"messages": 1}]
    stats = queue.caller.ok("GET", f"{queue.path}/stats")
    assert stats["subscriptions"]["default"] == {"waiting": 0, "leased": 0, "delayed": 0}


def test_an_ack_may_be_repeated(queue: QueueCaller):
    queue.send({"body": "a"})
    received = queue.receive()
    queue.settle("ack", received)
    assert queue.settle("ack", received) == [{"messages": 0}]


def test_a_receipt_needs_no_padding(queue: QueueCaller):
    queue.send({"body": "a"})
    [message] = queue.receive()
    message["receipt"] = message["receipt"].rstrip("=")
    assert queue.settle("ack", [message]) == [{"messages": 1}]


def test_a_release_gives_messages_back(queue: QueueCaller):
    queue.send({"body": "a"})
    assert queue.settle("release", queue.receive(), delay_ms=0) == [{"messages": 1}]
    [again] = queue.receive()
    assert again["receives"] == 2
    queue.settle("release", [again], delay_ms=60_000)
    assert queue.receive() == []


def test_a_release_without_delay_waits_for_the_backoff(rest: Caller):
    queue = QueueCaller(rest, "q").create(backoff_ms=60_000)
    queue.send({"body": "a"})
    queue.settle("release", queue.receive())
    assert queue.receive() == []


def test_an_extension_keeps_messages(queue: QueueCaller):
    queue.send({"body": "a"})
    received = queue.receive(lease_ms=60_000)
    assert queue.settle("extend", received, lease_ms=90_000) == [{"messages": 1}]
    assert queue.settle("extend", received) == [{"messages": 1}]
    queue.settle("extend", received, lease_ms=1)
    [again] = queue.receive(wait=20)
    assert again["receives"] == 2


def test_a_stale_receipt_is_a_conflict(rest: Caller, queue: QueueCaller):
    queue.send({"body": "a"})
    [first] = queue.receive(lease_ms=1)
    [second] = queue.receive(wait=20)
    for verb in ("ack", "extend", "release"):
        body = {"receipts": [first["receipt"]]}
        told = rest.problem(409, "ReceiptStale", "POST", f"{queue.path}/{verb}", body)
        assert told["results"][0]["code"] == "ReceiptStale"
    body = {"receipts": [first["receipt"], second["receipt"]]}
    told = rest.problem(409, "ReceiptStale", "POST", f"{queue.path}/ack", body)
    assert "1 of 2 receipts were refused" in told["detail"]
    assert told["results"][0]["messages"] == 0
    assert told["results"][1] == {"messages": 1}


def forged(receipt: str, **changes: Any) -> str:
    decoded = Receipt.decode(base64.urlsafe_b64decode(receipt))
    return base64.urlsafe_b64encode(decoded._replace(**changes).encode()).decode()


@pytest.mark.parametrize("verb", ["ack", "extend", "release", "bury"])
def test_a_receipt_that_is_none_settles_nothing(rest: Caller, verb: str):
    queue = QueueCaller(rest, "q").create(receives_max=5)
    queue.send({"body": "a"})
    receipt = queue.receive()[0]["receipt"]
    other = QueueCaller(rest, "other").create()
    other.send({"body": "b"})
    cases = {
        "": "is no receipt",
        "A": "is no receipt",
        "é": "is no receipt",
        "A+/A": "is no receipt",
        "AAAA": "no receipt of Ringdove",
        receipt[:-8]: "receipt",
        other.receive()[0]["receipt"]: "is of another queue than 'q'",
        forged(receipt, number=1): "names no message",
        forged(receipt, level=1): "names no message",
        forged(receipt, hi=0): "names no message",
        forged(receipt, hi=2**64 - 1): "names no message",
    }
    for bad, text in cases.items():
        body = {"receipts": [receipt, bad]}
        told = rest.problem(400, "InvalidArgument", "POST", f"{queue.path}/{verb}", body)
        assert "receipts[1]" in told["detail"]
        assert text in told["detail"]
    for changes, status in [
        ({"token": 5}, 409), ({"epoch": 9}, 409), ({"hi": 2**40}, 409), ({"subscription": "x"}, 404),
    ]:  # fmt: skip
        body = {"receipts": [forged(receipt, **changes)]}
        answer = rest.call("POST", f"{queue.path}/{verb}", body)
        assert answer.status in (status, 200), answer
    assert queue.receive() == []


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("ack", {}),
        ("ack", {"receipts": []}),
        ("ack", {"receipts": "x"}),
        ("ack", {"receipts": [5]}),
        ("ack", {"receipts": ["x"] * (shapes.RECEIVE_MESSAGES_MAX + 1)}),
        ("bury", {"receipts": ["x"] * (shapes.BURY_RECEIPTS_MAX + 1)}),
        ("ack", {"receipts": ["x"], "lease_ms": 1}),
        ("extend", {"receipts": ["x"], "lease_ms": 0}),
        ("release", {"receipts": ["x"], "delay_ms": -1}),
        ("release", {"receipts": ["x"], "delay": 1}),
        ("bury", {"receipts": ["x"], "reason": 5}),
    ],
)
def test_a_request_to_settle_is_checked(rest: Caller, queue: QueueCaller, verb, body):
    rest.problem(400, "InvalidArgument", "POST", f"{queue.path}/{verb}", body)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"max": 0}, "max is '0': expected int >= 1"),
        ({"max": 10_001}, "expected int <= 10000"),
        ({"wait": 20.1}, "wait is '20.1': expected float <= 20.0"),
        ({"wait": -1}, "expected float >= 0"),
        ({"wait": "nan"}, "wait is 'nan'"),
        ({"lease_ms": 0}, "lease_ms is '0'"),
        ({"limit": 1}, "there is no query parameter 'limit'. Known: max, wait"),
    ],
)
def test_a_receive_is_checked(rest: Caller, queue: QueueCaller, query, told):
    found = rest.problem(400, "InvalidArgument", "POST", f"{queue.path}/receive", **query)
    assert told in found["detail"]


def test_an_unknown_subscription_is_told(rest: Caller, queue: QueueCaller):
    for method, verb in [("POST", "receive"), ("GET", "peek")]:
        path = f"{queue.path}/{verb}"
        told = rest.problem(404, "SubscriptionNotFound", method, path, subscription="x")
        assert "it has: default" in told["detail"]


# -- waiting ---------------------------------------------------------------------------------------


def test_a_parked_receive_is_woken_by_a_send(server: ServerThread, queue: QueueCaller):
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(queue.receive(wait=20)))
    thread.start()
    wait_for(lambda: server.server._broker.dequeuer.parked, "the receive is parked")
    queue.send({"body": "at last"})
    thread.join(60)
    assert found[0][0]["body"] == "at last"


def test_a_wait_for_nothing_ends_with_nothing(queue: QueueCaller):
    assert queue.receive(wait=0.01) == []


def test_a_client_that_leaves_takes_no_message_along(server: ServerThread, queue: QueueCaller):
    dequeuer = server.server._broker.dequeuer
    for _ in range(3):
        connection = queue.caller.open()
        connection.request("POST", f"/v1{queue.path}/receive?wait=20")
        wait_for(lambda: dequeuer.parked, "the receive is parked")
        connection.close()
        wait_for(lambda: not dequeuer.parked, "the receive has ended")
        queue.send({"body": "for others"})
        [message] = queue.receive()
        assert message["receives"] == 1
        queue.settle("ack", [message])


def test_one_of_two_who_wait_gets_it_when_the_other_leaves(
    server: ServerThread, queue: QueueCaller
):
    dequeuer = server.server._broker.dequeuer
    leaving, staying = queue.caller.open(), queue.caller.open()
    for number, connection in enumerate((leaving, staying), 1):
        connection.request("POST", f"/v1{queue.path}/receive?wait=20")
        wait_for(lambda: dequeuer.parked == number, "the receive is parked")
    leaving.close()
    wait_for(lambda: dequeuer.parked == 1, "one has left")
    queue.send({"body": "one"})
    response = staying.getresponse()
    assert json.loads(response.read())["messages"][0]["body"] == "one"
    staying.close()


def test_a_closing_server_answers_those_who_wait():
    with ServerThread("nowhere", port=-1, memory=True) as server:
        queue = QueueCaller(Caller(server.http_port), "q").create()
        connection = queue.caller.open()
        connection.request("POST", f"/v1{queue.path}/receive?wait=20")
        wait_for(lambda: server.server._broker.dequeuer.parked, "the receive is parked")
        server.stop()
        assert connection.getresponse().status == 503
        connection.close()


def test_an_answer_has_a_size_and_the_rest_goes_back(rest: Caller, monkeypatch):
    monkeypatch.setattr(shapes, "ANSWER_BYTES_MAX", 2_000)
    queue = QueueCaller(rest, "q").create(stripes=2)
    block = Block.build([b"x" * 600] * 10, sent_ms=1)
    for _ in range(2):
        queue.send(bytes(block.buffer), "application/vnd.ringdove.block")
    total = 0
    while received := queue.receive(max=20):
        assert len(received) == 2
        total += len(received)
        queue.settle("ack", received)
    assert total == 20
    queue.send(b"y" * 5_000, "text/plain")
    assert len(queue.receive(max=20)) == 1


# -- peek ------------------------------------------------------------------------------------------


def test_a_look_leases_nothing(rest: Caller, queue: QueueCaller):
    queue.send({"messages": [{"body": str(n)} for n in range(5)]})
    seen = rest.ok("GET", f"{queue.path}/peek", max=3)["messages"]
    assert [message["body"] for message in seen] == ["0", "1", "2"]
    assert not {"receipt", "receives", "lease_until_ms"} & set(seen[0])
    assert queue.waiting() == 5
    queue.receive(max=5)
    assert len(rest.ok("GET", f"{queue.path}/peek")["messages"]) == 5


def test_a_look_begins_with_what_is_urgent_and_has_a_size(rest: Caller, monkeypatch):
    queue = QueueCaller(rest, "q").create(priority=1, stripes=3)
    assert rest.ok("GET", f"{queue.path}/peek") == {"messages": []}
    for priority in (0, 1):
        queue.send({"messages": [{"body": "x" * 100, "priority": priority}] * 5})
    seen = rest.ok("GET", f"{queue.path}/peek", max=7)["messages"]
    assert [message["priority"] for message in seen] == [1] * 5 + [0] * 2
    monkeypatch.setattr(shapes, "ANSWER_BYTES_MAX", 500)
    assert 0 < len(rest.ok("GET", f"{queue.path}/peek", max=7)["messages"]) < 5


# -- dead letters ----------------------------------------------------------------------------------


def test_buried_messages_can_be_driven_back(rest: Caller):
    queue = QueueCaller(rest, "q").create(receives_max=5, stripes=2, priority=1)
    queue.send({"messages": [{"body": str(n), "key": "k", "priority": n % 2} for n in range(6)]})
    received = queue.receive(max=6)
    results = queue.settle("bury", received[:4], reason="too hot")
    assert results == [{"messages": 1}] * 4
    dead = QueueCaller(rest, "q.dead")
    seen = rest.ok("GET", f"{dead.path}/peek")["messages"]
    assert [m["body"] for m in seen] == [m["body"] for m in received[:4]]
    assert seen[0]["key"] == "k"
    assert seen[0]["attributes"]["ringdove.dead.queue"] == "q"
    assert seen[0]["attributes"]["ringdove.dead.reason"] == "too hot"

    assert rest.ok("POST", f"{dead.path}/redrive", {"max": 1}) == {"moved": 1}
    QueueCaller(rest, "elsewhere").create()
    assert rest.ok("POST", f"{dead.path}/redrive", {"target": "elsewhere", "max": 2}) == {
        "moved": 2
    }
    assert rest.ok("POST", f"{dead.path}/redrive") == {"moved": 1}
    assert rest.ok("POST", f"{dead.path}/redrive") == {"moved": 0}
    assert {m["body"] for m in queue.receive(max=10)} == {received[0]["body"], received[3]["body"]}


def test_a_burial_needs_a_receipt_that_is_good(rest: Caller):
    queue = QueueCaller(rest, "q").create(receives_max=5)
    queue.send({"messages": [{"body": "a"}, {"body": "b"}]})
    first, second = queue.receive(max=2)
    queue.settle("ack", [first])
    body = {"receipts": [first["receipt"], second["receipt"]]}
    answer = rest.call("POST", f"{queue.path}/bury", body)
    dead = rest.ok("GET", "/queues/q.dead/peek")["messages"]
    assert [m["body"] for m in dead] == ["b"], answer
    told = rest.problem(409, "ReceiptStale", "POST", f"{queue.path}/bury", body)
    assert len(told["results"]) == 2
    assert len(rest.ok("GET", "/queues/q.dead/peek")["messages"]) == 1


def test_a_burial_needs_a_dead_letter_queue(rest: Caller, queue: QueueCaller):
    queue.send({"body": "a"})
    body = {"receipts": [queue.receive()[0]["receipt"]]}
    told = rest.problem(400, "InvalidArgument", "POST", f"{queue.path}/bury", body)
    assert "set 'dead_letter'" in told["detail"]


def test_a_redrive_is_checked(rest: Caller, queue: QueueCaller):
    path = f"{queue.path}/redrive"
    told = rest.problem(400, "InvalidArgument", "POST", path, {"target": "readings"})
    assert "the queue itself" in told["detail"]
    rest.problem(400, "InvalidArgument", "POST", path, {"max": 0})
    rest.problem(400, "InvalidArgument", "POST", path, {"max": 10_001})
    queue.send({"body": "no dead letter"})
    told = rest.problem(404, "QueueNotFound", "POST", path)
    assert "name the target" in told["detail"]
    told = rest.problem(404, "QueueNotFound", "POST", path, {"target": "nowhere"})
    assert queue.waiting() == 1


def test_a_message_received_too_often_dies(rest: Caller):
    queue = QueueCaller(rest, "q").create(receives_max=1)
    queue.send({"body": "a"})
    queue.settle("release", queue.receive(), delay_ms=0)
    assert queue.receive() == []
    wait_for(lambda: rest.ok("GET", "/queues/q.dead/peek")["messages"], "the letter is dead")


def test_receipts_are_good_on_the_command_line_too(queue: QueueCaller):
    queue.send({"body": "a"})
    [message] = queue.receive()
    assert Receipt.decode(base64.urlsafe_b64decode(message["receipt"])).subscription == "default"
    assert message["lease_until_ms"] > time.time() * 1000
