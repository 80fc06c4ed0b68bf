"""The judge must be able to condemn: each kind of broken promise is seen."""

from pathlib import Path
from typing import Any

import pytest

from faults.events import (
    Acknowledged,
    Acknowledging,
    Crash,
    Diary,
    Event,
    Leased,
    Put,
    Putting,
    Refused,
    Releasing,
    Sending,
    Sent,
    Trouble,
    bodies,
    body,
    digest,
    read_events,
)
from faults.history import Ledger, check
from ringdove.clock import ManualClock
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.pending import run
from ringdove.stores.base import Claim, Delivery, StripeId
from ringdove.stores.memory import MemoryStore

Q = StripeId(1, 0, 0)
FIRST = Sending(1, Q, [[10, 2_000], [30]])
SECOND = Sending(2, Q, [[40]])


@pytest.fixture
def store() -> MemoryStore:
    """A store with the messages of FIRST, three in two blocks."""
    store = MemoryStore(ManualClock())
    run(store.create(Q, QueueSettings.make(), 1))
    append(store, FIRST)
    return store


def append(store: MemoryStore, sending: Sending) -> None:
    segments = [Segment(Block.build(contents, sent_ms=1)) for contents in bodies(sending)]
    run(store.append(Q, segments, 1))


def acknowledge(store: MemoryStore, want: int) -> None:
    delivery = run(store.lease(Q, "default", want, 1_000, 1, 1))
    for leased in delivery.runs:
        claim = Claim(delivery.epoch, leased.run.token, leased.run.lo, leased.run.hi)
        run(store.acknowledge(Q, "default", [claim], 1))


def leased(lo: int, *numbers: int, delivery: int = 0) -> Leased:
    sizes = [10, 2_000, 30]
    return Leased(Q, "default", lo, [digest(body(1, n, sizes[n])) for n in numbers], delivery)


def verdict(store: MemoryStore, *events: Event, order: str = "") -> str:
    ledger = Ledger({Q: ["default"]}, {Q: order} if order else {})
    ledger.follow(events)
    return " / ".join(check(ledger, store))


def test_a_true_history_has_no_faults(store: MemoryStore) -> None:
    """What really happened is accepted, also when the last append never returned."""
    assert verdict(store, FIRST, Sent(1, [0, 2])) == ""
    assert verdict(store, FIRST, Sent(1, [0, 2]), leased(0, 0, 1), leased(2, 2)) == ""
    assert verdict(store, FIRST) == ""
    assert verdict(store, FIRST, SECOND) == ""
    assert verdict(store, FIRST, Sent(1, [0, 2]), SECOND, Refused(2)) == ""
    assert verdict(store, FIRST, leased(0, 0), Releasing(Q, "default", 0, 1), leased(0, 0)) == ""
    assert verdict(store, FIRST, leased(0, 0), Crash(), leased(0, 0)) == ""


def test_a_lost_append_is_seen(store: MemoryStore) -> None:
    """I1: an acknowledged append that is not there, or is there as something else."""
    assert "(I1)" in verdict(store, FIRST, Sent(1, [0, 2]), SECOND, Sent(2, [3]))
    assert "(I1)" in verdict(store, FIRST, SECOND, Sent(2, [-1]))
    assert "(I7)" in verdict(store, FIRST, Sent(1, [0, 2]), SECOND, Sent(2, [2]))


def test_a_torn_append_is_seen(store: MemoryStore) -> None:
    """Of an append that never returned, there is a part."""
    whole = Sending(1, Q, [[10, 2_000], [30], [5]])
    assert "torn: 3 of 4" in verdict(store, whole)


def test_a_changed_body_is_seen(store: MemoryStore) -> None:
    """The bytes are compared, not only counted."""
    other = Sending(1, Q, [[10, 2_001], [30]])
    assert "nobody sent" in verdict(store, other)
    assert "nobody sent" in verdict(store, FIRST, Refused(1))


def test_a_message_stored_twice_is_seen(store: MemoryStore) -> None:
    """M2: the same operation is in the log twice."""
    append(store, FIRST)
    assert "(M2)" in verdict(store, FIRST, Sent(1, [0, 2]))


def test_a_second_delivery_of_a_done_message_is_seen(store: MemoryStore) -> None:
    """I4: by the reopened store, or in the history itself, or after the message was trimmed."""
    done = [Acknowledging(Q, "default", 1, 2), Acknowledged(Q, "default", 1, 2)]
    assert "(I4)" in verdict(store, FIRST, leased(0, 0, 1), *done)
    assert "(I4)" in verdict(store, FIRST, leased(0, 0, 1), *done, Crash(), leased(1, 1))
    ledger = Ledger({Q: ["default"]})
    acknowledge(store, 2)
    history = [FIRST, leased(0, 0, 1), Acknowledging(Q, "default", 0, 2)]
    ledger.follow([*history, Acknowledged(Q, "default", 0, 2)])
    assert check(ledger, store) == []
    ledger.follow([leased(1, 1)])
    assert "(I4)" in "".join(check(ledger, store))


