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

*Growing and shrinking.* Shards are dealt out when a fabric is made; their number, slots and names
stay. What changes with the servers is where a shard is at home; its copies follow from that, as
above. Every server is home to equally many shards, give or take one, and as few as possible move.
A server that leaves leaves a gap in the names; a new one comes after the last:

    A B C D E  ->  A B C D E F: one shard moves to F      A C D E: B1 and B2 get other homes
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

#: Slots of a Redis cluster.
SLOTS = 16_384

#: Servers of one fabric: six processes for each, and Redis Cluster is made for up to 1,000.
SERVERS_MAX = 166

#: Servers up to which every pair of failures is tried, when they are not all alike.
_SERVERS_TOLD_MAX = 40

COPIES_MAX = 3
RINGS = 2

_STANDS_STILL = (
    "A shard stands still when one server is left that holds it: what that one took alone could be "
    "lost, so nothing is sent to it and nothing received. Queues without order go on elsewhere."
)


class Shard(NamedTuple):
    """A share of the slots: a master and its copies."""

    #: Its number among those of its ring, and the server whose name it bears: its first home.
    origin: int
    ring: int

    @property
    def name(self) -> str:
        """Its origin and its ring, for as long as the fabric exists: A1, A2, B1, ..."""
        return f"{server_name(self.origin)}{self.ring}"


