"""Frames in and out: cut anywhere, of any size, damaged anywhere, and never more memory than sent."""

import contextlib
import errno
import mmap
import os
import struct
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ringdove import limits
from ringdove.bench.processes import resident_bytes
from ringdove.core.block import Block
from ringdove.errors import RemoteProtocolError
from ringdove.protocol import frames
from ringdove.protocol.frames import FRAME_HEADER_BYTES, Frame, FrameDecoder, blocks_of, encode

#: Time limits of single examples would make tests depend on how busy the machine is.
untimed = settings(deadline=None, max_examples=60)

MB = 1024 * 1024


def block(*bodies: bytes) -> Block:
    return Block.build(bodies, sent_ms=1_000)


def wire(verb: int, number: int, meta: bytes, *blocks: Block, flags: int = 0) -> bytes:
    return frames.join([encode(verb, number, meta, blocks, flags)])


def header(length: int, meta: int, magic: bytes = b"Rd", number: int = 1) -> bytes:
    """A header with a right check for an empty meta, whatever it announces."""
    fields = struct.pack("<IIIBB2s", length, meta, number, 2, 0, magic)
    return fields + struct.pack("<I", xxhash.xxh32_intdigest(fields))


def welcomed() -> FrameDecoder:
    """A decoder whose peer has said hello."""
    decoder = FrameDecoder()
    decoder.frame_bytes_max = limits.FRAME_BYTES_MAX
    return decoder


def test_a_kernel_without_huge_pages_takes_large_frames_all_the_same(monkeypatch):
    class Plain(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Plain)
    sent = wire(2, 1, b"meta", block(bytes(5 * MB)))
    [frame] = welcomed().feed(sent)
    assert bytes(frame.blob) == sent[FRAME_HEADER_BYTES + 4 :]


def plain(found: Iterable[Frame]) -> list[tuple[int, int, int, bytes, bytes]]:
    return [(f.verb, f.number, f.flags, bytes(f.meta), bytes(f.blob)) for f in found]


def feed(decoder: FrameDecoder, pieces: Iterable[bytes]) -> list[Frame]:
    return [frame for piece in pieces for frame in decoder.feed(piece)]


def receive(decoder: FrameDecoder, data: bytes, read_max: int) -> list[Frame]:
    """Take bytes as a transport does: into the decoder's buffer, at most `read_max` at a time."""
    found = []
    at = 0
    while at < len(data):
        room = decoder.get_buffer()
        count = min(len(room), len(data) - at, read_max)
        room[:count] = data[at : at + count]
        found += decoder.wrote(count)
        at += count
    return found


#: Name, and verb, number, meta, blocks, flags.
CASES = {
    "empty": (2, 0, b"", [], 0),
    "highest numbers": (255, 2**32 - 1, b"", [], 255),
    "only meta": (10, 7, b"meta", [], 0),
    "only a block": (130, 8, b"", [block(b"one", b"two")], 1),
    "meta and blocks": (10, 9, b"m" * 100, [block(b"a"), block(b""), block(b"c" * 3000)], 0),
    "just small": (10, 1, b"s" * (frames.LARGE_BYTES - FRAME_HEADER_BYTES), [], 0),
    "just large": (10, 2, b"l" * (frames.LARGE_BYTES - FRAME_HEADER_BYTES + 1), [], 0),
    "the size of the buffer": (10, 3, b"b" * (frames.SCRATCH_BYTES - FRAME_HEADER_BYTES), [], 0),
    "larger than the buffer": (10, 4, b"m", [block(b"x" * 300_000)], 0),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> tuple[bytes, tuple[int, int, int, bytes, bytes]]:
    verb, number, meta, blocks, flags = request.param
    blob = b"".join(bytes(b.buffer) for b in blocks)
    return wire(verb, number, meta, *blocks, flags=flags), (verb, number, flags, meta, blob)


NEXT = wire(11, 99, b"next", block(b"of the next frame"))


def test_a_frame_fed_whole_comes_out(case):
    data, expected = case
    decoder = welcomed()
    assert plain(decoder.feed(data)) == [expected]
    assert not decoder.partial


def test_a_frame_fed_byte_by_byte_comes_out_with_its_last_byte(case):
    data, expected = case
    # Bytewise at both ends; what lies between is fed at once, which keeps the test short.
    middle = slice(3000, max(3000, len(data) - 100))
    pieces = [data[at : at + 1] for at in range(min(3000, len(data)))]
    pieces += [data[middle]] if data[middle] else []
    pieces += [data[at : at + 1] for at in range(middle.stop, len(data))]
    assert b"".join(pieces) == data
    decoder = welcomed()
    for piece in pieces[:-1]:
        assert decoder.feed(piece) == []
        assert decoder.partial
    assert plain(decoder.feed(pieces[-1])) == [expected]
    assert not decoder.partial


@pytest.mark.parametrize("behind", [1, 19, 20, 24, len(NEXT) - 1])
def test_the_begin_of_the_next_frame_is_kept_for_it(case, behind):
    data, expected = case
    decoder = welcomed()
    assert plain(decoder.feed(data + NEXT[:behind])) == [expected]
    assert decoder.partial
    assert plain(decoder.feed(NEXT[behind:])) == plain(welcomed().feed(NEXT))
    assert not decoder.partial


def test_a_frame_read_by_a_transport_ends_where_it_ends(case):
    data, expected = case
    for read_max in (1 << 30, 65_536, 1_460):
        found = receive(welcomed(), data + NEXT + data, read_max)
        assert plain(found) == [expected, *plain(welcomed().feed(NEXT)), expected]


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 200_000))
@untimed
def test_frames_cut_anywhere_come_out_the_same(seed, count, longest):
    random = Random(seed)
    stream, expected = b"", []
    for number in range(count):
        blocks = [block(random.randbytes(random.randrange(longest)))] * random.randrange(3)
        meta = random.randbytes(random.randrange(200))
        stream += wire(number, number, meta, *blocks)
        expected.append((number, number, 0, meta, b"".join(bytes(b.buffer) for b in blocks)))
    cuts = sorted({0, len(stream), *(random.randrange(len(stream)) for _ in range(30))})
    pieces = [stream[a:b] for a, b in pairwise(cuts)]
    decoder = welcomed()
    assert plain(feed(decoder, pieces)) == expected
    assert not decoder.partial


