"""Connections of Spark's Python workers, kept from task to task.

Workers are pooled, take turns at planning, reading and writing, and end after a minute without
work: a connection is made when it is first needed and lives as long as its process.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from ringdove.client.backend import make_backend
from ringdove.pending import run
from ringdove.spark.directory import served

if TYPE_CHECKING:
    from ringdove.client.backend import Backend

_lock = threading.Lock()
_backends: dict[tuple[int, str], Backend] = {}


def link(url: str) -> Backend:
    """The connection of this process to a server or fabric; directories are served first."""
    url = served(url)
    with _lock:
        key = (os.getpid(), url)  # Workers are forked.
        found = _backends.get(key)
        if found is None:
            found = make_backend(url)
            run(found.open())
            _backends[key] = found
        return found
