"""Trace analytics: what Spark finds is what the pure functions of B5 find."""

import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ringdove
from cli.shell import Shell
from ringdove.core.consistency import longest_increasing, measure
from ringdove.errors import InvalidArgument
from ringdove.spark import trace_sources
from ringdove.spark.matching import sorting
from ringdove.spark.tally import FIGURES, PERCENTILES, increasing_by_group
from ringdove.spark.traces import _rows, _sort_messages, _sort_rows, _tally, analyse
from ringdove.tracing import Tracer
from ringdove.tracing.parquet import SCHEMA
from test_docs import python_blocks

EXAMPLES = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ON_SPARK = settings(EXAMPLES, max_examples=3)
PAGE = Path(__file__).parent.parent.parent / "docs" / "traces.md"
WINDOW_MS = 1
QUEUES = ("a", "b", "never used")
PARTIES = ("p", "q", "ä")


# -- random traces --------------------------------------------------------------------------------


@st.composite
def traces(draw):
    """Rows of a few messages: sent several times, received several times, lost, or from nowhere."""
    rows = []
    numbers = defaultdict(int)

    def number(kind, queue, party):
        numbers[kind, queue, party] += draw(st.integers(1, 3))
        return numbers[kind, queue, party]

    for queue in QUEUES[:2]:
        for message in draw(st.lists(st.binary(max_size=12), unique=True, max_size=12)):
            for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
                party = draw(st.sampled_from(PARTIES))
                at = 500 * draw(st.integers(0, 8))
                rows.append((queue, message, party, number("sent", queue, party), at, *4 * [None]))
            for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
                party = draw(st.sampled_from(PARTIES))
                at = 500 * draw(st.integers(1, 12))
                intact = draw(st.sampled_from([None, True, True, False]))
                arrival = number("received", queue, party)
                rows.append((queue, message, *3 * [None], party, arrival, at, intact))
    again = draw(st.lists(st.sampled_from(rows), max_size=3)) if rows else []
    return draw(st.permutations(rows + again))


