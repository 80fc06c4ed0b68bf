"""The third driver of coroutines: a `Runner` on a server's event loop, without tasks or futures."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from ringdove.pending import Driven, Pending, Runner, Turn

#: Long enough that only a hang reaches it.
PATIENCE_S = 60


class Ends:
    """Spawns coroutines and notes how they end."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.seen: list[tuple[Any, BaseException | None]] = []
        self._changed = asyncio.Event()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Driven:
        return self.runner.spawn(coroutine, self._note)

    def _note(self, value: Any, error: BaseException | None) -> None:
        assert asyncio.get_running_loop() is self.runner.loop
        self.seen.append((value, error))
        self._changed.set()

    async def wait(self, count: int = 1) -> None:
        """Until so many have ended."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.seen) < count:
                self._changed.clear()
                await self._changed.wait()


def on_loop(test: Callable[[Ends], Awaitable[None]]) -> None:
    """Run a test on an event loop of its own, with a runner."""

    async def work() -> None:
        await test(Ends(Runner(asyncio.get_running_loop())))

    asyncio.run(work())


async def turn() -> None:
    """Let everything run that is due now."""
    for _ in range(5):
        await asyncio.sleep(0)


async def result_of(pending: Awaitable[Any]) -> Any:
    return await pending


# -- ends --------------------------------------------------------------------------------------------


def test_a_coroutine_that_waits_for_nothing_is_over_at_once():
    async def test(ends: Ends) -> None:
        async def work() -> str:
            return "done"

        driven = ends.spawn(work())
        assert driven.over
        assert ends.seen == [("done", None)]

    on_loop(test)


def test_a_result_that_is_there_is_taken_without_waiting():
    async def test(ends: Ends) -> None:
        pending: Pending[str] = Pending()
        pending.resolve("there")
        assert ends.spawn(result_of(pending)).over
        assert ends.seen == [("there", None)]

    on_loop(test)


def test_a_result_from_the_loop_itself_ends_the_wait():
    async def test(ends: Ends) -> None:
        pending: Pending[str] = Pending()
        driven = ends.spawn(result_of(pending))
        await turn()
        assert not driven.over
        pending.resolve("late")
        assert ends.seen == []  # Taken up by the loop, not within the delivering call.
        await ends.wait()
        assert ends.seen == [("late", None)]

    on_loop(test)


def test_results_from_another_thread_end_the_waits_on_the_loop():
    async def test(ends: Ends) -> None:
        pendings: list[Pending[int]] = [Pending() for _ in range(100)]
        for pending in pendings:
            ends.spawn(result_of(pending))

        def deliver() -> None:
            for number, pending in enumerate(pendings):
                pending.resolve(number)

        thread = threading.Thread(target=deliver)
        thread.start()
        await ends.wait(100)
        thread.join()
        assert ends.seen == [(number, None) for number in range(100)]

    on_loop(test)


def test_many_waits_in_a_row_each_woken_by_a_thread():
    async def test(ends: Ends) -> None:
        async def work() -> int:
            total = 0
            for _ in range(200):
                pending: Pending[int] = Pending(
                    kick=lambda _inline: threading.Thread(target=pending.resolve, args=(1,)).start()
                )
                total += await pending
            return total

        ends.spawn(work())
        await ends.wait()
        assert ends.seen == [(200, None)]

    on_loop(test)


@pytest.mark.parametrize("error", [KeyError("lost"), asyncio.CancelledError(), SystemExit(3)])
def test_an_error_of_the_coroutine_is_delivered(error):
    async def test(ends: Ends) -> None:
        async def work(pending: Pending[Any]) -> None:
            await pending
            raise error

        pending: Pending[None] = Pending()
        ends.spawn(work(pending))
        pending.resolve(None)
        await ends.wait()
        assert ends.seen == [(None, error)]

    on_loop(test)


def test_an_error_of_a_pending_is_raised_where_the_coroutine_waits():
    async def test(ends: Ends) -> None:
        async def work(pending: Pending[Any]) -> str:
            try:
                await pending
            except KeyError as error:
                return f"caught {error}"
            return "missed"

        pending: Pending[None] = Pending()
        ends.spawn(work(pending))
        pending.fail(KeyError("lost"))
        await ends.wait()
        assert ends.seen == [("caught 'lost'", None)]

    on_loop(test)


# -- beginning work ----------------------------------------------------------------------------------


def test_work_is_begun_together_after_everything_that_has_arrived():
    async def test(ends: Ends) -> None:
        order: list[str] = []
        for number in range(3):
            pending: Pending[None] = Pending(kick=lambda inline: order.append(f"kick {inline}"))
            ends.spawn(result_of(pending))
            order.append(f"spawned {number}")
        await turn()
        assert order == ["spawned 0", "spawned 1", "spawned 2"] + ["kick True"] * 3

    on_loop(test)


def test_work_that_is_done_by_then_is_not_begun():
    async def test(ends: Ends) -> None:
        kicked: list[bool] = []
        pending: Pending[None] = Pending(kick=kicked.append)
        ends.spawn(result_of(pending))
        pending.resolve(None)
        await ends.wait()
        assert kicked == []

    on_loop(test)


# -- time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [-1, 0, 0.01])
def test_a_limited_wait_ends_when_its_time_is_up(timeout_s):
    async def test(ends: Ends) -> None:
        never: Pending[None] = Pending()
        ends.spawn(result_of(never.until(timeout_s)))
        await ends.wait()
        assert ends.seen == [(False, None)]

    on_loop(test)


def test_a_limited_wait_ends_with_the_result_if_that_is_earlier():
    async def test(ends: Ends) -> None:
        pending: Pending[None] = Pending()
        ends.spawn(result_of(pending.until(PATIENCE_S)))
        pending.resolve(None)
        await ends.wait()
        assert ends.seen == [(True, None)]

    on_loop(test)


def test_a_wait_without_limit_has_no_timer():
    async def test(ends: Ends) -> None:
        pending: Pending[None] = Pending()
        driven = ends.spawn(result_of(pending.until(None)))
        assert driven._timer is None
        pending.resolve(None)
        await ends.wait()
        assert ends.seen == [(True, None)]

    on_loop(test)


def test_a_wake_that_comes_after_the_time_was_up_does_no_harm():
    async def test(ends: Ends) -> None:
        first: Pending[None] = Pending()
        second: Pending[str] = Pending()

        begun = asyncio.Event()

        async def work() -> tuple[bool, str]:
            in_time = await first.until(0.01)
            begun.set()
            return in_time, await second

        driven = ends.spawn(work())
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        first.resolve(None)
        ends.runner.soon(driven.step)  # As if it had been under way already.
        await turn()
        assert not driven.over
        second.resolve("right")
        await ends.wait()
        ends.runner.soon(driven.step)
        await turn()
        assert ends.seen == [((False, "right"), None)]

    on_loop(test)


def test_a_wake_and_the_end_of_the_time_at_once_are_one_step():
    async def test(ends: Ends) -> None:
        first: Pending[None] = Pending()
        second: Pending[str] = Pending()

        async def work() -> tuple[bool, str]:
            return await first.until(PATIENCE_S), await second

        driven = ends.spawn(work())
        first.resolve(None)  # The wake is under way ...
        driven._time_up()  # ... when the time is up.
        assert driven._pending is second
        await turn()
        assert not driven.over
        second.resolve("right")
        await ends.wait()
        assert ends.seen == [((True, "right"), None)]

    on_loop(test)


# -- cancelling --------------------------------------------------------------------------------------


def test_cancelling_runs_finally_blocks_and_tells_nobody():
    async def test(ends: Ends) -> None:
        cleaned: list[str] = []

        async def work(pending: Pending[Any]) -> None:
            try:
                await pending.until(PATIENCE_S)
            finally:
                cleaned.append("up")

        pending: Pending[None] = Pending()
        driven = ends.spawn(work(pending))
        driven.cancel()
        assert cleaned == ["up"]
        assert driven.over
        assert not pending.awaited
        driven.cancel()
        pending.resolve(None)
        await turn()
        assert ends.seen == []
        assert cleaned == ["up"]

    on_loop(test)


def test_cancelling_what_was_just_woken_ends_it_all_the_same():
    async def test(ends: Ends) -> None:
        pending: Pending[None] = Pending()
        driven = ends.spawn(result_of(pending))
        pending.resolve(None)
        driven.cancel()
        await turn()
        assert ends.seen == []

    on_loop(test)


def test_cancelling_what_is_over_does_nothing():
    async def test(ends: Ends) -> None:
        pending: Pending[str] = Pending()
        pending.resolve("done")
        driven = ends.spawn(result_of(pending))
        driven.cancel()
        assert ends.seen == [("done", None)]

    on_loop(test)


# -- together ----------------------------------------------------------------------------------------


def test_asyncio_beside_the_runner_waits_for_pendings_as_ever():
    async def test(ends: Ends) -> None:
        pending: Pending[str] = Pending()
        ends.spawn(result_of(pending))
        task = asyncio.create_task(result_of(pending))
        await turn()
        pending.resolve("both")
        assert await asyncio.wait_for(task, PATIENCE_S) == "both"
        await ends.wait()
        assert ends.seen == [("both", None)]

    on_loop(test)


def test_an_end_may_spawn_the_next():
    async def test(ends: Ends) -> None:
        pendings: list[Pending[int]] = [Pending() for _ in range(3)]
        found: list[int] = []
        over = asyncio.Event()

        def take(value: int, error: BaseException | None) -> None:
            found.append(value)
            if len(found) < 3:
                ends.runner.spawn(result_of(pendings[len(found)]), take)
            else:
                over.set()

        ends.runner.spawn(result_of(pendings[0]), take)
        for number, pending in enumerate(pendings):
            pending.resolve(number)
        await asyncio.wait_for(over.wait(), PATIENCE_S)
        assert found == [0, 1, 2]

    on_loop(test)


def test_a_coroutine_may_spawn_another():
    async def test(ends: Ends) -> None:
        inner: Pending[str] = Pending()
        outer: Pending[str] = Pending()

        async def work() -> str:
            ends.spawn(result_of(inner))
            return await outer

        ends.spawn(work())
        inner.resolve("inner")
        outer.resolve("outer")
        await ends.wait(2)
        assert ends.seen == [("inner", None), ("outer", None)]

    on_loop(test)


def test_an_end_that_cannot_be_told_does_not_hold_up_the_others():
    async def test(ends: Ends) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)

        def broken(*_: object) -> None:
            raise OSError("cannot tell")

        pending: Pending[str] = Pending()
        ends.runner.spawn(result_of(pending), broken)
        ends.spawn(result_of(pending))
        pending.resolve("for both")
        await turn()
        assert ends.seen == [("for both", None)]

    on_loop(test)


def test_a_wake_after_the_loop_has_closed_is_ignored():
    async def begin() -> Driven:
        return Runner(asyncio.get_running_loop()).spawn(result_of(pending), lambda *_: None)

    pending: Pending[None] = Pending()
    driven = asyncio.run(begin())
    pending.resolve(None)
    driven.cancel()


def test_work_that_cannot_be_prepared_does_not_stop_that_of_others():
    class Broken(Pending[str]):
        def prepare(self) -> None:
            raise OSError("broken")

    async def test(ends: Ends) -> None:
        complaints: list[Any] = []
        ends.runner.loop.set_exception_handler(lambda _, what: complaints.append(what))
        broken: Pending[str] = Broken(kick=lambda _: broken.resolve("begun"))
        sound: Pending[str] = Pending(kick=lambda _: sound.resolve("done"))
        ends.spawn(result_of(broken))
        ends.spawn(result_of(sound))
        await ends.wait(2)
        assert ends.seen == [("begun", None), ("done", None)]
        assert [str(what["exception"]) for what in complaints] == ["broken"]

    on_loop(test)


def test_work_that_cannot_be_begun_does_not_stop_that_of_others():
    async def test(ends: Ends) -> None:
        complaints: list[Any] = []
        ends.runner.loop.set_exception_handler(lambda _, what: complaints.append(what))

        def fail(_inline: bool) -> None:
            raise OSError("broken")

        def work(_inline: bool) -> None:
            sound.resolve("done")

        broken: Pending[Any] = Pending(kick=fail)
        sound: Pending[Any] = Pending(kick=work)
        waiting = ends.spawn(result_of(broken))
        ends.spawn(result_of(sound))
        await ends.wait()
        waiting.cancel()
        assert ends.seen == [("done", None)]
        assert [str(what["exception"]) for what in complaints] == ["broken"]

    on_loop(test)


# -- turns -----------------------------------------------------------------------------------------


def test_who_gives_others_a_turn_goes_on_after_their_work():
    """Work that is begun before the next turn of the loop comes first, as in one commit."""

    async def test(ends: Ends) -> None:
        done: list[str] = []

        class Work(Pending[None]):
            def __init__(self) -> None:
                super().__init__(kick=self.commit)

            def commit(self, inline: bool) -> None:
                done.append("work")
                self.resolve(None)

        async def wait() -> None:
            await Turn()
            done.append("waited")

        ends.spawn(wait())
        ends.spawn(result_of(Work()))
        await ends.wait(2)
        assert done == ["work", "waited"]

    on_loop(test)
