"""The command `model`: queues on paper, before there are any."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json, tables
from ringdove.cli.values import duration_ms, duration_s

if TYPE_CHECKING:
    from ringdove.models.fabric import Load

app = App(name="model", help="Predict delays and throughput with formulas and simulations.")

Rate = Annotated[float, Parameter(help="Messages per second.")]
ServiceRate = Annotated[float, Parameter(help="Messages per second that a busy thread serves.")]
Threads = Annotated[int, Parameter(help="Threads of the sender and of the broker.")]
Reliability = Annotated[float, Parameter(help="The chance that a delivery succeeds.")]
Link = Annotated[str, Parameter(help="One way through the network, for example 5ms.")]
Timeout = Annotated[
    str | None, Parameter(help="Failed deliveries wait out this visibility timeout, e.g. 30s.")
]
Servers = Annotated[tuple[int, ...], Parameter(help="May be given several times.")]
OwnThreads = Annotated[int | None, Parameter(help="If other than --threads.")]


@app.command
def closed_form(
    *,
    rate: Rate = 30.3,
    service_rate: ServiceRate = 10,
    threads: Threads = 5,
    reliability: Reliability = 1.0,
    sender_threads: OwnThreads = None,
    broker_threads: OwnThreads = None,
    link: Link = "0",
    timeout: Timeout = None,
    variation: float = 1.0,
    json: JsonFlag = False,
) -> None:
    """Delay, waiting numbers and utilisation of sender, broker and receiver, by formula.

    Example: `ringdove model closed-form --rate 30.3 --threads 5 --reliability 0.88`

    Parameters
    ----------
    variation
        Squared coefficient of variation of service times: 1 exponential, 1/k Erlang, 0 constant.
    """
    from ringdove.models.delivery import Delivery, report
    from ringdove.models.stations import Service

    service = Service(_inverse(service_rate), variation)
    delivery = Delivery(
        rate,
        service,
        service,
        sender_threads or threads,
        broker_threads or threads,
        reliability,
        duration_ms(link) / 1e3,
        None if timeout is None else duration_ms(timeout) / 1e3,
    )
    _tell(report(delivery), json)


@app.command
def petri(
    *,
    rate: Rate = 30.3,
    service_rate: ServiceRate = 10,
    threads: Threads = 5,
    reliability: Reliability = 1.0,
    sender_threads: OwnThreads = None,
    broker_threads: OwnThreads = None,
    link: Link = "0",
    timeout: Timeout = None,
    in_order: Flag = False,
    replications: int = 20,
    seconds: float = 100.0,
    warm: float = 20.0,
    seed: int = 0,
    draw: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """The same by simulation: the document's coloured Petri net, with 95 % intervals.

    Example: `ringdove model petri --threads 5 --reliability 0.88 --in-order`

    Parameters
    ----------
    in_order
        The broker takes messages up in the order they were produced.
    replications
        Runs, each with its own seed, two or more.
    seconds
        Simulated seconds of each run.
    warm
        Simulated seconds before them that do not count.
    seed
        The first seed.
    draw
        Also draw the net's pages into this directory, as SVG.
    """
    from ringdove.models.replications import estimates, fan_out
    from ringdove.models.visibility import Setup, simulate

    setup = Setup(
        in_order=in_order,
        rate_per_s=rate,
        sender_rate_per_s=service_rate,
        broker_rate_per_s=service_rate,
        sender_threads=sender_threads or threads,
        broker_threads=broker_threads or threads,
        reliability=reliability,
        link_s=duration_ms(link) / 1e3,
        timeout_s=30.0 if timeout is None else duration_ms(timeout) / 1e3,
        waits_out=timeout is not None,
    )
    if draw is not None:
        _draw(in_order, draw)
    length = partial(simulate, seconds=seconds, warm_s=warm)
    [runs] = fan_out(length, [setup], range(seed, seed + replications))
    found = estimates(runs)
    rows = [
        {"figure": name, "mean": value.mean, "plus_minus": value.half}
        for name, value in found.items()
    ]
    _tell({"petri": rows}, json)


def _draw(in_order: bool, directory: Path) -> None:
    from ringdove.models.petri.drawing import draw, pages_of
    from ringdove.models.visibility import IN_ORDER, OUT_OF_ORDER

    directory.mkdir(parents=True, exist_ok=True)
    for page in pages_of((IN_ORDER if in_order else OUT_OF_ORDER).page):
        (directory / f"{page.name}.svg").write_text(draw(page))


@app.command
def dequeue(
    *,
    method: Annotated[
        tuple[Literal["poll", "monitor", "retry", "wake"], ...],
        Parameter(help="May be given several times; by default all."),
    ] = ("poll", "monitor", "retry", "wake"),
    asks: float = 200.0,
    sends: float = 100.0,
    pause: str = "100ms",
    stripes: int = 10,
    senders: int = 10,
    back_ends: int = 10,
    controllers: int = 10,
    seconds: float = 30.0,
    warm: float = 10.0,
    seed: int = 0,
    json: JsonFlag = False,
) -> None:
    """The ways to dequeue from a fabric of many stripes: throughput, hits, delay, and work.

    Costs are those of the document's table I. What a request does is decided by the same code that
    a server runs.

    Example: `ringdove model dequeue --asks 200 --pause 5s`

    Parameters
    ----------
    asks
        Requests per second of each back end (lambda).
    sends
        Messages per second of each sender.
    pause
        The pause of retry, and the period of monitor.
    stripes
        Stripes, each on a node of its own.
    senders
        Senders, each with at most two messages on their way.
    back_ends
        Back ends, each with at most two requests outstanding.
    controllers
        Controllers that serve the back ends; 1: a single server.
    seconds
        Simulated seconds.
    warm
        Simulated seconds before them that do not count.
    seed
        For the chance of the run.
    """
    from ringdove.models.fabric import Load

    loads = [
        Load(
            method=name,
            asks_per_s=asks,
            sends_per_s=sends,
            pause_s=duration_ms(pause) / 1e3,
            stripes=stripes,
            senders=senders,
            back_ends=back_ends,
            controllers=controllers,
        )
        for name in method
    ]
    rows = [_dequeued(load, seed, seconds, warm) for load in loads]
    _tell({"dequeue": rows if json else _turned(rows, "method")}, json)


def _dequeued(load: Load, seed: int, seconds: float, warm_s: float) -> dict[str, Any]:
    """A run, its work by the cost model, and the request rate at which misses begin to hurt."""
    from ringdove.models.costs import break_even_per_s, work
    from ringdove.models.fabric import simulate

    found = simulate(load, seed, seconds, warm_s)
    per_hit = max(1.0, found["messages_per_hit"])
    misses = found["visits_per_s"] * (1 - found["hit_rate"])
    spent = work(load.costs, found["sent_per_s"], misses, found["looks_per_s"], per_hit)
    limit = break_even_per_s(
        load.costs, load.stripes, found["sent_per_s"], load.back_ends, load.tries, per_hit
    )
    kinds = {f"nodes_busy_with_{name}": value for name, value in asdict(spent).items()}
    return {"method": load.method, **found, **kinds, "break_even_asks_per_s": limit}


@app.command
def placement(
    *,
    servers: Servers = (5, 50),
    failures: int = 2,
    neighbours: Flag = False,
    seed: int = 0,
    json: JsonFlag = False,
) -> None:
    """Rings and other layouts after failures: load of the busiest server, and data at risk.

    Example: `ringdove model placement --servers 5 --servers 100 --failures 2 --neighbours`

    Parameters
    ----------
    failures
        Servers that fail at once.
    neighbours
        Servers next to each other fail, not any.
    seed
        For layouts and failures that are drawn at random.
    """
    from ringdove.models.placement import LAYOUTS, place, study

    rows = []
    for count in servers:
        for layout in LAYOUTS:
            placed = place(layout, count, seed)
            found = study(placed, failures, neighbours=neighbours, seed=seed)
            chance = {"loss_chance_of_3": placed.loss_chance}
            rows.append({"servers": count, "layout": layout, **found, **chance})
    _tell({"placement": rows}, json)


@app.command
def scaling(
    *,
    servers: Servers = (1, 10, 30, 50, 70),
    message_time: str = "770us",
    copy_time: str = "0",
    copies: int = 1,
    serial: float = 0.0,
    load: float = 0.8,
    json: JsonFlag = False,
) -> None:
    """Throughput and response time by servers, from what one of them spends on a message (B6).

    Example: `ringdove model scaling --message-time 770us --servers 10 --servers 70`

    Parameters
    ----------
    message_time
        What a node spends on a message, sent and received; see `python -m experiments load`.
    copy_time
        What a further copy costs its node.
    copies
        Copies of a message, the master's included.
    serial
        The share of the work that does not spread over servers.
    load
        The share of saturation at which the response time is told.
    """
    from ringdove.models.scaling import NodeCosts, response_s, throughput_per_s

    costs = NodeCosts(duration_s(message_time), duration_s(copy_time), copies, serial)
    rows = []
    for count in servers:
        rate = throughput_per_s(costs, count)
        apart, shared = (response_s(costs, count, load, shared=one) for one in (False, True))
        rows.append({
            "servers": count,
            "saturated_per_s": rate,
            "at_load_per_s": load * rate,
            "response_ms": 1e3 * apart,
            "response_of_one_line_ms": 1e3 * shared,
        })  # fmt: skip
    _tell({"scaling": rows}, json)


def _inverse(service_rate: float) -> float:
    from ringdove.errors import InvalidArgument

    if service_rate <= 0:
        raise InvalidArgument(f"The service rate is {service_rate}/s; it must be above 0.")
    return 1 / service_rate


def _tell(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit_json(result)
    else:
        tables({name: _short(value) for name, value in result.items()})


def _turned(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Rows as columns, for a table that would be too wide."""
    figures = [figure for figure in rows[0] if figure != name]
    return [
        {"figure": figure} | {str(row[name]): row[figure] for row in rows} for figure in figures
    ]


def _short(value: Any) -> Any:
    """Figures with as many digits as people read."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return [{name: _short(cell) for name, cell in row.items()} for row in value]
    return value
