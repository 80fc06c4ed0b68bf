"""Which pages of an LMDB file are free, read without mapping the file.

LMDB counts pages that a transaction takes and gives back, but does not write them. So an intact
file may be shorter than its header says, by pages that are all in its list of free ones; a file
that is shorter by any other page was cut off.

Read here of LMDB 0.9's format: two meta pages with the root of the free list at byte 80 and the
last page and transaction at byte 136; tree pages with flags and the end of their node offsets at
byte 10; nodes of two 16-bit halves, flags, key size, key, value.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BRANCH, _BIG = 0x01, 0x01
_NONE = 2**64 - 1


def missing_pages_are_free(file: Path, page_bytes: int) -> bool:
    """Whether every page beyond the end of the file is in the list of free pages."""
    first = file.stat().st_size // page_bytes
    with file.open("rb") as stream:
        root, last = _newest(stream, page_bytes)
        missing = set(range(first, last + 1))
        if root != _NONE:
            for pages in _free(stream, root, page_bytes, first):
                missing.difference_update(pages)
    return not missing


def _newest(stream: BinaryIO, page_bytes: int) -> tuple[int, int]:
    """Root of the free list and last page, by the meta page with the higher transaction."""
    metas = []
    for page in (0, 1):
        stream.seek(page * page_bytes)
        head = stream.read(152)
        root, last, txn = (
            struct.unpack_from("<Q", head, 80)[0],
            *struct.unpack_from("<QQ", head, 136),
        )
        metas.append((txn, root, last))
    return max(metas)[1:]


def _free(stream: BinaryIO, page: int, page_bytes: int, count: int) -> Iterator[tuple[int, ...]]:
    """The lists of free pages in the leaves below `page`; nothing of what is beyond the end."""
    if page >= count:
        return
    stream.seek(page * page_bytes)
    data = stream.read(page_bytes)
    flags, lower = struct.unpack_from("<HH", data, 10)
    for (at,) in struct.iter_unpack("<H", data[16:lower]):
        lo, hi, node, ksize = struct.unpack_from("<HHHH", data, at)
        if flags & _BRANCH:
            yield from _free(stream, lo | hi << 16 | node << 32, page_bytes, count)
            continue
        size, start = lo | hi << 16, at + 8 + ksize
        value = data[start : start + size]
        if node & _BIG:
            stream.seek(struct.unpack_from("<Q", data, start)[0] * page_bytes + 16)
            value = stream.read(size)
        if len(value) == size:
            yield struct.unpack_from(f"<{struct.unpack_from('<Q', value)[0]}Q", value, 8)
