"""Producers that join sends into blocks, and consumers that keep leases alive."""

import threading

import pytest

import ringdove
from ringdove import errors, limits


@pytest.fixture
def real(url):
    """A connection under the real clock: linger and extension are about time."""
    with ringdove.connect(url) as connection:
        yield connection


def everything(queue):
    found = []
    while batch := queue.receive(max=5000):
        found += batch.bodies()
        batch.ack()
    return found


def test_a_producer_joins_sends_into_blocks_and_loses_none(real):
    queue = real.create_queue("q")
    with queue.producer(block_messages=100) as producer:
        tickets = [producer.send(b"%d" % n) for n in range(1050)]
    assert len({id(ticket) for ticket in tickets}) >= 11
    assert len(tickets[0].wait()) == 100
    assert [int(body) for body in everything(queue)] == list(range(1050))


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_ctrl_c_while_a_block_is_sent_is_raised_and_loses_nothing(real, monkeypatch, delivery):
    """A loop that only sends must end by it; what was sent by then is stored by `close`."""
    queue = real.create_queue("q", delivery=delivery)
    send, interrupts = real.backend.send, [KeyboardInterrupt()]

    async def interrupted(name, outgoing):
        if interrupts:
            raise interrupts.pop()
        return await send(name, outgoing)

    monkeypatch.setattr(real.backend, "send", interrupted)
    producer = queue.producer(block_messages=2, linger_ms=60_000)
    ticket = producer.send(b"1")
    with pytest.raises(KeyboardInterrupt):
        producer.send(b"2")
    producer.send(b"3")
    producer.close()
    assert len(ticket.wait()) == 2
    assert sorted(everything(queue)) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_producer_on_a_queue_not_looked_at_before_keeps_order(url, delivery):
    with ringdove.connect(url) as rd:
        rd.create_queue("q", order="strict", delivery=delivery)
    with ringdove.connect(url) as rd:
        queue = rd.queue("q")
        with queue.producer(block_messages=1) as producer:
            for number in range(500):
                producer.send(b"%d" % number)
        assert [int(body) for body in everything(queue)] == list(range(500))


def test_a_lingering_message_is_sent_without_company(real):
    queue = real.create_queue("q")
    producer = queue.producer(linger_ms=1)
    ticket = producer.send("alone", key="k", attributes={"a": 1})
    assert ticket.wait(timeout_s=30)[0].offset == 0
    producer.close()
    producer.close()
    with pytest.raises(errors.ConnectionClosed):
        producer.send(b"x")


def test_keys_and_attributes_may_start_in_the_middle_of_a_block(real):
    queue = real.create_queue("q")
    with queue.producer(linger_ms=1000) as producer:
        producer.send(b"0")
        producer.send(b"1", key="k")
        producer.send(b"2", attributes={"a": 1})
    zero, one, two = queue.receive(max=3)
    assert (zero.key, one.key, two.key) == (b"", b"k", b"")
    assert (zero.attributes, two.attributes) == ({}, {"a": 1})


def test_a_failed_block_fails_its_ticket_and_the_flush(real):
    queue = real.create_queue("q", body_bytes_max=10)
    producer = queue.producer(linger_ms=10_000)
    ticket = producer.send(b"x" * 11)
    with pytest.raises(errors.MessageTooLarge):
        producer.flush()
    with pytest.raises(errors.MessageTooLarge):
        ticket.wait()
    producer.send(b"x")
    producer.close()
    assert everything(queue) == [b"x"]


def test_a_named_producer_that_starts_over_sends_nothing_twice(real):
    queue = real.create_queue("q", delivery="exactly-once")
    with queue.producer(name="import", block_messages=7) as producer:
        for number in range(50):
            producer.send(b"%d" % number)
    with queue.producer(name="import", block_messages=9) as producer:
        for number in range(80):
            ticket = producer.send(b"%d" % number)
    assert not ticket.wait()[-1].duplicate
    assert [int(body) for body in everything(queue)] == list(range(80))


