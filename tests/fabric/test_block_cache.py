"""What a store on a fabric remembers of blocks is bounded, for one stripe and for all."""

import pytest

from ringdove.core.block import Block
from ringdove.stores.base import StripeId
from ringdove.stores.fabric import places
from ringdove.stores.fabric.places import BlockCache, Place


@pytest.fixture
def stripes():
    return [Place(StripeId(1, number, 0)) for number in range(3)]


def block(base, nbytes=1000):
    return Block.build([bytes(nbytes)], sent_ms=1).stamp(base, 1)


def test_a_block_is_found_by_any_of_its_offsets(stripes):
    cache = BlockCache()
    kept = Block.build([b"a", b"b", b"c"], sent_ms=1).stamp(10, 1)
    cache.add(stripes[0], [kept])
    assert [stripes[0].known_block(offset) for offset in (9, 10, 12, 13)] == [
        None,
        kept,
        kept,
        None,
    ]
    assert stripes[1].known_block(10) is None
    cache.forget(stripes[0])
    assert stripes[0].known_block(10) is None


def test_of_one_stripe_the_last_blocks_are_kept(stripes):
    cache = BlockCache()
    for base in range(200):
        cache.add(stripes[0], [block(base)])
    assert [kept.base for kept in stripes[0].blocks] == list(range(136, 200))


def test_of_all_stripes_those_used_last_keep_theirs(stripes, monkeypatch):
    monkeypatch.setattr(places, "_CACHE_BYTES_MAX", 50_000)
    cache = BlockCache()
    for stripe in stripes:
        cache.add(stripe, [block(base) for base in range(30)])
    assert sum(kept.nbytes for stripe in stripes for kept in stripe.blocks) <= 50_000
    assert not stripes[0].blocks
    assert len(stripes[2].blocks) == 30
