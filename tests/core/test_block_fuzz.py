"""One invariant: any bytes give a Block whose every accessor works, or RemoteProtocolError.

Nothing else is raised, and nothing is allocated that the size of the input does not justify. Most
inputs here carry right checks, because a hostile sender can compute them, too.
"""

import contextlib
import random
import sys
import tracemalloc

import lz4.block
import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from core import reader
from core.make_golden import GOLDEN
from core.samples import (
    Message,
    column,
    contents,
    drawn,
    forge,
    padded,
    peak_bytes,
    seal,
    untimed,
    use_everything,
)
from ringdove import limits
from ringdove.core.block import Block
from ringdove.core.compression import compress
from ringdove.errors import RemoteProtocolError

FILES = [golden.path.read_bytes() for golden in GOLDEN]
#: Numbers at which readers of untrusted sizes go wrong.
EDGES = [0, 1, 2, 7, 8, 9, 63, 64, 255, 2**15, 2**16, 2**16 + 1, 2**31 - 1, 2**31, 2**32 - 1]
#: What an interpreter may spend per byte of input, opened: an int object and a pointer for each
#: four bytes of offsets, a small dict for each dozen bytes of attributes.
OBJECT_BYTES_PER_BYTE = 32
#: Buffers, exceptions and caches that do not depend on the input.
SLACK_BYTES = 128 * 1024


def verdict(buffer: bytes) -> list[Message] | None:
    """The messages of a block that is accepted, after using all of it; None when it is refused."""
    try:
        block = Block.decode(buffer)
    except RemoteProtocolError:
        return None
    use_everything(block)
    return contents(block)


def agreed(buffer: bytes) -> bool:
    """Whether both readers accept; they must agree on whether, and on what is inside."""
    messages = verdict(buffer)
    broken = ""
    try:
        expected = reader.read(bytes(buffer))
    except reader.RefusedError as refusal:
        broken, expected = str(refusal), None
    assert repr(messages) == repr(expected), broken
    return expected is not None


