"""The primary's side of hot standby (M6): serves under a grant, and keeps a standby in sync.

A standby is in one of four stages:

    COPYING -> IN_SYNC -> LEAVING -> OUT
        '-----------------------------^

While COPYING it gets pieces of what is there and all commits behind them. From IN_SYNC on the
manager may have recorded that it can take over, so what it lacks is not acknowledged until it is
recorded out (LEAVING). Commits wait for it in every stage but the last, each for a stated time at
most: a standby that is slow or gone is let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from ringdove.errors import ConnectionClosed, RingdoveError, StoreUnavailable
from ringdove.log import event_logger
from ringdove.protocol import messages
from ringdove.stores.embedded.shipping import END, START, Progress, attach, detach, read_on

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from ringdove.core.settings import Durability
    from ringdove.protocol.frames import Frame
    from ringdove.stores.embedded import EmbeddedStore
    from ringdove.stores.embedded.shipping import Edit
    from ringdove.stores.embedded.writer import Writer
    from ringdove.tiers.holding import Holding

#: Bytes of entries in one piece of a copy: commits wait while it is read, a few milliseconds.
_PIECE_BYTES = 1 << 20

#: Bytes of entries in one frame; a commit with more takes several.
_FRAME_BYTES = 8 << 20

#: Beyond the stated time, a commit may take as long as this needs: large ones are not given up.
_SLOWEST_BYTES_PER_S = 10_000_000

#: Seconds between two looks whether the grant still holds, while a commit waits.
_LOOK_S = 0.1


class Wire(Protocol):
    """The standby's connection."""

    def answer(self, number: int, meta: bytes) -> None:
        """Answer a request."""
        ...

    def answer_error(self, number: int, error: RingdoveError) -> None:
        """Refuse a request."""
        ...

    def send_commit(self, number: int, meta: bytes) -> None:
        """Send what was committed."""
        ...

    def abort(self) -> None:
        """Hang up."""
        ...


class Stage(Enum):
    """Where a standby stands; see the module."""

    COPYING = "copying"
    IN_SYNC = "in sync"
    LEAVING = "leaving"
    OUT = "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyOptions:
    """How a primary deals with its standby."""

    #: How long a commit waits for the standby before it is let go.
    timeout_ms: int = 2_000
    #: Whether sends are refused while no standby is in sync.
    required: bool = False


