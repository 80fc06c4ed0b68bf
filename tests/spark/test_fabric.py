"""The source and the sink on a fabric: executors read its nodes themselves (S1)."""

from collections import Counter

import pytest

import ringdove
from ringdove import limits
from ringdove.spark.options import Options
from ringdove.spark.reading import StreamReader
from stores.audit import alter


def test_from_queue_to_queue_on_a_fabric(spark, redis, tmp_path):
    redis.flush()
    url = redis.url
    with ringdove.connect(url) as rd:
        rd.create_queue("in", stripes=3).send_many([b"%d" % n for n in range(10_000)])
        rd.queue("in").send_many([b"%d" % n for n in range(10_000, 20_000)])
        rd.create_queue("out", stripes=3, delivery="exactly-once")
    frame = (
        spark.readStream.format("ringdove")
        .options(url=url, queue="in", columns="body", rowsPerTrigger="7000")
        .load()
    )
    for _ in range(2):  # The last batch is run again, as after a crash.
        query = (
            frame.writeStream.format("ringdove")
            .options(url=url, queue="out", checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for record in (tmp_path / "commits").glob("*2*"):
            record.unlink()
    assert query.lastProgress["numInputRows"] == 6_000
    batch = spark.read.format("ringdove").options(url=url, queue="out").load()
    assert Counter(int(row.body) for row in batch.collect()) == Counter(range(20_000))


@pytest.mark.parametrize("limit", [{"rowsPerTrigger": "40"}, {"bytesPerTrigger": "6000"}])
def test_a_stream_with_a_limit_passes_what_a_failover_has_skipped(redis, limit):
    redis.flush()
    with ringdove.connect(redis.url) as rd:
        queue = rd.create_queue("in", stripes=2, order="key")
        sent = [ringdove.NewMessage(b"%d" % n, key=b"%d" % n) for n in range(200)]
        queue.send_many(sent[:100])
        for stripe in queue.stats().stripes:  # Each has another master from here on.
            alter(redis, f"rd:{{{stripe.queue:x}.{stripe.number}.0}}:", owner="somebody else")
        queue.send_many(sent[100:])
        assert max(own.tail for own in queue.stats().stripes.values()) > limits.EPOCH_OFFSETS
    source = StreamReader(Options.read({"url": redis.url, "queue": "in", **limit}), ["body"])
    at, found, sizes = source.initialOffset(), Counter(), []
    for _ in range(20):
        end = source.latestOffset(at, source.getDefaultReadLimit())
        parts = source.partitions(at, end)
        rows = [row for part in parts for batch in source.read(part) for row in batch["body"]]
        found.update(int(row.as_py()) for row in rows)
        sizes.append((len(rows), len(parts)))
        at = end
    assert found == Counter(range(200))
    assert max(rows for rows, _ in sizes) < 100
    assert max(parts for _, parts in sizes) <= 4
