"""The second half of the demo: Spark reads every message again, checks it, and sends results back.

What consumers have done with is still there for the subscription `spark`. The results go to a queue
and are received from it like any other messages (S1).
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any

from ringdove.client.sync import Connection, connect

SUBSCRIPTION = "spark"
_RESULTS = "results"

#: A message's number, its size, and whether its checksum is right, from its bytes.
_FIELDS = (
    "cast(conv(hex(left(body, 8)), 16, 10) as bigint) as number",
    "length(body) as size",
    "crc32(left(body, length(body) - 4)) = conv(hex(substring(body, -4)), 16, 10) as whole",
)

#: What is told of the messages of each size.
_TOTALS = (
    "count(*) as messages",
    "count(distinct number) as numbers",
    "count_if(not whole) as damaged",
)


def available() -> bool:
    """Whether Spark is installed."""
    return importlib.util.find_spec("pyspark") is not None


def prepare(connection: Connection, queue: str) -> None:
    """Have messages kept for Spark; call it before they are sent."""
    connection.queue(queue).subscribe(SUBSCRIPTION, "earliest", keep_default=True)
    connection.create_queue(_RESULTS)


def run(url: str, queue: str) -> dict[str, Any]:
    """Let Spark read the queue and write its results; answers what comes back, and the times."""
    from pyspark.sql import functions

    from ringdove.spark.session import session

    print("Spark starts, to read them all again.", file=sys.stderr)
    started = time.perf_counter()
    spark = session(settings={"spark.sql.shuffle.partitions": "2"})
    began = time.perf_counter()
    try:
        messages = (
            spark.read.format("ringdove")
            .options(url=url, queue=queue, subscription=SUBSCRIPTION, columns="body")
            .load()
            .selectExpr(*_FIELDS)
        )
        results = messages.groupBy("size").agg(*map(functions.expr, _TOTALS))
        bodies = results.selectExpr("cast(size as string) as key", "to_json(struct(*)) as body")
        bodies.write.format("ringdove").options(url=url, queue=_RESULTS).mode("append").save()
        ended = time.perf_counter()
    finally:
        spark.stop()
    with connect(url) as connection:
        found = [json.loads(body) for body in _receive_all(connection)]
    return {
        "spark_messages": sum(row["messages"] for row in found),
        "spark_distinct": sum(row["numbers"] for row in found),
        "spark_damaged": sum(row["damaged"] for row in found),
        "spark_results": len(found),
        "spark_start_seconds": round(began - started, 2),
        "spark_seconds": round(ended - began, 2),
    }


def _receive_all(connection: Connection) -> list[bytes]:
    queue = connection.queue(_RESULTS)
    found: list[bytes] = []
    while batch := queue.receive(max=1_000):
        found += batch.bodies()
        batch.ack()
    return found