def test_two_leases_of_one_message_are_seen(store: MemoryStore) -> None:
    """I3: without a crash or a release in between."""
    assert "(I3)" in verdict(store, FIRST, leased(0, 0, 1), leased(1, 1))


@pytest.mark.parametrize("order", ["strict", "key"])
def test_a_delivery_out_of_order_is_seen(
    store: MemoryStore, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something before it is not done; or something of it is with somebody else."""
    sent, first, second = Sent(1, [0, 2]), leased(0, 0, delivery=1), leased(1, 1, delivery=2)
    with_first = leased(1, 1, delivery=1)
    # The messages have three keys.
    assert verdict(store, FIRST, sent, second, first, order="key") == ""
    monkeypatch.setattr("faults.events.KEYS", 1)
    assert "out of order" in verdict(store, FIRST, sent, second, order=order)
    assert "out of order" in verdict(store, FIRST, first, second, order=order)
    assert "out of order" in verdict(store, FIRST, sent, with_first, first, order=order)
    assert verdict(store, FIRST, sent, first, with_first, order=order) == ""
    released = Releasing(Q, "default", 0, 1)
    again = [first, with_first, released, leased(0, 0, delivery=3)]
    assert "out of order" in verdict(store, FIRST, sent, *again, order=order)
    acknowledging = Acknowledging(Q, "default", 0, 1)
    assert verdict(store, FIRST, sent, first, acknowledging, second, order=order) == ""


def test_what_a_reopened_store_delivers_out_of_order_is_seen(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all of it, the last first."""
    lease = store.lease

    async def last_first(*args: Any) -> Delivery:
        delivery = await lease(*args)
        return delivery._replace(runs=delivery.runs[::-1])

    for _ in range(3):
        run(store.lease(Q, "default", 1, 1_000, 1, 1))
    assert verdict(store, FIRST, Sent(1, [0, 2]), order="strict") == ""
    monkeypatch.setattr(store, "lease", last_first)
    assert "out of order" in verdict(store, FIRST, Sent(1, [0, 2]), order="strict")


def test_a_record_that_is_not_the_last_is_seen(store: MemoryStore) -> None:
    """It is gone, older, or something else; one that was being written may be there or not."""
    for value in (b"1", b"2"):
        run(store.put("r", value))
    one, two, three = (digest(b"%d" % number) for number in (1, 2, 3))
    written = [Putting("r", one), Put("r", one, 1)]
    assert verdict(store, FIRST, *written, Putting("r", two)) == ""
    assert verdict(store, FIRST, *written, Putting("r", two), Put("r", two, 2)) == ""
    assert verdict(store, FIRST, Putting("r", three), Putting("r", two), Put("r", two, 2)) == ""
    assert "record 'r'" in verdict(store, FIRST, *written)
    assert "record 'r'" in verdict(store, FIRST, Putting("r", three), Put("r", three, 3))
    assert "record 'q'" in verdict(store, FIRST, Putting("q", one), Put("q", one, 1))


def test_what_a_crash_left_open_is_settled_by_what_is_found(store: MemoryStore) -> None:
    """I4, I2: what was found done stays done, what was not is not lost later."""
    ledger = Ledger({Q: ["default"]})
    ledger.follow([FIRST, Sent(1, [0, 2]), Acknowledging(Q, "default", 0, 2), Crash()])
    assert check(ledger, store) == []
    acknowledge(store, 1)
    assert "(I2)" in "".join(check(ledger, store))


def test_a_message_that_is_never_delivered_is_seen(store: MemoryStore) -> None:
    """I2, I6: the store treats as done, or trimmed, what nobody acknowledged."""
    acknowledge(store, 1)
    assert "(I2)" in verdict(store, FIRST, Sent(1, [0, 2]))
    acknowledge(store, 1)
    assert "(I6)" in verdict(store, FIRST, Sent(1, [0, 2]))
    assert verdict(store, FIRST, Sent(1, [0, 2]), Acknowledging(Q, "default", 0, 2)) == ""


def test_trouble_and_missing_queues_are_faults(store: MemoryStore) -> None:
    """A process that failed by itself, a stripe or a subscription that is gone."""
    assert verdict(store, FIRST, Trouble("a traceback")) == "a traceback"
    ledger = Ledger({Q: ["default", "other"], (9, 0, 0): ["default"]})
    ledger.follow([FIRST])
    first, second = check(ledger, store)
    assert "subscriptions" in first
    assert "QueueNotFound" in second


def test_a_diary_is_read_back_in_parts(tmp_path: Path) -> None:
    """Reading goes on where it ended, and a line that a kill cut short is not read."""
    path = tmp_path / "diary"
    diary = Diary(path)
    diary(FIRST)
    diary(Sent(1, [0, 2]))
    events, at = read_events(path)
    assert events == [FIRST, Sent(1, [0, 2])]
    diary(leased(0, 0))
    diary.close()
    with path.open("ab") as file:
        file.write(b'["Crash"')
    events, at = read_events(path, at)
    assert events == [leased(0, 0)]
    assert at == path.stat().st_size - 8
