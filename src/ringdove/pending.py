"""One asynchronous code path, two ways to drive it.

Controllers and stores are written with `async def`. Under asyncio they run as usual. A synchronous
caller needs no event loop and no second thread: `run` drives the coroutine by hand, and whenever it
waits for a `Pending`, blocks the calling thread on it. The blocked thread may even do the work
itself: a store gives its pendings a `lead` function, through which a waiting caller becomes the one
who commits for everybody (the classic leader of a group commit).

A server has a third way: a `Runner` drives thousands of such coroutines on its event loop without
a task and a future for each, begins each of them at once, and takes up together those that one
commit has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ringdove.errors import LocalProtocolError, WaitTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

T = TypeVar("T")

#: The event loop of the calling code, None when it does not run under asyncio.
running_loop = asyncio._get_running_loop  # noqa: SLF001  documented for frameworks

#: Guards the callback lists of all pendings; held for a few instructions at a time.
_callbacks_lock = threading.Lock()


class Pending(Generic[T]):
    """A result that another thread will deliver, once. Await it, or block on it.

    `lead`, when given, is called by a blocked thread instead of waiting and returns when the result
    is there. `kick`, when given, is called when a coroutine of an event loop starts to wait; it is
    told whether it may do short work itself, in that thread.
    """

    __slots__ = ("_callbacks", "_error", "_lead", "_value", "done", "kick")

    def __init__(
        self,
        lead: Callable[[Pending[Any]], None] | None = None,
        kick: Callable[[bool], None] | None = None,
    ) -> None:
        self.done = False
        self._lead = lead
        self.kick = kick
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def led_by(self, lead: Callable[[Pending[Any]], None], kick: Callable[[bool], None]) -> None:
        """Name who does the work; before anybody waits."""
        self._lead = lead
        self.kick = kick

    def resolve(self, value: T) -> None:
        """Deliver the result."""
        self._value = value
        with _callbacks_lock:
            self.done = True
            callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                callback()

    def fail(self, error: BaseException) -> None:
        """Deliver an error."""
        self._error = error
        self.resolve(cast("T", None))

    def result(self) -> T:
        """The result or the error; only when `done`."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def error(self) -> BaseException | None:
        """The error, if that is what was delivered."""
        return self._error

    def prepare(self) -> None:
        """Do what comes before the work, so that the work of several can be done as one."""

    def start(self, *, inline: bool = False) -> None:
        """Have the work begun although nobody waits yet; `inline`: here, if it is short."""
        if self.kick is not None and not self.done:
            self.kick(inline)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from the delivering thread, or at once when already done."""
        with _callbacks_lock:
            if not self.done:
                if self._callbacks is None:
                    self._callbacks = [callback]
                else:
                    self._callbacks.append(callback)
                return
        callback()

    @property
    def awaited(self) -> bool:
        """Whether somebody is to be called."""
        return bool(self._callbacks)

    def forget(self, callback: Callable[[], None]) -> None:
        """Take a callback back that need not be called any more."""
        with _callbacks_lock:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)

    def block(self, timeout_s: float | None = None) -> bool:
        """Wait in this thread; False when the time is up first."""
        if self.done:
            return True
        if self._lead is not None and timeout_s is None:
            self._lead(self)
            if self.done:
                return True
        self.start()
        gate = threading.Lock()
        gate.acquire()
        self.when_done(gate.release)
        longest_s = threading.TIMEOUT_MAX
        if gate.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), longest_s)):
            return True
        self.forget(gate.release)
        return self.done

    def wait(self, timeout_s: float | None = None) -> T:
        """Wait in this thread for the result; WaitTimeout when the time is up first."""
        if not self.block(timeout_s):
            raise WaitTimeout(f"There was no result within {timeout_s} s.")
        return self.result()

    def __await__(self) -> Generator[Any, Any, T]:
        if not self.done:
            if _by_hand.driving:
                yield self, None
            else:
                yield from _wait(self, None)
        return self.result()

    def until(self, timeout_s: float | None) -> _Until:
        """Wait at most `timeout_s`; answers whether the result is there."""
        return _Until(self, timeout_s)


class _Until:
    """Awaits a pending for a limited time, without taking its result."""

    __slots__ = ("_pending", "_timeout_s")

    def __init__(self, pending: Pending[Any], timeout_s: float | None) -> None:
        self._pending = pending
        self._timeout_s = timeout_s

    def __await__(self) -> Generator[Any, Any, bool]:
        pending = self._pending
        if not pending.done:
            if _by_hand.driving:
                yield pending, self._timeout_s
            else:
                yield from _wait(pending, self._timeout_s)
        return pending.done


class Turn(Pending[None]):
    """Done when what has reached the event loop meanwhile is done; without a loop at once."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Turn._pass, self._begin)

    @staticmethod
    def _pass(turn: Pending[None]) -> None:
        turn.kick = None  # It refers to the turn.
        turn.resolve(None)

    def _begin(self, inline: bool) -> None:  # noqa: FBT001  a callback
        loop = running_loop()
        if inline or loop is None:
            self._pass(self)  # A runner begins it with everything that has come by then.
        else:
            loop.call_soon(self._pass, self)


