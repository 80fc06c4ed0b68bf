"""Forks: a new process has none of the connections of the one it was forked from.

Threads, locks held, positions in a socket and what is known of the data directory stay behind. A
process that went on with them would hang, or write over what the other has stored since.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from ringdove.client.aio import Connection

_connections: WeakSet[Connection] = WeakSet()

#: Backends of the other process: kept, because to drop them is to close what it works with.
_left: list[Any] = []


def opened(connection: Connection) -> None:
    """Have a connection left behind when this process is forked."""
    _connections.add(connection)


def _leave() -> None:
    _left.extend([connection.leave() for connection in _connections])
    _connections.clear()


os.register_at_fork(after_in_child=_leave)
