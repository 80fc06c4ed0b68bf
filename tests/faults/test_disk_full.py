"""The disk is full, or fails: sends are refused, receivers go on, and nothing is lost (M3).

Some tests make single writes of LMDB fail. The others use a small disk, once simulated and once,
where the test may mount one, a real tmpfs: fill it until StoreFull, receive, and send again.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from faults.interpose import failing
from faults.small_disk import DISK_BYTES, OTHER, SIZES, Client, Q, SimulatedDisk, TmpfsDisk
from ringdove.core.dedup import Appended
from ringdove.core.settings import Durability, QueueSettings
from ringdove.errors import (
    RingdoveError,
    StoreFull,
    StoreUnavailable,
    SubscriptionBusy,
    SubscriptionNotFound,
)
from ringdove.pending import run
from ringdove.stores.base import Start, StripeId
from ringdove.stores.embedded.changes import Change

both = pytest.mark.parametrize("durability", ["disk", "memory"])


EARLIEST = Start("earliest")

NewClient = Callable[..., Client]


@pytest.fixture
def new_client() -> Iterator[NewClient]:
    """Makes clients, whose stores are closed in the end."""
    clients: list[Client] = []

    def make(path: Path, durability: Durability = "disk") -> Client:
        clients.append(Client(path, durability))
        return clients[-1]

    yield make
    for client in clients:
        run(client.store.close())


# -- writes that fail -----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_send_to_a_full_disk_is_refused_and_nothing_is_lost(
    tmp_path: Path, durability: Durability, error: int, new_client: NewClient
) -> None:
    """I1, I7: the refused send leaves no trace, those before and after it are there."""
    client = new_client(tmp_path, durability)
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


@both
def test_everything_that_writes_says_that_the_disk_is_full(
    tmp_path: Path, durability: Durability, new_client: NewClient
) -> None:
    """Each with the same error; reading goes on."""
    client = new_client(tmp_path, durability)
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


def test_an_acknowledgement_survives_the_refusal_of_a_send_beside_it(
    tmp_path: Path, new_client: NewClient
) -> None:
    """They wait for one commit; the disk has room for the small one only."""
    client = new_client(tmp_path)
    client.send()
    claims = client.lease()
    client.send()
    with failing(tmp_path, when=lambda path, offset, length: length >= 50_000):
        refused = client.store.submit_append(Q, [client.segment(50_000)], 1)
        client.acknowledge(claims)
        assert isinstance(refused.error(), StoreFull)
    client.reopen()
    client.drain()


def test_a_refused_send_does_not_use_up_its_sequence(tmp_path: Path, new_client: NewClient) -> None:
    """M2: the retry is new, and the retry of the retry is a repetition."""
    client = new_client(tmp_path)
    store = client.store
    segments = [client.segment()._replace(producer=b"p", sequence=n) for n in range(2)]
    assert run(store.append(OTHER, segments[:1], 1)) == [Appended(0)]
    with failing(tmp_path), pytest.raises(StoreFull):
        run(store.append(OTHER, segments[1:], 1))
    assert run(store.append(OTHER, segments[1:], 1)) == [Appended(1)]
    assert run(store.append(OTHER, segments[1:], 1)) == [Appended(1, duplicate=True)]


def test_senders_on_an_event_loop_are_refused_and_go_on(
    tmp_path: Path, new_client: NewClient
) -> None:
    """The writer thread commits for them, and answers all of them."""
    client = new_client(tmp_path)
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


@pytest.mark.parametrize("short", [True, False])
def test_a_write_that_fails_once_is_no_reason_to_give_up(
    tmp_path: Path, short: bool, new_client: NewClient
) -> None:
    """StoreUnavailable promises that a retry may succeed; LMDB goes on after such an error."""
    client = new_client(tmp_path)
    client.send()

    def large(path: Path, offset: int, length: int) -> bool:
        return length >= 50_000

    with failing(tmp_path, errno.EIO, large, short), pytest.raises(StoreUnavailable):
        client.send(50_000)
    client.send(50_000)
    client.drain()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failure_that_lmdb_cannot_survive_is_told_to_everybody(
    tmp_path: Path, error: int, new_client: NewClient
) -> None:
    """Its header page cannot be written: the store says so to all callers, and opens again (I1)."""
    client = new_client(tmp_path)
    client.send()
    client.reopen()
    store = client.store
    header = lambda path, offset, length: offset < 8192
    with failing(tmp_path, error, header), pytest.raises(StoreUnavailable):
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


# -- changes that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize("beside", ["alone", "with a send"])
def test_a_repeated_subscription_that_fails_leaves_the_first(
    tmp_path: Path, beside: str, new_client: NewClient
) -> None:
    """I6: it was there before, and what it waits for must stay."""
    client = new_client(tmp_path)
    store = client.store
    run(store.subscribe(OTHER, "s", EARLIEST))
    run(store.append(OTHER, [client.segment()], 1))
    large = lambda path, offset, length: beside == "alone" or length >= 50_000
    with failing(tmp_path, when=large), suppress(StoreFull):
        if beside == "with a send":
            store.submit_append(Q, [client.segment(50_000)], 1)
        run(store.subscribe(OTHER, "s", EARLIEST))
    run(store.commit(OTHER, "default", 1))
    assert run(store.subscribe(OTHER, "s", EARLIEST)) == 0
    assert run(store.trim(OTHER)) == 0
    client.reopen()
    assert len(run(client.store.lease(OTHER, "s", 10, 1_000, 1, 0)).runs) == 1


def test_a_new_subscription_that_fails_is_not_there(tmp_path: Path, new_client: NewClient) -> None:
    client = new_client(tmp_path)
    store = client.store
    with failing(tmp_path), pytest.raises(StoreFull):
        run(store.subscribe(OTHER, "s", EARLIEST))
    with pytest.raises(SubscriptionNotFound):
        run(store.lease(OTHER, "s", 10, 1_000, 1, 0))
    run(store.subscribe(OTHER, "s", EARLIEST))
    client.reopen()
    run(client.store.lease(OTHER, "s", 10, 1_000, 1, 0))


def test_a_claim_that_fails_leaves_the_one_before(tmp_path: Path, new_client: NewClient) -> None:
    """M1: the reader goes on with the fence it has."""
    store = new_client(tmp_path).store
    held = run(store.claim(OTHER, "default", b"me", 60_000))
    with failing(tmp_path), pytest.raises(StoreFull):
        run(store.claim(OTHER, "default", b"me", 60_000))
    run(store.hold(OTHER, "default", held.fence, 60_000))
    run(store.commit(OTHER, "default", 0, held.fence))
    with pytest.raises(SubscriptionBusy):
        run(store.claim(OTHER, "default", b"other", 60_000))


def test_changes_that_fail_together_are_all_answered(tmp_path: Path, new_client: NewClient) -> None:
    """The writer thread takes them back in turn, and goes on."""
    store = new_client(tmp_path).store
    run(store.subscribe(OTHER, "s", EARLIEST))

    async def main() -> None:
        calls = [
            store.claim(OTHER, "s", b"me", 60_000),
            store.unsubscribe(OTHER, "s"),
            store.subscribe(OTHER, "s", EARLIEST),
            store.delete(OTHER),
        ]
        with failing(tmp_path):
            answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        assert {type(answer) for answer in answers} == {StoreFull}
        await asyncio.wait_for(store.put("key", b""), 60)

    asyncio.run(main())
    assert run(store.claim(OTHER, "s", b"other", 60_000)).offset == 0


def test_a_change_that_cannot_be_taken_back_stops_nobody(
    tmp_path: Path, new_client: NewClient
) -> None:
    store = new_client(tmp_path).store
    writer = store._writers["disk"]
    taken_back = []

    def undo() -> None:
        raise KeyError("gone")

    with writer.paused():
        changes = [
            writer.submit(Change(lambda _: None, take_back))
            for take_back in (lambda: taken_back.append("first"), undo)
        ]
    with failing(tmp_path):
        assert [change.block() for change in changes] == [True, True]
    assert {type(change.error()) for change in changes} == {StoreFull}
    assert set(taken_back) == {"first"}
    run(store.put("key", b""))


# -- small disks ----------------------------------------------------------------------------------


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
def test_a_full_disk_is_drained_and_filled_again(
    disk: Disk, durability: Durability, new_client: NewClient
) -> None:
    """Everything that was acknowledged is received; the space it took is used again."""
    client = new_client(disk[0], durability)
    assert client.fill(*SIZES) > 0
    client.drain()
    client.send(200_000)
    client.reopen()
    client.send(200_000)
    client.drain()


@both
@pytest.mark.parametrize("sizes", [SIZES, SIZES[:1]])
def test_a_disk_can_be_filled_again_and_again(
    disk: Disk, durability: Durability, sizes: tuple[int, ...], new_client: NewClient
) -> None:
    """The room that acknowledgements need is there every time."""
    client = new_client(disk[0], durability)
    for _ in range(4):
        assert client.fill(*sizes) > 0
        client.drain()


@both
def test_a_full_disk_keeps_room_for_acknowledgements(
    disk: Disk, durability: Durability, new_client: NewClient
) -> None:
    """Sends that go on knocking must not take the room that acknowledgements need."""
    client = new_client(disk[0], durability)
    client.fill(*SIZES)
    for _ in range(12):
        claims = client.lease()
        client.fill(*SIZES)
        client.acknowledge(claims)
        client.fill(*SIZES)
    client.drain()
    assert client.fill(SIZES[0]) > 0


@both
def test_sends_work_again_when_there_is_room(
    disk: Disk, durability: Durability, new_client: NewClient
) -> None:
    """Somebody else makes room; nobody needs to tell the store."""
    path, resize = disk
    client = new_client(path, durability)
    client.fill(*SIZES)
    claims = client.lease(10)
    resize(2 * DISK_BYTES)
    client.send(200_000)
    client.acknowledge(claims)
    client.reopen()
    client.drain()


def test_a_compaction_without_room_leaves_everything_as_it_was(
    disk: Disk, new_client: NewClient
) -> None:
    """The copy that could not be finished does not stay and take the rest of the disk."""
    path, _ = disk
    client = new_client(path)
    client.fill(*SIZES)
    with pytest.raises(StoreFull):
        run(client.store.compact())
    assert {entry.name for entry in path.iterdir()} <= {
        "disk", "format", "lock", "memory.boot", "reserve",
    }  # fmt: skip
    client.drain()
    client.send(200_000)
    run(client.store.compact())
    client.drain()


@pytest.mark.parametrize("disk", ["tmpfs"], indirect=True)
def test_a_store_opens_on_a_full_disk(disk: Disk, new_client: NewClient) -> None:
    """A restart is the first thing that people try; then they must be able to receive."""
    path, _ = disk
    client = new_client(path)
    client.fill(*SIZES)
    run(client.store.close())
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.tell() < DISK_BYTES:
            file.write(bytes(512))
    client.reopen()
    client.drain()
    ballast.unlink()
    client.send()
