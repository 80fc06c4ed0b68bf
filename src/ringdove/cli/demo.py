"""The command `demo`: Ringdove at work, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ringdove.cli.output import emit_json
from ringdove.cli.queues import JsonFlag


def demo(
    *,
    messages: int = 1_000_000,
    consumers: int = 3,
    dir: Annotated[Path | None, Parameter(name="--dir")] = None,
    spark: bool = True,
    json: JsonFlag = False,
) -> int:
    """Send a million messages through the engine while a consumer dies, and check every one.

    Parameters
    ----------
    messages
        How many to send.
    consumers
        How many receive; one of them dies half way, with messages in its hands.
    dir
        Keep the data here; by default it goes to a temporary directory.
    spark
        Have Spark read and check them all again, if it is installed.
    json
        Print the report as JSON.
    """
    from ringdove.bench.demo import run, show

    report = run(messages, consumers, dir, spark=spark)
    if json:
        emit_json(report)
    else:
        show(report)
    return 0 if not report["lost"] and not report["unexpected"] and _same(report) else 1


def _same(report: dict[str, Any]) -> bool:
    """Whether Spark, if it ran, has seen every message once and whole."""
    seen = [report.get(f"spark_{name}", report["messages"]) for name in ("messages", "distinct")]
    return set(seen) == {report["messages"]} and not report.get("spark_damaged")