class Primary:
    """Serves under a grant, with one standby at most; see stores.embedded.shipping.Oversight."""

    def __init__(self, holding: Holding, options: StandbyOptions) -> None:
        self.holding = holding
        self.options = options
        #: Whether the server is about to end in good order.
        self.closing = False
        self.log = event_logger("ringdove.standby")
        self._store: EmbeddedStore
        self._follower: Follower | None = None
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def oversee(self, store: EmbeddedStore) -> None:
        """Have the store used only while this process may serve."""
        self._store = store
        store.oversight = self

    def check(self) -> None:
        """Raise if nothing may be served."""
        self.holding.check()

    def check_append(self) -> None:
        """Raise if nothing may be appended."""
        doubt = self.doubt()
        if doubt is not None:
            raise doubt

    def doubt(self) -> RingdoveError | None:
        """What senders are told while no standby is in sync, if one is required."""
        if not self.options.required or self.in_sync:
            return None
        return StoreUnavailable(
            "No standby is in sync, and one is required: what was sent may be lost with this "
            "server. Send again when it is back."
        )

    @property
    def in_sync(self) -> bool:
        """Whether there is a standby that can take over."""
        follower = self._follower
        return follower is not None and follower.stage is Stage.IN_SYNC

    def follow(self, wire: Wire, number: int, ask: messages.Follow) -> Follower:
        """Take a standby; one that is there already must leave."""
        follower = Follower(self, wire, number, ask.member)
        self.spawn(self._take(follower))
        return follower

    async def _take(self, follower: Follower) -> None:
        async with self._changing:
            if self._follower is not None:
                await self._follower.leave("another standby has come")
            try:
                self.check()
            except ConnectionClosed as error:
                follower.refuse(error)
                return
            if follower.out:
                return
            self._follower = follower
            await follower.begin(self._store)
            if follower.out:  # It went while it was let in.
                await self._detach()
        await follower.copy()

    async def forget(self, follower: Follower) -> None:
        """A standby is out."""
        if self._follower is follower:
            await self._detach()
            self._follower = None  # Not before: the next one's attach must not be undone by it.

    async def _detach(self) -> None:
        """Ship no more; but where a standby is required, what was let in before must be told."""
        if not self.options.required:
            await asyncio.to_thread(detach, self._store)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Do something beside."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """Nothing is acknowledged from now on; the standby stays recorded as it is."""
        self.holding.lose("closing")
        if self._follower is not None:
            self._follower.look()
        for task in self._tasks:
            task.cancel()


class Follower:
    """One standby, from its request to its end; also what the store ships commits to."""

    def __init__(self, primary: Primary, wire: Wire, number: int, member: str) -> None:
        self.stage = Stage.COPYING
        self._primary = primary
        self._wire = wire
        self._number = number
        self._member = member
        self._loop = asyncio.get_running_loop()
        self._store: EmbeddedStore
        self._writers: list[Writer] = []
        self._progress = Progress()
        #: Guards what is below, and tells those who wait for it.
        self._changed = threading.Condition()
        self._sent: dict[Durability, int] = {"disk": 0, "memory": 0}
        self._applied: dict[Durability, int] = {"disk": 0, "memory": 0}
        #: Seconds to wait for what was sent last.
        self._most_s: dict[Durability, float] = {}
        self._left = asyncio.Event()

    @property
    def out(self) -> bool:
        """Whether nothing waits for it."""
        return self.stage is Stage.OUT

    # -- for the store: called by whoever leads a commit ----------------------------------------

    def send(self, durability: Durability, edits: list[Edit]) -> None:
        """See Shipping."""
        due = self._progress.due(durability, edits)
        if due:
            self._send(durability, due)

    def confirm(self, durability: Durability) -> RingdoveError | None:
        """See Shipping."""
        self._await(durability)
        return self._primary.doubt()

    def _await(self, durability: Durability) -> None:
        """Wait until the standby has what was sent last, or is out."""
        began_s = time.monotonic()
        with self._changed:
            while self._applied[durability] < self._sent[durability]:
                if self.out:
                    return
                self._primary.check()
                if time.monotonic() - began_s > self._most_s[durability]:
                    self._soon(self.stop, f"it did not confirm a commit within {_ms(began_s)} ms")
                self._changed.wait(_LOOK_S)

    def _send(self, durability: Durability, edits: list[Edit], *, whole: bool = False) -> None:
        with self._changed:
            if self.out:
                return
            number = self._sent[durability] = self._sent[durability] + 1
        nbytes = 0
        for piece, more in _pieces(edits):
            commit = messages.Commit(durability, number, piece, more, whole)  # type: ignore[arg-type]
            meta = messages.encode(commit)
            nbytes += len(meta)
            self._soon(self._wire.send_commit, self._number, meta)
        stated_s = self._primary.options.timeout_ms / 1000
        self._most_s[durability] = stated_s + nbytes / _SLOWEST_BYTES_PER_S

    def _soon(self, call: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The loop was closed.
            self._loop.call_soon_threadsafe(call, *arguments)

    # -- on the loop ----------------------------------------------------------------------------

    async def begin(self, store: EmbeddedStore) -> None:
        """Ship everything from now on, and say so first: the standby begins with nothing then."""
        self._store = store
        name = self._primary.holding.name
        self._wire.answer(self._number, messages.encode(messages.Following(name)))
        self._writers = await asyncio.to_thread(attach, store, self, self._progress)

    def refuse(self, error: RingdoveError) -> None:
        """Do not take the standby."""
        self.stage = Stage.OUT
        self._wire.answer_error(self._number, error)

    async def copy(self) -> None:
        """Copy what is there; then the standby is in sync."""
        log, began_s = self._primary.log, time.monotonic()
        log.info("copying to a standby", standby=self._member[:8])
        try:
            await asyncio.to_thread(self._copy)
        except RingdoveError as error:
            self.stop(str(error))
            return
        if self.stage is not Stage.COPYING:
            return
        self._become(Stage.IN_SYNC)
        if await self._primary.holding.record(self._member):
            log.info("standby in sync", standby=self._member[:8], took_ms=_ms(began_s))
        else:
            self.stop("it could not be recorded in sync")

    def _copy(self) -> None:
        for writer in self._writers:
            durability, place = writer.env.durability, START
            while place is not END:
                with writer.paused():
                    edits, place = read_on(writer.env, place, _PIECE_BYTES)
                    self._progress.advance(durability, place)
                    self._send(durability, edits)
                self._arrive(durability)
        [disk] = [writer for writer in self._writers if writer.env.durability == "disk"]
        with disk.paused():  # A commit of several frames must not be cut in two.
            self._send("disk", [], whole=True)
        self._arrive("disk")

    def _arrive(self, durability: Durability) -> None:
        self._await(durability)
        if self.stage is not Stage.COPYING:
            raise ConnectionClosed("The standby has gone.")

    def take(self, frame: Frame) -> None:
        """The standby says what it has."""
        applied: messages.Applied = messages.decode(messages.Applied, frame.meta)
        with self._changed:
            self._applied[applied.durability] = applied.number
            self._changed.notify_all()

    def stop(self, reason: str = "its connection is over") -> None:
        """Let the standby go."""
        if self.stage in (Stage.LEAVING, Stage.OUT):
            return
        self._primary.log.warning("standby lost", standby=self._member[:8], reason=reason)
        self._wire.abort()
        if self._primary.closing:
            self._primary.end()
            return
        recorded = self.stage is Stage.IN_SYNC
        self._become(Stage.LEAVING if recorded else Stage.OUT)
        self._primary.spawn(self._end(recorded=recorded))

    async def _end(self, *, recorded: bool) -> None:
        try:
            if recorded and not await self._primary.holding.record(""):
                self.look()
                return
            self._become(Stage.OUT)
            if recorded:
                self._primary.log.warning("standby recorded out: acknowledging alone")
            await self._primary.forget(self)
        finally:
            self._left.set()

    async def leave(self, reason: str) -> None:
        """Let the standby go, and wait until it is out."""
        self.stop(reason)
        await self._left.wait()

    def look(self) -> None:
        """Have those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def _become(self, stage: Stage) -> None:
        with self._changed:
            self.stage = stage
            self._changed.notify_all()


def _pieces(edits: list[Edit]) -> Iterator[tuple[list[Edit], bool]]:
    """A commit's edits in frames of bounded size, and whether another one follows."""
    piece: list[Edit] = []
    nbytes = 0
    for edit in edits:
        size = len(edit[1]) + len(edit[2] or b"")
        if piece and nbytes + size > _FRAME_BYTES:
            yield piece, True
            piece, nbytes = [], 0
        piece.append(edit)
        nbytes += size
    yield piece, False


def _ms(since_s: float) -> int:
    return round((time.monotonic() - since_s) * 1000)
