"""The kinds of a call's arguments, checked before a store or a server sees them.

Their ranges are the controllers' business; here it is told that a text is no number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ringdove.controllers.catalog import no_subscription
from ringdove.errors import InvalidArgument
from ringdove.stores.base import Start


def check_whole(name: str, value: Any) -> None:
    """Refuse what is no whole number."""
    if not isinstance(value, int):
        raise InvalidArgument(f"{name} is {value!r}; it must be a whole number.")


def check_whole_or_none(name: str, value: Any) -> None:
    """Refuse what is neither a whole number nor None."""
    if value is not None:
        check_whole(name, value)


def check_number(name: str, value: Any) -> None:
    """Refuse what is no number."""
    if not isinstance(value, int | float):
        raise InvalidArgument(f"{name} is {value!r}; it must be a number.")


def check_seconds(name: str, value: Any) -> None:
    """Refuse what is no length of time."""
    check_number(name, value)
    if not value > 0:  # nan is not, either
        raise InvalidArgument(f"{name} is {value!r}; it must be seconds, more than 0.")


def check_peek(max: Any, subscription: str, queue: str, known: Collection[str]) -> None:
    """Refuse to look at nothing, or for a subscription that the queue does not have."""
    check_whole("max", max)
    if max < 1:
        raise InvalidArgument(f"max is {max}; it must be 1 or more.")
    if subscription not in known:
        raise no_subscription(queue, subscription, known)


def check_wait(wait: Any) -> None:
    """Refuse what is no time to wait."""
    if wait is not None and not isinstance(wait, int | float):
        raise InvalidArgument(f"wait is {wait!r}; it must be seconds, or None for ever.")


def check_text(name: str, value: Any) -> None:
    """Refuse what is no text."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}; it must be text.")


def check_attributes(attributes: Any) -> None:
    """Refuse attributes that are not values by name."""
    if not isinstance(attributes, dict | Mapping):
        raise InvalidArgument(
            f"attributes are {attributes!r}; write them by name, for example {{'unit': 'C'}}."
        )


def check_send(priority: Any, delay_ms: Any) -> None:
    """Refuse what a send cannot mean."""
    check_whole("priority", priority)
    check_whole_or_none("delay_ms", delay_ms)


def check_receive(max: Any, wait: Any, subscription: Any, lease_ms: Any) -> None:
    """Refuse what a receive cannot mean."""
    check_whole("max", max)
    check_wait(wait)
    check_text("subscription", subscription)
    check_whole_or_none("lease_ms", lease_ms)


def check_consumer(
    max: Any, wait: Any, subscription: Any, lease_ms: Any, ack_linger_ms: Any
) -> None:
    """Refuse what a consumer cannot mean, when it is made."""
    check_receive(1 if max is None else max, wait, subscription, lease_ms)
    check_number("ack_linger_ms", ack_linger_ms)


def as_start(start: str | int | Start) -> Start:
    """A start from its short forms: a word, or an offset."""
    if isinstance(start, str):
        return Start(start)
    full = Start("offset", start) if isinstance(start, int) else start
    if not isinstance(full, Start) or not isinstance(full.value, int) or full.value < 0:
        raise InvalidArgument(
            f"{start!r} is no start: use 'earliest', 'latest', an offset of 0 or more, or "
            "ringdove.Start('time', MILLISECONDS)."
        )
    return full
