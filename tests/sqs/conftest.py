"""A server for each module, and clients of it in both protocols."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from server.running import ServerThread
from sqs.clients import BotoClients, Queue, Wire, fresh_name


@pytest.fixture(scope="session")
def boto(tmp_path_factory: pytest.TempPathFactory) -> BotoClients:
    """What makes clients."""
    return BotoClients(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server in a thread of this process, shared by the tests of a module."""
    with ServerThread(tmp_path_factory.mktemp("server") / "data", port=-1) as running:
        yield running


@pytest.fixture(scope="module", params=["json", "query"])
def sqs(request: pytest.FixtureRequest, server: ServerThread, boto: BotoClients) -> Iterator[Any]:
    """boto3 in each of the protocols."""
    client = boto.make(request.param, server)
    yield client
    client.close()


@pytest.fixture(scope="module")
def json_sqs(server: ServerThread, boto: BotoClients) -> Iterator[Any]:
    """boto3 as it comes."""
    client = boto.make("json", server)
    yield client
    client.close()


@pytest.fixture(scope="module")
def query_sqs(server: ServerThread, boto: BotoClients) -> Iterator[Any]:
    """boto3 as it was."""
    client = boto.make("query", server)
    yield client
    client.close()


@pytest.fixture
def make(sqs: Any) -> Callable[..., Queue]:
    """Makes queues: make(fifo=True, VisibilityTimeout="1")."""
    return maker(sqs)


def maker(sqs: Any) -> Callable[..., Queue]:
    """What makes queues through a client."""

    def make(*, fifo: bool = False, **attributes: str) -> Queue:
        if fifo:
            attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", **attributes}
        reply = sqs.create_queue(QueueName=fresh_name(fifo=fifo), Attributes=attributes)
        return Queue(sqs, reply["QueueUrl"])

    return make


@pytest.fixture
def queue(make: Callable[..., Queue]) -> Queue:
    """A standard queue."""
    return make()


@pytest.fixture
def fifo(make: Callable[..., Queue]) -> Queue:
    """A FIFO queue that tells duplicates by their content."""
    return make(fifo=True)


@pytest.fixture
def wire(server: ServerThread) -> Wire:
    """A bare HTTP client."""
    return Wire(server.http_port)


@pytest.fixture
def place(json_sqs: Any) -> Queue:
    """A standard queue for bare HTTP requests."""
    return maker(json_sqs)()
