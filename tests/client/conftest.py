"""The library's tests run in process and against a server: the same calls, the same behaviour.

The server is a real one on a TCP port, in a thread of the test process: so its store can have the
clock that the test moves.
"""

import asyncio
import threading
from contextlib import contextmanager

import pytest

import ringdove
from ringdove.controllers.broker import Broker
from ringdove.frontends.native import NativeServer
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.memory import MemoryStore

#: Seconds for a server to start or to stop; far more than it ever needs.
PATIENCE_S = 30


@pytest.fixture(scope="session")
def server_loop():
    """An event loop in a thread, on which all servers of the session run."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="servers", daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    loop.close()


@contextmanager
def serving(loop, store):
    """The URL of a server for `store`."""
    broker = Broker(store)
    server = NativeServer(broker, loop)

    async def close():
        await server.close()
        await broker.close()

    def finish(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE_S)

    try:
        yield f"ringdove://127.0.0.1:{finish(server.listen('127.0.0.1', 0))}"
    finally:
        finish(close())


@pytest.fixture(params=["memory", "file", "fabric", "server"])
def rd(request, tmp_path, clock):
    """A connection to a fresh store of any kind, or to a server, under a manual clock."""
    if request.param == "server":
        loop = request.getfixturevalue("server_loop")
        with (
            serving(loop, MemoryStore(clock)) as url,
            ringdove.connect(url, clock=clock) as connection,
        ):
            yield connection
        return
    url = "memory:" if request.param == "memory" else f"file:{tmp_path}/data"
    if request.param == "fabric":
        redis = request.getfixturevalue("redis")
        redis.flush()
        url = redis.url
    with ringdove.connect(url, clock=clock) as connection:
        yield connection


@pytest.fixture(params=["file", "server"])
def url(request, tmp_path):
    """Where queues are on disk, under the real clock: in this process or on a server."""
    if request.param == "file":
        yield f"file:{tmp_path}/data"
        return
    loop = request.getfixturevalue("server_loop")
    with serving(loop, EmbeddedStore(tmp_path / "data")) as url:
        yield url
