"""Frames of the native protocol: the envelope of every request, answer and pushed block.

    0        4        8        12    13     14      16       20
    | length | meta   | number | verb| flags| magic | check  | meta ... | blocks ...
    | u32    | u32    | u32    | u8  | u8   | "Rd"  | xxh32  |          |

`length` counts everything after the header. Of that, `meta` bytes are the verb's MessagePack value
(messages.py); the rest is whole blocks, one after the other, each with its own checksums
(core/block.py). `check` covers the header before it and the meta, so every byte on the wire is
covered once. `number` is chosen by whoever asks and repeated in the answer. Little-endian.

`FrameDecoder` takes bytes as they come, in pieces of any size. Small frames are cut from a buffer
that all connections of a loop may share; a large one is received straight into memory of its own,
of which it uses as much as has really arrived, whatever its header announces.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from ringdove import limits
from ringdove.core.block import HEADER_BYTES as BLOCK_HEADER_BYTES
from ringdove.core.block import Block, block_bytes
from ringdove.core.tuples import maker
from ringdove.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ringdove.core.columns import Buffer

MAGIC: Final = b"Rd"
FRAME_HEADER_BYTES: Final = 20

_HEADER = struct.Struct("<IIIBB2s")
#: Length, bytes of meta, number, verb, flags, magic.
_Header = tuple[int, int, int, int, int, bytes]
_CHECK = struct.Struct("<I")


class Frame(NamedTuple):
    """One frame as received. The buffers belong to the frame."""

    verb: int
    number: int
    flags: int
    meta: Buffer
    blob: Buffer


_frame = maker(Frame)


def encode(
    verb: int, number: int, meta: bytes, blocks: Sequence[Block] = (), flags: int = 0
) -> list[Buffer]:
    """A frame as buffers to be written one after the other; only small blocks are copied."""
    length = meta_bytes = len(meta)
    buffers: list[Buffer] = []
    for block in blocks:
        buffers.append(block.buffer)
        length += block.nbytes
    header = _HEADER.pack(length, meta_bytes, number, verb, flags, MAGIC)
    head = header + _CHECK.pack(xxhash.xxh32_intdigest(header + meta)) + meta
    if length > JOIN_BYTES_MAX:
        return [head, *buffers]
    # One write is one system call, and wakes one reader.
    return [b"".join((head, *buffers))] if buffers else [head]


class FrameDecoder:
    """Cuts a stream of bytes into frames.

    Use either `feed`, or `get_buffer` and `wrote` to receive without copying: write up to the
    buffer's length into it, then say how much. Raises RemoteProtocolError for bytes that are no
    frame; the stream cannot go on after that.
    """

    __slots__ = (
        "_filled", "_large", "_rest", "_scratch", "_total", "failure", "frame_bytes_max",
    )  # fmt: skip

    def __init__(self, scratch: bytearray | None = None) -> None:
        #: Bytes after the header that one frame may have; small until the peer has said hello.
        self.frame_bytes_max = limits.FRAME_BYTES_MAX_BEFORE_HELLO
        self._scratch = memoryview(scratch if scratch is not None else bytearray(SCRATCH_BYTES))
        #: What is left of a frame whose end has not come, unless it is large.
        self._rest = b""
        #: Room for a large frame, header included, how much has come and how much there will be.
        self._large: memoryview | None = None
        self._filled = 0
        self._total = 0
        #: What is wrong behind the frames that were handed out last.
        self.failure: RemoteProtocolError | None = None

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._rest) or self._large is not None

    @property
    def partial_bytes(self) -> int:
        """How much of that frame has come."""
        return self._filled if self._large is not None else len(self._rest)

    def get_buffer(self) -> memoryview:
        """Where the next bytes go."""
        return self._scratch if self._large is None else self._large[self._filled :]

    def wrote(self, count: int) -> list[Frame]:
        """Note that `count` bytes were written to the buffer; the frames that are now complete.

        When something is wrong behind them, `failure` says so: to be raised when they are taken
        care of.
        """
        if self.failure is not None:
            raise self.failure
        if self._large is None:
            return self._cut(self._scratch[:count])
        self._filled += count
        if self._filled < self._total:
            return []
        frame = _open(self._large, _HEADER.unpack_from(self._large))
        self._large = None
        return [frame]

    def feed(self, data: Buffer) -> list[Frame]:
        """Take bytes from elsewhere; the frames that are now complete."""
        frames: list[Frame] = []
        at = 0
        view = memoryview(data)
        while at < len(view):
            room = self.get_buffer()
            count = min(len(room), len(view) - at)
            room[:count] = view[at : at + count]
            frames += self.wrote(count)
            if self.failure is not None:
                raise self.failure
            at += count
        return frames

    def _cut(self, data: memoryview) -> list[Frame]:
        """Cut what came, joined to what was left over; copies out of the shared buffer."""
        frames: list[Frame] = []
        view = memoryview(self._rest + data) if self._rest else data
        at, end = 0, len(view)
        try:
            while end - at >= FRAME_HEADER_BYTES:
                header = _HEADER.unpack_from(view, at)
                if header[5] != MAGIC or not header[1] <= header[0] <= self.frame_bytes_max:
                    raise self._refusal(header)
                total = FRAME_HEADER_BYTES + header[0]
                if end - at < total:
                    if total > LARGE_BYTES:
                        self._begin_large(view[at:], total)
                        return frames
                    break
                frames.append(_open(bytes(view[at : at + total]), header))
                at += total
        except RemoteProtocolError as error:
            self.failure = error
            if not frames:
                raise
            return frames
        self._rest = bytes(view[at:]) if at < end else b""
        return frames

    def _begin_large(self, begun: memoryview, total: int) -> None:
        self._rest = b""
        self._large = _room(total)
        self._large[: len(begun)] = begun
        self._filled = len(begun)
        self._total = total

    def _refusal(self, header: _Header) -> RemoteProtocolError:
        """What is wrong with a header."""
        length, _, _, _, _, magic = header
        if magic != MAGIC:
            return RemoteProtocolError(
                "These bytes are no frame of Ringdove's protocol: is the other side a Ringdove "
                "client or server, and is this its native port?"
            )
        if length > self.frame_bytes_max:
            return RemoteProtocolError(
                f"A frame announces {length} bytes; at most {self.frame_bytes_max} are taken."
            )
        return RemoteProtocolError("A frame's meta is longer than the frame.")


def _room(nbytes: int) -> memoryview:
    """Memory for a large frame, which the system gives page by page as it is written to."""
    if nbytes <= ALLOCATE_BYTES:
        return memoryview(bytearray(nbytes))  # Used again and again, so without new pages.
    pages = mmap.mmap(-1, nbytes, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # A kernel without them refuses to be advised.
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def _open(data: bytes | memoryview, header: _Header) -> Frame:
    """The frame in exactly these bytes, which begin with the header; its check verified."""
    length, meta_bytes, number, verb, flags, _ = header
    meta_end = FRAME_HEADER_BYTES + meta_bytes
    meta = data[FRAME_HEADER_BYTES:meta_end]
    check = xxhash.xxh32_intdigest(b"".join((data[: _HEADER.size], meta)))
    if check != _CHECK.unpack_from(data, _HEADER.size)[0]:
        raise RemoteProtocolError("A frame does not match its check: it was damaged on its way.")
    blob = memoryview(data)[meta_end:] if meta_bytes < length else b""
    return _frame((verb, number, flags, meta, blob))


def blocks_of(frame: Frame, count: int) -> list[Block]:
    """The `count` blocks of a frame, each verified; RemoteProtocolError when they are not that."""
    blocks = []
    blob = memoryview(frame.blob)
    at = 0
    for _ in range(count):
        if len(blob) - at < BLOCK_HEADER_BYTES:
            raise RemoteProtocolError("A frame ends before its last block.")
        length = block_bytes(blob, at)
        if len(blob) - at < length:
            raise RemoteProtocolError("A frame ends within a block.")
        blocks.append(Block.decode(blob[at : at + length], owned=not blob.readonly))
        at += length
    if at != len(blob):
        raise RemoteProtocolError(f"A frame has {len(blob) - at} bytes after its last block.")
    return blocks


def join(frames: Iterable[Sequence[Buffer]]) -> bytes:
    """Several encoded frames as bytes."""
    return b"".join(buffer for frame in frames for buffer in frame)


#: A frame shorter than this is written as one buffer.
JOIN_BYTES_MAX: Final = 16 * 1024

#: What a decoder without a shared buffer reads at a time.
SCRATCH_BYTES: Final = 256 * 1024

#: A frame longer than this gets memory of its own while it arrives.
LARGE_BYTES: Final = 64 * 1024

#: What a large frame gets at once, before it has come.
ALLOCATE_BYTES: Final = 4 * 1024 * 1024
