"""How this process gets its memory: what was freed is kept for what comes next.

Blocks of a megabyte come and go. The C library gives such memory back to the system as soon as it
is free, and the system clears every page when it is asked for again: half of the processor time of
a large send.
"""

from __future__ import annotations

import ctypes

from ringdove import limits

#: Names of the C library (mallopt(3)).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Keep some megabytes, for the life of this process; False where that cannot be said."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # The second one is needed as well: setting either ends that the library chooses both.
    return bool(
        mallopt(_M_TRIM_THRESHOLD, limits.FREED_BYTES_KEPT)
        and mallopt(_M_MMAP_THRESHOLD, limits.FREED_BYTES_KEPT // 4)
    )
