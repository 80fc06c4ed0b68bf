"""The queue-type KVS against a plain one, against memcached, and with more queues (T2.2 to T2.6).

One Redis process with our library is the queue-type KVS. All clients are raw sockets with prebuilt
requests (`pipelined.py`), so that servers are measured; everything is measured in turns.

    simple      0.1 KB; the baseline of the thesis (`simple_kvs.py`) with a request outstanding on
                each of 1 to 100 connections, against append, lease and acknowledge with as many
                in a batch over one pipelined connection
    memcached   0.4 to 20 KB; set and delete against append, lease and acknowledge, with the same
                number of messages outstanding; with the bodies read back; and what Redis does
                with the same blocks without our functions
    depth       the same at 0.4 KB with more and more messages outstanding
    queues      0.1 KB; 1 to 8 stripes in one process, and in a process each

"Joined" is what the enqueue controller makes of sends that wait: one block, one call (T2.3).
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments import memcached, simple_kvs
from experiments.beside import beside, ratio
from experiments.pipelined import Server, StripeRequests, bodies, measure
from experiments.rounds import in_turns
from ringdove import limits
from ringdove.bench.measure import place
from ringdove.bench.redis import single_nodes
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from experiments.rounds import Cell
    from ringdove.bench.redis import RedisProcess

    Row = dict[str, Any]

CONNECTIONS = (1, 2, 5, 10, 20, 50, 100)
SIZES = (400, 1_000, 2_000, 4_000, 10_000, 20_000)
DEPTHS = (1, 10, 100, 500, 1_000, 2_000)
QUEUES = (1, 2, 4, 8)
#: What the thesis reports as a multiple of memcached, by size.
DOCUMENT_OVER_MEMCACHED = {400: 2.0, 1_000: 1.4}

_SMALL = 100
_JOINED = 100
#: The most messages that are joined here; by size fewer, so that a block has its usual bytes.
_JOINED_MAX = 2_000
#: Cycles of single calls that are sent together.
_SINGLES = 100
_MEMCACHED_CONNECTIONS = 4

_OURS, _OURS_SINGLE = "Ringdove, joined", "Ringdove, one message per call"
_OURS_READ, _THEIRS_READ = "Ringdove, joined, bodies read", "memcached, set, get, delete"
_BARE = "Redis, the same blocks without functions"
_THEIRS, _THEIRS_MANY = "memcached, 1 connection", "memcached, 4 connections"


def run(*, quick: bool = False) -> dict[str, Any]:
    """All figures; see the module."""
    seconds, rounds = (0.05, 1) if quick else (0.5, 7)
    queues = QUEUES[:2] if quick else QUEUES
    with (
        place(None) as data,
        single_nodes(data, queues[-1]) as nodes,
        memcached.memcached() as other,
    ):
        work = _Work(nodes, other, seconds, rounds)
        result = {
            "simple": work.simple(CONNECTIONS[:2] if quick else CONNECTIONS),
            "memcached": work.memcached(SIZES[:2] if quick else SIZES),
            "depth": work.depth(DEPTHS[1:3] if quick else DEPTHS),
            "queues": work.queues(queues),
        }
    return {**result, "beside": _beside(result)}


class _Work:
    """Servers, and how long each is measured."""

    def __init__(
        self, nodes: list[RedisProcess], other: Server, seconds: float, rounds: int
    ) -> None:
        self._nodes = nodes
        self._servers = [Server(node.port, node.cpu_s) for node in nodes]
        self._other = other
        self._seconds = seconds
        self._rounds = rounds
        self._stripes = itertools.count(1)

    def simple(self, connections: tuple[int, ...]) -> list[Row]:
        """Transactions per second of the baseline and of ours."""
        [body] = bodies(_SMALL, 1)
        cells: list[Cell] = []
        for count in connections:
            for lock in simple_kvs.LOCKS:
                work = partial(
                    simple_kvs.measure, self._servers[0], count, lock, body, self._seconds
                )
                cells.append(({"method": f"simple, {lock}", "outstanding": count}, work))
            single, joined = self._ours(_SMALL, 1, cycles=count), self._ours(_SMALL, count)
            cells.append(({"method": _OURS_SINGLE, "outstanding": count}, single))
            cells.append(({"method": _OURS, "outstanding": count}, joined))
        return in_turns("simple KVS", cells, self._rounds)

    def memcached(self, sizes: tuple[int, ...]) -> list[Row]:
        """Messages per second by size."""
        return in_turns(
            "memcached",
            [cell for size in sizes for cell in self._against(size, _joined(size))],
            self._rounds,
        )

    def depth(self, depths: tuple[int, ...]) -> list[Row]:
        """Messages per second at the smallest size, by messages in a batch."""
        cells: list[Cell] = []
        for count in depths:
            for method, work in (
                (_THEIRS, self._theirs(SIZES[0], count)),
                (_OURS, self._ours(SIZES[0], count)),
            ):
                cells.append(({"batch": count, "method": method}, work))
        return in_turns("depth", cells, self._rounds)

    def queues(self, queues: tuple[int, ...]) -> list[Row]:
        """Messages per second by number of stripes, in one process and in one each."""
        cells: list[Cell] = []
        for method, joined, cycles in ((_OURS_SINGLE, 1, _SINGLES), (_OURS, _JOINED, 1)):
            for layout, own in (("one process", False), ("a process each", True)):
                for count in queues:
                    work = self._ours(_SMALL, joined, count, count if own else 1, cycles=cycles)
                    cells.append(({"method": method, "layout": layout, "queues": count}, work))
        return in_turns("queues", cells, self._rounds)

    def _against(self, size: int, count: int) -> list[Cell]:
        methods = {
            _THEIRS: self._theirs(size, count),
            _THEIRS_MANY: self._theirs(size, count, _MEMCACHED_CONNECTIONS),
            _OURS: self._ours(size, count),
            _OURS_SINGLE: self._ours(size, 1, cycles=_SINGLES),
            _BARE: self._bare(size, count),
            _THEIRS_READ: self._theirs(size, count, reading=True),
            _OURS_READ: self._ours(size, count, reading=True),
        }
        return [
            ({"size": size, "batch": count, "method": method}, work)
            for method, work in methods.items()
        ]

    def _theirs(self, size: int, count: int, connections: int = 1, *, reading: bool = False) -> Any:
        streams = [
            memcached.cycles(size, max(1, count // connections), name=f"{at}-", reading=reading)
            for at in range(connections)
        ]
        return lambda: measure([self._other], streams, self._seconds)

    def _ours(
        self,
        size: int,
        joined: int,
        queues: int = 1,
        processes: int = 1,
        *,
        cycles: int = 1,
        reading: bool = False,
    ) -> Any:
        streams = [
            self._requests(size, joined, at % processes).cycles(cycles, reading=reading)
            for at in range(queues)
        ]
        return lambda: measure(self._servers[:processes], streams, self._seconds)

    def _bare(self, size: int, count: int) -> Any:
        stream = self._requests(size, count).bare()
        return lambda: measure(self._servers[:1], [stream], self._seconds)

    def _requests(self, size: int, joined: int, process: int = 0) -> StripeRequests:
        stripe = StripeId(next(self._stripes), 0, 0)
        return StripeRequests(self._nodes[process].url, stripe, size, joined)


def _joined(size: int) -> int:
    """How many messages of a size make a usual block."""
    return min(_JOINED_MAX, limits.BLOCK_BYTES_TARGET // size)


def _beside(result: dict[str, list[Row]]) -> list[Row]:
    """What the thesis reports, and what was found."""
    simple = {(row["method"], row["outstanding"]): row["per_s"] for row in result["simple"]}
    most = max(outstanding for _, outstanding in simple)
    plain = {key: rate for key, rate in simple.items() if key[0].startswith("simple")}
    at_most = max(rate for (_, outstanding), rate in plain.items() if outstanding == most)
    rows = [
        beside(f"{ours}, over simple KVS {label}", 3.8, ratio(simple[ours, most], theirs))
        for ours in (_OURS, _OURS_SINGLE)
        for label, theirs in (
            (f"with {most} outstanding", at_most),
            ("at its best", max(plain.values())),
        )
    ]
    by_size = {(row["size"], row["method"]): row for row in result["memcached"]}
    for size, document in DOCUMENT_OVER_MEMCACHED.items():
        ours = by_size[size, _OURS]
        for method in (_THEIRS, _THEIRS_MANY):
            theirs = by_size[size, method]
            rows.append(
                beside(
                    f"joined over {method}, {size / 1000} KB",
                    document,
                    ratio(ours["per_s"], theirs["per_s"]),
                )
            )
        spent = ratio(ours["per_server_cpu_s"], by_size[size, _THEIRS]["per_server_cpu_s"])
        rows.append(beside(f"the same per second of server CPU, {size / 1000} KB", document, spent))
    by_queues = {
        (row["layout"], row["queues"]): row["per_s"]
        for row in result["queues"]
        if row["method"] == _OURS_SINGLE
    }
    for layout in ("a process each", "one process"):
        twice = ratio(by_queues[layout, 2], by_queues[layout, 1])
        rows.append(beside(f"two queues over one, {layout}", 2.0, twice))
    return [*rows, _at_depth(result["depth"])]


def _at_depth(rows: list[Row]) -> Row:
    """The comparison with memcached at the depth where it is best for us."""
    found = {(row["batch"], row["method"]): row["per_s"] for row in rows}
    times = {batch: found[batch, _OURS] / found[batch, _THEIRS] for batch, _ in found}
    best = max(times, key=lambda batch: times[batch])
    what = f"joined over {_THEIRS}, 0.4 KB, {best} in a batch"
    return beside(what, DOCUMENT_OVER_MEMCACHED[SIZES[0]], round(times[best], 2))


# -- the picture ----------------------------------------------------------------------------------


def plot(result: dict[str, Any], path: Path) -> None:
    """Six panels: the three comparisons, the multiples of memcached, and who was busy."""
    from ringdove.bench.plots import figure_of, save

    figure, panels = figure_of(6, "The queue-type KVS (T2.2, T2.5, T2.6)")
    _plot_simple(panels[0], result["simple"])
    _plot_sizes(panels[1], result["memcached"])
    _plot_multiples(panels[2], result["memcached"])
    _plot_depth(panels[3], result["depth"])
    _plot_queues(panels[4], result["queues"])
    _plot_busy(panels[5], result["memcached"])
    save(figure, panels, path)


def _plot_simple(axes: Axes, rows: list[Row]) -> None:
    from ringdove.bench.plots import grouped, line

    for number, (method, found) in enumerate(grouped(rows, "method").items()):
        line(axes, found, "outstanding", "per_s", method, number)
    axes.set_title("0.1 KB: against the simple method")
    axes.set_xlabel("requests outstanding (connections, or in a batch)")
    axes.set_ylabel("transactions per second")
    axes.set_xscale("log")
    axes.set_yscale("log")


def _plot_sizes(axes: Axes, rows: list[Row]) -> None:
    from ringdove.bench.plots import grouped, line

    rows = [row for row in rows if row["method"] not in (_OURS_READ, _THEIRS_READ)]
    for number, (method, found) in enumerate(grouped(rows, "method").items()):
        line(axes, found, "size", "per_s", method, number)
    axes.set_ylim(bottom=min(row["per_s"] for row in rows) / 30)  # The legend needs room.
    axes.set_title("against memcached")
    axes.set_xlabel("body (bytes)")
    axes.set_ylabel("messages per second")
    axes.set_xscale("log")
    axes.set_yscale("log")


def _plot_multiples(axes: Axes, rows: list[Row]) -> None:
    from ringdove.bench.plots import line

    for number, (ours, theirs, label) in enumerate(
        (
            (_OURS, _THEIRS, "joined over set and delete"),
            (_OURS_READ, _THEIRS_READ, "the same, bodies read back"),
            (_OURS_SINGLE, _THEIRS, "one message per call over set and delete"),
            (_BARE, _THEIRS, "the same blocks without functions"),
        )
    ):
        line(axes, _multiples(rows, ours, theirs), "size", "times", label, number)
    axes.plot(
        list(DOCUMENT_OVER_MEMCACHED), list(DOCUMENT_OVER_MEMCACHED.values()), "k*", markersize=11,
        label="the document",
    )  # fmt: skip
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_title("per server CPU, as a multiple of memcached")
    axes.set_xlabel("body (bytes)")
    axes.set_ylabel("times memcached, one connection each")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(top=300)  # The legend needs room.


def _plot_depth(axes: Axes, rows: list[Row]) -> None:
    from ringdove.bench.plots import grouped, line

    for number, (method, found) in enumerate(grouped(rows, "method").items()):
        line(axes, found, "batch", "per_s", method, number)
    axes.set_title("0.4 KB: by messages sent together")
    axes.set_xlabel("messages in a batch")
    axes.set_ylabel("messages per second")
    axes.set_xscale("log")
    axes.set_yscale("log")


def _plot_queues(axes: Axes, rows: list[Row]) -> None:
    from ringdove.bench.plots import grouped, line

    number = 0
    for method, of_method in grouped(rows, "method").items():
        for layout, found in grouped(of_method, "layout").items():
            first = found[0]["per_s"]
            told = [{**row, "times": row["per_s"] / first} for row in found]
            line(axes, told, "queues", "times", f"{method}, {layout}", number)
            number += 1
    axes.plot([1, 2], [1, 2], "k*", markersize=11, label="the document")
    axes.set_title("0.1 KB: more queues, on 2 cores")
    axes.set_xlabel("queues (stripes)")
    axes.set_ylabel("throughput over that of one queue")
    axes.set_ylim(bottom=0)


def _plot_busy(axes: Axes, rows: list[Row]) -> None:
    found = [row for row in rows if row["size"] == SIZES[0]]
    for shift, (name, label) in enumerate(
        (("server_cpu_share", "server"), ("client_cpu_share", "client"))
    ):
        at = [position + 0.4 * shift for position in range(len(found))]
        bars = axes.barh(at, [row[name] for row in found], 0.38, label=label)
        axes.bar_label(bars, fmt="{:.2f}", fontsize=8, padding=2)
    names = [row["method"].replace(", ", ",\n", 1) for row in found]
    axes.set_yticks([at + 0.2 for at in range(len(found))], names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_title("0.4 KB: who was busy")
    axes.set_xlabel("cores")


def _multiples(rows: list[Row], ours: str, theirs: str) -> list[Row]:
    found = {(row["size"], row["method"]): row["per_server_cpu_s"] for row in rows}
    sizes = dict.fromkeys(row["size"] for row in rows)
    return [{"size": size, "times": found[size, ours] / found[size, theirs]} for size in sizes]
