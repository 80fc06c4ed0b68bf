"""Commands on pipelines: init, sample, run, status."""

from __future__ import annotations

import importlib.util
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ringdove.cli import session
from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json, human_age, human_bytes, say, table
from ringdove.cli.values import duration_ms
from ringdove.config import directory_of
from ringdove.errors import InvalidArgument, RingdoveError

if TYPE_CHECKING:
    from ringdove.spark.pipeline.progress import Progress
    from ringdove.spark.pipeline.project import Project
    from ringdove.spark.pipeline.running import Runner

app = App(
    name="pipeline",
    help="""A data pipeline on Spark, from a queue to tables: make, try and run one.

Example:

    ringdove pipeline init meters
    ringdove pipeline sample meters
    ringdove pipeline run meters
    ringdove pipeline status meters
""",
)

HERE = Path()

#: Failed updates in a row after which a run without end gives up; each waits longer than the last.
_FAILURES_MAX = 5
_WAIT_S_MAX = 60


@app.command
def init(
    directory: Path,
    *,
    queue: str = "readings",
    format: Literal["json", "csv", "avro"] | None = None,
    schema: Path | None = None,
    device: str | None = None,
    sequence: str | None = None,
    time: str | None = None,
    window: str = "1 hour",
    late: str = "2 hours",
    tables: Literal["parquet", "delta"] = "parquet",
) -> None:
    """Write a project for a queue: files to read, change and keep, with a README.

    Without a schema it is for smart meters, and `pipeline sample` has readings for it.

    Parameters
    ----------
    directory
        Where to; its name becomes the pipeline's.
    queue
        Where messages come from. Those that are no readings go to QUEUE-dead, results to
        QUEUE-results.
    format
        What a message's body is; by default JSON, or Avro if the schema is one of Avro.
    schema
        A file with its fields: as Spark writes them ('device STRING, sequence BIGINT, ...'), or an
        Avro schema.
    device
        The field that says who has sent a reading, if its name does not tell.
    sequence
        The field that numbers the readings of a device.
    time
        The field that says when a reading was taken.
    window
        Readings are summed up by such windows: 15m, '1 hour', ...
    late
        How long a window waits for readings that are late: 30m, '2 hours', ...
    tables
        How tables are stored. Delta needs its own jars.
    """
    _need_spark()
    from ringdove.spark.pipeline.scaffold import Plan, write_project
    from ringdove.spark.pipeline.schema import read_schema

    roles = {"device": device, "sequence": sequence, "time": time}
    if schema is None and any(roles.values()):
        raise InvalidArgument("Say --schema as well: without it the fields are those of a meter.")
    found = None if schema is None else read_schema(schema, roles)
    if format is None:  # What the schema says is what is meant.
        format = "avro" if found is not None and found.avro is not None else "json"  # noqa: A001
    plan = Plan(directory, session.url.get(), queue, format, found, tables, window, late)
    for path in write_project(plan):
        print(path.relative_to(directory.absolute()))
    if schema is None:
        say(f"To try it: ringdove pipeline sample {directory}")
    say(f"Next: ringdove pipeline run {directory}")


@app.command
def sample(directory: Path = HERE, *, count: int = 20_000, seed: int = 7) -> None:
    """Send readings to try a project with: a day of a small fleet, with all that goes wrong in one.

    Once is enough: to a pipeline that has seen the day, the readings of a second one are late.

    Parameters
    ----------
    directory
        The project, as `pipeline init` has made it for smart meters.
    count
        About how many.
    seed
        Another seed makes the readings of another fleet.
    """
    _need_spark()
    from ringdove.spark.pipeline.project import Project, connected
    from ringdove.spark.pipeline.sample import make_samples

    project = Project.open(directory)
    messages, counts = make_samples(count, seed=seed)
    _make_directory(project.url)
    with connected(project.url) as connection:
        if project.queue not in {queue.name for queue in connection.queues()}:
            connection.create_queue(project.queue)
        with connection.queue(project.queue).producer() as producer:
            for message in messages:
                producer.send(message.body, key=message.key)
    say(
        f"Sent {counts.messages:,} messages to queue {project.queue!r}: {counts.readings:,} "
        f"readings, {counts.duplicates:,} of them twice, and {counts.dead_letters:,} that are none."
    )


