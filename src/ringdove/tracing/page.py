"""The report page: one HTML file with everything in it, for light and dark screens."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

from ringdove.tracing.charts import Series, bars, lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Row = Mapping[str, Any]

#: Queues with plots of their own, and producers in the table, those in most trouble first.
_QUEUES_MAX, _PRODUCERS_MAX = 24, 50

_PERCENTILES = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9"}
_RATES = {
    "loss_rate": "lost",
    "duplication_rate": "duplicated",
    "out_of_order_rate": "out of order",
}
_COLUMNS = (
    "sent", "received", "lost", "duplicated", "unexpected", "corrupted", "out of order",
    "displacement", "p50", "p99", "max",
)  # fmt: skip


def render(report: Mapping[str, Any], title: str = "Traces") -> str:
    """The page of a report, as `Report.as_dict` gives it."""
    queues: Sequence[Row] = report["queues"]
    shown = worst_first(queues)[:_QUEUES_MAX]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_told(queues, report['window_ms'])}</p>",
        _table("Queues", ["queue"], queues),
        *(_section(queue, report["windows"]) for queue in shown),
    ]
    if len(queues) > len(shown):
        parts.append(f"<p>{len(queues) - len(shown)} more queues are in the table only.</p>")
    producers = worst_first(report["producers"])
    parts.append(_table("Producers", ["queue", "producer"], producers[:_PRODUCERS_MAX]))
    if len(producers) > _PRODUCERS_MAX:
        parts.append(f"<p>{len(producers) - _PRODUCERS_MAX:,} more are in less trouble.</p>")
    return _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(parts))


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """Rows by what went wrong: loss, damage and strangers before repeats before disorder."""
    return sorted(
        rows,
        key=lambda row: (
            -row["lost"] - row["corrupted"] - row["unexpected"],
            -row["duplicated"],
            -row["out_of_order_rate"],
            -row["sent"],
        ),
    )


def cells(row: Row) -> list[str]:
    """The figures of a row as people read them, in the order of the table's columns."""
    return [
        *(f"{row[name]:,}" for name in ("sent", "received")),
        _count(row["lost"], row["loss_rate"]),
        _count(row["duplicated"], row["duplication_rate"]),
        *(f"{row[name]:,}" for name in ("unexpected", "corrupted")),
        percent(row["out_of_order_rate"]),
        f"{row['displacement']:,.2f}",
        *(duration(row[f"latency_{name}_us"]) for name in ("p50", "p99", "max")),
    ]


def columns() -> list[str]:
    """The names of what `cells` gives."""
    return list(_COLUMNS)


def percent(share: float) -> str:
    """A share in percent, with as many digits as it deserves."""
    value = 100 * share
    return "0 %" if not value else f"{value:.3g} %" if value < 99.95 else f"{value:.0f} %"


def duration(us: float | None) -> str:
    """Microseconds as people read them; empty for none."""
    if us is None:
        return ""
    for size, unit in ((60e6, "min"), (1e6, "s"), (1e3, "ms")):
        if abs(us) >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} us"


def moment(us: int) -> str:
    """The time of a day."""
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-5].removesuffix(".0")


def _count(count: int, rate: float) -> str:
    return f"{count:,} ({percent(rate)})" if count else "0"


def _told(queues: Sequence[Row], window_ms: int) -> str:
    sent, lost = sum(row["sent"] for row in queues), sum(row["lost"] for row in queues)
    return (
        f"{sent:,} messages of {len(queues)} queue{'s' if len(queues) != 1 else ''}; "
        f"{'none was lost' if not lost else f'{lost:,} were lost'}. A message belongs to the "
        f"window of {duration(1000 * window_ms)} in which it was sent. Times are UTC."
    )


def _section(queue: Row, windows: Iterable[Row]) -> str:
    own = [row for row in windows if row["queue"] == queue["queue"]]
    xs = [moment(row["window_us"]) for row in own]
    latency = [
        Series(label, [row[f"latency_{name}_us"] for row in own])
        for name, label in _PERCENTILES.items()
    ]
    rates = [Series(label, [row[name] for row in own]) for name, label in _RATES.items()]
    displaced = queue["displaced"]
    total = sum(displaced) or 1
    plots = [
        lines("Time from send to receive", xs, latency, duration, log=True),
        lines("Share of messages, by window", xs, rates, percent),
        bars(
            "How many places messages are away from theirs",
            [_places(bits) for bits in range(len(displaced))],
            [count / total for count in displaced],
            percent,
        ),
        lines("Messages sent and received", xs, _counts(own), lambda count: f"{count:,.0f}"),
    ]
    return f'<h2>{escape(queue["queue"])}</h2><div class="plots">{"".join(plots)}</div>'


def _counts(rows: Sequence[Row]) -> list[Series]:
    return [Series(name, [row[name] for row in rows]) for name in ("sent", "received")]


def _places(bits: int) -> str:
    """The distances that need so many bits."""
    if bits < 2:
        return str(bits)
    low = 2 ** (bits - 1)
    return f"{low:,}+" if low < 1024 else f"{low // 1024:,}k+" if low < 2**20 else f"{low >> 20}M+"


def _table(title: str, keys: Sequence[str], rows: Iterable[Row]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (*keys, *_COLUMNS))
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(row[key] or '(not known)')}</td>" for key in keys)
        + "".join(f'<td class="n">{escape(cell)}</td>' for cell in cells(row))
        + "</tr>"
        for row in rows
    )
    return (
        f'<h2>{title}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fbfbf9; --card: #ffffff; --ink: #22262b; --soft: #6a727b; --rule: #e3e5e8;
  --c0: #2f6fb2; --c1: #d1762c; --c2: #4a9a62; --c3: #8b5cb0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181b; --card: #1d2125; --ink: #e4e7ea; --soft: #98a1aa; --rule: #30363c;
    --c0: #6aa9e6; --c1: #eb9a56; --c2: #77c490; --c3: #b894db;
  }
}
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; }
p { color: var(--soft); margin: .2rem 0; max-width: 70ch; }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; }
th, td { padding: .5rem .6rem; text-align: left; white-space: nowrap; }
th { color: var(--soft); font-weight: 500; }
tbody tr { border-top: 1px solid var(--rule); }
td.n { font-variant-numeric: tabular-nums; }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); }
figure { margin: 0; padding: .9rem 1rem .4rem; background: var(--card);
  border: 1px solid var(--rule); border-radius: 10px; }
figcaption { display: flex; flex-wrap: wrap; gap: .2rem 1rem; justify-content: space-between;
  font-size: .9rem; font-weight: 600; margin-bottom: .3rem; }
figcaption small { display: flex; gap: .9rem; font-weight: 400; color: var(--soft); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 3px; margin-right: .35em; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 11px; }
svg text.y { text-anchor: end; }
svg text.x { text-anchor: middle; }
.grid { stroke: var(--rule); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.bar { fill: var(--c0); }
.line.c0 { stroke: var(--c0); } .dot.c0 { fill: var(--c0); } .key.c0 { background: var(--c0); }
.line.c1 { stroke: var(--c1); } .dot.c1 { fill: var(--c1); } .key.c1 { background: var(--c1); }
.line.c2 { stroke: var(--c2); } .dot.c2 { fill: var(--c2); } .key.c2 { background: var(--c2); }
.line.c3 { stroke: var(--c3); } .dot.c3 { fill: var(--c3); } .key.c3 { background: var(--c3); }
"""
