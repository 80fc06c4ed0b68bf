"""Refusals are problems: each says what would be right, and none tells a secret."""

import asyncio
import base64
import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from rest.caller import Caller, QueueCaller
from rest.conftest import serve_rest
from ringdove import errors
from ringdove.frontends.exchange import HttpRequest
from ringdove.frontends.rest import problems
from ringdove.frontends.rest.api import RestApi
from server.running import ServerThread

SECRET = "hunter2-äö"


@pytest.mark.parametrize(
    "path", ["", "/", "/nothing", "/queues/", "/queues//stats", "/queues/q/nothing", "/queues/q/stats/",
             "/queues/q/subscriptions/s/x", "/QUEUES", "%2Fqueues", "/queues%2Fq"],
)  # fmt: skip
def test_an_unknown_path_is_told_where_to_look(rest: Caller, path: str):
    told = rest.problem(404, "RouteNotFound", "GET", path)
    assert "/v1/openapi.json" in told["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/queues", "GET, HEAD"),
        ("POST", "/queues/q", "DELETE, GET, HEAD, PATCH, PUT"),
        ("GET", "/queues/q/messages", "POST"),
        ("GET", "/queues/q/receive", "POST"),
        ("HEAD", "/queues/q/ack", "POST"),
        ("DELETE", "/queues/q/peek", "GET, HEAD"),
        ("POST", "/queues/q/subscriptions/s", "DELETE, GET, HEAD, PUT"),
        ("OPTIONS", "/queues/q", "DELETE, GET, HEAD, PATCH, PUT"),
        ("TRACE", "/openapi.json", "GET, HEAD"),
    ],
)
def test_another_method_is_told_what_is_allowed(rest: Caller, method, path, allowed):
    answer = rest.call(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    if method != "HEAD":
        assert answer.json["code"] == "MethodNotAllowed"


def test_a_head_is_a_get_without_its_body(rest: Caller, queue: QueueCaller):
    whole = rest.call("GET", queue.path)
    head = rest.call("HEAD", queue.path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == whole.headers["content-length"]
    assert rest.call("HEAD", "/queues/nowhere").status == 404


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "a", "json"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", ""),
        ("PATCH", ""),
        ("POST", "/ack"),
        ("POST", "/redrive"),
        ("PUT", "/subscriptions/s"),
    ],
)
def test_what_must_be_json_says_so(rest: Caller, queue: QueueCaller, method, path, kind):
    headers = {"Content-Type": kind}
    path = f"{queue.path}{path}"
    told = rest.problem(415, "MediaTypeUnsupported", method, path, b"{}", headers=headers)
    assert "curl --json" in told["detail"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("max=1&max=2", "more than once"),
        ("max", "max is ''"),
        ("prefix=%ff", "percent-encoded UTF-8"),
        ("&".join(f"a{n}=1" for n in range(100)), "fields"),
    ],
)
def test_a_query_that_cannot_be_read_is_refused(rest: Caller, query, told):
    found = rest.problem(400, "InvalidArgument", "GET", f"/queues?{query}")
    assert told in found["detail"]


def test_every_error_has_a_status_and_a_title():
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.RingdoveError):
            response = problems.respond(kind("What is wrong."))
            assert 400 <= response.status < 600
            assert b'"title":"' in response.body
            assert f'"code":"{kind.__name__}"'.encode() in response.body


# -- who may ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked() -> Iterator[ServerThread]:
    """A server with a token."""
    with ServerThread("nowhere", port=-1, memory=True, token=SECRET) as running:
        yield running


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", SECRET, f"Basic {SECRET}", f"Bearer {SECRET}x",
     f"Bearer {SECRET[:-1]}"],
)  # fmt: skip
def test_a_token_is_wanted_everywhere(locked: ServerThread, given: str | None):
    caller = Caller(locked.http_port)
    if given is not None:
        caller.headers["Authorization"] = given.encode().decode("latin-1")
    for method, path in [
        ("GET", "/queues"),
        ("PUT", "/queues/q"),
        ("DELETE", "/queues/q"),
        ("POST", "/queues/q/messages"),
        ("POST", "/queues/q/receive"),
    ]:
        told = caller.problem(401, "NotIdentified", method, path)
        assert "hunter2" not in str(told)
    answer = caller.call("GET", "/queues")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_the_token_opens(locked: ServerThread):
    caller = Caller(locked.http_port, SECRET.encode().decode("latin-1"))
    assert caller.call("PUT", "/queues/q").status == 201
    caller.headers["Authorization"] = caller.headers["Authorization"].replace("Bearer", "bearer")
    assert caller.call("GET", "/queues/q").status == 200


