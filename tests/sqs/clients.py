"""Clients for the tests of the SQS dialect: boto3 in both protocols, and bare HTTP beside it.

boto3 speaks JSON today. For the older query protocol it is given the same description of the API,
with the names of that protocol put back in. Parameters are not checked on this side: what is
missing or wrong must be refused by the server.
"""

import http.client
import itertools
import json
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import boto3
import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.loaders import Loader
from botocore.serialize import create_serializer

from server.running import ServerThread

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
ACCOUNT = "000000000000"
REGION = "eu-north-1"

#: How the query protocol names what lists and maps repeat, where it is not the shape's own name.
_LISTS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BinaryList": "BinaryListValue",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
_MAPS = {
    "MessageBodyAttributeMap": ("MessageAttribute", "Name"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name"),
    "MessageSystemAttributeMap": ("Attribute", "Name"),
    "QueueAttributeMap": ("Attribute", "Name"),
    "TagMap": ("Tag", "Key"),
}

#: The JSON protocol's name of an error by the code that boto3 shows, where they differ; and the
#: HTTP status, where it is not 400.
SHAPES = {
    "InvalidParameterValue": "InvalidParameterValueException",
    "MissingParameter": "MissingRequiredParameterException",
    "QueueAlreadyExists": "QueueNameExists",
    "AWS.SimpleQueueService.NonExistentQueue": "QueueDoesNotExist",
    "AccessDenied": "AccessDeniedException",
}
STATUS = {
    "AWS.SimpleQueueService.PurgeQueueInProgress": 403,
    "OverLimit": 403,
    "RequestThrottled": 403,
    "AccessDenied": 403,
    "ResourceNotFoundException": 404,
}

NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


def protocol_of(sqs: Any) -> str:
    """Which protocol a client speaks."""
    return str(sqs.meta.service_model.metadata["protocol"])


def no_queue_text(sqs: Any) -> str:
    """What the protocol of a client says for a queue that does not exist."""
    if protocol_of(sqs) == "json":
        return "The specified queue does not exist."
    return "The specified queue does not exist for this wsdl version."


def query_model(model: dict[str, Any]) -> dict[str, Any]:
    """The description of the API as it was for the query protocol."""
    metadata = {"protocol": "query", "protocols": ["query"], "xmlNamespace": NAMESPACE.strip("{}")}
    drop = ("awsQueryCompatible", "jsonVersion", "targetPrefix")
    kept = {name: value for name, value in model["metadata"].items() if name not in drop}
    found = json.loads(json.dumps({**model, "metadata": {**kept, **metadata}}))
    for name, shape in found["shapes"].items():
        if shape["type"] == "list":
            shape["member"]["locationName"] = _LISTS.get(name) or shape["member"]["shape"]
        elif shape["type"] == "map":
            shape["locationName"], shape["key"]["locationName"] = _MAPS[name]
            shape["value"]["locationName"] = "Value"
    for operation in found["operations"].values():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{operation['name']}Result"
    return found


class BotoClients:
    """Makes clients of boto3, in either protocol."""

    def __init__(self, folder: Path) -> None:
        model = Loader().load_service_model("sqs", "service-2")
        where = folder / "sqs" / model["metadata"]["apiVersion"]
        where.mkdir(parents=True)
        (where / "service-2.json").write_text(json.dumps(query_model(model)))
        self._loaders = {
            "json": Loader(),
            "query": Loader(extra_search_paths=[str(folder)]),
        }

    def make(
        self, protocol: str, server: ServerThread, key: str = "anybody", **options: Any
    ) -> Any:
        """A client of a server, as a boto3 user gets it."""
        session = botocore.session.Session()
        session.register_component("data_loader", self._loaders[protocol])
        chosen = {"aws_secret_access_key": "any", "region_name": REGION, **options}
        return boto3.Session(botocore_session=session).client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{server.http_port}",
            aws_access_key_id=key,
            config=Config(
                retries={"total_max_attempts": 1},
                parameter_validation=False,
                max_pool_connections=20,
                read_timeout=60,
            ),
            **chosen,
        )


def form_of(query_sqs: Any, action: str, members: dict[str, Any]) -> dict[str, str]:
    """The fields of a query request that asks the same as a JSON request with these members."""
    operation = query_sqs.meta.service_model.operation_model(action)
    serializer = create_serializer("query", include_validation=False)
    return dict(serializer.serialize_to_request(members, operation)["body"])


_numbers = itertools.count(1)


def fresh_name(prefix: str = "q", *, fifo: bool = False) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{next(_numbers):04d}" + (".fifo" if fifo else "")


