"""The sink (S1): rows become messages, and none twice however often a task or batch is tried."""

import os
import random
from collections import Counter

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from ringdove import limits
from ringdove.core.block import key_hash
from ringdove.core.dedup import JOB_MARK
from ringdove.errors import LimitExceeded, SequenceRefused
from ringdove.spark import writing
from ringdove.spark.options import Options
from ringdove.spark.packing import Packer, prepare
from ringdove.spark.writing import BATCH_PROPERTY, QUERY_PROPERTY, BatchWriter, Claim


@pytest.fixture
def name(rd, request):
    """The name of the test's queue, which goes with it."""
    name = request.node.name.partition("[")[0]
    yield name
    rd.delete_queue(name)


def write(server, frame, queue, **options):
    given = {"url": server.url, "queue": queue, **options}
    frame.write.format("ringdove").options(**given).mode("append").save()


class Task(BatchWriter):
    """What one task of a job does, without Spark."""

    def __init__(self, server, queue, partition=0, batch=0, **options):
        super().__init__(Options.read({"url": server.url, "queue": queue, **options}))
        self._claim = Claim("job", partition, batch)

    def claim(self):
        return self._claim

    def run(self, *bodies):
        """Write a batch of rows for each list of bodies."""
        return self.write(iter([rows_of(own) for own in bodies]))


def rows_of(bodies):
    return pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})


def stored(queue):
    """Every message of a queue, in the order of its stripes."""
    return list(queue.replay())


@pytest.mark.parametrize("settings", [{}, {"stripes": 3, "delivery": "exactly-once"}])
def test_rows_become_messages(spark, server, rd, name, settings):
    queue = rd.create_queue(name, **settings)
    frame = spark.range(0, 20_000, numPartitions=4).selectExpr("cast(id as string) as body")
    write(server, frame, name)
    assert Counter(int(m.body) for m in stored(queue)) == Counter(range(20_000))


def test_keys_and_attributes(spark, server, rd, name):
    queue = rd.create_queue(name)
    frame = spark.sql(
        "select cast('b' as binary) body, 'k' key, map('unit', 'kWh') attributes "
        "union all select cast('c' as binary), null, null"
    )
    write(server, frame, name, compression="zstd")
    found = {m.body: m for m in stored(queue)}
    assert (found[b"b"].key, found[b"b"].attributes) == (b"k", {"unit": "kWh"})
    assert (found[b"c"].key, found[b"c"].attributes) == (b"", {})


def test_keys_keep_their_order(spark, server, rd, name):
    queue = rd.create_queue(name, order="key", stripes=4)
    frame = spark.range(0, 30_000, numPartitions=1).selectExpr(
        "cast(id as string) as body", "concat('device', id % 50) as key"
    )
    write(server, frame, name)
    per_key = {}
    for message in stored(queue):
        per_key.setdefault(message.key, []).append(int(message.body))
    assert len(per_key) == 50
    assert all(numbers == sorted(numbers) for numbers in per_key.values())
    assert sum(map(len, per_key.values())) == 30_000
    frame = spark.read.format("ringdove").option("url", server.url).load(name)
    for row in frame.select("key", "stripe").distinct().collect():
        assert row.stripe == key_hash(bytes(row.key)) % 4


@pytest.mark.parametrize(
    ("select", "options", "said"),
    [
        ("id", {}, "does not take column 'id' of type bigint"),
        ("'x' as key", {}, "needs a column 'body'"),
        ("cast(null as string) as body", {}, "'body' has nulls"),
        ("'x' as body", {"queue": "absent"}, "absent"),
        ("repeat('x', 2000000) as body", {}, "exceeds body_bytes_max"),
    ],
)
def test_clear_errors(spark, server, rd, name, select, options, said):
    rd.create_queue(name)
    with pytest.raises(PySparkException, match=said):
        write(server, spark.range(1).selectExpr(select), options.get("queue", name))


def test_a_queue_by_key_wants_keys(spark, server, rd, name):
    rd.create_queue(name, order="key")
    with pytest.raises(PySparkException, match="give every row a 'key'"):
        write(server, spark.range(1).selectExpr("'x' as body"), name)


def test_a_queue_is_not_overwritten(spark, server, rd, name):
    rd.create_queue(name)
    frame = spark.range(1).selectExpr("'x' as body")
    writer = frame.write.format("ringdove").option("url", server.url).option("queue", name)
    with pytest.raises(PySparkException, match="only ever appended to"):
        writer.mode("overwrite").save()


