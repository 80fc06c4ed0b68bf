"""Bodies that are larger than a datagram, in blocks (RFC 7959): Block1 up, Block2 down.

What is half way is kept here for a while, within limits: uploads beyond them are refused, of
downloads the oldest is given up, and its reader has to begin again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringdove.errors import RemoteProtocolError
from ringdove.protocol.coap.packet import Code, Option, Options, uint

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ringdove.protocol.coap.packet import Packet

#: The largest block: 16 << 6 bytes; an exponent of 7 is reserved.
EXPONENT_MAX = 6
BLOCK_BYTES_MAX = 16 << EXPONENT_MAX

#: Seconds for which the next block of a body is waited for.
PATIENCE_S = 93.0

#: Options that differ between the blocks of one body.
_PER_BLOCK = {Option.BLOCK1, Option.BLOCK2, Option.OBSERVE, Option.SIZE1}


class BlockRefused(RemoteProtocolError):
    """A block that does not fit what came before, or for which there is no room."""

    code = "block_refused"

    def __init__(self, answer: Code, text: str) -> None:
        super().__init__(text)
        #: What to answer.
        self.answer = answer


class Block(NamedTuple):
    """The value of a block option."""

    number: int
    more: bool
    exponent: int

    @property
    def size(self) -> int:
        """Bytes of each block but the last."""
        return 16 << self.exponent

    @property
    def start(self) -> int:
        """Where the block begins in the body."""
        return self.number << self.exponent + 4

    def encode(self) -> bytes:
        """The option's value."""
        return uint(self.number << 4 | self.more << 3 | self.exponent)


def find_block(packet: Packet, option: Option) -> Block | None:
    """The block option of a packet, if it has one; BlockRefused when it is none."""
    value = packet.number(option)
    if value is None:
        return None
    if value & 7 > EXPONENT_MAX or value >= 1 << 24:
        raise BlockRefused(Code.BAD_OPTION, f"{value:#x} is no block: the size is reserved.")
    return Block(value >> 4, bool(value & 8), value & 7)


def body_key(peer: Hashable, packet: Packet) -> Hashable:
    """What all blocks of one body have in common."""
    return peer, packet.code, tuple(o for o in packet.options if o[0] not in _PER_BLOCK)


class _Upload:
    __slots__ = ("body", "seen_s")

    def __init__(self) -> None:
        self.body = bytearray()
        self.seen_s = 0.0


class Uploads:
    """Bodies that are on their way to us."""

    def __init__(self, uploads_max: int, bytes_max: int, body_bytes_max: int) -> None:
        self._uploads_max = uploads_max
        self._bytes_max = bytes_max
        self._body_bytes_max = body_bytes_max
        self._uploads: dict[Hashable, _Upload] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._uploads)

    def take(self, key: Hashable, block: Block, payload: bytes, now_s: float) -> bytes | None:
        """The whole body when this block was its last, None while there is more to come."""
        if block.number == 0:
            self._drop(key)
            self._make_room(now_s)
            self._uploads[key] = _Upload()
        upload = self._uploads.get(key)
        if upload is None or len(upload.body) != block.start:
            self._drop(key)
            raise BlockRefused(
                Code.INCOMPLETE, f"Block {block.number} does not follow the last: begin with 0."
            )
        if block.more and len(payload) != block.size:
            self._drop(key)
            raise BlockRefused(
                Code.BAD_REQUEST,
                f"A block before the last has {block.size} bytes as it says, not {len(payload)}.",
            )
        if len(upload.body) + len(payload) > self._body_bytes_max:
            self._drop(key)
            raise BlockRefused(
                Code.TOO_LARGE, f"A body over CoAP has at most {self._body_bytes_max} bytes."
            )
        upload.seen_s = now_s
        if self.nbytes + len(payload) > self._bytes_max:
            self._drop_stale(now_s)
        if self.nbytes + len(payload) > self._bytes_max:
            self._drop(key)
            raise BlockRefused(Code.UNAVAILABLE, "Too much is being sent in blocks: try later.")
        upload.body += payload
        self.nbytes += len(payload)
        if block.more:
            return None
        return bytes(self._drop(key))

    def _make_room(self, now_s: float) -> None:
        if len(self._uploads) < self._uploads_max:
            return
        self._drop_stale(now_s)
        if len(self._uploads) >= self._uploads_max:
            raise BlockRefused(Code.UNAVAILABLE, "Too many bodies are being sent: try later.")

    def _drop_stale(self, now_s: float) -> None:
        """Forget uploads that nobody has gone on with for long."""
        for key, upload in list(self._uploads.items()):
            if now_s - upload.seen_s > PATIENCE_S:
                self._drop(key)

    def _drop(self, key: Hashable) -> bytearray:
        upload = self._uploads.pop(key, None)
        if upload is None:
            return bytearray()
        self.nbytes -= len(upload.body)
        return upload.body


class Content(NamedTuple):
    """A body that is fetched in blocks, with the options that go with each of them."""

    options: Options
    body: bytes
    #: Told at the end whether the last block was asked for, or the body was given up before.
    when_over: Callable[[bool], None] | None = None


class Downloads:
    """Bodies that others fetch from us."""

    def __init__(self, downloads_max: int, bytes_max: int) -> None:
        self._downloads_max = downloads_max
        self._bytes_max = bytes_max
        self._contents: dict[Hashable, Content] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._contents)

    def keep(self, key: Hashable, content: Content) -> None:
        """Keep a body for those who ask for its further blocks."""
        self._drop(key)
        self._contents[key] = content
        self.nbytes += len(content.body)
        while len(self._contents) > self._downloads_max or self.nbytes > self._bytes_max:
            self._drop(next(iter(self._contents)))

    def find(self, key: Hashable, block: Block) -> Content:
        """The body of which a block is wanted, other than the first."""
        content = self._contents.get(key)
        if content is None or block.start >= len(content.body):
            raise BlockRefused(
                Code.INCOMPLETE, f"There is no block {block.number} (any more): begin with 0."
            )
        if block.start + block.size >= len(content.body):
            self._drop(key, fetched=True)
        return content

    def _drop(self, key: Hashable, *, fetched: bool = False) -> None:
        content = self._contents.pop(key, None)
        if content is not None:
            self.nbytes -= len(content.body)
            if content.when_over is not None:
                content.when_over(fetched)


def cut(content: Content, block: Block) -> tuple[Options, bytes]:
    """Options and payload of one block of a body."""
    end = block.start + block.size
    told = block._replace(more=end < len(content.body))
    return (*content.options, (Option.BLOCK2, told.encode())), content.body[block.start : end]
