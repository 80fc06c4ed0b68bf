"""Figures of the benchmarks, drawn from what their `run` answers (T4.5, B6, M7).

Each function writes one PNG. matplotlib is needed only here and only when something is drawn:
`pip install 'ringdove[plots]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Row = dict[str, Any]

_PANEL_INCHES = (5.6, 4.2)
_DOTS_PER_INCH = 120
MARKERS = "osD^vPX*"
#: The document's methods get the same colours in every panel.
_COLOURS = {"poll": "C3", "monitor": "C1", "retry": "C0", "wake": "C2"}


def plot_load(result: dict[str, Any], path: Path) -> None:
    """Response time against offered load, beside the M/M/1 curve; one panel per durability."""
    groups = grouped(result["load"], "durability")
    figure, panels = figure_of(len(groups), "Response time of single sends (2 KB)")
    for axes, (durability, rows) in zip(panels, groups.items(), strict=True):
        draw_response(axes, rows)
        rate = result[f"{durability}_saturation_per_s"]
        axes.set_title(f"durability {durability}: saturated at {rate:,}/s")
    save(figure, panels, path)


def draw_response(axes: Axes, rows: list[Row]) -> None:
    """Response time against offered load, beside M/M/1 and the document's bound."""
    x = [100 * row["load_share"] for row in rows]
    for name, label in (("mean_ms", "mean"), ("p50_ms", "p50"), ("p99_ms", "p99")):
        axes.plot(x, [row[name] for row in rows], marker="o", markersize=4, label=label)
    below = [row for row in rows if row["reference_ms"] is not None]
    axes.plot(
        [100 * row["load_share"] for row in below],
        [row["reference_ms"] for row in below],
        "k--",
        label="M/M/1 from the lowest load",
    )
    bound = "the document: 200 ms, below 80 %"
    axes.axhline(200, color="grey", linewidth=0.8, linestyle=":", label=bound)
    axes.axvline(80, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("offered load (% of saturation)")
    axes.set_ylabel("response time (ms)")
    axes.set_yscale("log")


def plot_rds(result: dict[str, Any], path: Path) -> None:
    """Throughput, hit rate, messages per hit, latency, and throughput by pause; a row per mode."""
    modes = grouped(result["rds"], "mode")
    figure, panels = figure_of(5 * len(modes), "Four ways to dequeue (T4.5)", columns=5)
    for at, (mode, rows) in enumerate(modes.items()):
        own = panels[5 * at : 5 * at + 5]
        usual = [row for row in rows if row["pause_ms"] in (None, 100)]
        for axes, (name, label) in zip(own, _RDS_PANELS, strict=False):
            for number, (method, found) in enumerate(grouped(usual, "method").items()):
                line(axes, found, "lambda_per_s", name, method, number)
            axes.set_title(f"{mode}: {label}")
            axes.set_xlabel("receives asked per back end, λ (1/s)")
            axes.set_ylabel(label)
            axes.set_xscale("log")
        own[3].set_yscale("log")
        _plot_pauses(own[4], mode, rows)
    save(figure, panels, path)


_RDS_PANELS = (
    ("delivered_per_s", "delivered (messages/s)"),
    ("hit_rate", "hit rate (hits/visits)"),
    ("messages_per_hit", "messages per hit"),
    ("p50_ms", "delivery latency, median (ms)"),
)


def _plot_pauses(axes: Axes, mode: str, rows: list[Row]) -> None:
    """Throughput of retry by its pause, beside the methods that have none."""
    top = max(row["lambda_per_s"] for row in rows)
    rows = [row for row in rows if row["lambda_per_s"] == top]
    retry = sorted((r for r in rows if r["method"] == "retry"), key=lambda r: int(r["pause_ms"]))
    line(axes, retry, "pause_ms", "delivered_per_s", "retry", 2)
    for row in rows:
        if row["method"] in ("poll", "wake"):
            colour = _COLOURS[row["method"]]
            axes.axhline(row["delivered_per_s"], color=colour, ls="--", label=row["method"])
    axes.set_title(f"{mode}: by the pause of retry, λ = {top}/s")
    axes.set_xlabel("pause of retry (ms)")
    axes.set_ylabel("delivered (messages/s)")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)


def plot_parked(result: dict[str, Any], path: Path) -> None:
    """What waiting receivers cost: processor, memory and latency, against their number."""
    rows = result["parked"]
    figure, panels = figure_of(3, "Receivers that wait")
    cpu, memory, latency = panels
    x = [row["receivers"] for row in rows]
    cpu.plot(x, [100 * row["idle_cpu_share"] for row in rows], marker="o", label="idle server")
    cpu.set_title("processor time while nothing happens")
    cpu.set_ylabel("share of one core (%)")
    memory.plot(x, [row["server_mb"] for row in rows], marker="o", label="growth")
    memory.set_title(f"memory: {rows[-1]['kb_per_receiver']} KB per receiver")
    memory.set_ylabel("growth of the server's memory (MB)")
    for name in ("p50_ms", "p99_ms"):
        latency.plot(x, [row[name] for row in rows], marker="o", label=name.removesuffix("_ms"))
    latency.set_title("from send to a waiting receiver")
    latency.set_ylabel("latency (ms)")
    for axes in panels:
        axes.set_xlabel("receivers waiting")
        axes.set_xscale("log")
    memory.set_yscale("log")
    for axes in (cpu, latency):
        axes.set_ylim(bottom=0)
    save(figure, panels, path)


