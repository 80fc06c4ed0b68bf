"""Tidying: retention where nobody looks, records that have expired, free space given back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.errors import StoreCorrupted
from ringdove.stores.base import StripeId
from ringdove.stores.embedded import records
from ringdove.stores.embedded.changes import Change

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from ringdove.stores.embedded.environment import Directory
    from ringdove.stores.embedded.state import StripeState
    from ringdove.stores.embedded.writer import Writer

_log = logging.getLogger(__name__)


class Sweep:
    """The sweep of one environment; its writer's thread runs it."""

    def __init__(
        self,
        writer: Writer,
        lock: threading.RLock,
        states: Mapping[StripeId, StripeState],
        load: Callable[[StripeId], object],
    ) -> None:
        self._writer = writer
        self._lock = lock
        self._states = states
        self._load = load
        #: How far it has come among the stripes and records.
        self._stripe = b""
        self._record = ""
        self._rounds = 0

    def run(self) -> None:
        """Visit every loaded stripe, some that are not, and some records."""
        writer = self._writer
        now_ms = writer.clock.now_ms()
        with self._lock:
            if self._rounds % limits.SWEEPS_PER_READER_CHECK == 0:
                # A backup or fsck that was killed would keep all pages from being used again.
                writer.env.lmdb.reader_check()
            self._rounds += 1
            self._load_some()
            for state in self._states.values():
                if state.env is writer.env and not state.deleted:
                    expired = state.expire(now_ms)
                    trim_offset = state.stripe.trim_offset(now_ms)
                    if expired or state.log_head < trim_offset >= state.head_end:
                        writer.dirty.add(state)
        if writer.env.durability == "disk":
            keys, self._record = records.expired(writer.env, self._record, now_ms)
            if keys:
                writer.submit(Change(records.forget_edit(writer.env, keys, now_ms)))

    def _load_some(self) -> None:
        """Load a few stripes in turn, so that retention reaches also those that nobody uses."""
        env = self._writer.env
        with env.lmdb.begin() as txn:
            cursor = txn.cursor(env.db["stripes"])
            found = cursor.set_range(self._stripe)
            for _ in range(limits.SWEEP_STRIPES_MAX):
                if not found:
                    self._stripe = b""
                    return
                key = bytes(cursor.key())
                self._stripe = key + b"\0"
                try:
                    self._load(StripeId.from_key(key))
                except StoreCorrupted as error:
                    _log.warning("Retention passes over what is damaged in %s: %s", env.path, error)
                found = cursor.next()


def compact(directory: Directory, writers: list[Writer], lock: threading.RLock) -> tuple[int, int]:
    """Rewrite every environment without its free pages; bytes before and after."""
    before = after = 0
    directory.free_reserve()
    try:
        for writer in writers:
            with writer.paused(), lock:
                before += (writer.env.path / "data.mdb").stat().st_size
                writer.journal.renew()  # The new environment has none.
                writer.env.compact()
                after += (writer.env.path / "data.mdb").stat().st_size
    finally:
        directory.hold_reserve()
    return before, after
