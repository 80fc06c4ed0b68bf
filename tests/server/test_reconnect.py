"""A client outlives its connections: states, repeated requests, time limits, other servers."""

import asyncio
import contextlib
import os
import random
import signal
import threading
import time

import pytest

import ringdove.aio
from ringdove import errors
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import SessionState
from server.bad_network import BadNetwork, no_harm
from server.relay import Relay
from server.running import PATIENCE_S, ServerProcess, wait_for

NOT_CONNECTED, CONNECTING, CONNECTED, CLOSED = SessionState


class States:
    """Notes the states of a connection; pass it as `on_state`."""

    def __init__(self):
        self.changes = []
        self.reasons = []

    def __call__(self, before, after, reason):
        self.changes.append((before, after))
        self.reasons.append(reason)

    def times(self, state):
        return sum(after is state for _, after in self.changes)


class Call(threading.Thread):
    """A call in a thread of its own; `value` waits for its result."""

    def __init__(self, target, *args, **options):
        super().__init__(daemon=True)
        self._call = lambda: target(*args, **options)
        self._result = self._error = None
        self.start()

    def run(self):
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    def value(self):
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the call does not end"
        if self._error is not None:
            raise self._error
        return self._result


@pytest.fixture
def relay(server):
    """A relay to `server`."""
    with Relay(server.port) as running:
        yield running


@pytest.fixture
def rl(relay):
    """A client that reaches the server through the relay."""
    with ringdove.connect(relay.url) as connection:
        yield connection


def begin_and_lose_answer(relay, call, is_done):
    """Have a request served and its answer lost; the repeated request's result."""
    relay.hold()
    calling = Call(call)
    wait_for(is_done, "the server does what was asked")
    relay.cut()
    relay.release()
    return calling.value()


def wait_until_parked(rd):
    """Wait until a receive of this connection has reached the server."""
    session = rd.backend.link.session

    def is_written():
        return any(r.verb == Verb.RECEIVE and r.sent_times for r in session.unanswered)

    wait_for(is_written, "the receive is under way")
    rd.queues()  # It is answered after the receive was begun.


# -- states -------------------------------------------------------------------------------------


def test_states_are_told_in_order_when_a_server_is_killed_and_comes_back(process):
    states = States()
    with ringdove.connect(process.url, on_state=states) as rd:
        queue = rd.create_queue("q")
        process.kill()
        wait_for(lambda: len(states.changes) == 3, "the client notices")
        process.start()
        assert queue.send(b"x").offset == 0
    assert states.changes == [
        (NOT_CONNECTED, CONNECTING),
        (CONNECTING, CONNECTED),
        (CONNECTED, CONNECTING),
        (CONNECTING, CONNECTED),
        (CONNECTED, CLOSED),
    ]
    assert states.reasons[1] == states.reasons[3] == f"127.0.0.1:{process.port}"


def test_the_asynchronous_client_tells_the_same_states(process):
    states = States()

    async def main():
        async with ringdove.aio.connect(process.url, on_state=states) as rd:
            queue = await rd.create_queue("q")
            process.kill()
            sending = asyncio.create_task(queue.send(b"x"))
            await asyncio.to_thread(process.start)
            await asyncio.wait_for(sending, PATIENCE_S)

    asyncio.run(main())
    assert [after for _, after in states.changes] == [
        CONNECTING, CONNECTED, CONNECTING, CONNECTED, CLOSED,
    ]  # fmt: skip


def test_a_session_without_a_server_ends_after_its_time(process):
    states = States()
    with ringdove.connect(process.url, session_s=0.5, on_state=states) as rd:
        queue = rd.create_queue("q")
        process.kill()
        with pytest.raises(errors.ConnectionClosed, match="No server for"):
            queue.send(b"x")
        assert states.changes[-1] == (CONNECTING, CLOSED)
        with pytest.raises(errors.ConnectionClosed):
            queue.stats()


# -- requests that are repeated -----------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_send_that_was_stored_when_the_server_died_is_repeated(process, delivery):
    with (
        Relay(process.port) as relay,
        ringdove.connect(relay.url) as rd,
        ringdove.connect(process.url) as watcher,
    ):
        queue = rd.create_queue("q", delivery=delivery)
        relay.hold()
        sending = Call(queue.send, b"x")
        wait_for(lambda: watcher.queue("q").stats().messages == 1, "the message is stored")
        process.kill()
        relay.cut()
        process.start()
        relay.release()
        sent = sending.value()
        once = delivery == "exactly-once"
        assert sent.duplicate == once
        assert queue.stats().messages == (1 if once else 2)


