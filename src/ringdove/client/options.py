# ruff: noqa: TC001, TC003  programs that ask for the hints need the names
"""What calls take by name, for people, editors and type checkers.

Values are checked where they are used; a test holds these names and kinds against what is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from ringdove.client.outgoing import Text
from ringdove.clock import Clock
from ringdove.core.settings import (
    Delivery,
    Dequeue,
    Durability,
    Order,
    RelayDone,
    Spread,
    WhenFull,
    WhenShort,
)
from ringdove.protocol.session import SessionState


class ConnectionArguments(TypedDict, total=False):
    """Of `connect`, to servers; see LinkOptions. `clock` is taken by all."""

    connect_s: float
    timeout_s: float
    silence_s: float
    session_s: float
    spin_us: int
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    on_state: Callable[[SessionState, SessionState, str], None] | None
    clock: Clock | None


class QueueArguments(TypedDict, total=False):
    """Of `create_queue` and `configure`; see QueueSettings."""

    order: Order
    delivery: Delivery
    spread: Spread
    durability: Durability
    copies: int
    when_short: WhenShort
    stripes: int
    lease_ms: int
    delay_ms: int
    retention_ms: int
    keep_done_ms: int
    receives_max: int | None
    dead_letter: str | None
    backoff_ms: int
    backoff_ms_max: int
    bytes_max: int
    when_full: WhenFull
    body_bytes_max: int
    priority: int
    receive_rate_max: float | None
    dequeue: Dequeue
    dequeue_tries: int
    dequeue_pause_ms: int
    dedup_ms: int
    relay_done: RelayDone
    relayed: bool
    notes: dict[str, str]


class ProducerArguments(TypedDict, total=False):
    """Of `producer`; see ProducerOptions."""

    linger_ms: float
    block_bytes: int
    block_messages: int
    in_flight_max: int
    compression: str
    name: Text | None
    sequence: int


class ConsumerArguments(TypedDict, total=False):
    """Of `consumer`; see Consumer."""

    max: int | None
    wait: float | None
    subscription: str
    lease_ms: int | None
    ack: str
    ack_linger_ms: int


class StreamArguments(TypedDict, total=False):
    """Of `stream`; see Stream."""

    position: bytes | None
    owner: Text | None
    lease_ms: int
    wait: float | None
    ack: str
