"""One coroutine, two drivers: `run` in a plain thread, and asyncio."""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from ringdove.errors import RingdoveError, WaitTimeout
from ringdove.pending import Pending, Turn, on_event_loop, run, start, together

#: Long enough that only a hang reaches it.
PATIENCE_S = 60


class Watched(Pending[Any]):
    """A pending that tells when somebody has begun to wait for it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.waited = threading.Event()

    def when_done(self, callback: Callable[[], None]) -> None:
        super().when_done(callback)
        self.waited.set()


def deliver_when_waited(pending: Watched, deliver: Callable[[], None]) -> threading.Thread:
    """A thread that calls `deliver` as soon as somebody waits for `pending`."""

    def work() -> None:
        assert pending.waited.wait(PATIENCE_S)
        deliver()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def start_and_finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The third way to drive: begin now, finish later."""
    return start(coroutine).finish()


Driver = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[run, start_and_finish, asyncio.run], ids=["run", "start", "asyncio"])
def drive(request: pytest.FixtureRequest) -> Driver:
    return request.param


async def result_of(pending: Awaitable[Any]) -> Any:
    return await pending


# -- every driver ------------------------------------------------------------------------------


def test_a_result_that_is_there_is_taken_without_waiting(drive: Driver):
    pending = Watched()
    pending.resolve("there")
    assert drive(result_of(pending)) == "there"
    assert not pending.waited.is_set()


def test_a_result_from_another_thread_ends_the_wait(drive: Driver):
    pending = Watched()
    thread = deliver_when_waited(pending, lambda: pending.resolve(42))
    assert drive(result_of(pending)) == 42
    thread.join()


def test_an_error_from_another_thread_is_raised_where_the_coroutine_waits(drive: Driver):
    pending = Watched()
    thread = deliver_when_waited(pending, lambda: pending.fail(KeyError("lost")))

    async def work() -> str:
        try:
            await pending
        except KeyError as error:
            return f"caught {error}"
        return "nothing"

    assert drive(work()) == "caught 'lost'"
    thread.join()


def test_an_error_that_nobody_catches_leaves_the_driver(drive: Driver):
    pending: Pending[Any] = Pending()
    pending.fail(WaitTimeout("too late"))
    with pytest.raises(WaitTimeout, match="too late"):
        drive(result_of(pending))
    assert isinstance(pending.error(), WaitTimeout)


def test_none_is_a_result_like_any_other(drive: Driver):
    pending: Pending[None] = Pending()
    pending.resolve(None)
    assert drive(result_of(pending)) is None
    assert pending.error() is None


@pytest.mark.parametrize("timeout_s", [0.01, 0, -5])
def test_until_answers_no_when_the_time_is_up_and_the_wait_can_be_resumed(drive: Driver, timeout_s):
    pending = Watched()

    async def work() -> tuple[bool, Any]:
        early = await pending.until(timeout_s)
        assert pending._callbacks == []
        pending.waited.clear()
        thread = deliver_when_waited(pending, lambda: pending.resolve("late"))
        late = await pending
        thread.join()
        return early, late

    assert drive(work()) == (False, "late")


@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S])
def test_until_answers_yes_when_the_result_comes_in_time(drive: Driver, timeout_s):
    pending = Watched()
    thread = deliver_when_waited(pending, lambda: pending.resolve(1))
    assert drive(result_of(pending.until(timeout_s))) is True
    thread.join()


def test_until_leaves_the_error_for_whoever_takes_the_result(drive: Driver):
    pending = Watched()
    thread = deliver_when_waited(pending, lambda: pending.fail(ValueError("bad")))
    assert drive(result_of(pending.until(PATIENCE_S))) is True
    thread.join()
    with pytest.raises(ValueError, match="bad"):
        drive(result_of(pending))


def test_until_does_not_wait_for_what_is_there(drive: Driver):
    pending = Watched()
    pending.resolve(1)
    assert drive(result_of(pending.until(0))) is True
    assert not pending.waited.is_set()


def test_a_coroutine_may_wait_again_and_again(drive: Driver):
    steps = [Watched() for _ in range(20)]
    threads = [
        deliver_when_waited(step, lambda step=step, n=n: step.resolve(n))
        for n, step in enumerate(steps)
    ]

    async def work() -> list[int]:
        return [await step for step in steps]

    assert drive(work()) == list(range(20))
    for thread in threads:
        thread.join()


def test_an_endless_time_limit_is_no_limit(drive: Driver):
    pending = Watched()
    thread = deliver_when_waited(pending, lambda: pending.resolve(1))
    try:
        assert drive(result_of(pending.until(math.inf))) is True
    finally:
        pending.waited.set()
        thread.join()


