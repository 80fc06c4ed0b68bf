"""A broker is killed under a slow consumer: what is lost, and what comes twice (M3).

A producer sends numbered messages one after the other, each when the one before was acknowledged. A
consumer takes them one by one, works 2 ms on each and acknowledges it. Half way the broker is
killed without warning and started again; producer and consumer repeat what was not answered.
`lost` counts messages that were acknowledged to the producer and never came, `again` those that
came more than once after the consumer's acknowledgement was answered.

    Ringdove            as it comes: every acknowledgement follows a sync
    Redis Streams       as it comes: a snapshot now and then, no log
    Redis, everysec     with a log that is synced once a second; a killed process loses nothing of
                        it, because the operating system lives on, a power cut up to a second

The document cuts the power of Kafka and RocketMQ, whose acknowledgement does not wait for the disk
either, and finds loss and repetition. What a power cut leaves of Ringdove's files is tested sector
by sector (tests/faults/test_power_cut.py).
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import hiredis

import ringdove
from experiments.beside import beside
from ringdove.bench.measure import place
from ringdove.bench.processes import ServerProcess
from ringdove.bench.redis import HOST
from ringdove.cli.output import watched
from ringdove.cluster.processes import free_ports, redis_program
from ringdove.errors import RingdoveError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Row = dict[str, Any]

_WORK_S = 0.002
_AGAIN_S = 0.05
_PATIENCE_S = 60
#: Seconds without a message after which nothing more comes.
_QUIET_S = 3.0

_pack: Any = hiredis.pack_command


class System(Protocol):
    """A queue under test. `send`, `receive` and `acknowledge` return when it has answered."""

    def crash(self) -> None:
        """Kill it without warning, and start it again."""
        ...

    def send(self, number: int) -> None:
        """Send a message of this number."""
        ...

    def receive(self) -> tuple[int, Any] | None:
        """The next message and its receipt; None when nothing more comes."""
        ...

    def acknowledge(self, receipt: Any) -> None:
        """A message is done."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class _Ringdove:
    def __init__(self, data: Path) -> None:
        [port] = free_ports(1, HOST)
        self._place, self._port = data / "ringdove", port
        self._server = ServerProcess(self._place, port=port)
        self._sender = ringdove.connect(self._server.url, session_s=_PATIENCE_S)
        self._receiver = ringdove.connect(self._server.url, session_s=_PATIENCE_S)
        self._sender.create_queue("readings", order="strict", delivery="exactly-once")

    def crash(self) -> None:
        self._server.kill()
        self._server = ServerProcess(self._place, port=self._port)

    def send(self, number: int) -> None:
        self._sender.queue("readings").send(b"%d" % number)

    def receive(self) -> tuple[int, Any] | None:
        found = self._receiver.queue("readings").receive(wait=_QUIET_S)
        return (int(found[0].body), found[0]) if found else None

    def acknowledge(self, receipt: Any) -> None:
        receipt.ack()

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()
        self._server.stop()


