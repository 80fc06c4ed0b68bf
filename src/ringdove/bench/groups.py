"""`ringdove bench groups`: a key-ordered queue with a large backlog in many groups.

Receives and acknowledges in batches of ten, unsynced, and checks the order within every group on
the way. The same with a small backlog stands beside it.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from ringdove.bench.measure import place
from ringdove.cli.output import progress
from ringdove.client.outgoing import NewMessage
from ringdove.client.sync import connect

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.client.sync import Connection

_BATCH = 10
_MEASURED_MAX = 100_000


def run(directory: Path | None, messages: int, groups: int) -> dict[str, Any]:
    """Messages per second with a small and with the full backlog."""
    with place(directory) as data, connect(f"file:{data}/queues") as connection:
        rows = [
            _measure(connection, name, count, min(groups, count))
            for name, count in (("small", max(messages // 100, 100)), ("full", messages))
        ]
    return {
        "groups": rows,
        "receive_ack_per_s": rows[-1]["receive_ack_per_s"],
        "out_of_order": sum(row["out_of_order"] for row in rows),
    }


def _measure(connection: Connection, name: str, messages: int, groups: int) -> dict[str, Any]:
    queue = connection.create_queue(name, durability="memory", order="key")
    order = random.Random(7)
    sent = [0] * groups
    with progress("filling", messages) as show:
        for start in range(0, messages, 1000):
            part = []
            for _ in range(min(1000, messages - start)):
                group = order.randrange(groups)
                part.append(NewMessage(b"%d" % sent[group], b"group-%d" % group))
                sent[group] += 1
            queue.send_many(part)
            show(start)
    expected: dict[bytes, int] = {}
    received = out_of_order = 0
    started = time.perf_counter()
    while received < min(messages, _MEASURED_MAX) and (batch := queue.receive(max=_BATCH)):
        for message in batch:
            number = int(message.body)
            out_of_order += number != expected.get(message.key, 0)
            expected[message.key] = number + 1
        batch.ack()
        received += len(batch)
    elapsed = time.perf_counter() - started
    return {
        "waiting": messages,
        "groups": groups,
        "received": received,
        "receive_ack_per_s": round(received / elapsed),
        "out_of_order": out_of_order,
    }
