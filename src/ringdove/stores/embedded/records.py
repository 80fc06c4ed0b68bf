"""Records in LMDB: small versioned values by key."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import lmdb
import msgspec

from ringdove import limits
from ringdove.errors import StoreCorrupted
from ringdove.stores.base import Record
from ringdove.stores.embedded.environment import translated
from ringdove.stores.embedded.state import encode, under
from ringdove.stores.local import (
    RECORD_KEY_BYTES_MAX,
    check_expected,
    check_record,
    live,
    next_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringdove.stores.embedded.environment import Environment

_decode = msgspec.msgpack.Decoder(tuple[bytes, int, int]).decode

#: What decoding a damaged record may raise.
_DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError)


@contextmanager
def reading(env: Environment) -> Iterator[Any]:
    """A read transaction whose failures are in our own words."""
    try:
        with env.lmdb.begin() as txn:
            yield txn
    except lmdb.Error as error:
        raise translated(error, env.path) from error
    except _DAMAGE as error:
        raise _damaged(env, error) from error


def _damaged(env: Environment, error: Exception) -> StoreCorrupted:
    return StoreCorrupted(f"A record in {env.path} is damaged: {error} Run 'ringdove fsck'.")


def get(env: Environment, key: str, now_ms: int) -> Record | None:
    """The record, unless it is missing or has expired."""
    with reading(env) as txn:
        return _get(txn, env, key, now_ms)


def put_edit(
    env: Environment, key: str, value: bytes, expect: int | None, expires_ms: int, now_ms: int
) -> Callable[[Any], Record]:
    """The edit that writes a record, for the writer."""
    check_record(key, value)

    def edit(txn: Any) -> Record:
        record = next_record(_get(txn, env, key, now_ms), key, value, expect, expires_ms)
        stored = encode((record.value, record.version, record.expires_ms))
        txn.put(key.encode(), stored, db=env.db["records"])
        return record

    return edit


def remove_edit(
    env: Environment, key: str, expect: int | None, now_ms: int
) -> Callable[[Any], bool]:
    """The edit that deletes a record, for the writer."""

    def edit(txn: Any) -> bool:
        current = _get(txn, env, key, now_ms)
        check_expected(current, key, expect)
        if current is not None:
            txn.delete(key.encode(), db=env.db["records"])
        return current is not None

    return edit


def scan(env: Environment, prefix: str, after: str, count_max: int, now_ms: int) -> list[Record]:
    """Live records in key order."""
    found: list[Record] = []
    start = after.encode() + b"\0" if after else b""
    with reading(env) as txn:
        for key, value in under(txn, env.db["records"], prefix.encode(), start):
            if len(found) >= count_max:
                break
            record = live(Record(key.decode(), *_decode(value)), now_ms)
            if record is not None:
                found.append(record)
    return found


def audit(env: Environment) -> Iterator[tuple[str, Record | None]]:
    """Every record by its key, those that have expired too; None for one that is damaged."""
    with reading(env) as txn:
        for key, value in under(txn, env.db["records"], b""):
            try:
                record = Record(key.decode(), *_decode(value))
            except _DAMAGE:
                record = None
            yield key.decode(errors="backslashreplace"), record


def expired(env: Environment, after: str, now_ms: int) -> tuple[list[str], str]:
    """Keys of expired records among the next few behind `after`, and where to go on ('': done)."""
    keys: list[str] = []
    with reading(env) as txn:
        cursor = txn.cursor(env.db["records"])
        found = cursor.set_range(after.encode() + b"\0")
        for _ in range(limits.SWEEP_RECORDS_MAX):
            if not found:
                return keys, ""
            with suppress(*_DAMAGE):  # Nobody knows when that expires; the others do.
                after = bytes(cursor.key()).decode()
                if live(Record(after, *_decode(cursor.value())), now_ms) is None:
                    keys.append(after)
            found = cursor.next()
    return keys, after


def forget_edit(env: Environment, keys: list[str], now_ms: int) -> Callable[[Any], None]:
    """The edit that deletes those of the records that are still expired."""

    def edit(txn: Any) -> None:
        for key in keys:
            if _get(txn, env, key, now_ms) is None:
                txn.delete(key.encode(), db=env.db["records"])

    return edit


def _get(txn: Any, env: Environment, key: str, now_ms: int) -> Record | None:
    if not 0 < len(key.encode()) <= RECORD_KEY_BYTES_MAX:
        return None
    raw = txn.get(key.encode(), db=env.db["records"])
    try:
        return None if raw is None else live(Record(key, *_decode(raw)), now_ms)
    except _DAMAGE as error:  # An edit must not fail with all others of its commit.
        raise _damaged(env, error) from error
