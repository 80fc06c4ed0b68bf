"""What `ringdove bench spark` does within a Spark session, in a process of its own."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.bench.measure import middle, place
from ringdove.bench.processes import cpu_s, family_cpu_s
from ringdove.bench.spark_sources import MemorySource, TupleSource
from ringdove.client.sync import connect
from ringdove.errors import InvalidArgument, StoreCorrupted
from ringdove.spark.session import session
from ringdove.spark.source import RingdoveSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Micro-batches of a stream, half of them in the run over half of the rows.
_BATCHES = 4

#: Rows that a task reads, and bytes that it writes to a queue.
_TASK_ROWS, _TASK_BYTES = 1_000_000, 32 * 1024 * 1024

#: Sources that only benchmarks know.
_COMPARED: dict[str, type[RingdoveSource]] = {"memory": MemorySource, "tuples": TupleSource}

#: Kafka's own settings are made for many small clients.
_KAFKA_READS = {"kafka.max.poll.records": "10000", "kafka.max.partition.fetch.bytes": "8388608"}
_KAFKA_WRITES = {"kafka.batch.size": "262144", "kafka.linger.ms": "5"}


class Case(NamedTuple):
    """One figure."""

    way: str
    mode: str
    into: str

    @classmethod
    def named(cls, name: str) -> Case:
        """The case of a name such as ringdove/batch/noop."""
        found = {case.name: case for case in cases()}
        if name not in found:
            raise InvalidArgument(f"There is no case {name!r}; there are {', '.join(found)}.")
        return found[name]

    @property
    def name(self) -> str:
        """What users call it."""
        return "/".join(self)

    def rows(self, messages: int) -> int:
        """How many rows are enough: slow ways need fewer for the same time."""
        fast = self.way in ("ringdove", "memory") and self.into in ("noop", "count")
        return max(_BATCHES, messages if fast else messages // 4) // _BATCHES * _BATCHES


def cases() -> list[Case]:
    """All figures of one session; those that are compared, beside each other."""
    found = [Case("memory", "batch", "noop")]
    for mode in ("batch", "stream"):
        found += [Case(way, mode, "noop") for way in ("ringdove", "tuples", "kafka")]
        found += [Case("ringdove", mode, into) for into in ("count", "parquet")]
        found += [Case(way, mode, "queue") for way in ("ringdove", "kafka")]
    return found


def measure(
    directory: str,
    url: str,
    pid: int,
    broker: dict[str, Any] | None,
    chosen: list[str],
    cores: int,
    size: int,
    messages: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """The figures of one session."""
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(cores),
        # Rows are short: 10,000 of them always fit.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        **({"spark.jars": broker["jars"]} if broker else {}),
    }
    with session(f"local[{cores}]", settings) as spark:
        for source in _COMPARED.values():
            spark.dataSource.register(source)
        jobs = _Jobs(
            spark, Path(directory), url, broker["address"] if broker else None, size, messages
        )
        found = []
        for case in map(Case.named, chosen):
            server = broker["pid"] if broker and case.way == "kafka" else pid
            figures = _steady(jobs, case, case.rows(messages), rounds, server)
            found.append({"cores": cores, "size": size, **case._asdict(), **figures})
    return found


def _steady(jobs: _Jobs, case: Case, rows: int, rounds: int, server: int) -> dict[str, Any]:
    """What the second half of the rows costs."""
    half = rows // 2
    _metered(jobs, case, half, server)
    halves, wholes = [], []
    for _ in range(rounds):
        halves.append(_metered(jobs, case, half, server))
        wholes.append(_metered(jobs, case, rows, server))
    jobs.tidy()
    more = {
        name: middle([one[name] for one in wholes]) - middle([one[name] for one in halves])
        for name in wholes[0]
    }
    seconds = more.pop("seconds")
    # A run that is too short tells nothing.
    rate = round((rows - half) / seconds) if seconds > 0 else None
    return {
        "rows": rows,
        "rows_per_s": rate,
        "mb_per_s": rate and round(rate * jobs.size / 1e6, 1),
        **{f"{name}_us": round(used / (rows - half) * 1e6, 3) for name, used in more.items()},
    }


def _metered(jobs: _Jobs, case: Case, rows: int, server: int) -> dict[str, float]:
    """Seconds of a job, and seconds of processor time by who used them."""
    own = os.getpid()
    server_before, before = cpu_s(server), family_cpu_s(own)
    began = time.perf_counter()
    jobs.run(case, rows)
    seconds = time.perf_counter() - began
    used = {"java": 0.0, "python": 0.0, "server": cpu_s(server) - server_before}
    for (program, pid), value in family_cpu_s(own).items():
        used["java" if program == "java" else "python"] += value - before.get((program, pid), 0)
    return {"seconds": seconds, **used}


class _Jobs:
    """Jobs of one session."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        url: str,
        broker: str | None,
        size: int,
        messages: int,
    ) -> None:
        self.size = size
        self._spark = spark
        self._directory = directory
        self._url = url
        self._broker = broker or ""
        self._messages = messages
        self._written: list[str] = []
        self._topic = f"readings-{uuid.uuid4().hex}"
        if broker:
            self._write(
                self._made(Case("kafka", "batch", "noop").rows(messages)), "kafka", self._topic
            )

    def run(self, case: Case, rows: int) -> None:
        """Do a job once."""
        if case.into == "queue":
            self._send(case, rows)
        elif case.mode == "batch":
            self._read(case, rows)
        else:
            self._stream(case, rows)

    def tidy(self) -> None:
        """Delete what jobs wrote, when all times are taken: it keeps the server busy."""
        with connect(self._url) as connection:
            for name in self._written:
                connection.delete_queue(name)
        self._written.clear()

    def _read(self, case: Case, rows: int) -> None:
        frame = self._source(case, rows)
        if case.into == "count":
            _expect(rows, frame.count())
        elif case.into == "parquet":
            with place(self._directory) as path:
                frame.write.parquet(f"{path}/table")
        else:
            frame.write.format("noop").mode("overwrite").save()

    def _stream(self, case: Case, rows: int) -> None:
        frame = self._source(case, rows)
        if case.into == "count":
            name = f"counted_{uuid.uuid4().hex}"
            counts = frame.groupBy().count().writeStream.outputMode("complete")
            self._finish(counts.format("memory").queryName(name))
            _expect(rows, self._spark.table(name).collect()[0][0])
            self._spark.catalog.dropTempView(name)
        elif case.into == "parquet":
            with place(self._directory) as path:
                self._finish(frame.writeStream.format("parquet").option("path", f"{path}/table"))
        else:
            self._finish(frame.writeStream.format("noop"))

    def _send(self, case: Case, rows: int) -> None:
        """Into a new queue or topic: rows that Spark makes, or those that it reads from another."""
        name = f"results-{uuid.uuid4().hex}"
        frame = self._made(rows) if case.mode == "batch" else self._source(case, rows)
        if case.way == "kafka":
            self._write(frame, case.way, name)
            return
        with connect(self._url) as connection:
            queue = connection.create_queue(name)
            self._write(frame, case.way, name)
            _expect(rows, queue.stats().messages)
            self._written.append(name)

    def _source(self, case: Case, rows: int) -> DataFrame:
        """The last rows of the queue or topic."""
        trigger = case.rows(self._messages) // _BATCHES
        # A task that writes to a queue does so in one step.
        task = _TASK_BYTES // self.size if case.into == "queue" else _TASK_ROWS
        reader = self._spark.read if case.mode == "batch" else self._spark.readStream
        if case.way == "kafka":
            first = case.rows(self._messages) - rows
            options = {
                **_KAFKA_READS,
                "kafka.bootstrap.servers": self._broker,
                "subscribe": self._topic,
                "startingOffsets": json.dumps({self._topic: {"0": first}}),
                "maxRecordsPerPartition": str(task),
                **({"maxOffsetsPerTrigger": str(trigger)} if case.mode == "stream" else {}),
            }
            return reader.format("kafka").options(**options).load().selectExpr("value AS body")
        options = {
            "url": self._url,
            "queue": f"readings-{self.size}",
            "columns": "body",
            "start": f"offset:{self._messages - rows}",
            "rowsPerTrigger": str(trigger),
            "rowsPerPartition": str(task),
        }
        source = _COMPARED.get(case.way, RingdoveSource)
        return reader.format(source.name()).options(**options).load()

    def _made(self, rows: int) -> DataFrame:
        """Rows that cost Spark next to nothing: one of two bodies."""
        numbers = self._spark.range(0, rows, 1, rows * self.size // _TASK_BYTES + 1)
        even, odd = (f"X'{letter * self.size}'" for letter in ("65", "6F"))
        return numbers.selectExpr(f"IF(id % 2 = 0, {even}, {odd}) AS body")

    def _write(self, frame: DataFrame, way: str, name: str) -> None:
        """Append to a queue or topic."""
        if way == "kafka":
            frame = frame.withColumnRenamed("body", "value")
            options = {**_KAFKA_WRITES, "kafka.bootstrap.servers": self._broker, "topic": name}
        else:
            options = {"url": self._url, "queue": name}
        if frame.isStreaming:
            self._finish(frame.writeStream.format(way).options(**options))
        else:
            frame.write.format(way).options(**options).mode("append").save()

    def _finish(self, stream: DataStreamWriter) -> None:
        """Run a stream over all there is."""
        with place(self._directory) as path:
            stream = stream.option("checkpointLocation", str(path)).trigger(availableNow=True)
            stream.start().awaitTermination()


def _expect(rows: int, found: int) -> None:
    if rows != found:
        raise StoreCorrupted(f"{found} rows came out of {rows}.")