def table(rows):
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in SCHEMA]
    return pa.table(
        [
            pa.array(column, pa.int64()).cast(field.type)
            if pa.types.is_timestamp(field.type)
            else pa.array(column, field.type)
            for column, field in zip(columns, SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )


# -- the same figures by the pure functions -------------------------------------------------------


def expected(rows, level):
    """The figures of each group, by its key."""
    sends = sorted((r[4], r[2], r[3], r[0], r[1]) for r in set(rows) if r[4] is not None)
    receives = sorted(
        (r[7], r[5], r[6], r[0], r[1], r[8] is False) for r in set(rows) if r[7] is not None
    )
    first_send, first_receive = {}, {}
    for at, party, number, *name in sends:
        first_send.setdefault(tuple(name), (at, party, number))
    for at, _, _, queue, message, _ in receives:
        first_receive.setdefault((queue, message), at)

    def group(name):
        sent = first_send.get(name)
        if level == "queues":
            return (name[0],)
        if level == "producers":
            return name[0], sent and sent[1]
        at = sent[0] if sent else first_receive[name]
        return name[0], at // (1000 * WINDOW_MS) * 1000 * WINDOW_MS

    groups = defaultdict(lambda: ([], []))
    for name, sent in first_send.items():
        groups[group(name)][0].append((sent[::-1] if level == "producers" else sent, name))
    for *_, queue, message, damaged in receives:
        groups[group((queue, message))][1].append(((queue, message), damaged))
    return {
        key: figures([name for _, name in sorted(own)], arrivals, first_send, first_receive)
        for key, (own, arrivals) in groups.items()
    }


def figures(sent, arrivals, first_send, first_receive):
    received = [name for name, _ in arrivals]
    found = measure(sent, received)._asdict()
    found["corrupted"] = sum(damaged for _, damaged in arrivals)
    both = [name for name in dict.fromkeys(received) if name in first_send]
    latencies = sorted(first_receive[name] - first_send[name][0] for name in both)
    for name, share in PERCENTILES.items():
        at = -(-len(latencies) * share // 1000) - 1
        found[f"latency_{name}_us"] = latencies[at] if latencies else None
    right = {name: at for at, name in enumerate(n for n in sent if n in set(both))}
    moved = [abs(at - right[name]) for at, name in enumerate(both)]
    found["displacement_max"] = max(moved, default=0)
    found["displaced"] = (
        [
            sum(distance.bit_length() == bits for distance in moved)
            for bits in range(found["displacement_max"].bit_length() + 1)
        ]
        if moved
        else []
    )
    return found


def by_key(rows, *names):
    found = {tuple(row.pop(name) for name in names): row for row in rows}
    assert len(found) == len(rows)
    return found


def check(report, rows):
    assert by_key(report["queues"], "queue") == expected(rows, "queues")
    assert by_key(report["producers"], "queue", "producer") == expected(rows, "producers")
    assert by_key(report["windows"], "queue", "window_us") == expected(rows, "windows")


def analysed_by_hand(rows, parts):
    """The three stages one after the other, moved between parts by this test instead of Spark."""

    def moved(batches):
        found = defaultdict(list)
        for batch in batches:
            for at, part in enumerate(batch["part"].to_pylist()):
                found[part].append(batch.slice(at, 1))
        return found.values()

    half = len(rows) // 2
    sorted_rows = [
        parcel
        for share in (rows[:half], rows[half:])
        for parcel in _sort_rows(iter(table(share).to_batches()), lambda given: given, parts)
    ]
    messages = [
        parcel
        for own in moved(sorted_rows)
        for parcel in _sort_messages(iter(own), parts, 1000 * WINDOW_MS)
    ]
    told = [
        batch for own in moved(messages) for batch in _tally(iter(own), parts, 1000 * WINDOW_MS)
    ]
    if not told:
        return {"queues": [], "producers": [], "windows": []}
    whole = pa.Table.from_batches(told)
    return {name: _rows(whole, name) for name in ("queues", "producers", "windows")}


@EXAMPLES
@given(traces(), st.integers(1, 5))
def test_the_stages_find_what_the_pure_functions_find(rows, parts):
    check(analysed_by_hand(rows, parts), rows)


@ON_SPARK
@given(rows=traces())
def test_spark_finds_what_the_pure_functions_find(spark, rows):
    frame = spark.createDataFrame(table(rows))
    check(analyse(trace_sources.from_frame(frame), WINDOW_MS).as_dict(), rows)


@EXAMPLES
@given(st.lists(st.integers(1, 60).flatmap(lambda n: st.permutations(range(n))), max_size=4))
def test_orders_of_groups_are_independent_of_each_other(orders):
    starts = np.cumsum([0, *map(len, orders)])
    ranks = [start + rank for start, order in zip(starts, orders, strict=False) for rank in order]
    group = np.repeat(np.arange(len(orders)), [len(order) for order in orders])
    found = increasing_by_group(np.array(ranks, np.int64), group, len(orders))
    assert found.tolist() == [longest_increasing(order) for order in orders]


@EXAMPLES
@given(st.lists(st.tuples(*3 * [st.integers(-(2**62), 2**62) | st.integers(-3, 3)])))
def test_rows_are_sorted_by_their_keys_however_large(rows):
    order = sorting(*np.array(rows, np.int64).reshape(-1, 3).T)
    assert [rows[at] for at in order] == sorted(rows)


def test_without_traces_there_is_nothing_to_tell(spark):
    report = analyse(trace_sources.from_frame(spark.createDataFrame(table([]))))
    assert (report.queues, report.producers, report.windows) == ([], [], [])


# -- from tracers to figures ----------------------------------------------------------------------


@pytest.fixture
def queue(file_url):
    """A queue whose messages were sent and received, some of them badly, and its connection."""
    with ringdove.connect(file_url) as rd:
        yield rd, rd.create_queue("readings")


def trace_some(rd, queue, to):
    """One message lost, one received twice, one damaged, one that nobody sent."""
    with Tracer("readings", to, name="sender") as sender, Tracer("readings", to) as receiver:
        sender.sent(queue.send_many([b"a", b"b", b"c", b"d"]), at_us=1_000_000)
        first, *others, _ = queue.receive(max=4)
        receiver.received(others, [True, False], at_us=1_002_000)
        receiver.received([first, others[0]], at_us=1_003_000)
        receiver.received(b"whose is this?", at_us=1_003_000)


def check_some(report):
    (row,) = report["queues"]
    found = [row[name] for name in ("sent", "received", "lost", "duplicated", "unexpected")]
    assert found == [4, 5, 1, 1, 1]
    assert (row["corrupted"], row["latency_p50_us"], row["latency_max_us"]) == (1, 2000, 3000)
    # The first came after the second and the third.
    assert row["out_of_order_rate"] == pytest.approx(1 / 3)
    assert row["displacement"] == pytest.approx(4 / 3)
    assert [row["producer"] for row in report["producers"]] == [None, "sender"]


def test_traces_in_parquet_become_figures(spark, queue, tmp_path):
    trace_some(*queue, tmp_path / "traces")
    source = trace_sources.from_parquet(spark, tmp_path / "traces")
    assert source.rows_about == 9
    told = []
    check_some(analyse(source, on_progress=lambda *done: told.append(done)).as_dict())
    done, known = told[-1]
    assert done > 0
    assert known >= done


def test_traces_in_a_queue_become_figures_and_stay_there(spark, queue, file_url):
    rd, readings = queue
    trace_some(rd, readings, rd.create_queue("traces"))
    rd.close()
    check_some(analyse(trace_sources.from_queue(spark, file_url, "traces")).as_dict())
    with ringdove.connect(file_url) as rd:
        assert rd.queue("traces").stats().messages == 2


def test_a_row_that_was_stored_twice_counts_once(spark, queue, tmp_path):
    trace_some(*queue, tmp_path)
    for file in list(tmp_path.glob("*.parquet")):
        shutil.copy(file, tmp_path / f"again-{file.name}")
    check_some(analyse(trace_sources.from_parquet(spark, tmp_path)).as_dict())


def test_what_is_no_trace_is_refused(spark, tmp_path):
    with pytest.raises(InvalidArgument, match="no Parquet files"):
        trace_sources.from_parquet(spark, tmp_path)
    with pytest.raises(InvalidArgument, match="no Parquet files"):
        trace_sources.from_parquet(spark, tmp_path / "missing")
    pq.write_table(pa.table({"queue": ["q"], "other": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InvalidArgument, match="there is no column 'message'"):
        trace_sources.from_parquet(spark, tmp_path)
    with pytest.raises(InvalidArgument, match="A window of 0 ms"):
        analyse(trace_sources.from_frame(spark.createDataFrame(table([]))), 0)


# -- on the command line --------------------------------------------------------------------------


def test_a_recording_is_reported_with_tables_json_and_a_page(spark, capfd, monkeypatch, tmp_path):
    shell = Shell(capfd, monkeypatch, tmp_path / "data")
    plan = ["--messages", "3000", "--rate", "0", "--crash", "0.2"]
    shell("trace", "record", "--to", str(tmp_path / "traces"), *plan)
    page = tmp_path / "report.html"
    (told,) = shell.json("trace", "report", str(tmp_path / "traces"), "--html", str(page))
    (row,) = told["queues"]
    assert (row["sent"], row["lost"], row["corrupted"], row["unexpected"]) == (3000, 0, 0, 0)
    assert row["received"] == 3000 + row["duplicated"]
    assert len(told["producers"]) == 2
    assert "<svg" in page.read_text()
    assert "3,000" in shell("trace", "report", str(tmp_path / "traces"))


def test_a_recording_may_go_to_a_trace_queue(spark, capfd, monkeypatch, tmp_path):
    shell = Shell(capfd, monkeypatch, tmp_path / "data")
    shell("trace", "record", "--trace-queue", "traces", "--messages", "500", "--rate", "0")
    (told,) = shell.json("trace", "report", "--queue", "traces", "--window", "1s")
    assert [(row["queue"], row["sent"], row["lost"]) for row in told["queues"]] == [
        ("traced", 500, 0)
    ]


@pytest.mark.parametrize("wrong", [["record"], ["report"], ["report", "x", "--queue", "y"]])
def test_commands_that_name_no_place_or_two_are_refused(capfd, monkeypatch, tmp_path, wrong):
    shell = Shell(capfd, monkeypatch, tmp_path / "data")
    shell("trace", *wrong, code=1)
    assert "race" in shell.err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["record", "--to", "t", "--producers", "0"], "producers is 0"),
        (["record", "--to", "t", "--receivers", "0"], "receivers is 0"),
        (["record", "--to", "t", "--messages", "0"], "messages is 0"),
        (["record", "--to", "t", "--crash", "2"], "crash is 2.0"),
        (["record", "--to", "taken/t", "--messages", "10"], "cannot be written to taken/t"),
        (["report", "t", "--window", "0s"], "--window is '0s'"),
        (["report", "t", "--html", "none/page.html"], "cannot be written to none/page.html"),
    ],
)
def test_what_would_come_to_nothing_is_refused(capfd, monkeypatch, tmp_path, wrong, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    shell = Shell(capfd, monkeypatch, tmp_path / "data")
    shell("trace", *wrong, code=1)
    assert said in shell.err


def test_made_up_traces_come_out_as_they_were_made_up(spark, tmp_path):
    from ringdove.bench import traces as bench

    told = bench.run(tmp_path, rows=8_000, queues=2, master="local[2]")
    assert told["figures"] == "as made up"
    assert (told["producers"], told["queues"]) == (2 * 17, 2)


def test_the_python_on_the_page_runs(spark, tmp_path, capfd):
    scope = {"__name__": "page"}
    for block in python_blocks(PAGE):
        exec(block.replace("file:./ringdove-data", f"file:{tmp_path}"), scope)
    assert capfd.readouterr().out.startswith("readings 2 0 ")
    assert [outcome.result for outcome in scope["outcomes"]][:4] == [2.5, 3.5, 4.5, 1.25]


def test_every_figure_is_explained_on_the_page():
    text = PAGE.read_text()
    names = [*FIGURES.names, *SCHEMA.names]
    plain = [name for name in names if not name.startswith("latency")]
    assert [name for name in plain if f"`{name}`" not in text] == []
