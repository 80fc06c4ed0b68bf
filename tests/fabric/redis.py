"""A real Redis process for tests: a cluster of one node that serves every slot."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

import hiredis

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 20


class RedisProcess:
    """Runs until the end of the `with`."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        assert program, "redis-server is missing: apt-get install redis-server"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [
                program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory),
                "--cluster-enabled", "yes", "--cluster-port", str(_free_port()),
                "--save", "", "--appendonly", "no",
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self._socket = self._connect()
        self._reader = hiredis.Reader()
        self.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        self._until(lambda: b"cluster_state:ok" in self.ask("CLUSTER", "INFO"))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}?copies=1"

    def ask(self, *words: Any) -> Any:
        self._socket.sendall(hiredis.pack_command(words))
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        return reply

    def flush(self) -> None:
        self.ask("FLUSHALL")

    def _connect(self) -> socket.socket:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
            except OSError:
                assert time.monotonic() < deadline_s, "redis does not start"
                time.sleep(0.01)

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


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]
