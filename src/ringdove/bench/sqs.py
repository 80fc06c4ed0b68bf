"""`ringdove bench sqs`: the SQS dialect under many connections, beside moto's server (B1).

The same load generator, in a process of its own, asks both servers for the same: single sends,
batches of ten, and the cycle of receiving and deleting one message. Ringdove syncs every send to
disk before it answers; moto keeps everything in memory. Then, of Ringdove alone: what two thousand
parked long polls cost, and how fast a FIFO queue is with few and with very many messages waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.bench import http_load
from ringdove.bench.measure import OTHER_FILES, open_files, place, run_loop
from ringdove.bench.processes import Worker, serving, wait_for_go
from ringdove.client.outgoing import NewMessage
from ringdove.client.sync import connect
from ringdove.cluster.processes import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ringdove.bench.http_load import HttpConnection
    from ringdove.bench.processes import ServerProcess

_SIZE = 100
_SMALL, _LARGE = 200, 200_000
#: Signed by nobody: both servers take it while no account exists.
_AUTH = (
    b"Authorization: AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sqs/aws4_request, "
    b"SignedHeaders=host, Signature=0\r\n"
)


def run(
    directory: Path | None,
    connections: int = 100,
    seconds: float = 5,
    parked: int = 2_000,
    *,
    quick: bool = False,
) -> dict[str, Any]:
    """All figures; see the module."""
    if quick:
        seconds, parked = min(seconds, 1), min(parked, 200)
    rows = []
    with place(directory) as data, open_files(parked + OTHER_FILES):
        with serving(data / "queues", http=True) as server:
            rows.append({"server": "ringdove", **_rates(server.http_port, connections, seconds)})
        if importlib.util.find_spec("moto") is not None:
            with _moto() as port:
                rows.append({"server": "moto", **_rates(port, connections, seconds)})
        with serving(data / "parked", http=True) as server:
            waiting = _parked(server, parked, seconds, wait_s=4 if quick else 20)
        with serving(data / "fifo", http=True) as server:
            fifo = _fifo(server, _LARGE // 10 if quick else _LARGE, 3 if quick else 15)
    found: dict[str, Any] = {"sqs": rows, "parked": [waiting], "fifo": fifo}
    found |= {name: rows[0][name] for name in rows[0] if name.endswith("_per_s")}
    found["fifo_large_over_small"] = round(fifo[1]["messages_per_s"] / fifo[0]["messages_per_s"], 2)
    if len(rows) > 1:
        for name in ("send", "batch_messages", "receive_delete"):
            ours, theirs = (row[f"{name}_per_s"] for row in rows)
            found[f"{name}_over_moto"] = round(ours / theirs, 1)
    return found


# -- servers --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _moto() -> Iterator[int]:
    """Moto's server; answers its port."""
    [port] = free_ports(1, "127.0.0.1")
    process = subprocess.Popen(  # noqa: S603  a program that this benchmark has asked for
        [sys.executable, "-c", "from moto.server import main; main()", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def _rates(port: int, connections: int, seconds: float) -> dict[str, Any]:
    worker = Worker(__name__, "load", port=port, connections=connections, seconds=seconds)
    try:
        found: dict[str, Any] = worker.result()
    finally:
        worker.end()
    return found


# -- in the load generator's process --------------------------------------------------------------


def load(port: int, connections: int, seconds: float) -> dict[str, Any]:
    """Sends, batches, and the cycle of receive and delete."""
    found: dict[str, Any] = run_loop(_load(port, connections, seconds))
    return found


async def _load(port: int, connections: int, seconds: float) -> dict[str, Any]:
    first = await http_load.connect(port)
    url = await _create(first, "bench")
    body = "x" * _SIZE
    single = msgspec.json.encode({"QueueUrl": url, "MessageBody": body})
    entries = [{"Id": str(number), "MessageBody": body} for number in range(10)]
    batch = msgspec.json.encode({"QueueUrl": url, "Entries": entries})

    async def send(connection: HttpConnection) -> int:
        await _asked(connection, "SendMessage", single)
        return 1

    async def send_batch(connection: HttpConnection) -> int:
        await _asked(connection, "SendMessageBatch", batch)
        return len(entries)

    async def receive_delete(connection: HttpConnection) -> int:
        return await _receive_delete(connection, url, 1)

    found = {"connections": connections}
    for name, work in (
        ("send_per_s", send),
        ("receive_delete_per_s", receive_delete),
        ("batch_messages_per_s", send_batch),
    ):
        found[name] = round(await http_load.measure(port, connections, seconds, work))
    return found


async def _create(connection: HttpConnection, name: str, **attributes: str) -> str:
    ask = msgspec.json.encode({"QueueName": name, "Attributes": attributes})
    url: str = (await _asked(connection, "CreateQueue", ask))["QueueUrl"]
    return url


async def _asked(connection: HttpConnection, action: str, body: bytes) -> Any:
    status, answer = await connection.ask(action, body, _AUTH)
    if status != 200:
        raise RuntimeError(f"{action} was answered with {status}: {answer.decode()[:200]}")
    return msgspec.json.decode(answer) if answer else None


async def _receive_delete(connection: HttpConnection, url: str, count: int) -> int:
    ask = msgspec.json.encode({"QueueUrl": url, "MaxNumberOfMessages": count})
    messages = (await _asked(connection, "ReceiveMessage", ask)).get("Messages", [])
    if len(messages) == 1:
        held = {"QueueUrl": url, "ReceiptHandle": messages[0]["ReceiptHandle"]}
        await _asked(connection, "DeleteMessage", msgspec.json.encode(held))
    elif messages:
        entries = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
            for number, message in enumerate(messages)
        ]
        batch = msgspec.json.encode({"QueueUrl": url, "Entries": entries})
        await _asked(connection, "DeleteMessageBatch", batch)
    return len(messages)


def park(port: int, count: int, wait_s: int) -> int:
    """Park so many long polls, each on its own connection, until they are answered."""

    async def work() -> int:
        first = await http_load.connect(port)
        url = await _create(first, "parked")
        ask = msgspec.json.encode({"QueueUrl": url, "WaitTimeSeconds": wait_s})
        connections = [await http_load.connect(port) for _ in range(count)]
        polls = [
            asyncio.ensure_future(_asked(connection, "ReceiveMessage", ask))
            for connection in connections
        ]
        await _asked(first, "GetQueueUrl", msgspec.json.encode({"QueueName": "parked"}))
        await asyncio.sleep(1)
        wait_for_go()
        answers = await asyncio.gather(*polls)
        return len(answers)

    done: int = run_loop(work())
    return done


def _parked(server: ServerProcess, count: int, seconds: float, wait_s: int) -> dict[str, Any]:
    _rates(server.http_port, 10, 0.5)  # What every server has done before it is idle.
    before_bytes = server.resident_bytes()
    worker = Worker(__name__, "park", port=server.http_port, count=count, wait_s=wait_s)
    try:
        worker.ready()
        grown_bytes = server.resident_bytes() - before_bytes
        cpu_s, began_s = server.cpu_s(), time.perf_counter()
        time.sleep(seconds)
        share = (server.cpu_s() - cpu_s) / (time.perf_counter() - began_s)
        worker.go()
        answered = worker.result()
    finally:
        worker.end()
    return {
        "long_polls": count,
        "server_mb": round(grown_bytes / 1e6, 1),
        "kb_each": round(grown_bytes / 1e3 / count, 1),
        "idle_cpu_share": round(share, 4),
        "answered": answered,
    }


def _fifo(server: ServerProcess, waiting: int, rounds: int) -> list[dict[str, Any]]:
    """Receive and delete with few and with many messages waiting, in groups of ten, in turns."""
    names = [f"fifo-{count}.fifo" for count in (_SMALL, waiting)]
    arguments: dict[str, Any] = {"port": server.http_port, "names": names}
    _finish(Worker(__name__, "make_fifos", **arguments))
    with connect(server.url) as connection:
        queue = connection.queue(names[1])
        for start in range(0, waiting, 1_000):
            queue.send_many(
                NewMessage(b"x" * _SIZE, b"group-%d" % (number // 10))
                for number in range(start, min(start + 1_000, waiting))
            )
    rates = _finish(Worker(__name__, "drain_fifos", **arguments, rounds=rounds))
    return [
        {"waiting": count, "rounds": rounds, "messages_per_s": rate}
        for count, rate in zip((_SMALL, waiting), rates, strict=True)
    ]


def _finish(worker: Worker) -> Any:
    try:
        return worker.result()
    finally:
        worker.end()


def make_fifos(port: int, names: list[str]) -> None:
    """Make FIFO queues."""

    async def work() -> None:
        connection = await http_load.connect(port)
        for name in names:
            await _create(connection, name, FifoQueue="true", ContentBasedDeduplication="true")

    run_loop(work())


def drain_fifos(port: int, names: list[str], rounds: int) -> list[int]:
    """Fill the small queue and drain it, drain as much of the other; medians of messages/s."""

    async def work() -> list[int]:
        connection = await http_load.connect(port)
        urls = []
        for name in names:
            ask = msgspec.json.encode({"QueueName": name})
            urls.append((await _asked(connection, "GetQueueUrl", ask))["QueueUrl"])
        rates: list[list[float]] = [[], []]
        for number in range(rounds):
            await _fill(connection, urls[0], number)
            for at in (0, 1) if number % 2 else (1, 0):
                began_s = time.perf_counter()
                done = 0
                for _ in range(_SMALL // 10):
                    done += await _receive_delete(connection, urls[at], 10)
                rates[at].append(done / (time.perf_counter() - began_s))
        return [round(median(found)) for found in rates]

    found: list[int] = run_loop(work())
    return found


async def _fill(connection: HttpConnection, url: str, number: int) -> None:
    for group in range(_SMALL // 10):
        entries = [
            {
                "Id": str(at),
                "MessageBody": f"{number}-{group}-{at}".ljust(_SIZE),
                "MessageGroupId": f"group-{group}",
            }
            for at in range(10)
        ]
        batch = msgspec.json.encode({"QueueUrl": url, "Entries": entries})
        await _asked(connection, "SendMessageBatch", batch)
