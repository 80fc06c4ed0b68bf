"""A broker in two processes and its manager: started, killed, cut off from one another."""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from ringdove.cluster.processes import free_ports
from ringdove.tiers.grants import Grant
from server.bad_network import BadNetwork
from server.running import PATIENCE_S, PROGRAM, ServerThread, wait_for

#: Longer than usual, so that a busy machine does not let leases lapse by itself.
GRANT_MS = 3_000


class Member:
    """One of the two processes; it tells when it serves and when it stands by."""

    def __init__(self, data: Path, port: int, *flags: str) -> None:
        self.data = data
        self.port = port
        self.flags = flags
        #: What it has said so far, in this life: {"port": ...} or {"standby": true}.
        self.turns: list[dict[str, Any]] = []
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start, or start again."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGDOVE_")}
        command = [
            *PROGRAM, "--data", str(self.data), "serve", "--json", "--http", "0",
            "--port", str(self.port), "--grant-ms", str(GRANT_MS), *self.flags,
        ]  # fmt: skip
        self.turns = []
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, env=environment
        )
        self._listener = threading.Thread(target=self._listen, args=(self.process, self.turns))
        self._listener.start()

    def _listen(self, process: "subprocess.Popen[bytes]", turns: list[dict[str, Any]]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            turns.extend(map(json.loads, lines))

    @property
    def url(self) -> str:
        """Where clients reach it while it serves."""
        return f"ringdove://127.0.0.1:{self.port}"

    @property
    def serving(self) -> bool:
        """Whether it serves, as far as it has said."""
        return bool(self.turns) and "port" in self.turns[-1]

    @property
    def standing_by(self) -> bool:
        """Whether it stands by, as far as it has said."""
        return bool(self.turns) and "standby" in self.turns[-1]

    @property
    def metrics(self) -> str:
        """What it tells Prometheus."""
        address = f"http://127.0.0.1:{self.turns[-1]['http']}/metrics"
        with urllib.request.urlopen(address) as answer:
            return str(answer.read().decode())

    @property
    def log(self) -> str:
        """What it has written on standard error, in all its lives."""
        self._log.seek(0)
        return self._log.read().decode()

    def said_at(self, event: str) -> str:
        """When an event was last logged, in a form that sorts."""
        found = re.findall(rf"^(\S+Z) \[\w+ *\] {event}", self.log, re.MULTILINE)
        return str(found[-1]) if found else ""

    def wait_serving(self) -> None:
        """Wait until it serves."""
        wait_for(lambda: self.serving, f"the server serves:\n{self.log}")

    def wait_standing_by(self) -> None:
        """Wait until it stands by."""
        wait_for(lambda: self.standing_by, f"the server stands by:\n{self.log}")

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.wait()

    def terminate(self) -> int:
        """Ask it to end, and wait; answers the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end."""
        code = self.process.wait(PATIENCE_S)
        self._listener.join(PATIENCE_S)
        return code

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        self._log.close()


class Pair:
    """A manager, a primary `a` and its standby `b`, with networks between all of them."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._stack = ExitStack()
        port_a, port_b = free_ports(2, "127.0.0.1")
        self.manager = ServerThread(directory / "manager", http=-1, manager=True)
        self._stack.callback(self.manager.stop)
        #: From `a` to the manager, from `b` to it; from `b` to `a`, and back.
        self.to_manager = self._network(self.manager.port)
        self.b_to_manager = self._network(self.manager.port)
        self.between = self._network(port_a)
        self.back = self._network(port_b)
        self.a = Member(
            directory / "a", port_a, "--name", "core", "--managers", self.to_manager.url,
            "--with-standby", "--public-url", self.between.url, *flags,
        )  # fmt: skip
        self._stack.callback(self.a.close)
        self.a.wait_serving()
        self.b = Member(
            directory / "b", port_b, "--managers", self.b_to_manager.url,
            "--standby-of", self.between.url, "--public-url", self.back.url, *flags,
        )  # fmt: skip
        self._stack.callback(self.b.close)

    def _network(self, port: int) -> BadNetwork:
        return self._stack.enter_context(BadNetwork(port))

    @property
    def networks(self) -> list[BadNetwork]:
        """All that can be cut."""
        return [self.to_manager, self.b_to_manager, self.between, self.back]

    @property
    def url(self) -> str:
        """Where clients find whoever serves."""
        return f"ringdove://127.0.0.1:{self.a.port},127.0.0.1:{self.b.port}"

    @property
    def grant(self) -> Grant:
        """What the manager has recorded."""
        store = self.manager.server._broker.store
        return msgspec.json.decode(
            self.manager.call(store.get("tier/grant/core")).value, type=Grant
        )

    def wait_in_sync(self) -> None:
        """Wait until there is a copy that may take over."""
        wait_for(lambda: self.grant.in_sync, "a standby is in sync")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def cut(network: BadNetwork) -> None:
    """Nothing passes any more."""
    network.closed = True
    network.cut()


def heal(network: BadNetwork) -> None:
    """Everything passes again."""
    network.closed = False
    network.harm = lambda _: ""