def test_frames_do_not_share_the_buffer_they_were_read_into():
    scratch = bytearray(frames.SCRATCH_BYTES)
    one, other = FrameDecoder(scratch), FrameDecoder(scratch)
    [first] = one.feed(wire(1, 1, b"first", block(b"first")))
    assert one.feed(NEXT[:30]) == []
    [second] = other.feed(wire(1, 2, b"other", block(b"other")))
    assert bytes(first.meta) == b"first"
    assert blocks_of(first, 1)[0].bodies() == [b"first"]
    assert bytes(second.meta) == b"other"
    assert plain(one.feed(NEXT[30:])) == plain(welcomed().feed(NEXT))


# -- large frames and memory ---------------------------------------------------------------------


@pytest.mark.parametrize("size", [2 * MB, 4 * MB - 64, 4 * MB, 4 * MB + 1, 9 * MB + 17])
def test_a_large_frame_comes_out(size):
    meta = Random(size).randbytes(size)
    data = wire(10, 5, meta) + NEXT
    found = receive(welcomed(), data, 300_000)
    assert plain(found) == [(10, 5, 0, meta, b""), *plain(welcomed().feed(NEXT))]


def test_a_large_frame_of_blocks_can_be_stamped_in_place():
    blocks = [block(bytes([n]) * MB) for n in range(4)]
    [frame] = receive(welcomed(), wire(10, 5, b"meta", *blocks), 65_536)
    found = blocks_of(frame, 4)
    stamped = [b.stamp(n * 10, 2_000) for n, b in enumerate(found)]
    assert [b.base for b in stamped] == [0, 10, 20, 30]
    assert [b.bodies() for b in stamped] == [b.bodies() for b in blocks]
    for b in stamped:
        Block.decode(bytes(b.buffer))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="tells by /proc")
def test_memory_is_used_by_what_arrives_not_by_what_is_announced():
    decoders = [welcomed() for _ in range(10)]
    piece = bytes(7 * MB)
    before = resident_bytes(os.getpid())
    for decoder in decoders:
        decoder.feed(header(60 * MB, 0) + b"x" * 1000)
        assert decoder.partial
    announced = resident_bytes(os.getpid())
    # Pages may be of 2 MB.
    assert announced - before < len(decoders) * 3 * MB
    for decoder in decoders:
        decoder.feed(piece)
    arrived = resident_bytes(os.getpid()) - announced
    assert len(decoders) * 4 * MB < arrived < len(decoders) * 11 * MB


# -- limits --------------------------------------------------------------------------------------


def test_before_hello_only_short_frames_are_taken():
    longest = limits.FRAME_BYTES_MAX_BEFORE_HELLO
    assert longest == 16 * 1024
    [frame] = FrameDecoder().feed(wire(1, 0, b"h" * longest))
    assert len(frame.meta) == longest
    with pytest.raises(RemoteProtocolError, match="16385 bytes"):
        FrameDecoder().feed(header(longest + 1, 0))


def test_after_hello_the_limit_is_that_of_a_frame():
    assert welcomed().feed(header(limits.FRAME_BYTES_MAX, 0)) == []
    with pytest.raises(RemoteProtocolError, match="announces"):
        welcomed().feed(header(limits.FRAME_BYTES_MAX + 1, 0))
    with pytest.raises(RemoteProtocolError, match="announces"):
        welcomed().feed(header(2**32 - 1, 0))


