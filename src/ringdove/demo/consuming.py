"""A consumer of the demo, in a process of its own so that it can be killed.

It writes down every reading before it acknowledges it. So a killed consumer's successor writes some
of them again, and none is missing.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

from ringdove.client.sync import connect
from ringdove.core.readings import is_intact, who_and_which

SUBSCRIPTION = "billing"

#: How long a killed consumer's readings stay hidden; what it takes at a time, and how long each.
_LEASE_MS = 5_000
_TAKE = 50
_WORK_S = 0.0005


def run(url: str, queue: str, journal: Path) -> None:
    """Receive until killed."""
    with connect(url, session_s=600) as connection, journal.open("a") as file:
        source = connection.queue(queue)
        while True:
            batch = source.receive(_TAKE, wait=5, subscription=SUBSCRIPTION, lease_ms=_LEASE_MS)
            for message in batch:
                found = who_and_which(message.body)
                name, sequence = found or ("?", 0)
                file.write(f"{name} {sequence} {int(is_intact(message.body))}\n")
                time.sleep(_WORK_S)
            if batch:
                file.flush()
                batch.ack()


class Received(NamedTuple):
    """What all consumers have written down."""

    #: Entries, and different readings among them.
    entries: int
    readings: int
    damaged: int


def read_journals(journals: list[Path]) -> Received:
    """Count what is written so far; a line that a killed consumer did not finish counts not."""
    entries, damaged = 0, 0
    seen: set[str] = set()
    for journal in journals:
        if not journal.exists():
            continue
        for line in journal.read_text().splitlines(keepends=True):
            name, _, intact = line.rpartition(" ")
            if not line.endswith("\n"):
                continue
            entries += 1
            damaged += intact != "1\n"
            seen.add(name)
    return Received(entries, len(seen), damaged)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
