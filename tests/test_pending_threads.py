"""Pendings between threads: callbacks, races, and waiters who work for each other."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ringdove.pending import Pending, run

#: Long enough that only a hang reaches it.
PATIENCE_S = 60


async def result_of(pending: Pending[Any]) -> Any:
    return await pending


# -- callbacks ---------------------------------------------------------------------------------


def test_a_callback_is_called_once_by_the_thread_that_delivers():
    pending: Pending[int] = Pending()
    callers: list[int] = []
    pending.when_done(lambda: callers.append(threading.get_ident()))
    thread = threading.Thread(target=pending.resolve, args=(1,))
    thread.start()
    thread.join()
    assert callers == [thread.ident]
    assert not pending.awaited


def test_a_callback_after_delivery_is_called_at_once():
    pending: Pending[int] = Pending()
    pending.fail(ValueError())
    called: list[bool] = []
    pending.when_done(lambda: called.append(pending.done))
    assert called == [True]


def test_a_forgotten_callback_is_not_called():
    pending: Pending[int] = Pending()
    called: list[str] = []

    def first() -> None:
        called.append("first")

    def second() -> None:
        called.append("second")

    pending.when_done(first)
    pending.when_done(second)
    pending.forget(first)
    pending.forget(first)
    pending.resolve(1)
    assert called == ["second"]


# -- many threads ------------------------------------------------------------------------------


def test_many_threads_may_wait_for_the_same_result():
    pending: Pending[int] = Pending()
    everybody = threading.Barrier(9, timeout=PATIENCE_S)

    def wait(_: int) -> int:
        everybody.wait()
        return run(result_of(pending))

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(wait, n) for n in range(8)]
        everybody.wait()
        pending.resolve(7)
        assert [answer.result(PATIENCE_S) for answer in answers] == [7] * 8


def test_a_callback_that_races_with_delivery_is_called_exactly_once():
    rounds = 500
    pendings: list[Pending[int]] = [Pending() for _ in range(rounds)]
    calls = [0] * rounds
    abreast = threading.Barrier(2, timeout=PATIENCE_S)

    def register() -> None:
        for n, pending in enumerate(pendings):
            abreast.wait()
            pending.when_done(lambda n=n: calls.__setitem__(n, calls[n] + 1))

    thread = threading.Thread(target=register)
    thread.start()
    for pending in pendings:
        abreast.wait()
        pending.resolve(1)
    thread.join()
    assert calls == [1] * rounds


class GroupCommit:
    """What a store does: whoever waits first commits for everybody who waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leading = threading.Lock()
        self._waiting: list[tuple[int, Pending[int]]] = []
        self.committed: list[int] = []

    async def append(self, number: int) -> int:
        """Give the number back once it is committed."""
        pending: Pending[int] = Pending(self._lead, self._kick)
        with self._lock:
            self._waiting.append((number, pending))
        return await pending

    def _lead(self, pending: Pending[Any]) -> None:
        with self._leading:
            if not pending.done:
                self._commit()

    def _kick(self, _inline: bool) -> None:
        threading.Thread(target=self._commit_alone).start()

    def _commit_alone(self) -> None:
        with self._leading:
            self._commit()

    def _commit(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        self.committed += [number for number, _ in batch]
        for number, pending in batch:
            pending.resolve(number)


def test_threads_and_an_event_loop_commit_for_each_other_and_each_gets_its_own_answer():
    store = GroupCommit()
    each = 100

    def by_thread(first: int) -> list[int]:
        return [run(store.append(number)) for number in range(first, first + each)]

    async def by_loop(first: int) -> list[int]:
        return list(await asyncio.gather(*(store.append(first + n) for n in range(each))))

    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(by_thread, n * each) for n in range(5)]
        answers.append(pool.submit(lambda: asyncio.run(by_loop(5 * each))))
        found = [answer.result(PATIENCE_S) for answer in answers]
    assert [number for numbers in found for number in numbers] == list(range(6 * each))
    assert sorted(store.committed) == list(range(6 * each))