def mutated(rng: random.Random, whole: bytes) -> bytes:
    """Damage of the kinds that wires, disks and attackers do."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(7):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.choice((1, 4, 8, 64))]
            case 3:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 64)))
            case 4:
                data += rng.choice((b"\x00", bytes(8), rng.randbytes(16)))
            case 5:
                other = rng.choice(FILES)
                data[at:] = other[rng.randrange(len(other)) :]
            case _:
                at -= at % 4
                data[at : at + 4] = rng.choice(EDGES).to_bytes(4, "little")
    return bytes(data)


# -- arbitrary and damaged bytes ---------------------------------------------------------------


@untimed
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_even_with_right_checks(data):
    assert verdict(data) is None
    assert verdict(seal(b"RDBK" + data)) is None or data[:1] == b"\x01"


@settings(untimed, max_examples=300)
@given(
    payload=st.binary(max_size=200),
    header=st.fixed_dictionaries(
        {
            "count": st.sampled_from(EDGES) | st.integers(1, 20),
            "raw_bytes": st.sampled_from(EDGES) | st.integers(0, 200),
        },
        optional={
            "flags": st.integers(0, 255),
            "codec": st.integers(0, 3),
            "priority": st.integers(0, 255),
            "base": st.integers(-1, 2**53),
            "sent_ms": st.integers(-(2**63), 2**63 - 1),
            "length": st.sampled_from(EDGES),
        },
    ),
)
def test_any_header_over_any_payload_is_judged_alike_by_both_readers(payload, header):
    agreed(forge(payload, **header))


def test_every_header_byte_can_have_every_value():
    whole = FILES[0]
    accepted = 0
    for at in range(64):
        for value in range(256):
            data = bytearray(whole)
            data[at] = value
            accepted += agreed(seal(bytes(data)))
    assert accepted > 64


@pytest.mark.parametrize("sealed", [False, True], ids=["torn", "forged"])
def test_damaged_golden_blocks_are_refused_or_readable(sealed):
    rng = random.Random(20_240_229 + sealed)
    accepted = 0
    for _ in range(6_000):
        data = mutated(rng, rng.choice(FILES))
        accepted += agreed(seal(data) if sealed else data)
    # With right checks much damage is to bodies and harms nobody; without, none passes unless the
    # damage happened to change nothing.
    assert accepted > 1_000 if sealed else accepted < 300


@pytest.mark.parametrize("codec", [0, 1, 2])
def test_damage_inside_the_compressed_part_is_refused_or_readable(codec):
    rng = random.Random(codec)
    raws = [column([b"a", b"", b"ccc"]) + column([b"k", b"l", b"m"]) for _ in range(2)]
    raws[1] += column([msgspec.msgpack.encode({"n": [1, "x", None]}), b"", b"\x80"])
    fixed = bytes(16 + 24)
    accepted = 0
    for _ in range(2_000):
        flags = rng.choice((1, 3))
        raw = mutated(rng, raws[flags == 3])
        packed = compress(raw, codec) if codec else raw
        accepted += agreed(
            forge(fixed + packed, count=3, flags=flags, codec=codec, raw_bytes=len(raw))
        )
    assert accepted > 50


@untimed
@given(drawn(), st.randoms(use_true_random=False))
def test_damaged_blocks_of_every_shape_are_refused_or_readable(sample, rng):
    whole = sample.build().buffer
    assert agreed(whole)
    agreed(seal(mutated(rng, whole)))


# -- forged structure --------------------------------------------------------------------------

ONE = bytes(8) + column([b"x"])


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (b"", "at least 64 bytes, not 0"),
        (bytes(64), "starts with b'RDBK', not"),
        (seal(b"RDBK\x02" + bytes(59)), "format version 2; this program reads 1"),
        (forge(ONE)[:60] + bytes(4) + ONE, "header does not match"),
        (forge(ONE, length=23), "announces 23 bytes after its header and has 24"),
        (forge(ONE)[:64] + ONE[:-1] + b"!", "content does not match"),
        (forge(ONE, count=0), "cannot hold its 0 messages"),
        (forge(ONE, count=65_536), "cannot hold its 65536 messages"),
        (forge(ONE, count=2**32 - 1), "cannot hold its 4294967295 messages"),
        (forge(ONE, flags=4), "flags 4"),
        (forge(ONE, codec=3), "codec 3"),
        (forge(ONE, priority=10), "Priority 10 exceeds 9"),
        (forge(ONE, base=-1), "never negative"),
        (forge(ONE, sent_ms=-1), "never negative"),
        (forge(ONE, stored_ms=-1), "never negative"),
        (forge(ONE, not_before_ms=-1), "never negative"),
        (forge(ONE, base=limits.OFFSET_MAX), "beyond 9007199254740992"),
        (forge(ONE, raw_bytes=17), "another size than announced"),
        (forge(ONE, codec=1, raw_bytes=2**32 - 1), "beyond its limit"),
        (forge(bytes(8)), "within a column's offsets"),
        (forge(bytes(8) + column([b"x"], [0, 9])), "within a column's bytes"),
        (forge(bytes(8) + column([b"x"], [0, 2**31 - 1])), "within a column's bytes"),
        (forge(bytes(8) + column([b"x"], [0, -1])), "do not grow from zero"),
        (forge(bytes(8) + column([b"x"], [1, 1])), "do not grow from zero"),
        (forge(bytes(8) + column([b"xyz"], [0, 3, 2]), count=2), "do not grow from zero"),
        (forge(ONE + bytes(8)), "8 bytes after its last column"),
        (forge(ONE, flags=2), "within a column's offsets"),
        (forge(ONE + column([b"\x91\x01"]), flags=2), "attributes cannot be read"),
        (forge(ONE + column([b"\x81\x01\x01"]), flags=2), "attributes cannot be read"),
        (forge(ONE + column([b"\x81\xa1a\xa1\xff"]), flags=2), "attributes cannot be read"),
        (forge(ONE + column([b"\x80\x00"]), flags=2), "attributes cannot be read"),
        (forge(ONE + column([b"\x81\xa1a" + b"\x91" * 99_999]), flags=2), "cannot be read"),
    ],
)
def test_a_forged_block_is_refused_with_its_reason(buffer, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        Block.decode(buffer)


def test_one_message_too_many_is_refused_even_if_it_is_there():
    count = limits.BLOCK_MESSAGES_MAX + 1
    payload = padded(bytes(4 * count)) + column([b""] * count)
    raw_bytes = len(payload) - len(padded(bytes(4 * count)))
    with pytest.raises(RemoteProtocolError, match="cannot hold its 65537 messages"):
        Block.decode(forge(payload, count=count, raw_bytes=raw_bytes))


def test_the_edges_of_what_is_allowed_are_accepted():
    assert verdict(forge(ONE, priority=9, base=limits.OFFSET_MAX - 1))
    assert verdict(forge(ONE, sent_ms=2**63 - 1, not_before_ms=2**63 - 1))
    assert verdict(forge(b"\xff" * 8 + column([b"x"])))[0][3] == 2**32 - 1


def test_attributes_that_were_accepted_can_be_read_from_any_depth_of_the_stack():
    packed = b"\x81\xa1a" + b"\x91" * 500 + b"\xc0"
    try:
        block = Block.decode(forge(ONE + column([packed]), flags=2))
    except RemoteProtocolError:
        return

    def descend(levels: int) -> list:
        return descend(levels - 1) if levels else block.attributes()

    descend(sys.getrecursionlimit() - 400)


# -- memory ------------------------------------------------------------------------------------

BOMB = bytes(8) + zstandard.ZstdCompressor().compress(bytes(8_000_000))
BOMB_LZ4 = bytes(8) + lz4.block.compress(bytes(8_000_000), store_size=False)


def packed_attributes(value: bytes) -> bytes:
    """A block of one message whose attribute `a` has the MessagePack encoding `value`."""
    return forge(ONE + column([b"\x81\xa1a" + value]), flags=2)


@pytest.mark.parametrize(
    "buffer",
    [
        pytest.param(forge(ONE, count=65_536), id="count"),
        pytest.param(forge(ONE, count=2**32 - 1, flags=3), id="largest count"),
        pytest.param(forge(ONE, codec=1, raw_bytes=2**32 - 1), id="opened size, zstd"),
        pytest.param(forge(ONE, codec=2, raw_bytes=2**32 - 1), id="opened size, lz4"),
        pytest.param(forge(ONE, codec=2, raw_bytes=16_000), id="opened size within the ratio"),
        pytest.param(forge(BOMB, codec=1, raw_bytes=8_000_000), id="bomb, zstd"),
        pytest.param(forge(BOMB, codec=1, raw_bytes=24), id="bomb that hides its size, zstd"),
        pytest.param(forge(BOMB_LZ4, codec=2, raw_bytes=24), id="bomb that hides its size, lz4"),
        pytest.param(forge(bytes(8) + column([b"x"], [0, 2**31 - 1])), id="length"),
        pytest.param(forge(bytes(8) + column([b"x"], [0, -(2**31)])), id="negative length"),
        pytest.param(packed_attributes(b"\xdd\xff\xff\xff\xff" + b"\xc0" * 100), id="array"),
        pytest.param(packed_attributes(b"\xdf\x7f\xff\xff\xff" + b"\xa0\xc0" * 100), id="map"),
        pytest.param(packed_attributes(b"\xdb\xff\xff\xff\xff" + b"x" * 100), id="text"),
        pytest.param(packed_attributes(b"\xc6\xff\xff\xff\xff" + b"x" * 100), id="binary"),
    ],
)
def test_a_forged_number_is_refused_before_anything_is_allocated_for_it(buffer):
    def attempt() -> None:
        with pytest.raises(RemoteProtocolError):
            Block.decode(buffer)

    attempt()  # Whatever is imported or cached once is not the input's doing.
    assert peak_bytes(attempt) < SLACK_BYTES + 3 * len(buffer)


@pytest.mark.parametrize(
    "bodies",
    [
        pytest.param([bytes(1_000_000)], id="one large body"),
        pytest.param([b"\xff"] * 5_000, id="many bodies of one byte"),
        pytest.param([bytes(n % 5) for n in range(5_000)], id="many unequal bodies"),
        pytest.param([b""] * 5_000, id="many empty bodies"),
    ],
)
@pytest.mark.parametrize("codec", [0, 2])
def test_opening_costs_no_more_than_the_announced_size_justifies(bodies, codec):
    raw = column(bodies)
    count = len(bodies)
    payload = padded(bytes(4 * count)) + (compress(raw, codec) if codec else raw)
    buffer = forge(payload, count=count, codec=codec, raw_bytes=len(raw))

    def read_all() -> None:
        contents(Block.decode(buffer))

    opened = len(buffer) + len(raw)
    assert peak_bytes(read_all) < SLACK_BYTES + OBJECT_BYTES_PER_BYTE * opened


@pytest.mark.parametrize("element", [b"\x90", b"\x80"], ids=["lists", "maps"])
def test_nested_attributes_do_not_multiply_memory(element):
    elements = 60_000
    buffer = packed_attributes(b"\xdd" + elements.to_bytes(4, "big") + element * elements)

    def attempt() -> None:
        with contextlib.suppress(RemoteProtocolError):
            Block.decode(buffer).attributes()

    assert peak_bytes(attempt) < SLACK_BYTES + OBJECT_BYTES_PER_BYTE * len(buffer)


def test_reading_a_block_leaves_nothing_behind_in_memory():
    buffers = [Block.build([b"x" * n] * 20_000, sent_ms=0).buffer for n in (21, 22, 23)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for buffer in buffers:
            Block.decode(buffer).bodies()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < SLACK_BYTES
