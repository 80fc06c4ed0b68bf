"""Where masters and their copies live: two rings around the servers, one each way (T3.3, T3.4).

Every server has one master of ring 1 and one of ring 2. A master and its copies are a *shard*: a
share of the slots. Ring 1 puts a shard's copies on the servers that follow, ring 2 on those that
precede:

    ring 1 -->   A1: A, B, C    B1: B, C, D    C1: C, D, E    D1: D, E, A    E1: E, A, B
    ring 2 <--   A2: A, E, D    B2: B, A, E    C2: C, B, A    D2: D, C, B    E2: E, D, C

When a server fails, its two masters move to different neighbours. When its neighbour fails too, one
of them moves on: no server then has more than twice its share. If both rings turned the same way,
one server would take everything over and have three times its share; that is kept as an option,
for the experiment that shows it.

Redis Cluster promotes a copy only while more than half of all masters are reachable, and it elects
by offset and chance. What is said here holds for promotion in ring order, which handing masters
back restores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: Slots of a Redis cluster.
SLOTS = 16_384

#: Servers of one fabric: six processes on each, and Redis Cluster is made for up to 1,000.
SERVERS_MAX = 166

COPIES_MAX = 3
RINGS = 2


class Shard(NamedTuple):
    """A share of the slots: a master, at home on one server, and its copies."""

    home: int
    ring: int

    @property
    def name(self) -> str:
        """Its home and its ring: A1, A2, B1, ..."""
        return f"{server_name(self.home)}{self.ring}"


class Process(NamedTuple):
    """One Redis process: holds one shard on one server, as long as the cluster exists."""

    server: int
    shard: Shard
    #: 0: the master while all is well; then the order of promotion.
    rank: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Who is master of what after failures."""

    #: The server of each shard's master; None where nobody serves it.
    masters: Mapping[Shard, int | None]
    down: frozenset[int]
    #: Masters that could vote after the last failure, and how many votes a promotion needs.
    voters: int
    majority: int

    @property
    def goes_on(self) -> bool:
        """Whether the cluster serves at all: it stops when most masters are out of reach."""
        return self.voters >= self.majority

    @property
    def unserved(self) -> list[Shard]:
        """Shards out of reach until a server returns."""
        return [shard for shard, server in self.masters.items() if server is None]


