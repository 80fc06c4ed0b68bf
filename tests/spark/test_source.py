"""The source (S1): batch and streaming, from a server, a directory and a fabric."""

import time
from collections import Counter

import pytest
from pyspark.errors import PySparkException

import ringdove
from ringdove import limits
from ringdove.errors import OffsetTrimmed
from ringdove.spark.options import Options
from ringdove.spark.reading import Range, StreamReader, pieces, share
from ringdove.stores.base import StripeId
from server.running import wait_for

COUNT = 25_000


@pytest.fixture
def queue(rd, request):
    """A queue of three stripes, named after the test."""
    made = rd.create_queue(request.node.name.partition("[")[0], stripes=3)
    yield made
    rd.delete_queue(made.name)


def fill(queue, first=0, last=COUNT, per_send=1_000):
    for start in range(first, last, per_send):
        stop = min(last, start + per_send)
        queue.send_many([b"%d" % n for n in range(start, stop)])


def reader(spark, server, queue, **options):
    given = {"url": server.url, "queue": queue.name, **options}
    return spark.read.format("ringdove").options(**given)


def stream(spark, server, queue, **options):
    given = {"url": server.url, "queue": queue.name, **options}
    return spark.readStream.format("ringdove").options(**given)


def stream_reader(server, queue, **options):
    """The driver's side of a stream, without Spark."""
    return StreamReader(Options.read({"url": server.url, "queue": queue.name, **options}), ["body"])


def latest(source, start):
    return source.latestOffset(start, source.getDefaultReadLimit())


def read_rows(source, start, end):
    """How many rows a micro-batch has."""
    parts = source.partitions(start, end)
    return sum(len(batch) for part in parts for batch in source.read(part))


def numbers(frame):
    return Counter(int(row.body) for row in frame.select("body").collect())