class Roles:
    """Allows what is listed, and remembers what was asked."""

    def __init__(self, *allowed: tuple[str | None, str]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[str | None, str]] = []

    async def __call__(self, request: HttpRequest, queue: str | None, role: str) -> None:
        self.asked.append((queue, role))
        if (queue, role) not in self.allowed:
            raise errors.NotAuthorized(f"This key has no right to {role} on {queue!r}.")


def test_a_role_is_asked_for_before_anything_else(server: ServerThread, rest: Caller):
    roles = Roles()
    serve_rest(server, authorize=roles)
    for method, path, role in [
        ("PUT", "", "manage"), ("PATCH", "", "manage"), ("DELETE", "", "manage"),
        ("POST", "/purge", "manage"), ("POST", "/redrive", "manage"), ("GET", "", "receive"),
        ("GET", "/stats", "receive"), ("GET", "/peek", "receive"), ("POST", "/receive", "receive"),
        ("POST", "/ack", "receive"), ("POST", "/extend", "receive"), ("POST", "/release", "receive"),
        ("POST", "/bury", "receive"), ("GET", "/subscriptions", "receive"),
        ("PUT", "/subscriptions/s", "manage"), ("DELETE", "/subscriptions/s", "manage"),
        ("GET", "/subscriptions/s", "receive"), ("POST", "/messages", "send"),
    ]:  # fmt: skip
        rest.problem(403, "NotAuthorized", method, f"/queues/q{path}", b"no JSON")
        assert roles.asked.pop() == ("q", role)
    rest.problem(403, "NotAuthorized", "GET", "/queues")
    assert roles.asked == [(None, "manage")]
    assert rest.call("GET", "/openapi.json").status == 200


def test_who_asks_too_often_is_told_to_wait(server: ServerThread, rest: Caller):
    async def authorize(*_: Any) -> None:
        raise errors.LimitExceeded("The account may send 5 requests/s.")

    serve_rest(server, authorize=authorize)
    rest.problem(429, "Throttled", "GET", "/queues/q")
    assert rest.call("GET", "/queues/q").headers["retry-after"] == "1"


def test_another_queue_takes_a_right_of_its_own(server: ServerThread, rest: Caller):
    roles = Roles(("q", "manage"))
    serve_rest(server, authorize=roles)
    rest.problem(403, "NotAuthorized", "PUT", "/queues/q", {"dead_letter": "other"})
    assert roles.asked.pop() == ("other", "manage")
    rest.ok("PUT", "/queues/q")
    rest.problem(403, "NotAuthorized", "PATCH", "/queues/q", {"dead_letter": "other"})
    rest.problem(403, "NotAuthorized", "POST", "/queues/q/redrive", {"target": "other"})
    assert roles.asked.pop() == ("other", "send")
    told = rest.problem(403, "NotAuthorized", "POST", "/queues/q/redrive")
    assert "Name the 'target'" in told["detail"]