@pytest.mark.parametrize("cut", range(1, FRAME_HEADER_BYTES))
def test_a_header_is_judged_as_soon_as_it_is_whole(cut):
    decoder = FrameDecoder()
    bad = header(0, 0, magic=b"dR")
    assert decoder.feed(bad[:cut]) == []
    with pytest.raises(RemoteProtocolError, match="no frame"):
        decoder.feed(bad[cut:])


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(40)]
)
def test_other_protocols_are_recognised_as_no_frame(data):
    with pytest.raises(RemoteProtocolError, match="no frame of Ringdove"):
        FrameDecoder().feed(data)


def test_meta_cannot_be_longer_than_the_frame():
    with pytest.raises(RemoteProtocolError, match="meta is longer"):
        welcomed().feed(header(10, 11))


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_damaged_check_is_noticed(size):
    data = bytearray(wire(10, 1, b"m" * size))
    data[16] ^= 1
    with pytest.raises(RemoteProtocolError, match="damaged"):
        welcomed().feed(data)


def survives(data: bytes) -> bool:
    """Whether a frame with two blocks comes out of these bytes."""
    try:
        return any(blocks_of(frame, 2) for frame in welcomed().feed(data))
    except RemoteProtocolError:
        return False


def test_no_single_flipped_bit_passes_unnoticed():
    blocks = [block(b"one", b"two"), Block.build([b"x"], sent_ms=5, keys=[b"key"])]
    good = wire(10, 77, b"some meta", *blocks)
    assert survives(good)
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            assert not survives(bytes(bad)), f"bit {bit} of byte {at}"


@pytest.mark.parametrize("bit", range(8, 24))
def test_a_length_that_was_damaged_on_its_way_is_noticed_when_the_bytes_have_come(bit):
    bad = bytearray(wire(10, 77, b"some meta", block(b"one")))
    bad[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RemoteProtocolError):
        welcomed().feed(bytes(bad) + bytes(1 << bit))


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=4))
@settings(untimed, max_examples=300)
def test_arbitrary_bytes_give_frames_or_an_error(data, cuts):
    decoder = welcomed()
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    try:
        feed(decoder, [data[a:b] for a, b in pairwise(edges)])
    except RemoteProtocolError:
        return
    assert len(data) < FRAME_HEADER_BYTES or decoder.partial


@given(st.integers(0, 2**16), st.integers(0, 2**16), st.binary(max_size=300), st.integers(0, 5))
@settings(untimed, max_examples=300)
def test_arbitrary_lengths_with_a_right_check_give_frames_or_an_error(length, meta, blob, count):
    """What a hostile sender would do: everything is right, except what it says."""
    length, meta = length % 400, meta % 400
    data = header(length, meta)[:16]
    check = xxhash.xxh32_intdigest(data + blob[:meta])
    with contextlib.suppress(RemoteProtocolError):
        for frame in welcomed().feed(data + struct.pack("<I", check) + blob):
            assert len(frame.meta) + len(frame.blob) == length
            blocks_of(frame, count)


# -- blocks --------------------------------------------------------------------------------------


def frame_of(blob: bytes) -> Frame:
    return Frame(10, 1, 0, b"", blob)


def test_blocks_come_out_as_they_went_in():
    blocks = [block(b"a", b"b"), block(b"c")]
    [frame] = welcomed().feed(wire(10, 1, b"", *blocks))
    assert [b.bodies() for b in blocks_of(frame, 2)] == [[b"a", b"b"], [b"c"]]
    assert blocks_of(frame_of(b""), 0) == []


@pytest.mark.parametrize(
    ("count", "told"), [(0, "after its last"), (1, "after its last"), (3, "before its last")]
)
def test_another_number_of_blocks_than_announced_is_refused(count, told):
    [frame] = welcomed().feed(wire(10, 1, b"", block(b"a"), block(b"b")))
    with pytest.raises(RemoteProtocolError, match=told):
        blocks_of(frame, count)


def test_counts_that_nobody_can_mean_are_refused_at_once():
    [frame] = welcomed().feed(wire(10, 1, b"", block(b"a")))
    for count in (-1, 2**62):
        with pytest.raises(RemoteProtocolError):
            blocks_of(frame, count)


def test_a_blob_that_ends_anywhere_within_a_block_is_refused():
    whole = bytes(block(b"some body").buffer)
    for end in range(len(whole)):
        with pytest.raises(RemoteProtocolError, match="ends"):
            blocks_of(frame_of(whole[:end]), 1)


@given(st.binary(max_size=300), st.integers(0, 4))
@settings(untimed, max_examples=200)
def test_an_arbitrary_blob_gives_blocks_or_an_error(blob, count):
    with contextlib.suppress(RemoteProtocolError):
        assert len(blocks_of(frame_of(blob), count)) == count
