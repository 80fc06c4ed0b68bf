"""What dequeuing costs a fabric: the model of equations (1) to (6) (T4.3).

    (1) Rc = Ce + Cdh + Cdm             all work: enqueues, hits, misses
    (2) Ce = E ce0,  Cdm = Dm cdm0      E messages and Dm misses per second
    (3) Cdh = Dh cdh0 + sum(Ni cdh)     a hit costs something, and each of its Ni messages
    (4) Rc = E (ce0 + cdh0) + ...       the document takes Dh = E: one message per hit
    (5) ... + M cM                      PMS also reads M counters per second
    (6) D = lambda Nmax B               messages asked for by B back ends

Work is in seconds per second: the number of nodes that are busy. With N messages per hit there are
E/N hits, not E; `Work` has them apart, and N = 1 gives the document's (4).
"""

from __future__ import annotations

from dataclasses import dataclass

from ringdove.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a node's time; the defaults are table I's (T4.4)."""

    enqueue_s: float = 0.001
    hit_s: float = 0.020
    message_s: float = 0.001
    miss_s: float = 0.020
    look_s: float = 0.000_1


@dataclass(frozen=True, slots=True)
class Work:
    """Work per second by its kind, as numbers of busy nodes."""

    enqueue: float
    hit: float
    miss: float
    look: float

    @property
    def total(self) -> float:
        """Rc."""
        return self.enqueue + self.hit + self.miss + self.look


def work(
    costs: Costs,
    enqueues_per_s: float,
    misses_per_s: float = 0.0,
    looks_per_s: float = 0.0,
    messages_per_hit: float = 1.0,
) -> Work:
    """Equations (1) to (5)."""
    if messages_per_hit < 1:
        raise InvalidArgument(f"A hit finds {messages_per_hit} messages; it finds 1 or more.")
    hits_per_s = enqueues_per_s / messages_per_hit
    return Work(
        enqueues_per_s * costs.enqueue_s,
        hits_per_s * costs.hit_s + enqueues_per_s * costs.message_s,
        misses_per_s * costs.miss_s,
        looks_per_s * costs.look_s,
    )


def asked_per_s(requests_per_s: float, messages_max: int, back_ends: int) -> float:
    """Messages asked for: D of equation (6)."""
    return requests_per_s * messages_max * back_ends


def throughput_max_per_s(
    costs: Costs, nodes: float, misses_per_s: float = 0.0, messages_per_hit: float = 1.0
) -> float:
    """The most messages per second that pass through nodes which also serve misses."""
    each_s = costs.enqueue_s + costs.hit_s / messages_per_hit + costs.message_s
    return max(0.0, nodes - misses_per_s * costs.miss_s) / each_s


def break_even_per_s(
    costs: Costs,
    nodes: float,
    enqueues_per_s: float,
    back_ends: int,
    tries: int,
    messages_per_hit: float = 1.0,
) -> float:
    """Requests per second of each back end beyond which misses take what messages need.

    A request visits `tries` stripes; what is not a hit is a miss. Below, the nodes carry all
    messages; above, the throughput falls.
    """
    spare = nodes - work(costs, enqueues_per_s, 0, 0, messages_per_hit).total
    if spare < 0:
        raise InvalidArgument(
            f"{enqueues_per_s:g} messages/s need {nodes - spare:.4g} nodes even without a miss, "
            f"and there are {nodes:g}."
        )
    visits_per_s = spare / costs.miss_s + enqueues_per_s / messages_per_hit
    return visits_per_s / (tries * back_ends)
