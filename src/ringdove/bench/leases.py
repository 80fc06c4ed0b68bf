"""`ringdove bench leases`: many single-message leases outstanding at once.

Leases one message per call until the count is reached, then acknowledges some in random order, then
lets the rest expire and leases them again; the cost per call at each size shows how it grows.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from ringdove.bench.measure import per_call_us, place
from ringdove.cli.output import progress
from ringdove.client.sync import connect
from ringdove.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

_SAMPLE = 500
_LEASE_MS = 60_000


def run(directory: Path | None, count: int) -> dict[str, Any]:
    """Costs at a hundredth, a tenth and all of `count` outstanding leases."""
    clock = ManualClock()
    sizes = [max(share, 2 * _SAMPLE) for share in (count // 100, count // 10, count)]
    rows = []
    with (
        place(directory) as data,
        connect(f"file:{data}/queues", clock=clock) as connection,
        progress("leasing", sum(sizes)) as show,
    ):
        done = 0
        for size in sizes:
            queue = connection.create_queue(
                f"leases-{size}", durability="memory", lease_ms=_LEASE_MS
            )
            for start in range(0, size + 2 * _SAMPLE, 1000):
                queue.send_many([b"%d" % n for n in range(start, start + 1000)])
            held = []
            for _ in range(size - _SAMPLE):
                held.append(queue.receive())
                done += 1
                if done % 1000 == 0:
                    show(done)
            lease_us = per_call_us(lambda q=queue, h=held: h.append(q.receive()), _SAMPLE)  # type: ignore[misc]
            random.Random(1).shuffle(held)
            held.pop().ack()
            ack_us = per_call_us(lambda h=held: h.pop().ack(), _SAMPLE)  # type: ignore[misc]
            clock.sleep_ms(_LEASE_MS + 1)
            expired = len(held)
            expire_us = per_call_us(lambda q=queue: q.receive(), expired)  # type: ignore[misc]
            rows.append(
                {
                    "outstanding": size,
                    "lease_us": round(lease_us, 1),
                    "ack_us": round(ack_us, 1),
                    "expired": expired,
                    "lease_of_expired_us": round(expire_us, 1),
                }
            )
    return {
        "leases": rows,
        "lease_ratio_100x_more": round(rows[-1]["lease_us"] / rows[0]["lease_us"], 2),
        "ack_ratio_100x_more": round(rows[-1]["ack_us"] / rows[0]["ack_us"], 2),
        "expiry_ratio_100x_more": round(
            rows[-1]["lease_of_expired_us"] / rows[0]["lease_of_expired_us"], 2
        ),
    }
