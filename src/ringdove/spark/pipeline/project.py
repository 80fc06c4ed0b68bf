"""A project as `ringdove pipeline` sees it: where its parts are, and what its settings say."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from ringdove.client.address import without_token
from ringdove.client.sync import Connection, connect
from ringdove.errors import InvalidArgument, QueueNotFound
from ringdove.spark.links import served_url
from ringdove.spark.pipeline.files import logged_files, spark_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringdove.client.options import QueueArguments

SPEC = "spark-pipeline.yml"

#: What a pipeline sends is not sent twice; what nobody takes is kept for two weeks.
_SENT_TO: QueueArguments = {"delivery": "exactly-once", "retention_ms": 14 * 86_400_000}


class Project(NamedTuple):
    """A project's directory, and what its specification says."""

    directory: Path
    name: str
    storage: Path
    settings: dict[str, str]
    #: The user's own catalog, which remembers tables, if there is one.
    catalog: str | None

    @classmethod
    def open(cls, directory: Path) -> Project:
        """Read the specification of a project."""
        path = directory.absolute() / SPEC
        try:
            found = yaml.safe_load(path.read_text())
            settings = {str(name): str(value) for name, value in found["configuration"].items()}
            name, storage = str(found["database"]), str(found["storage"])
        except FileNotFoundError:
            raise InvalidArgument(
                f"There is no {SPEC} in {directory}: make a project with "
                "'ringdove pipeline init DIR', or name its directory."
            ) from None
        except KeyError as error:
            raise InvalidArgument(f"{path} does not say what {error.args[0]} is.") from error
        except (yaml.YAMLError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{path} cannot be used: {error}") from error
        for setting in ("url", "queue", "dead-letters", "results"):
            if f"ringdove.{setting}" not in settings:
                raise InvalidArgument(f"{path} does not say what ringdove.{setting} is.")
        if not storage.startswith("file:/"):
            raise InvalidArgument(
                f"{path} has storage {storage!r}; it must be a path that all machines "
                "of the cluster see, as file:///..."
            )
        catalog = found.get("catalog")
        place = Path("/" + storage.removeprefix("file:").lstrip("/"))
        for used in (place, path.parent):
            spark_path(used)  # Refuses what Spark cannot use.
        return cls(path.parent, name, place, settings, catalog)

    @property
    def url(self) -> str:
        """Where the queues are."""
        return self.settings["ringdove.url"]

    @property
    def queue(self) -> str:
        """Where messages come from."""
        return self.settings["ringdove.queue"]

    @property
    def dead_letters(self) -> str:
        """Where goes what is no reading."""
        return self.settings["ringdove.dead-letters"]

    @property
    def results(self) -> str:
        """Where results go."""
        return self.settings["ringdove.results"]

    @property
    def tables(self) -> Path:
        """Where tables are, a directory for each."""
        return self.directory / "tables"

    @property
    def checkpoints(self) -> Path:
        """Where Spark keeps how far each flow is: a directory for each target, and flow in it."""
        return self.storage / "_checkpoints"

    @property
    def delta(self) -> bool:
        """Whether tables are kept as Delta."""
        return "io.delta" in self.settings.get("spark.sql.extensions", "")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Refuse to run what somebody else runs: two would undo each other's steps."""
        self._refuse_halves()
        self.storage.mkdir(parents=True, exist_ok=True)
        with (self.storage / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise InvalidArgument(
                    f"Pipeline {self.name!r} is run by process {file.read()} already."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def _refuse_halves(self) -> None:
        """Refuse tables without their checkpoints, and the other way round.

        Spark would take new steps for those that a table has already, or go on without its rows.
        """
        anew = f"To begin anew, delete {self.storage} and {self.tables}, both of them."
        tables = sorted(self.tables.iterdir()) if self.tables.exists() else []
        for table in tables:
            if logged_files(table) and not any(self.checkpoints.glob(f"*/*/{table.name}")):
                raise InvalidArgument(
                    f"Table {table.name!r} has rows, and there is no checkpoint of it in "
                    f"{self.storage}: was the project moved, or that directory deleted? Put it "
                    f"back where it was. {anew}"
                )
        if self.catalog or self.settings.get("spark.sql.catalogImplementation") == "hive":
            return  # Tables may be elsewhere.
        for checkpoint in sorted(self.checkpoints.glob(f"*/{self.name}/*")):
            gone = not (self.tables / checkpoint.name).exists()
            if gone and any(checkpoint.glob("*/*/commits/*")):
                raise InvalidArgument(
                    f"Table {checkpoint.name!r} is gone, and its checkpoint is in {checkpoint}: "
                    f"delete that as well if no other table follows it. {anew}"
                )

    def is_claimed(self) -> bool:
        """Whether somebody runs the pipeline now."""
        try:
            with (self.storage / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def connected(url: str) -> Connection:
    """A connection beside Spark's: a data directory is served, as Spark's workers need it."""
    return connect(served_url(url))


def make_queues(project: Project, connection: Connection) -> None:
    """Make the queues that are written to, if they are not there; the other one must be."""
    queues = {queue.name: queue for queue in connection.queues()}
    if project.queue not in queues:
        raise QueueNotFound(
            f"There is no queue {project.queue!r} at {without_token(project.url)}. Make it "
            "('ringdove queue create'), or fill it with readings to try "
            "('ringdove pipeline sample')."
        )
    # A dead letter may be as large as any message.
    most = queues[project.queue].settings().body_bytes_max
    if project.results not in queues:
        connection.create_queue(project.results, **_SENT_TO)
    dead = queues.get(project.dead_letters)
    if dead is None:
        settings: QueueArguments = {**_SENT_TO, "body_bytes_max": most}
        connection.create_queue(project.dead_letters, **settings)
    elif dead.settings().body_bytes_max < most:
        dead.configure(body_bytes_max=most)
