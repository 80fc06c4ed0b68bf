"""What benchmarks of the server share: a server in a process of its own, and workers in others.

Workers are functions of modules of this package, run by `python -m ringdove.bench.processes`; they
get their arguments as JSON and answer one JSON line on standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTERRUPTED = 130
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(path.read_text().split()[0]) for path in threads) / 1e9
    # Not every kernel counts that finely.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def family_cpu_s(pid: int) -> dict[tuple[str, int], float]:
    """Seconds of processor time of all that a process has started, by program and process."""
    found = {}
    for child in _children(pid):
        with contextlib.suppress(OSError):  # It may have ended meanwhile.
            program = Path(f"/proc/{child}/comm").read_text().strip()
            found[program, child] = cpu_s(child)
        found |= family_cpu_s(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def tree_cpu_s(pid: int) -> float:
    """Seconds of processor time of a process and all below it, also of those that have ended."""
    return sum(sum(map(int, fields[11:15])) for fields in _tree(pid)) / _TICKS_PER_S


def tree_resident_bytes(pid: int) -> int:
    """Memory of a process and all below it."""
    return sum(int(fields[21]) for fields in _tree(pid)) * _PAGE_BYTES


def _tree(pid: int) -> list[list[str]]:
    """What the system notes of a process and of all below it: fields of /proc/PID/stat from 3."""
    noted: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # It has just ended.
            noted[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    found = {pid}
    while below := {own for own, fields in noted.items() if int(fields[1]) in found} - found:
        found |= below
    return [noted[own] for own in found if own in noted]


class ServerProcess:
    """A running `ringdove serve`."""

    def __init__(self, data: Path, *options: str, http: bool = False, port: int = 0) -> None:
        command = [
            sys.executable, "-m", "ringdove", "--data", str(data), "serve",
            "--port", str(port), "--http", "0" if http else "-1", "--json", *options,
        ]  # fmt: skip
        self._process = subprocess.Popen(  # noqa: S603  our own program
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            raise StoreUnavailable(f"The server did not start; try: {shlex.join(command)}")
        ports = json.loads(line)
        self.url = f"ringdove://127.0.0.1:{ports['port']}"
        self.http_port: int = ports["http"]
        self.mqtt_port: int = ports.get("mqtt", -1)
        self.pid = self._process.pid

    def cpu_s(self) -> float:
        """Seconds of processor time that the server has used."""
        return cpu_s(self.pid)

    def resident_bytes(self) -> int:
        """Memory of the server."""
        return resident_bytes(self.pid)

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        """Have it drain and end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@contextmanager
def serving(data: Path, *options: str, http: bool = False) -> Iterator[ServerProcess]:
    """A server for the length of a benchmark."""
    server = ServerProcess(data, *options, http=http)
    try:
        yield server
    finally:
        server.stop()


class Worker:
    """A function of a benchmark module in a process of its own."""

    def __init__(self, module: str, function: str, **arguments: Any) -> None:
        command = [sys.executable, "-m", __name__, module, function, json.dumps(arguments)]
        self._process = subprocess.Popen(  # noqa: S603  our own program
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )

    def ready(self) -> None:
        """Wait until the worker has said that it is."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise StoreUnavailable("A worker of the benchmark failed before it began.")

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self, timeout_s: float = 600) -> Any:
        """What it answered."""
        output, _ = self._process.communicate(timeout=timeout_s)
        if self._process.returncode:
            raise StoreUnavailable("A worker of the benchmark failed.")
        return json.loads(output.splitlines()[-1])

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def wait_for_go() -> float:
    """In a worker: say that everything is prepared, and wait; answers the time."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    return time.time()


def _main() -> None:
    module, function, arguments = sys.argv[1:4]
    work = getattr(importlib.import_module(module), function)
    try:
        answer = json.dumps(work(**json.loads(arguments)))
    except KeyboardInterrupt:  # Whoever began it says so.
        sys.exit(_INTERRUPTED)
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        # Not print: with PYTHONUNBUFFERED, standard output loses what a pipe does not take at once.
        output.write(f"{answer}\n".encode())


if __name__ == "__main__":
    _main()
