"""Freed memory is kept: the system is not asked for it again."""

import platform
import subprocess
import sys

import pytest

#: Pages that the system had to provide for the same blocks, the first time and the second.
ROUNDS = """
import resource
from ringdove.allocation import keep_freed_memory

if {kept}:
    assert keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(1024 * 1024) for _ in range(32)]
    del blocks
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(*, kept: bool) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", ROUNDS.format(kept=kept)], capture_output=True, check=True
    )
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of GNU's C library")
def test_freed_memory_is_used_again():
    first, second = pages(kept=True)
    assert second < first / 10
    first, second = pages(kept=False)
    assert second > first / 2
