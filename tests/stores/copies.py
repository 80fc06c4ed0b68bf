"""What a store promises of copies: blocks that keep the offsets and times of their origin (M2)."""

from __future__ import annotations

from ringdove.core.block import Block
from ringdove.core.dedup import Appended, Segment
from ringdove.errors import InvalidArgument, QueueIsCopy, SequenceRefused
from stores.driver import Driver, block

#: How long before now the origin has stored everything.
AGE_MS = 5


def placed(driver: Driver, base: int, *bodies: bytes, at: int | None = None) -> Segment:
    """A relay's segment: messages that stand at `base` in their origin, wanted `at` this offset."""
    stamped = Block.decode(bytes(block(*bodies).stamp(base, driver.clock.now_ms() - AGE_MS).buffer))
    return Segment(stamped, sequence=base if at is None else at, placed=True)


class CopyContract:
    """Only on stores that keep copies; a fabric does not."""

    def test_blocks_keep_their_offsets_and_times(self, driver: Driver) -> None:
        driver.make(relayed=True)
        assert driver.append(placed(driver, 0, b"a", b"b"), placed(driver, 2, b"c")) == [
            Appended(0),
            Appended(2),
        ]
        stored_ms = driver.clock.now_ms() - AGE_MS
        found = [(kept.base, kept.stored_ms) for kept in driver.read(0)]
        assert found == [(0, stored_ms), (2, stored_ms)]
        assert driver.finish() == [b"a", b"b", b"c"]

    def test_a_repeated_block_is_recognised_by_its_place(self, driver: Driver) -> None:
        driver.make(relayed=True)
        driver.append(placed(driver, 0, b"a", b"b"))
        assert driver.append(placed(driver, 0, b"a", b"b")) == [Appended(0, duplicate=True)]
        assert driver.stats().tail == 2

    def test_a_block_is_taken_only_where_the_copy_stands(self, driver: Driver) -> None:
        driver.make(relayed=True)
        driver.append(placed(driver, 0, b"a", b"b"))
        [early], [overlapping] = (
            driver.append(placed(driver, 7, b"x")),
            driver.append(placed(driver, 1, b"b", b"c", at=2)),
        )
        for refusal in (early, overlapping):
            assert isinstance(refusal, SequenceRefused)
            assert refusal.expected == 2
        assert driver.replay(0) == [b"a", b"b"]

    def test_what_the_origin_has_no_more_is_passed_over(self, driver: Driver) -> None:
        driver.make(relayed=True)
        driver.append(placed(driver, 0, b"a"))
        assert driver.append(placed(driver, 10, b"k", b"l", at=1)) == [Appended(10)]
        assert driver.replay(1) == [b"k", b"l"]
        assert driver.finish() == [b"a", b"k", b"l"]
        assert (driver.sub().floor, driver.sub().waiting) == (12, 0)
        assert driver.stats().head == 12

    def test_a_copy_takes_nothing_from_senders(self, driver: Driver) -> None:
        driver.make(relayed=True)
        [refusal] = driver.append(Segment(block(b"mine")))
        assert isinstance(refusal, QueueIsCopy)
        assert driver.stats().tail == 0

    def test_only_a_copy_takes_placed_blocks(self, driver: Driver) -> None:
        driver.make()
        [refusal] = driver.append(placed(driver, 0, b"a"))
        assert isinstance(refusal, InvalidArgument)

    def test_a_copy_whose_origin_is_lost_becomes_a_queue_of_its_own(self, driver: Driver) -> None:
        driver.make(relayed=True)
        driver.append(placed(driver, 0, b"a"))
        driver.change(relayed=False)
        assert driver.append(Segment(block(b"b"))) == [Appended(1)]
        assert driver.finish() == [b"a", b"b"]
