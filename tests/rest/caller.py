"""A plain HTTP client for tests of REST: standard library only, nothing retried, nothing hidden."""

import http.client
import json
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str | None:
        return self.headers["content-type"]


class Caller:
    """Asks a server, each time on a connection of its own."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def open(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """Ask below /v1; a body that is not bytes goes as JSON."""
        return self.at(method, f"/v1{path}", body, headers=headers, **query)

    def at(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        """Ask anywhere."""
        headers = {**self.headers, **(headers or {})}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        url = path + (f"?{urlencode(query)}" if query else "")
        connection = self.open()
        try:
            connection.request(method, url, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Ask, and insist on success."""
        answer = self.call(method, path, body, **options)
        assert answer.status < 300, answer
        return answer.json if answer.body else None

    def problem(
        self, status: int, code: str, method: str, path: str, body: Any = None, **options: Any
    ) -> Any:
        """Ask, and insist on a problem of this kind."""
        answer = self.call(method, path, body, **options)
        assert (answer.status, answer.kind) == (status, "application/problem+json"), answer
        told = answer.json
        assert (told["status"], told["code"]) == (status, code), told
        assert told["type"].startswith("urn:ringdove:problem:")
        assert told["title"]
        assert told["detail"].endswith((".", "?")), told["detail"]
        return told


class QueueCaller:
    """Shorthands for one queue."""

    def __init__(self, caller: Caller, name: str) -> None:
        self.caller = caller
        self.name = name
        self.path = f"/queues/{name}"

    def create(self, **settings: Any) -> Self:
        self.caller.ok("PUT", self.path, settings)
        return self

    def send(self, body: Any, kind: str | None = None, **query: Any) -> list[dict[str, Any]]:
        headers = {} if kind is None else {"Content-Type": kind}
        found = self.caller.ok("POST", f"{self.path}/messages", body, headers=headers, **query)
        return found["messages"]

    def receive(self, **query: Any) -> list[dict[str, Any]]:
        return self.caller.ok("POST", f"{self.path}/receive", **query)["messages"]

    def settle(self, verb: str, messages: list[dict[str, Any]], **fields: Any) -> list[Any]:
        receipts = [message["receipt"] for message in messages]
        body = {"receipts": receipts, **fields}
        return self.caller.ok("POST", f"{self.path}/{verb}", body)["results"]

    def waiting(self, subscription: str = "default") -> int:
        stats = self.caller.ok("GET", f"{self.path}/stats")
        return stats["subscriptions"][subscription]["waiting"]
