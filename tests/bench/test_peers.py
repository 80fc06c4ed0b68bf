"""Peers: what is told by tools is read, ratios are honest, and a real run counts every message."""

import json

import pytest

from ringdove.bench.peers import kafka, obtaining, rabbitmq, redis, report, rounds
from ringdove.bench.peers.peer import PIPELINE, Pipelined, Server
from ringdove.bench.peers.ringdove import Ringdove
from ringdove.bench.peers.ways import Flow, Way
from ringdove.bench.peers.workloads import WORKLOADS, Options, Stand, fitting
from ringdove.cli import run as ringdove
from ringdove.errors import InvalidArgument, StoreUnavailable

TINY = Options(messages=400, seconds=0.1, rounds=1, backlog=400, idle=50, latencies=20)


def row(peer, style, workload="100-bytes", durability="synced", family="queue", **figures):
    return {
        "workload": workload, "durability": durability, "peer": peer, "family": family,
        "client": f"{peer}'s {style}", "style": style, "messages": 10, "lost": 0, **figures,
    }  # fmt: skip


# -- what tools tell ------------------------------------------------------------------------------


def test_the_time_of_kafkas_producer_is_that_of_all_records():
    told = (
        "249 records sent, 49.8 records/sec (0.00 MB/sec), 1.0 ms avg latency\n"
        "1000 records sent, 500.0 records/sec (0.05 MB/sec), 20 ms avg latency, 30 ms max\n"
    )
    assert kafka.produced_s(told) == 2.0
    with pytest.raises(StoreUnavailable, match="no rate"):
        kafka.produced_s("Exception in thread main")


def test_kafkas_consumer_is_read_by_the_names_in_its_heading():
    told = (
        "a warning\n"
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
        "2026-01-02 03:04:05:000, 2026-01-02 03:04:07:250, 9.5, 4, 100000, 44444, 250, 2000, 4, 50000\n"
    )
    found = kafka.consumed(told)
    assert (found.messages, found.fetched_s, found.ended_s % 1) == (100_000, 2.0, 0.25)
    with pytest.raises(StoreUnavailable, match="no figures"):
        kafka.consumed("start.time, end.time\nbroken")


def test_perf_tests_rates_are_read_by_direction():
    told = "id: test-1, sending rate avg: 1234 msg/s\nid: test-1, receiving rate avg: 1200 msg/s\n"
    assert rabbitmq.rates(told) == {"sending": 1234, "receiving": 1200}
    with pytest.raises(StoreUnavailable, match="no rate"):
        rabbitmq.rates("id: test-1, sending rate avg: 0 msg/s")


def test_entries_are_found_in_every_shape_that_redis_py_answers():
    entries = [(b"1-0", {b"b": b"x"}), (b"2-0", {b"b": b"y"})]
    for shape in ([[b"q", entries]], {b"q": [entries]}, {b"q": entries}):
        assert redis.entries_of(shape) == entries
    assert redis.entries_of([]) == redis.entries_of({}) == []


# -- ratios ---------------------------------------------------------------------------------------


def test_a_ratio_is_with_the_same_style_and_durability():
    figures = [
        row("Ringdove", "batches", messages_per_s=1000),
        row("Ringdove", "single", messages_per_s=50),
        row("Ringdove", "single", durability="unsynced", messages_per_s=1),
        row("Other", "single", messages_per_s=100),
        row("Other", "joined", messages_per_s=10),
        row("Another", "sqs", family="sqs", messages_per_s=10),
    ]
    found = [(r["style"], r["ringdove"], r["times"]) for r in report.ratios(figures)]
    assert found == [("single", 50, 0.5), ("joined", 1000, 100)]


def test_less_time_is_better():
    figures = [
        row("Ringdove", "single", "latency", p50_ms=2.0, p99_ms=4.0),
        row("Other", "single", "latency", p50_ms=1.0, p99_ms=None),
    ]
    [found] = report.ratios(figures)
    assert (found["figure"], found["times"]) == ("p50", 0.5)


def test_a_rate_with_loss_is_none():
    whole, broken = {"messages": 9, "lost": 0, "messages_per_s": 5}, {"messages": 9, "lost": 2}
    assert rounds.summary([whole, {**whole, "messages_per_s": 8}])["messages_per_s"] == 6.5
    found = rounds.summary([whole, broken])
    assert (found["messages_per_s"], found["lost"]) == (None, 2)


class Paced(Way):
    """A broker that takes a millisecond for a message and loses a few; notes what it is given."""

    def __init__(self, lost=0):
        super().__init__("paced", "batches", "")
        self.lost = lost
        self.given = []

    def flow(self, peer, server, queue, load):
        self.given.append(load.messages)
        return Flow(load.messages, load.messages / 1000, self.lost)

    def backlog(self, peer, server, queue, load):
        raise NotImplementedError


