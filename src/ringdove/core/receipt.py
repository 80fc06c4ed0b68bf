"""Receipts: opaque, self-contained names of leased messages; any controller can honour them.

Layout, version 1, big-endian: version u8, queue u64, stripe u16, level u8, epoch u32, token u64, lo
u64, hi u64, subscription name in UTF-8. A check of 32 bits at the end tells a damaged receipt from
a stale one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from ringdove.errors import InvalidArgument

#: The version of the layout described above.
RECEIPT_VERSION = 1

_FIXED = struct.Struct(">BQHBIQQQ")
_CHECK_BYTES = 4


class Receipt(NamedTuple):
    """Messages [lo, hi) of a stripe, held by a subscription under a lease token."""

    queue: int
    number: int
    level: int
    epoch: int
    token: int
    lo: int
    hi: int
    subscription: str

    def encode(self) -> bytes:
        """The opaque form."""
        data = _FIXED.pack(RECEIPT_VERSION, *self[:7]) + self.subscription.encode()
        return data + xxhash.xxh32_digest(data)

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """The receipt, or InvalidArgument when the bytes are none."""
        body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
        if len(body) < _FIXED.size or xxhash.xxh32_digest(body) != check:
            raise InvalidArgument("This is no receipt of Ringdove, or it was cut or changed.")
        version, *fields = _FIXED.unpack_from(body)
        if version != RECEIPT_VERSION:
            raise InvalidArgument(f"The receipt has version {version}, not {RECEIPT_VERSION}.")
        try:
            return cls._make([*fields, body[_FIXED.size :].decode()])
        except UnicodeDecodeError:
            raise InvalidArgument("The receipt names no subscription.") from None