def plot_e2e(result: dict[str, Any], path: Path) -> None:
    """End-to-end rate against message size, one line per number of producers."""
    groups = grouped(result["e2e"], "durability")
    figure, panels = figure_of(len(groups), "Producers to one consumer, through a server")
    for axes, (durability, rows) in zip(panels, groups.items(), strict=True):
        for number, (producers, found) in enumerate(grouped(rows, "producers").items()):
            label = f"{producers} producer{'s' if producers != 1 else ''}"
            line(axes, found, "size", "messages_per_s", label, number)
        axes.set_title(f"durability {durability}")
        axes.set_xlabel("body (bytes)")
        axes.set_ylabel("messages per second")
        axes.set_xscale("log")
        axes.set_yscale("log")
    save(figure, panels, path)


def plot_latency(result: dict[str, Any], path: Path) -> None:
    """Percentiles of everything that was timed, as bars."""
    rows = result["latency"][::-1]
    figure, [axes] = figure_of(1, "Latency", inches=(9, 1.5 + 0.55 * len(rows)))
    for shift, (name, label) in enumerate(_PERCENTILES.items()):
        y = [at + 0.27 * (1 - shift) for at in range(len(rows))]
        bars = axes.barh(y, [row[name] for row in rows], 0.25, label=label)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=7, padding=2)
    names = [", ".join(filter(None, (row["what"], row["durability"]))) for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylabel("what is timed, and durability")
    axes.set_xlabel("latency (µs)")
    axes.set_xscale("log")
    axes.margins(x=0.1)
    save(figure, [axes], path)


_PERCENTILES = {"p50_us": "p50", "p99_us": "p99", "p999_us": "p99.9"}


def plot_sqs(result: dict[str, Any], path: Path) -> None:
    """Messages per second of each server by kind of request, on a logarithmic scale."""
    rows = result["sqs"]
    figure, [axes] = figure_of(1, f"SQS over {rows[0]['connections']} connections", inches=(8, 3.6))
    names = [name for name in rows[0] if name.endswith("_per_s")]
    for number, row in enumerate(rows):
        x = [at + 0.35 * number for at in range(len(names))]
        bars = axes.bar(x, [row[name] for name in names], 0.33, label=row["server"])
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
    labels = [name.removesuffix("_per_s").replace("_", " ") for name in names]
    axes.set_xticks([at + 0.175 * (len(rows) - 1) for at in range(len(names))], labels)
    axes.set_ylabel("messages per second")
    axes.set_yscale("log")
    axes.margins(y=0.15)
    save(figure, [axes], path)


def plot_mqtt(result: dict[str, Any], path: Path) -> None:
    """Publishes by quality of service, for the same processor time, and by connections."""
    figure, [rates, scaling] = figure_of(2, "MQTT publishes, 100 bytes each", inches=(9, 3.6))
    for number, (server, rows) in enumerate(grouped(result["publish"], "server").items()):
        x = [row["qos"] + 0.35 * number for row in rows]
        bars = rates.bar(x, [row["per_cpu_s"] for row in rows], 0.33, label=server)
        rates.bar_label(bars, fmt="{:,.0f}", fontsize=8, padding=2)
    rates.set_xticks([0.175, 1.175, 2.175], ["QoS 0", "QoS 1", "QoS 2"])
    rates.set_ylabel("per second of the server's processor")
    rates.set_yscale("log")
    rates.margins(y=0.15)
    for server, rows in grouped(result["connections"], "server").items():
        x = [row["connections"] for row in rows]
        scaling.plot(x, [row["publishes_per_s"] for row in rows], marker="o", label=server)
    scaling.set_xscale("log")
    scaling.set_xlabel("connections, QoS 1")
    scaling.set_ylabel("per second")
    scaling.set_ylim(bottom=0)
    save(figure, [rates, scaling], path)


# -- what all figures share -----------------------------------------------------------------------


def grouped(rows: list[Row], name: str) -> dict[Any, list[Row]]:
    """The rows by the value of a column."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return groups


def figure_of(
    count: int, title: str, columns: int = 3, inches: tuple[float, float] = _PANEL_INCHES
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels under one title."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidArgument("Figures need matplotlib: pip install 'ringdove[plots]'.") from error
    columns = min(columns, count)
    lines = -(-count // columns)
    width, height = inches
    figure = Figure((columns * width, lines * height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    return figure, [figure.add_subplot(lines, columns, number + 1) for number in range(count)]


def line(axes: Axes, rows: list[Row], x: str, y: str, label: str, number: int) -> None:
    """One line with a marker of its own, so that it can be told without colours."""
    rows = [row for row in rows if row[y] is not None]
    axes.plot(
        [row[x] for row in rows],
        [row[y] for row in rows],
        marker=MARKERS[number % len(MARKERS)],
        markersize=5,
        color=_COLOURS.get(label, f"C{number}"),
        label=label,
    )


def save(figure: Figure, panels: list[Axes], path: Path) -> None:
    """Write a figure, its panels with grid and legend."""
    for axes in panels:
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=_DOTS_PER_INCH)
