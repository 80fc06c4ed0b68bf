"""Blocks become record batches and record batches become blocks, message by message the same."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringdove import limits
from ringdove.core.block import Block, key_hash
from ringdove.errors import InvalidArgument, MessageTooLarge
from ringdove.spark.arrow import Wrapper
from ringdove.spark.columns import COLUMNS
from ringdove.spark.packing import Packer, by_stripe, has_keys, in_order, prepare
from ringdove.stores.base import StripeId

STRIPE = StripeId(7, 3, 1)
SENT_MS = 1_700_000_000_000

bodies = st.binary(max_size=40)
keys = st.binary(max_size=8)
texts = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)
rows = st.lists(st.tuples(bodies, keys, texts, st.integers(0, 10_000)), min_size=1, max_size=30)
codecs = st.sampled_from(["none", "zstd", "lz4"])


def build(messages, compression="none", *, keyed=True, attributed=True):
    return Block.build(
        [body for body, *_ in messages],
        sent_ms=[SENT_MS + late for *_, late in messages],
        keys=[key for _, key, *_ in messages] if keyed else None,
        attributes=[own for *_, own, _ in messages] if attributed else None,
        priority=1,
        compression=compression,
    ).stamp(500, SENT_MS + 20_000)


@settings(deadline=None)
@given(rows, codecs, st.booleans(), st.booleans(), st.data())
def test_a_block_is_wrapped_whole_or_in_part(messages, compression, keyed, attributed, data):
    block = build(messages, compression, keyed=keyed, attributed=attributed)
    start = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(start + 1, len(messages)))
    batch = Wrapper(STRIPE, list(COLUMNS)).wrap(block, start, stop)
    batch.validate(full=True)
    attributed = attributed and any(own for *_, own, _ in messages)
    for at, row in enumerate(batch.to_pylist(), start):
        body, key, own, late = messages[at]
        sent_ms = row.pop("sent").timestamp() * 1000
        assert round(sent_ms) == SENT_MS + late
        assert round(row.pop("stored").timestamp() * 1000) == SENT_MS + 20_000
        assert dict(row.pop("attributes") or ()) == (own if attributed else {})
        assert row == {
            "body": body, "key": key if keyed else None,
            "stripe": 3, "priority": 1, "offset": 500 + at,
        }  # fmt: skip


def test_attributes_that_are_no_text_are_told_as_json():
    own = {"n": 1, "b": b"\xff", "l": [1, "x"], "t": "x", "none": None}
    block = build([(b"", b"", own, 0)])
    [row] = Wrapper(STRIPE, ["attributes"]).wrap(block, 0, 1).to_pylist()
    assert dict(row["attributes"]) == {
        "n": "1", "b": '"ff"', "l": '[1, "x"]', "t": "x", "none": "null"
    }  # fmt: skip


def test_small_blocks_are_put_together_and_large_ones_left_alone():
    small = [(build([(b"x", b"", {}, 0)] * 100), 0, 100)] * 250
    batches = list(Wrapper(STRIPE, ["body"]).wrap_all(small))
    assert [batch.num_rows for batch in batches] == [10_000, 10_000, 5_000]
    large = build([(b"x" * 1_000, b"", {}, 0)] * 2_000)
    [batch, _] = Wrapper(STRIPE, ["body"]).wrap_all([(large, 0, 2_000), (large, 0, 5)])
    assert batch.num_rows == 2_000


def table(messages, *, text=False):
    if text:
        messages = [(body.hex(), key.hex(), own, late) for body, key, own, late in messages]
    kind = pa.string() if text else pa.binary()
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array([m[0] for m in messages], kind),
            "key": pa.array([m[1] or None for m in messages], kind),
            "attributes": pa.array(
                [list(m[2].items()) or None for m in messages], pa.map_(pa.string(), pa.string())
            ),
        }
    )


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=4), codecs, st.booleans(), st.integers(0, 3))
def test_batches_are_packed_in_order(parts, compression, text, skipped):
    packer = Packer(compression, SENT_MS)
    expected = []
    for part in parts:
        batch = table(part, text=text).slice(skipped)  # Columns need not begin at their buffers'.
        expected += part[skipped:]
        if batch.num_rows:
            packer.add(prepare(batch))
    packer.finish()
    blocks = [Block.decode(bytes(block.buffer)) for block in packer.take()]
    form = (lambda value: value.hex().encode()) if text else (lambda value: value)
    assert [b for block in blocks for b in block.bodies()] == [form(m[0]) for m in expected]
    assert [k for block in blocks for k in block.keys(0)] == [form(m[1]) for m in expected]
    assert [a for block in blocks for a in block.attributes()] == [m[2] for m in expected]
    for block in blocks:
        assert list(block.key_hashes()) == [key_hash(key) for key in block.keys(0)]


def test_blocks_are_cut_by_rows_and_bytes():
    packer = Packer("none", SENT_MS)
    packer.add(prepare(table([(b"", b"", {}, 0)] * 150_000)))
    packer.add(prepare(table([(b"x" * 400_000, b"", {}, 0)] * 7)))
    packer.add(prepare(table([(b"x" * (limits.BODY_BYTES_MAX), b"", {}, 0)])))
    packer.finish()
    counts = [block.count for block in packer.take()]
    assert counts[:3] == [65_536, 65_536, 18_928]
    assert counts[3:] == [2, 2, 2, 1, 1]


def test_a_body_must_be_there():
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"x", None])})
    with pytest.raises(InvalidArgument, match="'body' has nulls"):
        prepare(batch)


@settings(deadline=None)
@given(rows, st.integers(1, 7))
def test_keys_choose_stripes_and_keep_their_order(messages, stripes):
    messages = [(body, b"k" + key, own, late) for body, key, own, late in messages]
    batch = prepare(table(messages))
    assert has_keys(batch)
    placed = dict(by_stripe(batch, stripes))
    assert sum(part.num_rows for part in placed.values()) == len(messages)
    for number, part in placed.items():
        mine = [m for m in messages if key_hash(m[1]) % stripes == number]
        assert part.column("body").to_pylist() == [body for body, *_ in mine]


@pytest.mark.parametrize("some", [[None, b"k"], [b"", b"k"], [None, None]])
def test_a_row_without_a_key_is_noticed(some):
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], "key": pa.array(some, pa.binary())})
    assert not has_keys(prepare(batch))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary(), pa.string(), pa.binary()])
def test_text_and_bytes_of_every_type_are_taken(kind):
    column = pa.array(["a", None, "ü"], pa.string()).cast(kind)
    batch = pa.RecordBatch.from_pydict({"body": column.fill_null("b"), "key": column})
    prepared = prepare(batch)
    assert prepared.column("body").to_pylist() == [b"a", b"b", "ü".encode()]
    assert prepared.column("key").to_pylist() == [b"a", b"", "ü".encode()]


def test_a_key_that_is_too_long_is_refused():
    keys = [b"k" * limits.KEY_BYTES_MAX, b"k" * (limits.KEY_BYTES_MAX + 1)]
    assert prepare(pa.RecordBatch.from_pydict({"body": [b""], "key": keys[:1]})).num_rows == 1
    with pytest.raises(MessageTooLarge, match="1025 bytes"):
        prepare(pa.RecordBatch.from_pydict({"body": [b"", b""], "key": keys}))


@settings(deadline=None)
@given(rows, st.randoms(), st.integers(1, 30), st.integers(1, 30))
def test_rows_are_put_in_order_however_they_came(messages, chance, one, other):
    def put(messages, size):
        batches = []
        for first in range(0, len(messages), size):
            bodies, keys, own, _ = zip(*messages[first : first + size], strict=True)
            batches.append(
                pa.RecordBatch.from_pydict(
                    {
                        "body": pa.array(bodies, pa.binary()),
                        "key": pa.array([key or None for key in keys], pa.binary()),
                        "attributes": pa.array(
                            [sorted(a.items()) or None for a in own],
                            pa.map_(pa.string(), pa.string()),
                        ),
                    }
                )
            )
        return pa.Table.from_batches(in_order([prepare(batch) for batch in batches])).to_pylist()

    found = put(messages, one)
    chance.shuffle(messages)
    again = put(messages, other)
    assert found == again
    assert [row["body"] for row in found] == sorted(body for body, *_ in messages)
