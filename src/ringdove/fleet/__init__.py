"""A simulated fleet: thousands of smart meters in one process, over the protocol of your choice.

    from ringdove.fleet import Fleet, Plan

    report = await Fleet(Plan(devices=1_000, protocol="coap", url="coap://127.0.0.1:5683")).run()

Each device sends a reading (core/readings.py) every so often, keeps it until it is acknowledged,
loses its connection now and then, and comes back. A checker that receives in the same run says what
became of each reading.
"""

from __future__ import annotations

from ringdove.fleet.plan import Plan
from ringdove.fleet.running import Fleet

__all__ = ["Fleet", "Plan"]