def test_a_turn_ends_by_itself(drive: Driver):
    async def work() -> int:
        for _ in range(3):
            await Turn()
        return 3

    assert drive(work()) == 3


def test_on_an_event_loop_a_turn_lets_others_go_on():
    async def main() -> list[str]:
        seen: list[str] = []
        asyncio.get_running_loop().call_soon(seen.append, "other")
        await Turn()
        return [*seen, "turn"]

    assert asyncio.run(main()) == ["other", "turn"]


def test_the_kick_is_given_when_somebody_starts_to_wait(drive: Driver):
    kicked = threading.Event()
    pending = Watched(kick=lambda _: kicked.set())
    thread = deliver_when_waited(pending, lambda: pending.resolve(kicked.is_set()))
    assert drive(result_of(pending)) is True
    thread.join()


def test_no_kick_is_given_for_what_is_done(drive: Driver):
    kicks: list[int] = []
    pending: Pending[int] = Pending(kick=lambda _: kicks.append(1))
    pending.resolve(1)
    pending.start()
    drive(result_of(pending))
    assert kicks == []


# -- a blocked thread --------------------------------------------------------------------------


def test_a_blocked_thread_leads_instead_of_waiting():
    leaders: list[int] = []

    def lead(pending: Pending[Any]) -> None:
        leaders.append(threading.get_ident())
        pending.resolve("led")

    pending = Watched(lead=lead)
    assert run(result_of(pending)) == "led"
    assert leaders == [threading.get_ident()]
    assert not pending.waited.is_set()


def test_a_leader_that_comes_back_without_the_result_waits_for_another():
    pending = Watched(lead=lambda _: None)
    thread = deliver_when_waited(pending, lambda: pending.resolve("followed"))
    assert run(result_of(pending)) == "followed"
    thread.join()


def test_whoever_waits_for_a_limited_time_does_not_lead():
    events: list[str] = []
    pending: Pending[Any] = Pending(
        lead=lambda _: events.append("lead"), kick=lambda _: events.append("kick")
    )
    assert run(result_of(pending.until(0.01))) is False
    assert events == ["kick"]


def test_the_error_of_a_leader_reaches_its_coroutine():
    def lead(_: Pending[Any]) -> None:
        raise OSError("disk")

    cleaned: list[bool] = []

    async def work() -> None:
        try:
            await Pending(lead=lead)
        finally:
            cleaned.append(True)

    with pytest.raises(OSError, match="disk"):
        run(work())
    assert cleaned == [True]


@pytest.mark.parametrize("driver", [run, start_and_finish])
def test_an_interrupt_belongs_to_the_coroutine_which_may_wait_once_more_before_it_ends(driver):
    def interrupt(_: Pending[Any]) -> None:
        raise KeyboardInterrupt

    saved = Watched()
    thread = deliver_when_waited(saved, lambda: saved.resolve("saved"))
    finished: list[str] = []

    async def work() -> None:
        try:
            await Pending(lead=interrupt)
        finally:
            finished.append(await saved)

    with pytest.raises(KeyboardInterrupt):
        driver(work())
    thread.join()
    assert finished == ["saved"]


def test_ctrl_c_before_the_first_wait_is_raised_where_the_work_is_started():
    async def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(work())


def test_block_answers_whether_the_result_is_there():
    pending: Pending[int] = Pending()
    assert pending.block(0) is False
    assert pending.block(0.01) is False
    assert pending._callbacks == []
    pending.resolve(3)
    assert pending.block() is True
    assert pending.block(0) is True


