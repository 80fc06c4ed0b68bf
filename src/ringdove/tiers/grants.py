"""Who may serve a broker that has two directories: the manager's side of hot standby (M6).

Each such broker has one record, changed only by compare-and-put. It names the directory that may
serve (`holder`), and the one that is an exact copy of it (`in_sync`, if there is one). The rules:

1. A new record's holder is whoever came first.
2. The holder may serve again at any time, under a new term and with nobody in sync: what the copy
   knows of the old process's last moments may differ.
3. The directory in sync becomes the holder when the holder's lease has lapsed, or was given back.
   Nobody else ever does.
4. Only the holder, in its term, says who is in sync; a request that was overtaken by a later one
   (`step`) counts no more, and repeating one changes nothing.

*When a lease has lapsed.* The holder renews by changing the record. A manager grants to another
only when it has itself seen the record unchanged for `lease_ms` on its own monotonic clock. So no
two clocks are compared; a manager that has just started waits a whole lease. The holder counts from
before it asked, and stops at `OWN_SHARE` of the lease. It asked before the record changed, and the
record changed before any manager saw it so: the holder's count began first, and ends first as long
as the clocks' rates differ by less than the share left, ten per cent and more. Delays on the way
only make the manager's count begin later. The holder's clock goes on while its machine sleeps.

Acknowledged data does not depend on clocks at all: the holder acknowledges what the copy has
confirmed, or what it did after recording that there is no copy; and that record is refused when
somebody else was granted before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from ringdove.core.settings import check_name
from ringdove.errors import InvalidArgument, RecordConflict, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringdove.stores.base import RecordStore

#: The lease by default, and its bounds, in milliseconds.
LEASE_MS = 1_500
LEASE_MS_MIN, LEASE_MS_MAX = 300, 60_000

#: How much of its lease a holder uses, and after how much of it it renews.
OWN_SHARE = 0.8
RENEW_SHARE = 0.25

_PREFIX = "tier/grant/"

#: Attempts to change a record that others change at the same time.
_ATTEMPTS = 10


class Grant(msgspec.Struct, frozen=True):
    """The record of one broker."""

    name: str
    #: Id of the directory that may serve, and where it is reached.
    holder: str
    url: str
    lease_ms: int
    #: Counts processes that were granted.
    term: int = 1
    #: Id of the directory that is an exact copy; empty when none is.
    in_sync: str = ""
    #: Number of the last change of `in_sync` in this term.
    step: int = 0
    #: Counts renewals, so that each changes the record.
    beat: int = 0
    #: Whether the holder has stopped and given its lease back.
    released: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """What a manager answers."""

    granted: bool
    #: The record as it is now; None when there is none.
    grant: Grant | None = None
    #: When it is worth asking again, in milliseconds.
    again_ms: int = 0


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the holder, or who would be, asks."""

    name: str
    #: Id of the asking directory.
    member: str
    url: str = ""
    lease_ms: int = LEASE_MS
    term: int = 0
    step: int = 0
    in_sync: str = ""
    #: Whether the asking directory may be the first of its broker.
    first: bool = False


def acquire(grant: Grant | None, ask: Request, *, lapsed: bool) -> Grant | None:
    """The record that lets `ask.member` serve, or None when it may not (rules 1 to 3)."""
    if grant is None:
        return Grant(ask.name, ask.member, ask.url, ask.lease_ms) if ask.first else None
    if grant.holder != ask.member and not (
        grant.in_sync == ask.member and (lapsed or grant.released)
    ):
        return None
    return Grant(ask.name, ask.member, ask.url, ask.lease_ms, grant.term + 1)


def renew(grant: Grant | None, ask: Request) -> Grant | None:
    """The record with the lease renewed, or None when it is somebody else's."""
    if not _holds(grant, ask):
        return None
    return msgspec.structs.replace(grant, beat=grant.beat + 1, url=ask.url)


