"""Redis processes on this machine: found, started, stopped, ended.

A process is known by its id and its configuration file together: an id may have been given to
another program since, and must not be sent signals then.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds that a process gets to end by itself: Redis waits up to ten for its copies.
END_S = 15.0

_LOOK_S = 0.02

#: Seconds that the system takes at most to make a process what it is to be.
_BEGIN_S = 1.0

#: Ports below those that the system gives to outgoing connections: one of these could otherwise
#: have taken the port of a process that was killed before it starts again.
_PORT_MIN, _OUTGOING_PORT_MIN = 10_000, 32_768


class Running(NamedTuple):
    """A process, perhaps ended."""

    pid: int
    conf: Path


def redis_program() -> str:
    """The program to run; raises with what to install when there is none."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise StoreUnavailable(
            "There is no redis-server (nor valkey-server) on this machine. Install Redis 7 or "
            "Valkey first: 'apt-get install redis-server', 'dnf install valkey' or "
            "'brew install redis'."
        )
    return program


def start(program: str, conf: Path) -> Running:
    """Start Redis in a session of its own, so that it outlives this program and its Ctrl-C."""
    log = conf.with_name("redis.log")
    to_log = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        to_log,
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    arguments = [program, str(conf)]
    pid = os.posix_spawn(program, arguments, os.environ, file_actions=actions, setsid=True)
    process = Running(pid, conf)
    deadline_s = time.monotonic() + _BEGIN_S
    while not is_alive(process) and time.monotonic() < deadline_s:
        time.sleep(_BEGIN_S / 1000)  # A new process has no command line for a moment.
    return process


def is_alive(process: Running) -> bool:
    """Whether it runs, or is stopped by a signal."""
    return _state(process) is not None


def is_paused(process: Running) -> bool:
    """Whether it is stopped by a signal."""
    return _state(process) in ("T", "t")


def _state(process: Running) -> str | None:
    """The letter of the process's state; None when it has ended or is another program."""
    if process.pid <= 0:
        return None
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)  # One of our own that has ended is gone with this.
    place = Path("/proc") / str(process.pid)
    if not Path("/proc/self").exists():
        return _state_by_ps(process)
    try:
        command = (place / "cmdline").read_bytes()
        state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        threads = len(list((place / "task").iterdir()))
    except (OSError, IndexError):
        return None
    if state in "ZX":
        return state if threads > 1 else None  # Its ports are taken until the last one is gone.
    return state if os.fsencode(process.conf) in command.split(b"\0") else None


def _state_by_ps(process: Running) -> str | None:
    told = subprocess.run(  # noqa: S603  numbers only
        ["/bin/ps", "-o", "state=,command=", "-p", str(process.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, command = told.stdout.strip().partition(" ")
    return state[:1] if command.endswith(str(process.conf)) else None


def send_signal(processes: Sequence[Running], number: signal.Signals) -> list[int]:
    """Send a signal to those that are alive; their ids."""
    sent = []
    for process in processes:
        if is_alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
                sent.append(process.pid)
    return sent


def kill(processes: Sequence[Running]) -> list[int]:
    """End processes at once, without a chance to write anything; their ids."""
    killed = send_signal(processes, signal.SIGKILL)
    _await_end(processes)
    return killed


def pause(processes: Sequence[Running]) -> list[int]:
    """Stop processes where they are, until SIGCONT; their ids."""
    stopped = send_signal(processes, signal.SIGSTOP)
    deadline_s = time.monotonic() + END_S
    while not all(is_paused(process) for process in processes if is_alive(process)):
        if time.monotonic() > deadline_s:
            raise StoreUnavailable(f"Processes {stopped} did not stop within {END_S:.0f} s.")
        time.sleep(_LOOK_S)
    return stopped


def end(processes: Sequence[Running]) -> list[int]:
    """Have processes end in order; those that do not are killed. Their ids."""
    ended = send_signal(processes, signal.SIGTERM)
    send_signal(processes, signal.SIGCONT)
    try:
        _await_end(processes)
    except StoreUnavailable:
        kill(processes)
    return ended


def _await_end(processes: Sequence[Running]) -> None:
    deadline_s = time.monotonic() + END_S
    while left := [process.pid for process in processes if is_alive(process)]:
        if time.monotonic() > deadline_s:
            raise StoreUnavailable(f"Processes {left} did not end within {END_S:.0f} s.")
        time.sleep(_LOOK_S)


def last_words(process: Running) -> str:
    """The end of a process's log, where it says why it ended."""
    try:
        lines = process.conf.with_name("redis.log").read_text(errors="replace").splitlines()
    except OSError:
        return "it left no log"
    return " / ".join(lines[-3:])


def free_ports(count: int, host: str) -> list[int]:
    """Ports that nobody listens on."""
    top = _outgoing_port_min()
    first = random.Random().randrange(_PORT_MIN, top - 2 * count)
    candidates = [*range(first, top), *range(_PORT_MIN, first)]
    found: list[int] = []
    for port in candidates:
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            found.append(port)
        if len(found) == count:
            return found
    raise StoreUnavailable(f"There are no {count} free ports between {_PORT_MIN} and {top}.")


def _outgoing_port_min() -> int:
    try:
        told = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
        lowest = int(told.split()[0])
    except (OSError, ValueError, IndexError):
        return _OUTGOING_PORT_MIN
    return lowest if lowest >= 2 * _PORT_MIN else _OUTGOING_PORT_MIN
