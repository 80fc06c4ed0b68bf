"""The command `plan`: what a load needs, and whether a running server has it."""

from __future__ import annotations

import json as codec
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ringdove.cli.flags import JsonFlag
from ringdove.cli.output import emit_json, progress, say, table
from ringdove.cli.values import duration_s, size_bytes
from ringdove.errors import InvalidArgument, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.models.calibration import Advice, Observed, Scrape
    from ringdove.models.planner import Goal, Plan

#: Looks at a server's metrics while it is watched; queue lengths are averaged over them.
_LOOKS = 10
#: Seconds to wait for an answer of the server.
_TIMEOUT_S = 10


def _option(text: str, name: str | None = None, negative: str | None = None) -> Parameter:
    return Parameter(name=name, help=text, negative=negative)


Loss = Annotated[float, _option("The share of deliveries that fail and come again.")]
Lease = Annotated[
    str | None, _option("Failed deliveries wait out this lease; by default they are released.")
]
Fabric = Annotated[bool, _option("Keep three copies, on five servers or more.", negative="")]
ControllerTime = Annotated[str, _option("What a controller spends on a message in all.")]
Transit = Annotated[str, _option("What an idle server takes from a send to a receiver.")]
From = Annotated[
    str | None,
    _option("Look at the metrics of this server, and say whether to scale out or in.", "--from"),
]
Queue = Annotated[str | None, _option("The queue to look at, if the server has several.")]
Token = Annotated[str | None, _option("The server's token, if it has one.")]
Over = Annotated[str, _option("How long to look.")]
StorageMax = Annotated[
    str | None, _option("Scale out also when the queue's bytes come close to this.")
]
Listen = Annotated[
    str | None,
    _option("Answer autoscalers at this address, e.g. 127.0.0.1:9400: JSON at /, and /metrics."),
]


