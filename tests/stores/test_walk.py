"""Long seeded walks of the stores beside the model: deep states that short random runs miss.

Where the machine looks everywhere and shrinks what it finds, a walk goes far. A failing one is
repeated by its seed.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ringdove.core.settings import QueueSettings
from stores.machine import Sides

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.redis import RedisProcess

STEPS = 400
WALKS = max(4, int(os.environ.get("RINGDOVE_EXAMPLES", "0")) // 10)
KEYS = [b"a", b"b", b"c", b"d", b""]


class Walk:
    """Random work on one stripe, mostly sensible, now and then an upheaval."""

    def __init__(self, order: str, seed: int, redis: RedisProcess, *, spread: bool) -> None:
        self.chance = Random(seed)
        self.order = order
        self.sent = 0
        self.spreads = [1, 3, 10] if spread else [1]
        self.sides = Sides(
            QueueSettings.make(
                durability="memory",
                order=order,
                backoff_ms=20,
                backoff_ms_max=70,
                receives_max=self.pick(None, 2, 3),
                retention_ms=self.pick(3000, 10_000_000),
                keep_done_ms=self.pick(0, 0, 400),
                bytes_max=self.pick(2000, 1 << 30),
                body_bytes_max=100,
                when_full=self.pick("refuse", "drop-oldest"),
            ),
            redis,
            alike=not spread,
        )
        self.steps: list[tuple[Callable[[], None], int]] = [
            (self.append, 6),
            (self.append_judged, 2),
            (self.lease, 14),
            (self.acknowledge, 12),
            (self.extend, 4),
            (self.release, 5),
            (self.sleep, 7),
            (self.subscribe, 1),
            (self.commit, 1),
            (self.configure, 1),
            (self.stream, 1),
            (self.sides.reopen, 1),
        ]

    def step(self) -> None:
        [(act, _)] = self.chance.choices(self.steps, [weight for _, weight in self.steps])
        act()

    def pick(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def sub(self) -> str:
        """Mostly `default`, which is never removed."""
        return self.chance.choice(["default"] * 3 + sorted(self.sides.memory.model.subs))

    def append(self) -> None:
        blocks = []
        for _ in range(self.pick(1, 1, 2)):
            keys = self.chance.choices(KEYS, k=self.chance.randint(1, 8))
            bodies = [b"%d" % (self.sent + n) for n in range(len(keys))]
            self.sent += len(keys)
            blocks.append((bodies, keys, self.pick(0, 0, 0, 0, 0, 15, 120)))
        self.sides.do("append", blocks)

    def append_judged(self) -> None:
        if self.pick(True, False):
            self.sides.do("append_judged", {"message_id": self.pick(b"x", b"y", b"z")})
            return
        known = self.sides.memory.model.producers.get(b"p", 0)
        self.sides.do(
            "append_judged",
            {
                "producer": b"p",
                "sequence": max(0, known + self.pick(-2, -1, 0, 0, 0, 1)),
                "span": self.pick(1, 2),
                "gaps": self.pick(True, False),
            },
        )

    def lease(self) -> None:
        want, spread = self.pick(1, 1, 2, 3, 6, 1000), self.chance.choice(self.spreads)
        self.sides.do("lease", self.sub(), want, self.pick(10, 40, 100), spread)

    def picks(self) -> list[tuple[int, float, float, str]]:
        return [
            (
                int(self.chance.expovariate(0.3)),
                self.pick(0.0, 0.0, 0.3, 0.6),
                self.pick(0.0, 0.4, 1.0, 1.0),
                self.pick(*[""] * 20, "epoch", "token"),
            )
            for _ in range(self.pick(1, 1, 2, 3))
        ]

    def settle(self, verb: str, wait: int | None) -> None:
        if all(side.leases for side in self.sides.all):
            self.sides.do("settle", verb, self.picks(), wait)

    def acknowledge(self) -> None:
        self.settle("acknowledge", None)

    def extend(self) -> None:
        self.settle("extend", self.pick(0, 10, 50))

    def release(self) -> None:
        self.settle("release", self.pick(0, 0, 15, 60, None))

    def sleep(self) -> None:
        self.sides.clock.sleep_ms(self.pick(1, 5, 10, 10, 40, 100))

    def subscribe(self) -> None:
        sub = self.pick("one", "two")
        if sub in self.sides.memory.model.subs:
            self.sides.do("unsubscribe", sub)
        else:
            kind = self.pick("earliest", "latest", "offset", "time")
            self.sides.do("subscribe", sub, kind, self.chance.randint(0, self.sent))

    def commit(self) -> None:
        if self.pick(*[False] * 7, True):
            self.sides.do("purge")
            return
        sub = self.sub()
        tail = max(1, self.sides.memory.model.tail)
        ahead = self.sides.memory.model.floor(sub) + self.pick(-1, 1, 2, 4)
        self.sides.do("commit", sub, min(1.0, max(0, ahead) / tail))

    def stream(self) -> None:
        self.sides.do("stream", self.sub())

    def configure(self) -> None:
        if self.pick(*[False] * 7, True):
            self.sides.do("reorder", self.pick("loose", "strict", self.order))
            return
        self.sides.do(
            "configure",
            self.pick(
                {"keep_done_ms": 0},
                {"keep_done_ms": 300},
                {"retention_ms": 2000},
                {"receives_max": None},
                {"receives_max": 2},
            ),
        )


@pytest.mark.parametrize("seed", range(WALKS))
@pytest.mark.parametrize("kind", ["loose", "spread", "key", "strict"])
def test_a_long_walk_keeps_every_promise(kind: str, seed: int, redis: RedisProcess) -> None:
    """I2-I7."""
    spread = kind == "spread"
    walk = Walk("loose" if spread else kind, seed, redis, spread=spread)
    try:
        for _ in range(STEPS):
            walk.step()
            walk.sides.check()
    finally:
        walk.sides.close()
