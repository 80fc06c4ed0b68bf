"""A client that can misbehave: a plain socket, and frames written and read by hand."""

import socket
import time
from typing import Any, Self

from ringdove import limits
from ringdove.core.block import Block
from ringdove.errors import RingdoveError
from ringdove.protocol import frames, messages
from ringdove.protocol.frames import Frame, FrameDecoder
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import decode_error

#: Long enough that only a hang reaches it.
PATIENCE_S = 60


class Closed(Exception):
    """The server has closed the connection."""


class RawClient:
    """One connection to the native port."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(("127.0.0.1", port))
        self._decoder = FrameDecoder()
        self._decoder.frame_bytes_max = limits.FRAME_BYTES_MAX
        self._arrived: list[Frame] = []

    def write(self, data: bytes) -> None:
        """Write bytes, whatever they are."""
        self.socket.sendall(data)

    def send(self, verb: int, number: int = 0, value: Any = b"", *blocks: Block) -> None:
        """Write a frame."""
        self.write(frame(verb, number, value, *blocks))

    def next(self) -> Frame:
        """The next frame; Closed when there is none."""
        while not self._arrived:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionError as error:
                raise Closed from error
            if not data:
                raise Closed
            self._arrived += self._decoder.feed(data)
        return self._arrived.pop(0)

    def ask(self, verb: int, number: int = 0, value: Any = b"", *blocks: Block) -> Frame:
        """Write a frame; the next frame that comes."""
        self.send(verb, number, value, *blocks)
        return self.next()

    def hello(self, **changes: Any) -> Self:
        """Introduce this client; the server must welcome it."""
        fields: dict[str, Any] = {"version": messages.PROTOCOL_VERSION, "client": "raw", **changes}
        answer = self.ask(Verb.HELLO, 0, messages.Hello(**fields))
        assert answer.verb == Verb.REPLY, error_of(answer)
        messages.decode(messages.Welcome, answer.meta)
        return self

    def goodbye(self) -> RingdoveError:
        """Why the server ends the connection: it must say so, and then do so."""
        answer = self.next()
        assert answer.verb == Verb.GOODBYE
        assert self.closed()
        return error_of(answer)

    def closed(self, within_s: float = PATIENCE_S) -> bool:
        """Whether the server closes the connection in time; frames until then are dropped."""
        deadline_s = time.monotonic() + within_s
        try:
            while (left_s := deadline_s - time.monotonic()) > 0:
                self.socket.settimeout(left_s)
                self.next()
        except Closed:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(PATIENCE_S)
        return False

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def frame(verb: int, number: int = 0, value: Any = b"", *blocks: Block) -> bytes:
    """A frame as bytes; a value that is bytes is the meta itself."""
    meta = value if isinstance(value, bytes) else messages.encode(value)
    return frames.join([frames.encode(verb, number, meta, blocks)])


def error_of(answer: Frame) -> RingdoveError:
    """The error that an ERROR or GOODBYE carries."""
    assert answer.verb in (Verb.ERROR, Verb.GOODBYE)
    return decode_error(answer)