class Process(NamedTuple):
    """One Redis process: holds one shard on one server."""

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
    """The layout of a fabric. Pure: servers are numbers from 0."""

    #: The servers that shards were dealt out for, two for each. A fabric may grow to twice as many
    #: servers; beyond, some would have no master.
    servers: int
    #: How often a message is kept, the master's included, as far as there are servers.
    copies: int = COPIES_MAX
    counter_rotating: bool = True
    #: The servers there are, in ring order; by default those that shards were dealt out for.
    order: tuple[int, ...] = ()
    #: Where each shard is at home, in the order of slots; by default at its origin.
    homes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.servers <= SERVERS_MAX:
            raise InvalidArgument(
                f"A fabric has 1 to {SERVERS_MAX} servers, not {self.servers}; five or more "
                "survive two failures."
            )
        if not 1 <= self.copies <= COPIES_MAX:
            raise InvalidArgument(f"A message has 1 to {COPIES_MAX} copies, not {self.copies}.")
        if not self.order:
            object.__setattr__(self, "order", tuple(range(self.servers)))
        if not self.homes:
            object.__setattr__(self, "homes", tuple(shard.origin for shard in self.shards))
        strangers = sorted(set(self.homes) - set(self.order))
        if len(set(self.order)) < len(self.order) or strangers:
            raise InvalidArgument(f"Servers {self.order} cannot be home to shards {self.homes}.")
        if len(self.homes) != len(self.shards):
            raise InvalidArgument(f"{len(self.shards)} shards have {len(self.homes)} homes.")

    # -- the layout -----------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of the servers in ring order: A, B, C, ..."""
        return [server_name(server) for server in self.order]

    @property
    def shards(self) -> list[Shard]:
        """All shards, in the order of their slots."""
        return [Shard(origin, ring + 1) for origin in range(self.servers) for ring in range(RINGS)]

    @property
    def holders_count(self) -> int:
        """Servers that hold each shard."""
        return min(self.copies, len(self.order))

    def direction(self, ring: int) -> int:
        """1 when the ring's copies are on the servers that follow, -1 on those that precede."""
        return -1 if ring == 2 and self.counter_rotating else 1

    def home(self, shard: Shard) -> int:
        """The server that has the master while all is well."""
        return self.homes[_number(shard)]

    def holders(self, shard: Shard) -> list[int]:
        """The servers that hold a shard, its home first, in the order of promotion."""
        return self.holders_from(self.home(shard), shard.ring)

    def holders_from(self, home: int, ring: int) -> list[int]:
        """The servers that hold a shard of a ring when it is at home on this one."""
        start, step = self.order.index(home), self.direction(ring)
        count = len(self.order)
        return [self.order[(start + step * rank) % count] for rank in range(self.holders_count)]

    def placement(self) -> list[list[Process]]:
        """The processes of each server, in ring order: by ring and rank, masters first."""
        placed: dict[int, list[Process]] = {server: [] for server in self.order}
        for shard in self.shards:
            for rank, server in enumerate(self.holders(shard)):
                placed[server].append(Process(server, shard, rank))
        for processes in placed.values():
            processes.sort(key=lambda process: (process.shard.ring, process.rank))
        return list(placed.values())

    def slots(self, shard: Shard) -> range:
        """The slots of a shard; all shards have equally many, give or take one."""
        number, total = _number(shard), len(self.homes)
        return range(number * SLOTS // total, (number + 1) * SLOTS // total)

    # -- growing and shrinking ------------------------------------------------------------------

    def added(self) -> Rings:
        """The same shards with one more server, after the last."""
        return self.on((*self.order, max(self.order) + 1))

    def removed(self, server: int) -> Rings:
        """The same shards without a server."""
        left = tuple(other for other in self.order if other != server)
        if len(left) < self.holders_count:
            raise InvalidArgument(
                f"Each message has {self.holders_count} copies on as many servers, and without "
                f"{server_name(server)} there are {len(left)}: add a server first."
            )
        return self.on(left)

    def on(self, order: Sequence[int]) -> Rings:
        """The same shards on these servers: spread evenly, with as few homes moved as can be.

        A shard without a home goes to a server that has the fewest; then shards move from those
        that have most to those that have fewest.
        """
        if not 1 <= len(order) <= len(self.homes):
            raise InvalidArgument(
                f"The fabric was made with {len(self.homes)} shards: 1 to {len(self.homes)} "
                f"servers can share them, not {len(order)}."
            )
        move = _Move(self, order)
        for shard in self.shards:
            if self.home(shard) not in move.held:
                move.to_best([shard])
        while move.uneven:
            most = max(map(len, move.held.values()))
            move.to_best([s for held in move.held.values() if len(held) == most for s in held])
        homes = {shard: server for server, held in move.held.items() for shard in held}
        return replace(self, order=tuple(order), homes=tuple(homes[s] for s in self.shards))

    # -- failures -------------------------------------------------------------------------------

    def promoted(self, shard: Shard, failed: Collection[int]) -> int | None:
        """The server that has the master in ring order when these have failed; None: nobody."""
        return next((server for server in self.holders(shard) if server not in failed), None)

    def load(self, failed: Collection[int] = ()) -> dict[int, int]:
        """Masters on each server that is left; a server's share is two."""
        left = {server: 0 for server in self.order if server not in failed}
        for shard in self.shards:
            server = self.promoted(shard, failed)
            if server is not None:
                left[server] += 1
        return left

    def after(self, *failures: Collection[int]) -> Standing:
        """What failures do, one group of servers after the other; promotion needs a majority.

        Between two groups there is time for promotion; the servers of one group fail at once.
        """
        masters: dict[Shard, int | None] = {shard: self.home(shard) for shard in self.shards}
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
        if len(self.order) == 1:
            return ["When the server fails, everything stops until it returns."]
        alike = self == Rings(self.servers, self.copies, self.counter_rotating)
        firsts = self.order[:1] if alike else self.order
        first = [self.after({server}) for server in firsts]
        told = [_cases("When one server fails", [self._tell(s, "it returns") for s in first])]
        if len(firsts) > _SERVERS_TOLD_MAX or not any(standing.goes_on for standing in first):
            return told
        pairs = [(first, second) for first in firsts for second in self.order if second != first]
        # What the first one held has moved to others by then, so its own return does not help.
        until = "the second one returns" if self.holders_count > 1 else "they return"
        in_turn = [self._tell(self.after({one}, {two}), until) for one, two in pairs]
        at_once = [self._tell(self.after({one, two}), "they return") for one, two in pairs]
        if in_turn == at_once:
            told.append(_cases("When a second one fails", in_turn))
        else:
            when = "When a second one fails after copies of the first were promoted"
            told += [_cases(when, in_turn), _cases("When two fail at once", at_once)]
        return [*told, _STANDS_STILL] if any("stand still" in line for line in told) else told

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
            return f"{alone} of {total} shards stand still until a server returns"
        most = max(self.load(standing.down).values())
        return f"everything goes on, with at most {most} masters on a server"

    def _left(self, shard: Shard, down: Collection[int]) -> int:
        return sum(server not in down for server in self.holders(shard))


class _Move:
    """Shards on their way to other servers: who is home to which."""

    def __init__(self, rings: Rings, order: Sequence[int]) -> None:
        self._rings = rings
        self._order = list(order)
        # Where copies will lie depends on the servers only, so any homes among them will do.
        anywhere = tuple(order[0] for _ in rings.homes)
        self._after = replace(rings, order=tuple(order), homes=anywhere)
        self.held: dict[int, list[Shard]] = {server: [] for server in order}
        for shard in rings.shards:
            if (home := rings.home(shard)) in self.held:
                self.held[home].append(shard)

    @property
    def uneven(self) -> bool:
        counts = [len(held) for held in self.held.values()]
        return max(counts) - min(counts) > 1

    def to_best(self, shards: Iterable[Shard]) -> None:
        """Move one of these shards to one of the servers that have the fewest."""
        fewest = min(map(len, self.held.values()))
        takers = [server for server, held in self.held.items() if len(held) == fewest]
        shard, taker = min(
            ((shard, taker) for shard in shards for taker in takers),
            key=lambda pair: self._cost(*pair),
        )
        for held in self.held.values():
            if shard in held:
                held.remove(shard)
        self.held[taker].append(shard)

    def _cost(self, shard: Shard, taker: int) -> tuple[int, ...]:
        """What speaks against giving a shard to a server, the weightiest first."""
        before = self._rings.holders(shard)
        kept = set(before) & set(self._after.holders_from(taker, shard.ring))
        return (
            taker != shard.origin,
            sum(other.ring == shard.ring for other in self.held[taker]),
            shard in self.held.get(shard.origin, ()),
            len(before) - len(kept),  # Copies to be made anew.
            before.index(taker) if taker in before else len(before),
            self._order.index(taker),
            _number(shard),
        )


def _number(shard: Shard) -> int:
    """The place of a shard in the order of slots."""
    return RINGS * shard.origin + shard.ring - 1


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


def server_number(name: str) -> int:
    """The number of a server by its name."""
    number = 0
    for letter in name:
        if not "A" <= letter <= "Z":
            raise InvalidArgument(f"{name!r} is no server: they are named A, B, ..., Z, AA, ...")
        number = 26 * number + ord(letter) - ord("A") + 1
    if not number:
        raise InvalidArgument("A server has a name: A, B, ..., Z, AA, ...")
    return number - 1
