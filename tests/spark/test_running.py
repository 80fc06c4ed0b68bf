"""What holds of a run of a pipeline, without running one."""

import fcntl
import gc
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException

from ringdove.cli import pipeline
from ringdove.errors import PipelineFailed
from ringdove.spark.pipeline import running
from ringdove.spark.pipeline.progress import Progress, read_status
from ringdove.spark.pipeline.running import Runner
from server.running import wait_for


@pytest.fixture
def runner():
    """One whose Spark a test provides."""
    made = object.__new__(Runner)
    made._held = []
    made._listener = SimpleNamespace(progress=None)
    gateway = SimpleNamespace(proc=SimpleNamespace(poll=lambda: None))
    made._classic = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))
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


@pytest.fixture
def update(runner, monkeypatch, tmp_path):
    """Update a project of which Spark tells something, and then fails."""
    monkeypatch.setattr(running, "connected", lambda _: nullcontext())
    monkeypatch.setattr(running, "make_queues", lambda *_: None)
    monkeypatch.setattr(running, "tell_tables", lambda *_: None)
    runner._spark = None

    def updated(*events, alive=True):
        def told(*_):
            yield from events
            raise AnalysisException("Failed to resolve flows in the pipeline.")

        code = None if alive else -9
        process = SimpleNamespace(poll=lambda: code, returncode=code)
        gateway = SimpleNamespace(proc=process)
        runner._classic = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway))
        monkeypatch.setattr(running, "_events", told)
        progress = Progress(tmp_path)
        runner.update(SimpleNamespace(url="u", name="p", tables=tmp_path), progress)

    return updated


def test_flows_that_cannot_be_used_are_told_with_the_reason(update):
    with pytest.raises(PipelineFailed) as told:
        update(
            "Failed to resolve flow due to upstream failure: 'told'.\nError: it follows windows.",
            "Failed to resolve flow: 'spark_catalog.p.windows'.\nError: [UNRESOLVED_COLUMN] There is "
            "no `ennd`. SQLSTATE: 42703;\n'Project ['device]\n+- 'Aggregate",
        )
    assert (
        str(told.value) == "Flow 'windows' cannot be used: [UNRESOLVED_COLUMN] There is no `ennd`."
    )


def test_a_java_that_has_ended_is_told(update):
    with pytest.raises(PipelineFailed, match="Java has ended with code -9"):
        update(alive=False)


class OneFails:
    """A runner that cannot update projects of one name."""

    def __init__(self, *, alive=True):
        self.updated = []
        self._alive = alive

    def update(self, project, _):
        self.updated.append(project.name)
        if project.name == "bad":
            raise PipelineFailed("it is broken")

    def is_alive(self):
        return self._alive


@pytest.fixture
def projects(tmp_path, monkeypatch):
    empty = {"queues": {}, "tables": []}
    monkeypatch.setattr("ringdove.spark.pipeline.status.look", lambda _: empty)
    return [SimpleNamespace(name=name, storage=tmp_path / name) for name in ("bad", "good")]


def states(projects):
    return [read_status(project.storage)["state"] for project in projects]


def test_a_project_that_fails_does_not_keep_others_from_their_update(projects):
    runner = OneFails()
    with pytest.raises(PipelineFailed, match="it is broken"):
        pipeline._go(runner, projects, None)
    assert runner.updated == ["bad", "good"]
    assert states(projects) == ["failed", "done"]


def test_without_java_nothing_is_tried_again(projects):
    runner = OneFails(alive=False)
    with pytest.raises(PipelineFailed, match="it is broken"):
        pipeline._go(runner, projects, 0.0)
    assert runner.updated == ["bad", "good"]
    assert states(projects) == ["failed", "interrupted"]


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
