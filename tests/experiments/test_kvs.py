"""The experiment `kvs`: every cell is there, every comparison is made, and the baseline is a queue."""

import pytest

from experiments import kvs, simple_kvs
from experiments.pipelined import Server, StripeRequests, measure
from ringdove.pending import run
from ringdove.stores.base import StripeId
from ringdove.stores.fabric import FabricStore


@pytest.fixture(scope="module")
def result():
    return kvs.run(quick=True)


def test_a_quick_run_measures_every_method(result):
    methods = {row["method"] for row in result["memcached"]}
    assert len(methods) == 7
    assert len(result["memcached"]) == 2 * len(methods)
    assert {row["method"] for row in result["simple"]} > {"simple, SET NX", "simple, BLPOP"}
    assert {row["layout"] for row in result["queues"]} == {"one process", "a process each"}
    for rows in (result["simple"], result["memcached"], result["depth"], result["queues"]):
        assert all(row["per_s"] > 0 for row in rows)


def test_every_figure_of_the_document_has_ours_beside_it(result):
    assert {row["document"] for row in result["beside"]} == {3.8, 2.0, 1.4}
    assert all(row["here"] > 0 for row in result["beside"])


def test_both_sides_have_the_same_number_of_messages_outstanding(result):
    for size in (400, 1_000):
        assert len({row["batch"] for row in result["memcached"] if row["size"] == size}) == 1


def test_a_plot_is_drawn(result, tmp_path):
    kvs.plot(result, tmp_path / "kvs.png")
    assert (tmp_path / "kvs.png").read_bytes().startswith(b"\x89PNG")


def test_recorded_requests_leave_an_empty_queue(redis):
    """Every message that was appended is leased and acknowledged."""
    redis.flush()
    stripe = StripeId(1, 0, 0)
    requests = StripeRequests(redis.url, stripe, size=10, count=7)
    measure([Server(redis.port, redis.cpu_s)], [requests.cycles(3, reading=True)], 0.05)
    store = FabricStore(redis.url)
    stats = run(store.stats(stripe))
    run(store.close())
    [default] = stats.subscriptions
    assert stats.tail > 7
    assert stats.tail % 7 == 0
    assert (default.floor, default.waiting, default.leased) == (stats.tail, 0, 0)


@pytest.mark.parametrize("lock", simple_kvs.LOCKS)
def test_the_simple_queue_loses_nothing_under_contention(redis, lock):
    redis.flush()
    found = simple_kvs.measure(Server(redis.port, redis.cpu_s), 5, lock, b"body", 0.2)
    assert found["per_s"] > 0
    head, tail = map(int, redis.ask("GET", "simple:{q}:meta").split())
    left = [redis.ask("GET", f"simple:{{q}}:{number}") for number in range(tail)]
    # Those who were stopped in the middle had put in a message and not taken one yet.
    assert left == [None] * head + [b"body"] * (tail - head)
    assert tail - head <= 5
