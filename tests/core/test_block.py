"""Building, reading, placing and slicing blocks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.samples import column, contents, drawn, forge, padded, untimed
from ringdove import limits
from ringdove.core.block import HEADER_BYTES, Block, key_hash
from ringdove.errors import LocalProtocolError

BODIES = [b"first", b"", b"third and longest"]
LONG = [b"celsius=21.5;" * 20 + b"%d" % n for n in range(50)]


def base_of(buffer) -> int:
    """The base offset in the bytes of a block."""
    return int.from_bytes(buffer[8:16], "little")


def rebuilt(block: Block) -> Block:
    """The block after a journey over wire or disk."""
    return Block.decode(block.buffer)


# -- round trips -------------------------------------------------------------------------------


@untimed
@given(drawn())
def test_what_is_built_comes_out_again(sample):
    block = rebuilt(sample.build())
    assert repr(contents(block)) == repr(sample.messages())
    assert block.not_before_ms == sample.not_before_ms
    assert block.priority == sample.priority
    assert block.keyed == (sample.keys is not None)
    assert block.compression in {"none", sample.compression}
    assert list(block.key_hashes() if block.keyed else []) == list(map(key_hash, sample.keys or []))


@untimed
@given(drawn())
def test_a_block_reads_the_same_before_and_after_its_journey(sample):
    block = sample.build()
    again = rebuilt(block)
    assert repr(contents(again)) == repr(contents(block))
    assert again.buffer == block.buffer
    assert (again.checksum, again.raw_bytes) == (block.checksum, block.raw_bytes)
    assert repr(again) == repr(block)


@untimed
@given(drawn(), st.data())
def test_a_slice_holds_what_slicing_the_list_of_messages_gives(sample, data):
    whole = rebuilt(sample.build().stamp(1_000, 5))
    start = data.draw(st.integers(0, whole.count - 1))
    stop = data.draw(st.integers(start + 1, whole.count))
    part = rebuilt(whole.slice(start, stop))
    assert repr(contents(part)) == repr(sample.messages()[start:stop])
    assert (part.base, part.end) == (1_000 + start, 1_000 + stop)
    assert (part.stored_ms, part.not_before_ms) == (5, sample.not_before_ms)
    assert (part.priority, part.keyed) == (sample.priority, whole.keyed)
    if whole.keyed:
        assert part.key_hashes().tolist() == whole.key_hashes().tolist()[start:stop]


@untimed
@given(drawn(), st.data())
def test_a_slice_of_a_slice_is_a_slice(sample, data):
    whole = sample.build()
    start = data.draw(st.integers(0, whole.count - 1))
    stop = data.draw(st.integers(start + 1, whole.count))
    inner = data.draw(st.integers(0, stop - start - 1))
    assert whole.slice(start, stop).slice(inner, stop - start).buffer == (
        whole.slice(start + inner, stop).buffer
    )


@untimed
@given(drawn(), st.data())
def test_however_blocks_are_derived_from_each_other_each_stays_what_it_is(sample, data):
    family = [sample.build()]
    expected = [(0, 0, sample.not_before_ms, sample.messages())]
    for _ in range(data.draw(st.integers(1, 8))):
        chosen = data.draw(st.integers(0, len(family) - 1))
        block, (base, stored_ms, not_before_ms, messages) = family[chosen], expected[chosen]
        a, b = data.draw(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)))
        match data.draw(st.sampled_from(["stamp", "defer", "slice", "buffer"])):
            case "stamp":
                family.append(block.stamp(a, b))
                expected.append((a, b, not_before_ms, messages))
            case "defer":
                family.append(block.defer(a))
                expected.append((base, stored_ms, a, messages))
            case "slice":
                start = a % block.count
                family.append(block.slice(start, block.count))
                expected.append((base + start, stored_ms, not_before_ms, messages[start:]))
            case _:
                assert base_of(block.buffer) == base
    for block, (base, stored_ms, not_before_ms, messages) in zip(family, expected, strict=True):
        for each in (block, rebuilt(block)):
            assert (each.base, each.stored_ms, each.not_before_ms) == (
                (base, stored_ms, not_before_ms)
            )
            assert repr(contents(each)) == repr(messages)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_block_is_read_from_any_buffer_of_bytes(kind):
    buffer = Block.build(LONG, sent_ms=1, keys=[b"k"] * 50, compression="zstd").buffer
    block = Block.decode(kind(bytes(buffer)))
    assert block.bodies() == LONG
    assert block.keys() == [b"k"] * 50
    assert {type(body) for body in block.bodies()} == {bytes}
    assert rebuilt(block.slice(3, 5)).bodies() == LONG[3:5]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bodies_may_be_any_buffer_of_bytes(kind):
    block = Block.build([kind(body) for body in BODIES], sent_ms=1)
    assert rebuilt(block).bodies() == BODIES


def test_a_block_keeps_its_bytes_when_the_sender_reuses_its_buffer():
    body = bytearray(b"before")
    block = Block.build([body], sent_ms=1)
    body[:] = b"after!"
    assert block.bodies() == [b"before"]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_bodies_of_equal_length_take_the_short_path_and_stay_equal(length, count):
    bodies = [bytes([n]) * length for n in range(count)]
    assert rebuilt(Block.build(bodies, sent_ms=1)).bodies() == bodies


def test_a_block_without_keys_or_attributes_answers_with_empty_ones():
    block = rebuilt(Block.build(BODIES, sent_ms=1))
    assert block.keys() == [b"", b"", b""]
    assert block.attributes() == [{}, {}, {}]
    assert not block.keyed


def test_the_empty_attributes_of_a_block_are_not_shared():
    attributes = Block.build(BODIES, sent_ms=1).attributes()
    attributes[0]["mine"] = True
    assert attributes[1] == {}


def test_attributes_that_are_all_empty_take_no_column():
    bare = Block.build(BODIES, sent_ms=1)
    assert Block.build(BODIES, sent_ms=1, attributes=[None, {}, None]).buffer == bare.buffer


def test_special_floats_survive_as_attributes():
    block = Block.build([b""], sent_ms=1, attributes=[{"n": math.nan, "i": math.inf, "z": -0.0}])
    (named,) = rebuilt(block).attributes()
    assert math.isnan(named["n"])
    assert named["i"] == math.inf
    assert math.copysign(1, named["z"]) == -1


def test_the_largest_count_is_built_and_read():
    count = limits.BLOCK_MESSAGES_MAX
    block = rebuilt(Block.build([b"x"] * count, sent_ms=1))
    assert block.count == count
    assert block.bodies() == [b"x"] * count


# -- keys --------------------------------------------------------------------------------------


def test_only_the_missing_key_hashes_to_zero():
    assert key_hash(b"") == 0
    assert key_hash(b"\x00") != 0


def test_the_key_hash_is_xxh3_of_64_bits_without_a_seed():
    assert key_hash(b"a") == 0xE6C632B61E964E1F
    assert key_hash(b"abc") == 0x78AF5F94892F3950


def test_equal_keys_have_equal_hashes_in_the_column():
    block = Block.build([b""] * 4, sent_ms=1, keys=[b"a", b"b", b"", b"a"])
    first, second, none, again = block.key_hashes()
    assert first == again == key_hash(b"a")
    assert second == key_hash(b"b") != first
    assert none == 0


# -- times -------------------------------------------------------------------------------------


def test_send_times_may_span_the_whole_range_and_be_in_any_order():
    times = [5 + limits.BLOCK_SPAN_MS_MAX, 5, 6]
    block = rebuilt(Block.build(BODIES, sent_ms=times))
    assert block.sent_times_ms() == times
    assert block.sent_ms == 5


def test_send_times_further_apart_than_the_format_holds_are_refused_with_the_remedy():
    with pytest.raises(LocalProtocolError, match=r"4294967295 ms; put older messages"):
        Block.build(BODIES, sent_ms=[5, 6, 6 + limits.BLOCK_SPAN_MS_MAX])


def test_a_slice_keeps_the_send_time_of_each_message():
    times = [1_000, 3_000, 2_000]
    part = rebuilt(Block.build(BODIES, sent_ms=times)).slice(1, 3)
    assert rebuilt(part).sent_times_ms() == times[1:]


# -- compression -------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compression_makes_repetitive_bodies_smaller(compression):
    block = rebuilt(Block.build(LONG, sent_ms=1, compression=compression))
    assert block.compression == compression
    assert block.nbytes < Block.build(LONG, sent_ms=1).nbytes / 4
    assert block.bodies() == LONG


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_body_that_compression_would_enlarge_is_stored_as_it_is(compression):
    block = Block.build([b"x"], sent_ms=1, compression=compression)
    assert block.compression == "none"
    assert block.buffer == Block.build([b"x"], sent_ms=1).buffer


def test_a_block_that_a_reader_would_take_for_a_bomb_is_stored_uncompressed():
    bodies = [bytes(1_000_000)] * 2
    block = Block.build(bodies, sent_ms=1, compression="zstd")
    assert block.compression == "none"
    assert rebuilt(block).bodies() == bodies


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_slice_of_a_compressed_block_is_uncompressed(compression):
    whole = rebuilt(Block.build(LONG, sent_ms=list(range(50)), compression=compression))
    part = rebuilt(whole.slice(10, 12))
    assert part.compression == "none"
    assert part.bodies() == LONG[10:12]
    assert part.sent_times_ms() == [10, 11]


def test_the_fixed_columns_are_readable_without_opening_the_variable_part():
    keys = [b"k%d" % n for n in range(50)]
    buffer = Block.build(LONG, sent_ms=list(range(50)), keys=keys, compression="zstd").buffer
    spoiled = buffer[: HEADER_BYTES + 200 + 400] + b"no frame"
    block = Block.decode(forge_again(spoiled), trusted=True)
    assert block.sent_times_ms() == list(range(50))
    assert list(block.key_hashes()) == [key_hash(key) for key in keys]


def forge_again(buffer: bytes) -> bytes:
    """The buffer with a header for 50 keyed, compressed messages and right checks."""
    return forge(buffer[HEADER_BYTES:], count=50, flags=1, codec=1, raw_bytes=1)


# -- placing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_stamp_and_defer_share_the_columns(compression):
    block = Block.build(LONG, sent_ms=1, compression=compression)
    for placed in (block.stamp(7, 8), block.defer(9)):
        assert placed._payload is block._payload
        assert placed.checksum == block.checksum
        assert rebuilt(placed).bodies() == LONG


def test_stamp_writes_offset_and_time_and_leaves_the_original_alone():
    block = Block.build(BODIES, sent_ms=1, not_before_ms=4, priority=2)
    before = block.buffer
    placed = rebuilt(block.stamp(2**52, 77))
    assert (placed.base, placed.end, placed.stored_ms) == (2**52, 2**52 + 3, 77)
    assert (placed.not_before_ms, placed.priority, placed.sent_ms) == (4, 2, 1)
    assert base_of(placed.buffer) == 2**52
    assert (block.base, block.stored_ms, block.buffer) == (0, 0, before)


def test_every_stamp_of_a_block_has_a_header_of_its_own():
    block = Block.build(BODIES, sent_ms=1)
    first, second = block.stamp(10, 1), block.stamp(20, 2)
    assert (base_of(first.buffer), base_of(second.buffer)) == (10, 20)
    again = first.stamp(30, 3)
    assert (base_of(first.buffer), base_of(again.buffer), base_of(block.buffer)) == (10, 30, 0)
    assert [rebuilt(each).bodies() for each in (block, first, second, again)] == [BODIES] * 4


def test_defer_changes_only_when_the_block_is_deliverable():
    block = Block.build(BODIES, sent_ms=1, priority=3).stamp(5, 6)
    later = rebuilt(block.defer(99))
    assert (later.not_before_ms, later.base, later.stored_ms, later.priority) == (99, 5, 6, 3)
    assert block.not_before_ms == 0


def test_a_slice_of_everything_is_the_block_itself():
    block = Block.build(BODIES, sent_ms=1)
    assert block.slice(0, 3) is block


def test_a_decoded_block_gives_back_the_very_buffer_it_was_read_from():
    buffer = Block.build(BODIES, sent_ms=1).buffer
    assert Block.decode(buffer).buffer is buffer


def test_padding_is_written_as_zeros():
    buffer = Block.build([b"abc"], sent_ms=1, keys=[b"k"]).buffer
    assert buffer[HEADER_BYTES + 4 : HEADER_BYTES + 8] == bytes(4)
    assert buffer[HEADER_BYTES + 16 :] == column([b"abc"]) + column([b"k"])
    assert len(buffer) % 8 == 0
    assert padded(b"abc") == b"abc" + bytes(5)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("keyed", [False, True])
def test_the_size_of_a_slice_is_known_before_it_is_cut(compression, keyed):
    bodies = [bytes(size) for size in (0, 1, 700, 8, 9, 3000)]
    block = Block.build(
        bodies,
        sent_ms=5,
        keys=[b"k" * n for n in range(6)] if keyed else None,
        attributes=[{"a": "b" * n} if n % 2 else None for n in range(6)],
        compression=compression,
    ).stamp(0, 1)
    for start in range(6):
        for stop in range(start + 1, 7):
            assert block.slice_bytes(start, stop) == block.slice(start, stop).nbytes
