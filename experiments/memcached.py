"""A memcached process, and what is asked of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from experiments.pipelined import HOST, Batch, Server, bodies
from ringdove.bench.processes import cpu_s
from ringdove.cluster.processes import free_ports
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY_MB = 1_024
_START_S = 20


@contextmanager
def memcached() -> Iterator[Server]:
    """A memcached with its usual four threads, on a free port."""
    program = shutil.which("memcached")
    if program is None:
        raise StoreUnavailable(
            "There is no memcached on this machine. Install it first: 'apt-get install memcached', "
            "'dnf install memcached' or 'brew install memcached'."
        )
    [port] = free_ports(1, HOST)
    command = [program, "-l", HOST, "-p", str(port), "-U", "0", "-m", str(_MEMORY_MB)]
    if os.geteuid() == 0:
        command += ["-u", "root"]  # It refuses to run as root unless told to.
    process = subprocess.Popen(command)  # noqa: S603  a program that was asked for
    try:
        _await_start(port)
        yield Server(port, partial(cpu_s, process.pid))
    finally:
        process.terminate()
        process.wait()


def _await_start(port: int) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((HOST, port)).close()
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise StoreUnavailable("memcached does not start.") from error
            time.sleep(0.01)
        else:
            return


def cycles(size: int, count: int, *, name: str = "k", reading: bool = False) -> Iterator[Batch]:
    """Batches that set and delete so many keys, without end; with `reading` they get them too."""
    sets, gets, deletes, values = [], [], [], []
    for number, body in enumerate(bodies(size, count)):
        key = f"{name}{number:06}".encode()
        sets.append(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(body), body))
        gets.append(b"get %b\r\n" % key)
        deletes.append(b"delete %b\r\n" % key)
        values.append(b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, len(body), body))
    requests = sets + (gets if reading else []) + deletes
    replies = [b"STORED\r\n"] * count + (values if reading else []) + [b"DELETED\r\n"] * count
    batch = Batch([b"".join(requests)], b"".join(replies), count)
    while True:
        yield batch
