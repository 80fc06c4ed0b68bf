"""Runs projects: one Spark, and updates of their tables one after the other.

A pipeline of Spark runs through Spark Connect, so this process starts a Spark that serves it, on
loopback, and is its client. An update works off what there is in all queues and ends; whoever wants
results without end asks for one update after the other. The same Spark and its Java serve them all.

Tables are plain files, and the catalog that names them lives as long as Spark does. So an update
begins by telling Spark of the tables that earlier runs have left (`tell_tables`). Nothing else is
kept: how far a flow is, is in its checkpoint, and a table has what its log says, whatever files a
run that was killed has left beside it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
import warnings
from contextlib import redirect_stdout
from io import StringIO
from traceback import format_exception, format_exception_only
from typing import TYPE_CHECKING, Any, Self, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import StreamingQueryListener

from ringdove.errors import InvalidArgument, PipelineFailed
from ringdove.spark.pipeline.files import logged_files, spark_path
from ringdove.spark.pipeline.project import SPEC, Project, connected, make_queues
from ringdove.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from pyspark.sql import SparkSession

    from ringdove.spark.pipeline.progress import Progress

_SERVED = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.connect.serverStacktrace.enabled": "false",
}

#: Seconds for the Java of a run that was killed to end by itself.
_ENDING_S_MAX = 60
_LOOK_S = 0.1

_DELTA = "io.delta.sql.DeltaSparkSessionExtension"

#: Lines of an error of Spark that are shown.
_LINES_MAX = 16

_IDENTIFIER = re.compile(r"Identifier: (\S+)")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_EVENT = re.compile(r"Flow (\S+) (?:is|has) ([A-Z]+)", re.DOTALL)
_UNRESOLVED = re.compile(r"Failed to resolve flow: '(\S+)'\.\s*(?:Error: )?(.*)", re.DOTALL)


class Runner:
    """A Spark, and the projects it runs; use it in a `with`."""

    def __init__(
        self,
        projects: Sequence[Project],
        master: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        own = {
            name: value
            for project in projects
            for name, value in project.settings.items()
            if name.startswith("spark.")
        }
        token = secrets.token_hex(16)
        chosen = {
            # Nothing goes there; Spark makes it in the working directory unless it is told.
            "spark.sql.warehouse.dir": spark_path(projects[0].storage / "warehouse"),
            **own,
            **(settings or {}),
            **_SERVED,
            "spark.connect.authenticate.token": token,
        }
        # What goes wrong in Spark is told by its events, or tried again by itself.
        name = f"ringdove pipeline {projects[0].name}"
        self._classic = session(master, chosen, name=name, log_level="off")
        #: Java closes a file that nobody refers to any more, and gives up its lock.
        self._held: list[Any] = []
        for project in projects:
            self._hold(project)
            self._check_delta(project)
        self._spark = _client(self._port(), token, self.is_alive)
        self._listener = _Listener()
        self._spark.streams.addListener(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End Spark and its Java."""
        gateway = self._gateway
        if self.is_alive():
            self._spark.streams.removeListener(self._listener)
            self._spark.stop()
            self._classic.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
        gateway.proc.wait()

    def is_alive(self) -> bool:
        """Whether there is a Java that can run anything; nothing brings it back."""
        return self._gateway.proc.poll() is None

    def update(self, project: Project, progress: Progress) -> None:
        """Work off what there is in a project's queue; PipelineFailed if that cannot be done."""
        with connected(project.url) as connection:
            # Also keeps the server of a directory from ending between two steps.
            make_queues(project, connection)
            self._listener.progress = progress
            unresolved: list[str] = []
            try:
                tell_tables(self._spark, project)
                for event in _events(self._spark, project):
                    if match := _EVENT.match(event):
                        progress.flow_is(_flow(match[1]), match[2])
                    elif match := _UNRESOLVED.match(event):
                        reason = "\n".join(_few(_STATE.sub("", match[2])))
                        unresolved.append(f"Flow {_flow(match[1])!r} cannot be used: {reason}")
            except PySparkException as error:
                if not self.is_alive():
                    raise PipelineFailed(
                        f"Spark's Java has ended with code {self._gateway.proc.returncode}, "
                        "perhaps for lack of memory: see spark.driver.memory, and the steps."
                    ) from error
                # Spark's last word is only that there were such flows.
                raise PipelineFailed("\n".join(unresolved) or _plainly(error)) from error
            finally:
                self._listener.progress = None

    def _hold(self, project: Project) -> None:
        """Have Java hold the project: it writes, and may outlive a Python that was killed."""
        file = self._java.java.io.RandomAccessFile(str(project.storage / "spark.lock"), "rw")
        deadline_s = time.monotonic() + _ENDING_S_MAX
        while file.getChannel().tryLock() is None:
            if time.monotonic() > deadline_s:
                raise InvalidArgument(
                    f"Another Spark still works on pipeline {project.name!r}: end its Java first."
                )
            time.sleep(_LOOK_S)
        self._held.append(file)

    def _check_delta(self, project: Project) -> None:
        if not project.delta:
            return
        try:
            self._java.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_DELTA)
        except Py4JJavaError as error:
            raise InvalidArgument(
                f"Pipeline {project.name!r} keeps its tables as Delta, and this Spark has no "
                f"{_DELTA}. Give it the jars that fit it (--conf spark.jars.packages=..., or "
                "--conf spark.jars=...), or keep tables as Parquet."
            ) from error

    def _port(self) -> int:
        """Where Spark serves its pipelines."""
        service = getattr(self._java, "org.apache.spark.sql.connect.service.SparkConnectService$")
        return int(getattr(service, "MODULE$").localPort())

    @property
    def _gateway(self) -> Any:
        return self._classic.sparkContext._gateway  # noqa: SLF001  Spark lets Java run

    @property
    def _java(self) -> Any:
        return self._classic.sparkContext._jvm  # noqa: SLF001  there is no other way


