"""One station: messages arrive at random, wait in line, and are served by one of n threads.

With Poisson arrivals and exponential service times this is M/M/n, and Erlang's formula is exact.
For other service times the wait is scaled by half the sum of the squared coefficients of variation
of arrivals and service (Allen and Cunneen); that is exact for one thread with Poisson arrivals and
for exponential service, and a few percent off otherwise. The wait of those who wait is taken to be
exponential, which is exact for M/M/n and the heavy-traffic limit of the others.
"""

from __future__ import annotations

import cmath
from dataclasses import dataclass
from functools import cached_property

from ringdove.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Service:
    """How long one thread takes for one message."""

    mean_s: float
    #: Squared coefficient of variation: 1 for exponential times, 1/k for Erlang's with k stages, 0
    #: for times that are all the same.
    variation: float = 1.0

    def __post_init__(self) -> None:
        if not self.mean_s > 0:
            raise InvalidArgument(f"A service time is {self.mean_s} s; it must be above 0.")
        if not self.variation >= 0:
            raise InvalidArgument(f"A variation is {self.variation}; it must be 0 or more.")

    @classmethod
    def erlang(cls, mean_s: float, stages: int) -> Service:
        """The sum of equal exponential stages."""
        if stages < 1:
            raise InvalidArgument(f"Erlang's distribution has 1 stage or more, not {stages}.")
        return cls(mean_s, 1 / stages)

    @property
    def rate_per_s(self) -> float:
        """Messages that a thread serves while it is busy."""
        return 1 / self.mean_s

    def transform(self, s: complex) -> complex:
        """The Laplace transform of the service time: a gamma distribution with its moments."""
        if self.variation == 0:
            return cmath.exp(-s * self.mean_s)
        return (1 + s * self.mean_s * self.variation) ** (-1 / self.variation)


@dataclass(frozen=True)
class Station:
    """A waiting line before n threads, in its steady state."""

    rate_per_s: float
    service: Service
    threads: int
    #: Squared coefficient of variation of the gaps between arrivals; 1: Poisson.
    arrival_variation: float = 1.0
    name: str = "the station"

    def __post_init__(self) -> None:
        if not self.rate_per_s >= 0:
            raise InvalidArgument(f"The rate is {self.rate_per_s}/s; it must be 0 or more.")
        if self.threads < 1:
            raise InvalidArgument(f"{self.name} has {self.threads} threads; it needs one or more.")
        if self.utilisation >= 1:
            raise InvalidArgument(
                f"{self.name} is not stable: {self.rate_per_s:g}/s need {self.load:.4g} busy "
                f"threads and there are {self.threads}. Have at least {int(self.load) + 1} threads "
                f"or less than {self.rate_max_per_s:.6g}/s."
            )

    @property
    def load(self) -> float:
        """Threads that are busy on average, if there were enough: erlangs."""
        return self.rate_per_s * self.service.mean_s

    @property
    def utilisation(self) -> float:
        """The share of time that a thread is busy."""
        return self.load / self.threads

    @property
    def rate_max_per_s(self) -> float:
        """Arrivals at which the line begins to grow without bound."""
        return self.threads * self.service.rate_per_s

    @cached_property
    def waiting_probability(self) -> float:
        """The share of arrivals that find all threads busy: Erlang's C."""
        blocked = 1.0
        for busy in range(1, self.threads + 1):
            blocked = self.load * blocked / (busy + self.load * blocked)
        return blocked / (1 - self.utilisation * (1 - blocked))

    @property
    def busy_probability(self) -> float:
        """The share of time in which at least one thread is busy; exact for M/M/n."""
        term = total = 1.0
        for busy in range(1, self.threads):
            term *= self.load / busy
            total += term
        total += term * self.load / self.threads / (1 - self.utilisation)
        return 1 - 1 / total

    @property
    def wait_s(self) -> float:
        """The mean wait in line."""
        spare_per_s = self.rate_max_per_s - self.rate_per_s
        scale = (self.arrival_variation + self.service.variation) / 2
        return scale * self.waiting_probability / spare_per_s

    @property
    def waiting(self) -> float:
        """Messages in line on average, by Little's law."""
        return self.rate_per_s * self.wait_s

    @property
    def sojourn_s(self) -> float:
        """The mean time from arrival to the end of service."""
        return self.wait_s + self.service.mean_s

    @property
    def present(self) -> float:
        """Messages in line or in service on average."""
        return self.rate_per_s * self.sojourn_s

    def transform(self, s: complex) -> complex:
        """The Laplace transform of the sojourn time."""
        chance = self.waiting_probability
        long_s = self.wait_s / chance if chance else 0.0
        return (1 - chance + chance / (1 + s * long_s)) * self.service.transform(s)
