"""The block: messages of one stripe in one contiguous buffer, the unit of wire, disk and memory.

    0        8       16       24       32          40        48     52      56   60     64
    | magic  | base  | sent   | stored | not before| checksum| count|length |raw |check | columns
    | version| offset| ms     | ms     | ms        | xxh3-64 |      |       |    |xxh32 |
    | flags  |
    | codec  |
    | priority

    columns   send-time differences   u32[count]                      never compressed
              key hashes              u64[count]    when keyed        never compressed
              body                    i32[count+1], bytes              |
              key                     i32[count+1], bytes  when keyed  | the variable part, may be
              attributes              i32[count+1], bytes  when any    | compressed as a whole

Every column starts at a multiple of eight bytes. An `i32[count+1], bytes` column is Arrow's binary
layout, so a reader may wrap it without copying. Little-endian throughout. `checksum` covers
everything after the header; `check` covers the header itself, because a store stamps base offset
and time into it without touching the columns. docs/block-format.md describes each byte; the golden
files pin it.

Two loops over messages remain, both inside C: joining bodies when a block is built, slicing them
when it is read.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import TYPE_CHECKING, Final

import xxhash

from ringdove import limits
from ringdove.core.attributes import Attributes, check, decode, encode
from ringdove.core.columns import (
    Buffer,
    Column,
    binary_column,
    check_columns,
    cut,
    pad,
    padded,
    padded_column,
    pieces,
    split_columns,
    time_column,
)
from ringdove.core.compression import CODEC_NAMES, CODEC_NUMBERS, compress, decompress
from ringdove.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("Ringdove's block format is little-endian; this machine is not.")


#: The version of the layout described above.
BLOCK_VERSION: Final = 1
MAGIC: Final = b"RDBK"
HEADER_BYTES: Final = 64
FLAG_KEYS: Final = 1
FLAG_ATTRIBUTES: Final = 2

_HEADER = struct.Struct("<4sBBBBqqqqQIIII")
_NO_HEADER = bytes(HEADER_BYTES)
_LENGTH = struct.Struct("<I")
#: The columns of a block with one body: time, padding, where the body begins and ends.
_ONE_BODY = struct.Struct("<8xii")
_LENGTH_AT = 52
_CHECKED_BYTES = 60


def key_hash(key: bytes) -> int:
    """The 64-bit hash that places a key and names its group; 0 stands for "no key"."""
    return int(xxhash.xxh3_64_intdigest(key)) if key else 0


def block_bytes(buffer: Buffer, at: int = 0) -> int:
    """How long the block that begins at `at` is, as its header says, which must be there."""
    length: int = _LENGTH.unpack_from(buffer, at + _LENGTH_AT)[0]
    return HEADER_BYTES + length


class Block:
    """An immutable block. Make one with `build` or `decode`; `stamp` and `slice` give new ones."""

    __slots__ = (
        "_buffer",
        "_columns",
        "_payload",
        "_scratch",
        "base",
        "checksum",
        "codec",
        "count",
        "end",
        "flags",
        "nbytes",
        "not_before_ms",
        "priority",
        "raw_bytes",
        "sent_ms",
        "stored_ms",
    )

    def __init__(
        self,
        payload: Buffer,
        count: int,
        flags: int,
        codec: int,
        priority: int,
        base: int,
        sent_ms: int,
        stored_ms: int,
        not_before_ms: int,
        checksum: int,
        raw_bytes: int,
        buffer: Buffer | None = None,
    ) -> None:
        self._payload = payload
        self._buffer = buffer
        #: A buffer with room for the header before the payload, for the first stamp to use.
        self._scratch: bytearray | memoryview | None = None
        self._columns: list[Column] | None = None
        self.count = count
        self.flags = flags
        self.codec = codec
        self.priority = priority
        #: Offset of the first message, and the one after the last; meaningless until a store has
        #: stamped them.
        self.base = base
        self.end = base + count
        #: Bytes of the whole block.
        self.nbytes = HEADER_BYTES + len(payload)
        #: What send-time differences are counted from: the earliest send time when it was built.
        self.sent_ms = sent_ms
        #: When the store took the block; 0 before.
        self.stored_ms = stored_ms
        #: No message of the block is deliverable before this time.
        self.not_before_ms = not_before_ms
        self.checksum = checksum
        #: Length of the variable part when it is not compressed.
        self.raw_bytes = raw_bytes

    # -- making ---------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        bodies: Sequence[Buffer],
        *,
        sent_ms: int | Sequence[int],
        keys: Sequence[bytes] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        not_before_ms: int = 0,
        priority: int = 0,
        compression: str = "none",
    ) -> Block:
        """Make a block of `bodies`, in order.

        `keys` and `attributes`, when given, have one entry per body; an empty key or no attributes
        is allowed. Raises LocalProtocolError for what the format cannot hold.
        """
        count = len(bodies)
        if not 0 < count <= limits.BLOCK_MESSAGES_MAX:
            raise LocalProtocolError(
                f"A block holds 1 to {limits.BLOCK_MESSAGES_MAX} messages, not {count}."
            )
        check_columns(count, sent_ms, keys, attributes, not_before_ms, priority)
        if compression not in CODEC_NUMBERS:
            raise LocalProtocolError(
                f"Compression {compression!r} is unknown; it is one of {', '.join(CODEC_NUMBERS)}."
            )
        first_ms, times = time_column(sent_ms, count)
        flags = 0
        fixed = [times]
        variable = binary_column(bodies)
        if keys is not None:
            flags |= FLAG_KEYS
            fixed.append(array("Q", map(key_hash, keys)).tobytes())
            variable += binary_column(keys)
        if attributes is not None and any(attributes):
            flags |= FLAG_ATTRIBUTES
            variable += binary_column([encode(own) if own else b"" for own in attributes])
        return cls._assemble(
            fixed,
            variable,
            count,
            flags,
            CODEC_NUMBERS[compression],
            priority,
            first_ms,
            not_before_ms,
        )

    @classmethod
    def one(cls, body: bytes, sent_ms: int) -> Block:
        """`build` for one body and nothing else, in fewer steps."""
        length = len(body)
        scratch = bytearray().join(
            (_NO_HEADER, _ONE_BODY.pack(0, length), body, bytes(-length % 8))
        )
        payload = memoryview(scratch)[HEADER_BYTES:]
        checksum = xxhash.xxh3_64_intdigest(payload)
        raw_bytes = len(payload) - 8
        block = cls(payload, 1, 0, 0, 0, 0, sent_ms, 0, 0, checksum, raw_bytes)
        block._scratch = scratch
        return block

    @classmethod
    def of_columns(
        cls,
        bodies: Column,
        *,
        sent_ms: int,
        keys: Column | None = None,
        hashes: bytes = b"",
        attributes: Column | None = None,
        compression: str = "none",
    ) -> Block:
        """Make a block of columns that are in the binary layout already, attributes encoded.

        Offsets grow from zero; `keys`, with their `hashes`, and `attributes` have as many values as
        `bodies`.
        """
        count = len(bodies[0]) - 1
        first_ms, times = time_column(sent_ms, count)
        flags = 0
        fixed = [times]
        variable = pieces(bodies)
        if keys is not None:
            flags |= FLAG_KEYS
            fixed.append(hashes)
            variable += pieces(keys)
        if attributes is not None:
            flags |= FLAG_ATTRIBUTES
            variable += pieces(attributes)
        codec = CODEC_NUMBERS[compression]
        return cls._assemble(fixed, variable, count, flags, codec, 0, first_ms, 0)

    @classmethod
    def join(cls, blocks: Sequence[Block]) -> Block:
        """One block with the messages of several that have one priority and no delay."""
        if len(blocks) == 1:
            return blocks[0]
        keyed = any(block.keyed for block in blocks)
        attributed = any(block.flags & FLAG_ATTRIBUTES for block in blocks)
        return cls.build(
            [body for block in blocks for body in block.bodies()],
            sent_ms=[ms for block in blocks for ms in block.sent_times_ms()],
            keys=[key for block in blocks for key in block.keys(0)] if keyed else None,
            attributes=(
                [own for block in blocks for own in block.attributes()] if attributed else None
            ),
            priority=blocks[0].priority,
        )

    @classmethod
    def _assemble(
        cls,
        fixed: list[bytes],
        variable: list[Buffer],
        count: int,
        flags: int,
        codec: int,
        priority: int,
        sent_ms: int,
        not_before_ms: int,
        base: int = 0,
        stored_ms: int = 0,
    ) -> Block:
        if codec:
            raw = b"".join(variable)
            packed = compress(raw, codec)
            raw_bytes = len(raw)
            if len(packed) >= raw_bytes or raw_bytes > len(packed) * limits.COMPRESSION_RATIO_MAX:
                codec, packed = 0, raw
            variable = [packed]
        scratch = bytearray().join([_NO_HEADER, *fixed, *variable])
        fixed_bytes = HEADER_BYTES + sum(map(len, fixed))
        if not codec:
            raw_bytes = len(scratch) - fixed_bytes
            if raw_bytes != sum(map(len, variable)):
                raise LocalProtocolError(
                    "A body's buffer has other items than bytes, or other lengths."
                )
        opened_bytes = fixed_bytes + raw_bytes
        if opened_bytes > limits.BLOCK_BYTES_MAX:
            raise LocalProtocolError(
                f"A block holds at most {limits.BLOCK_BYTES_MAX} bytes, "
                f"not {opened_bytes}: send fewer messages at once."
            )
        payload = memoryview(scratch)[HEADER_BYTES:]
        checksum = xxhash.xxh3_64_intdigest(payload)
        block = cls(
            payload, count, flags, codec, priority, base, sent_ms, stored_ms, not_before_ms,
            checksum, raw_bytes,
        )  # fmt: skip
        block._scratch = scratch
        return block

    @classmethod
    def decode(cls, buffer: Buffer, *, trusted: bool = False, owned: bool = False) -> Block:
        """Read a block from exactly `buffer`, checking both checksums.

        Unless `trusted` (our own store wrote it), the structure is checked too, so that no later
        access can fail. With `owned`, nobody else uses the buffer and the block may be stamped in
        place. Raises RemoteProtocolError, and nothing else, for bytes that are no block.
        """
        if len(buffer) < HEADER_BYTES:
            raise RemoteProtocolError(
                f"A block has at least {HEADER_BYTES} bytes, not {len(buffer)}."
            )
        (
            magic, version, flags, codec, priority, base, sent_ms, stored_ms, not_before_ms,
            checksum, count, length, raw_bytes, check,
        ) = _HEADER.unpack_from(buffer)  # fmt: skip
        if magic != MAGIC:
            raise RemoteProtocolError(f"A block starts with {MAGIC!r}, not {magic!r}.")
        if version != BLOCK_VERSION:
            raise RemoteProtocolError(
                f"The block has format version {version}; this program reads {BLOCK_VERSION}."
            )
        if check != xxhash.xxh32_intdigest(buffer[:_CHECKED_BYTES]):
            raise RemoteProtocolError("The block's header does not match its check.")
        if length != len(buffer) - HEADER_BYTES:
            raise RemoteProtocolError(
                f"The block announces {length} bytes after its header and has "
                f"{len(buffer) - HEADER_BYTES}."
            )
        payload = memoryview(buffer)[HEADER_BYTES:]
        if checksum != xxhash.xxh3_64_intdigest(payload):
            raise RemoteProtocolError("The block's content does not match its checksum.")
        block = cls(
            payload, count, flags, codec, priority, base, sent_ms, stored_ms, not_before_ms,
            checksum, raw_bytes, buffer,
        )  # fmt: skip
        if owned and not isinstance(buffer, bytes):
            block._scratch = buffer
        if not trusted and (count != 1 or flags or codec or not block._is_one_body()):
            block.validate()
        return block

    def _is_one_body(self) -> bool:
        """Whether a block of one message, with neither keys, attributes nor codec, is valid.

        Most blocks are such; this is `validate` at one look. False: `validate` says what is wrong.
        """
        length = len(self._payload)
        if length < _ONE_BODY.size:
            return False
        first, last = _ONE_BODY.unpack_from(self._payload)
        return (
            first == 0
            and last >= 0
            and self.raw_bytes == length - 8 == 8 + last + -last % 8
            and self.base | self.sent_ms | self.stored_ms | self.not_before_ms >= 0
            and self.end <= limits.OFFSET_MAX
            and self.priority <= limits.PRIORITY_MAX
            and self.nbytes <= limits.BLOCK_BYTES_MAX
        )

    def validate(self) -> None:
        """Check everything that checksums cannot: counts, sizes, offsets, attribute encoding."""
        fixed_bytes = self._fixed_bytes()
        stored_bytes = len(self._payload) - fixed_bytes
        if not 0 < self.count <= limits.BLOCK_MESSAGES_MAX or stored_bytes < 0:
            raise RemoteProtocolError(f"The block cannot hold its {self.count} messages.")
        if self.flags & ~(FLAG_KEYS | FLAG_ATTRIBUTES) or self.codec not in CODEC_NAMES:
            raise RemoteProtocolError(f"Unknown flags {self.flags} or codec {self.codec}.")
        if self.priority > limits.PRIORITY_MAX:
            raise RemoteProtocolError(f"Priority {self.priority} exceeds {limits.PRIORITY_MAX}.")
        if min(self.base, self.sent_ms, self.stored_ms, self.not_before_ms) < 0:
            raise RemoteProtocolError("A block's offset and times are never negative.")
        if self.end > limits.OFFSET_MAX:
            raise RemoteProtocolError(f"The block's offsets reach beyond {limits.OFFSET_MAX}.")
        if self.codec == 0 and self.raw_bytes != stored_bytes:
            raise RemoteProtocolError("The block's variable part has another size than announced.")
        opened_bytes = HEADER_BYTES + fixed_bytes + self.raw_bytes
        if (
            opened_bytes > limits.BLOCK_BYTES_MAX
            or self.raw_bytes > stored_bytes * limits.COMPRESSION_RATIO_MAX
        ):
            raise RemoteProtocolError("The block would grow beyond its limit when opened.")
        self._columns = self._split_columns(fixed_bytes, check=True)
        if self.flags & FLAG_ATTRIBUTES:
            self._check_attributes()

    def _check_attributes(self) -> None:
        """Check attributes message by message, keeping none: a hostile one grows when decoded."""
        for position in range(self.count):
            [encoded] = cut(self._open_columns()[-1], position, position + 1)
            check(encoded)

    # -- placing --------------------------------------------------------------------------------

    def stamp(self, base: int, stored_ms: int) -> Block:
        """The same block at offset `base`, stored at `stored_ms`.

        The first stamp of a built block writes the header where the columns already are, so that
        storing a block copies it only once; others copy the columns behind their header.
        """
        block = Block(
            self._payload, self.count, self.flags, self.codec, self.priority, base, self.sent_ms,
            stored_ms, self.not_before_ms, self.checksum, self.raw_bytes,
        )  # fmt: skip
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            self._buffer = None
            scratch[:HEADER_BYTES] = block._header()
            block._buffer = scratch
        else:
            block._buffer = b"".join((block._header(), self._payload))
            block._payload = memoryview(block._buffer)[HEADER_BYTES:]
        return block

    def defer(self, not_before_ms: int) -> Block:
        """The same block, not deliverable before `not_before_ms`; shares the columns."""
        return Block(
            self._payload, self.count, self.flags, self.codec, self.priority, self.base,
            self.sent_ms, self.stored_ms, not_before_ms, self.checksum, self.raw_bytes,
        )  # fmt: skip

    def packed(self, compression: str) -> Block:
        """The same block compressed, where that makes it smaller; else the block itself."""
        if self.codec or compression == "none":
            return self
        fixed_bytes = self._fixed_bytes()
        packed = self._assemble(
            [bytes(self._payload[:fixed_bytes])], [self._payload[fixed_bytes:]], self.count,
            self.flags, CODEC_NUMBERS[compression], self.priority, self.sent_ms,
            self.not_before_ms, self.base, self.stored_ms,
        )  # fmt: skip
        return packed if packed.codec else self

    def slice_bytes(self, start: int, stop: int) -> int:
        """Bytes of the block that `slice` would give."""
        count = stop - start
        if count == self.count:
            return self.nbytes
        keyed = 8 * count if self.flags & FLAG_KEYS else 0
        return (
            HEADER_BYTES
            + padded(4 * count)
            + keyed
            + sum(
                padded(4 * (count + 1)) + padded(offsets[stop] - offsets[start])
                for offsets, _, _ in self._open_columns()
            )
        )

    def slice(self, start: int, stop: int) -> Block:
        """Messages `start` to `stop` (exclusive) as a block; the block itself when that is all."""
        if start == 0 and stop == self.count:
            return self
        if not 0 <= start < stop <= self.count:
            raise LocalProtocolError(
                f"Messages {start} to {stop} are no part of a block of {self.count}."
            )
        times_end = 4 * self.count
        fixed = [pad(bytes(self._payload[4 * start : 4 * stop]))]
        if self.flags & FLAG_KEYS:
            hashes_at = padded(times_end)
            fixed.append(bytes(self._payload[hashes_at + 8 * start : hashes_at + 8 * stop]))
        variable: list[Buffer] = []
        for offsets, data, at in self._open_columns():
            first, last = offsets[start], offsets[stop]
            part = array("i", [o - first for o in offsets[start : stop + 1]]).tobytes()
            variable += padded_column(part, [data[at + first : at + last]], last - first)
        return self._assemble(
            fixed, variable, stop - start, self.flags, 0, self.priority, self.sent_ms,
            self.not_before_ms, self.base + start, self.stored_ms,
        )  # fmt: skip

    # -- reading --------------------------------------------------------------------------------

    @property
    def buffer(self) -> Buffer:
        """The block as bytes, ready for disk or wire; not to be changed."""
        if self._buffer is None:
            scratch, self._scratch = self._scratch, None
            if scratch is not None:
                scratch[:HEADER_BYTES] = self._header()
                self._buffer = scratch
            else:
                self._buffer = b"".join((self._header(), self._payload))
        return self._buffer

    def _header(self) -> bytes:
        header = _HEADER.pack(
            MAGIC, BLOCK_VERSION, self.flags, self.codec, self.priority,
            self.base, self.sent_ms, self.stored_ms, self.not_before_ms,
            self.checksum, self.count, len(self._payload), self.raw_bytes, 0,
        )[:_CHECKED_BYTES]  # fmt: skip
        return header + xxhash.xxh32_intdigest(header).to_bytes(4, "little")

    @property
    def compression(self) -> str:
        """How the variable part is compressed: none, zstd or lz4."""
        return CODEC_NAMES[self.codec]

    @property
    def keyed(self) -> bool:
        """Whether the messages have keys."""
        return bool(self.flags & FLAG_KEYS)

    def bodies(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """The bodies of messages `start` to `stop`, by default all, in order."""
        return cut(self._open_columns()[0], start, self.count if stop is None else stop)

    def keys(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """The keys, likewise; empty ones on a block without keys."""
        stop = self.count if stop is None else stop
        if not self.flags & FLAG_KEYS:
            return [b""] * (stop - start)
        return cut(self._open_columns()[1], start, stop)

    def attributes(self, start: int = 0, stop: int | None = None) -> list[Attributes]:
        """The attributes, likewise; empty ones on a block without attributes."""
        stop = self.count if stop is None else stop
        if not self.flags & FLAG_ATTRIBUTES:
            return [{} for _ in range(stop - start)]
        return [decode(encoded) for encoded in cut(self._open_columns()[-1], start, stop)]

    def sent_times_ms(self, start: int = 0, stop: int | None = None) -> list[int]:
        """The send times, likewise."""
        stop = self.count if stop is None else stop
        deltas = memoryview(self._payload)[4 * start : 4 * stop].cast("I")
        return [self.sent_ms + delta for delta in deltas]

    def binary_columns(self) -> dict[str, Column]:
        """The columns `body`, `key` and `attributes` (encoded) as they are, if there are such."""
        names = ["body"]
        if self.flags & FLAG_KEYS:
            names.append("key")
        if self.flags & FLAG_ATTRIBUTES:
            names.append("attributes")
        return dict(zip(names, self._open_columns(), strict=True))

    def sent_deltas_ms(self) -> memoryview:
        """How much later than `sent_ms` each message was sent, without copying."""
        return memoryview(self._payload)[: 4 * self.count].cast("I")

    def key_hashes(self) -> memoryview:
        """The 64-bit key hashes, without copying; zeros on a block without keys."""
        if not self.flags & FLAG_KEYS:
            return memoryview(bytes(8 * self.count)).cast("Q")
        start = padded(4 * self.count)
        return memoryview(self._payload)[start : start + 8 * self.count].cast("Q")

    def body_bytes_longest(self) -> int:
        """Bytes of the longest body."""
        offsets = self._open_columns()[0][0]
        return max(hi - lo for lo, hi in zip(offsets, offsets[1:], strict=False))

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"Block({self.base}..{self.end}, {self.nbytes} bytes, {self.compression})"

    def _fixed_bytes(self) -> int:
        return padded(4 * self.count) + (8 * self.count if self.flags & FLAG_KEYS else 0)

    def _open_columns(self) -> list[Column]:
        """Each variable column: offsets, buffer, start; decompresses at most once."""
        if self._columns is None:
            self._columns = self._split_columns(self._fixed_bytes())
        return self._columns

    def _split_columns(self, fixed_bytes: int, *, check: bool = False) -> list[Column]:
        raw: Buffer = memoryview(self._payload)[fixed_bytes:]
        if self.codec:
            raw = decompress(bytes(raw), self.codec, self.raw_bytes)
        present = 1 + bool(self.flags & FLAG_KEYS) + bool(self.flags & FLAG_ATTRIBUTES)
        return split_columns(raw, self.count, present, check=check)
