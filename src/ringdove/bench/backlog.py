"""`ringdove bench backlog`: what a lease costs must not grow with what waits behind it.

A queue with ten thousand waiting messages and one with ten million, in one store; lease+acknowledge
of ten messages at a time on both in turns, medians compared. Memory of the process before and
after.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ringdove.bench.measure import middle, per_call_us, place, resident_bytes
from ringdove.cli.output import progress
from ringdove.client.sync import connect

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.client.sync import Queue

_SMALL = 10_000
_BLOCK = 1_000
_ROUNDS = 15
_CALLS = 60


def run(directory: Path | None, messages: int) -> dict[str, Any]:
    """Cost per call at both backlogs."""
    bodies = [os.urandom(100) for _ in range(_BLOCK)]
    with place(directory) as data, connect(f"file:{data}/queues") as connection:
        small = connection.create_queue("small", durability="memory")
        huge = connection.create_queue("huge", durability="memory")
        _fill(small, bodies, _SMALL)
        before = resident_bytes()
        with progress("filling", messages) as show:
            for start in range(0, messages, _BLOCK):
                huge.send_many(bodies)
                if start % 100_000 == 0:
                    show(start)
        after = resident_bytes()
        costs: dict[str, list[float]] = {"small": [], "huge": []}
        for _ in range(_ROUNDS):
            for queue in (small, huge):
                costs[queue.name].append(per_call_us(lambda q=queue: _cycle(q), _CALLS))  # type: ignore[misc]
            _fill(small, bodies, _SMALL - small.stats().waiting())
        drained = resident_bytes()
        waiting = huge.stats().waiting()
    ratios = [huge / small for huge, small in zip(costs["huge"], costs["small"], strict=True)]
    return {
        "backlog": [
            {"waiting": _SMALL, "lease_ack_us_per_call": round(middle(costs["small"]), 1)},
            {"waiting": waiting, "lease_ack_us_per_call": round(middle(costs["huge"]), 1)},
        ],
        "cost_ratio": round(middle(ratios), 3),
        "memory_mb_before_filling": round(before / 1e6, 1),
        "memory_mb_after_filling": round(after / 1e6, 1),
        "memory_mb_after_receiving": round(drained / 1e6, 1),
    }


def _cycle(queue: Queue) -> None:
    queue.receive(max=10).ack()


def _fill(queue: Queue, bodies: list[bytes], count: int) -> None:
    while count > 0:
        queue.send_many(bodies[:count])
        count -= _BLOCK
