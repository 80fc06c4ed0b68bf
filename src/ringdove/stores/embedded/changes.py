"""Rare operations on a stripe that edit the databases themselves, as the writer runs them.

An edit may run more than once: when its commit fails, `undo` takes back what it did to memory, and
the writer may try it again without the appends. So each notes what it found when it runs, and
takes back no more than it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringdove.pending import Pending
from ringdove.stores.base import Claimed
from ringdove.stores.embedded.state import (
    NUMBER,
    StripeRecord,
    SubscriptionRecord,
    decode_stripe,
    decode_subscription,
    encode,
    under,
)
from ringdove.stores.local import start_offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.core.index import Index
    from ringdove.core.runs import Hold
    from ringdove.core.settings import QueueSettings
    from ringdove.stores.base import Start
    from ringdove.stores.embedded.state import StripeState


class Change(Pending[Any]):
    """A rare operation that edits the databases itself, such as creating a stripe."""

    __slots__ = ("edit", "outcome", "publish", "undo")

    def __init__(
        self,
        edit: Callable[[Any], Any],
        undo: Callable[[], None] | None = None,
        publish: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        #: Runs in the transaction, under the store's lock. May raise a RingdoveError before it has
        #: written anything.
        self.edit = edit
        #: Takes back what `edit` did to memory, if the commit fails; also when it came only half
        #: way.
        self.undo = undo
        #: Shows what is now durable, before it is answered and also when nobody waits any more. May
        #: run twice.
        self.publish = publish
        #: What `edit` has answered.
        self.outcome: Any = None


def configuring(state: StripeState, settings: QueueSettings, version: int) -> Change:
    """Gives a stripe newer settings."""
    taking_back: list[Callable[[], None]] = []

    def edit(txn: Any) -> None:
        stripe, db = state.check(0), state.env.db["stripes"]
        before = decode_stripe(txn.get(state.key, db=db))
        copied = before.copied or stripe.settings.relayed
        taking_back.append(stripe.configure(settings, version))
        state.expire_due_ms = 0
        record = StripeRecord(settings.encode(), version, stripe.epoch, copied)
        txn.put(state.key, encode(record), db=db)

    def undo() -> None:
        while taking_back:
            taking_back.pop()()
            state.expire_due_ms = 0

    # Whoever waits must learn of the new settings.
    return Change(edit, undo, publish=state.announce)


def subscribing(state: StripeState, subscription: str, start: Start) -> Change:
    """Adds a subscription unless it is there; answers its position."""
    key = state.key + subscription.encode()
    added: list[Index] = []

    def edit(txn: Any) -> int:
        stripe = state.check(0)
        index = stripe.subscriptions.get(subscription)
        if index is None:
            index = stripe.subscribe(subscription, start_offset(stripe, state, start))
            added.append(index)
            number = min(set(range(len(state.numbers) + 1)) - set(state.numbers.values()))
            state.numbers[subscription] = number
            record = SubscriptionRecord(number, index.done.floor)
            txn.put(key, encode(record), db=state.env.db["subs"])
        return index.done.floor

    def undo() -> None:
        while added:
            added.pop()
            state.stripe.unsubscribe(subscription)
            state.numbers.pop(subscription, None)

    return Change(edit, undo, publish=state.announce)


def unsubscribing(state: StripeState, subscription: str) -> Change:
    """Removes a subscription, if it is there."""
    removed: list[tuple[Index, int]] = []

    def edit(txn: Any) -> None:
        index = state.stripe.unsubscribe(subscription)
        if index is None:
            return
        number = state.numbers.pop(subscription)
        removed.append((index, number))
        txn.delete(state.key + subscription.encode(), db=state.env.db["subs"])
        prefix = state.key + NUMBER.pack(number)
        for name in ("done", "leases"):
            for key in [key for key, _ in under(txn, state.env.db[name], prefix)]:
                txn.delete(key, db=state.env.db[name])

    def undo() -> None:
        while removed:
            index, number = removed.pop()
            state.stripe.subscriptions[subscription] = index
            state.numbers[subscription] = number

    # Whoever waits there waits for nothing.
    return Change(edit, undo, publish=state.announce)


def claiming(
    state: StripeState, subscription: str, owner: bytes, lease_ms: int, now_ms: Callable[[], int]
) -> Change:
    """Gives `owner` alone the right to stream; nobody keeps a fence whose commit failed."""
    before: list[tuple[Index, int, Hold | None]] = []

    def edit(txn: Any) -> Claimed:
        stripe = state.check(0)
        index = stripe.subscription(subscription)
        found = index, index.fence, index.held
        claimed = Claimed(*stripe.claim(subscription, owner, lease_ms, now_ms()))
        before.append(found)
        key = state.key + subscription.encode()
        record = decode_subscription(txn.get(key, db=state.env.db["subs"]))
        txn.put(key, encode(record._replace(fence=claimed.fence)), db=state.env.db["subs"])
        return claimed

    def undo() -> None:
        while before:
            index, fence, held = before.pop()
            index.fence, index.held = fence, held

    return Change(edit, undo)
