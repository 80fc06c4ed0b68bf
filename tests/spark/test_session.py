"""A session with the settings that suit Ringdove."""

import subprocess
import sys

import pyarrow as pa
from pyspark import TaskContext

from ringdove.spark.session import java_options, session

RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
PARTITIONS = "spark.sql.shuffle.partitions"
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"


def test_it_has_the_settings_that_suit(spark):
    assert spark.conf.get(RECORDS) == "10000"
    assert spark.conf.get(CHECKPOINTS).endswith("FileSystemBasedCheckpointFileManager")
    assert spark.sparkContext.uiWebUrl is None


def test_what_is_given_wins_and_a_process_has_one_session(spark):
    before = spark.conf.get(RECORDS)
    try:
        assert session(settings={RECORDS: "77"}) is spark
        assert spark.conf.get(RECORDS) == "77"
    finally:
        spark.conf.set(RECORDS, before)


def test_java_gets_one_collector_whoever_names_it():
    parallel, serial = "-XX:+UseParallelGC", "-XX:+UseSerialGC"
    assert java_options("error", "-Da=b", {}).endswith(f" {parallel} -Da=b")
    assert parallel not in java_options("error", serial, {})
    assert parallel not in java_options("error", "", {"JAVA_TOOL_OPTIONS": serial})


def test_workers_run_the_same_python(spark):
    def python(_):
        import sys

        return sys.prefix

    assert spark.sparkContext.parallelize([0], 1).map(python).collect() == [sys.prefix]


def test_workers_are_reached_without_tcp(spark):
    """Where Java and Python do not wait for each other's acknowledgements."""

    def how(_):
        import os

        return os.environ["PYTHON_UNIX_DOMAIN_ENABLED"].lower()

    assert spark.sparkContext.parallelize([0], 1).map(how).collect() == ["true"]


def test_a_stream_s_shuffle_has_as_many_partitions_as_it_was_told(spark, tmp_path):
    """Not as many as there are cores: a batch that is run again is spread as it was."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.txt").write_text("".join(f"{n}\n" for n in range(500)))
    before = spark.conf.get(PARTITIONS)
    spark.conf.set(PARTITIONS, "5")

    def where(batches):
        for batch in batches:
            if batch.num_rows:
                yield pa.RecordBatch.from_pydict({"at": [TaskContext.get().partitionId()]})

    try:
        query = (
            spark.readStream.text(str(tmp_path / "in"))
            .repartition("value")
            .mapInArrow(where, "at long")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        spark.conf.set(PARTITIONS, before)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row["at"] for row in found} == set(range(5))


def test_a_spark_that_does_not_start_is_told():
    code = "from ringdove.spark.session import session; session('nonsense')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert "InvalidArgument: Spark does not start with master 'nonsense'" in done.stderr
