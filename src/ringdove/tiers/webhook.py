"""Tells an HTTP server of alarms: each is a POST of JSON, tried a few times.

It has the fields of `Alarm`, and `event`, which is "raised" or "cleared".
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from ringdove.errors import InvalidArgument
from ringdove.version import __version__

if TYPE_CHECKING:
    from ringdove.tiers.alarms import Alarm

_log = logging.getLogger(__name__)

#: Alarms that wait for the server; the oldest goes when there are more.
QUEUE_MAX = 1_000

#: Seconds for one attempt, and before each of those that follow the first.
_ATTEMPT_S = 5.0
RETRY_S = (0.5, 2.0, 8.0)


class Webhook:
    """Posts alarms one after the other. `run` does the work."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgument(f"The webhook is {url!r}; write http://HOST:PORT/PATH or https.")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
            f"User-Agent: ringdove/{__version__}\r\nContent-Type: application/json\r\n"
            "Connection: close\r\nContent-Length: "
        )
        self._waiting: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        #: Counters since the start; those given up were tried in vain or had no room.
        self.posted = 0
        self.given_up = 0

    def tell(self, event: str, alarm: Alarm) -> None:
        """Have an alarm posted."""
        if len(self._waiting) >= QUEUE_MAX:
            self._waiting.popleft()
            self.given_up += 1
        self._waiting.append(msgspec.json.encode({"event": event, **msgspec.to_builtins(alarm)}))
        self._arrived.set()

    async def run(self) -> None:
        """Post, until cancelled."""
        while True:
            while self._waiting:
                await self._post(self._waiting.popleft())
            self._arrived.clear()
            await self._arrived.wait()

    async def _post(self, body: bytes) -> None:
        for pause_s in (*RETRY_S, None):
            try:
                async with asyncio.timeout(_ATTEMPT_S):
                    status = await self._attempt(body)
                if 200 <= status < 300:
                    self.posted += 1
                    return
                reason = f"it answered {status}"
            except (OSError, TimeoutError, ValueError) as error:
                reason = str(error) or "it did not answer in time"
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        self.given_up += 1
        _log.warning("The webhook at %s:%d was not told: %s.", self._host, self._port, reason)

    async def _attempt(self, body: bytes) -> int:
        """Post once; answers the status."""
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            writer.write(f"{self._head}{len(body)}\r\n\r\n".encode() + body)
            line = await reader.readline()
            version, _, rest = line.partition(b" ")
            if not version.startswith(b"HTTP/1."):
                raise ValueError(f"it is no HTTP server: {line[:80]!r}")
            return int(rest[:3])
        finally:
            writer.close()