def test_a_send_by_id_is_stored_once_although_its_answer_is_lost(relay, rl, rd):
    queue = rl.create_queue("q")
    sent = begin_and_lose_answer(
        relay, lambda: queue.send(b"x", id="1"), lambda: rd.queue("q").stats().messages
    )
    assert (sent.offset, sent.duplicate) == (0, True)
    assert queue.stats().messages == 1


def test_an_acknowledgement_whose_answer_is_lost_counts(relay, rl, rd):
    queue = rl.create_queue("q")
    queue.send_many([b"0", b"1"])
    batch = queue.receive(max=2)
    begin_and_lose_answer(relay, batch.ack, lambda: not rd.queue("q").stats().messages)
    assert not queue.receive()


def test_a_repeated_acknowledgement_of_what_another_has_is_refused(process):
    with Relay(process.port) as relay, ringdove.connect(relay.url) as rd:
        queue = rd.create_queue("q", lease_ms=500)
        queue.send(b"x")
        batch = queue.receive()
        process.process.send_signal(signal.SIGSTOP)
        acknowledging = Call(batch.ack)
        session = rd.backend.link.session
        wait_for(lambda: any(r.sent_times for r in session.unanswered), "it is under way")
        relay.hold()
        process.kill()
        relay.cut()
        process.start()
        with ringdove.connect(process.url) as other:
            assert other.queue("q").receive(wait=30, lease_ms=60_000).bodies() == [b"x"]
        relay.release()
        with pytest.raises(errors.ReceiptStale):
            acknowledging.value()


def test_making_a_queue_may_be_repeated(relay, rl, rd):
    begin_and_lose_answer(
        relay, lambda: rl.create_queue("q", lease_ms=5), lambda: rd.queues(prefix="q")
    )
    assert rl.queue("q").settings().lease_ms == 5


def test_deleting_a_queue_may_be_repeated(relay, rl, rd):
    rl.create_queue("q")
    begin_and_lose_answer(relay, lambda: rl.delete_queue("q"), lambda: not rd.queues())
    with pytest.raises(errors.QueueNotFound):
        rl.delete_queue("q")


def test_subscribing_and_unsubscribing_may_be_repeated(relay, rl, rd):
    queue = rl.create_queue("q")
    names = rd.queue("q").subscriptions
    begin_and_lose_answer(relay, lambda: queue.subscribe("s"), lambda: "s" in names())
    begin_and_lose_answer(relay, lambda: queue.unsubscribe("s"), lambda: "s" not in names())
    with pytest.raises(errors.SubscriptionNotFound):
        queue.unsubscribe("s")


def test_burying_may_be_repeated(relay, rl, rd):
    queue = rl.create_queue("q", dead_letter="dead")
    queue.send(b"x")
    [message] = queue.receive()
    begin_and_lose_answer(relay, message.bury, lambda: not rd.queue("q").stats().messages)
    assert rd.queue("dead").stats().messages >= 1


def test_extending_a_lost_lease_is_refused_even_when_repeated(relay, rl, rd):
    queue = rl.create_queue("q")
    queue.send(b"x")
    batch = queue.receive()
    relay.hold()
    extending = Call(batch.extend, 60_000)
    wait_for(lambda: rl.backend.link.session.unanswered, "the request is under way")
    rd.queue("q").purge()
    relay.cut()
    relay.release()
    with pytest.raises(errors.ReceiptStale):
        extending.value()
    assert not queue.receive()


def test_a_parked_receive_goes_on_waiting_at_the_new_server(process):
    with ringdove.connect(process.url) as rd:
        queue = rd.create_queue("q")
        receiving = Call(queue.receive, wait=None)
        wait_until_parked(rd)
        process.kill()
        process.start()
        queue.send(b"x")
        assert receiving.value().bodies() == [b"x"]


def test_a_request_that_meets_a_closing_server_is_repeated(relay, rl, server):
    queue = rl.create_queue("q")
    native = server.server.native

    async def drain():
        for connection in list(native.connections):
            connection.drain()
        return native.bytes_out

    relay.hold()
    told = server.call(drain())
    sending = Call(queue.send, b"x")
    wait_for(lambda: native.bytes_out > told or not sending.is_alive(), "the server answers")
    relay.release()
    assert sending.value().offset == 0


