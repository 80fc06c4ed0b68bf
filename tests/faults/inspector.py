"""A process that opens what a power cut left and says what is wrong with it.

LMDB may kill the process that reads a damaged file, so this is not done in the process of the
test. One request per line on standard input: a data directory, and a history to hold it against;
one answer per line on standard output: a list of faults. Without a history the answer is what a
receiver meets.
"""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from faults.events import body, read_events
from faults.history import Ledger, check, deliverable, present
from faults.workload import ORDERS, QUEUES, SYNCED
from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.errors import RingdoveError
from ringdove.pending import run
from ringdove.stores.base import Claim, StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.check import fsck

#: Seconds after which an inspection is taken to go round in circles, as damaged files make it.
PATIENCE_S = 30


def inspect(path: Path, history: Path) -> list[str]:
    """What is wrong with the synced queues of a directory, and with going on from there."""
    ledger = Ledger(SYNCED, ORDERS)
    ledger.follow(read_events(history)[0])
    faults = [f"fsck: {fault}" for fault in fsck(path).faults]
    store = EmbeddedStore(path, clock=present())
    try:
        faults += check(ledger, store)
        faults += [fault for stripe in SYNCED for fault in _goes_on(store, StripeId(*stripe))]
    finally:
        run(store.close())
    return faults + [f"fsck, later: {fault}" for fault in fsck(path).faults]


def receive_all(path: Path, stripes: int) -> list[str]:
    """The digests of all messages, or the name of the error that stands in their way."""
    try:
        store = EmbeddedStore(path, clock=present())
    except RingdoveError as error:
        return [type(error).__name__]
    found = []
    for number in range(1, stripes + 1):
        try:
            found += deliverable(store, StripeId(number, 0, 0), "default").values()
        except RingdoveError as error:
            found.append(type(error).__name__)
    run(store.close())
    return found


def _goes_on(store: EmbeddedStore, stripe: StripeId) -> list[str]:
    """Send one more message and acknowledge the oldest."""
    tail = run(store.stats(stripe)).tail
    keys = [b"key"] if QUEUES[tuple(stripe)].order == "key" else None
    block = Block.build([body(0, 0, 10)], sent_ms=1, keys=keys)
    answers = run(store.append(stripe, [Segment(block)], 1))
    delivery = run(store.lease(stripe, "default", 1, 1_000, 1, 1))
    leased = delivery.runs[0].run
    claim = Claim(delivery.epoch, leased.token, leased.lo, leased.hi)
    done = run(store.acknowledge(stripe, "default", [claim], 1))
    if [answer[0] for answer in answers] != [tail] or done != [1]:
        return [f"{stripe} does not go on: {answers}, {done}"]
    return []


class Inspector:
    """Has directories inspected by a child, which is replaced when one of them kills it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self, path: Path, history: Path | int) -> list[str]:
        """The faults of a directory, or what can be received from its first so many queues."""
        child = self._child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps([str(path), history], default=str).encode() + b"\n")
        child.stdin.flush()
        if not select.select([child.stdout], [], [], PATIENCE_S)[0]:
            child.kill()
        answer = child.stdout.readline()
        if answer:
            faults: list[str] = json.loads(answer)
            return faults
        self.close()
        return [f"the reader died, or was killed because it went on for ever: {child.returncode}"]

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "faults.inspector"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.communicate()


def main() -> None:
    """Serve requests until the input ends."""
    for line in sys.stdin.buffer:
        path, history = json.loads(line)
        try:
            if isinstance(history, int):
                faults = receive_all(Path(path), history)
            else:
                faults = inspect(Path(path), Path(history))
        except Exception as error:
            faults = [f"{type(error).__name__}: {error}"]
        print(json.dumps(faults), flush=True)


if __name__ == "__main__":
    main()
