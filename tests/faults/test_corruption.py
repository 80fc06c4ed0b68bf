"""Damaged files: a clear error for what is affected, nothing silently wrong, no crash."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import lmdb
import msgspec
import pytest

from faults.events import body, digest
from faults.history import present
from faults.inspector import Inspector
from ringdove import limits
from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Parcel
from ringdove.core.block import HEADER_BYTES, Block
from ringdove.core.dedup import Appended, Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import FormatUnknown, OffsetTrimmed, RingdoveError, StoreCorrupted
from ringdove.pending import run
from ringdove.stores.base import Claim, StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.check import fsck
from ringdove.stores.embedded.commit import GroupCommit
from ringdove.stores.embedded.state import decode_stripe, encode, under

GOOD = StripeId(1, 0, 0)
BAD = StripeId(2, 0, 0)

#: Messages of either queue, one to a block; each block of BAD fills pages of its own.
BLOCKS = 4
SIZE = {GOOD: 100, BAD: 9_000}

DAMAGED = 2


def content(stripe: StripeId, number: int) -> bytes:
    return body(stripe.queue, number, SIZE[stripe])


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two queues, closed."""
    path = tmp_path_factory.mktemp("pristine") / "data"
    store = EmbeddedStore(path, clock=present())
    for stripe in (GOOD, BAD):
        run(store.create(stripe, QueueSettings.make(), 1))
        for number in range(BLOCKS):
            run(store.append(stripe, [segment(content(stripe, number))], 1))
    run(store.close())
    return path


