"""Ordered streaming as applications see it: batches in order, and a position to keep (M1, M2).

Exactly once *into your own effects* needs the position stored together with the effect, in one
transaction of your own database:

    position = database.load_position()
    with queue.stream("billing", position=position) as stream:
        for batch in stream:
            with database.transaction():
                apply(batch)
                database.save_position(stream.position)

A crash at any point either repeats the transaction as a whole or not at all. `stream.fence` grows
with every reader that takes the subscription over; a database that refuses smaller ones than it has
seen is safe from a reader that was replaced and does not know it yet.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove import limits
from ringdove.client import arguments
from ringdove.client.outgoing import Text, as_bytes
from ringdove.errors import InvalidArgument
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from ringdove.client.backend import Backend, StreamSource
    from ringdove.client.delivery import BaseBatch
    from ringdove.controllers.streaming import StreamedBlock

_POSITION = msgspec.msgpack.Decoder(list[tuple[tuple[int, int, int], int]])


class Reading:
    """What the streams of both clients share: the claim, and how far it has come."""

    def __init__(
        self,
        subscription: str,
        *,
        position: bytes | None = None,
        owner: Text | None = None,
        lease_ms: int = limits.STREAM_LEASE_MS,
        wait: float | None = None,
        ack: str = "auto",
    ) -> None:
        if ack not in ("auto", "manual"):
            raise InvalidArgument(f"ack is {ack!r}; it must be 'auto' or 'manual'.")
        arguments.check_receive(1, wait, subscription, lease_ms)
        self.subscription = subscription
        self.auto = ack == "auto"
        #: Whether the batch handed out last was refused, so that it is not acknowledged.
        self.refused = False
        self._wait = wait
        self._lease_ms = lease_ms
        self._owner = os.urandom(16) if owner is None else as_bytes(owner, "owner")
        #: Next offset after what was handed out, by stripe.
        self._positions: dict[StripeId, int] = decode_position(position)
        self._source: StreamSource | None = None

    @property
    def source(self) -> StreamSource:
        """Where blocks come from, once the stream is open."""
        if self._source is None:
            raise InvalidArgument("The stream is not open: use it in a 'with' statement.")
        return self._source

    @property
    def fence(self) -> int:
        """Larger than that of every reader before."""
        return self.source.fence

    @property
    def position(self) -> bytes:
        """Where a stream must begin to get everything after what was handed out so far."""
        return msgspec.msgpack.encode(sorted(self._positions.items()))

    async def open(self, backend: Backend, queue: str) -> None:
        """Claim the subscription."""
        if self._source is None:
            self._source = await backend.stream(
                queue, self.subscription, self._owner, self._positions, self._lease_ms
            )
            for stripe, offset in self._source.starts.items():
                self._positions.setdefault(stripe, offset)

    async def next(self) -> StreamedBlock | None:
        """The next block in order, which counts as handed out; None when the wait is over."""
        self.refused = False
        streamed = await self.source.next(self._wait)
        if streamed is not None:
            self._positions[streamed.stripe] = streamed.block.end
        return streamed

    async def acknowledge(self, batch: BaseBatch[Any]) -> None:
        """Mark a batch done, and everything before it on its stripe."""
        for chunk in batch.chunks():
            await self.source.acknowledge(chunk.stripe, chunk.hi)

    def refuse(self, batch: BaseBatch[Any]) -> None:
        """Have a batch again, and everything after it on its stripe."""
        self.refused = True
        for chunk in batch.chunks():
            self._positions[chunk.stripe] = chunk.lo
            self.source.rewind(chunk.stripe, chunk.lo)

    async def close(self) -> None:
        """Give the claim up. Idempotent."""
        source, self._source = self._source, None
        if source is not None:
            await source.close()


def decode_position(position: bytes | None) -> dict[StripeId, int]:
    """The offsets in a position, or InvalidArgument."""
    if position is None:
        return {}
    try:
        return {StripeId(*stripe): offset for stripe, offset in _POSITION.decode(position)}
    except (msgspec.MsgspecError, TypeError) as error:
        raise InvalidArgument("This is no position of a stream.") from error
