"""Queues and subscriptions over REST."""

import pytest

from rest.caller import Caller, QueueCaller


def test_a_queue_is_made_once(rest: Caller):
    made = rest.call("PUT", "/queues/orders", {"order": "key", "stripes": 4})
    assert made.status == 201
    assert made.headers["location"] == "/v1/queues/orders"
    assert made.json["settings"]["order"] == "key"
    again = rest.call("PUT", "/queues/orders", {"order": "key", "stripes": 4})
    assert again.status == 200
    assert again.json == made.json
    told = rest.problem(409, "QueueExists", "PUT", "/queues/orders", {"order": "loose"})
    assert "order is 'key', not 'loose'" in told["detail"]


def test_a_queue_whose_name_starts_another_is_new(rest: Caller):
    rest.ok("PUT", "/queues/orders-2")
    assert rest.call("PUT", "/queues/orders").status == 201
    assert rest.call("PUT", "/queues/orders").status == 200


def test_a_queue_needs_no_body(rest: Caller):
    assert rest.call("PUT", "/queues/plain").status == 201
    assert rest.ok("GET", "/queues/plain")["settings"]["order"] == "loose"


def test_settings_that_make_no_sense_are_refused_with_reasons(rest: Caller):
    told = rest.problem(422, "SettingsRefused", "PUT", "/queues/q", {"stripe": 4})
    assert "Did you mean 'stripes'?" in told["detail"]
    told = rest.problem(422, "SettingsRefused", "PUT", "/queues/q", {"lease_ms": 0})
    assert "lease_ms is 0; it must be 1 to" in told["detail"]
    rest.problem(422, "SettingsRefused", "PUT", "/queues/q", {"order": {"deep": []}})
    rest.problem(404, "QueueNotFound", "GET", "/queues/q")


@pytest.mark.parametrize("body", [b"[]", b"7", b'"x"', b"{", b"\xff", b'{"order":"\xff"}', b"nul"])
def test_settings_that_are_no_object_are_refused(rest: Caller, body: bytes):
    headers = {"Content-Type": "application/json"}
    rest.problem(400, "InvalidArgument", "PUT", "/queues/q", body, headers=headers)


def test_an_unknown_queue_is_told_with_the_nearest_name(rest: Caller, queue: QueueCaller):
    told = rest.problem(404, "QueueNotFound", "GET", "/queues/reading")
    assert "Did you mean 'readings'?" in told["detail"]
    for method, path in [
        ("GET", "/stats"), ("POST", "/purge"), ("GET", "/peek"), ("POST", "/receive"),
        ("GET", "/subscriptions"), ("PUT", "/subscriptions/s"), ("DELETE", "/subscriptions/s"),
        ("PATCH", ""), ("DELETE", ""), ("POST", "/redrive"), ("POST", "/messages"),
    ]:  # fmt: skip
        rest.problem(404, "QueueNotFound", method, f"/queues/nowhere{path}")
    for verb in ("ack", "extend", "release", "bury"):
        body = {"receipts": ["AAAA"]}
        rest.problem(404, "QueueNotFound", "POST", f"/queues/nowhere/{verb}", body)


@pytest.mark.parametrize("name", ["%20", "a%2Fb", ".a", "-a", "%C3%A4", "x" * 97, "a%00"])
def test_a_name_that_is_none_is_refused(rest: Caller, name: str):
    rest.problem(400, "InvalidArgument", "PUT", f"/queues/{name}")
    rest.problem(400, "InvalidArgument", "GET", f"/queues/{name}")


def test_names_are_percent_decoded(rest: Caller, queue: QueueCaller):
    assert rest.ok("GET", "/queues/%72eadings")["name"] == "readings"
    rest.problem(400, "InvalidArgument", "GET", "/queues/%ff")


def test_settings_change_one_by_one(rest: Caller, queue: QueueCaller):
    before = rest.ok("GET", queue.path)
    changed = rest.ok("PATCH", queue.path, {"lease_ms": 5000, "receives_max": 3})
    assert changed["version"] == before["version"] + 1
    assert changed["settings"]["lease_ms"] == 5000
    assert changed["settings"]["dead_letter"] == "readings.dead"
    assert rest.ok("GET", queue.path) == changed
    assert rest.ok("PATCH", queue.path, {"receives_max": None})["settings"]["receives_max"] is None
    assert rest.ok("PATCH", queue.path, {})["settings"]["lease_ms"] == 5000
    told = rest.problem(422, "SettingsRefused", "PATCH", queue.path, {"durability": "memory"})
    assert "Make a new queue" in told["detail"]


def test_a_merge_patch_is_a_patch(rest: Caller, queue: QueueCaller):
    headers = {"Content-Type": "application/merge-patch+json"}
    assert (
        rest.ok("PATCH", queue.path, {"lease_ms": 7}, headers=headers)["settings"]["lease_ms"] == 7
    )