@dataclass(frozen=True, slots=True)
class Rings:
    """The layout of a fabric. Pure: servers are numbers from 0, in ring order."""

    servers: int
    #: How often a message is kept, the master's included, as far as there are servers.
    copies: int = COPIES_MAX
    counter_rotating: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.servers <= SERVERS_MAX:
            raise InvalidArgument(
                f"A fabric has 1 to {SERVERS_MAX} servers, not {self.servers}; five or more "
                "survive two failures."
            )
        if not 1 <= self.copies <= COPIES_MAX:
            raise InvalidArgument(f"A message has 1 to {COPIES_MAX} copies, not {self.copies}.")

    # -- the layout -----------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of the servers: A, B, C, ..."""
        return [server_name(server) for server in range(self.servers)]

    @property
    def shards(self) -> list[Shard]:
        """All shards, in the order of their slots."""
        return [Shard(home, ring + 1) for home in range(self.servers) for ring in range(RINGS)]

    @property
    def holders_count(self) -> int:
        """Servers that hold each shard."""
        return min(self.copies, self.servers)

    def direction(self, ring: int) -> int:
        """1 when the ring's copies are on the servers that follow, -1 on those that precede."""
        return -1 if ring == 2 and self.counter_rotating else 1

    def holders(self, shard: Shard) -> list[int]:
        """The servers that hold a shard, its home first, in the order of promotion."""
        step = self.direction(shard.ring)
        return [(shard.home + step * rank) % self.servers for rank in range(self.holders_count)]

    def placement(self) -> list[list[Process]]:
        """The processes of each server: its masters, then copies by ring and rank."""
        placed: list[list[Process]] = [[] for _ in range(self.servers)]
        for shard in self.shards:
            for rank, server in enumerate(self.holders(shard)):
                placed[server].append(Process(server, shard, rank))
        for processes in placed:
            processes.sort(key=lambda process: (process.shard.ring, process.rank))
        return placed

    def slots(self, shard: Shard) -> range:
        """The slots of a shard; all shards have equally many, give or take one."""
        number = RINGS * shard.home + shard.ring - 1
        total = RINGS * self.servers
        return range(number * SLOTS // total, (number + 1) * SLOTS // total)

    # -- failures -------------------------------------------------------------------------------

    def promoted(self, shard: Shard, failed: Collection[int]) -> int | None:
        """The server that has the master in ring order when these have failed; None: nobody."""
        return next((server for server in self.holders(shard) if server not in failed), None)

    def load(self, failed: Collection[int] = ()) -> dict[int, int]:
        """Masters on each server that is left; a server's share is two."""
        left = {server: 0 for server in range(self.servers) if server not in failed}
        for shard in self.shards:
            server = self.promoted(shard, failed)
            if server is not None:
                left[server] += 1
        return left

    def after(self, *failures: Collection[int]) -> Standing:
        """What failures do, one group of servers after the other; promotion needs a majority.

        Between two groups there is time for promotion; the servers of one group fail at once.
        """
        masters: dict[Shard, int | None] = {shard: shard.home for shard in self.shards}
        majority = len(masters) // 2 + 1
        voters = len(masters)
        down: frozenset[int] = frozenset()
        for group in failures:
            down |= frozenset(group)
            voters = sum(server is not None and server not in down for server in masters.values())
            for shard, server in masters.items():
                if server is None or server in down:
                    masters[shard] = self.promoted(shard, down) if voters >= majority else None
            if voters < majority:
                break
        return Standing(masters, down, voters, majority)

    def tell_failures(self) -> list[str]:
        """What the failure of one server does, and of a second one, in words."""
        if self.servers == 1:
            return ["When the server fails, everything stops until it returns."]
        first = self.after({0})
        told = [f"When one server fails, {self._tell(first, 'it returns')}."]
        if not first.goes_on:
            return told
        others = range(1, self.servers)
        # What the first one held has moved to others by then, so its own return does not help.
        until = "the second one returns" if self.holders_count > 1 else "they return"
        in_turn = [self._tell(self.after({0}, {n}), until) for n in others]
        at_once = [self._tell(self.after({0, n}), "they return") for n in others]
        if in_turn == at_once:
            return [*told, _cases("When a second one fails", in_turn)]
        return [
            *told,
            _cases("When a second one fails after copies of the first were promoted", in_turn),
            _cases("When two fail at once", at_once),
        ]

    def _tell(self, standing: Standing, until: str) -> str:
        total = len(self.shards)
        if not standing.goes_on:
            return (
                f"everything stops until {until}: of {total} masters {standing.voters} are left, "
                "which is no majority, so no copy is promoted"
            )
        if standing.unserved:
            return f"{len(standing.unserved)} of {total} shards are out of reach until {until}"
        alone = sum(self._left(shard, standing.down) < 2 for shard in self.shards)
        if alone:
            return (
                f"{alone} of {total} shards take no new messages until a server returns, because "
                "no second server holds them"
            )
        most = max(self.load(standing.down).values())
        return f"everything goes on, with at most {most} masters on a server"

    def _left(self, shard: Shard, down: Collection[int]) -> int:
        return sum(server not in down for server in self.holders(shard))


def _cases(when: str, outcomes: list[str]) -> str:
    """One sentence with every outcome that can be, and how often."""
    found = {outcome: outcomes.count(outcome) for outcome in outcomes}
    if len(found) == 1:
        return f"{when}, {outcomes[0]}."
    total = len(outcomes)
    told = [f"in {count} of {total} cases {outcome}" for outcome, count in found.items()]
    return f"{when}, {'; '.join(told)}."


def server_name(number: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("A") + letter) + name
    return name
