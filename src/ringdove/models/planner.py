"""The planner: how many threads, controllers and servers a load needs (V4, B8).

A message passes two stations: the controllers (server processes, one event loop each) that take it
in and hand it out, and the receivers' threads that process it; with chance `loss` a delivery fails
and comes again. Besides, it is `transit_s` on its way: what an idle server takes from a send to a
receiver. All follows from `delivery.Delivery`.

The plan has the fewest threads that meet the target, with no station busier than `load_max`: close
to saturation a little more load costs a lot of delay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ringdove.errors import InvalidArgument
from ringdove.models.delivery import Delivery
from ringdove.models.stations import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Servers of a fabric of three copies that survives two failures.
FABRIC_SERVERS_MIN = 5

#: Threads that a plan may have.
_THREADS_MAX = 100_000
#: At the turning point one thread more shortens the delay by less than this share.
_TURN_SHARE = 0.05
#: A load at which the delay is this multiple of that of an idle system is past the knee.
_KNEE = 1.5
#: Rates of a curve, as shares of the highest.
_CURVE = [n / 20 for n in range(1, 20)]


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a system."""

    rate_per_s: float
    #: What a receiver's thread takes for a message.
    service: Service
    #: The chance that a delivery fails.
    loss: float = 0.0
    #: What a controller spends on a message in all; measured on the reference machine for single
    #: messages, see docs/models.md.
    controller_s: float = 0.000_1
    transit_s: float = 0.001
    #: Failed deliveries wait out this lease; None: receivers release what they fail at.
    lease_s: float | None = None

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0:
            raise InvalidArgument(f"The rate is {self.rate_per_s}/s; it must be above 0.")
        if not 0 <= self.loss < 1:
            raise InvalidArgument(f"The loss is {self.loss}; it must be 0 or more and below 1.")
        if not self.controller_s > 0 or self.transit_s < 0:
            raise InvalidArgument("A controller spends more than 0 s on a message.")


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted of it."""

    mean_s: float | None = None
    p99_s: float | None = None
    load_max: float = 0.8
    #: Controllers that a server runs: as many as it has cores for them.
    controllers_per_server: int = 1
    #: Keep three copies, on a fabric.
    fabric: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.load_max < 1 or self.controllers_per_server < 1:
            raise InvalidArgument("The highest load is above 0 and below 1; a server has a core.")


@dataclass(frozen=True, slots=True)
class Plan:
    """An answer."""

    load: Load
    goal: Goal
    threads: int
    controllers: int

    @property
    def delivery(self) -> Delivery:
        """The model of it."""
        return delivery(self.load, self.threads, self.controllers)

    @property
    def mean_s(self) -> float:
        """The expected delay from a send to the end of its processing."""
        return self.delivery.total_s

    @property
    def p99_s(self) -> float:
        """What one message in a hundred exceeds."""
        return self.delivery.percentile_s(0.99)

    @property
    def servers(self) -> int:
        """Machines for the controllers; a fabric has five or more."""
        servers = math.ceil(self.controllers / self.goal.controllers_per_server)
        return max(servers, FABRIC_SERVERS_MIN) if self.goal.fabric else servers

    @property
    def headroom(self) -> float:
        """By how much the rate may grow before a station is saturated."""
        return self.delivery.rate_max_per_s / self.load.rate_per_s - 1

    @property
    def knee_per_s(self) -> float:
        """The rate at which the delay is half as long again as that of an idle system."""
        idle_s = _at(self, 1e-9).total_s
        low, high = 0.0, self.delivery.rate_max_per_s
        for _ in range(40):
            middle = (low + high) / 2
            if _at(self, middle).total_s < _KNEE * idle_s:
                low = middle
            else:
                high = middle
        return low


def _at(plan: Plan, rate_per_s: float) -> Delivery:
    return delivery(replace(plan.load, rate_per_s=rate_per_s), plan.threads, plan.controllers)


def delivery(load: Load, threads: int, controllers: int) -> Delivery:
    """The model of a load on so many threads and controllers."""
    return Delivery(
        load.rate_per_s,
        Service(load.controller_s),
        load.service,
        controllers,
        threads,
        1 - load.loss,
        load.transit_s / 2,
        load.lease_s,
    )


def make_plan(load: Load, goal: Goal) -> Plan:
    """The smallest plan that meets the goal, or why there is none."""
    attempts_per_s = load.rate_per_s / (1 - load.loss)
    controllers = _enough(load.rate_per_s * load.controller_s, goal.load_max)
    threads = _enough(attempts_per_s * load.service.mean_s, goal.load_max)
    plan = Plan(load, goal, threads, controllers)
    if meets(plan):
        return plan
    widest = replace(plan, threads=8 * threads + 64, controllers=8 * controllers)
    if not meets(widest):
        raise InvalidArgument(_unreachable(widest))
    low, high = threads, widest.threads  # The goal is missed at one and met at the other.
    if not meets(replace(plan, threads=high)):
        plan = replace(plan, controllers=_least_controllers(replace(plan, threads=high)))
    while high - low > 1:
        middle = (low + high) // 2
        if meets(replace(plan, threads=middle)):
            high = middle
        else:
            low = middle
    return replace(plan, threads=high)


def _enough(busy: float, load_max: float) -> int:
    count = max(1, math.ceil(busy / load_max - 1e-9))
    if count > _THREADS_MAX:
        raise InvalidArgument(f"The load needs {count:,} threads; that is more than one plan has.")
    return count


def _least_controllers(plan: Plan) -> int:
    counts = range(plan.controllers, 8 * plan.controllers + 1)
    return next(count for count in counts if meets(replace(plan, controllers=count)))


def meets(plan: Plan) -> bool:
    """Whether a plan meets its goal."""
    goal = plan.goal
    stations = plan.delivery.stations
    if max(station.utilisation for station in stations) > goal.load_max + 1e-9:
        return False
    if goal.mean_s is not None and plan.mean_s > goal.mean_s:
        return False
    return goal.p99_s is None or plan.p99_s <= goal.p99_s


def _unreachable(widest: Plan) -> str:
    why = "" if widest.load.lease_s is None else "; failed deliveries wait out the lease"
    return (
        f"No number of threads meets the target: even without waiting the mean delay is "
        f"{1e3 * widest.mean_s:.4g} ms and the 99th percentile {1e3 * widest.p99_s:.4g} ms{why}. "
        "Ask for more, or make the processing shorter."
    )


def turning_point(plan: Plan) -> int:
    """Threads beyond which one more shortens the mean delay by less than a twentieth."""
    attempts_per_s = plan.load.rate_per_s / (1 - plan.load.loss)
    threads = int(attempts_per_s * plan.load.service.mean_s) + 1
    delay_s = replace(plan, threads=threads).mean_s
    while True:
        next_s = replace(plan, threads=threads + 1).mean_s
        if next_s > (1 - _TURN_SHARE) * delay_s:
            return threads
        threads, delay_s = threads + 1, next_s


def by_threads(plan: Plan) -> Iterator[dict[str, float]]:
    """Delay by threads, around the plan."""
    attempts_per_s = plan.load.rate_per_s / (1 - plan.load.loss)
    least = int(attempts_per_s * plan.load.service.mean_s) + 1
    most = max(plan.threads, least) + max(4, plan.threads // 2)
    step = max(1, (most - least) // 24)
    for threads in sorted({*range(least, most + 1, step), plan.threads}):
        yield {"threads": threads, **_row(delivery(plan.load, threads, plan.controllers))}


def by_rate(plan: Plan) -> Iterator[dict[str, float]]:
    """Delay by rate, with the plan's threads."""
    rates = [share * plan.delivery.rate_max_per_s for share in _CURVE]
    for rate_per_s in sorted({*rates, plan.load.rate_per_s}):
        yield {"rate_per_s": rate_per_s, **_row(_at(plan, rate_per_s))}


def _row(modelled: Delivery) -> dict[str, float]:
    return {
        "utilisation": modelled.stations[1].utilisation,
        "mean_ms": 1e3 * modelled.total_s,
        "p99_ms": 1e3 * modelled.percentile_s(0.99),
    }


def report(plan: Plan) -> dict[str, float | int]:
    """The plan's figures."""
    controllers, threads = plan.delivery.stations
    return {
        "threads": plan.threads,
        "controllers": plan.controllers,
        "servers": plan.servers,
        "utilisation": threads.utilisation,
        "controller_utilisation": controllers.utilisation,
        "mean_ms": 1e3 * plan.mean_s,
        "p99_ms": 1e3 * plan.p99_s,
        "waiting": threads.waiting,
        "rate_per_s": plan.load.rate_per_s,
        "rate_max_per_s": plan.delivery.rate_max_per_s,
        "headroom": plan.headroom,
        "knee_per_s": plan.knee_per_s,
        "turning_point_threads": turning_point(plan),
    }
