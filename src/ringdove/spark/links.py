"""Connections of Spark's Python workers, kept from task to task.

Workers are pooled, take turns at planning, reading and writing, and end after a minute without
work: a connection is made when it is first needed and lives as long as its process. A data
directory is served by a process that the first of them starts, and that ends after the last.
"""

from __future__ import annotations

import gc
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ringdove.allocation import keep_freed_memory
from ringdove.client.backend import make_backend
from ringdove.config import directory_of
from ringdove.errors import ConnectionClosed, InvalidArgument, StoreUnavailable, WaitTimeout
from ringdove.pending import run
from ringdove.serving import find_or_start
from ringdove.spark.daemon import hush

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringdove.client.backend import Backend
    from ringdove.spark.options import Place

#: Seconds without anybody connected, after which the server of a directory ends.
_IDLE_S = 5

hush()

_lock = threading.Lock()
_backends: dict[tuple[int, Place], Backend] = {}


@contextmanager
def linked(place: Place) -> Iterator[Backend]:
    """The connection of this process to a server or fabric; made anew after it was lost."""
    key = (os.getpid(), place)  # Workers are forked.
    with _lock:
        backend = _backends.get(key)
        if backend is None:
            backend = _backends[key] = _open(place)
    try:
        yield backend
    except (ConnectionClosed, StoreUnavailable, WaitTimeout):
        with _lock:
            if _backends.get(key) is backend:
                del _backends[key]
        raise


def served_url(url: str) -> str:
    """Where several processes reach the queues of a URL: a data directory is served to them."""
    return find_or_start(directory_of(url), _IDLE_S) if url.startswith("file:") else url


def _open(place: Place) -> Backend:
    keep_freed_memory()
    if place.url.startswith("memory:"):
        raise InvalidArgument("'memory:' is within one process, and Spark has several.")
    options = {
        name: value
        for name, value in place._asdict().items()
        if name != "url" and value is not None
    }
    backend = make_backend(served_url(place.url), **options)
    run(backend.open())
    # Spark has a worker collect its garbage after every task, and the next one waits for it: 30 ms
    # for everything that was ever imported. Of what is there by now nothing will go.
    gc.freeze()
    return backend
