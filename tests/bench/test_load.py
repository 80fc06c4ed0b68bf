"""The benchmark of response time against load: its figures are whole and nothing is lost."""

from ringdove.bench import load
from ringdove.bench.plots import plot_load


def test_a_quick_run_accounts_for_every_message(tmp_path):
    result = load.run(tmp_path, durabilities=("memory",), quick=True)
    rows = result["load"]
    assert [row["load_share"] for row in rows] == [0.2, 0.6, 1.0]
    assert result["memory_lost"] == result["memory_duplicates"] == result["memory_failed"] == 0
    assert result["memory_sent"] > sum(row["sent"] for row in rows) > 0
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["done_per_s"] > 0
    assert not list(tmp_path.iterdir())


def test_the_reference_grows_without_bound_towards_saturation():
    rows = [{"load_share": share, "mean_ms": 2.0} for share in (0.1, 0.5, 0.9, 1.0, 1.1)]
    load.add_reference(rows)
    assert [row["reference_ms"] for row in rows] == [2.222, 4.0, 20.0, None, None]


def test_a_percentile_is_one_of_the_values():
    values = list(range(100, 0, -1))
    assert load.percentile(values, 50) == 51
    assert load.percentile(values, 99) == 100
    assert load.percentile([7.0], 99) == 7.0


def test_a_plot_is_drawn(tmp_path):
    rows = [
        {"durability": d, "load_share": s, "mean_ms": 1 + s, "p50_ms": 1, "p99_ms": 2 + s}
        for d in ("disk", "memory")
        for s in (0.1, 0.5, 1.0)
    ]
    load.add_reference(rows)
    result = {"load": rows, "disk_saturation_per_s": 100, "memory_saturation_per_s": 1_000}
    plot_load(result, tmp_path / "load.png")
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")