def test_a_run_is_as_long_as_wanted():
    way = Paced()
    stand = Stand(Ringdove(), way, Server("", 0), False)
    options = Options(messages=1_000_000, seconds=20)
    assert fitting(stand, options, lambda: ("q", lambda: None)) == 20_000
    assert way.given == [2_000, 20_000]
    assert fitting(stand, options._replace(messages=70), lambda: None) == 70


def test_a_workload_that_lost_messages_tells_no_rate():
    stand = Stand(Ringdove(), Paced(lost=3), Server("", 0), False)
    found = WORKLOADS["50-producers"].run(stand, "q", 1000, Options())
    assert (found["lost"], found["messages"], "messages_per_s" in found) == (3, 500, False)


def test_two_pipelines_are_on_their_way_on_each_connection():
    class Sender(Pipelined):
        def __init__(self):
            self.waiting, self.most, self.sent = 0, 0, []

        def write(self, part):
            self.sent += part
            self.waiting += len(part)
            self.most = max(self.most, self.waiting)

        def await_acknowledged(self, count):
            self.waiting -= count

    sender = Sender()
    bodies = [b"%d" % number for number in range(3 * PIPELINE + 7)]
    sender.send(bodies)
    assert (sender.sent, sender.waiting, sender.most) == (bodies, 0, 2 * PIPELINE)


# -- reports --------------------------------------------------------------------------------------


@pytest.fixture
def result():
    figures = [
        row("Ringdove", "batches", messages_per_s=4000),
        row("Other", "batches", messages_per_s=1000),
    ]
    return {
        "ratios": report.ratios(figures), "figures": figures, "machine": "2 cores",
        "peers": [{"peer": "Other", "version": "1"}], "ways": [], "rounds": 3, "seconds": 1.0,
        "left_out": [{"peer": "Third", "client": "", "what": "all", "reason": "a | b"}],
    }  # fmt: skip


def test_a_saved_run_is_reported_again(result, tmp_path, capsys):
    saved = tmp_path / "peers.json"
    saved.write_text(json.dumps(result))
    plotted = tmp_path / "peers.png"
    asked = ["bench", "peers", "--load", str(saved)]
    assert ringdove([*asked, "--markdown", "--plot", str(plotted)]) == 0
    page = capsys.readouterr().out
    assert "| Other | Other's batches | batches | synced | 4.0 |" in page
    assert "a \\| b" in page
    assert plotted.read_bytes().startswith(b"\x89PNG")
    assert ringdove(asked) == 0
    assert "4,000/s" in capsys.readouterr().out


def test_unknown_names_are_refused_before_anything_is_fetched():
    with pytest.raises(InvalidArgument, match="no peer 'rabbit'"):
        rounds.run(None, ["rabbit"])
    with pytest.raises(InvalidArgument, match="no workload 'all'"):
        rounds.run(None, ["redis"], ["all"])


# -- real peers -----------------------------------------------------------------------------------


def test_a_program_that_cannot_be_had_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(obtaining, "SEARCHED", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreUnavailable, match="Package beanstalkd is missing"):
        obtaining.program("beanstalkd", "beanstalkd")


def test_redis_streams_and_beanstalkd_are_measured_beside_ringdove(tmp_path):
    peers = ["redis", "beanstalkd"]
    found = rounds.run(tmp_path, peers, ["100-bytes", "idle"], TINY, ["unsynced"])
    reasons = [left["reason"] for left in found["left_out"]]
    if any("cannot be installed" in reason for reason in reasons):
        pytest.skip(reasons[0])
    assert reasons == []
    assert {row["peer"] for row in found["figures"]} == {"Ringdove", "Redis Streams", "beanstalkd"}
    for row in found["figures"]:
        assert row["lost"] == 0, row
        assert not row["duplicates"], row
        if row["workload"] == "100-bytes":
            assert row["messages"] == 400
            assert row["messages_per_s"] > 0
        else:
            assert row["wake_ms"] > 0
    compared = {(row["peer"], row["client"]) for row in found["ratios"]}
    assert {("Redis Streams", "redis-py"), ("beanstalkd", "greenstalk")} <= compared
    assert not list(tmp_path.iterdir())


def test_a_synced_backlog_is_filled_and_drained(tmp_path):
    found = rounds.run(tmp_path, ["beanstalkd"], ["backlog"], TINY, ["synced"])
    if found["left_out"]:
        pytest.skip(found["left_out"][0]["reason"])
    ours, theirs = found["figures"]
    for row in (ours, theirs):
        assert (row["durability"], row["messages"], row["lost"]) == ("synced", 400, 0)
        assert row["fill_per_s"] > 0
        assert row["drain_per_s"] > 0
    assert (ours["peer"], theirs["peer"]) == ("Ringdove", "beanstalkd")
