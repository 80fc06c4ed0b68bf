"""Fabrics of tens to hundreds of servers on paper: who serves what after failures (T4.6).

Every server is home to two shards of three copies. Five ways to place them:

    single            one ring: copies on the next two servers
    same direction    two rings that turn the same way (T3.9's worse case); as good as one
    counter-rotating  two rings, one each way: what `core/ring.py` makes and Ringdove runs
    random            two other servers for each shard, at random
    copysets          servers shuffled into groups of three, once for each shard of a server; the
                      copies are on the rest of the group. Few different sets of three servers
                      hold anything, so few triples of failures lose data

What matters after failures: how much more than its share the busiest server has to do, how many
shards are down to one copy, and whether all copies of one are gone. There is a trade: the more sets
of three servers hold a shard, the more evenly work spreads and the likelier three failures lose
something.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringdove.core.ring import RINGS, SERVERS_MAX, Rings
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

LAYOUTS = ("single", "same direction", "counter-rotating", "random", "copysets")
COPIES = 3

#: Sets of failed servers up to which all are tried, and drawn at random beyond.
_TRIED_MAX = 5_000


@dataclass(frozen=True, slots=True)
class Placement:
    """Which servers hold each shard, its home first, in the order of promotion."""

    servers: int
    holders: list[tuple[int, ...]]

    def loads(self, failed: Collection[int]) -> list[float]:
        """What each server that is left has to do, as a multiple of its share."""
        masters = {server: 0 for server in range(self.servers) if server not in failed}
        for holders in self.holders:
            server = next((one for one in holders if one not in failed), None)
            if server is not None:
                masters[server] += 1
        share = len(self.holders) / self.servers
        return [count / share for count in masters.values()]

    def left(self, failed: Collection[int]) -> list[int]:
        """Copies that are left of each shard."""
        return [sum(one not in failed for one in holders) for holders in self.holders]

    @property
    def sets(self) -> int:
        """Different sets of servers that hold a shard: each may lose data if all of it fails."""
        return len({frozenset(holders) for holders in self.holders})

    @property
    def loss_chance(self) -> float:
        """The chance that three failures at random take all copies of a shard."""
        return self.sets / math.comb(self.servers, COPIES)


def place(layout: str, servers: int, seed: int = 0) -> Placement:
    """The shards of a fabric in one of the layouts."""
    if layout not in LAYOUTS:
        raise InvalidArgument(f"There is no layout {layout!r}: {', '.join(LAYOUTS)}.")
    if servers < COPIES:
        raise InvalidArgument(f"{servers} servers cannot hold {COPIES} copies.")
    chance = random.Random(seed)
    if layout == "random":
        return Placement(servers, [_drawn(chance, servers, n // RINGS) for n in _shards(servers)])
    if layout == "copysets":
        return Placement(servers, _grouped(chance, servers) + _grouped(chance, servers))
    return Placement(servers, _rings(servers, counter=layout == "counter-rotating"))


def _shards(servers: int) -> range:
    return range(RINGS * servers)


def _rings(servers: int, *, counter: bool) -> list[tuple[int, ...]]:
    """As core/ring.py has it; beyond what one fabric may have, by the same rule."""
    if servers <= SERVERS_MAX:
        rings = Rings(servers, COPIES, counter_rotating=counter)
        return [tuple(rings.holders(shard)) for shard in rings.shards]
    steps = (1, -1 if counter else 1)
    return [
        tuple((home + step * rank) % servers for rank in range(COPIES))
        for home in range(servers)
        for step in steps
    ]


def _drawn(chance: random.Random, servers: int, home: int) -> tuple[int, ...]:
    others = chance.sample(range(servers - 1), COPIES - 1)
    return home, *(other + (other >= home) for other in others)


def _grouped(chance: random.Random, servers: int) -> list[tuple[int, ...]]:
    """One shard for each server, its copies in its group; the last group may be larger."""
    order = chance.sample(range(servers), servers)
    whole = servers - servers % COPIES
    groups = [order[at : at + COPIES] for at in range(0, whole, COPIES)]
    groups[-1] += order[whole:]
    return [
        tuple(itertools.islice(itertools.cycle(group), at, at + COPIES))
        for group in groups
        for at in range(len(group))
    ]


def study(
    placement: Placement, failures: int, *, neighbours: bool = False, seed: int = 0
) -> dict[str, float]:
    """What failures at once do: all sets of servers if they are few, or many at random.

    `neighbours`: servers next to each other fail, as in one rack. Means are over the sets tried.
    """
    if not 0 <= failures < placement.servers:
        raise InvalidArgument(f"{failures} of {placement.servers} servers cannot fail.")
    tried, worst, loads, alone, gone, losing = 0, 0.0, 0.0, 0, 0, 0
    for failed in _sets(placement.servers, failures, neighbours, seed):
        tried += 1
        most = max(placement.loads(failed))
        loads += most
        worst = max(worst, most)
        left = placement.left(failed)
        alone += left.count(1)
        lost = left.count(0)
        gone += lost
        losing += lost > 0
    return {
        "load_mean": loads / tried,
        "load_worst": worst,
        "alone_share": alone / tried / len(placement.holders),
        "lost_share": gone / tried / len(placement.holders),
        "loss_chance": losing / tried,
        "tried": tried,
    }


def _sets(servers: int, failures: int, neighbours: bool, seed: int) -> Iterator[frozenset[int]]:  # noqa: FBT001
    if neighbours:
        for first in range(servers):
            yield frozenset((first + step) % servers for step in range(failures))
    elif math.comb(servers, failures) <= _TRIED_MAX:
        yield from map(frozenset, itertools.combinations(range(servers), failures))
    else:
        chance = random.Random(seed)
        for _ in range(_trials(servers)):
            yield frozenset(chance.sample(range(servers), failures))


def _trials(servers: int) -> int:
    """Fewer sets where each costs more."""
    return max(200, 100_000 // servers)
