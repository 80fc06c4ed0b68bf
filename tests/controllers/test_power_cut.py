"""A memory queue of which a power cut has left the name: every request finds it empty."""

from pathlib import Path

import pytest

from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Outgoing
from ringdove.pending import run
from ringdove.stores.base import Start
from ringdove.stores.embedded import EmbeddedStore


@pytest.fixture
def broker(tmp_path: Path):
    before = Broker(EmbeddedStore(tmp_path))
    run(before.create_queue("q", {"durability": "memory", "stripes": 2}))
    run(before.subscribe("q", "reader", Start("earliest"), keep_default=True))
    run(before.send("q", Outgoing([b"gone"])))
    run(before.close())
    (tmp_path / "memory.boot").write_text("an earlier start of the machine\n")
    after = Broker(EmbeddedStore(tmp_path))
    yield after
    run(after.close())


def test_its_state_is_told(broker):
    stats = run(broker.queue_stats("q"))
    assert stats.messages == 0
    assert len(stats.stripes) == 2
    assert set(stats.subscriptions) == {"default", "reader"}


def test_it_is_purged(broker):
    assert run(broker.purge_queue("q")) == 0


def test_it_is_subscribed_to(broker):
    run(broker.subscribe("q", "other", Start("earliest")))
    assert run(broker.subscriptions("q")) == ("default", "other", "reader")


def test_it_is_streamed(broker):
    stream = run(broker.stream("q", "reader", b"me", {}, 1_000))
    run(broker.send("q", Outgoing([b"new"])))
    assert run(stream.next()).block.bodies() == [b"new"]
    run(stream.close())
