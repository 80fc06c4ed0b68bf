"""The report page: figures, plots, names that are no markup."""

import re
from xml.etree import ElementTree as ET

import pytest

from ringdove.tracing.charts import Series, bars, lines
from ringdove.tracing.page import duration, moment, percent, render, worst_first


def row(**changes):
    base = {
        "queue": "readings", "producer": "p", "window_us": 0,
        "sent": 1000, "received": 990, "lost": 20, "loss_rate": 0.02, "duplicated": 10,
        "duplication_rate": 0.0101, "unexpected": 0, "corrupted": 0, "out_of_order_rate": 0.25,
        "displacement": 1.5, "displacement_max": 9, "latency_p50_us": 1500, "latency_p90_us": 2000,
        "latency_p99_us": 90_000, "latency_p999_us": 2_000_000, "latency_max_us": 61_000_000,
        "displaced": [900, 50, 20, 8, 2],
    }  # fmt: skip
    return base | changes


def report(queues=1, windows=3):
    names = [f"q{number}" for number in range(queues)]
    return {
        "window_ms": 500,
        "queues": [row(queue=name) for name in names],
        "producers": [row(queue=name, producer=f"p{n}") for name in names for n in range(3)],
        "windows": [
            row(queue=name, window_us=n * 500_000, latency_p50_us=None if n == 1 else 700)
            for name in names
            for n in range(windows)
        ],
    }


def plots(page):
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_the_page_has_the_figures_and_four_plots_for_each_queue():
    page = render(report(queues=3), "Title")
    assert len(plots(page)) == 12
    for text in ("20 (2 %)", "10 (1.01 %)", "25 %", "1.50", "1.5 ms", "90 ms", "1.02 min", "p99.9"):
        assert text in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r'(src|href)="?http', page)


def test_names_are_no_markup():
    bad = "<script>alert('x')</script>"
    found = report()
    found["queues"][0]["queue"] = found["windows"][0]["queue"] = bad
    found["producers"][0]["producer"] = bad
    assert "<script>" not in render(found, bad)


def test_an_empty_report_is_a_page_too():
    page = render({"window_ms": 1000, "queues": [], "producers": [], "windows": []})
    assert "0 messages of 0 queues" in page


def test_many_queues_and_producers_are_cut_with_a_word():
    page = render(report(queues=30))
    assert "6 more queues are in the table only." in page
    assert "40 more are in less trouble." in page


def test_the_worst_come_first():
    calm, lossy, twice = row(lost=0, duplicated=0), row(), row(lost=0)
    assert worst_first([calm, twice, lossy]) == [lossy, twice, calm]


def heights(svg, kind):
    name = {"rect": "height", "circle": "cy"}[kind]
    return [float(node.get(name)) for node in svg.iter(kind)]


def test_higher_values_are_drawn_higher_and_missing_ones_are_not_drawn():
    text = lines("label", ["a", "b", "c"], [Series("s", [1, None, 100])], str, log=True)
    (svg,) = plots(text)
    low, high = heights(svg, "circle")
    assert high < low
    assert svg.find("path").get("d").count("M") == 2
    (svg,) = plots(bars("label", ["x", "y"], [0.25, 0.5], percent))
    small, large = heights(svg, "rect")
    assert large == pytest.approx(2 * small, abs=0.2)


@pytest.mark.parametrize("values", [[], [0, 0], [5], [None]])
def test_plots_of_little_are_plots(values):
    xs = [str(at) for at in range(len(values))]
    for log in (True, False):
        (svg,) = plots(lines("label", xs, [Series("s", values)], str, log=log))
        assert "nan" not in ET.tostring(svg, encoding="unicode").lower()


def test_figures_are_written_for_people():
    assert [percent(share) for share in (0, 0.00012, 0.5, 1)] == ["0 %", "0.012 %", "50 %", "100 %"]
    assert [duration(us) for us in (None, 7, 1500, 2e6, 9e7)] == [
        "", "7 us", "1.5 ms", "2 s", "1.5 min",
    ]  # fmt: skip
    assert (moment(3_600_000_000), moment(500_000)) == ("01:00:00", "00:00:00.5")
