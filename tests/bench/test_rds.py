"""The benchmark of the dequeue methods: every method delivers, and nothing is lost."""

import time

from ringdove.bench import rds
from ringdove.bench.plots import plot_rds
from ringdove.bench.rds import METHODS, CostlyStore


def test_a_quick_run_accounts_for_every_message(tmp_path):
    result = rds.run(tmp_path, seconds=0.5, modes=("light",), quick=True)
    rows = result["rds"]
    assert [row["method"] for row in rows] == list(METHODS)
    assert result["lost"] == result["duplicates"] == result["failed"] == 0
    for row in rows:
        assert row["lambda_per_s"] == 200
        assert row["visits_per_s"] > 0
        assert 0 <= row["hit_rate"] <= 1
    assert {"light_retry_over_poll", "light_wake_over_retry"} <= result.keys()
    [latencies] = result["latency_p50_ms"]
    assert set(METHODS) < latencies.keys()
    assert not list(tmp_path.iterdir())


def test_the_full_run_covers_every_method_rate_and_pause():
    cells = [cell for group in rds._groups("injected", quick=False) for cell in group]
    assert len(cells) == len(set(cells)) == 4 * 5 + 6
    assert {pause for method, pause, rate in cells if rate == 200 and method == "retry"} == set(
        rds.PAUSES_MS
    )


def test_injected_costs_are_spent_even_when_each_is_too_short_to_sleep(tmp_path):
    store = CostlyStore(tmp_path / "queues")
    store.scale = 0.01
    began_s = time.perf_counter()
    for _ in range(1_000):
        store._spend(0.002)
    assert abs(store.cost_s - 0.02) < 1e-6
    assert time.perf_counter() - began_s >= 0.02 - rds._SLEEP_S_MIN


def test_a_plot_is_drawn(tmp_path):
    rows = [
        {
            "mode": "light", "method": method, "pause_ms": 100 if method == "retry" else None,
            "lambda_per_s": rate, "delivered_per_s": rate, "hit_rate": 0.5,
            "messages_per_hit": None if method == "poll" else 2, "p50_ms": 3.0,
        }
        for method in METHODS
        for rate in (10, 200)
    ]  # fmt: skip
    plot_rds({"rds": rows}, tmp_path / "rds.png")
    assert (tmp_path / "rds.png").read_bytes().startswith(b"\x89PNG")


def test_rounds_are_summed_up_by_their_median_and_what_is_counted_by_its_sum():
    given = {"mode": "plain", "method": "wake", "pause_ms": None, "lambda_per_s": 100}
    rows = [
        {**given, "delivered_per_s": rate, "hit_rate": hits, "lost": 1, "delivered": 10}
        for rate, hits in ((5.0, None), (900.0, None), (7.0, None))
    ]
    expected = {**given, "delivered_per_s": 7.0, "hit_rate": None, "lost": 3, "delivered": 30}
    assert rds._sum_up(rows) == expected