def test_wait_gives_the_result_or_the_error_or_says_that_time_is_up():
    pending = Watched()
    with pytest.raises(WaitTimeout, match=r"within 0\.01 s"):
        pending.wait(0.01)
    pending.waited.clear()
    thread = deliver_when_waited(pending, lambda: pending.resolve(5))
    assert pending.wait(PATIENCE_S) == 5
    thread.join()
    failed: Pending[int] = Pending()
    failed.fail(ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        failed.wait()


# -- begun now, finished later -----------------------------------------------------------------


def test_a_started_coroutine_goes_to_its_first_wait_and_has_the_work_begun():
    events: list[str] = []
    pending: Pending[str] = Pending(kick=lambda _: events.append("kick"))

    async def work() -> str:
        events.append("begun")
        return await pending

    started = start(work())
    assert events == ["begun", "kick"]
    pending.resolve("done")
    assert started.finish() == "done"
    assert started.finish() == "done"


def test_an_error_before_the_first_wait_is_kept_for_whoever_finishes():
    async def work() -> None:
        raise ValueError("at once")

    started = start(work())
    for _ in range(2):
        with pytest.raises(ValueError, match="at once"):
            started.finish()


def test_many_started_coroutines_share_one_leader():
    waiting: list[Pending[int]] = []

    def lead(_: Pending[Any]) -> None:
        while waiting:
            pending = waiting.pop()
            pending.resolve(id(pending))

    waiting += [Pending(lead) for _ in range(50)]
    expected = [id(pending) for pending in waiting]
    begun = [start(result_of(pending)) for pending in waiting]
    assert [each.finish() for each in begun] == expected
    assert waiting == []


# -- asyncio -----------------------------------------------------------------------------------


def test_code_can_tell_whether_an_event_loop_runs_it():
    async def ask() -> bool:
        return on_event_loop()

    assert run(ask()) is False
    assert asyncio.run(ask()) is True
    assert on_event_loop() is False


def test_a_coroutine_of_an_event_loop_never_leads():
    def lead(_: Pending[Any]) -> None:
        raise AssertionError("the event loop would stand still")

    pending = Watched(lead=lead)
    thread = deliver_when_waited(pending, lambda: pending.resolve("other"))
    assert asyncio.run(result_of(pending)) == "other"
    thread.join()


def test_a_cancelled_wait_is_forgotten_and_others_are_not():
    async def work() -> tuple[bool, Any]:
        pending = Watched()
        first, second = (asyncio.create_task(result_of(pending)) for _ in range(2))
        await asyncio.sleep(0)
        assert len(pending._callbacks) == 2
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(pending._callbacks) == 1
        pending.resolve("kept")
        return first.cancelled(), await second

    assert asyncio.run(work()) == (True, "kept")


def test_cancelling_beats_a_result_that_the_loop_has_not_seen_yet():
    async def work() -> list[Any]:
        complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        pending: Pending[int] = Pending()
        task = asyncio.create_task(result_of(pending))
        await asyncio.sleep(0)
        pending.resolve(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert pending.result() == 1
        return complaints

    assert asyncio.run(work()) == []


def test_a_time_limit_of_asyncio_works_as_well():
    async def work() -> int:
        pending: Pending[int] = Pending()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(result_of(pending), 0.01)
        return len(pending._callbacks)

    assert asyncio.run(work()) == 0


def test_a_result_for_a_closed_loop_is_dropped_without_harm():
    pending: Pending[int] = Pending()
    loop = asyncio.new_event_loop()
    task = loop.create_task(result_of(pending))
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    loop.close()
    pending.resolve(1)
    assert pending.result() == 1


def test_running_inside_an_event_loop_is_refused_with_the_reason():
    async def work() -> None:
        run(result_of(Pending()))

    with pytest.raises((RuntimeError, RingdoveError), match="event loop"):
        asyncio.run(work())


# -- several at once ----------------------------------------------------------------------------


async def all_of(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    return await together(coroutines)


def test_all_begin_before_one_is_waited_for(drive: Driver):
    pendings = [Watched() for _ in range(3)]
    begun: list[int] = []

    async def work(number: int) -> int:
        begun.append(number)
        result: int = await pendings[number]
        return result

    def deliver() -> None:
        assert begun == [0, 1, 2]
        for number in (2, 0, 1):
            pendings[number].resolve(10 * number)

    thread = deliver_when_waited(pendings[0], deliver)
    assert drive(all_of(work(0), work(1), work(2))) == [0, 10, 20]
    thread.join()


def test_each_may_wait_again_and_again(drive: Driver):
    async def work(number: int) -> list[bool]:
        return [await Pending[None]().until(0.001) for _ in range(number)]

    assert drive(all_of(*map(work, range(4)))) == [[False] * number for number in range(4)]


@pytest.mark.parametrize("count", [0, 1])
def test_few_are_as_good_as_many(drive: Driver, count: int):
    pendings: list[Pending[int]] = [Pending() for _ in range(count)]
    for pending in pendings:
        pending.resolve(7)
    assert drive(all_of(*map(result_of, pendings))) == [7] * count


def test_the_first_error_is_raised_and_the_others_are_ended(drive: Driver):
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await Pending[None]()
        finally:
            ended.append(name)

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        drive(all_of(fail(), work("one"), work("other")))
    assert ended == ["one", "other"]


def test_who_is_cancelled_ends_them_all():
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await Pending[None]()
        finally:
            ended.append(number)

    async def main() -> None:
        task = asyncio.create_task(all_of(*map(work, range(3))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert sorted(ended) == [0, 1, 2]
