"""`ringdove bench mqtt`: the gateway beside mosquitto, under the same load generator.

Publishes per second for each quality of service, and of QoS 1 over one to a thousand connections;
the time from a publisher to a subscriber; the memory of thousands of idle devices. Ringdove syncs
every publish to disk before it acknowledges, mosquitto keeps messages in memory. Rates are also
given per second of the server's processor time: on a machine that does other things, too, only
these can be compared.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from ringdove.bench import mqtt_load
from ringdove.bench.measure import OTHER_FILES, open_files, place
from ringdove.bench.processes import Worker, cpu_s, resident_bytes, serving
from ringdove.cluster.processes import free_ports
from ringdove.errors import InvalidArgument
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import Decoder, encode
from ringdove.protocol.mqtt.packets import V311

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SIZE = 100
_WINDOW = 20
_MB = 1 << 20

#: Seconds for mosquitto to start.
_START_S_MAX = 20

#: Messages that are timed, and the pause between two of them.
_TIMED = 1_000
_PAUSE_S = 0.002


def run(
    directory: Path | None,
    connections: int = 100,
    seconds: float = 5,
    idle: int = 10_000,
    *,
    quick: bool = False,
) -> dict[str, Any]:
    """All figures; see the module."""
    if connections < 1 or idle < 1 or not seconds > 0:
        raise InvalidArgument("connections, idle and seconds must be above 0.")
    spread: tuple[int, ...] = (1, 10, 100, 1_000)
    timed = _TIMED
    if quick:
        seconds, idle, spread, timed = min(seconds, 1), min(idle, 200), (1, 20), 50
    found: dict[str, Any] = {"publish": [], "connections": [], "latency": [], "idle": []}
    most = max(idle, *spread, connections) + OTHER_FILES
    with place(directory) as data, open_files(most):
        for name, serve in (("ringdove", _ringdove), ("mosquitto", _mosquitto)):
            if name == "mosquitto" and shutil.which("mosquitto") is None:
                continue
            with serve(data) as (port, pid):
                for qos in (0, 1, 2):
                    row = _rate(port, pid, connections, seconds, qos)
                    found["publish"].append({"server": name, "qos": qos, **row})
                for count in spread:
                    row = _rate(port, pid, count, seconds / 2, 1)
                    found["connections"].append({"server": name, **row})
                latency = Worker(__name__, "latency", port=port, count=timed).result()
                found["latency"].append({"server": name, **latency})
            with serve(data) as (port, pid):
                found["idle"].append({"server": name, **_idle(port, pid, idle)})
    return found | _summary(found["publish"])


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Ringdove's rate of QoS 1, and its rates over mosquitto's for the same processor time."""
    by_server = {(row["server"], row["qos"]): row for row in rows}
    found = {"qos_1_per_s": by_server["ringdove", 1]["publishes_per_s"]}
    for qos in (0, 1, 2):
        theirs = by_server.get(("mosquitto", qos))
        if theirs is not None:
            ours = by_server["ringdove", qos]["per_cpu_s"]
            found[f"qos_{qos}_over_mosquitto_per_cpu"] = round(ours / theirs["per_cpu_s"], 2)
    return found


# -- servers ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _ringdove(data: Path) -> Iterator[tuple[int, int]]:
    with serving(data / f"queues-{time.monotonic_ns()}", "--mqtt", "0") as server:
        yield server.mqtt_port, server.pid


@contextlib.contextmanager
def _mosquitto(data: Path) -> Iterator[tuple[int, int]]:
    [port] = free_ports(1, "127.0.0.1")
    path = data / "mosquitto.conf"
    path.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    process = subprocess.Popen(  # noqa: S603  a program that this benchmark has asked for
        [shutil.which("mosquitto") or "mosquitto", "-c", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + _START_S_MAX
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def _rate(port: int, pid: int, connections: int, seconds: float, qos: int) -> dict[str, Any]:
    arguments = {"port": port, "connections": connections, "seconds": seconds, "qos": qos}
    worker = Worker(__name__, "load", **arguments)
    try:
        worker.ready()
        before_s = cpu_s(pid)
        worker.go()
        found = worker.result()
    finally:
        worker.end()
    used_s = max(cpu_s(pid) - before_s, 1e-3)
    return {
        "connections": connections,
        "publishes_per_s": round(found["done"] / found["elapsed_s"]),
        "server_cores": round(used_s / found["elapsed_s"], 2),
        "per_cpu_s": round(found["done"] / used_s),
    }


def _idle(port: int, pid: int, count: int) -> dict[str, Any]:
    """Memory of a server with many devices that say nothing."""
    before = resident_bytes(pid)
    devices: list[socket.socket] = []
    try:
        devices += (
            mqtt_load.open_client(port, f"idle-{n}", keep_alive_s=3600) for n in range(count)
        )
        after = resident_bytes(pid)
    finally:
        for device in devices:
            device.close()
    return {
        "devices": count,
        "resident_mb": round(after / _MB, 1),
        "kb_per_device": round((after - before) / count / 1024, 1),
    }


# -- in the load generator's process ---------------------------------------------------------------


def load(port: int, connections: int, seconds: float, qos: int) -> dict[str, float]:
    """Publish for some time."""
    return mqtt_load.measure(port, connections, seconds, _SIZE, _WINDOW, qos)


def latency(port: int, count: int) -> dict[str, Any]:
    """Milliseconds from a publisher to a subscriber, QoS 1, one message at a time."""
    publisher = mqtt_load.open_client(port, "latency-out")
    subscriber = mqtt_load.open_client(port, "latency-in")
    decoder = Decoder(V311)
    subscriber.sendall(encode(p.Subscribe(1, [p.Filter("bench/latency", 1)]), V311))
    _next(subscriber, decoder, p.SubAck)
    took_ms = []
    for number in range(1, count + 1):
        began_s = time.perf_counter()
        publisher.sendall(encode(p.Publish("bench/latency", b"x" * _SIZE, 1, number), V311))
        message = _next(subscriber, decoder, p.Publish)
        took_ms.append((time.perf_counter() - began_s) * 1000)
        subscriber.sendall(encode(p.PubAck(message.packet_id), V311))
        publisher.recv(64)
        time.sleep(_PAUSE_S)
    publisher.close()
    subscriber.close()
    cuts = quantiles(took_ms, n=100)
    return {"messages": count, "p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}


def _next(client: socket.socket, decoder: Decoder, kind: type) -> Any:
    while True:
        for packet in decoder.feed(client.recv(1 << 16)):
            if isinstance(packet, kind):
                return packet
