"""One asynchronous code path, two ways to drive it.

Controllers and stores are written with `async def`. Under asyncio they run as usual. A synchronous
caller needs no event loop and no second thread: `run` drives the coroutine by hand, and whenever it
waits for a `Pending`, blocks the calling thread on it. The blocked thread may even do the work
itself: a store gives its pendings a `lead` function, through which a waiting caller becomes the one
who commits for everybody (the classic leader of a group commit).
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ringdove.errors import LocalProtocolError, WaitTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")

#: Guards the callback lists of all pendings; held for a few instructions at a time.
_callbacks_lock = threading.Lock()


class Pending(Generic[T]):
    """A result that another thread will deliver, once. Await it, or block on it.

    `lead`, when given, is called by a blocked thread instead of waiting and returns when the result
    is there. `kick`, when given, is called when a coroutine of an event loop starts to wait.
    """

    __slots__ = ("_callbacks", "_error", "_kick", "_lead", "_value", "done")

    def __init__(
        self,
        lead: Callable[[Pending[Any]], None] | None = None,
        kick: Callable[[], None] | None = None,
    ) -> None:
        self.done = False
        self._lead = lead
        self._kick = kick
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def resolve(self, value: T) -> None:
        """Deliver the result."""
        self._value = value
        self._finish()

    def fail(self, error: BaseException) -> None:
        """Deliver an error."""
        self._error = error
        self._finish()

    def result(self) -> T:
        """The result or the error; only when `done`."""
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def error(self) -> BaseException | None:
        """The error, if that is what was delivered."""
        return self._error

    def start(self) -> None:
        """Have the work begun although nobody waits yet."""
        if self._kick is not None and not self.done:
            self._kick()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from the delivering thread, or at once when already done."""
        with _callbacks_lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> None:
        """Take a callback back that need not be called any more."""
        with _callbacks_lock:
            if callback in self._callbacks:
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
            yield from _wait(self, None)
        return self.result()

    async def until(self, timeout_s: float | None) -> bool:
        """Wait at most `timeout_s`; answers whether the result is there."""
        if not self.done:
            await _Until(self, timeout_s)
        return self.done

    def _finish(self) -> None:
        with _callbacks_lock:
            self.done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class _Until:
    """Awaits a pending for a limited time, without taking its result."""

    def __init__(self, pending: Pending[Any], timeout_s: float | None) -> None:
        self._pending = pending
        self._timeout_s = timeout_s

    def __await__(self) -> Generator[Any, Any, None]:
        yield from _wait(self._pending, self._timeout_s)


def on_event_loop() -> bool:
    """Whether the calling code runs under asyncio, so that it must not block."""
    return asyncio._get_running_loop() is not None  # noqa: SLF001  documented for frameworks


def _wait(pending: Pending[Any], timeout_s: float | None) -> Generator[Any, Any, None]:
    loop = asyncio._get_running_loop()  # noqa: SLF001
    if loop is None:
        yield pending, timeout_s
        return
    pending.start()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def delivered() -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:  # The loop was closed while the store finished the work.
            return

    pending.when_done(delivered)
    timer = None if timeout_s is None else loop.call_later(max(0.0, timeout_s), settle)
    try:
        yield from future
    finally:
        pending.forget(delivered)
        if timer is not None:
            timer.cancel()


class Started(Generic[T]):
    """A coroutine that was driven to its first wait and goes on when somebody finishes it."""

    __slots__ = ("_coroutine", "_error", "_step", "_value")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._value: T | None = None
        self._error: BaseException | None = None
        self._step: tuple[Pending[Any], float | None] | None = None
        self._advance(partial(coroutine.send, None))

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
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def _advance(self, step: Callable[[], tuple[Pending[Any], float | None]]) -> None:
        self._step = None
        try:
            self._step = step()
        except StopIteration as stop:
            self._value = stop.value
        except BaseException as error:  # noqa: BLE001  raised again by finish
            self._error = error


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
