"""The command `demo`: Ringdove at work, in under a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ringdove.cli.output import emit_json
from ringdove.cli.queues import JsonFlag


def demo(
    *,
    messages: int = 1_000_000,
    consumers: int = 3,
    dir: Annotated[Path | None, Parameter(name="--dir")] = None,
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
    json
        Print the report as JSON.
    """
    from ringdove.bench.demo import run, show

    report = run(messages, consumers, dir)
    if json:
        emit_json(report)
    else:
        show(report)
    return 0 if not report["lost"] and not report["unexpected"] else 1
