"""ElasticMQ: a server of SQS in Scala."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ringdove.bench.peers import obtaining
from ringdove.bench.peers.peer import HOST, Server, free_port, process
from ringdove.bench.peers.sqs import SqsPeer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SETTINGS = """\
include classpath("application.conf")
node-address {{ host = "{host}", port = {port} }}
rest-sqs {{ bind-hostname = "{host}", bind-port = {port} }}
rest-stats {{ enabled = false }}
"""


class ElasticMQ(SqsPeer):
    """Its server, from Maven Central."""

    name, title = "elasticmq", "ElasticMQ"
    synced = ""
    unsynced = "in memory only, as by default"

    def obtain(self) -> None:
        """See Peer."""
        self._java = obtaining.java()
        self._class_path = obtaining.jars("elasticmq")

    def version(self) -> str:
        """See Peer."""
        name = next(part for part in self._class_path.split(":") if "elasticmq-server" in part)
        return name.rpartition("-")[2].removesuffix(".jar")

    @contextlib.contextmanager
    def running(self, directory: Path, synced: bool) -> Iterator[Server]:  # noqa: ARG002  never
        """See Peer."""
        port = free_port()
        directory.mkdir(parents=True)
        settings = directory / "elasticmq.conf"
        settings.write_text(_SETTINGS.format(host=HOST, port=port))
        command = [self._java, "-Xmx1g", f"-Dconfig.file={settings}", "-cp", self._class_path,
                   "org.elasticmq.server.Main"]  # fmt: skip
        with process(command, port, directory) as begun:
            yield Server(f"http://{HOST}:{port}", begun.pid)
