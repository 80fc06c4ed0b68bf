"""A server that speaks CoAP, a queue on it, and a device."""

import itertools
from collections.abc import Iterator

import pytest

import ringdove
from coap.device import Device
from server.running import ServerThread


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(
        tmp_path_factory.mktemp("coap") / "data", coap=0, coap_rate=100_000
    ) as running:
        yield running


@pytest.fixture(scope="module")
def rd(server: ServerThread) -> Iterator[ringdove.Connection]:
    with ringdove.connect(server.url) as connection:
        yield connection


_numbers = itertools.count()


@pytest.fixture
def queue(rd: ringdove.Connection) -> ringdove.Queue:
    """A queue of the test's own."""
    return rd.create_queue(f"queue-{next(_numbers)}")


@pytest.fixture
def device(server: ServerThread) -> Iterator[Device]:
    with Device(server.server.coap_port) as found:
        yield found


@pytest.fixture(scope="module")
def port(server: ServerThread) -> int:
    return server.server.coap_port
