"""Small disks, simulated and real, and a client that fills and drains them."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from faults.events import body
from faults.interpose import failing
from ringdove.clock import ManualClock
from ringdove.core.block import Block
from ringdove.core.dedup import Appended, Segment
from ringdove.core.settings import Durability, QueueSettings
from ringdove.errors import StoreFull
from ringdove.pending import run
from ringdove.stores.base import Claim, StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.check import fsck
from ringdove.stores.embedded.environment import RESERVE_BYTES

Q = StripeId(1, 0, 0)
OTHER = StripeId(2, 0, 0)

#: Bytes of the small disk: the reserve, as much free space to allow for it, and some messages.
DISK_BYTES = 3 * RESERVE_BYTES

#: Messages that fill it to the brim.
SIZES = (200_000, 20_000, 1_000, 10)


class Client:
    """Sends and receives numbered messages, and knows which were acknowledged."""

    def __init__(self, path: Path, durability: Durability = "disk") -> None:
        self.path = path
        self.sent: list[bytes] = []
        self.done: list[int] = []
        self._numbers = count()
        self.store = EmbeddedStore(path, clock=ManualClock())
        for stripe in (Q, OTHER):
            run(self.store.create(stripe, QueueSettings.make(durability=durability), 1))

    def segment(self, size: int = 1_000) -> Segment:
        """The next message, ready to be sent."""
        return Segment(Block.build([body(7, next(self._numbers), size)], sent_ms=1))

    def send(self, size: int = 1_000) -> None:
        segment = self.segment(size)
        assert run(self.store.append(Q, [segment], 1)) == [Appended(len(self.sent))]
        self.sent += segment.block.bodies()

    def fill(self, *sizes: int) -> int:
        """Send until the disk is full for messages of each size; answers how many were sent."""
        before = len(self.sent)
        for size in sizes:
            try:
                while len(self.sent) < before + 50_000:
                    self.send(size)
            except StoreFull:
                continue
            raise AssertionError("the disk never gets full")
        return len(self.sent) - before

    def lease(self, want: int = 1) -> list[Claim]:
        """Lease messages, which must be as they were sent."""
        delivery = run(self.store.lease(Q, "default", want, 60_000, 1, 1))
        for leased in delivery.runs:
            bodies = [content for block in leased.blocks for content in block.bodies()]
            assert bodies == self.sent[leased.run.lo : leased.run.hi]
        return [Claim(delivery.epoch, d.run.token, d.run.lo, d.run.hi) for d in delivery.runs]

    def acknowledge(self, claims: list[Claim]) -> None:
        answers = run(self.store.acknowledge(Q, "default", claims, 1))
        assert answers == [claim.hi - claim.lo for claim in claims]
        self.done += [offset for claim in claims for offset in range(claim.lo, claim.hi)]

    def drain(self) -> None:
        """Receive and acknowledge everything, which must be all that is not done."""
        while claims := self.lease(25):
            self.acknowledge(claims)
        assert sorted(self.done) == list(range(len(self.sent)))

    def reopen(self) -> None:
        """Close and open the store, and let leases end."""
        run(self.store.close())
        assert fsck(self.path).faults == []
        clock = ManualClock()
        self.store = EmbeddedStore(self.path, clock=clock)
        clock.sleep_ms(60_001)


class SimulatedDisk:
    """Lets LMDB's files below a path grow up to a size, together with the reserve."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.bytes_max = DISK_BYTES
        statvfs = os.statvfs

        def small(where: os.PathLike[str]) -> os.statvfs_result:
            values = list(statvfs(where))
            values[4] = self.free() // values[1]
            return os.statvfs_result(values)

        monkeypatch.setattr(os, "statvfs", small)

    def free(self) -> int:
        used = 0
        for file in (*self.path.glob("*/data.mdb"), self.path / "reserve"):
            with suppress(FileNotFoundError):
                used += file.stat().st_size
        return max(0, self.bytes_max - used)

    def full(self, path: Path, offset: int, length: int) -> bool:
        return offset + length - (self.path / path).stat().st_size > self.free()

    @contextmanager
    def mounted(self) -> Iterator[Callable[[int], None]]:
        self.path.mkdir()
        with failing(self.path, when=self.full):
            yield self.resize

    def resize(self, nbytes: int) -> None:
        self.bytes_max = nbytes


class TmpfsDisk:
    """A real file system in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def mounted(self) -> Iterator[Callable[[int], None]]:
        self.path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.path)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a tmpfs cannot be mounted here: {error}")
        try:
            yield self.resize
        finally:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def resize(self, nbytes: int) -> None:
        command = ["mount", "-o", f"remount,size={nbytes}", str(self.path)]
        subprocess.run(command, check=True)
