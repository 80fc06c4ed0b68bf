"""The experiment `load`: every cell is there, and no message is lost."""

import pytest

from experiments import load
from ringdove.bench.redis import joined_nodes


@pytest.fixture(scope="module")
def result():
    return load.run(quick=True)


def test_a_quick_run_accounts_for_every_message(result):
    assert [row["load_share"] for row in result["curve"]] == [0.5]
    assert result["lost"] == result["duplicates"] == result["failed"] == 0
    assert [row["phase"] for row in result["throughput"]] == ["send", "receive"]
    assert all(row["per_s"] > 0 and row["nodes_us_each"] > 0 for row in result["throughput"])
    assert all(row["here"] is not None for row in result["beside"])


def test_a_plot_is_drawn(result, tmp_path):
    load.plot(result, tmp_path / "load.png")
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


def test_joined_nodes_serve_all_slots_between_them(tmp_path):
    with joined_nodes(tmp_path, 2) as nodes:
        for node in nodes:
            slots = node.ask("CLUSTER", "SLOTS")
            assert sorted((first, last) for first, last, *_ in slots) == [(0, 8191), (8192, 16383)]
