"""The command `demo`: Ringdove at work, in about two minutes."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json, say, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringdove.demo.story import Seen

#: Seconds between two lines where there is no terminal.
_LINE_S = 5.0


def demo(
    *,
    seconds: float = 40,
    dir: Annotated[Path, Parameter(name="--dir")] = Path("./ringdove-demo"),
    fabric: Flag = False,
    spark: bool = True,
    json: JsonFlag = False,
) -> int:
    """Have a fleet of smart meters send, Spark sum up, and things go wrong; then account for all.

    Meters send readings over MQTT and HTTP to a server. Consumers take them, one is killed. A
    pipeline on Spark takes them too, one of its workers is killed. The console shows it live.

    Parameters
    ----------
    seconds
        How long meters send; starting and ending takes about a minute more.
    dir
        Where data, tables, logs and pictures go; what an earlier demo left there is removed.
    fabric
        Keep queues on five servers in two rings, one of which is killed half way.
    spark
        Run the pipeline, if Spark is installed.
    json
        Print the report as JSON.
    """
    from ringdove.demo.story import Story

    with _view(seconds) as (show, tell):
        report = Story(dir, seconds, show, tell, fabric=fabric, spark=spark).run()
    if json:
        emit_json(report)
    else:
        _print(report)
    return int(any(report.get(name) for name in ("lost", "damaged", "spark_lost")))


@contextmanager
def _view(seconds: float) -> Iterator[tuple[Callable[[Seen], None], Callable[[str], None]]]:
    """What shows the demo while it goes on: a panel on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines(), say
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def show(seen: Seen) -> None:
            live.update(_panel(seen, seconds), refresh=True)

        yield show, console.print


class _Lines:
    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, seen: Seen) -> None:
        if seen.seconds >= self._next_s:
            self._next_s = seen.seconds + _LINE_S
            say(
                f"{seen.seconds:.0f} s: {seen.connected:,} meters connected, {seen.sent:,} "
                f"readings sent, {seen.consumed:,} consumed, {seen.spark_rows:,} in Spark's table"
            )


def _panel(seen: Seen, seconds: float) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    def bar(share: float) -> ProgressBar:
        return ProgressBar(total=1, completed=min(1.0, share), width=40)

    sent = max(seen.sent, 1)
    grid = Table.grid(padding=(0, 2))
    grid.add_row("time", f"{seen.seconds:,.0f} s of {seconds:,.0f}", bar(seen.seconds / seconds))
    grid.add_row("meters", f"{seen.connected:,} connected", "")
    grid.add_row("readings", f"{seen.sent:,} sent", "")
    grid.add_row("", f"{seen.acknowledged:,} acknowledged", bar(seen.acknowledged / sent))
    grid.add_row("consumers", f"{seen.consumed:,} consumed", bar(seen.consumed / sent))
    rows = f"{seen.spark_rows:,} rows" if seen.spark_rows else seen.spark_state
    grid.add_row("Spark", rows, bar(seen.spark_rows / sent))
    return grid


def _print(report: dict[str, Any]) -> None:
    """The report, for people."""
    answers = ", ".join(f"{name} {ms} ms" for name, ms in report["answer_p50_ms"].items())
    rows = [
        ["readings", report["sent"], f"made by {report['devices']} meters"],
        ["acknowledged", report["acknowledged"], f"synced to disk first; at the median {answers}"],
        ["killed", ", ".join(report["killed"]), "on purpose, without warning"],
        ["lost", report["lost"], "acknowledged and never consumed"],
        ["damaged", report["damaged"], "consumed with a wrong checksum"],
        ["consumed again", report["consumed_again"], "what the killed consumer had in its hands"],
    ]
    if "spark_readings" in report:
        rows += [
            ["in Spark", report["spark_readings"], "valid readings in table 'readings', each once"],
            ["lost by Spark", report["spark_lost"], "acknowledged and not in the table"],
            ["windows", report["spark_windows"], "of a meter and 10 s, final by now"],
            ["flagged", report["spark_flagged"], "of them look wrong: faulty meters, jumps"],
        ]
    table("What happened", ["", "figure", "what it means"], rows)
    if report.get("windows"):
        last = [[w["start"], w["readings"], w["kwh"], w["flagged"]] for w in report["windows"][-5:]]
        table("The last windows", ["from", "readings", "kWh", "flagged"], last)
        print(f"Tables: {report['tables']}")
    elif "spark_readings" not in report:
        print("Without Spark nobody has summed them up: pip install 'ringdove[spark]'")
    if "picture" in report:
        print(f"Picture: {report['picture']}")
    print(
        f"Everything is in {report['directory']}. Where to go next: ringdove --help, docs/guide.md"
    )
