"""A stream of a broker in this process: how long its claim lasts, and what it covers."""

import pytest

from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Outgoing
from ringdove.errors import InvalidArgument, SubscriptionBusy
from ringdove.pending import run
from ringdove.stores.memory import MemoryStore

LEASE_MS = 3_000


@pytest.fixture
def broker(clock: ManualClock) -> Broker:
    broker = Broker(MemoryStore(clock))
    run(broker.create_queue("q", {}))
    return broker


def test_a_reader_that_waits_keeps_its_claim(broker: Broker, clock: ManualClock) -> None:
    stream = run(broker.stream("q", "default", b"one", {}, LEASE_MS))
    waiting = stream.next()
    for _ in range(10):
        _, timeout_s = waiting.send(None)
        assert timeout_s is not None
        assert timeout_s <= LEASE_MS / 3000
        clock.sleep_ms(int(timeout_s * 1000))
    waiting.send(None)
    with pytest.raises(SubscriptionBusy):
        run(broker.stream("q", "default", b"another", {}, LEASE_MS))
    waiting.close()


def test_stripes_that_are_added_are_streamed_too(broker: Broker, clock: ManualClock) -> None:
    stream = run(broker.stream("q", "default", b"one", {}, LEASE_MS))
    waiting = stream.next()
    waiting.send(None)
    run(broker.change_queue("q", {"stripes": 3}))
    sent = {run(broker.send("q", Outgoing([b"%d" % n])))[0].stripe: b"%d" % n for n in range(3)}
    clock.sleep_ms(LEASE_MS)
    with pytest.raises(StopIteration) as end:
        waiting.send(None)
    found = [end.value.value, *(run(stream.next(0)) for _ in range(2))]
    assert {streamed.stripe: streamed.block.bodies()[0] for streamed in found} == sent
    assert run(stream.next(0)) is None
    for stripe in sent:
        run(stream.acknowledge(stripe, 1))
    assert run(broker.queue_stats("q")).waiting() == 0
    run(stream.close())
    run(broker.stream("q", "default", b"another", {}, LEASE_MS))


def test_a_position_that_the_queue_has_not_reached_is_refused(broker: Broker) -> None:
    """It would skip what comes until then."""
    [sent] = run(broker.send("q", Outgoing([b"0"])))
    with pytest.raises(InvalidArgument, match="ends at 1"):
        run(broker.stream("q", "default", b"one", {sent.stripe: 2}, LEASE_MS))
    stream = run(broker.stream("q", "default", b"another", {sent.stripe: 1}, LEASE_MS))
    run(broker.send("q", Outgoing([b"1"])))
    found = run(stream.next(0))
    assert found is not None
    assert found.block.bodies() == [b"1"]