def test_a_named_producer_over_stripes_by_key_sends_nothing_twice(real):
    queue = real.create_queue("q", delivery="exactly-once", order="key", stripes=3)
    for _ in range(2):
        with queue.producer(name="import", block_messages=7) as producer:
            for number in range(50):
                producer.send(b"%d" % number, key=b"k%d" % (number % 5))
    assert sorted(int(body) for body in everything(queue)) == list(range(50))


@pytest.mark.parametrize("bad", [{"block_messages": 0}, {"linger_ms": -1}, {"in_flight_max": 0}])
def test_senseless_producer_options_are_refused(real, bad):
    with pytest.raises(errors.InvalidArgument):
        real.create_queue("q").producer(**bad)


def test_a_consumer_acknowledges_what_the_loop_is_through_with(real):
    queue = real.create_queue("q")
    queue.send_many([b"%d" % n for n in range(100)])
    seen = []
    with queue.consumer(max=30, wait=0.01) as consumer:
        for message in consumer:
            seen.append(int(message.body))
    assert seen == list(range(100))
    assert queue.stats().messages == 0


def test_without_a_number_a_consumer_takes_more_at_a_time_while_it_is_fast(real):
    queue = real.create_queue("q")
    queue.send_many([b"%d" % n for n in range(5000)])
    with queue.consumer(wait=0.01) as consumer:
        assert [int(message.body) for message in consumer] == list(range(5000))
    assert queue.stats().messages == 0


@pytest.mark.parametrize("bad", [0, -1, limits.LEASE_MESSAGES_MAX + 1])
def test_a_consumer_that_would_take_nothing_or_too_much_is_refused(real, bad):
    queue = real.create_queue("q")
    with pytest.raises(errors.InvalidArgument, match="max is"):
        next(iter(queue.consumer(max=bad, wait=0)))


def test_leaving_the_loop_gives_the_rest_back_at_once(real):
    queue = real.create_queue("q", lease_ms=600_000)
    queue.send_many([b"%d" % n for n in range(10)])
    with queue.consumer(max=10) as consumer:
        for message in consumer:
            if message.body == b"4":
                break
    assert queue.receive(max=10).bodies() == [b"4", b"5", b"6", b"7", b"8", b"9"]


def test_closing_a_consumer_gives_the_rest_back_at_once(real):
    queue = real.create_queue("q", lease_ms=600_000)
    queue.send_many([b"0", b"1", b"2"])
    consumer = queue.consumer(max=3)
    messages = iter(consumer)
    assert [next(messages).body, next(messages).body] == [b"0", b"1"]
    consumer.close()
    consumer.close()
    assert queue.receive(max=3).bodies() == [b"1", b"2"]


def test_a_handler_that_fails_gives_the_message_back(real):
    queue = real.create_queue("q", lease_ms=600_000)
    queue.send_many([b"0", b"1", b"2"])

    def work():
        with queue.consumer(max=3) as consumer:
            for message in consumer:
                if message.body == b"1":
                    raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        work()
    batch = queue.receive(max=3)
    assert batch.bodies() == [b"1", b"2"]
    assert [message.receives for message in batch] == [2, 1]  # Nobody has seen the last one.


def test_what_is_too_large_for_one_answer_is_never_dead(real, monkeypatch):
    monkeypatch.setattr(limits, "LEASE_BYTES_MAX", 20_000)
    queue = real.create_queue("q", receives_max=2, dead_letter="dead")
    queue.send_many([b"%d" % n for n in range(60)])
    for _ in range(200):
        queue.send(bytes(1000))
    with queue.consumer(wait=0.01) as consumer:
        assert sum(1 for _ in consumer) == 260
    assert real.queue("dead").stats().messages == 0


def test_a_loop_that_is_left_gives_the_rest_back_without_being_closed(real):
    queue = real.create_queue("q", lease_ms=600_000)
    queue.send_many([b"0", b"1", b"2"])
    for message in queue.consumer(max=3):
        if message.body == b"1":
            break
    batch = queue.receive(max=3)
    assert [(m.body, m.receives) for m in batch] == [(b"1", 2), (b"2", 1)]


