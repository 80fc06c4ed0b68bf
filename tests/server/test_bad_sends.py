"""Sends through a network that damages and cuts: nothing lost, nothing stored twice (M1, M2)."""

import asyncio
import threading
from collections.abc import Callable

import pytest

import ringdove
import ringdove.aio
from ringdove.protocol.messages import Verb
from server.bad_network import Chance, Harm, any_of

COUNT = 200


def stored(queue: ringdove.Queue) -> list[bytes]:
    """Every body of the queue, stripe by stripe."""
    return [message.body for message in queue.replay()]


def numbered(count: int = COUNT) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def _all_faults() -> Harm:
    return any_of(
        Chance(5, inward=True, once=True, corrupt=0.1, header=0.05, cut=0.05),
        Chance(6, verbs=(Verb.REPLY,), cut=0.05),
    )


#: On the way to the server, and of its answers on the way back. A client repeats what was damaged
#: three times and then says so; hence `once`.
FAULTS: dict[str, Callable[[], Harm]] = {
    "corrupt": lambda: Chance(1, inward=True, once=True, corrupt=0.2),
    "header": lambda: Chance(2, inward=True, header=0.1),
    "cut": lambda: Chance(3, inward=True, cut=0.1),
    "answer cut": lambda: Chance(4, verbs=(Verb.REPLY,), cut=0.1),
    "all": _all_faults,
}


@pytest.mark.parametrize("stripes", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_producer_loses_and_repeats_nothing(rd, network, fault, stripes):
    """M2: at least once, and what is there already is dropped; in order besides."""
    queue = rd.create_queue("q", delivery="exactly-once", durability="memory", stripes=stripes)
    network.harm = FAULTS[fault]()
    with (
        ringdove.connect(network.url, silence_s=1) as client,
        client.queue("q").producer(name="p", block_messages=3, linger_ms=1) as producer,
    ):
        for body in numbered():
            producer.send(body)
    assert network.harmed
    assert stored(queue) == numbered()


@pytest.mark.parametrize("stripes", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_asynchronous_producer_loses_and_repeats_nothing(rd, network, fault, stripes):
    queue = rd.create_queue("q", delivery="exactly-once", durability="memory", stripes=stripes)
    network.harm = FAULTS[fault]()

    async def main() -> None:
        async with (
            ringdove.aio.connect(network.url, silence_s=1) as client,
            client.queue("q").producer(name="p", block_messages=3, linger_ms=1) as producer,
        ):
            for body in numbered():
                await producer.send(body)

    asyncio.run(main())
    assert network.harmed
    assert stored(queue) == numbered()


@pytest.mark.parametrize("fault", FAULTS)
def test_single_sends_are_stored_once_each(rd, network, fault):
    """M2: without a producer's name, the connection's own numbers recognise a repetition."""
    queue = rd.create_queue("q", delivery="exactly-once", durability="memory")
    network.harm = FAULTS[fault]()
    with ringdove.connect(network.url, silence_s=1) as client:
        for body in numbered(60):
            client.queue("q").send(body)
    assert network.harmed
    assert stored(queue) == numbered(60)


def test_sends_by_message_id_are_stored_once_each(rd, network):
    queue = rd.create_queue("q", delivery="exactly-once", durability="memory", stripes=3)
    network.harm = FAULTS["all"]()
    with ringdove.connect(network.url, silence_s=1) as client:
        for body in numbered(60):
            client.queue("q").send(body, id=body)
    assert sorted(stored(queue), key=int) == numbered(60)


def test_at_least_once_loses_nothing(rd, network):
    queue = rd.create_queue("q", durability="memory")
    network.harm = FAULTS["all"]()
    with ringdove.connect(network.url, silence_s=1) as client:
        for body in numbered(60):
            client.queue("q").send(body)
    assert set(stored(queue)) == set(numbered(60))


def test_sends_at_once_are_stored_once_each_when_connections_are_cut(rd, network):
    """Requests are repeated in their first order, so sequences go on where they were."""
    queue = rd.create_queue("q", delivery="exactly-once", durability="memory")
    network.harm = FAULTS["answer cut"]()

    async def main() -> None:
        async with ringdove.aio.connect(network.url, silence_s=1) as client:
            await asyncio.gather(*(client.queue("q").send(body) for body in numbered()))

    asyncio.run(main())
    assert stored(queue) == numbered()


def test_sends_at_once_are_stored_once_each_when_some_are_damaged(rd, network):
    queue = rd.create_queue("q", delivery="exactly-once", durability="memory")
    network.harm = Chance(7, inward=True, corrupt=0.1, once=True)

    async def main() -> None:
        async with ringdove.aio.connect(network.url, silence_s=1) as client:
            await asyncio.gather(*(client.queue("q").send(body) for body in numbered()))

    asyncio.run(main())
    assert network.harmed
    assert sorted(stored(queue), key=int) == numbered()


def test_threads_that_share_a_connection_do_not_disturb_each_other(rd, server):
    """Their sends are numbered by one sequence; none is refused for overtaking another."""
    queue = rd.create_queue("q", delivery="exactly-once", durability="memory")
    refused: list[BaseException] = []

    with ringdove.connect(server.url) as client:

        def send(first: int) -> None:
            try:
                for n in range(first, COUNT, 8):
                    client.queue("q").send(b"%d" % n)
            except BaseException as error:
                refused.append(error)

        threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert refused == []
    assert sorted(stored(queue), key=int) == numbered()
