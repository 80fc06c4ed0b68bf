"""How fast and how wide a subscription is received from, by several threads."""

import threading
from typing import Any

from ringdove import limits
from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.catalog import QueueInfo
from ringdove.controllers.pace import Pace
from ringdove.controllers.sending import Outgoing
from ringdove.core.settings import QueueSettings
from ringdove.errors import StoreCorrupted
from ringdove.pending import run
from ringdove.stores.base import StripeId
from ringdove.stores.memory import MemoryStore

INFO = QueueInfo("q", 1, QueueSettings.make(spread="auto", receive_rate_max=5.0), 1, 0)

#: Seconds that a thread gets to go wrong in the middle of another's step.
MOMENT_S = 0.2


def test_two_receivers_may_end_at_the_same_moment(clock: ManualClock):
    pace = Pace(clock)
    failures: list[BaseException] = []

    def end() -> None:
        try:
            pace.end(INFO, "default")
        except BaseException as error:
            failures.append(error)

    other = threading.Thread(target=end)

    class Slow(dict[tuple[int, str], int]):
        """Lets the other receiver begin to end between two steps of the first."""

        def pop(self, key: tuple[int, str]) -> int:  # type: ignore[override]
            value = super().pop(key)
            if threading.current_thread() is not other:
                other.start()
                other.join(MOMENT_S)
            return value

    pace._busy = Slow()
    for _ in range(2):
        pace.begin(INFO, "default")
    end()
    other.join()
    assert failures == []
    assert not pace._busy


def test_a_damaged_stripe_does_not_use_up_the_rate_of_the_others(clock: ManualClock, monkeypatch):
    store = MemoryStore(clock)
    broker = Broker(store)
    damaged, *_ = run(broker.create_queue("q", {"stripes": 2, "receive_rate_max": 5.0})).stripes()
    for _ in range(10):
        run(broker.send("q", Outgoing([b"x"])))
    lease = store.lease

    async def leased(stripe: StripeId, *arguments: Any) -> Any:
        if stripe == damaged:
            raise StoreCorrupted("A block in the log is damaged.")
        return await lease(stripe, *arguments)

    monkeypatch.setattr(store, "lease", leased)
    for _ in range(2):  # Whichever is visited first.
        received = run(broker.receive("q", "default", 5, 0, None))
        assert sum(found.receipt.hi - found.receipt.lo for found in received) == 5
        run(broker.release([found.receipt for found in received], 0))
        clock.sleep_ms(2_000)


def test_what_is_remembered_is_bounded(clock: ManualClock, monkeypatch):
    monkeypatch.setattr(limits, "SETTINGS_CACHE_MAX", 10)
    pace = Pace(clock)
    for number in range(100):
        pace.admit(INFO, f"s{number}", 1)
        pace.spread(INFO, f"s{number}")
    assert len(pace._buckets) <= 10
    assert len(pace._gauges) <= 10
