"""Sweeps: the same outcomes on Spark as on this machine, in order, failures among them."""

import os
import random
import subprocess
import sys
import textwrap

import pytest

from ringdove.errors import InvalidArgument
from ringdove.spark.sweep import points, sweep

GRID = {"rate": [1, 2, 3], "name": ["a", "b"]}


def simulate(rate, name, seed):
    draw = random.Random(f"{name}{seed}")
    return {"name": name, "values": [rate * draw.random() for _ in range(3)], "set": {name, "z"}}


def test_points_are_the_grid_in_order_each_with_every_seed():
    assert points({"a": [1, 2], "b": ["", "y"]}, 2) == [
        {"a": a, "b": b, "seed": seed} for a in (1, 2) for b in ("", "y") for seed in (0, 1)
    ]
    assert points([{"a": 1}, {"b": 2}]) == [{"a": 1}, {"b": 2}]
    assert points({"a": [1]}, [7, 5]) == [{"a": 1, "seed": 7}, {"a": 1, "seed": 5}]
    assert points({"a": []}, 3) == []


@pytest.mark.parametrize(("grid", "seeds"), [({"a": "text"}, 1), ({"a": 5}, 1), ({"seed": [1]}, 1)])
def test_a_grid_that_cannot_be_meant_is_refused(grid, seeds):
    with pytest.raises(InvalidArgument):
        points(grid, seeds)


@pytest.mark.parametrize("processes", [0, -1])
def test_points_cannot_be_spread_over_no_processes(processes):
    with pytest.raises(InvalidArgument, match="must be above 0"):
        sweep(abs, {"x": [1]}, processes=processes)


def test_spark_processes_and_a_plain_loop_agree(spark):
    expected = [simulate(**point) for point in points(GRID, 3)]
    for options in ({"processes": 2}, {"spark": spark}):
        told = []
        outcomes = sweep(
            simulate, GRID, seeds=3, on_progress=lambda *done: told.append(done), **options
        )
        assert [outcome.point for outcome in outcomes] == points(GRID, 3)
        assert [outcome.result for outcome in outcomes] == expected
        assert [outcome.failure for outcome in outcomes] == 18 * [None]
        assert told[-1] == (18, 18)
        assert told == sorted(told)


def test_failures_are_told_by_point_and_stop_nothing(spark):
    def half(n):
        if n == 2:
            raise ValueError("two is too many")
        return (i for i in ()) if n == 3 else n / 2

    for options in ({"processes": 2}, {"spark": spark}):
        good, bad, stuck, last = sweep(half, {"n": [1, 2, 3, 4]}, **options)
        assert (good.result, last.result) == (0.5, 2.0)
        assert (bad.point, bad.result) == ({"n": 2}, None)
        assert bad.failure.error == "ValueError: two is too many"
        assert "in half" in bad.failure.traceback
        assert "generator" in stuck.failure.error


def test_a_call_that_kills_its_process_costs_only_its_own_point():
    outcomes = sweep(lambda n: os._exit(7) if n == 1 else n, {"n": range(4)}, processes=1)
    assert [outcome.result for outcome in outcomes] == [0, None, 2, 3]
    assert outcomes[1].failure.error == "The process ended with code 7."


def test_what_functions_print_does_no_harm(capfd):
    outcomes = sweep(lambda n: print("printed", n), {"n": [5]})
    assert outcomes[0].failure is None
    captured = capfd.readouterr()
    assert (captured.out, "printed 5" in captured.err) == ("", True)


def test_a_script_without_a_guard_can_sweep_its_own_functions(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from ringdove.spark.sweep import sweep
            factor = 3

            def scaled(n, seed):
                return factor * n + seed

            print([outcome.result for outcome in sweep(scaled, {"n": [1, 2]}, seeds=2)])
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[3, 4, 6, 7]\n"