def test_leases_are_extended_again_after_that_has_failed(real, monkeypatch):
    queue = real.create_queue("q", lease_ms=600)
    queue.send(b"0")
    backend = queue._twin.backend
    extend, tried, extended = backend.extend, [], threading.Event()

    async def failing(receipts, lease_ms):
        tried.append(receipts)
        if len(tried) == 1:
            raise errors.StoreUnavailable("not now")
        found = await extend(receipts, lease_ms)
        extended.set()
        return found

    monkeypatch.setattr(backend, "extend", failing)
    with queue.consumer(max=1, wait=0.01) as consumer:
        for _ in consumer:
            assert extended.wait(30)


def test_settling_a_batch_leaves_alone_what_was_settled_before(real):
    queue = real.create_queue("q", lease_ms=600_000)
    queue.send_many([b"0", b"1", b"2"])
    batch = queue.receive(max=3)
    batch[1].release(delay_ms=0)
    assert batch.ack() == 2
    assert queue.receive(max=3).bodies() == [b"1"]


def test_a_producer_that_is_closed_takes_nothing_and_does_not_hang(real):
    queue = real.create_queue("q")
    producer = queue.producer()
    producer.send(b"0")
    producer.close()
    for _ in range(3):
        with pytest.raises(errors.ConnectionClosed):
            producer.send(b"1")
    producer.flush()
    assert queue.stats().messages == 1


def test_a_block_that_cannot_be_begun_fails_its_ticket_and_flush(real, monkeypatch):
    queue = real.create_queue("q")
    queue.info()
    producer = queue.producer(linger_ms=1)

    def gone(*_):
        raise errors.ConnectionClosed("gone")

    monkeypatch.setattr(queue._twin.backend, "send", gone)
    ticket = producer.send(b"0")
    with pytest.raises(errors.ConnectionClosed):
        ticket.wait(30)
    with pytest.raises(errors.ConnectionClosed):
        producer.flush()
    producer.close()


def test_messages_settled_by_the_handler_are_left_alone(real):
    queue = real.create_queue("q", dead_letter="dead", lease_ms=600_000)
    queue.send_many([b"%d" % n for n in range(5)])
    with queue.consumer(max=5, wait=0.01) as consumer:
        for message in consumer:
            if message.body == b"1" and message.receives == 1:
                message.release(delay_ms=600_000)
            elif message.body == b"2":
                message.bury()
            elif message.body == b"4":
                message.ack()
    assert queue.stats().subscriptions["default"] == (0, 0, 1)
    assert real.queue("dead").stats().waiting() == 1


def test_manual_mode_settles_nothing_by_itself(real):
    queue = real.create_queue("q", lease_ms=600_000)
    queue.send_many([b"0", b"1"])
    for message in queue.consumer(ack="manual", max=2, wait=0.01):
        if message.body == b"0":
            message.ack()
    assert queue.stats().subscriptions["default"] == (0, 1, 0)
    with pytest.raises(errors.InvalidArgument, match="'auto' or 'manual'"):
        queue.consumer(ack="sometimes")


def test_leases_are_extended_while_the_handler_runs(real):
    queue = real.create_queue("q", lease_ms=500)
    queue.send_many([b"0", b"1"])
    rival_got = []
    with queue.consumer(max=2, wait=0.01) as consumer:
        for message in consumer:
            rival = threading.Thread(
                target=lambda: rival_got.extend(queue.receive(max=2, wait=1).bodies())
            )
            rival.start()
            rival.join()
            assert message.receives == 1
    assert rival_got == []
    assert queue.stats().messages == 0


def test_several_consumers_share_the_work_without_overlap(real):
    queue = real.create_queue("q")
    found = [[] for _ in range(4)]

    def work(mine):
        with queue.consumer(max=50, wait=0.5) as consumer:
            for message in consumer:
                mine.append(int(message.body))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    with queue.producer() as producer:
        for number in range(5000):
            producer.send(b"%d" % number)
    for thread in threads:
        thread.join()
    assert sorted(n for mine in found for n in mine) == list(range(5000))
