"""What serves a client's requests, chosen by URL.

file:PATH               the queues in a data directory, in this process; or those of the server
                        that has it open
memory:                 queues that vanish with the connection; for tests
ringdove://HOST:PORT    a server's; address.py has the other forms
tiers://HOST:PORT       those of the broker that a manager of tiers names
redis://HOST:PORT       those of a fabric, by a controller in this process
"""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

from ringdove import limits, serving
from ringdove.client import address
from ringdove.config import directory_of
from ringdove.controllers.broker import Broker
from ringdove.errors import InvalidArgument, StoreLocked

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from ringdove.clock import Clock
    from ringdove.controllers.broker import QueueStats
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.controllers.sending import Delivered as DeliveredParcel
    from ringdove.controllers.sending import Outgoing, Parcel, Sent, SentBatch
    from ringdove.controllers.streaming import StreamedBlock
    from ringdove.controllers.visiting import Received
    from ringdove.core.block import Block
    from ringdove.core.receipt import Receipt
    from ringdove.errors import ClientError
    from ringdove.stores.base import Start, StripeId

_SCHEMES = ("file", "memory", "redis", "rediss", *address.SCHEMES)


class StreamSource(Protocol):
    """A claim on a subscription and its blocks in order; `controllers.streaming.BlockStream`."""

    @property
    def fence(self) -> int: ...
    @property
    def starts(self) -> dict[StripeId, int]: ...
    async def next(self, wait_s: float | None = None) -> StreamedBlock | None: ...
    async def acknowledge(self, stripe: StripeId, offset: int) -> None: ...
    def rewind(self, stripe: StripeId, offset: int) -> None: ...
    async def close(self) -> None: ...


class Backend(Protocol):
    """Every request a client can make; `controllers.broker.Broker` documents each."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def create_queue(self, name: str, settings: dict[str, Any]) -> QueueInfo: ...
    async def get_queue(self, name: str) -> QueueInfo: ...
    async def list_queues(self, prefix: str = "") -> list[QueueInfo]: ...
    async def change_queue(self, name: str, settings: dict[str, Any]) -> QueueInfo: ...
    async def delete_queue(self, name: str) -> None: ...
    async def purge_queue(self, name: str) -> int: ...
    async def queue_stats(self, name: str) -> QueueStats: ...
    async def subscriptions(self, queue: str) -> tuple[str, ...]: ...
    async def subscribe(
        self, queue: str, subscription: str, start: Start, *, keep_default: bool = False
    ) -> None: ...
    async def unsubscribe(self, queue: str, subscription: str) -> None: ...
    async def send(self, queue: str, outgoing: Outgoing) -> SentBatch: ...
    def send_one(self, queue: str, body: bytes) -> Coroutine[Any, Any, Sent]: ...
    async def deliver(self, queue: str, version: int, parcel: Parcel) -> DeliveredParcel: ...
    async def receive(
        self, queue: str, subscription: str, max: int, wait_s: float | None, lease_ms: int | None
    ) -> list[Received]: ...
    async def acknowledge(self, receipts: Sequence[Receipt]) -> list[int | ClientError]: ...
    async def extend(
        self, receipts: Sequence[Receipt], lease_ms: int
    ) -> list[int | ClientError]: ...
    async def release(
        self, receipts: Sequence[Receipt], delay_ms: int | None
    ) -> list[int | ClientError]: ...
    async def unlease(self, receipts: Sequence[Receipt]) -> list[int | ClientError]: ...
    async def bury(
        self, queue: str, receipt: Receipt, blocks: list[Block], reason: str
    ) -> None: ...
    async def redrive(
        self,
        queue: str,
        target: str | None,
        max: int | None,
        on_progress: Callable[[int], None] | None = None,
    ) -> int: ...
    async def stream(
        self,
        queue: str,
        subscription: str,
        owner: bytes,
        positions: Mapping[StripeId, int],
        lease_ms: int,
    ) -> StreamSource: ...
    async def read(
        self,
        stripe: StripeId,
        offset: int,
        messages_max: int,
        bytes_max: int = limits.BLOCK_BYTES_MAX,
        *,
        skip_trimmed: bool = True,
    ) -> list[Block]: ...
    async def position(self, stripe: StripeId, start: Start) -> int: ...
    async def advance(self, stripe: StripeId, subscription: str, offset: int) -> None: ...
    async def account(self, command: str, arguments: dict[str, Any]) -> Any: ...


def make_backend(url: str, *, clock: Clock | None = None, **options: Any) -> Backend:
    """The backend for a URL; a server's is to be opened."""
    if not isinstance(url, str):
        raise InvalidArgument(f"{url!r} is no URL: write for example 'file:./data'.")
    scheme, separator, _ = url.partition(":")
    if not separator:
        raise InvalidArgument(f"{url!r} is no URL: write 'file:{url}' for a data directory.")
    if scheme in address.SCHEMES:
        from ringdove.client.link import LinkOptions  # noqa: PLC0415
        from ringdove.client.remote import RemoteBackend  # noqa: PLC0415

        _refuse_unknown(scheme, options, [field.name for field in fields(LinkOptions)])
        return RemoteBackend(url, clock=clock, **options)
    if scheme in _SCHEMES:
        _refuse_unknown(scheme, options, [])
    if scheme == "memory":
        from ringdove.stores.memory import MemoryStore  # noqa: PLC0415  only what is used

        return Broker(MemoryStore(clock))
    if scheme == "file":
        from ringdove.stores.embedded import EmbeddedStore  # noqa: PLC0415

        directory = directory_of(url)
        try:
            return Broker(EmbeddedStore(directory, clock))
        except StoreLocked:
            served = serving.find(directory)
            if served is None:
                raise
        return make_backend(served, clock=clock)
    if scheme in ("redis", "rediss"):
        from ringdove.stores.fabric import FabricStore  # noqa: PLC0415

        return Broker(FabricStore(url, clock))
    near = difflib.get_close_matches(scheme, _SCHEMES, n=1)
    hint = f" Did you mean '{near[0]}:'?" if near else ""
    raise InvalidArgument(
        f"{address.without_token(url)!r}: this version connects to 'file:DIRECTORY', 'memory:', "
        f"'ringdove://HOST:PORT', 'tiers://HOST:PORT' and 'redis://HOST:PORT'.{hint}"
    )


def _refuse_unknown(scheme: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidArgument(f"{scheme}: takes no option {name}.{hint}")
