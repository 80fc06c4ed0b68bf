"""The catalogue of queues: names, settings and subscriptions, kept as records of the store.

    record queue/NAME            id, settings, when it was made, the most stripes it ever had; the
                                 record's version is the version of the settings that every store
                                 call carries
    record subscriptions/ID      names of the subscriptions that every stripe has confirmed
    record deleted/ID            a queue that is being deleted: its name and stripes

A controller remembers what it has read; a call that turns out to be stale makes it read again.

A stripe lives as long as its queue. With fewer stripes or priorities, those that are too many rest,
empty, and go on where they were when there are more again: what was sent has an id that is never
given to another message (I7).
"""

from __future__ import annotations

import difflib
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ringdove import limits
from ringdove.controllers.accounts import owner_of
from ringdove.core.settings import SHAPING, QueueSettings, check_name
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import (
    QueueExists,
    QueueNotFound,
    RecordConflict,
    SettingsRefused,
    SubscriptionNotFound,
)
from ringdove.pending import Pending
from ringdove.stores.base import Record, Start, Store, StripeId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    #: Notes to change, or what makes them from those there are.
    Notes = Mapping[str, str | None] | Callable[[Mapping[str, str]], Mapping[str, str | None]]

#: How often settings are changed anew because others have changed them meanwhile.
_CHANGE_ATTEMPTS = 20

#: Names that one which is missing is compared with, at most: a tenth of a millisecond each.
_ALIKE_MAX = 64


class QueueInfo(NamedTuple):
    """A queue as the catalogue knows it."""

    name: str
    id: int
    settings: QueueSettings
    version: int
    created_ms: int
    #: The most stripes, and the most priority levels, that it had before; not known to clients.
    stripes_made: int = 0
    levels_made: int = 0

    def stripes(self) -> tuple[StripeId, ...]:
        """All stripes that are in use, priority levels included."""
        return _stripes(self.id, self.settings.stripes, self.settings.priority + 1)

    def stripes_ever(self) -> tuple[StripeId, ...]:
        """All stripes, with those that rest."""
        return _stripes(self.id, *self.shape_ever())

    def shape_ever(self) -> tuple[int, int]:
        """The most stripes, and the most priority levels, that it has and had."""
        return (
            max(self.settings.stripes, self.stripes_made),
            max(self.settings.priority + 1, self.levels_made),
        )

    def changed_to(self, settings: QueueSettings) -> QueueInfo:
        """The queue with the next version of its settings."""
        stripes, levels = self.shape_ever()
        return self._replace(
            settings=settings,
            version=self.version + 1,
            stripes_made=stripes,
            levels_made=levels,
        )


@lru_cache(maxsize=limits.SETTINGS_CACHE_MAX)
def _stripes(queue: int, count: int, levels: int) -> tuple[StripeId, ...]:
    return tuple(
        StripeId(queue, number, level) for level in range(levels) for number in range(count)
    )


class _QueueRecord(msgspec.Struct, array_like=True):
    id: int
    created_ms: int
    settings: QueueSettings
    stripes_made: int = 0
    levels_made: int = 0


class _Deletion(msgspec.Struct, array_like=True):
    name: str
    id: int
    stripes: int
    levels: int


