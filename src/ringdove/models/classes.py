"""Classes of service: messages of several classes share the threads, higher classes go first (V4).

A thread is never taken away from a message that it serves. With Poisson arrivals and exponential
service times of one mean, the wait of a class with n threads is exact (Cobham; Davis for several
threads):

    W(k) = W0 / ((1 - s(k-1)) (1 - s(k))),    W0 = C / (n mu)

where s(k) is the utilisation by class k and those before it. C is Erlang's for the whole load. With
several means or other distributions the same form is used with W0 scaled as in `stations`; that is
an approximation, exact for one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringdove.errors import InvalidArgument
from ringdove.models.stations import Service, Station

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """One class of messages."""

    name: str
    rate_per_s: float
    service: Service


@dataclass(frozen=True, slots=True)
class ClassDelay:
    """What a class can expect."""

    name: str
    wait_s: float
    sojourn_s: float
    waiting: float


def mixed(classes: Sequence[ServiceClass]) -> Service:
    """The service time of a message of unknown class."""
    rate = sum(one.rate_per_s for one in classes)
    if not rate:
        raise InvalidArgument("No class has any messages; give one a rate above 0.")
    mean_s = sum(one.rate_per_s * one.service.mean_s for one in classes) / rate
    square = sum(
        one.rate_per_s * one.service.mean_s**2 * (1 + one.service.variation) for one in classes
    )
    return Service(mean_s, max(0.0, square / rate / mean_s**2 - 1))


def delays(classes: Sequence[ServiceClass], threads: int) -> list[ClassDelay]:
    """The delays of classes that share threads, the most urgent class first."""
    whole = Station(sum(one.rate_per_s for one in classes), mixed(classes), threads)
    # The wait in one line, without the classes: W0 = W (1 - s).
    first_s = whole.wait_s * (1 - whole.utilisation)
    found, used = [], 0.0
    for one in classes:
        before, used = used, used + one.rate_per_s * one.service.mean_s / threads
        wait_s = first_s / ((1 - before) * (1 - used))
        found.append(
            ClassDelay(one.name, wait_s, wait_s + one.service.mean_s, one.rate_per_s * wait_s)
        )
    return found
