"""A stripe's state: what it remembers of when messages became done."""

from __future__ import annotations

import random

import pytest

from ringdove.core.settings import QueueSettings
from ringdove.core.stripe import Stripe

KEEP_MS = 100_000


def make_stripe(subscriptions: int) -> Stripe:
    """A stripe of very many messages that keeps those that are done."""
    settings = QueueSettings.make(keep_done_ms=KEEP_MS)
    stripe = Stripe(settings, 1, lambda: 1, random.Random(1), tail=10**9)
    for number in range(subscriptions):
        stripe.subscribe(f"s{number}", 0)
    return stripe


def marks(stripe: Stripe) -> int:
    return sum(len(positions) for _, positions in stripe._done_marks.values())


@pytest.mark.parametrize(
    ("subscriptions", "step_ms", "later_ms"), [(1, 10, 100), (20, 100, 200), (400, 500, 2000)]
)
def test_what_is_kept_costs_no_more_the_more_was_done(
    subscriptions: int, step_ms: int, later_ms: int
) -> None:
    """I6: nothing goes sooner than it should, and little later."""
    stripe = make_stripe(subscriptions)
    most = 0
    for now_ms in range(0, 3 * KEEP_MS, step_ms):
        for index in stripe.subscriptions.values():
            index.drop_below(now_ms + 1)
        kept = stripe.trim_offset(now_ms)
        assert now_ms - KEEP_MS - later_ms <= kept <= max(0, now_ms - KEEP_MS + 1)
        most = max(most, marks(stripe))
    assert most <= 2 * 1001 if subscriptions == 1 else most <= 110_000
