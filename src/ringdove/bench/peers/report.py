"""What a run says: ratios first, like beside like; as rows, as Markdown and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringdove.bench.peers.workloads import FIGURES, WORKLOADS
from ringdove.bench.plots import MARKERS, figure_of, grouped, save
from ringdove.cli.output import tables
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.bench.peers.workloads import Row

#: Ringdove's title in each family.
OURS = {"queue": "Ringdove", "sqs": "Ringdove SQS"}


def ratios(figures: list[Row]) -> list[Row]:
    """How many times better Ringdove is than each peer, in the same style and durability.

    More than 1 is Ringdove ahead, whether more of a figure or less of it is better. Where Ringdove
    has no way of that style in a workload, its best one stands beside the peer.
    """
    found = []
    for theirs in figures:
        if theirs["peer"] in OURS.values():
            continue
        ours = _beside(theirs, figures)
        for name, figure in FIGURES.items():
            if theirs.get(name) and ours and ours.get(name):
                own, other = ours[name], theirs[name]
                times = own / other if figure.more_is_better else other / own
                found.append({
                    "workload": theirs["workload"], "durability": theirs["durability"],
                    "peer": theirs["peer"], "client": theirs["client"], "style": theirs["style"],
                    "figure": figure.title, "unit": figure.unit,
                    "ringdove": own, "theirs": other, "times": _short(times),
                })  # fmt: skip
    return found


def _beside(theirs: Row, figures: list[Row]) -> Row | None:
    """Ringdove's row that a peer's row is compared with."""
    own = [
        row
        for row in figures
        if row["peer"] == OURS[theirs["family"]]
        and row["workload"] == theirs["workload"]
        and row["durability"] == theirs["durability"]
    ]
    same = [row for row in own if row["style"] == theirs["style"]]
    return next(iter(same or own), None)


def _short(value: float) -> float:
    return round(value, 2) if value < 10 else round(value)


# -- for people -----------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> None:
    """Print everything as tables, ratios first."""
    tables({
        "times better than each peer": _table(result["ratios"]),
        "all figures": [_told(row) for row in result["figures"]],
        **{name: result[name] for name in ("peers", "ways", "left_out")},
    })  # fmt: skip


def _table(rows: list[Row]) -> list[Row]:
    """One row for a peer's way and durability, one column for a figure of a workload."""
    columns = list(dict.fromkeys(_column(row) for row in rows))
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        who = (row["peer"], row["client"], row["style"], row["durability"])
        cells = found.setdefault(who, {
            **dict(zip(("peer", "client", "style", "durability"), who, strict=True)),
            **dict.fromkeys(columns),
        })  # fmt: skip
        cells[_column(row)] = row["times"]
    return list(found.values())


def _column(row: Row) -> str:
    return row["workload"] if row["figure"] == "rate" else f"{row['workload']} {row['figure']}"


def _told(row: Row) -> Row:
    """A row of figures with its units."""
    figures = [
        f"{figure.title} {_number(row[name])} {figure.unit}".replace(" /s", "/s")
        for name, figure in FIGURES.items()
        if row.get(name) is not None
    ]
    names = ("workload", "durability", "peer", "client", "messages", "lost")
    return {name: row.get(name) for name in names} | {"figures": ", ".join(figures)}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def markdown(result: dict[str, Any]) -> str:
    """The page docs/peers-results.md."""
    rounds, seconds = result["rounds"], result["seconds"]
    parts = [
        "# Beside other brokers: figures",
        "Written by `ringdove bench peers --markdown`. [peers.md](peers.md) says what is measured.",
        f"{result['machine']}; medians of {rounds} rounds in turns, about {seconds:g} s each.",
        "## How many times better Ringdove is",
        "More than 1 is Ringdove ahead, in the same style and durability.",
        _markdown_table(_table(result["ratios"])),
    ]
    for name, rows in grouped(result["figures"], "workload").items():
        told = [
            {key: value for key, value in _told(row).items() if key != "workload"} for row in rows
        ]
        parts += [f"## {name}: {WORKLOADS[name].title}", _markdown_table(told)]
    parts += ["## What they are", _markdown_table(result["peers"])]
    parts += ["## How they are driven", _markdown_table(result["ways"])]
    if result["left_out"]:
        parts += ["## What was left out", _markdown_table(result["left_out"])]
    return "\n\n".join(parts) + "\n"


def _markdown_table(rows: list[Row]) -> str:
    if not rows:
        return "None."
    lines = ["| " + " | ".join(name.replace("_", " ") for name in rows[0]) + " |"]
    lines.append("|---" * len(rows[0]) + "|")
    lines += ["| " + " | ".join(map(_cell, row.values())) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def plot(result: dict[str, Any], path: Path) -> None:
    """Every ratio as a point on a logarithmic scale, a panel for each workload; 1 is even."""
    panels = grouped(result["ratios"], "workload")
    if not panels:
        raise InvalidArgument("Nothing was compared: there is nothing to draw.")
    figure, axes = figure_of(len(panels), "How many times better Ringdove is", inches=(6.4, 4.6))
    for own, (name, rows) in zip(axes, panels.items(), strict=True):
        labels = list(dict.fromkeys(_label(row) for row in rows))[::-1]
        for number, (kind, found) in enumerate(_kinds(rows).items()):
            own.scatter(
                [row["times"] for row in found], [labels.index(_label(row)) for row in found],
                marker=MARKERS[number % len(MARKERS)], label=kind, zorder=2,
            )  # fmt: skip
        own.axvline(1, color="black", linewidth=0.8)
        own.set_yticks(range(len(labels)), labels, fontsize=8)
        own.set_xscale("log")
        own.set_xlabel("times (right of the line: Ringdove is ahead)")
        own.set_title(WORKLOADS[name].title, fontsize=10)
    save(figure, axes, path)


def _label(row: Row) -> str:
    return f"{row['peer']}, {row['client']} ({row['style']})"


def _kinds(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows by durability and figure, as a legend names them."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row['durability']}, {row['figure']}", []).append(row)
    return found
