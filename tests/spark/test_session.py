"""A session with the settings that suit Ringdove."""

import sys

from ringdove.spark.session import session

RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
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


def test_workers_run_the_same_python(spark):
    def python(_):
        import sys

        return sys.prefix

    assert spark.sparkContext.parallelize([0], 1).map(python).collect() == [sys.prefix]