def on_event_loop() -> bool:
    """Whether the calling code runs under asyncio, so that it must not block."""
    return running_loop() is not None


class _ByHand(threading.local):
    #: Whether the coroutine that runs in this thread is driven by hand, even on an event loop.
    driving = False


_by_hand = _ByHand()


def _wait(pending: Pending[Any], timeout_s: float | None) -> Generator[Any, Any, None]:
    loop = None if _by_hand.driving else running_loop()
    if loop is None:
        yield pending, timeout_s
        return
    if pending.kick is not None:
        pending.kick(False)  # noqa: FBT003  a callback
    future: asyncio.Future[None] = loop.create_future()
    delivered = partial(_deliver, loop, future)
    pending.when_done(delivered)
    timer = None if timeout_s is None else loop.call_later(max(0.0, timeout_s), _settle, future)
    try:
        yield from future
    finally:
        if not pending.done:
            pending.forget(delivered)
        if timer is not None:
            timer.cancel()


def _deliver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """Wake who waits on a loop; from any thread."""
    if running_loop() is loop:
        if not future.done():
            future.set_result(None)
        return
    with contextlib.suppress(RuntimeError):  # The loop was closed while the work was finished.
        loop.call_soon_threadsafe(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Started(Generic[T]):
    """A coroutine that was driven to its first wait and goes on when somebody finishes it."""

    __slots__ = ("_coroutine", "_error", "_step", "_value")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._value: T | None = None
        self._error: BaseException | None = None
        self._step: tuple[Pending[Any], float | None] | None = None
        self._advance(partial(coroutine.send, None))
        if self._error is not None and not isinstance(self._error, Exception):
            raise self._error  # Ctrl-C is for this thread, whoever finishes the work.

    def begin(self) -> None:
        """Have the work it waits for begun by others."""
        if self._step is not None:
            self._step[0].start()

    def finish(self) -> T:
        """Drive it to its end in this thread; its result or error."""
        while self._step is not None:
            pending, timeout_s = self._step
            try:
                pending.block(timeout_s)
            except BaseException as error:  # noqa: BLE001  KeyboardInterrupt belongs to the coroutine
                self._advance(partial(self._coroutine.throw, error))
            else:
                self._advance(partial(self._coroutine.send, None))
        return self._result()

    def __await__(self) -> Generator[Any, Any, T]:
        while self._step is not None:
            pending, timeout_s = self._step
            if not pending.done:
                yield from _wait(pending, timeout_s)
            self._advance(partial(self._coroutine.send, None))
        return self._result()

    def _result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def _advance(self, step: Callable[[], tuple[Pending[Any], float | None]]) -> None:
        self._step = None
        before, _by_hand.driving = _by_hand.driving, True
        try:
            self._step = step()
        except StopIteration as stop:
            self._value = stop.value
        except BaseException as error:  # noqa: BLE001  raised again by finish
            self._error = error
        finally:
            _by_hand.driving = before


async def together(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of coroutines that wait for nothing but pendings; all begin, then one waits."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    try:
        started = [Started(coroutine) for coroutine in coroutines]
        return [await one for one in started]
    finally:
        for coroutine in coroutines:
            coroutine.close()


def _refuse_on_event_loop(coroutine: Coroutine[Any, Any, Any]) -> None:
    if on_event_loop():
        coroutine.close()
        raise LocalProtocolError(
            "The synchronous client would block the running event loop: use ringdove.aio there."
        )


def start(coroutine: Coroutine[Any, Any, T]) -> Started[T]:
    """Drive a coroutine to its first wait, have that work begun, and come back."""
    _refuse_on_event_loop(coroutine)
    started = Started(coroutine)
    started.begin()
    return started


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine to its end in this thread, without an event loop."""
    _refuse_on_event_loop(coroutine)
    try:
        step: tuple[Pending[Any], float | None] = coroutine.send(None)
        while True:
            try:
                step[0].block(step[1])
            except BaseException as error:  # noqa: BLE001  KeyboardInterrupt belongs to the coroutine
                step = coroutine.throw(error)
            else:
                step = coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)


class Runner:
    """Drives coroutines that wait for nothing but pendings, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._last: deque[Callable[[], None]] = deque()
        self._ending = False
        self._unbegun: list[Pending[Any]] = []

    def begin(self, pending: Pending[Any]) -> None:
        """Have a pending's work begun, after everything that has arrived by now: as one."""
        if pending.kick is None:
            return
        if not self._unbegun:
            self.loop.call_soon(self._begin_all)
        self._unbegun.append(pending)

    def _begin_all(self) -> None:
        pendings, self._unbegun = self._unbegun, []
        self._scheduled = True  # What this finishes goes on right below, without another turn.
        try:
            if len(pendings) > 1:
                for pending in pendings:
                    try:
                        pending.prepare()
                    except Exception as error:  # noqa: BLE001  one must not stop the others
                        self._complain(error)
            for pending in pendings:
                try:
                    if pending.kick is not None and not pending.done:
                        pending.kick(True)  # noqa: FBT003  a callback
                except Exception as error:  # noqa: BLE001
                    self._complain(error)
        finally:
            self._go_on()

    def spawn(
        self,
        coroutine: Coroutine[Any, Any, Any],
        on_done: Callable[[Any, BaseException | None], None],
    ) -> Driven:
        """Begin a coroutine now; `on_done` gets its result or error, perhaps before the return."""
        driven = Driven(self, coroutine, on_done)
        driven.step()
        return driven

    def soon(self, step: Callable[[], None]) -> None:
        """Do something on the loop, soon and in this order; from any thread."""
        self._ready.append(step)
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self._go_on)

    def later(self, step: Callable[[], None]) -> None:
        """`soon`, but when what is done soon has been written to its sockets; from any thread."""
        self._last.append(step)
        if not self._ending:
            self._ending = True
            self._schedule(self._end_turn)

    def _schedule(self, act: Callable[[], None]) -> None:
        try:
            if running_loop() is self.loop:
                self.loop.call_soon(act)
            else:
                self.loop.call_soon_threadsafe(act)
        except RuntimeError:  # The loop was closed: nobody is left to answer.
            return

    def _go_on(self) -> None:
        self._scheduled = False
        self._do(self._ready)

    def _end_turn(self) -> None:
        self._ending = False
        self._do(self._last)

    def _do(self, steps: deque[Callable[[], None]]) -> None:
        """Do what there is by now."""
        for _ in range(len(steps)):
            try:
                steps.popleft()()
            except Exception as error:  # noqa: BLE001  one must not stop the others
                self._complain(error)

    def _complain(self, error: Exception) -> None:
        self.loop.call_exception_handler(
            {"message": "What a pending needs or causes failed.", "exception": error}
        )


class Driven:
    """A coroutine in a runner's hands."""

    __slots__ = ("_coroutine", "_due", "_on_done", "_pending", "_runner", "_timer", "over")

    def __init__(
        self,
        runner: Runner,
        coroutine: Coroutine[Any, Any, Any],
        on_done: Callable[[Any, BaseException | None], None],
    ) -> None:
        self._runner = runner
        self._coroutine = coroutine
        self._on_done = on_done
        self._pending: Pending[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Whether the time to wait for `_pending` is up.
        self._due = False
        self.over = False

    def step(self) -> None:
        """Go on until the next wait, or the end."""
        if self.over:
            return
        waited = self._pending
        if waited is not None:
            if not waited.done and not self._due:
                return
            self._detach(waited)
        before, _by_hand.driving = _by_hand.driving, True
        try:
            pending, timeout_s = self._coroutine.send(None)
        except StopIteration as stop:
            _by_hand.driving = before
            self.over = True
            self._on_done(stop.value, None)
            return
        except BaseException as error:  # noqa: BLE001  delivered to whoever asked
            _by_hand.driving = before
            self.over = True
            self._on_done(None, error)
            return
        finally:
            _by_hand.driving = before
        self._pending = pending
        self._runner.begin(pending)
        if timeout_s is not None:
            self._timer = self._runner.loop.call_later(max(0.0, timeout_s), self._time_up)
        pending.when_done(self._woken)

    def cancel(self) -> None:
        """End the coroutine where it waits; `on_done` is not called."""
        if not self.over:
            self.over = True
            if self._pending is not None:
                self._detach(self._pending)
            before, _by_hand.driving = _by_hand.driving, True
            try:
                self._coroutine.close()
            finally:
                _by_hand.driving = before

    def _woken(self) -> None:
        self._runner.soon(self.step)

    def _time_up(self) -> None:
        self._due = True
        self.step()

    def _detach(self, waited: Pending[Any]) -> None:
        if not waited.done:
            waited.forget(self._woken)
        self._pending = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = False
