"""The planner behind the sliders: what a load needs, and what a queue was seen to do."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from ringdove import metrics
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import InvalidArgument, RingdoveError
from ringdove.models.calibration import Scrape, advise, observe
from ringdove.models.planner import Goal, Load, by_rate, by_threads, make_plan, report
from ringdove.models.stations import Service
from ringdove.pending import Pending

if TYPE_CHECKING:
    from ringdove.controllers.broker import Broker
    from ringdove.frontends.http import HttpServer
    from ringdove.frontends.native import NativeServer

#: Looks at a queue, and seconds between them: as long as somebody waits for an answer.
_LOOKS = 5
_PAUSE_S = 0.5


#: Threads that a plan's load may keep busy: more would take seconds of a busy server's time.
_BUSY_MAX = 2_000


class PlanQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A load, and what is wanted; times in milliseconds."""

    rate: Annotated[float, Meta(gt=0, le=1e7)] = 1_000.0
    service_ms: Annotated[float, Meta(gt=0, le=1e7)] = 5.0
    variation: Annotated[float, Meta(ge=0, le=100)] = 1.0
    loss: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    p99_ms: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    load_max: Annotated[float, Meta(gt=0, lt=1)] = 0.8
    cores: Annotated[int, Meta(ge=1, le=1_024)] = 1
    controller_us: Annotated[float, Meta(gt=0, le=1e6)] = 100.0
    fabric: bool = False


class ObserveQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The queue to look at."""

    queue: str
    subscription: str = DEFAULT_SUBSCRIPTION


def plan(ask: PlanQuery) -> dict[str, Any]:
    """The smallest plan, and its curves."""
    busy = ask.rate * ask.service_ms / 1000 / (1 - ask.loss)
    if busy > _BUSY_MAX:
        raise InvalidArgument(
            f"That keeps {busy:,.0f} threads busy; here plans have up to {_BUSY_MAX:,}. "
            "`ringdove plan` makes larger ones."
        )
    load = Load(
        ask.rate,
        Service(ask.service_ms / 1000, ask.variation),
        ask.loss,
        ask.controller_us / 1e6,
    )
    p99_s = ask.p99_ms / 1000 or None
    made = make_plan(load, Goal(None, p99_s, ask.load_max, ask.cores, ask.fabric))
    return {
        "figures": report(made),
        "by_threads": list(by_threads(made)),
        "by_rate": list(by_rate(made)),
    }


async def watch(
    broker: Broker, native: NativeServer, http: HttpServer, ask: ObserveQuery
) -> dict[str, Any]:
    """Look at a queue for a moment: what it does, and whether its receivers are enough."""
    scrapes = []
    for number in range(_LOOKS):
        if number:
            await Pending[None]().until(_PAUSE_S)
        text = await metrics.render(broker, native, http, [ask.queue])
        scrapes.append(Scrape(time.monotonic(), text.decode()))
    seen = observe(scrapes, ask.queue, ask.subscription)
    told: dict[str, Any] = {**asdict(seen), "threads": seen.threads}
    try:
        return {**told, "advice": advise(seen, Goal()).verdict}
    except RingdoveError as error:
        return {**told, "advice": str(error)}
