"""How the server of a data directory is found by those who meant to open the directory itself.

One process at a time writes to a data directory. A server that has one open leaves a note in it;
`file:` URLs then lead to that server, so that several processes may work with one directory: the
tools beside a running server, or the many processes of Spark, the first of which starts the server.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds for a server to start, on a machine that has much to do.
_START_S_MAX = 60
_LOOK_S = 0.02

#: Servers that this process has started: Python warns of children that nobody remembers.
_started: list[subprocess.Popen[bytes]] = []

_NOTE = "server.json"
_LOG = "server.log"


def announce(directory: Path, url: str) -> None:
    """Leave a note of where this process serves the directory; only its owner can read it."""
    note = directory / f"{_NOTE}.new"
    note.unlink(missing_ok=True)
    fd = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump({"pid": os.getpid(), "url": url}, file)
    note.replace(directory / _NOTE)


def withdraw(directory: Path) -> None:
    """Take the note of this process away."""
    if _read(directory)[0] == os.getpid():
        (directory / _NOTE).unlink(missing_ok=True)


def find(directory: Path) -> str | None:
    """The URL of the server that has the directory open, if one has."""
    pid, url = _read(directory)
    return url if pid and pid == holder(directory) else None


def holder(directory: Path) -> int:
    """The process that has the directory open and serves it; 0 when none does."""
    pid, _ = _read(directory)
    try:
        locked_by = int((directory / "lock").read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return 0
    return pid if pid == locked_by else 0


def _read(directory: Path) -> tuple[int, str | None]:
    try:
        note = json.loads((directory / _NOTE).read_text())
        return int(note["pid"]), str(note["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, None


def find_or_start(directory: Path, idle_s: int) -> str:
    """The URL of the directory's server; one is started if there is none.

    It outlives this process, and ends when nobody has been connected for `idle_s`.
    """
    if not (directory / "format").exists():
        raise StoreUnavailable(
            f"There is no data directory at {directory} on this machine. Make a queue in it first "
            f"('ringdove --data {directory} queue create NAME'); one on another machine is reached "
            "through a server ('ringdove serve'), by its URL."
        )
    found = _reach(directory)
    if found is not None:
        return found
    with (directory / _LOG).open("ab") as turn:
        # One process at a time starts a server; the others find it then.
        fcntl.flock(turn, fcntl.LOCK_EX)
        return _reach(directory) or _start_and_reach(directory, idle_s)


def _reach(directory: Path) -> str | None:
    found = find(directory)
    return found if found is not None and _answers(found) else None


def _start_and_reach(directory: Path, idle_s: int) -> str:
    child = _start(directory, idle_s)
    deadline_s = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline_s:
        found = _reach(directory)
        if found is not None:
            return found
        if child.poll() is not None:
            break
        time.sleep(_LOOK_S)
    with suppress(ProcessLookupError):
        child.kill()
    said = (directory / _LOG).read_text(errors="replace").strip().splitlines()
    raise StoreUnavailable(
        f"The data directory {directory} cannot be served: {said[-1] if said else 'no answer'}"
    )


def _start(directory: Path, idle_s: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "ringdove", "--data", os.fspath(directory), "serve",
        "--port", "0", "--http", "-1", "--idle-s", str(idle_s),
    ]  # fmt: skip
    # Whoever may read the directory may read its note; nobody else knows the token.
    environment = {**os.environ, "RINGDOVE_TOKEN": secrets.token_hex(16)}
    environment.pop("RINGDOVE_URL", None)
    with (directory / _LOG).open("wb") as log:
        child = subprocess.Popen(  # noqa: S603  our own program
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=environment, start_new_session=True,
        )  # fmt: skip
    _started.append(child)
    return child


def _answers(url: str) -> bool:
    place = urlsplit(url)
    try:
        if place.scheme == "ringdove+unix":
            with socket.socket(socket.AF_UNIX) as end:
                end.settimeout(_START_S_MAX)
                end.connect(unquote(place.path))
                return True
        with socket.create_connection((place.hostname, place.port), timeout=_START_S_MAX):
            return True
    except OSError:
        return False
