"""The experiments with models: short runs, their statements and pictures; and real ones beside."""

import pytest

from experiments import (
    arrival_rate,
    delivery_time,
    dequeue_batches,
    dequeue_hits,
    dequeue_throughput,
    dequeuing,
    injected,
    placement,
    planned,
    queueing,
    reality,
    service_time,
    sleep_time,
    turning,
    utilisation,
    waiting,
)
from experiments.injected import Scene
from ringdove.models.visibility import Setup


@pytest.fixture(autouse=True)
def _one_process(monkeypatch):
    """Short runs are over before other processes have started."""
    monkeypatch.setattr("ringdove.models.replications.os.cpu_count", lambda: 1)


@pytest.mark.parametrize(
    "experiment",
    [delivery_time, waiting, utilisation, service_time, arrival_rate, sleep_time, placement],
)
def test_a_short_run_has_statements_and_a_picture(experiment, tmp_path):
    result = experiment.run(quick=True)
    rows = next(value for value in result.values() if isinstance(value, list))
    assert len(rows) >= 4
    assert all(row["here"] is not None for row in result["beside"])
    experiment.plot(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_dequeue_figures_come_from_one_sweep(tmp_path):
    rows = dequeuing.sweep(quick=True, spark=False)
    assert {row["method"] for row in rows} == set(dequeuing.methods(1))
    figures = {"throughput": dequeue_throughput, "hits": dequeue_hits, "batches": dequeue_batches}
    for name, experiment in figures.items():
        assert len(experiment.statements(rows)) >= 3
        experiment.plot({name: rows}, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").exists()


def test_the_closed_form_stands_where_there_is_one():
    assert queueing.closed(Setup(in_order=True)) is None
    assert queueing.closed(Setup(sender_threads=3)) is None
    assert queueing.closed_figures(Setup(sender_threads=3))["waiting"] is None
    assert queueing.closed_figures(Setup())["delivery_ms"] == pytest.approx(226.47, abs=0.01)


def test_points_outside_the_band_are_counted():
    rows = [
        {"x": 1.0, "x_band": 0.1, "x_closed": 1.05},
        {"x": 1.0, "x_band": 0.1, "x_closed": 1.2},
        {"x": 1.0, "x_band": 0.1, "x_closed": None},
    ]
    assert queueing.inside(rows, "x").startswith("1 of 2 points")


def test_a_turn_is_the_last_point_before_it():
    def row(ms, delivery_ms, waits):
        figures = {"delivery_ms": delivery_ms, "waiting": waits}
        return {"service_ms": ms, "reliability": 1.0, **figures}

    rows = [row(10, 20, 0.0), row(20, 42, 0.5), row(30, 80, 3.0)]
    assert turning._turns(rows, "service_ms", "ms") == "20 ms and 20 ms"
    assert turning._turns(rows[2:], "service_ms", "ms") == "- and -"


def test_a_real_queue_is_measured_like_the_model():
    scenes = [
        Scene(20.0, 4, 0.05, 0.7, sender_threads=3, sender_s=0.03, seed=1),
        Scene(20.0, 4, 0.05, seed=2),
    ]
    full, bare = injected.play(scenes, 3.0, 0.5)
    for found in (full, bare):
        assert found["delivered"] > 0
        assert 0 < found["broker_utilisation"] <= 1
        assert found["p99_ms"] >= found["delivery_ms"] / 2
    assert full["sender_utilisation"] > 0
    assert bare["sender_utilisation"] == 0


@pytest.mark.parametrize("experiment", [reality, planned])
def test_model_and_server_stand_side_by_side(experiment, tmp_path):
    result = experiment.run(quick=True)
    assert all(row["here"] is not None for row in result["beside"])
    experiment.plot(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").exists()


def test_every_plan_that_is_tried_is_below_four_fifths_of_its_load():
    for case in planned.CASES:
        plan = case.plan(0.001)
        assert plan.delivery.stations[1].utilisation <= 0.8
        assert plan.p99_s <= case.p99_s
