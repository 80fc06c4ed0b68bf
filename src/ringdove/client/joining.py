"""What producers share: gathering messages until they make a block."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringdove import limits
from ringdove.client.arguments import check_attributes, check_number, check_whole
from ringdove.client.outgoing import Text, as_bytes
from ringdove.controllers.sending import Outgoing, Sequencer
from ringdove.errors import InvalidArgument
from ringdove.pending import Pending

if TYPE_CHECKING:
    from ringdove.controllers.sending import SentBatch
    from ringdove.core.attributes import Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer joins messages into blocks.

    linger_ms      how long a message may wait for company
    block_bytes    a block is closed when it has this many bytes of bodies,
    block_messages or this many messages
    in_flight_max  blocks on their way before `send` waits
    compression    of blocks: none, zstd or lz4
    name           a lasting name for exactly-once delivery: a producer that starts over with its
                   name, and from the sequence number `sequence`, sends nothing twice
    """

    linger_ms: float = 5
    block_bytes: int = limits.BLOCK_BYTES_TARGET
    block_messages: int = limits.BLOCK_MESSAGES_TARGET
    in_flight_max: int = limits.PRODUCER_BLOCKS_IN_FLIGHT_MAX
    compression: str = "none"
    name: Text | None = None
    sequence: int = 0

    def __post_init__(self) -> None:
        check_number("linger_ms", self.linger_ms)
        for name in ("block_bytes", "block_messages", "in_flight_max", "sequence"):
            check_whole(name, getattr(self, name))
        if not 0 < self.block_messages <= limits.BLOCK_MESSAGES_MAX or self.block_bytes < 1:
            raise InvalidArgument(
                f"block_messages is 1 to {limits.BLOCK_MESSAGES_MAX} and block_bytes above 0, "
                f"not {self.block_messages} and {self.block_bytes}."
            )
        if self.linger_ms < 0 or self.in_flight_max < 1:
            raise InvalidArgument("linger_ms is at least 0 and in_flight_max at least 1.")
        if self.sequence < 0:
            raise InvalidArgument(f"sequence is {self.sequence}; it must be 0 or more.")


class Joiner:
    """The block being gathered. Not thread-safe."""

    def __init__(self, options: ProducerOptions) -> None:
        self.options = options
        self._bytes_target = options.block_bytes
        self._messages_target = options.block_messages
        name = os.urandom(16) if options.name is None else as_bytes(options.name, "name")
        self._sequencer = Sequencer(name, options.sequence)
        self._failure: BaseException | None = None
        self._begin()

    def _begin(self) -> None:
        self.bodies: list[bytes] = []
        self.nbytes = 0
        self.ticket: Pending[SentBatch] = Pending()
        self._keys: list[bytes] | None = None
        self._attributes: list[Attributes | None] | None = None

    def add(self, body: bytes, key: Text | None, attributes: Attributes | None) -> bool:
        """Add a message to the block of `ticket`; True when it is the first, or the block full."""
        if attributes is not None:
            check_attributes(attributes)
        if key is not None or self._keys is not None:
            if self._keys is None:
                self._keys = [b""] * len(self.bodies)
            self._keys.append(as_bytes(key or b"", "key"))
        if attributes is not None or self._attributes is not None:
            if self._attributes is None:
                self._attributes = [None] * len(self.bodies)
            self._attributes.append(attributes)
        bodies = self.bodies
        bodies.append(body)
        self.nbytes += len(body)
        return (
            len(bodies) == 1
            or self.nbytes >= self._bytes_target
            or len(bodies) >= self._messages_target
        )

    def full(self) -> bool:
        """Whether the block should be closed."""
        return self.nbytes >= self._bytes_target or len(self.bodies) >= self._messages_target

    def take(self) -> tuple[Outgoing, Pending[SentBatch]] | None:
        """Close the block and begin the next; None when there is nothing in it."""
        if not self.bodies:
            return None
        outgoing = Outgoing(
            self.bodies,
            keys=self._keys,
            attributes=self._attributes,
            compression=self.options.compression,
            producer=self._sequencer,
            sequences={},
        )
        ticket = self.ticket
        self._begin()
        return outgoing, ticket

    def failed(self, ticket: Pending[SentBatch], error: BaseException) -> None:
        """Deliver a failure to whoever holds the ticket, and remember it for `flush`."""
        if self._failure is None:
            self._failure = error
        ticket.fail(error)

    def raise_failure(self) -> None:
        """Raise the first failure since the last call."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
