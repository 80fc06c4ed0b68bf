"""Percentiles from Laplace transforms.

A distribution function is recovered from its transform by summing a Fourier series and speeding up
its alternating tail with Euler's binomial averages (the method of Abate and Whitt, 1995). For the
smooth distributions of this package it is right to about seven digits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Transform = Callable[[complex], complex]

#: Sets the discretisation error: e to the minus this.
_PRECISION = 18.4
#: Terms of the series that are summed plainly, and partial sums that are averaged after them.
_TERMS = 40
_AVERAGED = 12
_WEIGHTS: list[float] = [math.comb(_AVERAGED, k) / 2**_AVERAGED for k in range(_AVERAGED + 1)]
#: Halvings of the interval in which a percentile lies.
_HALVINGS = 50


def distribution(transform: Transform, t: float) -> float:
    """The probability of at most t, from the transform of the density."""
    if t <= 0:
        return 0.0
    total = _term(transform, t, 0) / 2
    partial = []
    for k in range(1, _TERMS + _AVERAGED + 1):
        total += _term(transform, t, k) * (-1 if k % 2 else 1)
        if k >= _TERMS:
            partial.append(total)
    mean = sum(weight * value for weight, value in zip(_WEIGHTS, partial, strict=True))
    return min(1.0, max(0.0, mean * math.exp(_PRECISION / 2) / t))


def _term(transform: Transform, t: float, k: int) -> float:
    s = complex(_PRECISION / (2 * t), k * math.pi / t)
    return (transform(s) / s).real


def percentile(transform: Transform, share: float, mean: float) -> float:
    """The value that a share of a positive variable with this transform and mean is below."""
    low, high = 0.0, mean
    while distribution(transform, high) < share:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if distribution(transform, middle) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2
