"""The experiments with failures: what they make of records, and their pictures.

Runs of the real thing take minutes; their parts, real clusters under load and kills, are tested in
fabric/test_faults.py.
"""

import pytest

from experiments import faults, rings, slowdown
from experiments.stage import Got, Record, Scene, Sent, lengths, lost, per_bin
from ringdove.core.ring import Rings

SHARDS = ["A1", "B2"]


def record(sent, got=(), kills_s=(2.0,)):
    return Record(list(sent), list(got), list(kills_s), SHARDS, SHARDS)


def steady(rate, seconds, delay_s=0.01):
    """Messages at a rate, each answered and received soon."""
    sent = [Sent(n, n / rate, n / rate + delay_s, n % 2) for n in range(round(rate * seconds))]
    return sent, [Got(one.number, one.stripe, one.ended_s + delay_s) for one in sent]


def test_things_are_counted_by_the_bin():
    assert per_bin([0.0, 0.1, 0.6, 5.0], 0.5, 1.0) == [4.0, 2.0]


def test_what_was_acknowledged_and_never_came_is_lost():
    sent = [Sent(0, 0, 1, 0), Sent(1, 0, 1, 1), Sent(2, 0, 1, -1)]
    assert lost(record(sent, [Got(0, 0, 2.0)])) == 1


def test_a_queue_is_as_long_as_what_was_acknowledged_and_not_received():
    sent = [Sent(0, 0, 1, 0), Sent(1, 0, 2, 0), Sent(2, 0, 1, 1), Sent(3, 0, 1, -1)]
    found = record(sent, [Got(0, 0, 3.0), Got(0, 0, 9.0)])
    assert lengths(found, 0.5) == {"A1": 0, "B2": 0}
    assert lengths(found, 1.0) == {"A1": 1, "B2": 1}
    assert lengths(found, 2.5) == {"A1": 2, "B2": 1}
    assert lengths(found, 3.0) == {"A1": 1, "B2": 1}


def test_errors_and_late_sends_are_counted_and_given_in_seconds_of_load():
    sent, got = steady(10, 6)
    sent[25] = sent[25]._replace(ended_s=sent[25].begun_s + 1.5)
    sent[26] = sent[26]._replace(stripe=-1)
    row, ticks = slowdown._figures(record(sent, [*got, got[0]]), Scene(10, 6))
    assert (row["sent"], row["error_replies"], row["over_1_s"]) == (60, 1, 1)
    assert row["seconds_of_load"] == pytest.approx(0.2)
    assert (row["repeated"], row["lost"], row["worst_s"]) == (1, 0, 1.5)
    assert (row["before_per_s"], row["lowest_per_s"]) == (10, 6)
    assert sum(tick["over_1_s_per_s"] for tick in ticks) * slowdown.BIN_S == 1


class Seen:
    """What was seen of the masters."""

    found = ({"at_s": 0.0, "A": 2, "B": 2, "C": 2, "D": 2, "E": 2},
             {"at_s": 5.0, "A": 4, "B": 3, "C": 3, "D": None, "E": None})  # fmt: skip


def test_a_dip_a_gap_and_the_masters_are_found():
    sent, got = steady(10, 10)
    got = [one for one in got if not 6.5 < one.at_s < 8]
    row = rings._figures(record(sent, got, (2.0, 6.0)), Scene(10, 10), Rings(5), Seen)
    assert (row["masters_expected"], row["masters_found"]) == (4, 4)
    assert (row["delivered_per_s"], row["lowest_after_first"]) == (10, 10)
    assert row["lowest_after_second"] == 0
    assert row["longest_gap_s"] == pytest.approx(1.6, abs=0.11)
    assert (row["longest_queue"], row["error_replies"], row["lost"]) == (8, 0, 15)


def test_nothing_delivered_at_all_is_a_gap_to_the_end():
    sent, got = steady(10, 10)
    got = [one for one in got if one.at_s < 6]
    row = rings._figures(record(sent, got, (2.0, 6.0)), Scene(10, 10), Rings(5), Seen)
    assert row["longest_gap_s"] == pytest.approx(4.0)


def test_lost_calls_are_repeated_and_lost_replies_have_been_heard():
    import asyncio

    network = faults._Network(0.5, seed=3)
    heard = []

    async def call():
        heard.append(1)
        return len(heard)

    async def ask():
        return [await network.ask(call) for _ in range(20)]

    answers = asyncio.run(ask())
    assert len(answers) == 20
    assert network.dropped["call"] > 0
    assert 20 < len(heard) < 20 + network.dropped["call"]


def test_metrics_are_taken_over_all_queues():
    trace = faults._Trace(2)
    trace.sent = [[0, 1, 2, 3], [0, 1, 2, 3]]
    trace.received = [[0, 1, 2, 3], [1, 0, 2, 2]]
    trace.response_s, trace.receive_s = [0.1, 0.3], [0.5]
    row = trace.metrics()
    assert (row["messages"], row["lost"], row["send_ms"], row["receive_ms"]) == (8, 1, 200, 500)
    assert row["duplication_rate"] == pytest.approx(0.125)
    assert row["out_of_order_rate"] > 0


def test_pictures_are_drawn(tmp_path):
    sent, got = steady(10, 10)
    row, ticks = slowdown._figures(record(sent, got), Scene(10, 10))
    methods = [{"method": m, **row} for m in (slowdown.HASHING, slowdown.ROUND_ROBIN)]
    detection = [{"detection_s": s, **row} for s in slowdown.DETECTION_S]
    timeline = [{"method": slowdown.HASHING, "detection_s": 0.4, **tick} for tick in ticks]
    drawn = {"methods": methods, "detection": detection, "timeline": timeline,
             "beside": slowdown._beside(methods, detection), "rate_per_s": 10, "killed_at_s": 2.0}  # fmt: skip
    assert all(one["here"] is not None for one in drawn["beside"])
    slowdown.plot(drawn, tmp_path / "slowdown.png")

    told = record(sent, got, (2.0, 6.0))
    found = rings._figures(told, Scene(10, 10), Rings(5), Seen)
    layouts = (rings.SAME, rings.COUNTER)
    drawn = {
        "rings": [{"layout": layout, **found} for layout in layouts],
        "masters": [{"layout": layout, **look} for layout in layouts for look in Seen.found],
        "timeline": [
            {"layout": layout, **tick}
            for layout in layouts
            for tick in rings._ticks(told, Scene(10, 10))
        ],
        "rate_per_s": 10,
        "first_killed_at_s": 2.0,
        "second_killed_at_s": 6.0,
    }
    assert all(one["here"] is not None for one in rings._beside(drawn["rings"]))
    rings.plot(drawn, tmp_path / "rings.png")

    trace = faults._Trace(1)
    trace.sent, trace.received, trace.response_s, trace.receive_s = [[0]], [[0]], [0.1], [0.1]
    clients = [{"probability": p, **trace.metrics()} for p in faults.PROBABILITIES]
    servers = [{"mttf_s": mttf_s, **trace.metrics()} for mttf_s in faults.MTTF_S]
    assert all(one["here"] is not None for one in faults._beside(clients, servers))
    faults.plot({"clients": clients, "servers": servers}, tmp_path / "faults.png")
    for name in ("slowdown", "rings", "faults"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
