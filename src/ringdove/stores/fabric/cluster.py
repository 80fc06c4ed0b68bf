"""A Redis cluster as a store sees it: which node serves which slot, and how to ask it.

A request goes to the master of its slot. When that has moved, the map is read again; when nobody
serves the slot for the moment (a failover takes a second or two), the request waits and is
repeated, until its time is up. Every master is given the functions at the beginning; one that does
not have them all the same gets them on first use.
"""

from __future__ import annotations

import binascii
import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ringdove.core.ring import SLOTS
from ringdove.errors import ConnectionClosed, StoreFull, StoreUnavailable
from ringdove.pending import Pending, Runner
from ringdove.stores.fabric import library
from ringdove.stores.fabric.watching import Watcher
from ringdove.stores.fabric.wire import Login, Loop, Node, NodeAddress, NodeLost, ReplyError, Synced

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from ringdove.stores.fabric.wire import Commands, Copies, Word

    Attempt: TypeAlias = Callable[[], Commands]

T = TypeVar("T")

#: Answers that a node gives while something else is about to serve: ask again soon.
_PASSING = (
    "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "NOREPLICAS",
)  # fmt: skip

_PAUSE_S, _PAUSE_S_MAX = 0.02, 0.5

#: Seconds for which the map is not read again by those who wait together; less than any pause, so
#: that one who waits alone reads it each time.
_FRESH_S = _PAUSE_S / 2

#: Seconds without an answer, after which somebody else is asked whether the node still serves.
_SILENCE_S = 0.5


def slot_of(tag: bytes) -> int:
    """The slot of every key with this hash tag."""
    return binascii.crc_hqx(tag, 0) % SLOTS


#: Not the module's own: whoever has seeded that wants the same numbers again.
_random = random.Random()


