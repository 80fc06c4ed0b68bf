"""The records of a fabric, all in one slot, and how a store asks its cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringdove.clock import Clock, SystemClock
from ringdove.errors import RecordConflict, StoreUnavailable
from ringdove.stores.base import Record
from ringdove.stores.fabric.cluster import Cluster, slot_of
from ringdove.stores.fabric.wire import WAIT_MS, Copies
from ringdove.stores.fabric.words import accepted, fcall
from ringdove.stores.local import check_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.stores.fabric.cluster import Attempt
    from ringdove.stores.fabric.url import FabricUrl
    from ringdove.stores.fabric.wire import Word

_TAG = b"ringdove-records"
RECORDS_SLOT = slot_of(_TAG)
_KEYS = tuple(b"rd:{%b}:%b" % (_TAG, suffix) for suffix in (b"v", b"k", b"e"))


class FabricRecords:
    """See `ringdove.stores.base.RecordStore` for the contract."""

    def __init__(self, place: FabricUrl, clock: Clock | None) -> None:
        self.clock: Clock = clock or SystemClock()
        #: Tests pass a clock; otherwise each node goes by its own.
        self._own_time = clock is None
        self._copies_max = place.copies
        self._a_second = Copies(self._copies_max - 1, lambda _: 1)
        self._cluster = Cluster(place.nodes, place.login)
        self._opened = False

    # -- asking ---------------------------------------------------------------------------------

    def _now(self) -> str:
        return "" if self._own_time else str(self.clock.now_ms())

    async def _ask_copied(
        self, slot: int, attempt: Sequence[Word] | Attempt, copies: Copies
    ) -> Any:
        await self._open()
        reply, reached = await self._cluster.ask(slot, attempt, copies if copies.wanted else None)
        needed = min(copies.wanted, copies.needed(reply))
        if reached < needed:
            raise StoreUnavailable(
                f"Only {reached + 1} of {needed + 1} copies could be reached within {WAIT_MS} ms: "
                "what was asked may come to nothing. Try again."
            )
        return reply

    async def _open(self) -> None:
        if not self._opened:
            await self._cluster.open()
            self._opened = True

    async def _call(self, slot: int, command: Sequence[Word]) -> Any:
        await self._open()
        reply, _ = await self._cluster.ask(slot, command)
        return reply

    # -- records --------------------------------------------------------------------------------

    async def _look_up(self, name: str, *arguments: Word) -> Any:
        return accepted(await self._call(RECORDS_SLOT, fcall(name, _KEYS, arguments)))

    async def _write_record(self, name: str, *arguments: Word) -> tuple[Any, bool]:
        """What is answered, a RecordConflict too; and whether it was asked more than once."""
        command = fcall(name, _KEYS, arguments)
        asked = 0

        def attempt() -> list[Sequence[Word]]:
            nonlocal asked
            asked += 1
            return [command]

        reply = await self._ask_copied(RECORDS_SLOT, attempt, self._a_second)
        try:
            return accepted(reply), asked > 1
        except RecordConflict as conflict:
            return conflict, asked > 1

    async def get(self, key: str) -> Record | None:
        """See RecordStore."""
        told = await self._look_up("record_get", self._now(), key)
        return Record(key, told[2], told[0], int(told[1])) if told else None

    async def put(
        self, key: str, value: bytes, expect: int | None = None, expires_ms: int = 0
    ) -> Record:
        """See RecordStore."""
        check_record(key, value)
        wanted: Word = "" if expect is None else expect
        arguments = (self._now(), key, value)
        told, again = await self._write_record("record_put", *arguments, wanted, expires_ms)
        if (
            isinstance(told, RecordConflict)
            and again
            and expect is not None
            and await self.get(key) == Record(key, value, expect + 1, expires_ms)
        ):
            # The first attempt was carried out, and its answer lost.
            told, _ = await self._write_record("record_put", *arguments, expect + 1, expires_ms)
        if isinstance(told, RecordConflict):
            raise told
        return Record(key, value, told, expires_ms)

    async def remove(self, key: str, expect: int | None = None) -> bool:
        """See RecordStore."""
        wanted: Word = "" if expect is None else expect
        told, again = await self._write_record("record_remove", self._now(), key, wanted)
        if isinstance(told, RecordConflict):
            if again and expect and await self.get(key) is None:
                return True  # By the first attempt, as far as anybody can tell.
            raise told
        return bool(told)

    async def scan(self, prefix: str, after: str = "", count_max: int = 1000) -> list[Record]:
        """See RecordStore."""
        start: Word = f"({after}" if after and after >= prefix else f"[{prefix}"
        end = b"(" + prefix.encode() + b"\xff"
        found: list[Record] = []
        while start and len(found) < count_max:
            start, told = await self._look_up(
                "record_scan", self._now(), start, end, count_max - len(found)
            )
            found += [
                Record(key.decode(), value, version, int(expires))
                for key, version, expires, value in told
            ]
        return found
