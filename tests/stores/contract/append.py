"""Appending: offsets, repetition (M2), room, atomicity."""

from __future__ import annotations

import pytest

from ringdove import limits
from ringdove.core.dedup import JOB_MARK, Appended, Segment
from ringdove.errors import (
    LimitExceeded,
    QueueFull,
    QueueNotFound,
    SequenceRefused,
    SettingsStale,
)
from stores.driver import Driver, block


class AppendContract:
    """What `append` promises."""

    def test_offsets_are_dense_and_grow_from_zero(self, driver: Driver) -> None:
        """I7."""
        driver.make()
        assert [driver.count(0, 3).base, driver.count(3, 4).base, driver.count(4, 9).base] == [
            0,
            3,
            4,
        ]
        assert driver.stats().tail == 9

    def test_a_block_is_stamped_with_its_offset_and_the_store_s_time(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 2)
        driver.clock.sleep_ms(7)
        driver.count(2, 3)
        first, second = driver.read(0)
        assert (first.base, first.count, second.base, second.count) == (0, 2, 2, 1)
        assert second.stored_ms == first.stored_ms + 7 == driver.clock.now_ms()

    def test_bodies_keys_and_attributes_come_back_as_they_were_sent(self, driver: Driver) -> None:
        driver.make()
        sent = block(b"", b"\x00\xff", b"x" * 5000, keys=[b"a", b"", b"b"])
        driver.append(Segment(sent))
        [got] = driver.read(0)
        assert (got.bodies(), got.keys()) == (sent.bodies(), sent.keys())
        assert got.key_hashes().tolist() == sent.key_hashes().tolist()

    def test_segments_of_one_call_are_appended_in_order(self, driver: Driver) -> None:
        driver.make()
        answers = driver.append(*(Segment(block(b"%d" % n, b"-")) for n in range(3)))
        assert answers == [Appended(0), Appended(2), Appended(4)]
        assert driver.replay(0) == [b"0", b"-", b"1", b"-", b"2", b"-"]

    def test_an_append_of_no_segments_changes_nothing(self, driver: Driver) -> None:
        driver.make()
        assert driver.append() == []
        assert driver.stats().tail == 0

    def test_appending_to_an_unknown_stripe_is_refused(self, driver: Driver) -> None:
        with pytest.raises(QueueNotFound):
            driver.send(b"lost")

    # -- repetition by producer -----------------------------------------------------------------

    def test_a_repeated_segment_is_answered_with_its_first_offset(self, driver: Driver) -> None:
        driver.make()
        driver.count(0, 5)
        first = driver.send(b"a", b"b", producer=b"p", sequence=0, span=2)
        again = driver.send(b"a", b"b", producer=b"p", sequence=0, span=2)
        assert (first, again) == (Appended(5), Appended(5, duplicate=True))
        assert driver.stats().tail == 7

    def test_an_older_repetition_is_recognised_without_its_offset(self, driver: Driver) -> None:
        driver.make()
        for sequence in range(3):
            driver.send(b"%d" % sequence, producer=b"p", sequence=sequence)
        assert driver.send(b"0", producer=b"p", sequence=0) == Appended(-1, duplicate=True)
        assert driver.stats().tail == 3

    def test_a_repetition_within_one_call_is_recognised(self, driver: Driver) -> None:
        driver.make()
        segment = Segment(block(b"a"), b"p", 0)
        assert driver.append(segment, segment) == [Appended(0), Appended(0, duplicate=True)]
        assert driver.stats().tail == 1

    def test_a_gap_in_a_sequence_is_refused(self, driver: Driver) -> None:
        driver.make()
        driver.send(b"0", producer=b"p", sequence=0)
        with pytest.raises(SequenceRefused):
            driver.send(b"2", producer=b"p", sequence=2)
        assert driver.stats().tail == 1
        assert driver.send(b"1", producer=b"p", sequence=1) == Appended(1)

    def test_a_gap_is_accepted_when_allowed(self, driver: Driver) -> None:
        driver.make()
        assert driver.send(b"7", producer=b"p", sequence=7, gaps=True) == Appended(0)
        assert driver.send(b"9", producer=b"p", sequence=9, gaps=True) == Appended(1)
        assert driver.send(b"8", producer=b"p", sequence=8, gaps=True).duplicate
        assert driver.send(b"10", producer=b"p", sequence=10) == Appended(2)

    def test_a_segment_of_used_and_new_numbers_is_refused(self, driver: Driver) -> None:
        driver.make()
        driver.send(b"0", b"1", producer=b"p", sequence=0, span=2)
        with pytest.raises(SequenceRefused):
            driver.send(b"1", b"2", producer=b"p", sequence=1, span=2)
        assert driver.send(b"2", producer=b"p", sequence=2) == Appended(2)

    def test_an_unknown_producer_must_start_at_zero(self, driver: Driver) -> None:
        driver.make()
        with pytest.raises(SequenceRefused):
            driver.send(b"5", producer=b"new", sequence=5)
        assert driver.send(b"0", producer=b"new", sequence=0) == Appended(0)

    def test_producers_are_judged_apart(self, driver: Driver) -> None:
        driver.make()
        driver.send(b"p0", producer=b"p", sequence=0)
        assert driver.send(b"q0", producer=b"q", sequence=0) == Appended(1)
        assert driver.send(b"q", producer=b"pq", sequence=0) == Appended(2)

    def test_stripes_remember_producers_apart(self, driver: Driver) -> None:
        driver.make(stripes=2)
        other = driver.beside(number=1)
        driver.send(b"0", producer=b"p", sequence=0)
        assert other.send(b"0", producer=b"p", sequence=0) == Appended(0)

    # -- repetition by message id ---------------------------------------------------------------

    def test_a_full_stripe_forgets_producers_of_single_jobs_first(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "PRODUCERS_MAX", 3)
        driver.make(retention_ms=24 * limits.JOB_PRODUCER_MS)
        for name in (b"a", JOB_MARK + b"job", b"b"):
            driver.send(b"x", producer=name)
        for pause_ms in (0, limits.JOB_PRODUCER_MS - 1):
            driver.clock.sleep_ms(pause_ms)
            assert driver.send(b"x", producer=JOB_MARK + b"job").duplicate
            with pytest.raises(LimitExceeded):
                driver.send(b"x", producer=b"c")
        driver.clock.sleep_ms(1)
        assert not driver.send(b"x", producer=b"c").duplicate
        assert driver.send(b"x", producer=b"a").duplicate
        with pytest.raises(LimitExceeded):
            driver.send(b"x", producer=b"d")
        driver.clock.sleep_ms(23 * limits.JOB_PRODUCER_MS)
        assert not driver.send(b"x", producer=b"d").duplicate

    def test_a_repeated_message_id_is_dropped_within_its_window(self, driver: Driver) -> None:
        driver.make(dedup_ms=1000)
        assert driver.send(b"a", message_id=b"id") == Appended(0)
        driver.clock.sleep_ms(999)
        assert driver.send(b"a", message_id=b"id") == Appended(0, duplicate=True)
        assert driver.send(b"b", message_id=b"other") == Appended(1)

    def test_a_message_id_is_new_again_after_its_window(self, driver: Driver) -> None:
        driver.make(dedup_ms=1000)
        driver.send(b"a", message_id=b"id")
        driver.clock.sleep_ms(1000)
        assert driver.send(b"a", message_id=b"id") == Appended(1)
        assert driver.send(b"a", message_id=b"id") == Appended(1, duplicate=True)

    def test_a_repetition_does_not_lengthen_the_window(self, driver: Driver) -> None:
        driver.make(dedup_ms=1000)
        driver.send(b"a", message_id=b"id")
        driver.clock.sleep_ms(600)
        assert driver.send(b"a", message_id=b"id").duplicate
        driver.clock.sleep_ms(600)
        assert driver.send(b"a", message_id=b"id") == Appended(1)

    def test_a_message_id_outlives_its_message(self, driver: Driver) -> None:
        driver.make(dedup_ms=1000)
        driver.send(b"a", message_id=b"id")
        driver.finish()
        assert driver.trim() == 1
        assert driver.send(b"a", message_id=b"id") == Appended(0, duplicate=True)

    def test_many_ids_past_their_window_are_all_forgotten(self, driver: Driver) -> None:
        driver.make(dedup_ms=1000)
        driver.append(*(Segment(block(b"x"), message_id=b"%d" % n) for n in range(200)))
        driver.clock.sleep_ms(1000)
        answers = driver.append(
            *(Segment(block(b"x"), message_id=b"%d" % n) for n in reversed(range(200)))
        )
        assert answers == [Appended(200 + n) for n in range(200)]

    # -- atomicity ------------------------------------------------------------------------------

    def test_a_refused_segment_does_not_stop_its_neighbours(self, driver: Driver) -> None:
        driver.make()
        answers = driver.append(
            Segment(block(b"a"), b"p", 0),
            Segment(block(b"jump"), b"p", 5),
            Segment(block(b"b", b"c")),
            Segment(block(b"d"), b"p", 1),
        )
        assert isinstance(answers[1], SequenceRefused)
        assert [answers[0], *answers[2:]] == [Appended(0), Appended(1), Appended(3)]
        assert driver.replay(0) == [b"a", b"b", b"c", b"d"]

    def test_a_stale_settings_version_stores_nothing(self, driver: Driver) -> None:
        driver.make()
        driver.change(lease_ms=5)
        with pytest.raises(SettingsStale):
            driver.append(Segment(block(b"a"), b"p", 0), version=1)
        assert driver.stats().tail == 0
        assert driver.append(Segment(block(b"a"), b"p", 0), version=2) == [Appended(0)]

    # -- room -----------------------------------------------------------------------------------

    def test_a_full_queue_refuses_and_stores_nothing(self, driver: Driver) -> None:
        size = block(b"x" * 100).nbytes
        driver.make(bytes_max=3 * size, body_bytes_max=100)
        driver.append(*(Segment(block(b"x" * 100)) for _ in range(2)))
        with pytest.raises(QueueFull):
            driver.append(Segment(block(b"x" * 100)), Segment(block(b"y" * 100), b"p", 0))
        assert (driver.stats().tail, driver.stats().nbytes) == (2, 2 * size)
        assert driver.append(Segment(block(b"y" * 100), b"p", 0)) == [Appended(2)]

    def test_acknowledging_makes_room(self, driver: Driver) -> None:
        size = block(b"x" * 100).nbytes
        driver.make(bytes_max=2 * size, body_bytes_max=100)
        driver.append(*(Segment(block(b"%d" % n * 100)) for n in range(2)))
        driver.finish(1)
        assert driver.send(b"2" * 100) == Appended(2)
        with pytest.raises(QueueFull):
            driver.send(b"3" * 100)

    def test_kept_messages_give_way_to_new_ones(self, driver: Driver) -> None:
        size = block(b"x" * 100).nbytes
        driver.make(bytes_max=2 * size, body_bytes_max=100, keep_done_ms=60_000)
        driver.append(*(Segment(block(b"%d" % n * 100)) for n in range(2)))
        driver.finish(1)
        assert driver.stats().head == 0
        assert driver.send(b"2" * 100) == Appended(2)
        assert (driver.stats().head, driver.stats().nbytes) == (1, 2 * size)

    def test_a_full_queue_may_drop_its_oldest(self, driver: Driver) -> None:
        size = block(b"x" * 100).nbytes
        driver.make(bytes_max=2 * size, body_bytes_max=100, when_full="drop-oldest")
        for n in range(5):
            assert driver.send(b"%d" % n * 100) == Appended(n)
        assert (driver.stats().head, driver.stats().nbytes) == (3, 2 * size)
        assert driver.receive() == [b"3" * 100, b"4" * 100]

    def test_what_never_fits_is_refused_even_when_dropping(self, driver: Driver) -> None:
        driver.make(bytes_max=400, body_bytes_max=100, when_full="drop-oldest")
        driver.send(b"a")
        with pytest.raises(QueueFull):
            driver.count(0, 100)
        assert driver.receive() == [b"a"]

    def test_what_retention_gives_up_makes_room(self, driver: Driver) -> None:
        size = block(b"x" * 100).nbytes
        driver.make(bytes_max=size, body_bytes_max=100, retention_ms=1000)
        driver.send(b"0" * 100)
        driver.clock.sleep_ms(1000)
        assert driver.send(b"1" * 100) == Appended(1)

    def test_a_repetition_needs_no_room(self, driver: Driver) -> None:
        size = block(b"x" * 100).nbytes
        driver.make(bytes_max=size, body_bytes_max=100)
        driver.send(b"0" * 100, producer=b"p", sequence=0)
        assert driver.send(b"0" * 100, producer=b"p", sequence=0).duplicate

    def test_a_repetition_drops_nothing(self, driver: Driver) -> None:
        size = block(b"x" * 100).nbytes
        driver.make(bytes_max=size, body_bytes_max=100, when_full="drop-oldest")
        driver.send(b"0" * 100, message_id=b"id")
        driver.send(b"0" * 100, message_id=b"id")
        assert driver.receive() == [b"0" * 100]
