"""Looking queues up, and changing them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from ringdove import limits
from ringdove.controllers.broker import Broker
from ringdove.controllers.catalog import Catalog
from ringdove.controllers.sending import Outgoing
from ringdove.core.dedup import Segment
from ringdove.core.settings import QueueSettings
from ringdove.errors import QueueExists, QueueNotFound, SettingsRefused
from ringdove.pending import run
from ringdove.stores.base import Start, StripeId
from ringdove.stores.memory import MemoryStore
from stores.driver import block

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.stores.base import Record


class Interrupted(MemoryStore):
    """Lets something happen just before the record of a queue is written."""

    meanwhile: Callable[[], None] | None = None

    async def put(
        self, key: str, value: bytes, expect: int | None = None, expires_ms: int = 0
    ) -> Record:
        meanwhile = self.meanwhile
        if meanwhile is not None and key.startswith("queue/"):
            self.meanwhile = None
            meanwhile()
        return await super().put(key, value, expect, expires_ms)


def test_all_queues_are_listed_however_many_there_are(monkeypatch):
    monkeypatch.setattr(limits, "SETTINGS_CACHE_MAX", 3)
    broker = Broker(MemoryStore())
    names = [f"q{number}" for number in range(9)]
    for name in names:
        run(broker.create_queue(name, {}))
    assert [info.name for info in run(broker.list_queues())] == names
    assert [info.name for info in run(broker.list_queues(after="q6"))] == ["q7", "q8"]
    assert [info.name for info in run(broker.list_queues(max=2))] == ["q0", "q1"]


def test_what_another_broker_has_deleted_is_made_anew():
    store = MemoryStore()
    one, other = Broker(store), Broker(store)
    run(one.create_queue("q", {"receives_max": 3}))
    for name in ("q", "q.dead"):
        run(other.delete_queue(name))
    run(one.create_queue("q", {"receives_max": 3}))
    assert {info.name for info in run(other.list_queues())} == {"q", "q.dead"}
    run(one.send("q", Outgoing([b"x"])))


def test_what_another_broker_has_made_anew_is_deleted_whole():
    store = MemoryStore()
    one, other = Broker(store), Broker(store)
    run(one.create_queue("q", {}))
    run(other.delete_queue("q"))
    run(other.create_queue("q", {}))
    run(one.delete_queue("q"))
    assert run(store.scan("")) == []
    assert not store._stripes


def test_a_subscription_is_on_stripes_that_another_broker_has_added():
    store = MemoryStore()
    one, other = Broker(store), Broker(store)
    run(one.create_queue("q", {}))
    info = run(other.change_queue("q", {"stripes": 3}))
    run(one.subscribe("q", "s", Start("earliest"), keep_default=True))
    for stripe in info.stripes():
        names = [own.name for own in run(store.stats(stripe)).subscriptions]
        assert names == ["default", "s"]
    run(other.change_queue("q", {"stripes": 5}))
    run(one.unsubscribe("q", "s"))
    assert all(list(known.stripe.subscriptions) == ["default"] for known in store._stripes.values())


def test_brokers_of_one_store_keep_each_others_notes():
    store = MemoryStore()
    one, other = Broker(store), Broker(store)
    run(one.create_queue("q", {}))
    run(other.get_queue("q"))
    run(one.change_queue("q", {}, {"a": "1", "b": "2"}))
    run(other.change_queue("q", {"lease_ms": 5000}, {"c": "3", "b": None}))
    one.forget_queue("q")
    settings = run(one.get_queue("q")).settings
    assert (settings.notes, settings.lease_ms) == ({"a": "1", "c": "3"}, 5000)


def test_changes_at_the_same_time_are_all_made():
    async def main() -> None:
        broker = Broker(MemoryStore())
        await broker.create_queue("q", {})
        await asyncio.gather(
            *(broker.change_queue("q", {}, {f"n{number}": "x"}) for number in range(10))
        )
        assert len((await broker.get_queue("q")).settings.notes) == 10

    asyncio.run(main())


# -- what is not there ----------------------------------------------------------------------------


class Counting(MemoryStore):
    """Notes how many records were looked at."""

    looked_at = 0

    async def scan(self, prefix: str, after: str = "", count_max: int = 1_000) -> list[Record]:
        found = await super().scan(prefix, after, count_max)
        self.looked_at += len(found)
        return found


def test_a_queue_that_is_missing_is_not_compared_with_thousands():
    store = Counting()
    catalog = Catalog(store)
    for number in range(1_000):
        run(catalog.create(f"meters.{number:03}", QueueSettings()))
    run(catalog.create("readings", QueueSettings()))
    with pytest.raises(QueueNotFound, match=r"Did you mean 'readings'\?"):
        run(catalog.get("readngs"))
    assert store.looked_at < 200


def test_names_of_other_accounts_are_not_suggested():
    catalog = Catalog(MemoryStore())
    for name in ("123456789012.orders", "123456789013.invoices", "orders"):
        run(catalog.create(name, QueueSettings()))
    for name, near in (
        ("123456789014.orders", ""),
        ("123456789013.invoice", " Did you mean '123456789013.invoices'?"),
        ("123456789012.order", " Did you mean '123456789012.orders'?"),
        ("ordrs", " Did you mean 'orders'?"),
    ):
        with pytest.raises(QueueNotFound) as refusal:
            run(catalog.get(name))
        assert str(refusal.value) == f"There is no queue {name!r}.{near}"


# -- stripes --------------------------------------------------------------------------------------


def test_a_message_that_comes_while_its_stripe_is_to_rest_is_not_lost():
    store = Interrupted()
    catalog = Catalog(store)
    info = run(catalog.create("q", QueueSettings.make(stripes=2)))
    last = info.stripes()[-1]
    store.meanwhile = lambda: run(store.append(last, [Segment(block(b"late"))], info.version))
    with pytest.raises(SettingsRefused, match="has messages"):
        run(catalog.change("q", {"stripes": 1}))
    info = run(catalog.get("q"))
    assert (info.settings.stripes, info.version) == (2, 3)
    assert len(run(store.lease(last, "default", 10, 1000, 1, info.version)).runs) == 1


def test_two_that_make_the_same_copy_at_once_leave_its_stripes():
    """A copy has its origin's id, so both have made the same stripes."""
    store = Interrupted()
    settings = QueueSettings.make(relayed=True)
    store.meanwhile = lambda: run(Catalog(store).create("q", settings, queue_id=7))
    info = run(Catalog(store).create("q", settings, queue_id=7))
    assert info.id == 7
    assert run(store.stats(StripeId(7, 0, 0))).tail == 0


