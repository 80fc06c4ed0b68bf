"""Requests to SQS in both protocols, signed by botocore and sent over a bare HTTP connection.

    asker = Asker(port, key, secret)
    answer = asker.ask("query", "SendMessage", QueueUrl=url, MessageBody="x")
    asker.send(tampered(asker.make("json", "PurgeQueue", QueueUrl=url), body=b"{}"))

What is made can be looked at and spoilt before it is sent.
"""

import base64
import http.client
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import urlencode, urlsplit

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.compat import get_current_datetime
from botocore.credentials import Credentials

PROTOCOLS = ("json", "query")
REGION = "us-east-1"

#: Long enough that only a hang reaches it.
PATIENCE_S = 60


class Wired(NamedTuple):
    """A request as it goes over the wire."""

    method: str
    #: Path and query.
    target: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """A response, whichever protocol it is in."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error's code as SDKs show it; empty for a success."""
        if "x-amzn-query-error" in self.headers:
            shape = json.loads(self.body)["__type"]
            assert shape.startswith("com.amazonaws.sqs#"), shape
            return self.headers["x-amzn-query-error"].partition(";")[0]
        found = ET.fromstring(self.body).find("{*}Error/{*}Code") if self._xml else None
        return "" if found is None else str(found.text)

    @property
    def _xml(self) -> bool:
        return self.headers.get("content-type") == "text/xml"

    def all(self, name: str) -> list[str]:
        """Every value of a member, wherever it is in the reply."""
        if not self._xml:
            return [str(value) for value in _walk(json.loads(self.body or b"{}"), name)]
        return [found.text or "" for found in ET.fromstring(self.body).iter() if _is(found, name)]

    def one(self, name: str) -> str:
        """The only value of a member."""
        [value] = self.all(name)
        return value


def _is(element: ET.Element, name: str) -> bool:
    return element.tag.rpartition("}")[2] == name


def _walk(value: Any, name: str) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == name:
                yield item
            elif key in (f"{name}s", f"{name[0].lower()}{name[1:]}s") and isinstance(item, list):
                yield from item
            else:
                yield from _walk(item, name)


def flatten(action: str, members: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Members of a request under the names of the query protocol."""
    found: dict[str, str] = {}
    for name, value in members.items():
        if isinstance(value, dict) and name in _MAPS:
            field, key = _MAPS[name]
            for number, (own, item) in enumerate(value.items(), 1):
                pair = {key: own, "Value": item}
                found |= flatten(action, pair, f"{prefix}{field}.{number}.")
        elif isinstance(value, dict):
            found |= flatten(action, value, f"{prefix}{name}.")
        elif isinstance(value, list):
            field = _LISTS.get(name) or f"{action}RequestEntry"
            for number, item in enumerate(value, 1):
                if isinstance(item, dict):
                    found |= flatten(action, item, f"{prefix}{field}.{number}.")
                else:
                    found[f"{prefix}{field}.{number}"] = str(item)
        elif isinstance(value, bytes):
            found[prefix + name] = base64.b64encode(value).decode()
        else:
            found[prefix + name] = str(value)
    return found


_MAPS = {
    "Attributes": ("Attribute", "Name"),
    "MessageAttributes": ("MessageAttribute", "Name"),
    "MessageSystemAttributes": ("MessageSystemAttribute", "Name"),
    "Tags": ("Tag", "Key"),
    "tags": ("Tag", "Key"),
}
_LISTS = {
    "AttributeNames": "AttributeName",
    "MessageAttributeNames": "MessageAttributeName",
    "TagKeys": "TagKey",
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
}


def _as_json(value: Any) -> str:
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()


@contextmanager
def shifted(seconds: float) -> Iterator[None]:
    """Have botocore's clock go wrong by some seconds."""
    wrong = get_current_datetime() + timedelta(seconds=seconds)
    with mock.patch.object(botocore.auth, "get_current_datetime", return_value=wrong):
        yield


class Asker:
    """Somebody with a key; without one he signs nothing."""

    def __init__(self, port: int, key: str = "", secret: str = "", *, region: str = REGION) -> None:
        self._host = f"127.0.0.1:{port}"
        self._credentials = Credentials(key, secret) if key else None
        self._region = region

    def make(self, protocol: str, action: str, *, path: str = "/", **members: Any) -> Wired:
        """A request, signed in its headers."""
        if protocol == "json":
            body = json.dumps(members, default=_as_json).encode()
            headers = {
                "Content-Type": "application/x-amz-json-1.0",
                "X-Amz-Target": f"AmazonSQS.{action}",
            }
        else:
            fields = {"Action": action, "Version": "2012-11-05", **flatten(action, members)}
            body = urlencode(fields).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        return self.sign(path, headers, body)

    def sign(self, path: str, headers: dict[str, str], body: bytes) -> Wired:
        """Any request, signed in its headers."""
        request = AWSRequest("POST", f"http://{self._host}{path}", headers, body)
        if self._credentials is not None:
            signer = botocore.auth.SigV4Auth(self._credentials, "sqs", self._region)
            signer.add_auth(request)
        signed = {**dict(request.headers.items()), "Host": self._host}
        return Wired("POST", path, signed, body)

    def presign(
        self, action: str, *, path: str = "/", expires_s: int = 60, **members: Any
    ) -> Wired:
        """A request of the query protocol that is nothing but a signed URL."""
        assert self._credentials is not None
        fields = {"Action": action, "Version": "2012-11-05", **flatten(action, members)}
        request = AWSRequest("GET", f"http://{self._host}{path}", params=fields)
        botocore.auth.SigV4QueryAuth(
            self._credentials, "sqs", self._region, expires=expires_s
        ).add_auth(request)
        parts = urlsplit(request.url)
        return Wired("GET", f"{parts.path}?{parts.query}", {"Host": self._host}, b"")

    def send(self, request: Wired) -> Answer:
        """Send a request as it is."""
        host, _, port = self._host.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        try:
            connection.request(
                request.method, request.target, request.body or None, request.headers
            )
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()

    def ask(self, protocol: str, action: str, *, path: str = "/", **members: Any) -> Answer:
        """Make and send."""
        return self.send(self.make(protocol, action, path=path, **members))

    def must(self, protocol: str, action: str, *, path: str = "/", **members: Any) -> Answer:
        """The same, where only a success will do."""
        answer = self.ask(protocol, action, path=path, **members)
        assert answer.status == 200, answer
        return answer


def tampered(request: Wired, **changes: Any) -> Wired:
    """The request with parts of it replaced; `headers` only adds to those there are."""
    if "headers" in changes:
        changes["headers"] = {**request.headers, **changes["headers"]}
    return request._replace(**changes)


#: Verbs of a store that change something, or hand something out.
CHANGING = (
    "create", "configure", "delete", "append", "submit_append", "lease", "acknowledge", "extend",
    "release", "subscribe", "unsubscribe", "claim", "commit", "purge", "put", "remove",
)  # fmt: skip


class Spy:
    """Notes every change that is asked of a store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.seen: list[str] = []
        for verb in CHANGING:
            setattr(store, verb, self._watched(verb, getattr(store, verb)))

    def _watched(self, verb: str, original: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.seen.append(verb)
            return original(*arguments, **options)

        return call

    @contextmanager
    def nothing(self) -> Iterator[None]:
        """Nothing is asked of the store meanwhile."""
        before = len(self.seen)
        yield
        assert self.seen[before:] == []
