"""Looking after a data directory: verify everything in it, and copy it while it is in use.

Both open the directory read-only, beside a process that may be writing: LMDB gives them one
consistent view.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.core.block import Block
from ringdove.core.settings import QueueSettings
from ringdove.errors import InvalidArgument, RingdoveError, StoreUnavailable
from ringdove.stores.base import STRIPE_KEY_BYTES, StripeId
from ringdove.stores.embedded import journal, records
from ringdove.stores.embedded.environment import (
    Environment,
    check_format_text,
    make_directory,
    maybe_find,
    memory_is_torn,
    write_synced,
)
from ringdove.stores.embedded.state import (
    DAMAGE,
    OFFSET,
    TAIL,
    StripeRecord,
    decode_stripe,
    decode_subscription,
    load_index,
    load_stripe,
    under,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ringdove.core.settings import Durability
    from ringdove.stores.base import Record

#: Blocks between two calls of the progress function.
_PROGRESS_EVERY = 256


@dataclass(slots=True)
class Report:
    """What `fsck` found."""

    queues: int = 0
    stripes: int = 0
    blocks: int = 0
    messages: int = 0
    nbytes: int = 0
    #: What is wrong, one sentence each; empty when all is well.
    faults: list[str] = field(default_factory=list)
    #: What is odd and harmless.
    remarks: list[str] = field(default_factory=list)


def fsck(path: Path, on_progress: Callable[[Report], None] | None = None) -> Report:
    """Verify every checksum and every invariant of a data directory."""
    report = Report()
    _check_is_data_directory(path)
    known: set[StripeId] = set()
    for name, place in _environments(path):
        if name == "memory" and memory_is_torn(path):
            report.remarks.append("The machine went down: queues in memory will be emptied.")
            continue
        journaled = journal.contents(place / "journal")  # First: what it lacks by then, is in here.
        try:
            env = Environment(place, name, readonly=True)
        except RingdoveError as error:
            report.faults.append(str(error))
            continue
        try:
            known |= _check_environment(env, report, on_progress or _quiet)
            _check_journal(env, journaled, report)
        except Exception as error:  # noqa: BLE001  whatever damage does, it is reported
            report.faults.append(f"{env.path}: reading failed: {error!r}.")
        finally:
            env.lmdb.close()
    _check_queues(path, known, report)
    return report


def backup(path: Path, target: Path) -> int:
    """Copy a data directory, also while it is in use; answers the bytes written."""
    _check_is_data_directory(path)
    if target.exists() and any(target.iterdir()):
        raise InvalidArgument(f"{target} is not empty: name a new directory for the backup.")
    if target.resolve().is_relative_to(path.resolve()):
        raise InvalidArgument(
            f"{target} is within {path} and would be lost with it: name a place elsewhere."
        )
    make_directory(target)
    nbytes = 0
    for name, place in _environments(path):
        journaled = journal.contents(place / "journal")  # First, as in fsck.
        env = Environment(place, name, readonly=True)
        try:
            env.copy_to(target / name, compact=True)
        finally:
            env.lmdb.close()
        _take_over(Environment(target / name, name), journaled)
        nbytes += (target / name / "data.mdb").stat().st_size
    write_synced(target / "format", (path / "format").read_text())
    return nbytes


def _take_over(env: Environment, journaled: bytes) -> None:
    """Give a copy what only the journal had; it needs none itself."""
    try:
        journal.recover(env, journaled)
    finally:
        env.close()


def _environments(path: Path) -> list[tuple[Durability, Path]]:
    names: tuple[Durability, ...] = ("disk", "memory")
    places = [(name, maybe_find(path / name)) for name in names]
    return [(name, place) for name, place in places if place is not None]


def _check_is_data_directory(path: Path) -> None:
    if not (path / "format").exists():
        raise StoreUnavailable(f"{path} is no data directory of Ringdove: it has no file 'format'.")
    check_format_text(path, (path / "format").read_text(errors="replace"))


def _check_environment(
    env: Environment, report: Report, on_progress: Callable[[Report], None]
) -> set[StripeId]:
    with env.lmdb.begin() as txn:
        graves = {key for key, _ in under(txn, env.db["graves"], b"")}
        known: dict[bytes, StripeRecord | None] = {}
        for key, value in under(txn, env.db["stripes"], b""):
            report.stripes += 1
            known[key] = None
            try:
                known[key] = decode_stripe(value)
            except DAMAGE as error:
                label = tuple(StripeId.from_key(key))
                report.faults.append(f"stripe {label} has damaged settings: {error}.")
        for key, record in known.items():
            if record is not None:
                _check_stripe(txn, env, key, record, report, on_progress)
        for name in ("log", "subs", "done", "leases", "producers", "ids", "id_times"):
            _check_strays(txn, env, name, known.keys() | graves, report)
    return {StripeId.from_key(key) for key in known}


def _check_stripe(
    txn: Any,
    env: Environment,
    key: bytes,
    record: StripeRecord,
    report: Report,
    on_progress: Callable[[Report], None],
) -> None:
    stripe_id = StripeId.from_key(key)
    label = f"stripe {tuple(stripe_id)}"
    raw = txn.get(key, db=env.db["tails"])
    if raw is None:
        report.faults.append(f"{label} has no tail.")
        return
    try:
        tail, nbytes_recorded, head_recorded = TAIL.unpack(raw)
    except struct.error:
        report.faults.append(f"{label} has a damaged tail.")
        return
    # A relay's copy lacks what its origin had lost or trimmed before it came.
    relayed = record.copied or QueueSettings.decode(record.settings).relayed
    nbytes, head, at = 0, None, None
    for log_key, value in under(txn, env.db["log"], key):
        nbytes += len(value)
        report.blocks += 1
        if report.blocks % _PROGRESS_EVERY == 0:
            on_progress(report)
        end = OFFSET.unpack_from(log_key, STRIPE_KEY_BYTES)[0] + 1
        try:
            block = Block.decode(value)
        except RingdoveError as error:
            report.faults.append(f"{label}: the block before offset {end} is damaged: {error}")
            at = end
            continue
        report.messages += block.count
        if block.end != end or block.priority != stripe_id.level:
            report.faults.append(f"{label}: {block} is filed under offset {end - 1}.")
        if at is not None and block.base != at and not relayed:
            report.faults.append(f"{label}: offsets {at} to {block.base - 1} are missing.")
        head = block.base if head is None else head
        at = end
    report.nbytes += nbytes
    if at is not None and at != tail:
        report.faults.append(f"{label}: the log ends at {at}, its tail says {tail}.")
    if not head_recorded <= tail or (head is not None and head_recorded > head):
        report.faults.append(f"{label} says that its log begins at {head_recorded}.")
    if nbytes != nbytes_recorded:
        report.faults.append(f"{label} holds {nbytes} bytes and records {nbytes_recorded}.")
    _check_subscriptions(txn, env, key, record, tail, tail if head is None else head, label, report)
    on_progress(report)


def _check_subscriptions(
    txn: Any,
    env: Environment,
    key: bytes,
    record: StripeRecord,
    tail: int,
    head: int,
    label: str,
    report: Report,
) -> None:
    try:
        stripe = load_stripe(txn, env, key, record, Random(0))
    except DAMAGE as error:
        report.faults.append(f"{label} is damaged: {error}")
        return
    for sub_key, value in under(txn, env.db["subs"], key):
        name = sub_key[STRIPE_KEY_BYTES:].decode(errors="replace")
        try:
            sub = decode_subscription(value)
            index = load_index(txn, env, stripe, key, sub)
        except DAMAGE as error:
            report.faults.append(f"{label}: {name!r} is damaged: {error}")
            continue
        if not sub.floor <= tail:
            report.faults.append(f"{label}: {name!r} is done up to {sub.floor}, beyond {tail}.")
        if sub.floor < head and not (record.copied or stripe.settings.relayed):
            report.faults.append(f"{label}: {name!r} still wants {sub.floor}, trimmed to {head}.")
        report.faults += [f"{label}: {name!r}: {fault}." for fault in index.audit(tail)]


def _check_journal(env: Environment, data: bytes, report: Report) -> None:
    """Verify and count blocks that the journal has and the environment has not."""
    entries = journal.entries_of(data, journal.applied_by(env))
    for (number, key), value in journal.net(entries).items():
        if number != journal.NUMBERS["log"] or value is None:
            continue
        report.blocks += 1
        report.nbytes += len(value)
        try:
            report.messages += Block.decode(value).count
        except RingdoveError as error:
            label = f"stripe {tuple(StripeId.from_key(key))}"
            report.faults.append(f"{label}: a block in the journal is damaged: {error}")


def _check_strays(
    txn: Any, env: Environment, name: str, owners: set[bytes], report: Report
) -> None:
    """Find entries that belong to no stripe, jumping from stripe to stripe."""
    cursor = txn.cursor(env.db[name])
    found = cursor.first()
    while found:
        key = cursor.key()[:STRIPE_KEY_BYTES]
        if key not in owners:
            report.faults.append(f"{env.path}: {name} has entries of an unknown stripe.")
        following = int.from_bytes(key, "big") + 1
        found = cursor.set_range(following.to_bytes(STRIPE_KEY_BYTES + 1, "big")[1:])


def _check_queues(path: Path, known: set[StripeId], report: Report) -> None:
    """Verify the records, and compare the catalogue with the stripes that are there."""
    try:
        env = Environment(maybe_find(path / "disk") or path / "disk", "disk", readonly=True)
    except RingdoveError:
        return
    ids: set[int] = set()
    try:
        for key, record in records.audit(env):
            if record is None:
                report.faults.append(f"The record {key!r} is damaged.")
            elif key.startswith("queue/"):
                report.queues += 1
                ids |= _queue_ids(record, report)
    except RingdoveError as error:
        report.faults.append(str(error))
    finally:
        env.lmdb.close()
    stray = {stripe.queue for stripe in known} - ids
    report.remarks += [f"Queue id {queue} has stripes and no name." for queue in sorted(stray)]
    missing = ids - {stripe.queue for stripe in known}
    if not memory_is_torn(path):
        report.faults += [
            f"Queue id {queue} has a name and no stripes." for queue in sorted(missing)
        ]


class _QueueHead(msgspec.Struct, array_like=True):
    """How a queue's record begins; the rest of it is the catalogue's affair."""

    id: int


def _queue_ids(record: Record, report: Report) -> set[int]:
    """The id that a queue's record names; none if it is damaged."""
    try:
        return {msgspec.msgpack.decode(record.value, type=_QueueHead).id}
    except DAMAGE as error:
        report.faults.append(f"The record {record.key!r} is damaged: {error}.")
        return set()


def _quiet(_report: Report) -> None:
    """Report progress to nobody."""
