"""Servers that speak REST."""

from collections.abc import Iterator

import pytest

from rest.caller import Caller, QueueCaller
from ringdove.frontends.rest.api import RestApi
from server.running import ServerThread


@pytest.fixture(scope="module")
def lasting() -> Iterator[ServerThread]:
    """A server in a thread of this process, without a disk, for all tests of a module."""
    with ServerThread("nowhere", port=-1, memory=True) as running:
        serve_rest(running)
        yield running


@pytest.fixture
def server(lasting: ServerThread) -> Iterator[ServerThread]:
    """The server, without queues and with the usual options."""
    dialects = lasting.server._http.dialects
    usual = dialects["v1"]
    yield lasting
    dialects["v1"] = usual
    lasting.call(forget_all(lasting))


async def forget_all(running: ServerThread) -> None:
    broker = running.server._broker
    for info in await broker.list_queues():
        await broker.delete_queue(info.name)


def serve_rest(running: ServerThread, **options: object) -> RestApi:
    """Have a server answer below /v1, with these options."""
    api = RestApi(running.server._broker, **options)
    running.server._http.dialects["v1"] = api.respond
    return api


@pytest.fixture
def rest(server: ServerThread) -> Caller:
    """A client of the server."""
    return Caller(server.http_port)


@pytest.fixture
def queue(rest: Caller) -> QueueCaller:
    """A queue with the usual settings."""
    return QueueCaller(rest, "readings").create()