@pytest.fixture
def data(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return shutil.copytree(pristine, tmp_path / "data")


@pytest.fixture
def inspector() -> Iterator[Inspector]:
    """Receives from damaged directories in a process that may die of it."""
    inspector = Inspector()
    yield inspector
    inspector.close()


def segment(content: bytes) -> Segment:
    return Segment(Block.build([content], sent_ms=1))


Open = Callable[..., EmbeddedStore]


@pytest.fixture
def open_store() -> Iterator[Open]:
    """Opens stores, which are closed in the end."""
    stores = []

    def open_one(path: Path, clock: ManualClock | None = None) -> EmbeddedStore:
        stores.append(EmbeddedStore(path, clock=clock or present()))
        return stores[-1]

    yield open_one
    for store in stores:
        run(store.close())


def lease(store: EmbeddedStore, stripe: StripeId, want: int) -> tuple[list[bytes], list[Claim]]:
    delivery = run(store.lease(stripe, "default", want, 60_000, 1, 1))
    bodies = [content for leased in delivery.runs for b in leased.blocks for content in b.bodies()]
    runs = [leased.run for leased in delivery.runs]
    return bodies, [Claim(delivery.epoch, r.token, r.lo, r.hi) for r in runs]


def block_place(file: bytes, number: int) -> int:
    """Where the block of a message of BAD begins in LMDB's file, which has it once."""
    at = file.index(content(BAD, number))
    assert file.find(content(BAD, number), at + 1) == -1
    return file.rindex(b"RDBK", 0, at)


def flip(path: Path, number: int, place: int, bit: int = 0) -> None:
    """Change one bit of a block of BAD."""
    file = path / "disk" / "data.mdb"
    spoilt = bytearray(file.read_bytes())
    spoilt[block_place(spoilt, number) + place] ^= 1 << bit
    file.write_bytes(spoilt)


def set_order(path: Path, order: str, open_store: Open, *, receives_max: int | None = None) -> None:
    """Give BAD another order, as if it had been made with it."""
    store = open_store(path)
    env = store._writers["disk"].env
    with env.lmdb.begin(write=True, db=env.db["stripes"]) as txn:
        record = decode_stripe(txn.get(BAD.key()))
        settings = QueueSettings.make(order=order, receives_max=receives_max).encode()
        txn.put(BAD.key(), encode(record._replace(settings=settings)))
    run(store.close())


# -- damaged blocks -------------------------------------------------------------------------------


def test_a_flipped_bit_anywhere_in_a_block_is_noticed(data: Path, open_store: Open) -> None:
    """Its messages are refused, those before it and other queues are served, and fsck names it."""
    file = data / "disk" / "data.mdb"
    good = file.read_bytes()
    rng = Random(4)
    places = [*range(HEADER_BYTES), *(rng.randrange(HEADER_BYTES, SIZE[BAD]) for _ in range(16))]
    for place in places:
        flip(data, DAMAGED, place, rng.randrange(8))
        (fault,) = fsck(data).faults
        assert "damaged" in fault
        assert "(2, 0, 0)" in fault
        store = open_store(data)
        assert lease(store, BAD, DAMAGED)[0] == [content(BAD, n) for n in range(DAMAGED)]
        with pytest.raises(StoreCorrupted, match="ringdove fsck"):
            lease(store, BAD, 1)
        with pytest.raises(StoreCorrupted, match="ringdove fsck"):
            run(store.read(BAD, DAMAGED, 1, 1 << 20))
        assert lease(store, GOOD, 9)[0] == [content(GOOD, n) for n in range(BLOCKS)]
        run(store.close())
        file.write_bytes(good)


def test_a_damaged_queue_still_takes_messages(data: Path, open_store: Open) -> None:
    """Appending does not look at what is stored already, and what is intact is not given up."""
    flip(data, DAMAGED, HEADER_BYTES + 50)
    store = open_store(data)
    assert run(store.append(BAD, [segment(b"new")], 1)) == [Appended(BLOCKS)]
    assert [b.bodies() for b in run(store.read(BAD, BLOCKS, 9, 1 << 20))] == [[b"new"]]
    run(store.close())


def test_a_damaged_block_can_be_skipped(data: Path, open_store: Open) -> None:
    """A reader's position moves past it, and the rest is delivered."""
    flip(data, DAMAGED, HEADER_BYTES + 50)
    store = open_store(data)
    run(store.commit(BAD, "default", DAMAGED + 1))
    assert lease(store, BAD, 9)[0] == [content(BAD, n) for n in range(DAMAGED + 1, BLOCKS)]
    run(store.close())
    store = open_store(data)
    assert run(store.stats(BAD)).head == DAMAGED + 1
    run(store.close())
    assert fsck(data).faults == []


@pytest.mark.parametrize("wants", [(9, 9, 1, 1), (1, 1, 1, 1), (1000, 1000)])
@pytest.mark.parametrize("order", ["loose", "key", "strict"])
def test_messages_before_a_damaged_block_stay_deliverable(
    data: Path, order: str, wants: tuple[int, ...], open_store: Open
) -> None:
    """A lease that runs into the damage gives up none of the intact messages it passed (I2)."""
    set_order(data, order, open_store)
    flip(data, DAMAGED, HEADER_BYTES + 50)
    store = open_store(data)
    found = []
    for want in wants:
        try:
            bodies, claims = lease(store, BAD, want)
        except StoreCorrupted:
            continue
        found += bodies
        run(store.acknowledge(BAD, "default", claims, 0))
    with pytest.raises(StoreCorrupted):
        lease(store, BAD, wants[-1])
    run(store.close())
    assert found == [content(BAD, n) for n in range(DAMAGED)]


@pytest.mark.parametrize("receives_max", [None, 1])
@pytest.mark.parametrize("order", ["loose", "strict"])
def test_of_an_ended_lease_what_is_before_the_damage_is_delivered(
    data: Path, order: str, receives_max: int | None, open_store: Open
) -> None:
    """The damage came later than the lease; dead messages are handed out to be moved likewise."""
    set_order(data, order, open_store, receives_max=receives_max)
    clock = present()
    store = open_store(data, clock)
    assert len(lease(store, BAD, 9)[0]) == BLOCKS
    run(store.close())
    flip(data, DAMAGED, HEADER_BYTES + 50)
    store = open_store(data, clock)
    clock.sleep_ms(60_000)
    delivery = run(store.lease(BAD, "default", 9, 60_000, 1, 1))
    [found] = delivery.dead if receives_max else delivery.runs
    assert (found.run.lo, found.run.hi) == (0, DAMAGED)
    run(store.acknowledge(BAD, "default", [Claim(1, found.run.token, 0, DAMAGED)], 1))
    with pytest.raises(StoreCorrupted):
        lease(store, BAD, 9)


def test_a_damaged_stripe_keeps_nobody_from_the_others(tmp_path: Path, open_store: Open) -> None:
    path = tmp_path / "data"
    broker = Broker(open_store(path))
    info = run(broker.create_queue("q", {"stripes": 2}))
    for stripe in info.stripes():
        content = body(2, stripe.number, SIZE[BAD])
        run(broker.deliver("q", 1, Parcel(stripe.number, 0, [segment(content)])))
    run(broker.close())
    flip(path, 1, HEADER_BYTES + 50)
    broker = Broker(open_store(path))
    for _ in range(4):  # Whichever stripe comes first.
        [received] = run(broker.receive("q", "default", 9, 0, None))
        assert received.receives == 1
        run(broker.unlease([received.receipt]))
    run(broker.acknowledge([received.receipt]))
    with pytest.raises(StoreCorrupted):
        run(broker.receive("q", "default", 9, None, None))


@pytest.mark.parametrize("place", [8, 12, HEADER_BYTES + 50])
def test_trimming_up_to_a_damaged_block_believes_nothing_in_it(
    data: Path, place: int, open_store: Open
) -> None:
    """The base offset in its header may be wrong; the position of the queue is not."""
    flip(data, DAMAGED, place, 3)
    store = open_store(data)
    claims = lease(store, BAD, DAMAGED)[1]
    assert run(store.acknowledge(BAD, "default", claims, 1)) == [DAMAGED]
    run(store.trim(GOOD))
    try:
        stats = run(store.stats(BAD))
    except StoreCorrupted:
        pass
    else:
        assert (stats.head, stats.tail) == (DAMAGED, BLOCKS)
    run(store.close())


@pytest.mark.parametrize("way", ["delete", "purge", "commit"])
def test_a_queue_whose_oldest_block_is_damaged_can_be_cleared(
    data: Path, way: str, open_store: Open
) -> None:
    """Otherwise there would be no way to get rid of the damage."""
    flip(data, 0, HEADER_BYTES + 50)
    store = open_store(data)
    if way == "delete":
        run(store.delete(BAD))
    elif way == "purge":
        run(store.purge(BAD))
    else:
        run(store.commit(BAD, "default", BLOCKS))
    run(store.close())
    # The next commit removes what a deleted queue leaves.
    store = open_store(data)
    run(store.put("anything", b""))
    run(store.close())
    assert fsck(data).faults == []


def test_damage_does_not_stop_the_writer(
    data: Path, monkeypatch: pytest.MonkeyPatch, open_store: Open
) -> None:
    """The thread that looks for expired messages meets a damaged block, and lives on."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(limits, "RETENTION_CHECK_MS", 1)
    monkeypatch.setattr(limits, "LEASE_FLUSH_MS", 1)
    flip(data, 1, HEADER_BYTES + 50)
    clock = present()
    store = open_store(data, clock)
    assert lease(store, BAD, 1)[0] == [content(BAD, 0)]
    run(store.commit(BAD, "default", 1))
    clock.sleep_ms(QueueSettings.make().retention_ms + 1)
    writer = store._writers["disk"]
    looks = threading.Semaphore(0)
    look = writer.on_sweep

    def count() -> None:
        looks.release()
        look()

    writer.on_sweep = count
    for _ in range(2):
        while not looks.acquire(timeout=0.1):
            assert writer._thread.is_alive()
    run(store.close())


@pytest.mark.parametrize("look", ["stats", "find", "read", "lease"])
def test_an_intact_store_is_never_called_damaged(
    data: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """A caller may look between the commit that trims a queue and the moment it is announced."""
    store = open_store(data)
    calls = {
        "stats": lambda: store.stats(BAD),
        "find": lambda: store.find(BAD, 1),
        "read": lambda: store.read(BAD, 0, 1, 100),
        "lease": lambda: store.lease(BAD, "default", 1, 1_000, 1, 1),
    }
    looks = 0
    publish = GroupCommit.publish

    def look_and_publish(commit: GroupCommit) -> None:
        nonlocal looks
        looks += 1
        with suppress(OffsetTrimmed):
            run(calls[look]())
        publish(commit)

    claims = lease(store, BAD, BLOCKS)[1]
    monkeypatch.setattr(GroupCommit, "publish", look_and_publish)
    assert run(store.acknowledge(BAD, "default", claims, 1)) == [BLOCKS]
    assert run(store.trim(BAD)) == BLOCKS
    assert looks > 1
    monkeypatch.undo()


# -- damaged files --------------------------------------------------------------------------------


def received(inspector: Inspector, path: Path) -> list[str]:
    """What a receiver gets from both queues: digests, or names of errors."""
    return inspector(path, 2)


def intact() -> list[str]:
    return [digest(content(stripe, n)) for stripe in (GOOD, BAD) for n in range(BLOCKS)]


def test_a_file_cut_anywhere_gives_everything_or_an_error(data: Path, inspector: Inspector) -> None:
    """A torn end is StoreCorrupted, and neither an empty queue nor the end of the process."""
    file = data / "disk" / "data.mdb"
    good = file.read_bytes()
    assert received(inspector, data) == intact()
    sizes = [1, 100, 4096, 4097, 8192, 12_000, *range(len(good) - 20_000, len(good), 3_000)]
    for size in [*sizes, *range(16_384, len(good), 16_384)]:
        file.write_bytes(good[:size])
        first = received(inspector, data)
        assert first in (intact(), ["StoreCorrupted"]), f"cut to {size}"
        assert received(inspector, data) == first, f"cut to {size}, and opened again"
    file.write_bytes(good[: len(good) // 2])
    assert len(fsck(data).faults) == 1


@pytest.mark.parametrize("how", ["empty", "missing"])
def test_a_data_file_that_is_gone_is_no_empty_store(data: Path, how: str, open_store: Open) -> None:
    """To start afresh in its place would hide the loss and give offsets twice (I7)."""
    file = data / "disk" / "data.mdb"
    file.write_bytes(b"") if how == "empty" else file.unlink()
    with pytest.raises(StoreCorrupted, match="data"):
        run(open_store(data).close())
    assert fsck(data).faults != []


def test_pages_that_were_never_written_are_no_damage(data: Path, open_store: Open) -> None:
    """A record comes and goes within one commit: LMDB counts its pages, but does not write them.

    So an intact file may be shorter than its header says.
    """
    store = open_store(data)

    async def both() -> None:
        await asyncio.gather(store.put("big", bytes(500_000)), store.remove("big"))

    asyncio.run(both())
    run(store.close())
    store = open_store(data)
    assert lease(store, BAD, 9)[0] == [content(BAD, n) for n in range(BLOCKS)]
    run(store.close())
    assert fsck(data).faults == []


def test_a_damaged_first_page_is_an_error(data: Path, inspector: Inspector) -> None:
    """LMDB's own headers, the first 24 bytes of the first two pages."""
    file = data / "disk" / "data.mdb"
    good = file.read_bytes()
    assert good[16:24] == b"\xde\xc0\xef\xbe\x01\x00\x00\x00"
    for spoilt in (
        b"\0" * 8192 + good[8192:],
        good[:16] + b"\xff" + good[17:4112] + b"\xff" + good[4113:],
    ):
        file.write_bytes(spoilt)
        assert received(inspector, data) == ["StoreCorrupted"]


def test_a_file_of_another_lmdb_is_an_unknown_format(data: Path, open_store: Open) -> None:
    """LMDB numbers its own format; to retry, as StoreUnavailable would suggest, is no use."""
    file = data / "disk" / "data.mdb"
    good = file.read_bytes()
    file.write_bytes(good[:20] + b"\x09" + good[21:4116] + b"\x09" + good[4117:])
    with pytest.raises(FormatUnknown):
        open_store(data)


@pytest.mark.parametrize("database", ["stripes", "tails", "subs", "done", "leases"])
@pytest.mark.parametrize("how", ["cut", "garbage"])
def test_a_damaged_entry_about_a_queue_is_an_error(
    data: Path, database: str, how: str, open_store: Open
) -> None:
    """That queue raises a StoreCorrupted, others are served, and fsck names the stripe."""
    store = open_store(data)
    lease(store, BAD, 1)
    claims = lease(store, BAD, 1)[1]
    run(store.acknowledge(BAD, "default", claims, 1))
    run(store.close())
    env = lmdb.open(os.fspath(data / "disk"), max_dbs=20, map_size=limits.MAP_BYTES)
    db = env.open_db(database.encode(), create=False)
    with env.begin(write=True, db=db) as txn:
        cursor = txn.cursor()
        assert cursor.set_range(BAD.key())
        value = cursor.value()
        txn.put(cursor.key(), value[:1] if how == "cut" else b"\xff" * len(value))
    env.close()
    faults = fsck(data).faults
    store = open_store(data)
    with pytest.raises(StoreCorrupted, match="ringdove fsck"):
        lease(store, BAD, 9)
    assert lease(store, GOOD, 9)[0] == [content(GOOD, n) for n in range(BLOCKS)]
    run(store.close())
    assert any("(2, 0, 0)" in fault for fault in faults), faults


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"queue/q", b"\xc1"),
        (b"queue/q", msgspec.msgpack.encode((b"\xc1", 1, 0))),
        (b"queue/\xff", msgspec.msgpack.encode((b"", 1, 0))),
        (b"account/1", b"\xc1"),
    ],
)
def test_fsck_reports_a_damaged_record_and_goes_on(data: Path, key: bytes, value: bytes) -> None:
    env = lmdb.open(os.fspath(data / "disk"), max_dbs=20, map_size=limits.MAP_BYTES)
    with env.begin(write=True, db=env.open_db(b"records", create=False)) as txn:
        txn.put(key, value)
    env.close()
    report = fsck(data)
    [fault] = report.faults
    assert f"record {key.decode(errors='backslashreplace')!r} is damaged" in fault
    assert report.blocks == 2 * BLOCKS


