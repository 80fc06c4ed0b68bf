"""The processes of the demo: server, fleets, pipeline, consumers; each with its log in a file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringdove.errors import StoreUnavailable

#: Seconds for a process to end when it is asked to.
_END_S = 20

_SENT = re.compile(r"([\d,]+) connected, ([\d,]+) sent, ([\d,]+) acknowledged")


class Part:
    """A process that runs a module of this package."""

    def __init__(self, log: Path, *arguments: str) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("RINGDOVE_")
        }
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(  # noqa: S603  our own program
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                env=environment, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text(errors="replace")

    def first_line(self) -> dict[str, Any]:
        """What it prints when it is ready."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self.failure()
        told: dict[str, Any] = json.loads(line)
        return told

    def result(self) -> dict[str, Any]:
        """What it prints at its end."""
        output, _ = self._process.communicate()
        try:
            told: dict[str, Any] = json.loads(output)
        except ValueError:
            raise self.failure() from None
        return told

    def failure(self) -> StoreUnavailable:
        """Why it has ended, in its own words."""
        said = self.log.strip().splitlines()
        return StoreUnavailable(
            f"A part of the demo ended: {said[-1] if said else 'without a word'} (see {self._log})."
        )

    def kill(self) -> None:
        """End it without warning."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, and see that it does."""
        if self.runs:
            self._process.send_signal(number)
            try:
                self._process.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                self.kill()


def fleet_counts(log: str) -> tuple[int, int, int]:
    """Devices connected, readings sent and acknowledged, as a fleet's log says last."""
    found = _SENT.findall(log)
    if not found:
        return 0, 0, 0
    connected, sent, acknowledged = (int(text.replace(",", "")) for text in found[-1])
    return connected, sent, acknowledged


def spark_workers(pid: int) -> list[int]:
    """The Python workers of Spark below a process: what Spark's daemon has forked."""
    children: dict[int, list[int]] = {}
    daemons = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(place.name))
            if b"pyspark.daemon" in (place / "cmdline").read_bytes():
                daemons.append(int(place.name))
    below, todo = set[int](), [pid]
    while todo:
        todo += (own := children.get(todo.pop(), []))
        below.update(own)
    return [worker for daemon in daemons if daemon in below for worker in children.get(daemon, [])]