def _client(port: int, token: str, is_alive: Callable[[], bool]) -> SparkSession:
    """A session of Spark Connect; the functions of pyspark.sql are for it from now on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # About the version of pandas.
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
        from pyspark.sql.connect.session import SparkSession as ConnectSession  # noqa: PLC0415

        class WhileAlive(DefaultPolicy):
            """Spark's client would try for ten minutes to reach a Java that is gone."""

            def can_retry(self, e: BaseException) -> bool:
                return is_alive() and bool(super().can_retry(e))

        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        url = f"sc://localhost:{port}/;token={token}"
        made = ConnectSession.builder.remote(url).getOrCreate()
        made.client.set_retry_policies([WhileAlive()])
        return cast("SparkSession", made)


class _Listener(StreamingQueryListener):
    """Hears of every step of every flow."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's name
        """See StreamingQueryListener."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """See StreamingQueryListener."""
        if self.progress is not None:
            self.progress.step(event.progress.json)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """See StreamingQueryListener."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """See StreamingQueryListener."""


def tell_tables(spark: SparkSession, project: Project) -> None:
    """Tell Spark's catalog of the tables that are there, unless it has one that remembers."""
    place = _quoted(spark_path(project.tables))
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {project.name} LOCATION {place}")
    hive = spark.conf.get("spark.sql.catalogImplementation") == "hive"
    if hive or project.catalog or not project.tables.exists():
        return
    for directory in sorted(project.tables.iterdir()):
        name = f"{project.name}.{directory.name}"
        if spark.catalog.tableExists(name):
            continue
        if project.delta or logged_files(directory):
            kind = "delta" if project.delta else "parquet"
            place = _quoted(spark_path(directory))
            spark.sql(f"CREATE TABLE {name} USING {kind} LOCATION {place}")
        else:
            # A view that is computed anew, or a table without a row: it begins anew.
            for checkpoint in project.checkpoints.glob(f"*/*/{directory.name}"):
                shutil.rmtree(checkpoint)
            shutil.rmtree(directory)


def _quoted(text: str) -> str:
    """As a string of SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _events(spark: SparkSession, project: Project) -> Any:
    """Run one update; gives what Spark tells of it, a sentence each."""
    from pyspark.pipelines import cli, spark_connect_pipeline  # noqa: PLC0415  need the client
    from pyspark.pipelines.spark_connect_graph_element_registry import (  # noqa: PLC0415
        SparkConnectGraphElementRegistry,
    )

    path = project.directory / SPEC
    spec = cli.load_pipeline_spec(path)
    for name, value in spec.configuration.items():
        if not name.startswith("spark."):
            spark.conf.set(name, value)
    # The others were given when Spark started, and cannot be given again.
    given = {
        name: value
        for name, value in spec.configuration.items()
        if not name.startswith("spark.") or spark.conf.isModifiable(name)
    }
    graph = spark_connect_pipeline.create_dataflow_graph(spark, spec.catalog, spec.database, given)
    registry = SparkConnectGraphElementRegistry(spark, graph)
    try:
        with redirect_stdout(StringIO()):  # Spark tells there which files it reads.
            cli.register_definitions(path, registry, spec, spark, graph)
    except PySparkException:
        raise
    except SyntaxError as error:
        raise PipelineFailed("".join(format_exception_only(error)).strip()) from error
    except Exception as error:  # Whatever the user's own code raises.
        raise PipelineFailed("".join(format_exception(error)[-3:]).strip()) from error
    run = spark_connect_pipeline.start_run(
        spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=False,
        storage=spec.storage,
    )  # fmt: skip
    for result in run:
        if "pipeline_event_result" in result:
            yield result["pipeline_event_result"].event.message


def _plainly(error: PySparkException) -> str:
    """What went wrong and in which flow, without plans and Java's stack."""
    text = str(error).split("JVM stacktrace")[0]
    cause, _, query = text.partition("=== Streaming Query ===")
    cause = _STATE.sub("", cause.partition("terminated with exception: ")[2] or cause)
    flow = _IDENTIFIER.search(query)
    begun = f"Flow {_flow(flow[1])!r} failed: " if flow else ""
    return begun + "\n".join(_few(cause))


def _flow(identifier: str) -> str:
    """The name of a flow, without its catalog and database."""
    return identifier.rpartition(".")[2].strip("'`")


def _few(text: str) -> list[str]:
    """The lines of an error, without plan and Java's stack; of many the first and the last."""
    text, plan, _ = text.partition(".;\n")
    text += "." if plan else ""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    if len(lines) > _LINES_MAX:
        lines = [*lines[: _LINES_MAX // 2], "...", *lines[-_LINES_MAX // 2 :]]
    return lines


def find_projects(directories: Sequence[Path]) -> list[Project]:
    """The projects in some directories; each name only once, as Spark tells them apart by it."""
    projects = [Project.open(directory) for directory in directories]
    names = [project.name for project in projects]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"Two of the projects are named {name!r}: run them one by one.")
    return projects
