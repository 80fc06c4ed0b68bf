"""Real servers for tests: one in a thread of this process, one in a process of its own.

    with ServerThread(tmp_path) as server, ringdove.connect(server.url) as rd: ...
    with ServerProcess(tmp_path) as server: server.kill(); server.start()

Both take free ports, and keep them when they are started again.
"""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self

import uvloop

from ringdove.server import Server
from ringdove.server_config import ServerConfig

#: Long enough that only a hang reaches it.
PATIENCE_S = 60

PROGRAM = [sys.executable, "-c", "from ringdove.cli import main; main()"]


def wait_for(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Look again and again until something is so; fails when that takes too long."""
    deadline_s = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        time.sleep(0.005)
    return found


def run_command(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    """Run the program `ringdove` to its end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGDOVE_")}
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=environment,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )


class ServerThread:
    """A server on an event loop in a thread of this process: its insides can be looked at."""

    def __init__(self, data: Path | str, **options: Any) -> None:
        chosen: dict[str, Any] = {"data": str(data), "port": 0, "http": 0, **options}
        self.config = ServerConfig(**chosen)
        self.server: Server
        self.loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event
        self._error: BaseException | None = None
        self.start()

    def start(self) -> None:
        """Start, or start again on the same ports; raises what the server raises."""
        ready = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(PATIENCE_S), "the server does not start"
        if self._error is not None:
            self._thread.join()
            self._thread = None
            raise self._error
        self.config = ServerConfig(
            **{**_fields(self.config), "port": self.port, "http": self.http_port}
        )

    def _run(self, ready: threading.Event) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve(ready))
        except BaseException as error:
            self._error = error
        finally:
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.server = Server(self.config)
        async with self.server:
            ready.set()
            await self._stop.wait()

    @property
    def port(self) -> int:
        """The port of the native protocol."""
        return self.server.port

    @property
    def http_port(self) -> int:
        """The port of HTTP."""
        return self.server.http_port

    @property
    def url(self) -> str:
        """Where clients connect."""
        return _url(self.config.host, self.port, self.config.token, tls=bool(self.config.tls_cert))

    @property
    def http_url(self) -> str:
        """Where /metrics and its like are."""
        return f"http://{self.config.host}:{self.http_port}"

    @property
    def running(self) -> bool:
        """Whether the server has not ended yet."""
        return self._thread is not None and self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def ask_to_stop(self) -> None:
        """Begin to drain, without waiting for the end."""
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self._stop.set)

    def stop(self) -> None:
        """Drain and end; raises what the server raised. Idempotent."""
        thread = self._thread
        if thread is None:
            return
        if thread.is_alive() and not self.loop.is_closed():
            self.ask_to_stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not stop"
        self._thread = None
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ServerProcess:
    """A server in a process of its own: it can be killed."""

    def __init__(self, data: Path | str, *flags: str, host: str = "127.0.0.1") -> None:
        self.data = Path(data)
        self.host = host
        self.port = 0
        self.http_port = 0
        self.flags = flags
        self.process: subprocess.Popen[bytes]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self.start()

    def start(self) -> None:
        """Start, or start again on the same ports."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGDOVE_")}
        self.process = subprocess.Popen(
            [
                *PROGRAM, "--data", str(self.data), "serve", "--json", "--host", self.host,
                "--port", str(self.port), "--http", str(self.http_port), *self.flags,
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )  # fmt: skip
        #: What the server says of itself when it is ready.
        self.told = self._first_line()
        self.port, self.http_port = self.told["port"], self.told["http"]

    def _first_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = b""
        if select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            line = self.process.stdout.readline()
        if not line:
            self.kill()
            raise AssertionError(f"the server does not start:\n{self.log}")
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def url(self) -> str:
        """Where clients connect; a token and TLS are for the caller to add."""
        return _url(self.host, self.port, None, tls="--tls-cert" in self.flags)

    @property
    def http_url(self) -> str:
        """Where /metrics and its like are."""
        return f"http://{self.host}:{self.http_port}"

    @property
    def log(self) -> str:
        """What the server has written on standard error."""
        self._log.seek(0)
        return self._log.read().decode()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, without waiting for the end."""
        self.process.send_signal(signal.SIGTERM)

    def terminate(self) -> int:
        """Ask it to end, and wait; answers the exit code."""
        self.ask_to_stop()
        return self.wait()

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait for its end; answers the exit code."""
        code = self.process.wait(PATIENCE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def close(self) -> None:
        """Kill it if it still runs, and forget it."""
        if self.process.poll() is None:
            self.kill()
        self.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fields(config: ServerConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


def _url(host: str, port: int, token: str | None, *, tls: bool) -> str:
    secret = f":{token}@" if token else ""
    return f"{'ringdoves' if tls else 'ringdove'}://{secret}{host}:{port}"