class Catalog:
    """Creates, finds, changes and deletes queues."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, QueueInfo] = {}
        #: The queue of that name, if it was looked up before.
        self.known: Callable[[str], QueueInfo | None] = self._known.get
        #: Queues whose recorded subscriptions somebody changes just now.
        self._changing_names: dict[int, Pending[None]] = {}

    async def create(
        self, name: str, settings: QueueSettings, queue_id: int | None = None
    ) -> QueueInfo:
        """Make a queue, and its dead-letter queue if that is missing. Same again is no error.

        `queue_id` is that of the origin when the queue is a copy; the ids of its stripes and so its
        positions are the same then.
        """
        check_name(name)
        settings = _with_dead_letter(name, settings)
        existing = await self._look_up(name)
        if existing is not None:
            return _same_or_refuse(existing, settings)
        await self._make_dead_letter(settings)
        queue_id = secrets.randbits(62) | 1 if queue_id is None else queue_id
        info = QueueInfo(name, queue_id, settings, 1, self._store.clock.now_ms())
        for stripe in info.stripes():
            await self._store.create(stripe, settings, 1)
        await self._store.put(
            _subscriptions_key(info.id), msgspec.msgpack.encode([DEFAULT_SUBSCRIPTION])
        )
        try:
            await self._store.put(_queue_key(name), _record(info), expect=0)
        except RecordConflict:
            existing = await self.refresh(name)
            if existing.id != info.id:  # A copy has its origin's id, whoever made it.
                await self._delete_stripes(info.stripes())
            return _same_or_refuse(existing, settings)
        return self._remember(info)

    async def _make_dead_letter(self, settings: QueueSettings) -> None:
        if settings.dead_letter and await self._look_up(settings.dead_letter) is None:
            await self.create(settings.dead_letter, dead_letter_settings(settings))

    async def _look_up(self, name: str) -> QueueInfo | None:
        """The queue as it is recorded now: other controllers may have changed or deleted it."""
        self.forget(name)
        return await self.maybe_get(name)

    async def get(self, name: str) -> QueueInfo:
        """The queue, or QueueNotFound with the nearest name."""
        info = await self.maybe_get(name)
        if info is None:
            near = difflib.get_close_matches(name, await self._like(name), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise QueueNotFound(f"There is no queue {name!r}.{hint}")
        return info

    async def maybe_get(self, name: str) -> QueueInfo | None:
        """The queue, or None."""
        known = self._known.get(name)
        if known is not None:
            return known
        record = await self._store.get(_queue_key(check_name(name)))
        return None if record is None else self._remember(_info(record))

    async def find(
        self, prefix: str = "", after: str = "", count_max: int = limits.SETTINGS_CACHE_MAX
    ) -> list[QueueInfo]:
        """Queues whose name starts with `prefix` and is greater than `after`, by name."""
        records = await self._store.scan(
            _queue_key(prefix), _queue_key(after) if after else "", count_max
        )
        return [_info(record) for record in records]

    async def _like(self, name: str) -> list[str]:
        """Names of the same account, as far as a suggestion needs them: few, whatever there are."""
        account, own = owner_of(name)
        start = name[: len(name) - len(own)]
        found = await self.find(start, count_max=_ALIKE_MAX)
        if len(found) == _ALIKE_MAX:
            found = await self.find(start + own[:2], count_max=_ALIKE_MAX)
        return [info.name for info in found if owner_of(info.name)[0] == account]

    async def change(
        self,
        name: str,
        chosen: dict[str, Any],
        notes: Notes | None = None,
    ) -> QueueInfo:
        """Change settings; see `_refuse_reshaping` for what must wait until the queue is empty.

        Of `notes`, None removes one; those not named stay, also if others are changed meanwhile. A
        function makes them from those there are.
        """
        for attempt in range(_CHANGE_ATTEMPTS):
            try:
                return await self._change(name, chosen, notes)
            except RecordConflict:
                if attempt == _CHANGE_ATTEMPTS - 1:
                    raise
        raise AssertionError

    async def _change(self, name: str, chosen: dict[str, Any], notes: Notes | None) -> QueueInfo:
        self.forget(name)
        info = await self.get(name)
        if callable(notes):
            notes = notes(info.settings.notes)
        if notes:
            merged = {**info.settings.notes, **notes}
            kept = {note: text for note, text in merged.items() if text is not None}
            chosen = {**chosen, "notes": kept}
        settings = _with_dead_letter(name, info.settings.replace(**chosen))
        if settings == info.settings:
            return info
        await self._refuse_reshaping(info, settings)
        await self._make_dead_letter(settings)
        changed = info.changed_to(settings)
        await self._store.put(_queue_key(name), _record(changed), expect=info.version)
        try:
            await self.finish_change(changed)
            resting = set(info.stripes()) - set(changed.stripes())
            await self._refuse_messages(resting, "stripes, priority")
        except SettingsRefused:
            await self._take_back(info, changed)
            self.forget(name)
            raise
        return self._remember(changed)

    async def _take_back(self, info: QueueInfo, changed: QueueInfo) -> None:
        """A message arrived meanwhile and a stripe refused: return to the settings before."""
        before = changed.changed_to(info.settings)
        await self._store.put(_queue_key(info.name), _record(before), expect=changed.version)
        await self.finish_change(before)

    async def finish_change(self, info: QueueInfo) -> None:
        """Bring every stripe to the recorded settings, also after a crash half way through."""
        names = await self.subscriptions(info.name)
        for stripe in info.stripes_ever():
            await self._store.create(stripe, info.settings, info.version)
            await self._store.configure(stripe, info.settings, info.version)
            for subscription in names:
                await self._store.subscribe(stripe, subscription, Start("earliest"))
            if DEFAULT_SUBSCRIPTION not in names:
                await self._store.unsubscribe(stripe, DEFAULT_SUBSCRIPTION)

    async def delete(self, name: str) -> None:
        """Forget a queue and everything in it.

        What is to go is noted first: once its record is gone, nobody else would know of it.
        """
        info = await self.refresh(name)
        found: QueueInfo | None = info
        while found is not None:
            info = found
            await self._store.put(_deletion_key(info.id), _deletion(info))
            try:
                await self._store.remove(_queue_key(name), expect=info.version)
            except RecordConflict:  # Changed or made anew meanwhile; or gone, perhaps by ourselves.
                found = await self._look_up(name)
            else:
                break
        await self._delete_rest(info.id, info.stripes_ever())
        self.forget(name)  # Somebody may have looked it up before its record was gone.

    async def finish_deletions(self) -> None:
        """Delete what is left of queues whose deletion was begun and came to no end."""
        for record in await self._store.scan(_DELETED):
            begun = msgspec.msgpack.decode(record.value, type=_Deletion)
            queue = await self._look_up(begun.name)
            if queue is not None and queue.id == begun.id:
                await self._store.remove(record.key)  # It did not come to that.
            else:
                await self._delete_rest(begun.id, _stripes(begun.id, begun.stripes, begun.levels))

    async def _delete_rest(self, queue_id: int, stripes: Iterable[StripeId]) -> None:
        await self._store.remove(_subscriptions_key(queue_id))
        await self._delete_stripes(stripes)
        await self._store.remove(_deletion_key(queue_id))

    async def refresh(self, name: str) -> QueueInfo:
        """The queue, read anew."""
        self.forget(name)
        return await self.get(name)

    def forget(self, name: str) -> None:
        """Read the queue anew at the next use."""
        self._known.pop(name, None)

    # -- subscriptions --------------------------------------------------------------------------

    async def subscriptions(self, name: str) -> tuple[str, ...]:
        """The subscriptions of a queue, by name."""
        info = await self.get(name)
        record = await self._store.get(_subscriptions_key(info.id))
        return tuple(sorted(_names(record)))

    async def subscribe(
        self, name: str, subscription: str, start: Start, *, keep_default: bool = False
    ) -> None:
        """Add a subscription on every stripe; the first named one replaces `default`.

        `default` stays if it is asked for, or if it has been used or holds messages.
        """
        check_name(subscription, "subscription")
        info = await self.refresh(name)
        for stripe in info.stripes_ever():
            await self._store.subscribe(stripe, subscription, start)
        names = await self._change_names(info, add=subscription)
        drop = names == {DEFAULT_SUBSCRIPTION, subscription} and not keep_default
        if drop and not await self._default_in_use(info, subscription):
            await self._change_names(info, remove=DEFAULT_SUBSCRIPTION)
            for stripe in info.stripes_ever():
                await self._store.unsubscribe(stripe, DEFAULT_SUBSCRIPTION)

    async def unsubscribe(self, name: str, subscription: str) -> None:
        """Remove a subscription; what only it was waiting for is gone."""
        info = await self.refresh(name)
        names = set(await self.subscriptions(name))
        if subscription not in names:
            raise no_subscription(name, subscription, names)
        await self._change_names(info, remove=subscription)
        for stripe in info.stripes_ever():
            await self._store.unsubscribe(stripe, subscription)

    async def _change_names(self, info: QueueInfo, *, add: str = "", remove: str = "") -> set[str]:
        """Change the names that are recorded, whoever else does so meanwhile; answers them all.

        Those of this process take turns: a thousand that only tried again would be in each other's
        way for minutes.
        """
        while (turn := self._changing_names.get(info.id)) is not None:
            await turn
        turn = self._changing_names[info.id] = Pending()
        try:
            return await self._try_to_change_names(info, add, remove)
        finally:
            if self._changing_names.get(info.id) is turn:
                del self._changing_names[info.id]
            turn.resolve(None)

    async def _try_to_change_names(self, info: QueueInfo, add: str, remove: str) -> set[str]:
        key = _subscriptions_key(info.id)
        while True:
            record = await self._store.get(key)
            names = set(_names(record))
            changed = (names | {add} if add else names) - {remove}
            if changed == names:
                return names
            version = record.version if record is not None else 0
            try:
                value = msgspec.msgpack.encode(sorted(changed))
                await self._store.put(key, value, expect=version)
            except RecordConflict:
                continue
            return changed

    async def _default_in_use(self, info: QueueInfo, instead: str) -> bool:
        """Whether removing `default` would take data away.

        Somebody receives through it, or it holds what the subscription `instead` begins behind.
        """
        for stripe in info.stripes_ever():
            found = {own.name: own for own in (await self._store.stats(stripe)).subscriptions}
            default, other = found.get(DEFAULT_SUBSCRIPTION), found.get(instead)
            if default is not None and (default.floor or default.leased):
                return True
            if default is not None and other is not None and default.floor < other.floor:
                return True
        return False

    # -- inside ---------------------------------------------------------------------------------

    async def _refuse_reshaping(self, info: QueueInfo, settings: QueueSettings) -> None:
        """Refuse changes of stored shape: durability ever, the others while messages wait.

        A loose queue may get more stripes or priorities at any time.
        """
        changed = [n for n in SHAPING if getattr(settings, n) != getattr(info.settings, n)]
        if "durability" in changed:
            raise SettingsRefused(
                "durability cannot change: its data lives in another file. Make a new queue."
            )
        grows = (
            settings.order == info.settings.order == "loose"
            and settings.stripes >= info.settings.stripes
            and settings.priority >= info.settings.priority
        )
        if not changed or grows:
            return
        await self._refuse_messages(info.stripes(), ", ".join(changed))

    async def _refuse_messages(self, stripes: Iterable[StripeId], changed: str) -> None:
        for stripe in stripes:
            for subscription in (await self._store.stats(stripe)).subscriptions:
                if subscription.waiting or subscription.leased or subscription.delayed:
                    raise SettingsRefused(
                        f"{changed} can change only while the queue is empty: "
                        f"subscription {subscription.name!r} has messages. Drain it, or purge."
                    )

    async def _delete_stripes(self, stripes: Iterable[StripeId]) -> None:
        for stripe in stripes:
            await self._store.delete(stripe)

    def _remember(self, info: QueueInfo) -> QueueInfo:
        if len(self._known) >= limits.SETTINGS_CACHE_MAX:
            self._known.clear()
        self._known[info.name] = info
        return info


def dead_letter_settings(source: QueueSettings) -> QueueSettings:
    """What a dead-letter queue made by itself looks like: as durable, kept for two weeks."""
    return QueueSettings.make(
        durability=source.durability,
        body_bytes_max=source.body_bytes_max,
        retention_ms=max(source.retention_ms, 14 * 24 * 3600 * 1000),
    )


def no_subscription(queue: str, name: str, known: Iterable[str]) -> SubscriptionNotFound:
    """The error for a subscription that a queue does not have."""
    return SubscriptionNotFound(
        f"Queue {queue!r} has no subscription {name!r} "
        f"(it has: {', '.join(sorted(known)) or 'none'})."
    )


def _with_dead_letter(name: str, settings: QueueSettings) -> QueueSettings:
    if settings.dead_letter == name:
        raise SettingsRefused(f"Queue {name!r} cannot be its own dead-letter queue.")
    if settings.receives_max is not None and settings.dead_letter is None:
        return settings.replace(dead_letter=f"{name[: limits.NAME_CHARS_MAX - 5]}.dead")
    return settings


def _same_or_refuse(existing: QueueInfo, settings: QueueSettings) -> QueueInfo:
    if existing.settings == settings:
        return existing
    ours, theirs = existing.settings.to_dict(), settings.to_dict()
    differing = ", ".join(
        f"{key} is {ours[key]!r}, not {theirs[key]!r}" for key in ours if ours[key] != theirs[key]
    )
    raise QueueExists(
        f"Queue {existing.name!r} exists with other settings: {differing}. "
        "Use it as it is, or change its settings."
    )


def _info(record: Record) -> QueueInfo:
    stored = msgspec.msgpack.decode(record.value, type=_QueueRecord)
    name = record.key.partition("/")[2]
    return QueueInfo(
        name,
        stored.id,
        stored.settings,
        record.version,
        stored.created_ms,
        stored.stripes_made,
        stored.levels_made,
    )


def _record(info: QueueInfo) -> bytes:
    return msgspec.msgpack.encode(
        _QueueRecord(info.id, info.created_ms, info.settings, info.stripes_made, info.levels_made)
    )


def _deletion(info: QueueInfo) -> bytes:
    stripes, levels = info.shape_ever()
    return msgspec.msgpack.encode(_Deletion(info.name, info.id, stripes, levels))


def _names(record: Record | None) -> list[str]:
    return msgspec.msgpack.decode(record.value, type=list[str]) if record is not None else []


def _queue_key(name: str) -> str:
    return f"queue/{name}"


def _subscriptions_key(queue_id: int) -> str:
    return f"subscriptions/{queue_id:x}"


_DELETED = "deleted/"


def _deletion_key(queue_id: int) -> str:
    return f"{_DELETED}{queue_id:x}"
