"""A real Redis process for tests: a cluster of one node that serves every slot."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

import hiredis

from ringdove.cluster.processes import free_ports, redis_program

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

PATIENCE_S = 20


class RedisProcess:
    """Runs until the end of the `with`."""

    def __init__(
        self, directory: Path, *options: str, password: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls
        self._reader = hiredis.Reader()
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._start(directory, options):  # Another may have taken the port meanwhile.
            assert time.monotonic() < deadline_s, "redis does not start"
        if password:
            self.ask("AUTH", password)
        self.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        self._until(lambda: b"cluster_state:ok" in self.ask("CLUSTER", "INFO"))

    def _start(self, directory: Path, options: Sequence[str]) -> bool:
        self.port, bus_port = free_ports(2, "127.0.0.1")
        ports = ["--port", "0", "--tls-port"] if self._tls else ["--port"]
        self._process = subprocess.Popen(
            [
                redis_program(), *ports, str(self.port), "--bind", "127.0.0.1",
                "--dir", str(directory), "--cluster-enabled", "yes",
                "--cluster-port", str(bus_port), "--save", "", "--appendonly", "no", *options,
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return self._connect()

    def _connect(self) -> bool:
        """Connect as soon as it listens; False when it has ended."""
        while self._process.poll() is None:
            try:
                plain = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
                self._socket = self._tls.wrap_socket(plain) if self._tls else plain
            except OSError:
                time.sleep(0.01)
            else:
                return True
        return False

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}?copies=1"

    def ask(self, *words: Any) -> Any:
        self._socket.sendall(hiredis.pack_command(words))
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(65_536)
            assert data, "redis hung up"
            self._reader.feed(data)
        return reply

    def flush(self) -> None:
        self.ask("FLUSHALL")

    def _until(self, condition: Any) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, "redis does not become ready"
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()