class Queue:
    """One queue, as a client sees it; replies come without boto3's metadata."""

    def __init__(self, sqs: Any, url: str) -> None:
        self.sqs = sqs
        self.url = url
        self.name = url.rpartition("/")[2]

    def call(self, method: str, **options: Any) -> dict[str, Any]:
        """Anything that can be asked of a queue."""
        return bare(getattr(self.sqs, method)(QueueUrl=self.url, **options))

    @property
    def arn(self) -> str:
        return self.attribute("QueueArn")

    # -- messages -------------------------------------------------------------------------------

    def send(self, body: str = "hello", group: str | None = None, **options: Any) -> dict[str, Any]:
        if group is not None:
            options["MessageGroupId"] = group
        return self.call("send_message", MessageBody=body, **options)

    def send_all(self, *bodies: str) -> None:
        """Send messages in one batch; 'a/1' goes to group 'a' of a FIFO queue."""
        entries = [{"Id": str(i), "MessageBody": body} for i, body in enumerate(bodies)]
        for entry in entries:
            if self.name.endswith(".fifo"):
                entry["MessageGroupId"] = entry["MessageBody"].partition("/")[0]
        assert "Failed" not in self.send_batch(*entries)

    def send_batch(self, *entries: dict[str, Any]) -> dict[str, Any]:
        return self.call("send_message_batch", Entries=list(entries))

    def receive(self, count: int = 10, **options: Any) -> list[dict[str, Any]]:
        return self.call("receive_message", MaxNumberOfMessages=count, **options).get(
            "Messages", []
        )

    def one(self, **options: Any) -> dict[str, Any]:
        """The next message; fails when there is none."""
        [message] = self.receive(1, **options)
        return message

    def bodies(self, count: int = 10, **options: Any) -> list[str]:
        return [message["Body"] for message in self.receive(count, **options)]

    def delete(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.call("delete_message", ReceiptHandle=message["ReceiptHandle"])

    def hide(self, message: dict[str, Any], seconds: int) -> dict[str, Any]:
        """Change how long a message stays invisible."""
        handle = message["ReceiptHandle"]
        return self.call(
            "change_message_visibility", ReceiptHandle=handle, VisibilityTimeout=seconds
        )

    # -- attributes -----------------------------------------------------------------------------

    def attributes(self, *names: str) -> dict[str, str]:
        return self.call("get_queue_attributes", AttributeNames=list(names)).get("Attributes", {})

    def attribute(self, name: str) -> str:
        return self.attributes(name)[name]

    def set(self, **attributes: str) -> None:
        self.call("set_queue_attributes", Attributes=attributes)

    def redrive_to(self, target: "Queue", receives: int = 1) -> None:
        policy = {"deadLetterTargetArn": target.arn, "maxReceiveCount": receives}
        self.set(RedrivePolicy=json.dumps(policy))

    def counts(self) -> tuple[int, int, int]:
        """Messages that are visible, in flight and delayed."""
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
        found = self.attributes(*names)
        visible, hidden, delayed = (int(found[name]) for name in names)
        return visible, hidden, delayed


def bare(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without what boto3 adds."""
    status = reply.pop("ResponseMetadata")["HTTPStatusCode"]
    assert status == 200
    return reply


@contextmanager
def refused(code: str, message: str | None = None) -> Iterator[None]:
    """Insist that what is inside is refused, in the full form that the protocol has for it."""
    with pytest.raises(ClientError) as caught:
        yield
    response = caught.value.response
    error = response["Error"]
    assert error["Code"] == code, error
    assert error["Type"] == "Sender"
    if message is not None:
        assert error["Message"] == message
    assert response["ResponseMetadata"]["HTTPStatusCode"] == STATUS.get(code, 400)
    if "QueryErrorCode" in error:
        shape = code.removeprefix("AWS.SimpleQueueService.")
        assert error["QueryErrorCode"] == SHAPES.get(code, shape)
    else:
        assert "Detail" in error
        assert not error["Detail"]


def later(server: ServerThread, seconds: float) -> None:
    """Let time pass for the server."""
    clock = server.server._broker.store.clock
    clock.advance_to(clock.now_ms() + int(seconds * 1000))


def parked(server: ServerThread) -> int:
    """Receivers that wait."""
    return int(server.server._broker.dequeuer.parked)


def meanwhile(call: Callable[[], Any]) -> "Future[Any]":
    """Do something in a thread; its result is awaited with `result`."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


# -- bare HTTP ------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str | None:
        return self.headers["content-type"]

    @property
    def xml(self) -> ET.Element:
        return ET.fromstring(self.body)

    def all(self, tag: str) -> list[str]:
        """The texts of the elements of that name."""
        return [element.text or "" for element in self.xml.iter(NAMESPACE + tag)]

    @property
    def error(self) -> tuple[int, str, str]:
        """Status, code and message of an error in XML."""
        [code], [message] = self.all("Code"), self.all("Message")
        return self.status, code, message

    @property
    def json_error(self) -> tuple[int, str, str]:
        """Status, kind and message of an error in JSON."""
        told = self.json
        return self.status, told["__type"].partition("#")[2], told["message"]


class Wire:
    """A bare HTTP client."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.base = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(
        self, action: str, at: str = "/", /, accept: str | None = None, **fields: Any
    ) -> Answer:
        """A query request in the query string; `at` is a path or a URL."""
        headers = {} if accept is None else {"Accept": accept}
        return self.ask("GET", f"{path_of(at)}?{_form(action, fields)}", **headers)

    def post(self, action: str, at: str = "/", /, **fields: Any) -> Answer:
        """A query request as a form."""
        kind = "application/x-www-form-urlencoded; charset=utf-8"
        return self.ask("POST", path_of(at), _form(action, fields).encode(), Content_Type=kind)

    def post_bare(self, action: str, at: str = "/", /, **fields: Any) -> Answer:
        """A query request by POST, with everything in the query string."""
        return self.ask("POST", f"{path_of(at)}?{_form(action, fields)}")

    def json(self, action: str, members: Any = None, at: str = "/", **headers: str) -> Answer:
        """A JSON request."""
        named = {
            "X-Amz-Target": f"AmazonSQS.{action}",
            "Content-Type": "application/x-amz-json-1.0",
            **headers,
        }
        body = members if isinstance(members, bytes) else json.dumps(members or {}).encode()
        return self.ask("POST", path_of(at), body, **named)


def path_of(url: str) -> str:
    return urlsplit(url).path


def _form(action: str, fields: dict[str, Any]) -> str:
    """Fields of a form; 'Tag_1_Key' is written for 'Tag.1.Key'."""
    named = {name.replace("_", "."): value for name, value in fields.items()}
    return urlencode({"Action": action, **named})


def texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]
