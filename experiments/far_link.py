"""A link to a far region: everything takes its time in both directions, and is counted."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

from experiments.pipelined import HOST
from ringdove.bench.measure import run_loop
from ringdove.bench.processes import wait_for_go

_CHUNK_BYTES = 1 << 18


class FarLink:
    """A proxy on its loop; `carried` has the bytes towards the far side and back."""

    def __init__(self, target: int, delay_s: float) -> None:
        self.carried = {"out": 0, "back": 0}
        self._target = target
        self._delay_s = delay_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, port: int, ready: threading.Event, stop: asyncio.Event) -> None:
        """Listen until told to stop."""
        listener = await asyncio.start_server(self._accept, HOST, port, backlog=4096)
        ready.set()
        await stop.wait()
        listener.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
        for source, target, way in (
            (reader, far_writer, "back"),
            (far_reader, writer, "out"),
        ):
            task = asyncio.create_task(self._carry(source, target, way))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: str
    ) -> None:
        loop = asyncio.get_running_loop()
        under_way: deque[bytes] = deque()

        def arrive() -> None:
            if not target.is_closing():
                target.write(under_way.popleft())

        while data := await source.read(_CHUNK_BYTES):
            self.carried[way] += len(data)
            under_way.append(data)
            loop.call_later(self._delay_s, arrive)
        target.close()


def run(*, port: int, target: int, delay_s: float) -> dict[str, Any]:
    """In a worker: carry until told to go; answers what was carried."""
    link = FarLink(target, delay_s)
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await link.serve(port, ready, stop)

    thread = threading.Thread(target=lambda: run_loop(serve()))
    thread.start()
    ready.wait()
    wait_for_go()
    loops[0].call_soon_threadsafe(stop.set)
    thread.join()
    return link.carried
