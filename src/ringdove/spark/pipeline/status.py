"""How far a project is: from its tables, its checkpoints, its queues, and what its runs have told.

Needs no Spark, and works while a run is under way and after it, however that ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringdove.errors import QueueNotFound, RingdoveError
from ringdove.spark.pipeline.files import position, table_files
from ringdove.spark.pipeline.progress import read_status, rows_per_s
from ringdove.spark.pipeline.project import Project, connected

if TYPE_CHECKING:
    from ringdove.client.sync import Connection
    from ringdove.controllers.broker import QueueStats

#: Ends of a run that leave nothing to explain.
_ENDED = ("done", "failed", "interrupted")


def look(project: Project) -> dict[str, Any]:
    """Everything that can be said of a project now."""
    told = read_status(project.storage)
    state = told.get("state", "never run")
    if told and state not in _ENDED and not project.is_claimed():
        state = "killed"
    return {
        "pipeline": project.name,
        "state": state,
        "error": told.get("error"),
        "updates": told.get("updates", 0),
        "updated_ms": told.get("updated_ms", 0),
        "queues": _queues(project),
        "tables": tables(project),
        "flows": [_flow(name, flow) for name, flow in sorted(told.get("flows", {}).items())],
    }


def tables(project: Project) -> list[dict[str, Any]]:
    """What each table holds."""
    if not project.tables.exists():
        return []
    directories = [entry for entry in sorted(project.tables.iterdir()) if entry.is_dir()]
    found = [(entry.name, table_files(entry)) for entry in directories]
    return [
        {"table": name, "rows": own.rows, "files": own.files, "bytes": own.nbytes}
        for name, own in found
    ]


def lag(project: Project, connection: Connection) -> int:
    """Messages of the queue that are not in table `raw` yet."""
    stripes = connection.queue(project.queue).stats().stripes
    checkpoints = sorted(project.checkpoints.glob("*/*/raw/raw/*"))
    done = (position(checkpoints[-1]) if checkpoints else None) or {}
    return sum(
        own.tail - max(own.head, done.get(f"{stripe.queue:x}.{stripe.number}.{stripe.level}", 0))
        for stripe, own in stripes.items()
    )


def waiting(connection: Connection, name: str) -> int:
    """Messages of a queue that nobody has taken yet; none if it is not there."""
    try:
        stats: QueueStats = connection.queue(name).stats()
    except QueueNotFound:
        return 0
    return stats.waiting()


def _queues(project: Project) -> dict[str, Any]:
    try:
        with connected(project.url) as connection:
            return {
                "lag": lag(project, connection),
                "dead_letters": waiting(connection, project.dead_letters),
                "results": waiting(connection, project.results),
            }
    except RingdoveError as error:
        return {"error": str(error)}


def _flow(name: str, flow: dict[str, Any]) -> dict[str, Any]:
    return {
        "flow": name, "state": flow["state"], "rows": flow["rows"], "rows_per_s": rows_per_s(flow),
        "duplicates": flow["duplicates"], "late": flow["late"],
    }  # fmt: skip