def test_a_task_that_is_tried_again_stores_nothing_twice(spark, server, rd, name, tmp_path):
    """Every task fails once after it has written all it had: an executor's late death."""
    queue = rd.create_queue(name, stripes=2)
    seen = tmp_path / "seen"
    seen.mkdir()
    options = Options.read({"url": server.url, "queue": name, "producer": "job"})

    def attempt(batches):
        written = BatchWriter(options).write(batches)
        mark = seen / str(TaskContext.get().partitionId())
        again = mark.exists()
        mark.touch()
        assert written.duplicates == (written.rows if again else 0)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([written.rows])})

    frame = spark.range(0, 9_000, numPartitions=3).selectExpr("cast(id as string) as body")
    for _ in range(2):
        counts = frame.mapInArrow(attempt, "rows long").collect()
        assert sum(row.rows for row in counts) == 9_000
    assert Counter(int(m.body) for m in stored(queue)) == Counter(range(9_000))


def test_a_named_batch_is_written_once(spark, server, rd, name):
    queue = rd.create_queue(name)
    frame = spark.range(0, 100, numPartitions=2).selectExpr("cast(id as string) as body")
    for batch in ("0", "0", "1", "1"):
        write(server, frame, name, producer="nightly", batch=batch)
    assert Counter(Counter(int(m.body) for m in stored(queue)).values()) == {2: 100}


def test_only_jobs_that_nobody_named_are_forgotten_sooner(server, rd, name):
    rd.create_queue(name)
    given = {"url": server.url, "queue": name}
    producers = [BatchWriter(Options.read(given))._producer.encode() for _ in range(2)]
    assert [producer.startswith(JOB_MARK) for producer in producers] == [True, True]
    assert producers[0] != producers[1]
    assert BatchWriter(Options.read({**given, "producer": "job"}))._producer == "job"


@pytest.mark.parametrize("rows", [40, 160])
def test_rows_that_are_spread_differently_are_not_lost_in_silence(spark, server, rd, name, rows):
    rd.create_queue(name)
    first = spark.range(0, 100, numPartitions=1).selectExpr("cast(id as string) as body")
    write(server, first, name, producer="job")
    other = spark.range(0, rows, numPartitions=1).selectExpr("cast(id as string) as body")
    with pytest.raises(PySparkException, match="spread differently over partitions"):
        write(server, other, name, producer="job")


def test_twice_as_many_rows_are_another_number_of_rows(server, rd, name):
    queue = rd.create_queue(name)
    rows = [b"x"] * (1 << 15)
    assert Task(server, name).run(rows).duplicates == 0
    assert Task(server, name).run(rows).duplicates == len(rows)
    with pytest.raises(SequenceRefused, match="spread differently over partitions"):
        Task(server, name).run(rows, rows)
    assert queue.stats().messages == len(rows)


@pytest.mark.parametrize("order", ["loose", "key"])
def test_a_batch_that_comes_after_later_ones_is_told_apart(server, rd, name, order):
    queue = rd.create_queue(name, order=order, stripes=2)
    rows = pa.RecordBatch.from_pydict({"body": [b"a", b"b"], "key": [b"k", b"k"]})
    for batch in (7, 8):
        Task(server, name, batch=batch, compression="zstd").write(iter([rows]))
    for batch in (5, 7):
        with pytest.raises(SequenceRefused, match=f"Batch {batch} is older than batch 8, the last"):
            Task(server, name, batch=batch, compression="zstd").write(iter([rows]))
    assert queue.stats().messages == 4


def test_the_longest_name_of_a_producer_and_the_last_batch_are_taken(server, rd, name):
    rd.create_queue(name, stripes=256)
    task = Task(server, name, partition=10**7 + 3, batch=2**31 - 1)
    task._claim = task._claim._replace(producer="p" * 48)
    assert task.run([b"x"]).duplicates == 0
    assert task.run([b"x"]).duplicates == 1


def test_a_task_writes_so_much_in_one_step_and_more_in_several(spark, server, rd, name):
    queue = rd.create_queue(name)
    many = limits.BLOCK_BYTES_MAX // 100_000 + 20
    frame = spark.range(0, many, numPartitions=1).selectExpr(
        "concat(id, ':', repeat('x', 100000)) as body"
    )
    with pytest.raises(PySparkException, match=r"more than 64 MB for one stripe.*'split'"):
        write(server, frame, name)
    assert queue.stats().messages == 0
    for _ in range(2):
        write(server, frame, name, split="true", producer="job")
    assert Counter(int(m.body.partition(b":")[0]) for m in stored(queue)) == Counter(range(many))


