"""Delivery time, waiting number and utilisation by arrival rate (V3, figure 15).

100 ms of service, reliability 88 %, out of order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments import turning
from ringdove.models.visibility import Setup

if TYPE_CHECKING:
    from pathlib import Path

RATES = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55)
#: The document gives no turning points here: slowly at first, then a steep rise.
TOLD = {5: "a steep rise", 7: "a steep rise"}


def run(*, quick: bool = False, spark: bool = False) -> dict[str, Any]:
    """Five and seven threads at every rate below saturation."""
    points = [
        Setup(
            rate_per_s=float(rate), sender_threads=threads, broker_threads=threads, reliability=0.88
        )
        for threads in TOLD
        for rate in (RATES if not quick else (10, 25))
    ]
    return turning.run("arrival_rate", points, "rate_per_s", TOLD, "/s", quick=quick, spark=spark)


def plot(result: dict[str, Any], path: Path) -> None:
    """Three panels."""
    title = "By arrival rate: 100 ms of service, reliability 88 % (V3, figure 15)"
    turning.plot(result["arrival_rate"], "rate_per_s", "messages per second", title, path)
