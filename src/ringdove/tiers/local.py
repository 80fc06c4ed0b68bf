"""A whole topology on this machine, to try it out: a manager and brokers of several levels (M4).

    D/tiers.json     the brokers and their ports
    D/NAME/          the data directory of each
    D/NAME.log       what it says

Every broker is a process of its own that outlives this program. It is known by its data directory,
which names the process that serves it and is named by that process's command line: an id that was
given to another program since is never sent a signal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from ringdove import serving
from ringdove.cluster.processes import END_S, Running, end, free_ports, is_alive, kill
from ringdove.errors import InvalidArgument, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MANAGER = "manager"
_NOTE = "tiers.json"
_HOST = "127.0.0.1"
_LOOK_S = 0.02

#: Seconds for a process to start, on a machine that has much to do.
_START_S_MAX = 60

#: Servers that this process has started: Python warns of children that nobody remembers.
_started: list[subprocess.Popen[bytes]] = []

LEVELS_MAX, REGIONS_MAX = 8, 64


class LocalBroker(msgspec.Struct, frozen=True):
    """A process of the topology."""

    name: str
    level: int
    region: str
    port: int
    http: int = -1

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ringdove://{_HOST}:{self.port}"


class Topology:
    """A manager and brokers under a directory."""

    def __init__(self, directory: Path, brokers: list[LocalBroker]) -> None:
        self.directory = directory
        self._brokers = {broker.name: broker for broker in brokers}

    @classmethod
    def make(cls, directory: Path, levels: int, regions: int) -> Topology:
        """Plan a topology and remember it: one core, an access broker per region.

        Each level between has one broker for two regions, at least two: so that any may fail.
        """
        if not (2 <= levels <= LEVELS_MAX and 1 <= regions <= REGIONS_MAX):
            raise InvalidArgument(
                f"A topology has 2 to {LEVELS_MAX} levels and 1 to {REGIONS_MAX} regions, not "
                f"{levels} and {regions}."
            )
        if cls.exists(directory):
            raise InvalidArgument(
                f"{directory} has a topology already: 'ringdove tier down' ends it; "
                "start it again as it is without --levels and --regions."
            )
        places = [(MANAGER, 0, ""), ("core", 0, "core")]
        for level in range(1, levels - 1):
            places += [
                (f"level{level}-{number}", level, f"region-{2 * number - 1}")
                for number in range(1, max(2, (regions + 1) // 2) + 1)
            ]
        places += [
            (f"region-{number}", levels - 1, f"region-{number}") for number in range(1, regions + 1)
        ]
        *ports, http = free_ports(len(places) + 1, _HOST)
        brokers = [
            LocalBroker(name, level, region, port, http if name == MANAGER else -1)
            for (name, level, region), port in zip(places, ports, strict=True)
        ]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _NOTE).write_bytes(msgspec.json.encode(brokers))
        return cls(directory, brokers)

    @staticmethod
    def exists(directory: Path) -> bool:
        """Whether a directory has a topology."""
        return (directory / _NOTE).exists()

    @classmethod
    def load(cls, directory: Path) -> Topology:
        """The topology that a directory has."""
        try:
            note = (directory / _NOTE).read_bytes()
            return cls(directory, msgspec.json.decode(note, type=list[LocalBroker]))
        except FileNotFoundError:
            raise InvalidArgument(
                f"{directory} has no topology: make one with 'ringdove tier up --dir {directory}'."
            ) from None
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"{directory / _NOTE} cannot be read: {error}.") from error

    @property
    def manager(self) -> LocalBroker:
        """The process that knows all others."""
        return self._brokers[MANAGER]

    @property
    def brokers(self) -> list[LocalBroker]:
        """All brokers, from the core to the edge."""
        return [broker for broker in self._brokers.values() if broker.name != MANAGER]

    def broker(self, name: str) -> LocalBroker:
        """The broker of this name, or the manager."""
        if name not in self._brokers:
            known = ", ".join(self._brokers)
            raise InvalidArgument(f"There is no broker {name!r} (there are: {known}).")
        return self._brokers[name]

    def up(self, on_started: Callable[[LocalBroker], None] | None = None) -> None:
        """Start whatever does not run, all at once; returns when everything serves."""
        children = {name: self._spawn(broker) for name, broker in self._brokers.items()}
        for name, child in children.items():
            self._await_start(name, child)
            if on_started is not None:
                on_started(self._brokers[name])

    def down(self) -> list[str]:
        """End everything in good order; answers the names of what ran."""
        running = {
            name: process
            for name in reversed(self._brokers)
            if (process := self._process(name)) is not None
        }
        end(list(running.values()))
        _reap(running.values())
        return list(running)

    def is_up(self, name: str) -> bool:
        """Whether a broker serves."""
        return self._process(name) is not None

    def _process(self, name: str) -> Running | None:
        directory = self.directory / self.broker(name).name
        process = Running(serving.holder(directory), directory)
        return process if is_alive(process) else None

    def start(self, name: str) -> None:
        """Start one, unless it runs; returns when it serves."""
        self._await_start(name, self._spawn(self.broker(name)))

    def _spawn(self, broker: LocalBroker) -> subprocess.Popen[bytes] | None:
        if self.is_up(broker.name):
            return None
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGDOVE_")}
        with self._log(broker.name).open("ab") as log:
            child = subprocess.Popen(  # noqa: S603  our own program
                self._command(broker), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment, start_new_session=True,
            )  # fmt: skip
        _started.append(child)
        return child

    def _await_start(self, name: str, child: subprocess.Popen[bytes] | None) -> None:
        deadline_s = time.monotonic() + _START_S_MAX
        while not self.is_up(name):
            if child is None or child.poll() is not None or time.monotonic() > deadline_s:
                said = self._log(name).read_text(errors="replace").strip().splitlines()
                raise StoreUnavailable(
                    f"Broker {name!r} does not start: {said[-1] if said else 'no answer'}"
                )
            time.sleep(_LOOK_S)

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def kill(self, name: str) -> None:
        """End one at once, as a power cut would."""
        process = self._process(name)
        if process is not None:
            kill([process])
            _reap([process])

    def _command(self, broker: LocalBroker) -> list[str]:
        command = [
            sys.executable, "-m", "ringdove", "--data", str(self.directory / broker.name), "serve",
            "--port", str(broker.port), "--http", str(broker.http),
        ]  # fmt: skip
        if broker.name == MANAGER:
            return [*command, "--manager"]
        command += ["--name", broker.name, "--level", str(broker.level)]
        command += ["--region", broker.region, "--managers", self.manager.url]
        return [*command, "--upstream", "manager"] if broker.level else command


def _reap(ended: Iterable[Running]) -> None:
    """Forget children that have ended."""
    pids = {process.pid for process in ended}
    for child in [child for child in _started if child.pid in pids]:
        child.wait(END_S)
        _started.remove(child)
