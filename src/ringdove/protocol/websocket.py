"""The server's side of a WebSocket (RFC 6455) that carries a stream of bytes, without I/O.

`Handshake` reads the request and gives the answer; then `FrameStream` takes frames apart: it gives
the bytes that the client sent, in pieces of any size, and what must be answered at once. Text
frames are refused, as MQTT asks; messages may be cut into frames anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import Final

from ringdove.errors import RemoteProtocolError

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA
_FINAL: Final = 0x80
_MASKED: Final = 0x80
_CONTROL_BYTES_MAX: Final = 125

#: Bytes of a request that asks for a WebSocket.
HEAD_BYTES_MAX: Final = 16 * 1024

#: Status codes of a close frame.
_NORMAL, _PROTOCOL_ERROR = 1000, 1002


class Handshake:
    """Reads one HTTP request."""

    def __init__(self, path: str, protocols: tuple[str, ...]) -> None:
        self._path = path
        self._protocols = protocols
        self._head = b""
        #: What came behind the request.
        self.rest = b""
        #: Whether the request was a good one; None until it has come.
        self.accepted: bool | None = None
        #: Where the page is from that asks, as its browser says; empty if it is none that asks.
        self.origin = ""

    def feed(self, data: bytes) -> bytes:
        """Take bytes; the answer, once the request is complete."""
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > HEAD_BYTES_MAX:
                return self._refuse(b"431 Request Header Fields Too Large")
            return b""
        head, self.rest = self._head[:end], self._head[end + 4 :]
        self._head = b""
        return self._answer(head.split(b"\r\n"))

    def _answer(self, lines: list[bytes]) -> bytes:
        words = lines[0].split(b" ")
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        if len(words) != 3 or words[0] != b"GET":
            return self._refuse(b"405 Method Not Allowed")
        if words[1].partition(b"?")[0].decode("latin-1") not in (self._path, f"{self._path}/"):
            return self._refuse(b"404 Not Found")
        key = headers.get(b"sec-websocket-key", b"")
        if b"websocket" not in headers.get(b"upgrade", b"").lower() or not key:
            return self._refuse(b"426 Upgrade Required")
        if headers.get(b"sec-websocket-version") != b"13":
            return self._refuse(b"426 Upgrade Required\r\nSec-WebSocket-Version: 13")
        offered = headers.get(b"sec-websocket-protocol", b"").decode("latin-1").split(",")
        wanted = [name.strip() for name in offered if name.strip() in self._protocols]
        if not wanted:
            return self._refuse(b"400 Bad Request")
        self.accepted = True
        self.origin = headers.get(b"origin", b"").decode("latin-1")
        accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        return (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n"
            b"Sec-WebSocket-Protocol: " + wanted[0].encode() + b"\r\n\r\n"
        )

    def _refuse(self, status: bytes) -> bytes:
        self.accepted = False
        return b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class FrameStream:
    """Takes frames apart. Holds at most one that is not complete."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        #: What must be sent at once: pongs, and the answer to a close.
        self.answers = b""
        self.closed = False
        #: Whether a message has begun and not ended.
        self._within = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes; the payload that is complete. Raises RemoteProtocolError."""
        self._rest += data
        found = []
        while not self.closed and (frame := self._next()) is not None:
            first, payload = frame
            found.append(self._take(first, payload))
        return b"".join(found)

    def _next(self) -> tuple[int, bytes] | None:
        rest = self._rest
        if len(rest) < 2:
            return None
        first, second = rest[0], rest[1]
        if first & 0x70 or not second & _MASKED:
            raise RemoteProtocolError("A frame of a client is masked and has no reserved bits.")
        length, at = second & 0x7F, 2
        if length >= 126:
            at = 4 if length == 126 else 10
            if len(rest) < at:
                return None
            length = int.from_bytes(rest[2:at], "big")
        if length > self._frame_bytes_max:
            raise RemoteProtocolError(f"A frame of {length} bytes exceeds the limit.")
        if len(rest) < at + 4 + length:
            return None
        payload = _unmask(bytes(rest[at + 4 : at + 4 + length]), bytes(rest[at : at + 4]))
        del rest[: at + 4 + length]
        return first, payload

    def _take(self, first: int, payload: bytes) -> bytes:
        kind = first & 0x0F
        if kind >= _CLOSE:
            if len(payload) > _CONTROL_BYTES_MAX or not first & _FINAL:
                raise RemoteProtocolError("A control frame is short and whole.")
            if kind == _PING:
                self.answers += frame(payload, _PONG)
            elif kind == _CLOSE:
                self.closed = True
                self.answers += frame(payload[:2] or struct.pack(">H", _NORMAL), _CLOSE)
            elif kind != _PONG:
                raise RemoteProtocolError(f"There is no frame of kind {kind}.")
            return b""
        if kind not in (_BINARY, _CONTINUATION) or (kind == _CONTINUATION) != self._within:
            raise RemoteProtocolError("MQTT comes in binary frames, one message after the other.")
        self._within = not first & _FINAL
        return payload


def _unmask(payload: bytes, mask: bytes) -> bytes:
    """The payload without its mask: one exclusive or of two long numbers."""
    count = len(payload)
    pattern = (mask * (count // 4 + 1))[:count]
    unmasked = int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")
    return unmasked.to_bytes(count, "big")


def frame(payload: bytes, kind: int = _BINARY) -> bytes:
    """A frame from the server."""
    count = len(payload)
    if count < 126:
        head = bytes((_FINAL | kind, count))
    elif count < 1 << 16:
        head = struct.pack(">BBH", _FINAL | kind, 126, count)
    else:
        head = struct.pack(">BBQ", _FINAL | kind, 127, count)
    return head + payload


def close_frame(*, protocol_error: bool = False) -> bytes:
    """The last frame from the server."""
    return frame(struct.pack(">H", _PROTOCOL_ERROR if protocol_error else _NORMAL), _CLOSE)
