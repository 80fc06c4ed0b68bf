"""The disk is full, or fails: sends are refused, receivers go on, and nothing is lost (M3).

Some tests make single writes of LMDB fail. The others use a small disk, once simulated and once, where
the test may mount one, a real tmpfs: fill it until StoreFull, receive, and send again.
"""

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from faults.history import body
from faults.interpose import failing
from ringdove.clock import ManualClock
from ringdove.core.block import Block
from ringdove.core.dedup import Appended, Segment
from ringdove.core.settings import Durability, QueueSettings
from ringdove.errors import RingdoveError, StoreFull, StoreUnavailable
from ringdove.pending import run
from ringdove.stores.base import Claim, StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.check import fsck
from ringdove.stores.embedded.environment import RESERVE_BYTES

Q = StripeId(1, 0, 0)
OTHER = StripeId(2, 0, 0)

#: Bytes of the small disk: the reserve, as much again, which it wants to see, and room for messages.
DISK_BYTES = 3 * RESERVE_BYTES

#: Messages that fill it to the brim.
SIZES = (200_000, 20_000, 1_000, 10)

both = pytest.mark.parametrize("durability", ["disk", "memory"])


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

    def close(self) -> None:
        run(self.store.close())


# -- writes that fail -----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_send_to_a_full_disk_is_refused_and_nothing_is_lost(
    tmp_path: Path, durability: Durability, error: int
) -> None:
    """I1, I7: the refused send leaves no trace, those before and after it are there."""
    client = Client(tmp_path, durability)
    client.send()
    with failing(tmp_path, error) as faults:
        for _ in range(3):
            with pytest.raises(StoreFull, match="is full: nothing was stored"):
                client.send()
        assert faults.count >= 3
        client.lease()
        faults.active = False
        client.send()
    client.send()
    client.reopen()
    client.drain()
    client.close()


@both
def test_everything_that_writes_says_that_the_disk_is_full(
    tmp_path: Path, durability: Durability
) -> None:
    """Each with the same error; reading goes on."""
    client = Client(tmp_path, durability)
    client.send()
    store, new = client.store, StripeId(3, 0, 0)
    with failing(tmp_path):
        for call in (
            lambda: store.put("key", b"value"),
            lambda: store.create(new, QueueSettings.make(durability=durability), 1),
            lambda: store.purge(Q),
            lambda: store.delete(OTHER),
        ):
            with pytest.raises(StoreFull):
                run(call())
        assert run(store.get("key")) is None
        assert run(store.stats(OTHER)).tail == 0
    client.close()


def test_an_acknowledgement_survives_the_refusal_of_a_send_beside_it(tmp_path: Path) -> None:
    """They wait for one commit; the disk has room for the small one only."""
    client = Client(tmp_path)
    client.send()
    claims = client.lease()
    client.send()
    with failing(tmp_path, when=lambda path, offset, length: length >= 50_000):
        refused = client.store.submit_append(Q, [client.segment(50_000)], 1)
        client.acknowledge(claims)
        assert isinstance(refused.error(), StoreFull)
    client.reopen()
    client.drain()
    client.close()


def test_a_refused_send_does_not_use_up_its_sequence(tmp_path: Path) -> None:
    """M2: the retry is new, and the retry of the retry is a repetition."""
    client = Client(tmp_path)
    store = client.store
    segments = [client.segment()._replace(producer=b"p", sequence=n) for n in range(2)]
    assert run(store.append(OTHER, segments[:1], 1)) == [Appended(0)]
    with failing(tmp_path), pytest.raises(StoreFull):
        run(store.append(OTHER, segments[1:], 1))
    assert run(store.append(OTHER, segments[1:], 1)) == [Appended(1)]
    assert run(store.append(OTHER, segments[1:], 1)) == [Appended(1, duplicate=True)]
    client.close()


def test_senders_on_an_event_loop_are_refused_and_go_on(tmp_path: Path) -> None:
    """The writer thread commits for them, and answers all of them."""
    client = Client(tmp_path)
    store = client.store

    async def main() -> None:
        sends = [store.append(Q, [client.segment()], 1) for _ in range(8)]
        with failing(tmp_path):
            answers = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 60)
        assert {type(answer) for answer in answers} == {StoreFull}
        sends = [store.append(Q, [client.segment()], 1) for _ in range(8)]
        answers = await asyncio.wait_for(asyncio.gather(*sends), 60)
        assert [answer for (answer,) in answers] == [Appended(n) for n in range(8)]

    asyncio.run(main())
    client.close()