def test_a_consumer_without_end_outlives_a_server_that_was_asked_to_stop(process):
    with ringdove.connect(process.url) as rd:
        queue = rd.create_queue("q")
        consumer = iter(queue.consumer())
        receiving = Call(next, consumer)
        wait_until_parked(rd)
        assert process.terminate() == 0
        process.start()
        queue.send(b"x")
        assert receiving.value().body == b"x"
        consumer.close()


def test_no_send_fails_while_servers_stop_and_start_in_good_order(process):
    with ringdove.connect(process.url) as rd:
        queue = rd.create_queue("q")
        enough = threading.Event()

        def send(first):
            sent = []
            while not enough.is_set():
                sent.append(b"%d-%d" % (first, len(sent)))
                queue.send(sent[-1])
            return sent

        sending = [Call(send, n) for n in range(8)]
        for _ in range(3):
            wait_for(lambda: rd.backend.link.session.unanswered, "sends are under way")
            assert process.terminate() == 0
            process.start()
        enough.set()
        sent = [body for call in sending for body in call.value()]
        assert set(sent) == {message.body for message in queue.replay()}


# -- time limits --------------------------------------------------------------------------------


@pytest.mark.parametrize("silence_s", [30, 0.3], ids=["patient", "impatient"])
def test_a_request_to_a_server_that_hangs_times_out(process, silence_s):
    options = {"timeout_s": 1, "silence_s": silence_s, "connect_s": 0.5, "session_s": 3}
    with ringdove.connect(process.url, **options) as rd:
        queue = rd.create_queue("q")
        process.process.send_signal(signal.SIGSTOP)
        begun_s = time.monotonic()
        with pytest.raises(errors.WaitTimeout, match=r"did not answer within 1 s"):
            queue.send(b"x")
        assert time.monotonic() - begun_s < 5
        process.process.send_signal(signal.SIGCONT)
        queue.send(b"y")
        assert b"y" in {message.body for message in queue.replay()}


def test_a_silent_server_is_left_and_found_again(process):
    states = States()
    with ringdove.connect(process.url, silence_s=0.2, connect_s=0.3, on_state=states) as rd:
        queue = rd.create_queue("q", delivery="exactly-once")
        process.process.send_signal(signal.SIGSTOP)
        sending = Call(queue.send, b"x")
        wait_for(lambda: states.times(CONNECTING) == 2, "the silence is noticed")
        assert "silent" in states.reasons[-1]
        process.process.send_signal(signal.SIGCONT)
        sending.value()
        assert [message.body for message in queue.replay()] == [b"x"]


# -- several servers ----------------------------------------------------------------------------


@pytest.fixture
def second(tmp_path):
    """Another server, with data of its own."""
    with ServerProcess(tmp_path / "second") as running:
        yield running


def both(process, second):
    return f"{process.url},127.0.0.1:{second.port}"


def test_a_client_moves_to_another_server(process, second):
    states = States()
    with ringdove.connect(both(process, second), on_state=states) as rd:
        first = process if states.reasons[-1].endswith(f":{process.port}") else second
        other = second if first is process else process
        queue = rd.create_queue("q")
        with ringdove.connect(other.url) as direct:
            direct.create_queue("q")
        first.kill()
        queue.send(b"moved")
        assert states.reasons[-1] == f"127.0.0.1:{other.port}"
        with ringdove.connect(other.url) as direct:
            assert direct.queue("q").receive()[0].body == b"moved"


def test_a_server_that_hangs_does_not_keep_a_client_from_another(process, second, monkeypatch):
    monkeypatch.setattr(random, "shuffle", lambda endpoints: None)
    process.process.send_signal(signal.SIGSTOP)
    with ringdove.connect(both(process, second), connect_s=1) as rd:
        assert rd.queues() == []


# -- many senders, and streams ------------------------------------------------------------------


