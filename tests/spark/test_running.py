"""What holds of a run of a pipeline, without running one."""

import fcntl
import gc
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException

from ringdove.errors import PipelineFailed
from ringdove.spark.pipeline import running
from ringdove.spark.pipeline.running import Runner
from server.running import wait_for


@pytest.fixture
def runner():
    """One whose Spark a test provides."""
    made = object.__new__(Runner)
    made._held = []
    made._listener = SimpleNamespace(progress=None)
    return made


def test_an_error_before_the_first_flow_fails_the_update(runner, monkeypatch, tmp_path):
    def refuse(_):
        raise AnalysisException("the catalog is broken")

    monkeypatch.setattr(running, "connected", lambda _: nullcontext())
    monkeypatch.setattr(running, "make_queues", lambda *_: None)
    runner._spark = SimpleNamespace(sql=refuse)
    project = SimpleNamespace(url="u", name="p", tables=tmp_path)
    with pytest.raises(PipelineFailed, match="the catalog is broken"):
        runner.update(project, progress=None)


def is_locked(path):
    with path.open("r+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_java_holds_a_project_also_when_it_has_cleaned_up(runner, spark, tmp_path):
    runner._classic = spark
    runner._hold(SimpleNamespace(storage=tmp_path, name="p"))
    # Another file, which nobody refers to: when its lock is gone, Java has cleaned up.
    other = tmp_path / "other.lock"
    spark._jvm.java.io.RandomAccessFile(str(other), "rw").getChannel().tryLock()

    def cleaned():
        gc.collect()
        spark._jvm.java.lang.System.gc()
        return not is_locked(other)

    wait_for(cleaned, "Java to clean up")
    assert is_locked(tmp_path / "spark.lock")
