"""The topology of the document's figure 1, under kills (M1 to M5)."""

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringdove
from ringdove.errors import InvalidArgument
from ringdove.tiers.local import MANAGER, Topology
from server.running import wait_for

MESSAGES = int(os.environ.get("RINGDOVE_TIER_MESSAGES", "30000"))
KILLS = int(os.environ.get("RINGDOVE_TIER_KILLS", "6"))
CONSUMERS_PER_REGION = 2
STEP = 1000

#: Longer than any broker stays away.
SESSION_S = 300


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    """Three levels, four regions."""
    made = Topology.make(tmp_path / "tiers", levels=3, regions=4)
    try:
        made.up()
        yield made
    finally:
        made.down()


class Consumer(threading.Thread):
    """Streams a queue from one broker, under a subscription of its own."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self.name = name
        self.got: list[int] = []
        self._url = url
        self.start()

    def run(self) -> None:
        with ringdove.connect(self._url, session_s=SESSION_S) as connection:
            queue = connection.queue("readings")
            queue.subscribe(self.name, start="earliest", keep_default=True)
            with queue.stream(self.name, wait=SESSION_S) as stream:
                for batch in stream:
                    self.got += [int(message.body) for message in batch]
                    if self.got[-1] == MESSAGES - 1:
                        return


def _copied(url: str) -> bool:
    with ringdove.connect(url) as connection:
        return any(queue.name == "readings" for queue in connection.queues())


@pytest.mark.timeout(3600)
def test_every_consumer_has_every_message_once_and_in_order(topology: Topology) -> None:
    """Brokers of all levels and the manager are killed at random meanwhile."""
    rng = random.Random(8)
    names = [MANAGER, *(broker.name for broker in topology.brokers)]
    edges = [broker for broker in topology.brokers if broker.level == 2]
    with ringdove.connect(topology.broker("core").url, session_s=SESSION_S) as core:
        queue = core.create_queue("readings", order="strict", delivery="exactly-once")
        for edge in edges:
            wait_for(lambda url=edge.url: _copied(url), f"a copy at {edge.name}")
        consumers = [
            Consumer(edge.url, f"{edge.name}.{number}")
            for edge in edges
            for number in range(CONSUMERS_PER_REGION)
        ]
        at_kill = {MESSAGES * (n + 1) // (KILLS + 1) // STEP * STEP for n in range(KILLS)}
        with queue.producer(name="meters") as producer:
            for start in range(0, MESSAGES, STEP):
                for number in range(start, min(start + STEP, MESSAGES)):
                    producer.send(b"%0100d" % number)
                if start in at_kill:
                    victim = rng.choice(names)
                    topology.kill(victim)
                    time.sleep(rng.random())  # However long a broker is away.
                    topology.start(victim)
    for consumer in consumers:
        consumer.join(SESSION_S)
        assert consumer.got == list(range(MESSAGES)), consumer.name


def test_a_topology_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = Topology.make(tmp_path / "tiers", levels=4, regions=5)
    assert [broker.level for broker in made.brokers] == [0, *[1] * 3, *[2] * 3, *[3] * 5]
    assert Topology.load(tmp_path / "tiers").brokers == made.brokers
    with pytest.raises(InvalidArgument, match="already"):
        Topology.make(tmp_path / "tiers", levels=3, regions=4)
    with pytest.raises(InvalidArgument, match="tier up"):
        Topology.load(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match="levels"):
        Topology.make(tmp_path / "other", levels=1, regions=4)