def test_a_task_that_is_too_large_only_with_its_last_block_stores_nothing(server, rd, name):
    queue = rd.create_queue(name)
    packer = Packer("none", 0)
    packer.add(prepare(rows_of([b"x" * 100] * limits.BLOCK_MESSAGES_TARGET)))
    full, rest = divmod(limits.BLOCK_BYTES_MAX, packer.nbytes)
    rows = rest * limits.BLOCK_MESSAGES_TARGET // packer.nbytes + 100
    assert rows < limits.BLOCK_MESSAGES_TARGET  # No block, until the task ends.
    batches = [[b"x" * 100] * limits.BLOCK_MESSAGES_TARGET] * full
    with pytest.raises(LimitExceeded, match="more than 64 MB for one stripe"):
        Task(server, name).run(*batches, [b"x" * 100] * rows)
    assert queue.stats().messages == 0


def test_a_large_task_whose_rows_come_in_another_order_stores_each_once(
    server, rd, name, monkeypatch
):
    """It is killed between two steps; a shuffle hands its rows over anew, and differently cut."""
    queue = rd.create_queue(name)
    monkeypatch.setattr(writing, "_STEP_BYTES", limits.BLOCK_BYTES_TARGET)
    rows = [b"%06d" % n + b"x" * 200 for n in range(40_000)]
    step = writing._Place._send
    steps = []

    def dies(place, segments):
        if len(steps) == 2:
            place._settle()
            raise RuntimeError("the executor is killed here")
        steps.append(len(segments))
        step(place, segments)

    monkeypatch.setattr(writing._Place, "_send", dies)
    with pytest.raises(RuntimeError):
        Task(server, name, split="sorted").run(rows[:30_000], rows[30_000:])
    monkeypatch.setattr(writing._Place, "_send", step)
    assert 0 < queue.stats().messages < len(rows)
    random.Random(1).shuffle(rows)
    Task(server, name, split="sorted").run(rows[:7], rows[7:25_000], rows[25_000:])
    assert Counter(m.body for m in stored(queue)) == Counter(rows)


def test_a_full_queue_fails_the_job_and_says_so(spark, server, rd, name):
    rd.create_queue(name, bytes_max=100_000, when_full="refuse", body_bytes_max=60_000)
    frame = spark.range(0, 10, numPartitions=1).selectExpr("repeat('x', 50000) as body")
    with pytest.raises(PySparkException, match="QueueFull"):
        write(server, frame, name)


def stream_rows(spark, path, server, queue, checkpoint, **options):
    """Write the numbers in files below `path` to a queue, as one streaming query does."""
    frame = spark.readStream.option("maxFilesPerTrigger", 2).text(str(path))
    given = {"url": server.url, "queue": queue, "checkpointLocation": str(checkpoint), **options}
    query = (
        frame.selectExpr("value as body")
        .writeStream.format("ringdove")
        .options(**given)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_batch_that_runs_again_stores_nothing_twice(spark, server, rd, name, tmp_path):
    """The record that a batch is done is taken away, as if the driver had died before writing it."""
    queue = rd.create_queue(name, stripes=2)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    for file in range(4):
        lines = "".join(f"{n}\n" for n in range(file * 100, file * 100 + 100))
        (source / f"{file}.txt").write_text(lines)
    stream_rows(spark, source, server, name, checkpoint)
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    again = stream_rows(spark, source, server, name, checkpoint)
    assert again.lastProgress["batchId"] == int(last.name)
    assert Counter(int(m.body) for m in stored(queue)) == Counter(range(400))


def test_spark_says_which_query_and_batch_a_task_is_of(spark, tmp_path):
    """The sink relies on two names that Spark does not promise."""
    found = tmp_path / "found"
    found.mkdir()

    def look(batches):
        task = TaskContext.get()
        query, batch = (task.getLocalProperty(p) for p in (QUERY_PROPERTY, BATCH_PROPERTY))
        (found / f"{query}-{batch}-{os.getpid()}").touch()
        yield from batches

    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 10)
        .load()
        .mapInArrow(look, "timestamp timestamp, value long")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(once=True)
        .start()
    )
    query.awaitTermination()
    assert {path.name.rpartition("-")[0] for path in found.iterdir()} == {f"{query.id}-0"}
