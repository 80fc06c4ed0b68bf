"""Stripes where nothing was left: who receives from several does not visit those again in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringdove import limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ringdove.pending import Pending
    from ringdove.stores.base import Store, StripeId

#: Milliseconds for which a stripe of a fabric is believed to have nothing.
_MS_MAX = 2_000


class Barren(NamedTuple):
    """A stripe that has nothing: as long as its watch is the same, nothing has come."""

    watch: Pending[None]
    #: When that changes by time alone, and until when to believe it.
    due_ms: int | None
    end_ms: int | None


class BarrenStripes:
    """What the visits of one controller have left; it may forget it at any time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[StripeId, str], Barren] = {}

    def among(
        self,
        stripes: Sequence[StripeId],
        subscription: str,
        watches: Mapping[StripeId, Pending[None]],
        now_ms: int,
    ) -> dict[StripeId, int | None]:
        """Those at the front that still have nothing, and when they will; watches as they are."""
        found: dict[StripeId, int | None] = {}
        for stripe in stripes:
            known = self._known.get((stripe, subscription))
            if known is None:
                break
            watch, due_ms, end_ms = known
            if (
                watch is not watches[stripe]
                or (due_ms is not None and due_ms <= now_ms)
                or (end_ms is not None and end_ms <= now_ms)
            ):
                break
            found[stripe] = due_ms
        return found

    def note(
        self, stripe: StripeId, subscription: str, watch: Pending[None], due_ms: int | None
    ) -> None:
        """A stripe was visited and has more at `due_ms`; `watch` was taken before."""
        now_ms = self._store.clock.now_ms()
        if due_ms is not None and due_ms <= now_ms:
            self._known.pop((stripe, subscription), None)
            return
        if len(self._known) >= limits.SETTINGS_CACHE_MAX:
            self._known.clear()
        # Notices of other controllers come over a connection that may be dead for a while.
        alone = self._store.node_of(stripe) is None
        end_ms = None if alone else now_ms + _MS_MAX
        self._known[stripe, subscription] = Barren(watch, due_ms, end_ms)
