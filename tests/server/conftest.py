"""Fixtures of the tests that need a server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ringdove
from ringdove.client import link
from ringdove.frontends.connection import Connection
from server.bad_network import BadNetwork
from server.running import ServerProcess, ServerThread


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    """A server in a thread of this process."""
    with ServerThread(tmp_path / "data") as running:
        yield running


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server in a process of its own."""
    with ServerProcess(tmp_path / "data") as running:
        yield running


@pytest.fixture
def rd(server: ServerThread) -> Iterator[ringdove.Connection]:
    """A well-behaved client of `server`."""
    with ringdove.connect(server.url) as connection:
        yield connection


@pytest.fixture
def network(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadNetwork]:
    """A way to `server` that can be harmed; who is cut off again and again comes back at once."""
    monkeypatch.setattr(link, "_BACKOFF_S_MAX", link._BACKOFF_S)
    with BadNetwork(server.port) as running:
        yield running


@pytest.fixture
def lose_next_answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Have the connection break instead of the next answer, once the request was served."""
    armed: list[bool] = []
    answer = Connection.answer

    def lossy(self: Connection, *rest: Any) -> None:
        if armed:
            armed.clear()
            assert self._transport is not None
            self._transport.abort()
            return
        answer(self, *rest)

    monkeypatch.setattr(Connection, "answer", lossy)
    yield lambda: armed.append(True)
    assert not armed, "no answer was lost"
