"""Response time against load, and throughput with more nodes and queues, on the fabric (B6).

`curve` is `ringdove bench load` on a server whose queues are on a Redis process: single sends of
2 KB at Poisson times, from 10 to 110 % of what saturates it.

`throughput` is the document's workload: three senders for each queue, each with one send of 2 KB
outstanding, then three receivers for each queue that receive and acknowledge one message at a time.
A node is a Redis master and a server (its controllers) beside it; all servers serve all queues.
With two cores more nodes cannot give more: what scales is the processor time that a message costs
all nodes together, which must stay the same.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from experiments.beside import beside, ratio
from ringdove.bench import load as bench
from ringdove.bench.measure import place, run_loop
from ringdove.bench.processes import Worker, serving, wait_for_go
from ringdove.bench.redis import RedisProcess, joined_nodes
from ringdove.cli.output import watched
from ringdove.client import aio
from ringdove.client.sync import connect
from ringdove.errors import RingdoveError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ringdove.bench.processes import ServerProcess

    Row = dict[str, Any]

NODES = (1, 2, 3)
QUEUES = (20, 100, 400)
#: "receive" includes the acknowledgement.
PHASES = ("send", "receive")
#: The document: response times below this up to 80 % of the load that saturates.
DOCUMENT_MS, DOCUMENT_SHARE = 200, 0.8

_PER_QUEUE = 3
_BODY = bytes(2_048)
_PATIENCE: dict[str, Any] = {"silence_s": 60, "timeout_s": 120}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Both parts; see the module."""
    seconds = 0.4 if quick else 3.0
    options = {"shares": (0.5,), "senders_max": 64} if quick else {"shares": bench.SHARES}
    with place(None) as data, RedisProcess(data) as node, _server(data, node.url) as server:
        curve, told = bench.curve(server, seconds=seconds, copies=1, **options)
    cells = [(nodes, queues) for nodes in NODES for queues in QUEUES]
    if quick:
        cells = [(1, 5)]
    rows = [
        row
        for nodes, queues in watched(cells, "nodes and queues")
        for row in _cell(nodes, queues, seconds)
    ]
    return {"curve": curve, "throughput": rows, "beside": _beside(curve, told, rows), **told}


@contextmanager
def _server(data: Path, url: str) -> Iterator[ServerProcess]:
    with serving(data / "unused", "--store", url) as server:
        yield server


def _cell(nodes: int, queues: int, seconds: float) -> list[Row]:
    """Rates of sending and of receiving with so many nodes and queues."""
    with place(None) as data, joined_nodes(data, nodes) as redis, ExitStack() as stack:
        seeds = ",".join(f"127.0.0.1:{node.port}" for node in redis)
        servers = [
            stack.enter_context(_server(data, f"redis://{seeds}?copies=1")) for _ in range(nodes)
        ]
        with connect(servers[0].url, **_PATIENCE) as connection:
            for queue in range(queues):
                connection.create_queue(_name(queue), stripes=1)
        return [
            {
                "phase": phase,
                "nodes": nodes,
                "queues": queues,
                **_phase(phase, [*servers, *redis], [server.url for server in servers],
                         queues, seconds),
            }
            for phase in PHASES
        ]  # fmt: skip


def _phase(
    phase: str,
    processes: Sequence[ServerProcess | RedisProcess],
    urls: list[str],
    queues: int,
    seconds: float,
) -> Row:
    """One phase from a process of its own, and what it cost those of the nodes."""
    worker = Worker(__name__, "work", phase=phase, urls=urls, queues=queues, seconds=seconds)
    try:
        worker.ready()
        cpu_s = -sum(process.cpu_s() for process in processes)
        worker.go()
        found = worker.result()
        cpu_s += sum(process.cpu_s() for process in processes)
    finally:
        worker.end()
    return {
        "per_s": round(found["done"] / found["seconds"]),
        "failed": found["failed"],
        "mean_ms": found["mean_ms"],
        "nodes_us_each": round(1e6 * cpu_s / max(1, found["done"])),
        "nodes_cpu_share": round(cpu_s / found["seconds"], 2),
        "client_cpu_share": found["cpu_share"],
    }


def _name(queue: int) -> str:
    return f"load-{queue}"


