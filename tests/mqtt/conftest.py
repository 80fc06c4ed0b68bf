"""A server with an MQTT port, and clients of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ringdove
from mqtt.wire import Wire
from ringdove.protocol.mqtt.packets import V5, V311
from server.running import ServerThread


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server in a thread of this process, shared by the tests of a module."""
    path = tmp_path_factory.mktemp("server") / "data"
    with ServerThread(path, http=-1, mqtt=0) as running:
        yield running


@pytest.fixture
def rd(server: ServerThread) -> Iterator[ringdove.Connection]:
    """A client of the queues."""
    with ringdove.connect(server.url) as connection:
        yield connection


@pytest.fixture(params=[V311, V5], ids=["3.1.1", "5"])
def version(request: pytest.FixtureRequest) -> int:
    """Each version of MQTT."""
    return request.param


@pytest.fixture
def client(server: ServerThread, version: int) -> Iterator[Callable[..., Wire]]:
    """Makes connected clients of the version."""
    made: list[Wire] = []

    def make(client_id: str = "", **fields: Any) -> Wire:
        wire = Wire(server.server.mqtt_port, version)
        made.append(wire)
        wire.connect(client_id, **fields)
        return wire

    yield make
    for wire in made:
        wire.socket.close()


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    name = "".join(sign if sign.isalnum() else "_" for sign in request.node.name)
    return f"t_{name[-60:]}"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., ServerThread]]:
    """Makes servers with settings of their own, over one directory."""
    made: list[ServerThread] = []

    def make(**options: Any) -> ServerThread:
        server = ServerThread(tmp_path / "data", http=-1, mqtt=0, **options)
        made.append(server)
        return server

    yield make
    for server in made:
        server.stop()
