"""How an update goes, flow by flow; kept in a file so that others can see it, also afterwards."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STATUS = "status.json"

_NOTHING = {"rows": 0, "ms": 0, "duplicates": 0, "late": 0}


class Progress:
    """What is told of a run; each change is written to the status file, whole or not at all."""

    def __init__(self, storage: Path, changed: Callable[[Progress], None] = lambda _: None) -> None:
        self._path = storage / STATUS
        self._changed = changed
        self._lock = threading.Lock()  # Spark tells of steps in a thread of its own.
        #: What each flow has done in the last update in which it had something to do.
        self.flows: dict[str, dict[str, Any]] = {}
        #: The flow that has made a step last.
        self.last: str | None = None
        #: Messages that this update has taken from the queue.
        self.rows = 0
        self._begun: set[str] = set()
        self.told: dict[str, Any] = {
            "state": "starting", "pid": os.getpid(), "started_ms": _now_ms(), "updates": 0,
            "error": None,
        }  # fmt: skip
        self._write()

    def begin(self) -> None:
        """An update begins."""
        self.last, self.rows, self._begun = None, 0, set()
        self._tell(state="running", update_ms=_now_ms())

    def end(self, state: str, error: str | None = None) -> None:
        """An update has ended: `waiting` for the next one, `done`, `failed` or `interrupted`."""
        done = state in ("waiting", "done")
        self._tell(
            state=state,
            updates=self.told["updates"] + done,
            error=None if done else error or self.told["error"],
        )

    def flow_is(self, name: str, state: str) -> None:
        """Spark says that a flow is queued, starting, running, completed, failed and so on."""
        with self._lock:
            self._flow(name)["state"] = state.lower()
        self._tell()

    def step(self, text: str) -> None:
        """Spark's own account of a step of a flow, as JSON."""
        found = json.loads(text)
        name = found["name"].split(".")[-1]
        operators = found.get("stateOperators", [])
        with self._lock:
            flow = self._flow(name)
            if name not in self._begun:
                self._begun.add(name)
                flow.update(_NOTHING)
            flow["rows"] += found["numInputRows"]
            flow["ms"] += found["batchDuration"] if found["numInputRows"] else 0
            flow["duplicates"] += sum(
                int(o.get("customMetrics", {}).get("numDroppedDuplicateRows", 0)) for o in operators
            )
            flow["late"] += sum(o["numRowsDroppedByWatermark"] for o in operators)
            self.last = name
            self.rows += found["numInputRows"] if name == "raw" else 0
        self._tell()

    def _flow(self, name: str) -> dict[str, Any]:
        return self.flows.setdefault(name, {"state": "", **_NOTHING})

    def _tell(self, **changes: Any) -> None:
        with self._lock:
            self.told.update(changes)
            self._write()
        self._changed(self)

    def _write(self) -> None:
        self.told["updated_ms"] = _now_ms()
        new = self._path.with_suffix(".new")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({**self.told, "flows": self.flows}, indent=1))
        new.replace(self._path)


def rows_per_s(flow: dict[str, Any]) -> int:
    """How fast a flow is while it has something to do."""
    return round(flow["rows"] * 1000 / flow["ms"]) if flow["ms"] else 0


def read_status(storage: Path) -> dict[str, Any]:
    """What the last run has told; empty before the first."""
    try:
        found: dict[str, Any] = json.loads((storage / STATUS).read_text())
    except FileNotFoundError:
        return {}
    return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
