"""A trace block: what one party noted of one queue, in columns; the body of a trace message.

The bytes are four that name format and version, then a msgpack array of the fields below. Columns
are little-endian and as Arrow has them, so that readers wrap them instead of looking at rows.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from ringdove import limits
from ringdove.errors import InvalidArgument, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC = b"RDT\x01"

#: What a receiver found when it looked at a message's checksum.
DAMAGED, INTACT, UNCHECKED = 0, 1, 2


class TraceBlock(msgspec.Struct, frozen=True, array_like=True):
    """Sends or receives of one party, in its order."""

    queue: str
    kind: Literal["sent", "received"]
    #: The sender or receiver, unique among all that trace the queue.
    party: str
    #: The party's number of the first row; the others follow.
    first: int
    #: int64 for each row: microseconds since 1970.
    times_us: bytes
    #: int32: where the id of each row begins in `ids`, and where the last one ends.
    offsets: bytes
    ids: bytes
    #: A byte for each row: DAMAGED, INTACT or UNCHECKED.
    checks: bytes

    @classmethod
    def build(
        cls,
        queue: str,
        kind: Literal["sent", "received"],
        party: str,
        first: int,
        times_us: array[int],
        ids: Sequence[bytes],
        checks: bytes,
    ) -> Self:
        """Make a block of columns."""
        longest = max(map(len, ids))
        if longest > limits.MESSAGE_ID_BYTES_MAX:
            raise InvalidArgument(
                f"A message id has {longest} bytes; at most {limits.MESSAGE_ID_BYTES_MAX} are "
                "allowed."
            )
        offsets = array("i", accumulate(map(len, ids), initial=0)).tobytes()
        return cls(queue, kind, party, first, times_us.tobytes(), offsets, b"".join(ids), checks)

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.checks)

    def encode(self) -> bytes:
        """The body of a trace message."""
        return _MAGIC + _encoder.encode(self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> TraceBlock:
        """Read the body of a trace message."""
        if body[:4] != _MAGIC:
            raise RemoteProtocolError(
                f"A message that begins with {bytes(body[:8])!r} is no trace: is this the queue "
                "that tracers write to?"
            )
        try:
            block = _decoder.decode(body[4:])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"A trace message is damaged: {error}.") from error
        block.check()
        return block

    def check(self) -> None:
        """Refuse columns that do not fit together: readers would look past their ends."""
        count = self.count
        if len(self.times_us) != 8 * count or len(self.offsets) != 4 * (count + 1):
            raise RemoteProtocolError(
                f"A trace message of {count} rows has {len(self.times_us)} bytes of times and "
                f"{len(self.offsets)} of offsets."
            )
        offsets = memoryview(self.offsets).cast("i")
        ordered = all(lo <= hi for lo, hi in zip(offsets, offsets[1:], strict=False))
        if offsets[0] or offsets[-1] != len(self.ids) or not ordered:
            raise RemoteProtocolError("A trace message has ids outside its bytes.")
        if any(value > UNCHECKED for value in self.checks):
            raise RemoteProtocolError("A trace message has a checksum result that is not 0 to 2.")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TraceBlock)
