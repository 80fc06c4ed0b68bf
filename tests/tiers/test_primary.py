"""A primary and the standbys that come and go: what is recorded in sync has every commit (M6)."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from ringdove.core.block import Block
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.protocol import messages
from ringdove.stores.base import StripeId
from ringdove.stores.embedded import EmbeddedStore
from ringdove.stores.embedded.replica import Member, Replica
from ringdove.stores.embedded.shipping import detach
from ringdove.tiers import primary as module
from ringdove.tiers.grants import Grant
from ringdove.tiers.holding import Holding, now_s
from ringdove.tiers.primary import Primary, StandbyOptions

STRIPE = StripeId(1, 0, 0)
PATIENCE_S = 60


class Recorder:
    """A grant that never ends, and what was recorded under it."""

    name = "core"

    def __init__(self) -> None:
        self.recorded: list[str] = []

    def check(self) -> None:
        """It holds."""

    def lose(self, reason: str) -> None:
        """It is over."""

    async def record(self, in_sync: str) -> bool:
        self.recorded.append(in_sync)
        return True


class Wire:
    """A standby with a directory and without a network."""

    def __init__(self, primary: Primary, path: Path) -> None:
        self.replica = Replica(path)
        self.events: list[str] = []
        self.follower = primary.follow(self, 1, messages.Follow(path.name))

    def answer(self, number: int, meta: bytes) -> None:
        self.events.append("following")
        self.replica.begin(Member("core"))

    def answer_error(self, number: int, error: Exception) -> None:
        self.events.append(str(error))

    def send_commit(self, number: int, meta: bytes) -> None:
        commit = messages.decode(messages.Commit, meta)
        self.events.append(commit.durability)
        self.replica.apply(commit.durability, commit.edits)
        if commit.whole:
            self.replica.complete()
        applied = messages.Applied(commit.durability, commit.number)
        self.follower.take(SimpleNamespace(meta=messages.encode(applied)))

    def abort(self) -> None:
        self.events.append("aborted")


class Broker:
    """A store with a queue, under a primary."""

    def __init__(self, path: Path, holding: Any) -> None:
        self.store = EmbeddedStore(path)
        self.primary = Primary(holding, StandbyOptions())
        self.primary.oversee(self.store)

    async def __aenter__(self) -> Self:
        await self.store.create(STRIPE, QueueSettings(), 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.primary.end()
        self.store.oversight = None
        await self.store.close()

    async def send(self, stripe: StripeId = STRIPE) -> None:
        block = Block.build([b"body"], sent_ms=1)
        async with asyncio.timeout(PATIENCE_S):
            await self.store.append(stripe, [Segment(block)], 0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  threads change it, too
            await asyncio.sleep(0.001)


async def tail(path: Path, stripe: StripeId = STRIPE) -> int:
    store = EmbeddedStore(path)
    try:
        return (await store.stats(stripe)).tail
    finally:
        await store.close()


def test_a_standby_that_comes_while_another_goes_gets_every_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detaching, go = threading.Event(), threading.Event()

    def late_detach(store: EmbeddedStore) -> None:
        detaching.set()
        assert go.wait(PATIENCE_S)
        detach(store)

    async def scenario() -> None:
        async with Broker(tmp_path / "a", Recorder()) as broker:
            primary = broker.primary
            first = Wire(primary, tmp_path / "first")
            await until(lambda: primary.in_sync)
            monkeypatch.setattr(module, "detach", late_detach)
            first.follower.stop()
            await until(detaching.is_set)
            second = Wire(primary, tmp_path / "second")
            for _ in range(100):  # It comes as far as it can before the first is detached.
                await asyncio.sleep(0)
            if primary._follower is second.follower:
                await until(lambda: primary.in_sync)
            go.set()
            await until(first.follower._left.is_set)
            await until(lambda: primary.in_sync)
            assert primary._follower is second.follower
            for _ in range(3):
                await broker.send()
        first.replica.close()
        second.replica.close()
        assert await tail(tmp_path / "second") == 3

    asyncio.run(scenario())


def test_a_standby_is_told_to_begin_before_the_first_commit(tmp_path: Path) -> None:
    """Also where a new environment ships at once, while a commit of another is under way."""
    memory = StripeId(2, 0, 0)

    async def scenario() -> None:
        async with Broker(tmp_path / "a", Recorder()) as broker:
            store = broker.store
            with store._writers["disk"].paused():
                wire = Wire(broker.primary, tmp_path / "b")
                await until(lambda: store._shipping is wire.follower)
                await store.create(memory, QueueSettings.make(durability="memory"), 1)
            await until(lambda: broker.primary.in_sync)
            await broker.send(memory)
            assert wire.events[:2] == ["following", "memory"]
        wire.replica.close()
        assert await tail(tmp_path / "b", memory) == 1

    asyncio.run(scenario())


def test_a_primary_alone_goes_on_when_no_manager_can_record_its_standby(tmp_path: Path) -> None:
    class NoManager:
        trouble = "silence"
        asked = 0

        async def ask(self, *_: Any, **__: Any) -> None:
            self.asked += 1

    async def scenario() -> None:
        managers = NoManager()
        grant = Grant("core", "a", "", 1_000)
        holding = Holding(managers, grant, now_s() - 10)  # type: ignore[arg-type]
        async with Broker(tmp_path / "a", holding) as broker:
            wire = Wire(broker.primary, tmp_path / "b")
            await until(lambda: "aborted" in wire.events)
            await until(lambda: wire.follower.out)
            await broker.send()
            assert managers.asked == 0
            assert not holding.lost
        wire.replica.close()

    asyncio.run(scenario())
