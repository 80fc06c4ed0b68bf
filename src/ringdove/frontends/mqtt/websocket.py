"""MQTT over WebSocket: a transport that wraps another one, so that connections are all alike."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from ringdove import limits
from ringdove.errors import RemoteProtocolError
from ringdove.frontends.exchange import is_local
from ringdove.protocol.websocket import FrameStream, Handshake, close_frame, frame

if TYPE_CHECKING:
    from ringdove.frontends.mqtt.connection import Connection

PATH = "/mqtt"
_PROTOCOLS = ("mqtt", "mqttv3.1")


class WebSocket(asyncio.Protocol, asyncio.Transport):
    """The protocol of a socket, and the transport of an MQTT connection."""

    def __init__(self, connection: Connection, *, local: bool) -> None:
        """`local`: on an address that only this machine reaches."""
        super().__init__()
        self._connection = connection
        self._local = local
        self._handshake: Handshake | None = Handshake(PATH, _PROTOCOLS)
        self._frames = FrameStream(limits.MQTT_PACKET_BYTES_MAX)
        self._below: asyncio.Transport

    # -- from below -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._below = cast("asyncio.Transport", transport)
        self._connection.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._connection.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._handshake is not None:
            self._below.write(self._handshake.feed(data))
            if self._handshake.accepted is None:
                return
            if not self._handshake.accepted:
                self._below.close()
                return
            self._connection.foreign = self._local and not _is_own(self._handshake.origin)
            data, self._handshake = self._handshake.rest, None
        try:
            payload = self._frames.feed(data)
        except RemoteProtocolError:
            self._below.write(close_frame(protocol_error=True))
            self._below.close()
            return
        if payload:
            self._connection.data_received(payload)
        if self._frames.answers:
            self._below.write(self._frames.answers)
            self._frames.answers = b""
        if self._frames.closed:
            self._below.close()

    def eof_received(self) -> bool:
        """See asyncio."""
        return False

    def pause_writing(self) -> None:
        """See asyncio."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._connection.resume_writing()

    # -- from above -----------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio."""
        self._below.write(frame(bytes(data)))

    def close(self) -> None:
        """See asyncio."""
        if not self._below.is_closing():
            if self._handshake is None and not self._frames.closed:
                self._below.write(close_frame())
            self._below.close()

    def abort(self) -> None:
        """See asyncio."""
        self._below.abort()

    def pause_reading(self) -> None:
        """See asyncio."""
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """See asyncio."""
        self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        self._below.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio."""
        return self._below.get_extra_info(name, default)


def _is_own(origin: str) -> bool:
    """Whether a program asks, or a page of this machine: browsers let pages connect anywhere."""
    try:
        return not origin or is_local(urlsplit(origin).hostname or "")
    except ValueError:
        return False