def test_the_server_itself_knows_its_token_and_its_accounts():
    with ServerThread("nowhere", port=-1, memory=True, token="hunter2") as server:
        stranger, operator = Caller(server.http_port), Caller(server.http_port, "hunter2")
        stranger.problem(401, "NotIdentified", "PUT", "/queues/q")
        assert stranger.call("GET", "/openapi.json").status == 200
        operator.ok("PUT", "/queues/q")
        assert len(operator.ok("GET", "/queues")["queues"]) == 1

        made = server.call(server.server._broker.account("create", {"name": "fleet"}))
        account = Caller(server.http_port)
        account.headers["Authorization"] = basic(made["key"]["id"], made["key"]["secret"])
        refused = account.problem(403, "NotAuthorized", "GET", "/queues/q")
        assert refused["detail"] == (
            "This key may not receive on queue 'q'. Queues of its account are called "
            f"{made['id']}.NAME."
        )
        account.problem(403, "NotAuthorized", "GET", "/queues")
        own = QueueCaller(account, f"{made['id']}.own").create()
        # A message that claims to be a dead letter of somebody else's queue stays where it is.
        own.send({"body": "x", "attributes": {"ringdove.dead.queue": "q"}})
        account.problem(403, "NotAuthorized", "POST", f"{own.path}/redrive")
        account.problem(403, "NotAuthorized", "POST", f"{own.path}/redrive", {"target": "q"})
        assert QueueCaller(operator, "q").waiting() == 0


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize("token", [None, "hunter2"])
def test_who_is_not_known_is_asked_who_he_is(token: str | None):
    with ServerThread("nowhere", port=-1, memory=True, token=token) as server:
        made = server.call(server.server._broker.account("create", {"name": "fleet"}))
        key, caller = made["key"], Caller(server.http_port)
        for given in (
            None, "Bearer wrong", "Basic", "Basic !", basic("AKIA", "none"), "Digest x",
            basic(key["id"], "wrong"), f"AWS4-HMAC-SHA256 Credential={key['id']}/20260101/x",
        ):  # fmt: skip
            caller.headers = {} if given is None else {"Authorization": given}
            for method, path in [("GET", "/queues"), ("POST", f"/queues/{made['id']}.own/receive")]:
                caller.problem(401, "NotIdentified", method, path)
            assert "www-authenticate" in caller.call("GET", "/queues").headers
        caller.headers = {"Authorization": basic(key["id"], key["secret"])}
        caller.problem(403, "NotAuthorized", "GET", "/queues")
        caller.problem(404, "QueueNotFound", "POST", f"/queues/{made['id']}.own/receive")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 201),
        ({"Sec-Fetch-Site": "none"}, 201),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://localhost:9324", "Host": "localhost:9324"}, 201),
        ({"Origin": "http://[::1]:9324", "Host": "[::1]:9324"}, 201),
        ({"Origin": "http://queue.example:9324", "Host": "queue.example:9324"}, 421),
    ],
)
def test_a_page_of_another_site_gets_nothing_done(
    rest: Caller, queue: QueueCaller, headers, status
):
    answer = rest.call("POST", f"{queue.path}/messages", b"x", headers=headers)
    assert answer.status == status
    assert rest.call("GET", queue.path, headers=headers).status == (421 if status == 421 else 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"User-Agent": "Mozilla/5.0 (X11; Linux)"}, 421),
        ({"Accept-Language": "en"}, 421),
        ({"Referer": "http://evil.example/"}, 421),
        ({"User-Agent": "Boto3/1.40"}, 200),
        ({}, 200),
    ],
)
def test_a_name_that_was_made_to_lead_here_is_no_way_in(
    rest: Caller, queue: QueueCaller, headers, status
):
    """An open server answers browsers by its own names only, and programs by any."""
    headers = {**headers, "Host": "evil.example:9324"}
    assert rest.call("GET", queue.path, headers=headers).status == status


# -- failures --------------------------------------------------------------------------------------


def request(method: str = "GET", path: str = "/v1/queues", headers: Any = None) -> HttpRequest:
    return HttpRequest(method, path, path.encode(), b"", headers or {}, b"")


class Failing:
    """A broker, every work on which fails in one way."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def list_queues(self, *_: object) -> None:
        raise self.error


async def drive(coroutine: Any, *, parks: bool = False) -> Any:
    return await coroutine


def run(error: BaseException) -> Any:
    return asyncio.run(RestApi(Failing(error)).respond(request(), drive))


@pytest.mark.parametrize(
    "error", [ValueError(f"token {SECRET}"), errors.StoreCorrupted(f"/data/{SECRET} is damaged.")]
)
def test_what_fails_inside_is_logged_and_not_told(error, caplog):
    with caplog.at_level(logging.ERROR):
        response = run(error)
    assert response.status == 500
    assert b"hunter2" not in response.body
    assert b"log" in response.body
    assert caplog.records


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.StoreUnavailable("Not now."), 503),
        (errors.StoreFull("The disk is full."), 507),
        (errors.ConnectionClosed("Closed."), 503),
        (errors.RecordConflict("Changed meanwhile."), 409),
    ],
)
def test_a_store_that_cannot_serve_is_told(error, status):
    response = run(error)
    assert response.status == status
    assert ((b"retry-after", b"1") in response.headers) == (status == 503)


def test_no_secret_is_logged(locked: ServerThread, capfd):
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        for token in (SECRET, "wrong-hunter2"):
            caller = Caller(locked.http_port, token.encode().decode("latin-1"))
            caller.call("PUT", "/queues/q", {"order": "nonsense"}, token="hunter2")
            caller.call("GET", "/queues", token="hunter2")
            caller.call("POST", "/queues/q/messages", b"hunter2")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    told = capfd.readouterr()
    assert "hunter2" not in written.getvalue() + told.out + told.err
