"""Throughput and response time by the number of servers (B6), from what one node was measured at.

A message costs its master some time and each further copy some; both are spread evenly over the
servers, so n servers carry n times as much as one share:

    rate(n) = n / (master_s + (copies - 1) copy_s)

What does not spread (a queue that lives on one stripe, a manager) is a share `serial` of the work,
by Amdahl's law. Response times are those of n stations side by side, each with its share of a
Poisson load: M/M/1 at the load's share of saturation, however many servers there are. With one line
for all servers it would be M/M/n, which is the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ringdove.errors import InvalidArgument
from ringdove.models.stations import Service, Station


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """Seconds of one node's time for a message."""

    master_s: float
    copy_s: float = 0.0
    copies: int = 3
    #: The share of the work that does not spread over servers.
    serial: float = 0.0

    def __post_init__(self) -> None:
        if not self.master_s > 0 or self.copy_s < 0 or self.copies < 1 or not 0 <= self.serial < 1:
            raise InvalidArgument(
                "A message costs its master more than 0 s and a copy 0 s or more; it has 1 copy or "
                "more; the serial share is 0 or more and below 1."
            )

    @property
    def message_s(self) -> float:
        """All work for one message."""
        return self.master_s + (self.copies - 1) * self.copy_s


def throughput_per_s(costs: NodeCosts, servers: int) -> float:
    """Messages per second that servers carry at most."""
    speedup = servers / (1 + costs.serial * (servers - 1))
    return speedup / costs.message_s


def servers_for(costs: NodeCosts, rate_per_s: float, load_max: float = 0.8) -> int:
    """Servers that carry a rate at no more than this share of saturation."""
    busy = rate_per_s * costs.message_s / load_max
    if costs.serial * busy >= 1:
        raise InvalidArgument(f"No number of servers carries {rate_per_s:g} messages/s.")
    return max(1, math.ceil(busy * (1 - costs.serial) / (1 - costs.serial * busy)))


def response_s(costs: NodeCosts, servers: int, load: float, *, shared: bool = False) -> float:
    """The mean response time at a share of saturation: side by side, or with one line for all."""
    service = Service(costs.message_s)
    rate_per_s = load * service.rate_per_s
    if shared:
        return Station(servers * rate_per_s, service, servers, name="The fabric").sojourn_s
    return Station(rate_per_s, service, 1, name="A server").sojourn_s
