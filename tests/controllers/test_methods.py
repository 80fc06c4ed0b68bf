"""The setting `dequeue` as users meet it: what a receive does while there is nothing (T4.1, T4.2)."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import ringdove
from ringdove.core.block import key_hash
from ringdove.errors import SubscriptionNotFound

PATIENCE_S = 30
METHODS = ["poll", "retry", "monitor", "wake"]


@pytest.fixture(params=["memory", "file"])
def rd(request, tmp_path):
    """A connection under the real clock: pauses and waits are real."""
    url = "memory:" if request.param == "memory" else f"file:{tmp_path}/data"
    with ringdove.connect(url) as connection:
        yield connection


def fill(queue: ringdove.Queue, stripe: int, count: int) -> None:
    """Put messages on one stripe of a queue in order by key."""
    stripes = queue.settings().stripes
    key = next(k for n in range(10_000) if key_hash(k := b"%d" % n) % stripes == stripe)
    queue.send_many([ringdove.NewMessage(b"%d" % n, key=key) for n in range(count)])


def wait_for(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


class Receiving:
    """A receive in a thread of its own."""

    def __init__(self, queue: ringdove.Queue, **options: Any) -> None:
        self.bodies: list[bytes] | None = None
        self.took_s = 0.0
        self._queue = queue
        self._options = options
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        begun_s = time.monotonic()
        self.bodies = self._queue.receive(**self._options).bodies()
        self.took_s = time.monotonic() - begun_s

    def result(self) -> list[bytes]:
        self._thread.join(PATIENCE_S)
        assert self.bodies is not None
        return self.bodies


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stripes", [1, 3])
def test_every_method_delivers_everything_once(rd, method, stripes):
    queue = rd.create_queue("q", dequeue=method, dequeue_pause_ms=5, stripes=stripes)
    for n in range(30):
        queue.send(b"%d" % n)
    found = []
    while batch := queue.receive(max=7, wait=0 if method == "poll" else 0.05):
        found += batch.bodies()
        batch.ack()
    assert sorted(map(int, found)) == list(range(30))
    dequeuer = rd.backend.dequeuer
    assert dequeuer.delivered == 30
    assert dequeuer.hits >= 30 / 7
    assert dequeuer.parked == 0


# -- poll ---------------------------------------------------------------------------------------


def test_poll_answers_at_once_though_it_may_wait(rd):
    """T4.2: conventional."""
    queue = rd.create_queue("q", dequeue="poll", stripes=5)
    begun_s = time.monotonic()
    assert not queue.receive(wait=PATIENCE_S)
    assert time.monotonic() - begun_s < PATIENCE_S / 2
    assert (rd.backend.dequeuer.hits, rd.backend.dequeuer.misses) == (0, 3)


def test_poll_goes_round_the_stripes_three_at_a_time(rd):
    """T4.1: retry-out after three stripes; each receive starts one further."""
    queue = rd.create_queue("q", dequeue="poll", stripes=6, order="key")
    fill(queue, 0, 1)
    found = [len(queue.receive(max=1)) for _ in range(6)]
    assert sum(found) == 1
    dequeuer = rd.backend.dequeuer
    assert (dequeuer.hits, dequeuer.delivered) == (1, 1)
    assert 15 <= dequeuer.misses <= 17


def test_poll_takes_from_several_stripes_until_it_has_enough(rd):
    """T4.1: at most Nmax messages."""
    queue = rd.create_queue("q", dequeue="poll", stripes=3, order="key")
    for stripe in range(3):
        fill(queue, stripe, 4)
    assert len(queue.receive(max=10)) == 10
    assert (rd.backend.dequeuer.hits, rd.backend.dequeuer.misses) == (3, 0)
    assert rd.backend.dequeuer.delivered == 10


# -- retry --------------------------------------------------------------------------------------


def test_retry_holds_a_miss_for_the_sleep_time(rd):
    """T4.2: RDS notices an arrival at the end of its pause, not before."""
    queue = rd.create_queue("q", dequeue="retry", dequeue_pause_ms=300, stripes=2)
    dequeuer = rd.backend.dequeuer
    receiving = Receiving(queue, wait=PATIENCE_S)
    wait_for(lambda: dequeuer.parked)
    queue.send(b"x")
    assert receiving.result() == [b"x"]
    assert 0.29 <= receiving.took_s < PATIENCE_S
    assert dequeuer.misses >= 2
    assert (dequeuer.hits, dequeuer.delivered, dequeuer.parked) == (1, 1, 0)


def test_retry_gives_up_in_time(rd):
    queue = rd.create_queue("q", dequeue="retry", dequeue_pause_ms=20, stripes=2)
    begun_s = time.monotonic()
    assert not queue.receive(wait=0.1)
    assert 0.09 <= time.monotonic() - begun_s < PATIENCE_S / 2
    assert 2 <= rd.backend.dequeuer.misses <= 12


def test_a_smaller_sleep_time_makes_more_misses(rd):
    """T4.5: what the sleep time trades."""
    misses = []
    for pause_ms in (5, 400):
        queue = rd.create_queue(f"q{pause_ms}", dequeue="retry", dequeue_pause_ms=pause_ms)
        before = rd.backend.dequeuer.misses
        queue.receive(wait=0.5)
        misses.append(rd.backend.dequeuer.misses - before)
    assert misses[0] > misses[1]


# -- monitor ------------------------------------------------------------------------------------


def test_monitor_goes_to_the_fullest_stripe_first(rd):
    """T4.2: PMS."""
    queue = rd.create_queue("q", dequeue="monitor", stripes=4, order="key")
    for stripe, count in enumerate((2, 0, 9, 5)):
        fill(queue, stripe, count) if count else None
    batch = queue.receive(max=9)
    assert [chunk.stripe.number for chunk in batch.chunks()] == [2]
    assert len(batch) == 9
    dequeuer = rd.backend.dequeuer
    assert (dequeuer.hits, dequeuer.misses, dequeuer.looks) == (1, 0, 1)


@pytest.mark.parametrize("method", METHODS)
def test_who_names_an_unknown_subscription_is_told(rd, method):
    queue = rd.create_queue("q", dequeue=method, dequeue_pause_ms=10, stripes=3)
    with pytest.raises(SubscriptionNotFound, match="it has: default"):
        queue.receive(subscription="typo", wait=PATIENCE_S)


def test_monitor_does_not_touch_empty_stripes(rd):
    """T4.2: access is held while no stripe has anything: no missed dequeues at all."""
    queue = rd.create_queue("q", dequeue="monitor", dequeue_pause_ms=10, stripes=3)
    dequeuer = rd.backend.dequeuer
    receiving = Receiving(queue, wait=PATIENCE_S)
    wait_for(lambda: dequeuer.looks >= 3)
    assert dequeuer.misses == 0
    queue.send(b"x")
    assert receiving.result() == [b"x"]
    assert (dequeuer.hits, dequeuer.misses) == (1, 0)


def test_many_receivers_share_one_look_per_period(rd):
    queue = rd.create_queue("q", dequeue="monitor", dequeue_pause_ms=50)
    dequeuer = rd.backend.dequeuer
    begun_s = time.monotonic()
    receiving = [Receiving(queue, wait=0.2) for _ in range(8)]
    assert [r.result() for r in receiving] == [[]] * 8
    periods = (time.monotonic() - begun_s) / 0.05 + 1
    assert 1 <= dequeuer.looks <= 2 * periods
    assert dequeuer.misses == 0


@pytest.mark.parametrize("hidden", ["leased", "released", "delayed"])
def test_monitor_delivers_what_was_hidden_for_a_time(rd, hidden):
    queue = rd.create_queue("q", dequeue="monitor", dequeue_pause_ms=10, backoff_ms=1)
    if hidden == "delayed":
        queue.send(b"x", delay_ms=30)
    else:
        queue.send(b"x")
        batch = queue.receive(wait=1, lease_ms=30)
        if hidden == "released":
            batch.release(delay_ms=30)
    assert queue.receive(wait=1).bodies() == [b"x"]


# -- wake ---------------------------------------------------------------------------------------


def test_wake_is_woken_by_an_arrival_on_any_stripe(rd):
    queue = rd.create_queue("q", dequeue="wake", dequeue_pause_ms=60_000, stripes=4)
    dequeuer = rd.backend.dequeuer
    for _ in range(4):
        receiving = Receiving(queue, wait=PATIENCE_S)
        wait_for(lambda: dequeuer.parked)
        queue.send(b"x")
        assert receiving.result() == [b"x"]
        assert receiving.took_s < PATIENCE_S / 2
        queue.purge()
    assert (dequeuer.hits, dequeuer.delivered, dequeuer.parked) == (4, 4, 0)


def test_wake_is_woken_when_its_subscription_goes(rd):
    queue = rd.create_queue("q", dequeue="wake")
    queue.subscribe("a", keep_default=True)
    refused: list[Exception] = []

    def receive() -> None:
        try:
            queue.receive(wait=None, subscription="a")
        except SubscriptionNotFound as error:
            refused.append(error)

    threading.Thread(target=receive, daemon=True).start()
    wait_for(lambda: rd.backend.dequeuer.parked)
    queue.unsubscribe("a")
    wait_for(lambda: refused)


def test_wake_is_woken_by_the_end_of_a_lease_or_a_delay(rd):
    queue = rd.create_queue("q", dequeue="wake", stripes=3)
    queue.send(b"x", delay_ms=50)
    assert queue.receive(wait=PATIENCE_S, lease_ms=50).bodies() == [b"x"]
    assert queue.receive(wait=PATIENCE_S, lease_ms=60_000).bodies() == [b"x"]
    assert not queue.receive(wait=0.05)


def test_wake_tries_every_stripe_however_many(rd):
    """Unlike the others it needs no second try to find what is there."""
    queue = rd.create_queue("q", dequeue="wake", dequeue_tries=1, stripes=8, order="key")
    fill(queue, 5, 1)
    assert len(queue.receive()) == 1


def test_parked_receivers_do_nothing_while_they_wait(rd):
    queue = rd.create_queue("q", dequeue="wake", stripes=2)
    dequeuer = rd.backend.dequeuer
    receiving = [Receiving(queue, wait=0.8) for _ in range(10)]
    wait_for(lambda: dequeuer.parked == 10)
    misses = dequeuer.misses
    assert [r.result() for r in receiving] == [[]] * 10
    # At most one round of each before it parked; where nothing has come since, nobody looks again.
    assert misses <= 20
    assert dequeuer.misses == misses


@pytest.mark.parametrize("shape", [{"stripes": 4}, {"priority": 3}])
def test_wake_does_not_look_again_where_nothing_has_come(rd, shape):
    queue = rd.create_queue("q", dequeue="wake", **shape)
    for _ in range(3):
        assert not queue.receive()
    assert rd.backend.dequeuer.misses == 4
    queue.send(b"x")
    assert queue.receive().bodies() == [b"x"]


def test_who_waits_hears_of_arrivals_on_stripes_added_meanwhile(rd):
    queue = rd.create_queue("q", dequeue="wake")
    receiving = Receiving(queue, wait=2)
    wait_for(lambda: rd.backend.dequeuer.parked)
    queue.configure(stripes=3)
    # It may look at the new stripes now, or not; either way it waits when the message comes.
    settled_s = time.monotonic() + 0.3
    while time.monotonic() < settled_s:
        wait_for(lambda: rd.backend.dequeuer.parked)
        time.sleep(0.01)
    assert queue.send(b"x").stripe.number == 1
    assert receiving.result() == [b"x"]
    assert receiving.took_s < 1


# -- change -------------------------------------------------------------------------------------


def test_the_method_may_change_while_the_queue_is_in_use(rd):
    queue = rd.create_queue("q", dequeue="poll", stripes=2)
    assert not queue.receive(wait=PATIENCE_S)
    queue.configure(dequeue="wake")
    receiving = Receiving(queue, wait=PATIENCE_S)
    wait_for(lambda: rd.backend.dequeuer.parked)
    queue.send(b"x")
    assert receiving.result() == [b"x"]
