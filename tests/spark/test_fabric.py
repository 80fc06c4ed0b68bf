"""The source and the sink on a fabric: executors read its nodes themselves (S1)."""

from collections import Counter

import ringdove


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