def run_now(frame, path, checkpoint):
    """Write a stream's rows to Parquet until nothing is left; answers its progress."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(path))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]


def test_every_message_is_read_once_from_all_stripes(spark, server, queue):
    fill(queue)
    frame = reader(spark, server, queue, rowsPerPartition="4000").load()
    assert numbers(frame) == Counter(range(COUNT))
    assert frame.rdd.getNumPartitions() > 3
    offsets = frame.groupBy("stripe").agg({"offset": "max", "*": "count"}).collect()
    assert sum(row[2] for row in offsets) == COUNT
    assert all(row[1] + 1 == row[2] for row in offsets)


def test_all_columns_of_all_kinds_of_messages(spark, server, rd, queue):
    queue.send(b"\x00plain")
    queue.send(b"keyed", key=b"k")
    queue.send(b"told", attributes={"unit": "kWh", "n": 7})
    frame = reader(spark, server, queue).load()
    found = {bytes(row.body): row for row in frame.collect()}
    assert found[b"\x00plain"].key is None
    assert bytes(found[b"keyed"].key) == b"k"
    assert found[b"told"].attributes == {"unit": "kWh", "n": "7"}
    assert all(row.sent <= row.stored for row in found.values())


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_blocks(spark, server, queue, compression):
    with queue.producer(compression=compression) as producer:
        for n in range(3_000):
            producer.send(b"%d" % n)
    assert numbers(reader(spark, server, queue).load()) == Counter(range(3_000))


def test_columns_are_chosen_by_option_or_schema(spark, server, queue):
    fill(queue, last=10)
    by_option = reader(spark, server, queue, columns="offset,body").load()
    assert by_option.columns == ["offset", "body"]
    by_schema = reader(spark, server, queue).schema("`body` binary").load()
    assert by_schema.columns == ["body"]
    assert by_option.count() == by_schema.count() == 10
    wrong = reader(spark, server, queue).schema("body string").load()
    with pytest.raises(PySparkException, match="no column 'body' of type string"):
        wrong.count()


@pytest.mark.parametrize(("start", "rows"), [("latest", 0), ("offset:100", 1_900)])
def test_a_batch_begins_where_it_is_told(spark, server, queue, start, rows):
    fill(queue, last=2_000, per_send=2_000)
    assert reader(spark, server, queue, start=start).load().count() == rows


def test_a_batch_begins_at_a_time(spark, server, queue):
    fill(queue, last=500)
    [[first_ms]] = (
        reader(spark, server, queue).load().selectExpr("max(unix_millis(stored))").collect()
    )
    wait_for(lambda: time.time_ns() // 1_000_000 > first_ms, "the next millisecond")
    fill(queue, 500, 700)
    frame = reader(spark, server, queue, start=f"time:{first_ms + 1}").load()
    assert numbers(frame) == Counter(range(500, 700))


def test_sql_makes_a_view_of_a_queue(spark, server, queue):
    fill(queue, last=100)
    options = f"OPTIONS (url '{server.url}', queue '{queue.name}')"
    spark.sql(f"CREATE TEMPORARY VIEW seen USING ringdove {options}")
    [row] = spark.sql("SELECT count(*), count(distinct body) FROM seen").collect()
    assert tuple(row) == (100, 100)
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept USING ringdove {options}")


def test_an_empty_queue_is_an_empty_table(spark, server, queue):
    assert reader(spark, server, queue).load().collect() == []


def test_clear_errors(spark, server, queue):
    for options, said in [
        ({"queue": "nosuch"}, "nosuch"),
        ({"queu": "q"}, "Did you mean 'queue'"),
        ({"subscription": "absent"}, "no subscription 'absent'"),
    ]:
        given = {"url": server.url, "queue": queue.name, **options}
        with pytest.raises(PySparkException, match=said):
            spark.read.format("ringdove").options(**given).load().count()


def test_what_is_trimmed_fails_or_is_left_out(spark, server, rd, queue):
    fill(queue, last=3_000, per_send=3_000)
    queue.purge()
    fill(queue, 3_000, 3_500, per_send=500)
    wait_for(lambda: sum(s.head for s in queue.stats().stripes.values()) > 0, "a trim")
    with pytest.raises(PySparkException, match="OffsetTrimmed"):
        reader(spark, server, queue, start="offset:0").load().count()
    kept = reader(spark, server, queue, start="offset:0", trimmed="skip").load()
    assert numbers(kept).keys() >= set(range(3_000, 3_500))


def test_a_stream_reads_everything_once_over_restarts(spark, server, queue, tmp_path):
    fill(queue)
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    options = {"rowsPerTrigger": "10000", "columns": "body,offset,stripe"}
    batches = run_now(stream(spark, server, queue, **options).load(), out, checkpoint)
    assert batches == [10_000, 10_000, 5_000]
    assert run_now(stream(spark, server, queue, **options).load(), out, checkpoint) == []
    fill(queue, COUNT, COUNT + 500)
    assert run_now(stream(spark, server, queue, **options).load(), out, checkpoint) == [500]
    assert numbers(spark.read.parquet(str(out))) == Counter(range(COUNT + 500))


def test_bytes_limit_a_batch(spark, server, queue, tmp_path):
    queue.send_many([b"x" * 1_000] * 5_000)
    frame = stream(spark, server, queue, bytesPerTrigger="2000000", columns="body").load()
    batches = run_now(frame, tmp_path / "out", tmp_path / "checkpoint")
    assert sum(batches) == 5_000
    assert len(batches) >= 3
    assert max(batches) <= 2_000


def test_a_subscription_learns_how_far_a_stream_is(spark, server, queue, tmp_path):
    fill(queue, last=9_000)
    frame = stream(
        spark, server, queue, subscription="default", rowsPerTrigger="3000", columns="body"
    ).load()
    run_now(frame, tmp_path / "out", tmp_path / "checkpoint")
    # The last batch is committed by the next run, if there is one.
    assert queue.stats().waiting() == 3_000
    fill(queue, 9_000, 9_100)
    run_now(frame, tmp_path / "out", tmp_path / "checkpoint")
    assert queue.stats().waiting() == 100
    # Who begins anew begins where the subscription is.
    assert numbers(reader(spark, server, queue, subscription="default").load()) == Counter(
        range(9_000, 9_100)
    )


def test_a_queue_made_anew_is_noticed(spark, server, rd, queue, tmp_path):
    fill(queue, last=100)
    places = tmp_path / "out", tmp_path / "checkpoint"
    run_now(stream(spark, server, queue, columns="body").load(), *places)
    rd.delete_queue(queue.name)
    rd.create_queue(queue.name, stripes=3)
    fill(rd.queue(queue.name), 100, 200)
    with pytest.raises(PySparkException, match="deleted and made anew"):
        run_now(stream(spark, server, queue, columns="body").load(), *places)
    run_now(stream(spark, server, queue, columns="body", trimmed="skip").load(), *places)
    assert numbers(spark.read.parquet(str(places[0]))) == Counter(range(200))


def test_a_stream_goes_on_when_stripes_go(server, queue):
    fill(queue, last=9_000)
    source = stream_reader(server, queue, subscription="default")
    start = source.initialOffset()
    end = latest(source, start)
    assert read_rows(source, start, end) == 9_000
    source.commit(end)
    queue.configure(stripes=1)
    fill(queue, 9_000, 9_100)
    following = latest(source, end)
    assert read_rows(source, end, following) == 100
    source.commit(following)
    assert queue.stats().waiting() == 0


@pytest.mark.parametrize("trimmed", ["fail", "skip"])
def test_a_stripe_that_ends_before_a_stream_s_position_is_noticed(server, queue, trimmed):
    fill(queue, last=900, per_send=300)
    source = stream_reader(server, queue, trimmed=trimmed)
    start = {stripe: offset + 50 for stripe, offset in latest(source, {}).items()}
    if trimmed == "skip":
        assert latest(source, start) == start
        return
    with pytest.raises(OffsetTrimmed, match="messages were lost or replaced"):
        latest(source, start)
    ahead = stream_reader(server, queue, start="offset:2000")
    assert latest(ahead, ahead.initialOffset()) == ahead.initialOffset()


def test_a_limited_stream_does_not_crawl_through_what_is_gone(server, queue):
    queue.configure(stripes=1)
    fill(queue, last=5_000)
    queue.purge()
    fill(queue, 5_000, 5_010)
    wait_for(lambda: sum(s.head for s in queue.stats().stripes.values()) == 5_000, "a trim")
    source = stream_reader(server, queue, trimmed="skip", rowsPerTrigger="100")
    [stripe] = source.initialOffset()
    assert latest(source, {stripe: 0}) == {stripe: 5_010}
    assert read_rows(source, {stripe: 0}, {stripe: 5_010}) == 10


def test_a_stripe_that_came_later_is_read_whole_or_not_at_all(server, rd, queue):
    queue.configure(stripes=1)
    source = stream_reader(server, queue)
    start = source.initialOffset()
    queue.configure(stripes=3)
    fill(queue, last=9_000)
    end = latest(source, start)
    assert len(end) == 3
    assert read_rows(source, start, end) == 9_000
    planned = [part.value for part in source.partitions(start, end)]
    queue.purge()
    wait_for(lambda: sum(s.head for s in queue.stats().stripes.values()) == 9_000, "a trim")
    assert [part.value for part in source.partitions(start, end)] == planned
    with pytest.raises(OffsetTrimmed):
        read_rows(source, start, end)
    assert read_rows(stream_reader(server, queue, trimmed="skip"), start, end) == 0


def test_a_planned_batch_of_stripes_that_are_gone_may_be_skipped(server, rd, queue):
    fill(queue, last=900)
    start = stream_reader(server, queue).initialOffset()
    end = latest(stream_reader(server, queue), start)
    rd.delete_queue(queue.name)
    rd.create_queue(queue.name)
    fill(queue, last=100)
    source = stream_reader(server, queue, trimmed="skip", subscription="default")
    assert read_rows(source, start, end) == 0
    following = latest(source, end)
    assert read_rows(source, end, following) == 100
    source.commit(following)
    assert queue.stats().waiting() == 0


def test_a_directory_is_served_while_spark_reads_it(spark, tmp_path):
    url = f"file:{tmp_path / 'data'}"
    with ringdove.connect(url) as rd:
        fill(rd.create_queue("readings"), last=5_000)
    frame = spark.read.format("ringdove").option("url", url).load("readings")
    assert numbers(frame) == Counter(range(5_000))
    with ringdove.connect(url) as rd:  # Through the same server.
        fill(rd.queue("readings"), 5_000, 5_500)
    again = spark.read.format("ringdove").option("url", url).load("readings")
    assert numbers(again) == Counter(range(5_500))


def test_a_directory_that_is_not_there(spark, tmp_path):
    frame = spark.read.format("ringdove").option("url", f"file:{tmp_path / 'no'}").load("q")
    with pytest.raises(PySparkException, match="There is no data directory"):
        frame.count()


def test_a_limit_is_shared_by_what_waits():
    a, b, c = (StripeId(1, n, 0) for n in range(3))
    assert share({a: 0, b: 10, c: 5}, {a: 100, b: 310, c: 5}, 40) == {a: 10, b: 40, c: 5}
    assert share({a: 0, b: 0}, {a: 3, b: 4}, 7) == {a: 3, b: 4}
    assert share({a: 0, b: 0, c: 0}, {a: 1, b: 1, c: 1}, 2) == {a: 0, b: 1, c: 1}


def test_a_range_is_read_in_pieces():
    own = Range(StripeId(1, 0, 0), 100, 350)
    assert [(start, end) for _, start, end in pieces(own, 100)] == [
        (100, 200), (200, 300), (300, 350),
    ]  # fmt: skip
    assert list(pieces(own._replace(end=100), 100)) == []


def test_what_a_failover_has_skipped_is_one_piece():
    skip = limits.EPOCH_OFFSETS
    own = Range(StripeId(1, 0, 0), 100, 2 * skip + 30)
    assert [(start, end) for _, start, end in pieces(own, 20)] == [
        (100, skip), (skip, 2 * skip), (2 * skip, 2 * skip + 20), (2 * skip + 20, 2 * skip + 30),
    ]  # fmt: skip
