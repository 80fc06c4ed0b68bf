"""Anything happens to a pair and its manager, again and again, and no promise is broken.

2 faults by default; `RINGDOVE_STANDBY_FAULTS=100` for torture. A failure names its seed.
"""

import os
import signal
import time
from random import Random

import pytest

from server.running import wait_for
from tiers.load import Load
from tiers.pairs import Pair, cut, heal

FAULTS = int(os.environ.get("RINGDOVE_STANDBY_FAULTS", "2"))
SEED = int(os.environ.get("RINGDOVE_STANDBY_SEED", "5"))


class Trouble:
    """Faults, each over when it returns."""

    def __init__(self, pair: Pair, rng: Random) -> None:
        self.pair = pair
        self.rng = rng

    def pause(self) -> None:
        time.sleep(self.rng.choice([0.1, 0.5, 2, 4]))

    def kill(self) -> None:
        member = self.rng.choice([self.pair.a, self.pair.b])
        member.kill()
        self.pause()
        member.start()

    def end(self) -> None:
        member = self.rng.choice([self.pair.a, self.pair.b])
        member.terminate()
        self.pause()
        member.start()

    def stop(self) -> None:
        member = self.rng.choice([self.pair.a, self.pair.b])
        member.process.send_signal(signal.SIGSTOP)
        self.pause()
        member.process.send_signal(signal.SIGCONT)

    def cut(self) -> None:
        networks = self.rng.sample(self.pair.networks, self.rng.randrange(1, 4))
        for network in networks:
            cut(network)
        self.pause()
        for network in networks:
            heal(network)

    def lose(self) -> None:
        networks = self.rng.sample(self.pair.networks, self.rng.randrange(1, 3))
        for network in networks:
            network.harm = lambda _: "drop"
        self.pause()
        for network in networks:
            heal(network)
            network.cut()

    def lose_manager(self) -> None:
        self.pair.manager.stop()
        self.pause()
        self.pair.manager.start()


@pytest.mark.timeout(120 + 30 * FAULTS)
def test_random_faults_break_no_promise(tmp_path, record_property):
    rng = Random(SEED)
    with Pair(tmp_path) as pair:
        pair.wait_in_sync()
        load = Load(pair.url)
        trouble = Trouble(pair, rng)
        faults = [trouble.kill, trouble.end, trouble.stop, trouble.cut, trouble.lose,
                  trouble.lose_manager]  # fmt: skip
        done = []
        for _ in range(FAULTS):
            fault = rng.choice(faults)
            done.append(fault.__name__)
            fault()
            if rng.random() < 0.7:  # Else the next fault comes on top.
                before = len(load.acknowledged)
                load.wait(lambda: len(load.acknowledged) > before, f"sends go on after {done}")
                pair.wait_in_sync()
        wait_for(lambda: pair.a.serving or pair.b.serving, "one serves")
        pair.wait_in_sync()
        found = load.end()
        figures = {"seed": SEED, "faults": done, "messages": len(found),
                   "longest send_s": round(load.took_s, 2), "errors": len(load.errors)}  # fmt: skip
        print(figures)
        record_property("figures", figures)
        load.check(found)