def test_who_comes_second_with_another_queue_leaves_nothing():
    store = Interrupted()
    store.meanwhile = lambda: run(Catalog(store).create("q", QueueSettings.make(stripes=2)))
    with pytest.raises(QueueExists):
        run(Catalog(store).create("q", QueueSettings.make()))
    assert len(store._stripes) == 2


class Killed(MemoryStore):
    """Its process dies when the last of `left` more steps of a deletion has been made."""

    left = 0

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InterruptedError

    async def put(
        self, key: str, value: bytes, expect: int | None = None, expires_ms: int = 0
    ) -> Record:
        if key.startswith("deleted/"):
            self._step()
        return await super().put(key, value, expect, expires_ms)

    async def remove(self, key: str, expect: int | None = None) -> bool:
        self._step()
        return await super().remove(key, expect)

    async def delete(self, stripe: StripeId) -> None:
        self._step()
        await super().delete(stripe)


@pytest.mark.parametrize("steps", range(8))
def test_a_deletion_that_a_crash_has_stopped_leaves_a_whole_queue_or_nothing(steps):
    store = Killed()
    broker = Broker(store)
    info = run(broker.create_queue("q", {"stripes": 3}))
    run(broker.subscribe("q", "s", Start("earliest")))
    run(broker.send("q", Outgoing([b"1", b"2", b"3"])))
    records = len(run(store.scan("")))
    store.left = steps
    if steps < 7:
        with pytest.raises(InterruptedError):
            run(broker.delete_queue("q"))
    else:
        run(broker.delete_queue("q"))
    store.left = 99
    broker = Broker(store)
    run(broker.open())
    if steps < 2:
        assert run(broker.queue_stats("q")).messages == 3
        assert len(run(store.scan(""))) == records
    else:
        assert run(broker.list_queues()) == []
        assert run(store.scan("")) == []
        for stripe in info.stripes():
            with pytest.raises(QueueNotFound):
                run(store.stats(stripe))


def test_a_queue_whose_record_is_older_is_read():
    store = MemoryStore()
    settings = QueueSettings.make(stripes=3)
    run(store.put("queue/q", msgspec.msgpack.encode([7, 1, settings])))
    info = run(Catalog(store).get("q"))
    assert info.stripes_ever() == info.stripes()
    assert len(info.stripes()) == 3
