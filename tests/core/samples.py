"""Blocks for tests: strategies that draw messages, and tools that forge what no builder makes.

A forged block passes both checks, whatever else is wrong with it: that is what a hostile sender
would send, and what a reader must survive.
"""

import struct
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import xxhash
from hypothesis import settings
from hypothesis import strategies as st

from ringdove.core.block import Block
from ringdove.core.compression import CODEC_NAMES

#: Time limits of single examples would make tests depend on how busy the machine is.
untimed = settings(deadline=None)

Message = tuple[bytes, bytes, dict[str, Any], int]

_HEADER = struct.Struct("<4sBBBBqqqqQIIII")

times_ms = st.integers(0, 2**62)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.binary(max_size=12),
)
attributes = st.dictionaries(
    st.text(max_size=8), scalars | st.lists(scalars, max_size=4), max_size=4
)
bodies = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1, max_size=30),
    st.integers(0, 20).flatmap(
        lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1, max_size=30)
    ),
    st.lists(st.sampled_from([b"celsius=21.5;" * 9, b"", b"on"]), min_size=1, max_size=60),
)


@dataclass(frozen=True)
class Drawn:
    """The arguments of one `Block.build`, and what must come out again."""

    bodies: list[bytes]
    sent_ms: int | list[int]
    keys: list[bytes] | None
    attributes: list[dict[str, Any] | None] | None
    not_before_ms: int
    priority: int
    compression: str

    def build(self) -> Block:
        """The block that the builder makes of it."""
        return Block.build(
            self.bodies,
            sent_ms=self.sent_ms,
            keys=self.keys,
            attributes=self.attributes,
            not_before_ms=self.not_before_ms,
            priority=self.priority,
            compression=self.compression,
        )

    def messages(self) -> list[Message]:
        """Body, key, attributes and send time of each message."""
        count = len(self.bodies)
        times = [self.sent_ms] * count if isinstance(self.sent_ms, int) else self.sent_ms
        keys = [b""] * count if self.keys is None else self.keys
        attributes = [{}] * count if self.attributes is None else self.attributes
        named = [each or {} for each in attributes]
        return list(zip(self.bodies, keys, named, times, strict=True))


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Messages of every shape that the builder accepts."""
    chosen = draw(bodies)
    count = len(chosen)
    first_ms = draw(times_ms)
    spans = st.lists(st.integers(0, 2**32 - 1), min_size=count, max_size=count)
    keys = st.lists(st.binary(max_size=9), min_size=count, max_size=count)
    named = st.lists(st.none() | attributes, min_size=count, max_size=count)
    return Drawn(
        chosen,
        draw(st.just(first_ms) | spans.map(lambda deltas: [first_ms + d for d in deltas])),
        draw(st.none() | keys),
        draw(st.none() | named),
        draw(st.just(0) | times_ms),
        draw(st.integers(0, 9)),
        draw(st.sampled_from(sorted(CODEC_NAMES.values()))),
    )


def contents(block: Block) -> list[Message]:
    """Everything that a block says about its messages."""
    columns = block.bodies(), block.keys(), block.attributes(), block.sent_times_ms()
    return list(zip(*columns, strict=True))


def use_everything(block: Block) -> None:
    """Call every accessor and every derivation of a block that was accepted."""
    messages = contents(block)
    assert len(messages) == len(block) == block.count
    assert block.nbytes == len(block.buffer)
    assert block.end == block.base + block.count
    assert block.body_bytes_longest() == max(len(message[0]) for message in messages)
    assert f"{block.base}..{block.end}" in repr(block)
    if block.keyed:
        assert len(block.key_hashes()) == block.count
    placed = block.stamp(7, 8).defer(9)
    assert (placed.base, placed.stored_ms, placed.not_before_ms) == (7, 8, 9)
    assert repr(contents(placed)) == repr(messages)
    middle = block.count // 2
    for start, stop in ((0, 1), (middle, block.count), (block.count - 1, block.count)):
        part = Block.decode(block.slice(start, stop).buffer)
        assert repr(contents(part)) == repr(messages[start:stop])


def padded(data: bytes) -> bytes:
    """The bytes with zeros up to a multiple of eight."""
    return data + bytes(-len(data) % 8)


def column(values: Sequence[bytes], offsets: Sequence[int] | None = None) -> bytes:
    """A variable column, with forged offsets when given."""
    data = b"".join(values)
    if offsets is None:
        offsets = list(accumulate(map(len, values), initial=0))
    return padded(struct.pack(f"<{len(offsets)}i", *offsets)) + padded(data)


def forge(
    payload: bytes,
    *,
    count: int = 1,
    flags: int = 0,
    codec: int = 0,
    priority: int = 0,
    base: int = 0,
    sent_ms: int = 0,
    stored_ms: int = 0,
    not_before_ms: int = 0,
    length: int | None = None,
    raw_bytes: int | None = None,
) -> bytes:
    """Any header over any payload, with both checks right."""
    header = _HEADER.pack(
        b"RDBK", 1, flags, codec, priority, base, sent_ms, stored_ms, not_before_ms,
        xxhash.xxh3_64_intdigest(payload), count, len(payload) if length is None else length,
        len(payload) - 8 if raw_bytes is None else raw_bytes, 0,
    )  # fmt: skip
    return header[:60] + xxhash.xxh32_digest(header[:60])[::-1] + payload


def seal(buffer: bytes) -> bytes:
    """The same bytes with length and both checks made right; short ones stay as they are."""
    if len(buffer) < _HEADER.size:
        return buffer
    header = bytearray(buffer[:60])
    header[40:48] = xxhash.xxh3_64_intdigest(buffer[64:]).to_bytes(8, "little")
    header[52:56] = (len(buffer) - 64).to_bytes(4, "little")
    return bytes(header) + xxhash.xxh32_digest(bytes(header))[::-1] + buffer[64:]


def peak_bytes(action: Callable[[], Any]) -> int:
    """The most bytes that `action` has allocated at any moment."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