def plan(
    *,
    rate: float | None = None,
    service: str | None = None,
    loss: Loss = 0.0,
    target_p99: str | None = None,
    target_mean: str | None = None,
    load_max: float = 0.8,
    variation: float = 1.0,
    lease: Lease = None,
    fabric: Fabric = False,
    cores: int = 1,
    controller_time: ControllerTime = "100us",
    transit: Transit = "1ms",
    server: From = None,
    queue: Queue = None,
    token: Token = None,
    over: Over = "10s",
    storage_max: StorageMax = None,
    listen: Listen = None,
    plot: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Say how many threads, controllers and servers a load needs.

    Example: `ringdove plan --rate 20000 --service 2ms --loss 0.01 --target-p99 50ms`

    Of a running server: `ringdove plan --from http://127.0.0.1:9324 --queue readings`

    Parameters
    ----------
    rate
        Messages per second.
    service
        What a receiver's thread takes for a message on average, for example 2ms.
    target_p99
        A delay that one message in a hundred may exceed, processing included.
    target_mean
        The mean delay that is wanted.
    load_max
        How busy threads and controllers may be.
    variation
        Squared coefficient of variation of processing times: 1 exponential, 0 all alike.
    cores
        Controllers that a server has cores for.
    plot
        Draw delays by threads and by rate into this PNG file.
    """
    goal = _goal(target_mean, target_p99, load_max, cores, fabric)
    if server is not None:
        stored = None if storage_max is None else float(size_bytes(storage_max))
        scrape = partial(_fetch, server, token)
        look = partial(_advice, scrape, queue, duration_s(over), goal, duration_s(transit), stored)
        if listen is not None:
            _serve(listen, look)
        else:
            _tell_advice(*look(), plot, json)
        return
    times = (duration_s(controller_time), duration_s(transit), _seconds(lease))
    _tell_plan(_made(goal, rate, service, variation, loss, times), plot, json)


def _goal(mean: str | None, p99: str | None, load_max: float, cores: int, fabric: bool) -> Goal:
    from ringdove.models.planner import Goal

    return Goal(_seconds(mean), _seconds(p99), load_max, cores, fabric)


def _made(
    goal: Goal,
    rate: float | None,
    service: str | None,
    variation: float,
    loss: float,
    times: tuple[float, float, float | None],
) -> Plan:
    from ringdove.models.planner import Load, make_plan
    from ringdove.models.stations import Service

    if rate is None or service is None:
        raise InvalidArgument("Give --rate and --service, or --from a running server.")
    return make_plan(Load(rate, Service(duration_s(service), variation), loss, *times), goal)


def _seconds(text: str | None) -> float | None:
    return None if text is None else duration_s(text)


# -- a plan ---------------------------------------------------------------------------------------


def _tell_plan(made: Plan, plot: Path | None, as_json: bool) -> None:
    from ringdove.models.planner import by_rate, by_threads, report

    curves = {"by_threads": list(by_threads(made)), "by_rate": list(by_rate(made))}
    if plot is not None:
        _draw(made, curves, plot)
    figures = report(made)
    if as_json:
        emit_json({**figures, **curves})
        return
    _figures("plan", figures)
    rows = [[_short(value) for value in row.values()] for row in curves["by_threads"]]
    table("delay by threads", list(curves["by_threads"][0]), rows)
    say(_sentence(made))


def _sentence(made: Plan) -> str:
    threads, controllers, servers = made.threads, made.controllers, made.servers
    return (
        f"Have {_count(threads, 'thread')} receive, on {_count(controllers, 'controller')} "
        f"({_count(servers, 'server')}): {1e3 * made.mean_s:.4g} ms on average, "
        f"{1e3 * made.p99_s:.4g} ms for one in a hundred. "
        f"The rate may grow by {made.headroom:.0%} before they are saturated."
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _draw(made: Plan, curves: dict[str, Any], path: Path) -> None:
    from ringdove.bench.plots import figure_of, save

    figure, panels = figure_of(2, f"{made.load.rate_per_s:g} messages/s")
    for axes, (rows, x, at) in zip(
        panels,
        (
            (curves["by_threads"], "threads", made.threads),
            (curves["by_rate"], "rate_per_s", made.load.rate_per_s),
        ),
        strict=True,
    ):
        for name, label in (("mean_ms", "mean"), ("p99_ms", "99th percentile")):
            axes.plot([row[x] for row in rows], [row[name] for row in rows], ".-", label=label)
        if made.goal.p99_s is not None:
            axes.axhline(1e3 * made.goal.p99_s, color="grey", ls=":", label="target of the 99th")
        axes.axvline(at, color="C2", ls="--", label="the plan")
        axes.set_yscale("log")
        axes.set_ylabel("delay (ms)")
    panels[0].set_xlabel("receiving threads")
    panels[1].axvline(made.knee_per_s, color="C3", ls=":", label="half as slow again as idle")
    panels[1].set_xlabel(f"messages per second, {made.threads} threads")
    save(figure, panels, path)


# -- a running server -----------------------------------------------------------------------------


def _advice(
    scrape: Callable[[], str],
    queue: str | None,
    over_s: float,
    goal: Goal,
    transit_s: float,
    stored_bytes_max: float | None,
) -> tuple[Observed, Advice]:
    """Watch a server for a while, and say what follows."""
    from ringdove.models.calibration import advise, observe, queues_of

    scrapes = _watch(scrape, over_s)
    queues = queues_of(scrapes[-1].text)
    if queue is None and len(queues) != 1:
        raise InvalidArgument(f"Say which --queue: there are {', '.join(queues) or 'none'}.")
    seen = observe(scrapes, queue or queues[0])
    return seen, advise(seen, goal, transit_s, stored_bytes_max)


def _watch(scrape: Callable[[], str], over_s: float) -> list[Scrape]:
    from ringdove.models.calibration import Scrape

    scrapes = []
    begun_s = time.monotonic()
    with progress("watching", _LOOKS) as show:
        for number in range(_LOOKS + 1):
            time.sleep(max(0.0, begun_s + over_s * number / _LOOKS - time.monotonic()))
            scrapes.append(Scrape(time.monotonic(), scrape()))
            show(number)
    return scrapes


def _fetch(url: str, token: str | None) -> str:
    import http.client
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise InvalidArgument(f"{url!r} is no http:// or https:// address of a server.")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url.rstrip('/')}/metrics", headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return str(answer.read().decode())
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise StoreUnavailable(f"{url} does not give its metrics: {error}.") from error


def _answer(seen: Observed, advice: Advice) -> dict[str, Any]:
    """What an autoscaler reads."""
    from ringdove.models.planner import report

    return {
        "action": advice.action,
        "threads": advice.threads,
        "threads_wanted": advice.threads_wanted,
        "controllers_wanted": advice.plan.controllers,
        "servers_wanted": advice.plan.servers,
        "reason": advice.reason,
        "observed": {**asdict(seen), "utilisation": seen.utilisation},
        "plan": report(advice.plan),
    }


def _tell_advice(seen: Observed, advice: Advice, plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        from ringdove.models.planner import by_rate, by_threads

        made = advice.plan
        _draw(made, {"by_threads": list(by_threads(made)), "by_rate": list(by_rate(made))}, plot)
    answer = _answer(seen, advice)
    if as_json:
        emit_json(answer)
        return
    _figures("observed", answer["observed"])
    _figures("plan", answer["plan"])
    print(advice.verdict)


def _figures(title: str, figures: dict[str, Any]) -> None:
    table(title, ["figure", "value"], [[name, _short(value)] for name, value in figures.items()])


def _short(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else value


# -- answering autoscalers ------------------------------------------------------------------------


def _serve(address: str, look: partial[tuple[Observed, Advice]]) -> None:
    """Answer what was seen last, and look again and again, until interrupted."""
    from ringdove.cli.advising import advising

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgument(f"{address!r} is no address: write for example 127.0.0.1:9400.")
    with advising(host, int(port)) as (place, show):
        print(f"http://{place}/", flush=True)
        while True:
            try:
                show(codec.loads(codec.dumps(_answer(*look()))))
            except (InvalidArgument, StoreUnavailable) as error:
                show({"action": "unknown", "reason": str(error)})
                time.sleep(1)
