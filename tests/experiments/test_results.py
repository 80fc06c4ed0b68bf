"""The results page is filled from what experiments have written, and says nothing else there."""

import json
from pathlib import Path

import pytest

from experiments import NAMES, results
from experiments.__main__ import main
from ringdove.errors import InvalidArgument

DOCS = Path(__file__).parent.parent.parent / "docs"

PAGE = """\
# Results

<!-- beside kvs -->
old figures
<!-- end -->
By hand.

<!-- beside bench-rds -->
<!-- end -->
"""


def rds(method, delivered, rate=200, pause=None):
    return {
        "mode": "plain", "method": method, "lambda_per_s": rate, "pause_ms": pause,
        "delivered_per_s": delivered,
    }  # fmt: skip


def test_marked_parts_are_filled_and_the_rest_is_left(tmp_path, capsys):
    measured, docs = tmp_path / "out", tmp_path / "docs"
    measured.mkdir()
    docs.mkdir()
    (docs / "results.md").write_text(PAGE)
    beside = [{"what": "over simple", "document": 3.8, "here": 5000}]
    (measured / "kvs.json").write_text(json.dumps({"beside": beside, "rows": [1] * 1000}))
    rows = [
        rds("poll", 100),
        rds("retry", 175, pause=100),
        rds("retry", 1, pause=500),
        rds("poll", 1, 10),
    ]
    (measured / "bench-rds.json").write_text(json.dumps({"rds": rows}))
    arguments = ["results", "--measured", str(measured), "--docs", str(docs)]
    assert main(arguments) == 0
    page = (docs / "results.md").read_text()
    assert "| over simple | 3.8 | 5,000 |" in page
    assert "lambda = 200, plain | 1.8 | 1.75 |" in page
    assert "old figures" not in page
    assert "By hand." in page
    assert json.loads((docs / "results" / "kvs.json").read_text()) == beside
    assert main(arguments) == 0
    assert (docs / "results.md").read_text() == page


def test_the_figures_of_benchmarks_are_those_of_the_documents():
    e2e = [
        {"durability": "disk", "size": 100, "producers": n, "messages_per_s": rate, "lost": 0}
        for n, rate in ((1, 1000), (50, 900))
    ]
    rows = results.BENCHES["bench-e2e"]({"e2e": e2e})
    assert [row["here"] for row in rows] == [1000, 0.9, 0]
    told = {f"{name}_mean_ms_max_to_80_percent": 5.5 for name in ("disk", "memory")}
    assert [row["here"] for row in results.BENCHES["bench-load"](told)] == [5.5, 5.5]
    row = {"workload": "100-bytes", "durability": "synced", "client": "c", "times": 3.1}
    ratios = [
        {**row, "peer": peer, "figure": figure}
        for peer, figure in (("Kafka", "rate"), ("Kafka", "p50"), ("NATS", "rate"))
    ]
    [found] = results.BENCHES["peers"]({"ratios": ratios})
    assert found["here"] == 3.1


def test_a_part_for_an_unknown_experiment_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="'kvx'"):
        results.fill("<!-- beside kvx -->\n<!-- end -->", tmp_path)


def test_the_page_shows_every_experiment_as_it_was_kept():
    page = (DOCS / "results.md").read_text()
    assert sorted(results.parts(page)) == sorted([*NAMES, *results.BENCHES])
    assert results.fill(page, DOCS / "results") == page
