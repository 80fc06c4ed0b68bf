"""A running server as the planner sees it, from its metrics (B8).

Two or more scrapes of `/metrics` tell, for one queue:

    rate            messages sent between the first and the last
    busy threads    messages leased, on average: each is being processed by a receiver
    service time    busy threads by deliveries per second (Little's law)
    loss            deliveries beyond the messages that came to their end
    idle threads    receivers that wait; with the busy ones, all threads

That is right when receivers take one message at a time, and when this queue is the only one that is
received from; the server counts deliveries and receivers for all queues together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import InvalidArgument
from ringdove.models.planner import Goal, Load, Plan, make_plan
from ringdove.models.stations import Service

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

#: Scale in only if this many times the plan's threads are there: a plan that wavers costs more than
#: a thread too many.
_SLACK = 1.25
#: Seconds in which a backlog should be gone.
_DRAIN_S = 60.0

Sample = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape(NamedTuple):
    """The text of `/metrics`, and when it was read."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What a queue was seen to do."""

    queue: str
    rate_per_s: float
    delivered_per_s: float
    #: Deliveries that failed, as a share of all.
    loss: float
    #: None while nothing is being processed.
    service_s: float | None
    #: The server's time for a message, if it tells its processor time.
    controller_s: float | None
    busy_threads: float
    idle_threads: float
    waiting: float
    stored_bytes: float

    @property
    def threads(self) -> int:
        """Receivers, busy or not."""
        return round(self.busy_threads + self.idle_threads)

    @property
    def utilisation(self) -> float:
        """The share of receivers that are busy."""
        total = self.busy_threads + self.idle_threads
        return self.busy_threads / total if total else 0.0


def parse(text: str) -> Sample:
    """Values by name and labels."""
    values: Sample = {}
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InvalidArgument(f"This is no line of metrics: {line[:80]!r}.")
        values[match[1], frozenset(_LABEL.findall(match[2] or ""))] = float(match[3])
    return values


def queues_of(text: str) -> list[str]:
    """The queues that metrics speak of."""
    return sorted(
        dict(labels)["queue"]
        for name, labels in parse(text)
        if name == "ringdove_queue_sent_messages_total"
    )


def observe(
    scrapes: Sequence[Scrape], queue: str, subscription: str = DEFAULT_SUBSCRIPTION
) -> Observed:
    """What happened to a queue between the first and the last scrape."""
    span_s = scrapes[-1].at_s - scrapes[0].at_s if scrapes else 0.0
    if len(scrapes) < 2 or span_s <= 0:
        raise InvalidArgument("One look says nothing of rates; give two or more, apart in time.")
    samples = [parse(scrape.text) for scrape in scrapes]
    sent = _growth(samples, "queue_sent_messages", queue=queue)
    delivered = _growth(samples, "delivered_messages")
    waiting, leased, delayed = (
        _values(samples, "queue_messages", queue=queue, subscription=subscription, state=state)
        for state in ("waiting", "leased", "delayed")
    )
    present = [sum(counts) for counts in zip(waiting, leased, delayed, strict=True)]
    done = sent - (present[-1] - present[0])
    busy = fmean(leased)
    return Observed(
        queue=queue,
        rate_per_s=sent / span_s,
        delivered_per_s=delivered / span_s,
        loss=min(0.99, max(0.0, 1 - done / delivered)) if delivered else 0.0,
        service_s=busy * span_s / delivered if delivered and busy else None,
        controller_s=_growth(samples, "cpu_seconds") / sent if sent else None,
        busy_threads=busy,
        idle_threads=fmean(_values(samples, "receivers_parked")),
        waiting=fmean(waiting),
        stored_bytes=fmean(_values(samples, "queue_bytes", queue=queue)),
    )


def _values(samples: list[Sample], name: str, **labels: str) -> list[float]:
    """One metric over time."""
    key = (f"ringdove_{name}", frozenset(labels.items()))
    if any(key not in sample for sample in samples):
        told = ", ".join(f"{label} {value}" for label, value in labels.items())
        raise InvalidArgument(f"The metrics have no {key[0]}{told and ' of ' + told}.")
    return [sample[key] for sample in samples]


def _growth(samples: list[Sample], name: str, **labels: str) -> float:
    values = _values(samples, f"{name}_total", **labels)
    return values[-1] - values[0]


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether to change the number of threads, and why."""

    action: str
    threads: int
    threads_wanted: int
    reason: str
    plan: Plan

    @property
    def verdict(self) -> str:
        """Both, as a sentence."""
        words = {"out": "Scale out", "in": "Scale in", "stay": "Stay"}
        return f"{words[self.action]}: {self.reason}."


def advise(
    seen: Observed, goal: Goal, transit_s: float = 0.001, stored_bytes_max: float | None = None
) -> Advice:
    """Scale out, in, or stay: from what was seen, by the goal."""
    if seen.service_s is None or not seen.rate_per_s:
        raise InvalidArgument(
            f"Nothing was sent to {seen.queue} or received: there is no load yet."
        )
    load = Load(
        seen.rate_per_s,
        Service(seen.service_s),
        seen.loss,
        max(seen.controller_s or 0.0, 1e-6),
        transit_s,
    )
    plan = make_plan(load, goal)
    # A backlog is work as well: what waits beyond the plan's own line should be gone in a while.
    backlog = max(0.0, seen.waiting - plan.delivery.stations[1].waiting)
    drain = backlog / _DRAIN_S * seen.service_s / (1 - seen.loss)
    wanted = plan.threads + int(drain)
    if stored_bytes_max is not None and seen.stored_bytes > goal.load_max * stored_bytes_max:
        reason = f"{seen.stored_bytes:,.0f} bytes are stored, of {stored_bytes_max:,.0f}"
        return Advice("out", seen.threads, max(wanted, seen.threads + 1), reason, plan)
    busy = f"{seen.utilisation:.0%} of {seen.threads} threads are busy"
    if wanted > seen.threads:
        more = f" and {backlog:,.0f} messages wait" if int(drain) else ""
        return Advice("out", seen.threads, wanted, f"{busy}{more}; the goal needs {wanted}", plan)
    if seen.threads > _SLACK * wanted:
        return Advice("in", seen.threads, wanted, f"{busy}; {wanted} would do", plan)
    return Advice("stay", seen.threads, seen.threads, f"{busy}; {wanted} would do", plan)
