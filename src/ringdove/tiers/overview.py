"""What the manager tells of brokers, queues and alarms: pure functions from reports to values.

A queue is produced at level 0, so what its brokers there have stored is what was produced; what the
brokers of a level have stored was relayed to them, and what their subscriptions are done with was
consumed there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ringdove.client.address import without_token
from ringdove.tiers.alarms import Alarm  # noqa: TC001  msgspec reads it at run time
from ringdove.tiers.pulling import relay_subscription
from ringdove.tiers.routing import load_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ringdove.tiers.registry import Known, Seen
    from ringdove.tiers.reports import QueueReport

#: States of a relayed queue, the worst first; the worst is its broker's.
_WORST_FIRST = ("diverged", "full", "away")

#: How the subscriptions begin by which relays hold their places.
_OF_RELAYS = relay_subscription("")


class BrokerView(msgspec.Struct):
    """A broker: where it stands, how it is, and how busy."""

    name: str
    level: int
    region: str
    url: str
    #: Name of the broker it pulls from.
    upstream: str = ""
    #: "up", "standby", "away" (from its upstream), "full" (its spool), "diverged" or "lost".
    state: str = "up"
    #: Messages stored per second; seconds from producing until they are stored here, at worst; and
    #: messages that its upstream has more.
    rate: float = 0.0
    lag: float = 0.0
    behind: int = 0
    #: Shares, 0 to 1: how busy it is, relative to its capacity, and how full its disk.
    load: float = 0.0
    disk: float = 0.0
    connections: int = 0
    #: When it last reported; 0 if not lately.
    heard_ms: int = 0


class Copy(msgspec.Struct):
    """A queue at one broker."""

    broker: str
    level: int
    region: str
    #: Messages that ever came here, and that are here now.
    stored: int
    messages: int
    bytes: int
    #: By subscription, messages that are done.
    consumed: dict[str, int]
    rate: float = 0.0
    behind: int = 0
    lag: float = 0.0
    state: str = ""
    reason: str = ""


class Level(msgspec.Struct):
    """A queue over the brokers of one level: what the least and the furthest of them have."""

    level: int
    brokers: int
    least: int
    furthest: int


class QueueView(msgspec.Struct):
    """A queue over all brokers, in messages."""

    name: str
    id: int
    #: What level 0 has, and what has come to the levels below.
    produced: int
    relayed: list[Level]
    #: By subscription, over all brokers: the furthest. Those of relays do not count.
    consumed: dict[str, int]
    #: Seconds from producing until a message is at the last of the brokers.
    lag: float
    copies: list[Copy]


class Tiers(msgspec.Struct):
    """All brokers, their queues, the clients by role, and what is wrong."""

    brokers: list[BrokerView]
    queues: list[QueueView]
    clients: dict[str, int]
    alarms: list[Alarm]


def broker_views(brokers: Iterable[Seen], missing: Mapping[str, Known]) -> list[BrokerView]:
    """The brokers by level, region and name; those that are missed are lost."""
    found = [_broker_view(seen) for seen in brokers]
    found += [
        BrokerView(
            name, known.level, known.region, without_token(known.url),
            without_token(known.upstream), "lost",
        )
        for name, known in missing.items()
    ]  # fmt: skip
    return sorted(found, key=lambda view: (view.level, view.region, view.name))


def _broker_view(seen: Seen) -> BrokerView:
    report, queues = seen.report, seen.report.queues
    return BrokerView(
        report.name,
        report.level,
        report.region,
        without_token(report.url),
        without_token(report.upstream),
        _state(seen),
        round(seen.rate, 1),
        max((queue.lag_ms for queue in queues), default=0) / 1000,
        sum(queue.behind for queue in queues),
        round(load_of(report), 3),
        round(report.load.disk, 3),
        report.load.connections,
        seen.at_ms,
    )


def _state(seen: Seen) -> str:
    if not seen.report.serving:
        return "standby"
    states = {queue.state for queue in seen.report.queues}
    if seen.away_ms:
        states.add("away")
    return next((state for state in _WORST_FIRST if state in states), "up")


def queue_views(brokers: Iterable[Seen], name: str | None = None) -> list[QueueView]:
    """The queues by name, or one of them."""
    copies: dict[tuple[str, int], list[Copy]] = {}
    for seen in brokers:
        for queue in seen.report.queues:
            if name is None or queue.name == name:
                copies.setdefault((queue.name, queue.id), []).append(_copy(seen, queue))
    return [_queue_view(*key, copies[key]) for key in sorted(copies)]


def _copy(seen: Seen, queue: QueueReport) -> Copy:
    report = seen.report
    return Copy(
        report.name, report.level, report.region,
        queue.stored, queue.messages, queue.nbytes, queue.consumed,
        queue.rate, queue.behind, queue.lag_ms / 1000, queue.state, queue.reason,
    )  # fmt: skip


def _queue_view(name: str, queue_id: int, copies: list[Copy]) -> QueueView:
    copies.sort(key=lambda copy: (copy.level, copy.region, copy.broker))
    levels: dict[int, list[int]] = {}
    consumed: dict[str, int] = {}
    for copy in copies:
        levels.setdefault(copy.level, []).append(copy.stored)
        for subscription, count in copy.consumed.items():
            if not subscription.startswith(_OF_RELAYS):
                consumed[subscription] = max(count, consumed.get(subscription, 0))
    return QueueView(
        name,
        queue_id,
        max(levels.get(0, [0])),
        [
            Level(level, len(stored), min(stored), max(stored))
            for level, stored in sorted(levels.items())
            if level
        ],
        consumed,
        max(copy.lag for copy in copies),
        copies,
    )
