"""The commands that predict."""

import json

import pytest

from cli.shell import Shell
from ringdove.cli import EXIT_REFUSED


@pytest.fixture
def shell(capfd, monkeypatch):
    return Shell(capfd, monkeypatch)


def test_closed_form_answers_in_json(shell):
    out = shell(
        "model", "closed-form", "--rate", "30.3", "--service-rate", "10", "--threads", "4",
        "--reliability", "0.88", "--json",
    )  # fmt: skip
    assert round(json.loads(out)["sojourn_ms"], 2) == 412.38


def test_closed_form_prints_a_table(shell):
    assert "252.28" in shell("model", "closed-form", "--reliability", "0.88")


def test_a_load_that_is_too_much_is_told(shell):
    shell("model", "closed-form", "--threads", "3", code=EXIT_REFUSED)
    assert "not stable" in shell.err


def test_a_service_rate_of_nothing_is_told(shell):
    shell("model", "closed-form", "--service-rate", "0", code=EXIT_REFUSED)
    assert "service rate" in shell.err


def test_petri_simulates_and_draws(shell, tmp_path):
    out = shell(
        "model", "petri", "--replications", "2", "--seconds", "20", "--warm", "5", "--in-order",
        "--timeout", "1s", "--reliability", "0.9", "--draw", str(tmp_path / "net"), "--json",
    )  # fmt: skip
    found = {row["figure"]: row for row in json.loads(out)["petri"]}
    assert found["delivery_ms"]["mean"] > 200
    assert found["delivery_ms"]["plus_minus"] > 0
    assert "Get_Oldest_Msg" in (tmp_path / "net" / "Broker.svg").read_text()


def test_petri_prints_a_table(shell):
    assert "broker_busy" in shell("model", "petri", "--replications", "2", "--seconds", "5")


def test_dequeue_compares_methods(shell):
    out = shell("model", "dequeue", "--seconds", "3", "--warm", "1", "--json")
    found = json.loads(out)
    assert [row["method"] for row in found["dequeue"]] == ["poll", "monitor", "retry", "wake"]
    for row in found["dequeue"]:
        nodes = sum(value for name, value in row.items() if name.startswith("nodes_busy"))
        assert nodes == pytest.approx(10 * row["busy_share"], rel=0.3)
        assert row["break_even_asks_per_s"] > 0
    assert "retry" in shell("model", "dequeue", "--method", "retry", "--seconds", "1")


def test_placement_compares_layouts(shell):
    out = shell("model", "placement", "--servers", "7", "--neighbours", "--json")
    found = {row["layout"]: row for row in json.loads(out)["placement"]}
    assert found["counter-rotating"]["load_worst"] == 2
    assert found["same direction"]["load_worst"] == 3


def test_scaling_is_linear_until_work_does_not_spread(shell):
    [one, ten] = json.loads(
        shell("model", "scaling", "--servers", "1", "--servers", "10", "--json")
    )["scaling"]
    assert ten["saturated_per_s"] == 10 * one["saturated_per_s"]
    assert ten["response_ms"] == one["response_ms"] > ten["response_of_one_line_ms"]
    assert "saturated" in shell("model", "scaling", "--serial", "0.1", "--copy-time", "50us")
