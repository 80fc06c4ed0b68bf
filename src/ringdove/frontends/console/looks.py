"""What queues looked like lately, for all who watch.

Looking at a queue asks the store once for each of its stripes. However many people watch however
many queues, each is looked at no more than about once a second, and those that nobody looks at only
a few at a time: totals over thousands of queues are some seconds old, and cheap.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.errors import QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringdove.controllers.broker import Broker, QueueStats
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.frontends.console.sessions import Visitor

#: Milliseconds for which a look, and the list of queues, are good enough.
_FRESH_MS = 800
_LIST_MS = 2_000

#: Queues that are looked at in one step because nobody else does, those of the oldest looks first.
_SWEEP_MAX = 128

#: Queues that are looked at before the first totals are told.
_FIRST_MAX = 1_000


class Row(msgspec.Struct, frozen=True):
    """A queue in a list. Of several subscriptions the one that lags most counts."""

    messages: int
    bytes: int
    #: Messages ever sent, and those that the slowest subscription is not done with.
    sent: int
    waiting: int
    leased: int
    delayed: int
    #: When the oldest message came; 0 without one.
    oldest_ms: int


def row(stats: QueueStats) -> Row:
    """A queue in short."""
    counts = list(stats.subscriptions.values())
    return Row(
        stats.messages,
        stats.nbytes,
        sum(stripe.tail for stripe in stats.stripes.values()),
        max((waiting for waiting, _, _ in counts), default=0),
        sum(leased for _, leased, _ in counts),
        max((delayed for _, _, delayed in counts), default=0),
        stats.oldest_ms,
    )


class Looks:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._now_ms = broker.store.clock.now_ms
        self._infos: list[QueueInfo] = []
        self._listed_ms = -_LIST_MS
        #: By name: when it was looked at, and what was seen.
        self._seen: dict[str, tuple[int, Row]] = {}

    async def infos(self, *, anew: bool = False) -> list[QueueInfo]:
        """All queues by name; those made a moment ago only if they are listed anew."""
        now_ms = self._now_ms()
        if anew or now_ms - self._listed_ms >= _LIST_MS:
            self._infos = await self._broker.list_queues()
            self._listed_ms = now_ms
            names = {info.name for info in self._infos}
            for name in self._seen.keys() - names:
                del self._seen[name]
        return self._infos

    async def rows(self, names: Iterable[str]) -> dict[str, Row]:
        """What these queues look like now; those that are gone are left out."""
        found = {}
        for name in names:
            with contextlib.suppress(QueueNotFound):
                found[name] = await self._row(name)
        return found

    async def _row(self, name: str) -> Row:
        at_ms, known = self._seen.get(name, (-_FRESH_MS, None))
        if known is None or self._now_ms() - at_ms >= _FRESH_MS:
            known = row(await self._broker.queue_stats(name))
            self._seen[name] = (self._now_ms(), known)
        return known

    def known(self, name: str) -> Row | None:
        """What a queue looked like when it was looked at last."""
        seen = self._seen.get(name)
        return None if seen is None else seen[1]

    async def sweep(self) -> None:
        """Look at some queues whose last look is old."""
        infos = await self.infos()
        old_ms = self._now_ms() - _FRESH_MS
        ages = [(self._seen[i.name][0] if i.name in self._seen else 0, i.name) for i in infos]
        most = _SWEEP_MAX if self._seen else _FIRST_MAX
        old = sorted(age for age in ages if age[0] < old_ms)[:most]
        await self.rows(name for _, name in old)

    async def seen_by(self, visitor: Visitor, *, anew: bool = False) -> list[QueueInfo]:
        """The queues that a visitor may see."""
        infos = await self.infos(anew=anew)
        if visitor.is_admin:
            return infos
        return [info for info in infos if visitor.may(info.name, "receive")]

    async def totals(self, visitor: Visitor) -> dict[str, Any]:
        """Everything that a visitor may see, added up; and the deepest queues."""
        await self.sweep()
        infos = await self.seen_by(visitor)
        rows = {i.name: seen for i in infos if (seen := self.known(i.name)) is not None}
        deepest = sorted(rows, key=lambda name: (-rows[name].waiting, -rows[name].sent))
        oldest = [r.oldest_ms for r in rows.values() if r.oldest_ms and r.waiting]
        return {
            "queues": len(infos),
            "counted": len(rows),
            **{
                field: sum(getattr(r, field) for r in rows.values())
                for field in ("messages", "bytes", "sent", "waiting", "leased", "delayed")
            },
            "oldest_ms": min(oldest, default=0),
            "deepest": {name: rows[name] for name in deepest[:_DEEPEST]},
        }


#: Queues that the overview shows.
_DEEPEST = 8
