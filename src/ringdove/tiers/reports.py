"""What brokers tell the manager, and what it answers: the values of the verb TIER.

A broker reports itself once a second. A report is all that the manager knows of it and expires by
itself, so a broker that has gone is forgotten, and a manager that was away knows everything again
after a second.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ringdove import limits


class Load(msgspec.Struct):
    """How busy a broker is; shares are 0 to 1."""

    cpu: float = 0.0
    disk: float = 0.0
    connections: int = 0


class QueueReport(msgspec.Struct):
    """One queue at one broker, over all its stripes; counts are in messages."""

    name: str
    id: int
    #: Sum of the tails: what was ever produced, as far as this broker has it.
    stored: int = 0
    #: What it holds now.
    messages: int = 0
    nbytes: int = 0
    #: Of each subscription, the sum of its floors: what it is done with.
    consumed: dict[str, int] = {}
    #: Messages that came per second.
    rate: float = 0.0
    #: Only where a relay feeds it: what upstream has more, and the age of the newest message when
    #: it came here.
    behind: int = 0
    lag_ms: int = 0
    #: Blocks whose hash was wrong and that were asked for again.
    mismatches: int = 0
    #: "pulling", "away" (no upstream), "full" (the spool), "diverged"; "" where it is not relayed.
    state: str = ""
    #: Why, in a sentence, when it is not pulling.
    reason: str = ""


class BrokerReport(msgspec.Struct):
    """A broker, as it says itself."""

    name: str
    level: int
    region: str
    #: Where clients reach it.
    url: str
    #: Prefixes of the networks it is in, such as 10.1.0.0/16.
    networks: list[str] = []
    #: Name of the broker it pulls from; "" at level 0 and while it has none.
    upstream: str = ""
    #: Connections it wants at most; load is compared relative to it.
    capacity: int = 10_000
    load: Load = msgspec.field(default_factory=Load)
    queues: list[QueueReport] = []
    #: When it started, on its own clock: a smaller one is an older process.
    started_ms: int = 0
    #: False while nobody should be sent there: a standby, or a broker that drains.
    serving: bool = True


class ClientReport(msgspec.Struct):
    """A producer or a consumer, as it says itself."""

    name: str
    #: "producer" or "consumer".
    role: str
    region: str = ""
    addresses: list[str] = []
    #: Name of the broker it is connected to; "" while it has none.
    at: str = ""


class Place(msgspec.Struct):
    """A broker to connect to."""

    name: str
    url: str
    level: int
    region: str


class Where(msgspec.Struct, forbid_unknown_fields=True):
    """Asks where to connect."""

    #: "producer", "relay" or "consumer".
    role: str
    #: Of a relay: its own level.
    level: int = 0
    region: str = ""
    #: Own addresses, for the match of networks.
    addresses: list[str] = []
    #: Name of the asking broker, producer or consumer; and where it is connected, to stay there
    #: unless somewhere else is clearly better.
    name: str = ""
    at: str = ""
    #: Brokers it could not reach just now.
    avoid: list[str] = []


class Beaten(msgspec.Struct):
    """Answers a report."""

    #: How long the report counts, and the manager's time.
    expires_ms: int
    now_ms: int
    #: Where a relay should pull from or a client go, best first; empty when it may stay.
    go: list[Place] = []


def grown(before: int, stored: int) -> int:
    """Messages that came between two sums of tails; a fabric skips offsets after a failover."""
    return stored - before if 0 < stored - before < limits.EPOCH_OFFSETS // 2 else 0


def to_wire(value: Any) -> Any:
    """Plain values of a struct, as they travel."""
    return msgspec.to_builtins(value)
