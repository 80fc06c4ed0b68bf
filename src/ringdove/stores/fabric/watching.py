"""Notices of arrivals across controllers.

Every change of a stripe is published on a channel of its own, in its slot, and whoever has parked
receivers listens. An append that still lacks its copies is published as well: if nobody says that
it has them, for whoever should have is gone, it is time to look. A channel moves with its slot's
master. Once a second each one is checked against the map of the cluster, and each node is made to
say something, so that a dead connection is noticed; whenever a node says that a channel was joined
anew, notices may have been missed, and that counts as one.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ringdove.stores.fabric.wire import Node, NodeAddress

_CHECK_S = 1.0

#: Seconds after which an append that was not said to have its copies is looked for.
_UNANNOUNCED_S = 2.0


class Watcher:
    """Listens to channels of stripes."""

    def __init__(
        self,
        make_node: Callable[[NodeAddress], Node],
        refresh: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        master: Callable[[int], NodeAddress | None],
        on_notice: Callable[[bytes], None],
    ) -> None:
        self._make_node = make_node
        #: Has the map of the cluster read again, some time.
        self._refresh = refresh
        self._stale = False
        self._loop = loop
        self._master = master
        self._on_notice = on_notice
        self._lock = threading.Lock()
        #: Slot of each channel that is wanted, and the node where it was joined.
        self._wanted: dict[bytes, int] = {}
        self._joined: dict[bytes, NodeAddress] = {}
        #: Channels on which something is to come, and when to look for it.
        self._awaited: dict[bytes, asyncio.TimerHandle] = {}
        self._nodes: dict[NodeAddress, Node] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def want(self, channel: bytes, slot: int) -> None:
        """Listen to a channel from now on; from any thread."""
        with self._lock:
            if channel in self._wanted or self._closed:
                return
            self._wanted[channel] = slot
        self._loop.call_soon_threadsafe(self._begin, channel)

    def drop(self, channel: bytes) -> None:
        """Listen to a channel no more; from any thread."""
        with self._lock:
            if self._wanted.pop(channel, None) is None or self._closed:
                return
        with contextlib.suppress(RuntimeError):  # The loop has been closed.
            self._loop.call_soon_threadsafe(self._leave, channel)

    def close(self) -> None:
        """Listen no more; from the loop's thread."""
        self._closed = True
        for timer in (self._timer, *self._awaited.values()):
            if timer is not None:
                timer.cancel()
        for node in self._nodes.values():
            node.close()

    def _hear(self, channel: bytes, when: bytes) -> None:
        """Something has come, or will when it has its copies."""
        awaited = self._awaited.pop(channel, None)
        if awaited is not None:
            awaited.cancel()
        if when == b"later":
            look = partial(self._look, channel)
            self._awaited[channel] = self._loop.call_later(_UNANNOUNCED_S, look)
        else:
            self._on_notice(channel)

    def _look(self, channel: bytes) -> None:
        self._awaited.pop(channel, None)
        self._on_notice(channel)

    def _begin(self, channel: bytes) -> None:
        if self._timer is None:
            self._check()
        else:
            self._join(channel)

    def _join(self, channel: bytes) -> None:
        """Listen where a channel is, unless that is done or not wanted any more."""
        slot = self._wanted.get(channel)
        address = None if slot is None else self._master(slot)
        if address is not None and self._joined.get(channel) != address and not self._closed:
            self._joined[channel] = address
            self._node(address).tell(("SSUBSCRIBE", channel))

    def _leave(self, channel: bytes) -> None:
        if channel in self._wanted:  # Again, by now.
            return
        awaited = self._awaited.pop(channel, None)
        if awaited is not None:
            awaited.cancel()
        address = self._joined.pop(channel, None)
        if address is not None:
            self._node(address).tell(("SUNSUBSCRIBE", channel))

    def _left(self, address: NodeAddress, channel: bytes) -> None:
        """A node tells nothing of a channel any more: as it was asked to, or the slot has moved."""
        if self._joined.get(channel) == address:
            self._stale = True
            del self._joined[channel]

    def _check(self) -> None:
        if self._closed:
            return
        if self._stale:  # Who serves now is found by those who wait, even if nobody asks.
            self._stale = False
            self._refresh()
        with self._lock:
            wanted = list(self._wanted)
        for channel in wanted:
            self._join(channel)
        for address in set(self._joined.values()):
            self._node(address).ping()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_CHECK_S, self._check)

    def _node(self, address: NodeAddress) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._make_node(address)
            node.on_message = self._hear
            node.on_joined = self._on_notice
            node.on_left = partial(self._left, address)
            node.on_lost = lambda: self._forget(address)
        return node

    def _forget(self, address: NodeAddress) -> None:
        """A node is gone, or does not serve what it was asked for: join again, wherever that is."""
        self._stale = True
        for channel in [channel for channel, at in self._joined.items() if at == address]:
            del self._joined[channel]
