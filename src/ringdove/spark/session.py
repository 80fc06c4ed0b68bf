"""A Spark session with the settings that suit Ringdove. A convenience: any session will do."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ringdove.errors import InvalidArgument
from ringdove.spark.java import use_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql._typing import OptionalPrimitiveType

_SETTINGS = {
    # Batches of about a megabyte of short messages are the fastest to hand over.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # Between Java and its Python workers. Over TCP every task begins 40 ms late: the row that says
    # what it is to do waits until Python has acknowledged what came before, and Python takes time.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "ringdove.spark.daemon",
    # A batch that is run again, perhaps on other machines, must be spread over partitions as it was
    # the first time; Spark would choose their number by sizes and cores.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_LOGGING = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

#: Rows are many and short-lived, and Java's own choice takes more processor time for them.
_COLLECTOR = "-XX:+UseParallelGC"

#: Where else Java is told its options. Two collectors are one too many for it.
_JAVA_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")

_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
_LOCAL_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def session(
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    name: str = "ringdove",
    ui: bool = False,
    log_level: str = "error",
) -> SparkSession:
    """Make a session, or take the one of this process and apply the settings to it.

    Without a `master`, that of `spark-submit` or of Spark's configuration is used, else all cores
    of this machine. `settings` win over those of Ringdove. InvalidArgument says why Spark does not
    start.
    """
    if not _java_runs():
        use_java()
    # Workers must have the packages of this process.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = dict(settings or {})
    chosen: dict[str, OptionalPrimitiveType] = {
        **_SETTINGS,
        "spark.app.name": name,
        "spark.ui.enabled": str(ui).lower(),
        **({"spark.master": master} if master else {}),
        **given,
        _JAVA_OPTIONS: java_options(log_level, given.get(_JAVA_OPTIONS, ""), os.environ),
    }
    try:
        spark = SparkSession.builder.config(map=chosen).getOrCreate()
    except (PySparkException, Py4JError) as error:
        reason = str(getattr(error, "java_exception", error)).partition("\n")[0]
        where = f" with master {master!r}" if master else ""
        raise InvalidArgument(
            f"Spark does not start{where}: {reason} Look at master and settings, and whether the "
            "cluster answers."
        ) from error
    if _CHECKPOINTS not in given and _is_local(spark):
        # Spares a micro-batch some 70 ms. Elsewhere checkpoints may lie where Spark knows better.
        spark.conf.set(_CHECKPOINTS, _LOCAL_CHECKPOINTS)
    return spark


def _is_local(spark: SparkSession) -> bool:
    return (spark.sparkContext.master or "").startswith("local")


def java_options(log_level: str, given: str, environ: Mapping[str, str]) -> str:
    """The options of the driver's Java: those of Ringdove, then those given."""
    told = " ".join([given, *(environ.get(name, "") for name in _JAVA_VARIABLES)])
    options = [
        f'-Dlog4j2.configurationFile="{_LOGGING.as_uri()}"',
        f"-Dringdove.log.level={log_level}",
        *([] if re.search(r"-XX:\+Use\w+GC\b", told) else [_COLLECTOR]),
        given,
    ]
    return " ".join(options)


def _java_runs() -> bool:
    """Whether spark-submit or an earlier session has started a Java for this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkSession.getActiveSession() is not None