def sync(grant: Grant | None, ask: Request) -> Grant | None:
    """The record with `ask.in_sync` as copy, or None when the asker may not say (rule 4)."""
    if not _holds(grant, ask) or ask.step < grant.step:
        return None
    if ask.step == grant.step and ask.in_sync != grant.in_sync:
        return None
    return msgspec.structs.replace(grant, in_sync=ask.in_sync, step=ask.step)


def release(grant: Grant | None, ask: Request) -> Grant | None:
    """The record of a holder that has stopped serving."""
    return msgspec.structs.replace(grant, released=True) if _holds(grant, ask) else None


def _holds(grant: Grant | None, ask: Request) -> TypeGuard[Grant]:
    return (
        grant is not None
        and (grant.holder, grant.term) == (ask.member, ask.term)
        and not grant.released
    )


class Grants:
    """The rules over a store's records; any number of managers may share them."""

    def __init__(
        self, records: RecordStore, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._monotonic_s = monotonic_s
        #: By broker: the version of its record, and since when it has been that one.
        self._seen: dict[str, tuple[int, float]] = {}
        #: The commands that a manager answers.
        self.commands: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "grant.acquire": self._acquire,
            "grant.renew": self._renew,
            "grant.sync": self._sync,
            "grant.release": self._release,
        }

    async def _acquire(self, arguments: dict[str, Any]) -> Any:
        return await self._change(
            arguments, lambda grant, ask, lapsed: acquire(grant, ask, lapsed=lapsed)
        )

    async def _renew(self, arguments: dict[str, Any]) -> Any:
        return await self._change(arguments, lambda grant, ask, _: renew(grant, ask))

    async def _sync(self, arguments: dict[str, Any]) -> Any:
        return await self._change(arguments, lambda grant, ask, _: sync(grant, ask))

    async def _release(self, arguments: dict[str, Any]) -> Any:
        return await self._change(arguments, lambda grant, ask, _: release(grant, ask))

    async def _change(
        self,
        arguments: dict[str, Any],
        rule: Callable[[Grant | None, Request, bool], Grant | None],
    ) -> Any:
        ask = _checked(arguments)
        key = _PREFIX + ask.name
        for _ in range(_ATTEMPTS):
            record = await self._records.get(key)
            grant = msgspec.json.decode(record.value, type=Grant) if record else None
            version = record.version if record else 0
            left_s = self._left_s(grant, version)
            changed = rule(grant, ask, left_s <= 0)
            if changed is None:
                refused = Verdict(granted=False, grant=grant, again_ms=max(1, int(left_s * 1000)))
                return msgspec.to_builtins(refused)
            try:
                put = await self._records.put(key, msgspec.json.encode(changed), expect=version)
            except RecordConflict:
                continue
            self._seen[ask.name] = (put.version, self._monotonic_s())
            return msgspec.to_builtins(Verdict(granted=True, grant=changed))
        raise StoreUnavailable(f"The grant of {ask.name!r} is changed by many at once: ask again.")

    def _left_s(self, grant: Grant | None, version: int) -> float:
        """How much of the holder's lease is left, as far as this manager has seen."""
        if grant is None:
            return 0
        now_s = self._monotonic_s()
        known, since_s = self._seen.get(grant.name, (0, now_s))
        if known != version:
            since_s = now_s
            self._seen[grant.name] = (version, now_s)
        return since_s + grant.lease_ms / 1000 - now_s


def _checked(arguments: dict[str, Any]) -> Request:
    try:
        ask = msgspec.convert(arguments, Request)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"A grant cannot be asked for so: {error}.") from error
    check_name(ask.name, "broker")
    if not LEASE_MS_MIN <= ask.lease_ms <= LEASE_MS_MAX:
        raise InvalidArgument(
            f"A lease of {ask.lease_ms} ms: it is {LEASE_MS_MIN} to {LEASE_MS_MAX} ms."
        )
    return ask
