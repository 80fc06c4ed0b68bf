"""The command `fleet`: thousands of simulated devices, and what became of their messages."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ringdove.cli import session
from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json, say, table

if TYPE_CHECKING:
    from ringdove.fleet import Fleet, Plan

#: Seconds between two lines where there is no terminal.
_LINE_S = 5.0


def fleet(
    *,
    devices: int = 1_000,
    protocol: Literal["mqtt", "coap", "http", "native"] = "mqtt",
    rate: float = 0.1,
    seconds: float = 30,
    queue: str = "readings",
    to: str | None = None,
    topic: str = "",
    jitter: float = 0.2,
    drop: float = 0.0,
    seed: int = 1,
    token: str | None = None,
    check: Flag = False,
    trace: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Simulate a fleet of smart meters that send readings, and say what became of them.

    Without --url, a server of its own works on the data directory meanwhile. Ctrl-C ends early,
    with the report. The readings are those that `ringdove pipeline` reads.

    Example: `ringdove fleet --devices 10000 --protocol coap --rate 0.1 --seconds 60 --check`

    Parameters
    ----------
    devices
        How many; each has a connection of its own but native ones, of which 1,000 share one.
    protocol
        What they speak: MQTT (QoS 1), CoAP (confirmable), HTTP (REST) or the native protocol.
    rate
        Readings per second of one device.
    seconds
        How long they make readings.
    queue
        The queue; made if there is none and --url says where queues are.
    to
        Where devices connect, such as coap://HOST:PORT; by default the host of --url.
    topic
        Of MQTT, {queue} and {device} put in; by default the one that stands for the queue.
    jitter
        How irregular intervals are: up to this share longer or shorter.
    drop
        Share of readings after which a device loses its connection.
    seed
        Another seed makes another fleet; the same one the same readings.
    token
        The server's token, or KEY:SECRET of an account.
    check
        Receive everything in the same run, and look for loss, duplicates and disorder.
    trace
        Directory for traces of all readings, as Parquet: see `ringdove trace report`.
    json
        Print the report as JSON.
    """
    from ringdove.errors import InvalidArgument
    from ringdove.fleet import Plan
    from ringdove.fleet.place import find_place

    plan = Plan(devices, protocol, rate, seconds, to or "", queue, topic, jitter, drop, seed, token)
    with find_place(session.url.get(), to, plan) as place:
        if check and place.queues is None:
            raise InvalidArgument("To check, --url must say where queues are; give devices --to.")
        report = _run(place.plan, place.queues, trace, check=check)
    if json:
        emit_json(report)
    else:
        _show(report)
    return int(any(report.get(name) for name in ("lost", "damaged", "failure")))


def _run(plan: Plan, queues: str | None, trace: Path | None, *, check: bool) -> dict[str, Any]:
    loop_factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_live(plan, queues, trace, check=check))


async def _live(
    plan: Plan, queues: str | None, trace: Path | None, *, check: bool
) -> dict[str, Any]:
    from ringdove.client import aio
    from ringdove.fleet import Fleet
    from ringdove.fleet.checking import prepare_queue

    if queues is not None:
        async with aio.connect(queues) as connection:
            await prepare_queue(connection, plan.queue)
    running = Fleet(plan, queues if check else None, trace)
    loop = asyncio.get_running_loop()
    endings = (signal.SIGINT, signal.SIGTERM)
    for number in endings:
        loop.add_signal_handler(number, running.stop)
    try:
        with _view() as show:
            return await running.run(show)
    finally:
        for number in endings:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _view() -> Any:
    """What shows a run while it goes on: a panel on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        yield lambda fleet, now_s: live.update(_panel(fleet, now_s), refresh=True)


class _Lines:
    def __init__(self) -> None:
        self._next_s = _LINE_S

    def __call__(self, fleet: Fleet, now_s: float) -> None:
        if now_s >= self._next_s:
            self._next_s += _LINE_S
            connected, sent, acknowledged, received = fleet.ledger.counts()
            say(
                f"{now_s:.0f} s: {connected:,} connected, {sent:,} sent, "
                f"{acknowledged:,} acknowledged, {received:,} received"
                + (f"; {fleet.ledger.failure}" if not connected else "")
            )


def _panel(fleet: Fleet, now_s: float) -> Any:
    from rich.table import Table

    counts = fleet.ledger.counts()
    plan = fleet.plan
    grid = Table.grid(padding=(0, 2))
    share = min(1.0, now_s / plan.seconds)
    grid.add_row("time", f"{now_s:,.0f} s of {plan.seconds:,.0f}", _bar(share))
    grid.add_row("connected", f"{counts.connected:,}", _bar(counts.connected / plan.devices))
    grid.add_row("sent", f"{counts.sent:,}", f"{counts.sent / max(now_s, 1):,.0f}/s")
    done = counts.acknowledged / max(counts.sent, 1)
    grid.add_row("acknowledged", f"{counts.acknowledged:,}", _bar(done))
    if counts.received:
        grid.add_row("received", f"{counts.received:,}", _bar(counts.received / counts.sent))
    return grid


def _bar(share: float) -> Any:
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=1, completed=min(1.0, share), width=40)


#: What the figures mean.
_MEANINGS = {
    "sent": "readings that devices made",
    "acknowledged": "of which the server said that they are stored",
    "unacknowledged": "which may be stored or not",
    "acknowledged_per_s": "all devices together",
    "connects": "connections made",
    "repeated": "attempts after a lost connection or answer",
    "put_off": "attempts that the server asked to repeat later",
    "received": "by the checker",
    "lost": "acknowledged and never received",
    "duplicated": "received more than once",
    "damaged": "received with a wrong checksum",
    "unexpected": "received and not of this fleet",
    "out_of_order_rate": "of each device's readings",
    "displacement": "mean distance from the right place",
    "answer_p50_ms": "from reading to acknowledgement",
    "latency_p50_ms": "from reading to checker",
}


def _show(report: dict[str, Any]) -> None:
    rows = [
        [name.replace("_", " "), value, _MEANINGS.get(name, "")]
        for name, value in report.items()
        if name != "failure"
    ]
    table("The fleet", ["", "figure", "what it means"], rows)
    if report.get("failure"):
        say(f"Nothing was acknowledged: {report['failure']}.")
