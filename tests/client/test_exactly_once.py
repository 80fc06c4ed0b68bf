"""Plain sends to exactly-once queues: each is stored once, whatever goes on beside it."""

import asyncio
import sys
import threading

import pytest

import ringdove.aio
from ringdove import NewMessage, errors


def test_a_connection_sends_to_several_exactly_once_queues(rd):
    queues = [rd.create_queue(name, delivery="exactly-once") for name in ("a", "b")]
    for _ in range(3):
        for queue in queues:
            assert not queue.send(b"x").duplicate
    assert [queue.stats().messages for queue in queues] == [3, 3]


def test_a_refused_send_does_not_stop_those_after_it(rd):
    queue = rd.create_queue("q", delivery="exactly-once", bytes_max=10_000, body_bytes_max=1000)
    with pytest.raises(errors.QueueFull):
        queue.send_many([b"x" * 500] * 100)
    queue.send(b"x")
    assert queue.stats().messages == 1


def test_a_queue_made_again_takes_sends_from_the_same_connection(rd):
    for _ in range(2):
        queue = rd.create_queue("q", delivery="exactly-once")
        queue.send_many([b"0", b"1"])
        assert queue.stats().messages == 2
        rd.delete_queue("q")


def test_threads_that_share_a_connection_send_each_message_once(url):
    failures = []
    with ringdove.connect(url) as rd:
        queue = rd.create_queue("q", delivery="exactly-once")

        def send(first):
            try:
                for number in range(first, first + 200):
                    assert not queue.send_many([b"%d" % number] * 2).duplicates
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=send, args=(200 * n,)) for n in range(8)]
        pause_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        finally:
            sys.setswitchinterval(pause_s)
        assert failures == []
        found = sorted(int(message.body) for message in queue.peek(max=10_000))
        assert found == sorted(2 * list(range(1600)))


def test_tasks_that_share_a_connection_send_each_message_once(url):
    async def main():
        async with ringdove.aio.connect(url) as rd:
            queue = await rd.create_queue("q", delivery="exactly-once", order="key", stripes=4)
            keyed = [NewMessage(b"%d" % n, key=b"%d" % n) for n in range(100)]
            sends = [queue.send_many(keyed[5 * n : 5 * n + 5]) for n in range(20)]
            await asyncio.gather(*sends)
            assert (await queue.stats()).messages == 100

    asyncio.run(main())
