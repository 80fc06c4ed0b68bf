"""Compression of a block's variable part.

Whole-buffer only, with the size known beforehand: a block states how large it is when opened, the
limit is checked before anything is allocated, and a frame that yields another size is refused.
"""

from __future__ import annotations

from typing import Final

import lz4.block
import zstandard

from ringdove.errors import RemoteProtocolError

CODEC_NAMES: Final = {0: "none", 1: "zstd", 2: "lz4"}
CODEC_NUMBERS: Final = {name: number for number, name in CODEC_NAMES.items()}

#: zstd level 3 keeps up with a disk on one core and halves typical JSON readings.
_ZSTD_LEVEL = 3


def compress(data: bytes, codec: int) -> bytes:
    """Compress `data`; `codec` is a number of CODEC_NAMES other than 0."""
    if codec == 1:
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
    packed: bytes = lz4.block.compress(data, store_size=False)
    return packed


def decompress(data: bytes, codec: int, raw_bytes: int) -> bytes:
    """Open `data`, which must yield exactly `raw_bytes` bytes."""
    try:
        if codec == 1:
            declared = zstandard.frame_content_size(data)
            if declared != raw_bytes:
                raise RemoteProtocolError(
                    f"The compressed part announces {declared} bytes, the block {raw_bytes}."
                )
            raw = zstandard.ZstdDecompressor().decompress(
                data, max_output_size=raw_bytes, allow_extra_data=False
            )
        else:
            raw = lz4.block.decompress(data, uncompressed_size=raw_bytes)
    except (zstandard.ZstdError, lz4.block.LZ4BlockError, ValueError, MemoryError) as error:
        raise RemoteProtocolError(f"The block's compressed part is damaged: {error}") from error
    if len(raw) != raw_bytes:
        raise RemoteProtocolError(
            f"The compressed part yields {len(raw)} bytes, not the announced {raw_bytes}."
        )
    return raw
