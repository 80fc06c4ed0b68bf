"""The four ways to dequeue, under a simulated clock (T4.1, T4.2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.samples import untimed
from ringdove.core.dequeue import (
    Action,
    Answer,
    DequeueCall,
    Look,
    MonitorCall,
    Park,
    PollCall,
    RetryCall,
    Try,
    WakeCall,
    make_call,
)
from ringdove.core.settings import QueueSettings

PAUSE_MS = 100


class World:
    """Stripes with messages, a clock, and everything that one call does with them."""

    def __init__(self, depths: list[int], now_ms: int = 0) -> None:
        self.depths = depths
        self.now_ms = now_ms
        #: When a stripe has something by time alone.
        self.due_ms: dict[int, int] = {}
        #: What arrives: time and stripe.
        self.arrivals: list[tuple[int, int]] = []
        self.tried: list[int] = []
        self.parks: list[Park] = []
        self.looks = 0

    def serve(self, call: DequeueCall) -> int:
        """Do what the call says until it answers; how many messages it has found."""
        action = call.start(self.now_ms)
        for _ in range(10_000):
            if isinstance(action, Answer):
                return call.found
            action = self.step(call, action)
        raise AssertionError("the call does not end")

    def step(self, call: DequeueCall, action: Action) -> Action:
        if isinstance(action, Try):
            self.tried.append(action.stripe)
            found = min(call.want - call.found, self.depths[action.stripe])
            self.depths[action.stripe] -= found
            return call.tried(found, self.now_ms, self.due_ms.get(action.stripe))
        if isinstance(action, Look):
            self.looks += 1
            return call.looked(list(self.depths), self.now_ms)
        assert isinstance(action, Park)
        self.parks.append(action)
        self._sleep(action)
        return call.woken(self.now_ms)

    def _sleep(self, park: Park) -> None:
        ends = [ms for ms in (park.until_ms, park.due_ms) if ms is not None]
        if park.watch:
            ends += [ms for ms, _ in self.arrivals if ms >= self.now_ms]
        assert ends, "it would sleep for ever"
        self.now_ms = max(self.now_ms, min(ends))
        for arrival in [a for a in self.arrivals if a[0] <= self.now_ms]:
            self.arrivals.remove(arrival)
            self.depths[arrival[1]] += 1
        for stripe in [s for s, ms in self.due_ms.items() if ms <= self.now_ms]:
            del self.due_ms[stripe]
            self.depths[stripe] += 1


def poll(want: int, stripes: int, tries: int = 3, deadline_ms: int | None = 0) -> PollCall:
    return PollCall(want, stripes, deadline_ms, tries, PAUSE_MS)


def retry(want: int, stripes: int, tries: int = 3, deadline_ms: int | None = None) -> RetryCall:
    return RetryCall(want, stripes, deadline_ms, tries, PAUSE_MS)


def monitor(want: int, stripes: int, tries: int = 3, deadline_ms: int | None = None) -> MonitorCall:
    return MonitorCall(want, stripes, deadline_ms, tries, PAUSE_MS)


def wake(want: int, stripes: int, deadline_ms: int | None = None) -> WakeCall:
    return WakeCall(want, stripes, deadline_ms, stripes, PAUSE_MS)


# -- poll ---------------------------------------------------------------------------------------


def test_poll_answers_at_once_after_its_tries_in_turn():
    """T4.1, T4.2: retry-out after three stripes, though a later one has messages."""
    world = World([0, 0, 0, 5, 5])
    call = poll(10, 5)
    assert world.serve(call) == 0
    assert world.tried == [0, 1, 2]
    assert (call.hits, call.misses) == (0, 3)
    assert world.parks == []


def test_poll_stops_as_soon_as_it_has_what_it_wants():
    """T4.1."""
    world = World([4, 9, 9])
    call = poll(10, 3)
    assert world.serve(call) == 10
    assert world.tried == [0, 1]
    assert (call.hits, call.misses) == (2, 0)
    assert world.depths == [0, 3, 9]


def test_poll_answers_with_less_than_it_wants_rather_than_wait():
    world = World([0, 3, 0, 7])
    call = poll(10, 4)
    assert world.serve(call) == 3
    assert world.tried == [0, 1, 2]
    assert (call.hits, call.misses) == (1, 2)


def test_poll_does_not_wait_for_a_deadline_far_away():
    """T4.2: conventional answers at once, even empty."""
    world = World([0, 0, 0])
    assert world.serve(poll(1, 3, deadline_ms=60_000)) == 0
    assert world.now_ms == 0


def test_no_stripe_is_tried_twice_in_a_round_when_there_are_few():
    world = World([0, 0])
    assert world.serve(poll(1, 2, tries=9)) == 0
    assert world.tried == [0, 1]


# -- retry --------------------------------------------------------------------------------------


def test_retry_holds_for_the_pause_and_goes_on_with_the_next_stripes():
    """T4.2: RDS holds the reply and tries again after the sleep time."""
    world = World([0, 0, 0, 2, 0])
    call = retry(10, 5)
    assert world.serve(call) == 2
    assert world.tried == [0, 1, 2, 3, 4, 0]
    assert world.parks == [Park(PAUSE_MS, watch=False)]
    assert (call.hits, call.misses) == (1, 5)


def test_retry_does_not_notice_an_arrival_before_its_pause_is_over():
    """T4.2: latency is what the sleep time costs."""
    world = World([0])
    world.arrivals = [(1, 0)]
    assert world.serve(retry(1, 1)) == 1
    assert world.now_ms == PAUSE_MS


def test_retry_gives_up_at_the_deadline():
    world = World([0, 0])
    call = retry(1, 2, deadline_ms=250)
    assert world.serve(call) == 0
    assert [park.until_ms for park in world.parks] == [100, 200, 250]
    assert world.now_ms == 250


def test_retry_without_time_is_poll():
    world = World([0, 0, 0, 1])
    assert world.serve(retry(1, 4, deadline_ms=0)) == 0
    assert world.parks == []


def test_a_round_of_retry_that_finds_something_is_the_last():
    world = World([1, 0, 0])
    assert world.serve(retry(5, 3, deadline_ms=1000)) == 1
    assert world.parks == []


# -- monitor ------------------------------------------------------------------------------------


def test_monitor_goes_to_the_fullest_stripes_first():
    """T4.2: PMS."""
    world = World([3, 0, 8, 5])
    call = monitor(14, 4)
    assert world.serve(call) == 14
    assert world.tried == [2, 3, 0]
    assert world.looks == 1
    assert call.misses == 0


def test_monitor_visits_no_stripe_that_its_counters_call_empty():
    world = World([0, 0, 4, 0])
    call = monitor(10, 4)
    assert world.serve(call) == 4
    assert world.tried == [2]


def test_monitor_never_visits_more_stripes_than_it_may():
    """T4.1."""
    world = World([1, 2, 3, 4, 5])
    assert world.serve(monitor(100, 5)) == 12
    assert world.tried == [4, 3, 2]


def test_monitor_holds_while_all_stripes_are_empty():
    """T4.2: no access while no stripe has anything."""
    world = World([0, 0])
    world.arrivals = [(150, 1)]
    call = monitor(1, 2)
    assert world.serve(call) == 1
    assert world.tried == [1]
    assert world.looks == 3
    assert [park.until_ms for park in world.parks] == [100, 200]
    assert not any(park.watch for park in world.parks)


def test_monitor_gives_up_at_the_deadline():
    world = World([0])
    assert world.serve(monitor(1, 1, deadline_ms=150)) == 0
    assert [park.until_ms for park in world.parks] == [100, 150]
    assert world.tried == []


def test_monitor_looks_again_when_its_counters_were_wrong():
    call = monitor(1, 2)
    assert call.start(0) == Look()
    assert call.looked([0, 3], 0) == Try(1)
    assert call.tried(0, 0) == Park(PAUSE_MS, watch=False)
    assert call.woken(PAUSE_MS) == Look()


# -- wake ---------------------------------------------------------------------------------------


def test_wake_tries_every_stripe_and_holds_until_something_arrives():
    world = World([0, 0, 0, 0, 0])
    world.arrivals = [(7, 3)]
    call = wake(1, 5)
    assert world.serve(call) == 1
    assert world.tried[:5] == [0, 1, 2, 3, 4]
    assert world.parks == [Park(None, watch=True)]
    assert world.now_ms == 7


def test_wake_holds_until_what_is_delayed_or_leased_is_due():
    """The earliest time that any stripe has told counts."""
    world = World([0, 0, 0])
    world.due_ms = {0: 90, 1: 40, 2: 70}
    assert world.serve(wake(1, 3, deadline_ms=1000)) == 1
    assert world.parks == [Park(1000, watch=True, due_ms=40)]
    assert world.now_ms == 40


def test_wake_forgets_the_times_of_the_round_before():
    call = wake(1, 1, deadline_ms=1000)
    assert call.start(0) == Try(0)
    assert call.tried(0, 0, 50) == Park(1000, watch=True, due_ms=50)
    assert call.woken(50) == Try(0)
    assert call.tried(0, 50) == Park(1000, watch=True)


def test_wake_tries_again_at_once_what_is_due_already():
    call = wake(1, 2, deadline_ms=1000)
    call.start(10)
    call.tried(0, 10, 10)
    assert isinstance(call.tried(0, 10), Try)


def test_wake_looks_a_last_time_at_the_deadline():
    world = World([0, 0])
    call = wake(1, 2, deadline_ms=30)
    assert world.serve(call) == 0
    assert world.tried == [0, 1, 0, 1]
    assert world.parks == [Park(30, watch=True)]


def test_wake_finds_at_the_deadline_what_came_with_it():
    world = World([0, 0])
    world.due_ms = {1: 30}
    assert world.serve(wake(1, 2, deadline_ms=30)) == 1


def test_wake_without_time_answers_after_one_round():
    world = World([0, 0, 0, 0])
    assert world.serve(wake(1, 4, deadline_ms=0)) == 0
    assert world.tried == [0, 1, 2, 3]
    assert world.parks == []


def test_behind_others_wake_holds_without_a_try():
    assert wake(1, 4, deadline_ms=70).line_up(0) == Park(70, watch=True)


@pytest.mark.parametrize("make", [poll, retry, monitor])
def test_the_others_begin_as_always_whoever_waits(make):
    assert make(1, 4).line_up(0) == make(1, 4).start(0)


@given(stripes=st.integers(1, 6), before=st.integers(0, 5), count=st.integers(1, 6))
def test_stripes_that_are_skipped_are_as_good_as_tried_in_vain(
    stripes: int, before: int, count: int
):
    one_by_one, at_once = wake(3, stripes, deadline_ms=50), wake(3, stripes, deadline_ms=50)
    for call in (one_by_one, at_once):
        call.start(0)
        for _ in range(min(before, stripes - 1)):
            call.tried(0, 0)
    assert at_once.tries_left == stripes - min(before, stripes - 1)
    count = min(count, at_once.tries_left)
    actions = [one_by_one.tried(0, 0, 30 + left) for left in reversed(range(count))]
    assert at_once.skipped(count, 0, 30) == actions[-1]
    assert vars(at_once) == vars(one_by_one)


# -- by the settings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "kind"),
    [("poll", PollCall), ("retry", RetryCall), ("monitor", MonitorCall), ("wake", WakeCall)],
)
def test_the_settings_choose_the_machine(method: str, kind: type[DequeueCall]):
    settings = QueueSettings.make(dequeue=method)
    assert isinstance(make_call(settings, 1, 4, None), kind)


def test_tries_and_pause_are_the_queue_s():
    settings = QueueSettings.make(dequeue="retry", dequeue_tries=2, dequeue_pause_ms=7)
    world = World([0, 0, 0, 0])
    assert world.serve(make_call(settings, 1, 4, 7)) == 0
    assert world.tried == [0, 1]
    assert world.parks == [Park(7, watch=False)]


def test_wake_tries_all_stripes_whatever_the_setting_says():
    settings = QueueSettings.make(dequeue="wake", dequeue_tries=1)
    world = World([0, 0, 0, 1])
    assert world.serve(make_call(settings, 1, 4, 0)) == 1


# -- any machine, any luck ----------------------------------------------------------------------


class Rounds:
    """Watches a call from outside and knows what it must never do."""

    def __init__(self, tries_max: int, deadline_ms: int) -> None:
        self.tries_max = tries_max
        self.deadline_ms = deadline_ms
        self.tries = 0
        #: When the stripes of this round have something.
        self.due_ms: list[int] = []

    def begin(self) -> None:
        self.tries = 0
        self.due_ms.clear()

    def check(self, action: Action, now_ms: int) -> None:
        if isinstance(action, Try):
            if self.tries == self.tries_max:
                # A further round without a pause, only for what has become due meanwhile.
                assert min(self.due_ms, default=now_ms + 1) <= now_ms
                self.begin()
            self.tries += 1
        elif isinstance(action, Park):
            assert now_ms < self.deadline_ms
            assert action.until_ms is not None
            assert now_ms < action.until_ms <= self.deadline_ms
            assert action.due_ms is None or action.due_ms > now_ms
            assert action.due_ms == (min(self.due_ms, default=None) if action.watch else None)
            self.begin()
        else:
            self.begin()


@untimed
@given(
    st.data(),
    st.sampled_from(["poll", "retry", "monitor", "wake"]),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(0, 500),
)
def test_any_machine_keeps_its_limits_whatever_happens(
    data: st.DataObject, method: str, stripes: int, tries: int, want: int, wait_ms: int
):
    """T4.1: bounded tries per round, an answer as soon as there is enough, an end in time."""
    settings = QueueSettings.make(dequeue=method, dequeue_tries=tries, dequeue_pause_ms=50)
    call = make_call(settings, want, stripes, wait_ms)
    watched = Rounds(stripes if method == "wake" else min(tries, stripes), wait_ms)
    now_ms = found = steps = 0
    action = call.start(now_ms)
    while not isinstance(action, Answer):
        steps += 1
        assert steps < 5_000
        watched.check(action, now_ms)
        if isinstance(action, Try):
            assert 0 <= action.stripe < stripes
            got = data.draw(st.integers(0, want - found) | st.just(0))
            found += got
            now_ms += data.draw(st.integers(0, 20))
            due_ms = data.draw(st.none() | st.integers(now_ms + 1, now_ms + 200))
            watched.due_ms += [] if due_ms is None else [due_ms]
            action = call.tried(got, now_ms, due_ms)
            if found == want:
                assert action == Answer()
        elif isinstance(action, Look):
            depths = data.draw(st.lists(st.integers(0, 9), min_size=stripes, max_size=stripes))
            action = call.looked(depths, now_ms)
        else:
            assert action.watch == (method == "wake")
            ends = [ms for ms in (action.until_ms, action.due_ms) if ms is not None]
            now_ms = data.draw(st.integers(now_ms, min(ends)) if action.watch else st.just(ends[0]))
            action = call.woken(now_ms)
    assert call.found == found <= want
    if not found and method != "poll":
        assert now_ms >= wait_ms