@app.command
def run(
    *directories: Path,
    once: Flag = False,
    continuous: Flag = False,
    every: str = "5s",
    master: str | None = None,
    conf: Annotated[list[str] | None, Parameter(name="--conf", negative="")] = None,
) -> None:
    """Work off what there is in the queue of a project, or of several in one Spark.

    A run that was killed goes on where it was. Ctrl-C ends one.

    Parameters
    ----------
    directories
        The projects; by default that of the working directory.
    once
        Work off what there is, then end. That is what happens unless --continuous is said.
    continuous
        Go on until Ctrl-C.
    every
        With --continuous: the pause between two updates.
    master
        Where Spark runs: local[2], spark://HOST:7077, ...; by default on all cores of this machine.
    conf
        A setting of Spark, NAME=VALUE; may be said several times.
    """
    if once and continuous:
        raise InvalidArgument("Say --once or --continuous, not both.")
    pause_s = duration_ms(every) / 1000 if continuous else None
    settings = _settings(conf or [])
    _need_spark()
    from ringdove.spark.pipeline.running import Runner, find_projects

    projects = find_projects(directories or [HERE])
    with ExitStack() as stack:
        for project in projects:
            stack.enter_context(project.claimed())
        say("Starting Spark.")
        runner = stack.enter_context(Runner(projects, master, settings))
        _go(runner, projects, pause_s)


def _go(runner: Runner, projects: list[Project], pause_s: float | None) -> None:
    """Update the projects in turn; again after each pause, if there is one."""
    from ringdove.spark.pipeline.progress import Progress

    accounts = [Progress(project.storage, _Shown()) for project in projects]
    failures = [0] * len(projects)
    try:
        while True:
            failed: RingdoveError | None = None
            for number, (project, progress) in enumerate(zip(projects, accounts, strict=True)):
                try:
                    _update(runner, project, progress, last=pause_s is None)
                    failures[number] = 0
                except RingdoveError as error:
                    progress.end("failed", str(error))
                    failures[number] += 1
                    failed = failed or error
                    if len(projects) > 1 or pause_s is not None:
                        say(f"{project.name}: {error}")
            enough = max(failures) >= _FAILURES_MAX or not runner.is_alive()
            if failed is not None and (pause_s is None or enough):
                raise failed
            if pause_s is None:
                return
            time.sleep(min(pause_s * 2 ** max(failures), max(pause_s, _WAIT_S_MAX)))
    finally:  # Whatever ends the run, each project's account says how it ended for it.
        for progress in accounts:
            if progress.told["state"] not in ("done", "failed"):
                progress.end("interrupted")


def _update(runner: Runner, project: Project, progress: Progress, *, last: bool) -> None:
    from ringdove.spark.pipeline.status import look

    begun_s = time.monotonic()
    progress.begin()
    runner.update(project, progress)
    progress.end("done" if last else "waiting")
    if last or progress.rows:
        found = look(project)
        queues = found["queues"]
        rows = ", ".join(f"{own['table']} {own['rows']:,}" for own in found["tables"])
        say(
            f"{project.name}: {progress.rows:,} messages in {time.monotonic() - begun_s:.1f} s. "
            f"Rows: {rows}. Dead letters: {queues.get('dead_letters', '?')}. "
            f"Lag: {queues.get('lag', '?')}."
        )


class _Shown:
    """Says how the flow does that has made a step last."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, progress: Progress) -> None:
        from ringdove.spark.pipeline.progress import rows_per_s

        flow = progress.flows.get(progress.last or "")
        if flow is None or not flow["rows"]:
            return
        text = f"  {progress.last}: {flow['rows']:,} rows, {rows_per_s(flow):,}/s"
        if text != self._said:
            self._said = text
            say(text)


@app.command
def status(directory: Path = HERE, *, json: JsonFlag = False) -> None:
    """Show how far a project is: rows and rates, lag, dead letters, the last error.

    Works while it runs and after, and needs no Spark.

    Parameters
    ----------
    directory
        The project.
    json
        Print one JSON object.
    """
    _need_spark()
    from ringdove.spark.pipeline.project import Project
    from ringdove.spark.pipeline.status import look

    found = look(Project.open(directory))
    if json:
        emit_json(found)
        return
    queues: dict[str, Any] = found["queues"]
    age = f", {human_age(found['updated_ms'])} ago" if found["updated_ms"] else ""
    print(f"{found['pipeline']}: {found['state']}{age}")
    if found["error"]:
        print(f"error: {found['error']}")
    if "error" in queues:
        print(f"queues: {queues['error']}")
    else:
        print(
            f"lag {queues['lag']:,}, dead letters {queues['dead_letters']:,}, "
            f"results {queues['results']:,}"
        )
    if found["tables"]:
        rows = [
            [t["table"], t["rows"], t["files"], human_bytes(t["bytes"])] for t in found["tables"]
        ]
        table(None, ["table", "rows", "files", "size"], rows)
    if found["flows"]:
        table(None, list(found["flows"][0]), [list(flow.values()) for flow in found["flows"]])


def _settings(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise InvalidArgument(f"{text!r} is no setting: write NAME=VALUE.")
        found[name] = value
    return found


def _make_directory(url: str) -> None:
    """Make the data directory of a `file:` URL, so that it can be served."""
    from ringdove.client.sync import connect

    if url.startswith("file:") and not (directory_of(url) / "format").exists():
        connect(url).close()


def _need_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidArgument("Pipelines need Spark: pip install 'ringdove[spark]'.")
