"""What benchmarks share: a place for data, a clock, and the raw disk."""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ringdove.core.columns import Buffer


#: Files that a process opens besides the connections of a benchmark.
OTHER_FILES = 200


@contextmanager
def place(directory: Path | None) -> Iterator[Path]:
    """A directory for test data that vanishes afterwards; beside the working directory by default.

    Not in /tmp, which is often memory and would make the disk look too fast.
    """
    with tempfile.TemporaryDirectory(
        prefix=".ringdove-bench-", dir=directory or Path.cwd()
    ) as found:
        yield Path(found)


@contextmanager
def open_files(count: int) -> Iterator[None]:
    """Allow this process and its children so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def rate(action: Callable[[], int], seconds: float) -> float:
    """How much of what `action` counts is done per second, over at least `seconds`."""
    action()
    done = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or not done:
        done += action()
    return done / elapsed


def per_call_us(action: Callable[[], object], calls: int) -> float:
    """Microseconds per call, over `calls` calls."""
    started = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - started) / calls * 1e6


def raw_disk(directory: Path, chunk: Buffer, chunks_per_sync: int, seconds: float) -> float:
    """Bytes per second of writing one file in order, with fdatasync after every few chunks."""
    path = directory / "raw"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    written = 0
    try:

        def write() -> int:
            nonlocal written
            for _ in range(chunks_per_sync):
                os.write(fd, chunk)
            os.fdatasync(fd)
            written += chunks_per_sync * len(chunk)
            if written > _FILE_BYTES_MAX:
                os.lseek(fd, 0, os.SEEK_SET)
                os.ftruncate(fd, 0)
                written = 0
            return chunks_per_sync * len(chunk)

        return rate(write, seconds)
    finally:
        os.close(fd)
        path.unlink()


def run_loop(coroutine: Any) -> Any:
    """Run a coroutine on the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


def middle(values: list[float]) -> float:
    """The median, which a noisy machine disturbs least."""
    return median(values)


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


#: The raw file starts over at this size, as a queue that is drained does.
_FILE_BYTES_MAX = 512 * 1024 * 1024