def test_a_damaged_clock_does_not_expire_everything(data: Path, open_store: Open) -> None:
    """A time that nobody can have written is refused, and does not count as retention passed."""
    env = lmdb.open(os.fspath(data / "disk"), max_dbs=20, map_size=limits.MAP_BYTES)
    db = env.open_db(b"meta", create=False)
    with env.begin(write=True, db=db) as txn:
        txn.put(b"clock", b"\x00\x80" + txn.get(b"clock")[2:])
    env.close()
    try:
        store = open_store(data)
    except RingdoveError:
        return
    assert lease(store, GOOD, 9)[0] == [content(GOOD, n) for n in range(BLOCKS)]
    run(store.close())


@pytest.mark.parametrize("database", ["tails", "records"])
def test_damage_does_not_stop_the_sweep(data: Path, database: str, open_store: Open) -> None:
    """Retention and expiry go on for everything that is behind the damage."""
    clock = present()
    store = open_store(data, clock)
    later = StripeId(3, 0, 0)
    run(store.create(later, QueueSettings.make(retention_ms=1000), 1))
    run(store.append(later, [segment(b"old")], 1))
    run(store.put("a", b""))
    run(store.put("b", b"", expires_ms=clock.now_ms() + 1000))
    env = store._writers["disk"].env
    with env.lmdb.begin(write=True) as txn:
        txn.put(BAD.key() if database == "tails" else b"a", b"broken", db=env.db[database])
    run(store.close())
    clock.sleep_ms(1000)
    store = open_store(data, clock)
    writer = store._writers["disk"]
    for _ in range(2):
        writer.on_sweep()
    run(store.put("c", b""))  # Waits for a commit, which takes the sweep's finds along.
    with writer.env.lmdb.begin() as txn:
        left = [key for key, _ in under(txn, writer.env.db["log"], later.key())]
        assert left == []
        assert [key for key, _ in under(txn, writer.env.db["records"], b"b")] == []
    run(store.close())
