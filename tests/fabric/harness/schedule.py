"""What breaks, and for how long: a plan that follows from a seed alone.

A plan consists of rounds. The faults of a round hold together; then all is mended, and the next
round begins when the cluster is whole again. So a plan never exceeds what three copies promise:
two servers at a time.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from ringdove.core.ring import Rings

if TYPE_CHECKING:
    from collections.abc import Callable

#: How long a fault lasts: some are over before the cluster has noticed them, some long after.
SECONDS_MIN, SECONDS_MAX = 0.1, 4.0

#: One round in so many has two faults at a time.
_PAIRS = 3


class Step(msgspec.Struct, frozen=True):
    """One fault."""

    kind: str
    #: A server, two servers, a shard, a process as SERVER/SHARD, or the number of a controller.
    target: str
    seconds: float


def plan(
    seed: int, faults: int, rings: Rings | None = None, controllers: int = 3
) -> list[list[Step]]:
    """Rounds with so many faults in all."""
    rng = random.Random(seed)
    rings = rings or Rings(5)
    rounds: list[list[Step]] = []
    while faults:
        steps = [_step(rng, rng.choice(list(HEAVY)), rings, controllers)]
        if faults > 1 and rng.randrange(_PAIRS) == 0:
            steps.append(_step(rng, rng.choice(list(LIGHT)), rings, controllers))
        rng.shuffle(steps)
        rounds.append(steps)
        faults -= len(steps)
    return rounds


def _step(rng: random.Random, kind: str, rings: Rings, controllers: int) -> Step:
    pick = {**HEAVY, **LIGHT}[kind]
    seconds = round(rng.uniform(SECONDS_MIN, SECONDS_MAX), 2)
    return Step(kind, pick(rng, rings, controllers), seconds)


def _server(rng: random.Random, rings: Rings, _controllers: int) -> str:
    return rng.choice(rings.names)


def _neighbours(rng: random.Random, rings: Rings, _controllers: int) -> str:
    first = rng.randrange(rings.servers)
    step = rng.choice((-1, 1))
    return rings.names[first] + rings.names[(first + step) % rings.servers]


def _pair(rng: random.Random, rings: Rings, _controllers: int) -> str:
    return "".join(rng.sample(rings.names, 2))


def _shard(rng: random.Random, rings: Rings, _controllers: int) -> str:
    return rng.choice(rings.shards).name


def _process(rng: random.Random, rings: Rings, _controllers: int) -> str:
    shard = rng.choice(rings.shards)
    return f"{rings.names[rng.choice(rings.holders(shard))]}/{shard.name}"


def _controller(rng: random.Random, _rings: Rings, controllers: int) -> str:
    return str(rng.randrange(controllers))


#: Faults of the cluster, and how their targets are chosen.
HEAVY: dict[str, Callable[[random.Random, Rings, int], str]] = {
    "kill server": _server,
    "kill neighbours": _neighbours,
    "kill process": _process,
    "kill controller": _controller,
    "bounce master": _shard,
    "bounce server": _server,
    "pause server": _server,
    "pause process": _process,
    "partition": _pair,
    "isolate": _server,
    "mute": _server,
}

#: Faults that may come with one of those.
LIGHT: dict[str, Callable[[random.Random, Rings, int], str]] = {
    "kill controller": _controller,
    "pause controller": _controller,
    "delay": _server,
    "lose": _server,
    "cut": _server,
}
