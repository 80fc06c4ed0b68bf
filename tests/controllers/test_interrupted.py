"""A receive that is interrupted between two stripes gives back what it has leased by then."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Outgoing
from ringdove.controllers.visiting import Received
from ringdove.errors import SettingsStale
from ringdove.pending import Pending, Runner, run
from ringdove.stores.memory import MemoryStore

LEASE_MS = 3_600_000

Receive = Coroutine[Any, Any, list[Received]]


class CtrlC(Pending[None]):
    """A wait during which the user presses Ctrl-C."""

    def block(self, timeout_s: float | None = None) -> bool:
        raise KeyboardInterrupt


class HaltingStore(MemoryStore):
    """Lets `passing` leases through and has the next one wait for `gate`."""

    def __init__(self) -> None:
        super().__init__()
        self.passing = 1
        self.gate: Pending[None] = Pending()

    async def lease(self, *arguments: Any) -> Any:
        if not self.passing:
            await self.gate
        self.passing -= 1
        return await super().lease(*arguments)


class LateStore(HaltingStore):
    """Waits before it takes a lease back, as a store does that is elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self.asked: Pending[None] = Pending(kick=self._begin)

    def _begin(self, _: bool) -> None:
        self.begun += 1

    async def unlease(self, *arguments: Any) -> Any:
        await self.asked
        return await super().unlease(*arguments)


async def settle() -> None:
    """Let every task run until it waits for something that nobody here delivers."""
    for _ in range(5):
        await asyncio.sleep(0)


def cancel_task(receive: Receive, store: HaltingStore) -> None:
    """As the asynchronous client is interrupted."""

    async def main() -> None:
        task = asyncio.create_task(receive)
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def cancel_driven(receive: Receive, store: HaltingStore) -> None:
    """As a server does it when the client is gone."""

    async def main() -> None:
        driven = Runner(asyncio.get_running_loop()).spawn(receive, lambda *_: None)
        assert not driven.over
        driven.cancel()

    asyncio.run(main())


def press_ctrl_c(receive: Receive, store: HaltingStore) -> None:
    """As the synchronous client is interrupted."""
    store.gate = CtrlC()
    with pytest.raises(KeyboardInterrupt):
        run(receive)


WAYS = [cancel_task, cancel_driven, press_ctrl_c]


def make_broker(store: MemoryStore, **settings: Any) -> Broker:
    """A broker with a queue that has 20 messages, some on each of its two stripes."""
    broker = Broker(store, seed=1)
    run(broker.create_queue("q", {"stripes": 2, "order": "key", **settings}))
    keys = [b"%d" % number for number in range(20)]
    run(broker.send("q", Outgoing(keys, keys=keys)))
    return broker


def counts(broker: Broker) -> tuple[int, ...]:
    """How many messages wait, are leased and are delayed."""
    return tuple(run(broker.queue_stats("q")).subscriptions["default"])


@pytest.mark.parametrize("interrupt", WAYS)
@pytest.mark.parametrize("method", ["wake", "retry", "monitor", "poll"])
def test_what_was_leased_is_given_back(interrupt, method):
    store = HaltingStore()
    broker = make_broker(store, dequeue=method)
    interrupt(broker.receive("q", "default", 100, 60, LEASE_MS), store)
    assert counts(broker) == (20, 0, 0)
    assert broker.dequeuer.parked == 0


@pytest.mark.parametrize("interrupt", WAYS)
def test_what_was_leased_beside_dead_letters_is_given_back(interrupt):
    store = HaltingStore()
    broker = make_broker(store, stripes=1, order="loose", receives_max=1)
    [first] = run(broker.receive("q", "default", 1, 0, LEASE_MS))
    run(broker.release([first.receipt], 0))

    async def move(*_: Any) -> None:
        await store.gate

    broker.dequeuer.on_dead = move
    store.passing = 1
    interrupt(broker.receive("q", "default", 10, 60, LEASE_MS), store)
    waiting, leased, _ = counts(broker)
    assert (waiting, leased) == (19, 1), "only the dead one is still being moved"


@pytest.mark.parametrize("interrupt", WAYS)
def test_what_a_redrive_has_not_moved_is_given_back(interrupt):
    class HaltingAppends(HaltingStore):
        appending = 9

        def submit_append(self, *arguments: Any) -> Any:
            if not self.appending:
                return self.gate
            self.appending -= 1
            return super().submit_append(*arguments)

    store = HaltingAppends()
    broker = make_broker(store, stripes=1, order="loose")
    run(broker.create_queue("home", {}))
    store.passing, store.appending = 9, 3
    interrupt(broker.redrive("q", "home", None), store)
    assert counts(broker) == (17, 0, 0)
    assert run(broker.queue_stats("home")).messages == 3


def test_who_waits_gets_what_is_given_back():
    store = HaltingStore()
    broker = make_broker(store)

    async def main() -> None:
        first = asyncio.create_task(broker.receive("q", "default", 100, 60, LEASE_MS))
        await settle()
        store.passing = 100
        taken = await broker.receive("q", "default", 100, 0, LEASE_MS)
        waiting = asyncio.create_task(broker.receive("q", "default", 100, 60, LEASE_MS))
        await settle()
        assert broker.dequeuer.parked == 1
        first.cancel()
        found = await asyncio.wait_for(waiting, 30)
        assert sum(one.receipt.hi - one.receipt.lo for one in taken + found) == 20

    asyncio.run(main())


def test_what_was_leased_before_the_settings_changed_is_received_all_the_same():
    class ChangedStore(HaltingStore):
        async def lease(self, *arguments: Any) -> Any:
            if not self.passing:
                self.passing = 100
                raise SettingsStale("The queue was changed.")
            return await super().lease(*arguments)

    broker = make_broker(ChangedStore())
    found = run(broker.receive("q", "default", 100, 0, LEASE_MS))
    assert sum(one.receipt.hi - one.receipt.lo for one in found) == 20


@pytest.mark.parametrize("interrupt", WAYS)
def test_a_store_that_waits_to_release_is_asked_to_begin(interrupt):
    store = LateStore()
    broker = make_broker(store)
    interrupt(broker.receive("q", "default", 100, 60, LEASE_MS), store)
    assert store.begun == 1


@pytest.mark.parametrize("interrupt", WAYS)
def test_every_stripe_is_asked_to_begin(interrupt):
    store = LateStore()
    broker = make_broker(store, stripes=3)
    store.passing = 2
    interrupt(broker.receive("q", "default", 100, 60, LEASE_MS), store)
    assert store.begun == 2
