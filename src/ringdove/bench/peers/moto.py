"""moto: the server of SQS that Python programs are tested with."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from ringdove.bench.peers.peer import HOST, Server, free_port, process
from ringdove.bench.peers.sqs import SqsPeer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_VERSION = "5.2.5"


class Moto(SqsPeer):
    """moto's server, from a Python package."""

    name, title = "moto", "moto"
    synced = ""
    unsynced = "in memory only"
    packages = (f"moto[server,sqs]=={_VERSION}",)

    def obtain(self) -> None:
        """See Peer."""
        self._packages = self.clients_path()

    def version(self) -> str:
        """See Peer."""
        return _VERSION

    @contextlib.contextmanager
    def running(self, directory: Path, synced: bool) -> Iterator[Server]:  # noqa: ARG002  never
        """See Peer."""
        port = free_port()
        start = "from moto.server import main; main()"
        command = [sys.executable, "-c", start, "-H", HOST, "-p", str(port)]
        env = {**os.environ, "PYTHONPATH": self._packages}
        with process(command, port, directory, env) as begun:
            yield Server(f"http://{HOST}:{port}", begun.pid)