def test_queues_are_listed_page_by_page(rest: Caller):
    for number in range(5):
        rest.ok("PUT", f"/queues/a{number}")
    rest.ok("PUT", "/queues/b")
    names, after = [], ""
    while after is not None:
        page = rest.ok("GET", "/queues", prefix="a", after=after, max=2)
        names.append([queue["name"] for queue in page["queues"]])
        after = page["next"]
    assert names == [["a0", "a1"], ["a2", "a3"], ["a4"]]
    assert [q["name"] for q in rest.ok("GET", "/queues")["queues"]][-1] == "b"
    assert rest.ok("GET", "/queues", prefix="c") == {"queues": [], "next": None}


def test_a_deleted_queue_is_gone(rest: Caller, queue: QueueCaller):
    gone = rest.call("DELETE", queue.path)
    assert (gone.status, gone.body) == (204, b"")
    assert "content-length" not in gone.headers  # RFC 9110: never with 204
    rest.problem(404, "QueueNotFound", "DELETE", queue.path)


def test_a_purge_says_how_many_were_dropped(rest: Caller, queue: QueueCaller):
    queue.send({"messages": [{"body": "a"}, {"body": "b"}]})
    assert rest.ok("POST", f"{queue.path}/purge") == {"purged": 2}
    assert queue.receive() == []


def test_statistics_count_what_waits_and_what_is_leased(rest: Caller, queue: QueueCaller):
    assert rest.ok("GET", f"{queue.path}/stats")["oldest_ms"] is None
    queue.send({"messages": [{"body": "a"}, {"body": "b"}, {"body": "c"}]})
    queue.settle("release", queue.receive(max=2)[:1], delay_ms=60_000)
    stats = rest.ok("GET", f"{queue.path}/stats")
    assert stats["name"] == "readings"
    assert stats["messages"] == 3
    assert stats["oldest_ms"] > 0
    assert stats["bytes"] > 0
    assert stats["subscriptions"] == {"default": {"waiting": 1, "leased": 1, "delayed": 1}}
    [stripe] = stats["stripes"]
    assert (stripe["stripe"], stripe["priority"], stripe["head"], stripe["tail"]) == (0, 0, 0, 3)


# -- subscriptions ---------------------------------------------------------------------------------


def test_a_subscription_is_added_once_and_removed(rest: Caller, queue: QueueCaller):
    path = f"{queue.path}/subscriptions"
    made = rest.call("PUT", f"{path}/billing", {"start": "earliest", "keep_default": True})
    assert (made.status, made.json["name"]) == (201, "billing")
    assert rest.call("PUT", f"{path}/billing").status == 200
    assert [s["name"] for s in rest.ok("GET", path)["subscriptions"]] == ["billing", "default"]
    queue.send({"body": "x"})
    assert rest.ok("GET", f"{path}/billing") == {
        "name": "billing", "waiting": 1, "leased": 0, "delayed": 0,
    }  # fmt: skip
    [message] = queue.receive(subscription="billing")
    assert queue.settle("ack", [message]) == [{"messages": 1}]
    assert queue.waiting("default") == 1
    assert rest.call("DELETE", f"{path}/billing").status == 204
    rest.problem(404, "SubscriptionNotFound", "DELETE", f"{path}/billing")
    told = rest.problem(404, "SubscriptionNotFound", "GET", f"{path}/billing")
    assert "it has: default" in told["detail"]


def test_a_subscription_starts_where_it_is_told(rest: Caller, queue: QueueCaller):
    path = f"{queue.path}/subscriptions"
    queue.send({"messages": [{"body": str(n)} for n in range(4)]})
    for name, body, waiting in [
        ("first", {"start": "earliest"}, 4),
        ("last", {"start": "latest"}, 0),
        ("usual", {}, 0),
        ("second", {"offset": 1}, 3),
        ("time", {"time_ms": 1}, 4),
        ("future", {"time_ms": 2**53}, 0),
    ]:
        made = rest.ok("PUT", f"{path}/{name}", {**body, "keep_default": True})
        assert made["waiting"] == waiting, name


@pytest.mark.parametrize(
    "body",
    [
        {"start": "now"}, {"offset": -1}, {"start": "latest", "offset": 3}, {"time_ms": "x"},
        {"offset": 1, "time_ms": 1}, {"begin": "latest"}, {"keep_default": 1},
    ],
)  # fmt: skip
def test_a_start_that_is_none_is_refused(rest: Caller, queue: QueueCaller, body):
    rest.problem(400, "InvalidArgument", "PUT", f"{queue.path}/subscriptions/s", body)
    rest.problem(400, "InvalidArgument", "PUT", f"{queue.path}/subscriptions/a%20b", {})