def _beside(curve: list[Row], told: dict[str, Any], rows: list[Row]) -> list[Row]:
    """What the document reports, and what was found."""
    calm = [row["mean_ms"] for row in curve if row["load_share"] <= DOCUMENT_SHARE]
    by_cell = {(row["phase"], row["nodes"], row["queues"]): row for row in rows}
    most = max(row["nodes"] for row in rows)
    few, many = min(row["queues"] for row in rows), max(row["queues"] for row in rows)
    compared = [
        beside("mean response time up to 80 % load (ms)", f"below {DOCUMENT_MS}", max(calm)),
        beside("messages lost", 0, told["lost"]),
    ]
    for phase in PHASES:
        one, all_nodes = by_cell[phase, 1, many], by_cell[phase, most, many]
        spent = ratio(all_nodes["nodes_us_each"], one["nodes_us_each"])
        compared.append(beside(f"CPU of the nodes for a {phase}, {most} nodes over 1", 1.0, spent))
        rates = ratio(one["per_s"], by_cell[phase, 1, few]["per_s"])
        compared.append(
            beside(f"{phase} rate of 1 node, {many} queues over {few}", "not less", rates)
        )
    return compared


# -- in the process of the clients ----------------------------------------------------------------


def work(phase: str, urls: list[str], queues: int, seconds: float) -> dict[str, Any]:
    """Three senders or receivers for each queue, for a while."""
    figures: dict[str, Any] = run_loop(_work(phase, urls, queues, seconds))
    return figures


async def _work(phase: str, urls: list[str], queues: int, seconds: float) -> dict[str, Any]:
    connections = [await aio.connect(url, **_PATIENCE).open() for url in urls]
    handles = [connections[at % len(urls)].queue(_name(at)) for at in range(queues)]
    for handle in handles:
        await handle.info()
    act = _send if phase == "send" else _receive
    took_s: list[float] = []
    failed = 0

    async def client(handle: aio.Queue, until_s: float) -> None:
        nonlocal failed
        while (now_s := time.perf_counter()) < until_s:
            try:
                if not await act(handle):
                    return
            except RingdoveError:  # An overloaded store gives up; so may a receiver, for a while.
                failed += 1
            else:
                took_s.append(time.perf_counter() - now_s)

    await asyncio.to_thread(wait_for_go)
    cpu_s, began_s = -time.process_time(), time.perf_counter()
    until_s = began_s + seconds
    await asyncio.gather(*(client(handle, until_s) for handle in handles * _PER_QUEUE))
    elapsed_s = time.perf_counter() - began_s
    cpu_s += time.process_time()
    for connection in connections:
        await connection.close()
    return {
        "done": len(took_s),
        "failed": failed,
        "seconds": elapsed_s,
        "mean_ms": round(1e3 * sum(took_s) / max(1, len(took_s)), 1),
        "cpu_share": round(cpu_s / elapsed_s, 2),
    }


async def _send(queue: aio.Queue) -> bool:
    await queue.send(_BODY)
    return True


async def _receive(queue: aio.Queue) -> bool:
    """Receive a message and acknowledge it; False when there is none."""
    batch = await queue.receive(1)
    if batch:
        await batch.ack()
    return bool(batch)


# -- the picture ----------------------------------------------------------------------------------


def plot(result: dict[str, Any], path: Path) -> None:
    """Response time against load; rates and what a message costs, by nodes and queues."""
    from ringdove.bench.plots import draw_response, figure_of, grouped, line, save

    figure, panels = figure_of(5, "Load on the fabric (B6)")
    draw_response(panels[0], result["curve"])
    panels[0].set_title(f"single sends: saturated at {result['saturation_per_s']:,}/s")
    for at, (phase, of_phase) in enumerate(grouped(result["throughput"], "phase").items()):
        for axes, (name, label) in zip(panels[1 + 2 * at : 3 + 2 * at], _PANELS, strict=True):
            for number, (queues, rows) in enumerate(grouped(of_phase, "queues").items()):
                line(axes, rows, "nodes", name, f"{queues} queues", number)
            axes.set_title(f"{phase}: {label}")
            axes.set_xlabel("nodes (a Redis master and a server each), on 2 cores")
            axes.set_ylabel(label)
            axes.set_xticks([row["nodes"] for row in rows])
            axes.set_ylim(bottom=0)
    save(figure, panels, path)


_PANELS = (
    ("per_s", "messages per second"),
    ("nodes_us_each", "CPU of all nodes for a message (µs)"),
)