def test_threads_share_a_connection_across_restarts(process):
    with ringdove.connect(process.url) as rd:
        queue = rd.create_queue("q", lease_ms=1000)
        got = set()

        def send(first):
            for number in range(first, first + 100):
                queue.send(b"%d" % number)

        def receive():
            while len(got) < 600:
                batch = queue.receive(max=50, wait=0.2)
                got.update(map(int, batch.bodies()))
                if batch:
                    with contextlib.suppress(errors.ReceiptStale):
                        batch.ack()

        calls = [Call(send, 100 * n) for n in range(6)] + [Call(receive) for _ in range(3)]
        for enough in (100, 300):
            wait_for(lambda: len(got) >= enough, "messages come through")
            process.kill()
            process.start()
        for call in calls:
            call.value()
        assert got == set(range(600))


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_producer_goes_on_across_restarts(process, delivery):
    with ringdove.connect(process.url) as rd:
        queue = rd.create_queue("q", delivery=delivery)
        with queue.producer(block_messages=50) as producer:
            for number in range(20_000):
                producer.send(b"%d" % number)
                if number in (5_000, 10_000):
                    os.kill(process.process.pid, signal.SIGKILL)
                    process.wait()
                    restarting = Call(process.start)
            restarting.value()
        found = [int(message.body) for message in queue.replay()]
        if delivery == "exactly-once":
            assert found == list(range(20_000))
        assert set(found) == set(range(20_000))


def test_an_asynchronous_producer_goes_on_across_restarts(process):
    async def main():
        async with ringdove.aio.connect(process.url) as rd:
            queue = await rd.create_queue("q", delivery="exactly-once")
            async with queue.producer(block_messages=50) as producer:
                for number in range(10_000):
                    await producer.send(b"%d" % number)
                    if number == 5_000:
                        process.kill()
                        restarting = asyncio.create_task(asyncio.to_thread(process.start))
                await restarting
            assert [int(m.body) async for m in queue.replay()] == list(range(10_000))

    asyncio.run(main())


def test_what_is_repeated_is_so_in_its_first_order(server):
    """Many sends are lost together; none waits for the answer to the one before."""

    def lose_sends(passing):
        return "drop" if passing.inward and passing.frame.verb == Verb.SEND else ""

    async def main(network):
        async with ringdove.aio.connect(network.url) as rd:
            queue = await rd.create_queue("q", order="strict")
            session = rd.backend.link.session
            network.harm = lose_sends
            sends = [asyncio.create_task(queue.send(b"%d" % number)) for number in range(20)]
            lost = lambda: network.harmed["drop"] == len(sends)
            await asyncio.to_thread(wait_for, lost, "all sends are lost")
            assert len(session.unanswered) == len(sends)
            network.harm = no_harm
            network.cut()
            await asyncio.gather(*sends)
            assert [int(m.body) async for m in queue.replay()] == list(range(20))

    with BadNetwork(server.port) as network:
        asyncio.run(asyncio.wait_for(main(network), PATIENCE_S))


def test_a_stream_goes_on_after_a_restart_without_gap_or_repetition(process):
    with ringdove.connect(process.url) as rd:
        queue = rd.create_queue("q")
        queue.send_many([b"%d" % n for n in range(100)])
        with queue.stream(wait=30) as stream:
            batches = iter(stream)
            found = [int(body) for body in next(batches).bodies()]
            fence = stream.fence
            process.kill()
            process.start()
            queue.send_many([b"%d" % n for n in range(100, 200)])
            while len(found) < 200:
                found += [int(body) for body in next(batches).bodies()]
            assert found == list(range(200))
            assert stream.fence > fence


def test_what_a_stream_acknowledged_while_apart_stays_done(process):
    states = States()
    with ringdove.connect(process.url, on_state=states) as rd:
        queue = rd.create_queue("q")
        queue.send(b"x")
        with queue.stream(ack="manual", wait=30) as stream:
            batch = next(iter(stream))
            fence = stream.fence
            process.kill()
            wait_for(lambda: states.times(CONNECTING) == 2, "the client notices")
            stream.ack(batch)
            process.start()
            wait_for(lambda: stream.fence > fence, "the stream goes on")
        wait_for(lambda: not queue.stats().waiting(), "the message is done", 2)


def test_a_stream_whose_opening_was_not_answered_opens_at_the_next_connection(relay, rl):
    queue = rl.create_queue("q")
    queue.send(b"x")

    def read():
        with queue.stream(wait=30) as stream:
            return next(iter(stream)).bodies()

    relay.hold()
    reading = Call(read)
    wait_for(lambda: rl.backend.link.session.unanswered, "the request is under way")
    relay.cut()
    relay.release()
    assert reading.value() == [b"x"]
