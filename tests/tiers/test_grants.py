"""Who may serve a broker with two directories: the manager's rules, and that two never do at once."""

import heapq
import itertools
from random import Random

import pytest

from ringdove.errors import InvalidArgument
from ringdove.pending import run
from ringdove.stores.memory import MemoryStore
from ringdove.tiers.grants import LEASE_MS, OWN_SHARE, Grants

LEASE_S = LEASE_MS / 1000


class Bench:
    """Managers over one store, on a clock that moves when told."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.records = MemoryStore()
        self.grants = self.manager()

    def manager(self, rate: float = 1.0) -> Grants:
        return Grants(self.records, lambda: self.now_s * rate)

    def ask(self, command, member, grants=None, **more):
        commands = (grants or self.grants).commands
        return run(commands[f"grant.{command}"]({"name": "core", "member": member, **more}))

    def first(self, member="a"):
        return self.ask("acquire", member, first=True, url=f"ringdove://{member}")["grant"]

    def in_sync(self, member="b", step=1):
        """`a` holds the grant, and `member` is its copy."""
        term = self.first()["term"]
        assert self.ask("sync", "a", term=term, step=step, in_sync=member)["granted"]
        return term


@pytest.fixture
def bench():
    return Bench()


def test_whoever_comes_first_holds_and_the_other_is_told_where(bench):
    assert bench.first("a")["holder"] == "a"
    told = bench.ask("acquire", "b", first=True)
    assert not told["granted"]
    assert told["grant"]["url"] == "ringdove://a"


def test_without_a_record_only_a_first_directory_is_granted(bench):
    assert bench.ask("acquire", "b") == {"granted": False, "grant": None, "again_ms": 1}


def test_the_copy_in_sync_is_granted_when_the_lease_has_lapsed_and_not_before(bench):
    bench.in_sync()
    bench.now_s += LEASE_S - 0.01
    refused = bench.ask("acquire", "b")
    assert not refused["granted"]
    assert refused["again_ms"] == 10
    bench.now_s += 0.02
    granted = bench.ask("acquire", "b")
    assert granted["granted"]
    assert granted["grant"]["in_sync"] == ""


def test_a_renewed_lease_does_not_lapse(bench):
    term = bench.in_sync()
    for _ in range(5):
        bench.now_s += LEASE_S * 0.6
        assert bench.ask("renew", "a", term=term)["granted"]
        assert not bench.ask("acquire", "b")["granted"]


def test_a_directory_that_is_not_in_sync_is_never_granted(bench):
    bench.in_sync("b")
    bench.now_s += 100 * LEASE_S
    assert not bench.ask("acquire", "c")["granted"]
    bench.ask("sync", "a", term=1, step=2, in_sync="")
    bench.now_s += 100 * LEASE_S
    assert not bench.ask("acquire", "b")["granted"]


def test_a_manager_that_has_just_started_waits_a_whole_lease(bench):
    bench.in_sync()
    bench.now_s += 100 * LEASE_S
    other = bench.manager()
    assert not bench.ask("acquire", "b", other)["granted"]
    bench.now_s += LEASE_S + 0.01
    assert bench.ask("acquire", "b", other)["granted"]


def test_whoever_was_replaced_can_record_nothing(bench):
    term = bench.in_sync()
    bench.ask("acquire", "b")
    bench.now_s += LEASE_S + 0.01
    assert bench.ask("acquire", "b")["granted"]
    assert not bench.ask("sync", "a", term=term, step=2, in_sync="")["granted"]
    assert not bench.ask("renew", "a", term=term)["granted"]


def test_the_holder_that_comes_back_begins_a_term_with_nobody_in_sync(bench):
    term = bench.in_sync()
    again = bench.ask("acquire", "a")["grant"]
    assert again["term"] == term + 1
    assert again["in_sync"] == ""
    assert not bench.ask("renew", "a", term=term)["granted"], "its older process has no say"


def test_a_request_that_was_overtaken_counts_no_more(bench):
    term = bench.in_sync(step=1)
    assert bench.ask("sync", "a", term=term, step=2, in_sync="")["granted"]
    assert not bench.ask("sync", "a", term=term, step=1, in_sync="b")["granted"]
    assert bench.ask("sync", "a", term=term, step=2, in_sync="")["granted"], "a repetition is fine"


def test_a_lease_that_was_given_back_need_not_lapse(bench):
    term = bench.in_sync()
    assert bench.ask("release", "a", term=term)["granted"]
    assert bench.ask("acquire", "b")["granted"]


@pytest.mark.parametrize("wrong", [{"name": ""}, {"lease_ms": 1}, {"colour": "red"}])
def test_what_makes_no_sense_is_refused(bench, wrong):
    with pytest.raises(InvalidArgument):
        bench.ask("renew", "a", **wrong)


# -- two never serve at once --------------------------------------------------------------------


def one_life(seed: int, own_share: float = OWN_SHARE) -> float:
    """How long before the other was granted the holder had stopped, by a clock that nobody has.

    The holder renews at one of two managers, the other asks both; clocks run up to 4 % fast or
    slow, every message takes its time or is lost, and at some time the managers cannot be reached.
    """
    rng, bench = Random(seed), Bench()
    rate = rng.uniform(0.96, 1.04)
    managers = [bench.manager(rng.uniform(0.96, 1.04)) for _ in range(2)]
    term, until_s = bench.in_sync(), 0.0
    cut_s = bench.now_s + rng.uniform(1, 6)
    order = itertools.count()
    events = [(bench.now_s, next(order), "renew", 0.0), (bench.now_s, next(order), "ask", 0.0)]
    while True:
        bench.now_s, _, event, sent_s = heapq.heappop(events)
        delay_s = rng.choice([0.001, 0.05, rng.uniform(0, 2)])
        if event == "renew" and bench.now_s < cut_s:
            heapq.heappush(events, (bench.now_s + delay_s, next(order), "arrive", bench.now_s))
            heapq.heappush(events, (bench.now_s + 0.4, next(order), "renew", 0.0))
        elif event == "arrive":
            renewed = bench.ask("renew", "a", rng.choice(managers), term=term)["granted"]
            if renewed and rng.random() < 0.9:
                heapq.heappush(events, (bench.now_s + delay_s, next(order), "told", sent_s))
        elif event == "told":
            until_s = max(until_s, sent_s + LEASE_S * own_share / rate)
        elif event == "ask":
            if bench.ask("acquire", "b", rng.choice(managers))["granted"]:
                return bench.now_s - until_s
            heapq.heappush(events, (bench.now_s + rng.choice([0.01, 0.2]), next(order), "ask", 0.0))


def test_the_holder_has_always_stopped_before_another_is_granted():
    assert min(one_life(seed) for seed in range(300)) > 0


def test_a_holder_that_used_more_than_its_lease_would_not_have():
    assert min(one_life(seed, own_share=1.2) for seed in range(300)) < 0
