"""Work that goes on beside a server's, until it is closed."""

from __future__ import annotations

import asyncio
import contextlib


class Background:
    """Runs `run` on the loop from `start` to `close`."""

    _task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """What goes on; ends only by being cancelled."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task = asyncio.create_task(self.run())

    async def close(self) -> None:
        """End it. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