@pytest.mark.parametrize("short", [True, False])
def test_a_write_that_fails_once_is_no_reason_to_give_up(tmp_path: Path, short: bool) -> None:
    """StoreUnavailable promises that a retry may succeed; LMDB itself goes on after such an error."""
    client = Client(tmp_path)
    client.send()

    def large(path: Path, offset: int, length: int) -> bool:
        return length >= 50_000

    with failing(tmp_path, errno.EIO, large, short), pytest.raises(StoreUnavailable):
        client.send(50_000)
    client.send(50_000)
    client.drain()
    client.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failure_that_lmdb_cannot_survive_is_told_to_everybody(tmp_path: Path, error: int) -> None:
    """Its header page cannot be written: the store says so to all callers, and opens again (I1)."""
    client = Client(tmp_path)
    client.send()
    client.reopen()
    store = client.store
    with failing(tmp_path, error, lambda path, offset, length: offset < 8192):
        with pytest.raises(StoreUnavailable):
            client.send()
    for call in (
        lambda: store.append(Q, [client.segment()], 1),
        lambda: store.lease(OTHER, "default", 1, 1_000, 1, 1),
        lambda: store.stats(OTHER),
        lambda: store.get("key"),
        lambda: store.scan(""),
        lambda: store.put("key", b""),
    ):
        with pytest.raises(RingdoveError):
            run(call())
    client.reopen()
    client.drain()
    client.close()


# -- small disks ----------------------------------------------------------------------------------


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
        files = [*self.path.glob("*/data.mdb"), *self.path.glob("reserve")]
        return max(0, self.bytes_max - sum(file.stat().st_size for file in files))

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


@pytest.fixture(params=["simulated", "tmpfs"])
def disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """The path of a small disk, and a function that changes its size."""
    path = tmp_path / "small"
    small = SimulatedDisk(path, monkeypatch) if request.param == "simulated" else TmpfsDisk(path)
    with small.mounted() as resize:
        yield path, resize


Disk = tuple[Path, Callable[[int], None]]


@both
def test_a_full_disk_is_drained_and_filled_again(disk: Disk, durability: Durability) -> None:
    """Everything that was acknowledged is received; the space it took is used again."""
    client = Client(disk[0], durability)
    assert client.fill(*SIZES) > 0
    client.drain()
    client.send(200_000)
    client.reopen()
    client.send(200_000)
    client.drain()
    client.close()


@both
@pytest.mark.parametrize("sizes", [SIZES, SIZES[:1], SIZES[1:2]])
def test_a_disk_can_be_filled_again_and_again(
    disk: Disk, durability: Durability, sizes: tuple[int, ...]
) -> None:
    """The room that acknowledgements need is there every time."""
    client = Client(disk[0], durability)
    for _ in range(4):
        assert client.fill(*sizes) > 0
        client.drain()
    client.close()


@both
def test_a_full_disk_keeps_room_for_acknowledgements(disk: Disk, durability: Durability) -> None:
    """Sends that go on knocking must not take the room that acknowledgements need."""
    client = Client(disk[0], durability)
    client.fill(*SIZES)
    for _ in range(12):
        claims = client.lease()
        client.fill(*SIZES)
        client.acknowledge(claims)
        client.fill(*SIZES)
    client.drain()
    assert client.fill(SIZES[0]) > 0
    client.close()


@both
def test_sends_work_again_when_there_is_room(disk: Disk, durability: Durability) -> None:
    """Somebody else makes room; nobody needs to tell the store."""
    path, resize = disk
    client = Client(path, durability)
    client.fill(*SIZES)
    claims = client.lease(10)
    resize(2 * DISK_BYTES)
    client.send(200_000)
    client.acknowledge(claims)
    client.reopen()
    client.drain()
    client.close()


def test_a_store_opens_on_a_full_disk(disk: Disk) -> None:
    """A restart is the first thing that people try; then they must be able to receive."""
    path, _ = disk
    client = Client(path)
    client.fill(*SIZES)
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.tell() < DISK_BYTES:
            file.write(bytes(4096))
    client.reopen()
    client.drain()
    ballast.unlink()
    client.send()
    client.close()