class _Redis:
    """A stream with one group; each thread has a connection of its own."""

    def __init__(self, data: Path, *options: str) -> None:
        self._directory = data / f"redis{len(options)}"
        self._directory.mkdir()
        [self._port] = free_ports(1, HOST)
        self._options = options
        self._own = threading.local()
        self._process = self._start()
        self._ask("XGROUP", "CREATE", "readings", "group", "0", "MKSTREAM")

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # noqa: S603  a program that was asked for
            [
                redis_program(), "--port", str(self._port), "--bind", HOST,
                "--dir", str(self._directory), *self._options,
            ],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self._patiently(lambda: self._ask("PING"))
        return process

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return ask()
            except OSError:
                self._own.socket = None
                if time.monotonic() > deadline_s:
                    raise StoreUnavailable("Redis does not answer.") from None
                time.sleep(_AGAIN_S)

    def _ask(self, *words: Any) -> Any:
        if getattr(self._own, "socket", None) is None:
            self._own.socket = socket.create_connection((HOST, self._port), _PATIENCE_S)
            self._own.reader = hiredis.Reader()
        self._own.socket.sendall(_pack(words))
        while (reply := self._own.reader.gets()) is False:
            data = self._own.socket.recv(65_536)
            if not data:
                raise ConnectionResetError
            self._own.reader.feed(data)
        return reply

    def crash(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def send(self, number: int) -> None:
        self._patiently(lambda: self._ask("XADD", "readings", "*", "n", number))

    def receive(self) -> tuple[int, Any] | None:
        block_ms = str(int(1000 * _QUIET_S))
        read = ("XREADGROUP", "GROUP", "group", "one", "COUNT", "1", "BLOCK", block_ms)
        for start in ("0", ">"):  # First what was taken and not acknowledged, then what is new.
            found = self._patiently(partial(self._ask, *read, "STREAMS", "readings", start))
            if isinstance(found, hiredis.ReplyError):  # The group has gone with everything else.
                self._ask("XGROUP", "CREATE", "readings", "group", "0", "MKSTREAM")
                return self.receive()
            if found and found[0][1]:
                [[_, [[entry, [_, number]]]]] = found
                return int(number), entry
        return None

    def acknowledge(self, receipt: Any) -> None:
        self._patiently(lambda: self._ask("XACK", "readings", "group", receipt))

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


SYSTEMS: dict[str, Callable[[Path], System]] = {
    "Ringdove": _Ringdove,
    "Redis Streams": _Redis,
    "Redis, everysec": lambda data: _Redis(data, "--appendonly", "yes"),
}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Each system in turn; see the module."""
    messages = 200 if quick else 4_000
    rows = [_row(name, messages) for name in watched(tuple(SYSTEMS), "systems")]
    ours = rows[0]
    return {
        "flushing": rows,
        "beside": [
            beside("Minos, Ringdove: lost", 0, ours["lost"]),
            beside("Minos, Ringdove: repeated", 0, ours["again"]),
            beside("Kafka and RocketMQ, Redis Streams: lost", "some", rows[1]["lost"]),
        ],
    }


def _row(name: str, messages: int) -> Row:
    with place(None) as data:
        system = SYSTEMS[name](data)
        try:
            return {"system": name, **_measure(system, messages)}
        finally:
            system.close()


def _measure(system: System, messages: int) -> Row:
    sent: list[int] = []
    done: list[int] = []
    began_s = time.perf_counter()

    def produce() -> None:
        for number in range(messages):
            system.send(number)
            sent.append(number)

    def consume() -> None:
        while len(set(done)) < messages and (found := _received(system)) is not None:
            number, receipt = found
            time.sleep(_WORK_S)
            with contextlib.suppress(RingdoveError):
                system.acknowledge(receipt)
                done.append(number)

    threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    while len(done) < messages // 2 and threads[1].is_alive():
        time.sleep(_WORK_S)
    system.crash()
    for thread in threads:
        thread.join()
    return {
        "sent": len(sent),
        "lost": len(set(sent) - set(done)),
        "again": len(done) - len(set(done)),
        "in_order": done == sorted(done),
        "per_s": round(len(done) / (time.perf_counter() - began_s)),
    }


def _received(system: System) -> tuple[int, Any] | None:
    try:
        return system.receive()
    except RingdoveError:
        return system.receive()


def plot(result: dict[str, Any], path: Path) -> None:
    """What was lost and what came again."""
    from ringdove.bench.plots import figure_of, save

    figure, panels = figure_of(2, "A broker killed under a slow consumer (M3)")
    names = [row["system"] for row in result["flushing"]]
    for axes, name, text in zip(
        panels, ("lost", "again"), ("messages lost", "messages that came again"), strict=True
    ):
        axes.bar(names, [row[name] for row in result["flushing"]], label=name)
        axes.set_title(text)
    save(figure, panels, path)