class Cluster:
    """Asks the nodes of a cluster."""

    def __init__(
        self, seeds: Sequence[NodeAddress], login: Login | None = None, timeout_s: float = 30
    ) -> None:
        self.timeout_s = timeout_s
        self._seeds = list(seeds)
        self._login = login or Login()
        self._loop = Loop()
        self._runner = Runner(self._loop.loop)
        #: Called with the name of a channel on which something was published.
        self.on_notice: Callable[[bytes], None] = _ignore
        self._watcher = Watcher(
            self._make_node, self._refresh_some_time, self._loop.loop, self.master, self._notice
        )
        #: Coroutines that the connections' thread drives, by their results.
        self._driven: dict[Pending[Any], Coroutine[Any, Any, Any]] = {}
        self._nodes: dict[NodeAddress, Node] = {}
        self._synced: dict[NodeAddress, Synced] = {}
        #: Connections for requests that are waited for, to be closed at the end.
        self._others: list[Node] = []
        self._masters: list[NodeAddress | None] = [None] * SLOTS
        #: When the map was last asked for, and a pending that is done when it has been read.
        self._read_s = 0.0
        self._reading: Pending[None] | None = None
        self._lock = threading.Lock()
        self._closed = False

    async def open(self) -> None:
        """Find the nodes, and have them take the functions, some time."""
        await self._refresh()
        for address in set(self._masters) - {None}:
            # Nobody waits for it, nor asks whether they are there by now; but a node that is full
            # later on could not take them when they are needed.
            assert address is not None
            self.node(address).ask(("FUNCTION", "LOAD", library.TEXT))

    def close(self) -> None:
        """Hang up."""
        if not self._closed:
            self._closed = True
            self._loop.loop.call_soon_threadsafe(self._watcher.close)
            for node in (*self._nodes.values(), *self._others):
                self._loop.loop.call_soon_threadsafe(node.close)
            self._loop.stop()
            self._end_driven()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Pending[T]:
        """Have a coroutine of the store driven by the connections' own thread, in turn."""
        result: Pending[T] = Pending()
        self._driven[result] = coroutine

        def settle(value: Any, error: BaseException | None) -> None:
            if self._driven.pop(result, None) is None:
                return
            if error is None:
                result.resolve(value)
            else:
                result.fail(error)

        try:
            self._loop.loop.call_soon_threadsafe(self._runner.spawn, coroutine, settle)
        except RuntimeError:
            self._end_driven()
        return result

    def _end_driven(self) -> None:
        """Fail what nobody drives any more."""
        for result in list(self._driven):
            coroutine = self._driven.pop(result, None)
            if coroutine is not None:
                with contextlib.suppress(ValueError):  # The thread did not end in time.
                    coroutine.close()
                result.fail(ConnectionClosed("The store has been closed."))

    def watch(self, channel: str, slot: int) -> None:
        """Have notices of a channel delivered to `on_notice`, in the connections' thread."""
        self._watcher.want(channel.encode(), slot)

    def unwatch(self, channel: str) -> None:
        """Have no more notices of a channel."""
        self._watcher.drop(channel.encode())

    def _notice(self, channel: bytes) -> None:
        self.on_notice(channel)

    def node(self, address: NodeAddress) -> Node:
        """The node at an address."""
        found = self._nodes.get(address)
        if found is None:
            found = self._nodes.setdefault(address, self._make_node(address))
        return found

    def _make_node(self, address: NodeAddress) -> Node:
        return Node(address, self._loop.loop, self._login)

    def _synced_node(self, address: NodeAddress) -> Synced:
        found = self._synced.get(address)
        if found is None:
            node = self._make_node(address)
            self._others.append(node)
            found = self._synced.setdefault(address, Synced(node))
        return found

    def master(self, slot: int) -> NodeAddress | None:
        """Who serves a slot, as far as is known."""
        return self._masters[slot]

    async def ask(
        self,
        slot: int,
        attempt: Sequence[Word] | Attempt,
        copies: Copies | None = None,
        *,
        soon_s: float | None = None,
    ) -> tuple[Any, int]:
        """Send a command to the master of a slot, until it is served or the time is up.

        An `attempt` makes commands that are carried out as one, anew for each time. Answers the
        reply to the last, and how many copies besides the master have what they did, if `copies`
        are asked for. With `soon_s` that is all the time there is, and a node that cannot be
        reached twice in a row is not waited for.
        """
        timeout_s = self.timeout_s if soon_s is None else soon_s
        deadline_s = time.monotonic() + timeout_s
        pause_s = _PAUSE_S
        losses = 0
        loaded: set[NodeAddress | None] = set()
        reason: Exception | None = None
        while True:
            if self._closed:
                raise ConnectionClosed("The store has been closed.")
            address = self._masters[slot]
            try:
                commands = attempt() if callable(attempt) else [attempt]
                return await self._ask_once(slot, address, commands, copies, deadline_s)
            except ReplyError as error:
                failure: Exception = error
                if "unction not found" in str(error):
                    self._undo(slot, commands)
                    obstacle = await self._load(slot, address, deadline_s)
                    if obstacle is None and address not in loaded:
                        loaded.add(address)
                        continue
                    failure = obstacle or error
                elif error.word == "OOM":
                    raise StoreFull(f"Node {address} has no room left: {error}.") from error
                elif error.word not in _PASSING:
                    raise StoreUnavailable(f"Node {address} refused: {error}.") from error
            except NodeLost as error:
                failure = error
                losses += 1
                if soon_s is not None and losses > 1 and self._masters[slot] == address:
                    raise
            over = time.monotonic() >= deadline_s
            if reason is None or not (over and isinstance(failure, NodeLost)):
                reason = failure  # That the time was up before an answer came does not explain it.
            if over:
                raise StoreUnavailable(
                    f"The cluster did not serve slot {slot} within {timeout_s:.1f} s: {reason}"
                ) from reason
            await Pending[None]().until(pause_s * _random.uniform(0.5, 1))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            await self._refresh_together(deadline_s)

    def tell(self, slot: int, command: Sequence[Word]) -> None:
        """Send a command that nothing depends on; what is asked next in this slot comes after."""
        address = self._masters[slot]
        if address is not None:
            self.node(address).ask(command)

    async def _ask_once(
        self,
        slot: int,
        address: NodeAddress | None,
        commands: Commands,
        copies: Copies | None,
        deadline_s: float,
    ) -> tuple[Any, int]:
        """Ask a node; give up when it is silent and the slot is served by another one by now."""
        if address is None:
            raise NodeLost(f"No node serves slot {slot}.")
        if copies is not None:
            synced = self._synced_node(address)
            change = synced.ask(commands, copies)
            await self._answered(slot, synced, change, deadline_s)
            return change.result()
        node = self.node(address)
        pending = node.ask_as_one(commands)
        await self._answered(slot, node, pending, deadline_s)
        return pending.result(), 0

    async def _answered(
        self, slot: int, node: Node | Synced, pending: Pending[Any], deadline_s: float
    ) -> None:
        address = node.address
        while not await pending.until(min(_SILENCE_S, max(0.0, deadline_s - time.monotonic()))):
            if self._closed:
                raise ConnectionClosed("The store has been closed.")
            node.check()
            if time.monotonic() < deadline_s:
                await self._refresh_together(deadline_s)
            if time.monotonic() >= deadline_s or self._masters[slot] != address:
                raise NodeLost(f"Node {address} is silent.")

    def _undo(self, slot: int, commands: Commands) -> None:
        """Remove what was written for a function that is missing."""
        for name, key, *words in commands:
            if name == "HSET":
                self.tell(slot, ("HDEL", key, *words[::2]))

    async def _load(
        self, slot: int, address: NodeAddress | None, deadline_s: float
    ) -> Exception | None:
        """Give a node the library; answers what stands in the way, if that may pass."""
        if address is None:
            return None
        node = self.node(address)
        [pending] = node.ask(("FUNCTION", "LOAD", "REPLACE", library.TEXT))
        try:
            await self._answered(slot, node, pending, deadline_s)
            pending.result()
        except NodeLost as error:
            return error
        except ReplyError as error:
            if error.word in _PASSING:
                return error
            if error.word == "OOM":
                raise StoreUnavailable(
                    f"Node {address} is full, and lacks the functions of this version: raise its "
                    f"maxmemory for a moment, or free some: {error}."
                ) from error
            raise StoreUnavailable(
                f"Node {address} does not take the functions: {error}. Redis 7 or Valkey is needed."
            ) from error
        return None

    async def _refresh(self, deadline_s: float = 0) -> None:
        """Read which node serves which slot, from whichever node answers."""
        known = [address for address in self._nodes if address not in self._seeds]
        failure: Exception | None = None
        for address in [*_random.sample(known, len(known)), *self._seeds]:
            [pending] = self.node(address).ask(("CLUSTER", "SLOTS"))
            try:
                if not await pending.until(_SILENCE_S):
                    raise NodeLost(f"Node {address} is silent.")  # noqa: TRY301
                self._take_slots(address, pending.result())
            except (NodeLost, ReplyError) as error:
                failure = error
            else:
                return
        if time.monotonic() > deadline_s:
            places = ", ".join(map(str, self._seeds))
            reason = str(failure).rstrip(".")
            if "cluster support disabled" in reason:
                raise StoreUnavailable(
                    f"Redis at {places} is no node of a cluster, which a fabric needs: 'ringdove "
                    "cluster up' makes one on this machine."
                )
            raise StoreUnavailable(f"No node of the cluster at {places} answers: {reason}.")

    async def _refresh_together(self, deadline_s: float) -> None:
        """Read the map for everybody who wants it now, or wait for whoever does."""
        with self._lock:
            reading = self._reading
            if reading is None:
                if time.monotonic() - self._read_s < _FRESH_S:
                    return
                self._read_s = time.monotonic()
                mine = self._reading = Pending[None]()
        if reading is not None:
            if not await reading.until(_SILENCE_S):  # Whoever reads may not get to it.
                await self._refresh(deadline_s)
            return
        try:
            await self._refresh(deadline_s)
        finally:
            with self._lock:
                self._reading = None
            mine.resolve(None)

    def _refresh_some_time(self) -> None:
        """Read the map again, from the connections' own thread; nobody waits for it."""
        self._runner.spawn(self._refresh(), lambda _value, _error: None)

    def _take_slots(self, asked: NodeAddress, ranges: list[Any]) -> None:
        if not ranges:
            raise NodeLost(f"Node {asked} serves no slots.")
        masters: list[NodeAddress | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_ in ranges:
            address = NodeAddress(host.decode() or asked.host, port)
            masters[first : last + 1] = [address] * (last + 1 - first)
        self._masters = masters


def _ignore(_: bytes) -> None:
    """Nobody waits."""
