"""Delivery time, waiting number and utilisation by service time (V3, figure 14).

30 messages/s, reliability 99 %, out of order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments import turning
from ringdove.models.visibility import Setup

if TYPE_CHECKING:
    from pathlib import Path

SERVICES_MS = (20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220)
#: The document's turning points, in ms, of the delivery time and of the waiting number.
TOLD = {5: ("100 ms and 80 ms"), 7: ("140 ms and 120 ms")}


def run(*, quick: bool = False, spark: bool = False) -> dict[str, Any]:
    """Five and seven threads at every service time below saturation."""
    points = [
        Setup(
            rate_per_s=30.0,
            sender_rate_per_s=1e3 / ms,
            broker_rate_per_s=1e3 / ms,
            sender_threads=threads,
            broker_threads=threads,
            reliability=0.99,
        )
        for threads in TOLD
        for ms in (SERVICES_MS if not quick else (40, 100))
    ]
    return turning.run("service_time", points, "service_ms", TOLD, "ms", quick=quick, spark=spark)


def plot(result: dict[str, Any], path: Path) -> None:
    """Three panels."""
    title = "By service time: 30 messages/s, reliability 99 % (V3, figure 14)"
    turning.plot(result["service_time"], "service_ms", "service time (ms)", title, path)
