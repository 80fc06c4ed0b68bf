"""Where to connect (M5): pure functions from what brokers report to the places for one who asks.

A producer goes to level 0. A relay of level S goes to level S-1, to a lower one only where there is
none. A consumer goes to the highest level among the brokers nearest to it. Of several, best is:

1. one that it could reach, and that is not full;
2. the nearest region. Regions are words joined by '-', the widest first: `eu-west-1` is in
   `eu-west`, which is in `eu`. Two regions are the nearer, the more words they share from the left;
3. the highest level, which for a relay counts before the region;
4. one in a network of the asker's addresses;
5. the one with less load, in steps of a tenth, so that small differences do not count;
6. whichever a stable hash of both names says, so that askers spread over equals.

Who is connected stays, as long as its broker is there and no other is clearly better: better by the
first four of these, with load to spare and up for a while; or by `MARGIN` of load. Of those at a
busy broker only a share moves, as large as would make both equally busy, so that they do not all go
to the next one and back.

Askers of one kind, which is role, level, region and networks, rank brokers alike: `Routes` ranks
them once for each kind, so that many may ask.
"""

from __future__ import annotations

import ipaddress
from itertools import groupby, islice
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from ringdove.errors import InvalidArgument
from ringdove.tiers.reports import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ringdove.tiers.reports import BrokerReport, Where

ROLES = ("producer", "relay", "consumer")

#: Places of one answer: more would not be tried before asking again.
PLACES_MAX = 16

#: Load from which a broker takes others only where there is no other.
FULL = 0.95

#: By how much less load another must have before somebody moves there.
MARGIN = 0.3

#: Load up to which a better place draws those who are connected elsewhere.
ROOMY = 0.7

#: How long a better broker must have been up before somebody moves there, so that nobody follows
#: one that comes and goes.
SETTLED_MS = 10_000

#: Steps of load that count as equal.
_STEPS = 10


class Candidate(NamedTuple):
    """A broker that reported lately, and for how long it has without a gap."""

    report: BrokerReport
    up_ms: int = SETTLED_MS


class _Kind(NamedTuple):
    """What askers have in common for whom brokers rank alike."""

    role: str
    level: int
    region: str
    networks: frozenset[str]


class _Standing(NamedTuple):
    """How good a broker is for a kind; smaller is better, and the order of the fields counts."""

    full: bool
    #: Region and level, in the order that counts for the role.
    rank: tuple[int, int, int]
    foreign: bool
    load_step: int

    @property
    def place(self) -> tuple[bool, tuple[int, int, int], bool]:
        """What a little more load does not change."""
        return self[:3]


class _Ranked(NamedTuple):
    standing: _Standing
    candidate: Candidate

    @property
    def name(self) -> str:
        return self.candidate.report.name


class Routes:
    """The brokers there are, ranked for whoever asks."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._known = {each.report.name: each for each in candidates}
        named = {net for each in self._known.values() for net in each.report.networks}
        self._networks = {net: _network(net) for net in named}
        self._kinds: dict[_Kind, dict[str, _Ranked]] = {}

    def places(self, where: Where) -> list[Place]:
        """The places to try, best first; where the asker is comes first while it may stay."""
        ranked = self._ranked(where)
        at = ranked.get(where.at)
        stays = at is not None and not self._should_move(ranked, at, where)
        first = [at] if at is not None and stays else []
        others = (each for each in self._in_order(ranked, where) if not stays or each is not at)
        return [_place(each) for each in islice((*first, *others), PLACES_MAX)]

    def moves(self, where: Where) -> list[Place]:
        """The places to go to, best first; none when the asker may stay or nobody has another."""
        ranked = self._ranked(where)
        at = ranked.get(where.at)
        if at is not None and not self._should_move(ranked, at, where):
            return []
        others = (each for each in self._in_order(ranked, where) if each.name != where.at)
        return [_place(each) for each in islice(others, PLACES_MAX)]

    def _ranked(self, where: Where) -> dict[str, _Ranked]:
        """The brokers that the asker's kind may go to, best first, by name."""
        if where.role not in ROLES:
            raise InvalidArgument(f"The role is {where.role!r}; it is one of {', '.join(ROLES)}.")
        addresses = [_address(address) for address in where.addresses]
        networks = frozenset(
            name for name, net in self._networks.items() if any(a in net for a in addresses)
        )
        kind = _Kind(where.role, where.level, where.region, networks)
        found = self._kinds.get(kind)
        if found is None:
            fit = [each for each in self._known.values() if _fits(each.report, kind)]
            ranked = [_Ranked(_standing(each.report, kind), each) for each in fit]
            ranked.sort(key=lambda each: (each.standing, each.name))
            found = self._kinds[kind] = {each.name: each for each in ranked}
        return found

    def _in_order(self, ranked: dict[str, _Ranked], where: Where) -> Iterator[_Ranked]:
        """The brokers for one asker: of equals its own first; what it could not reach last."""
        avoided = set(where.avoid)
        for _, equals in groupby(ranked.values(), key=lambda each: each.standing):
            reached = [each for each in equals if each.name not in avoided]
            reached.sort(key=lambda each: _hash(where.name, each.name))
            yield from (each for each in reached if self._is_safe(each, where))
        yield from (
            each for each in ranked.values() if each.name in avoided and self._is_safe(each, where)
        )

    def _is_safe(self, ranked: _Ranked, where: Where) -> bool:
        """Whether a relay may pull from a broker without messages going round."""
        return where.role != "relay" or not self._is_below(ranked.candidate.report, where.name)

    def _is_below(self, report: BrokerReport, name: str) -> bool:
        """Whether a broker is the named one or, over any number of others, pulls from it."""
        seen: set[str] = set()
        while name and report.name not in seen:
            if report.name == name:
                return True
            seen.add(report.name)
            upstream = self._known.get(report.upstream)
            if upstream is None:
                return report.upstream == name
            report = upstream.report
        return False

    def _should_move(self, ranked: dict[str, _Ranked], at: _Ranked, where: Where) -> bool:
        """Whether another is clearly better than where the asker is."""
        if where.at in where.avoid or not self._is_safe(at, where):
            return True
        settled = (
            each
            for each in ranked.values()
            if each.candidate.up_ms >= SETTLED_MS
            and each.name not in where.avoid
            and self._is_safe(each, where)
        )
        best = next(settled, at)
        if best.standing.place > at.standing.place:
            return False
        load = load_of(at.candidate.report, where.role)
        best_load = load_of(best.candidate.report, where.role)
        if at.standing.full or best.standing.place == at.standing.place:
            busy = at.standing.full or load - best_load >= MARGIN
            return busy and _is_chosen(where, load, best_load)
        return best_load <= ROOMY


def load_of(report: BrokerReport, role: str = "") -> float:
    """How busy a broker is, 0 to 1 and beyond; its disk counts for those who fill it."""
    busy = max(report.load.cpu, report.load.connections / max(1, report.capacity))
    return max(busy, report.load.disk) if role == "producer" else busy


def check(report: BrokerReport) -> None:
    """Refuse a report by which nobody could be told where to go."""
    for network in report.networks:
        _network(network)
    load = report.load
    if not (isfinite(load.cpu) and isfinite(load.disk)):
        raise InvalidArgument(f"The load is {load.cpu} and {load.disk} of the disk: say numbers.")


def _fits(report: BrokerReport, kind: _Kind) -> bool:
    """Whether askers of a kind may go there at all."""
    if kind.role == "producer":
        return report.serving and report.level == 0
    return report.serving and (kind.role == "consumer" or report.level < kind.level)


def _standing(report: BrokerReport, kind: _Kind) -> _Standing:
    load = load_of(report, kind.role)
    shared, apart = _nearness(kind.region, report.region)
    relay = kind.role == "relay"
    return _Standing(
        load >= FULL,
        (-report.level, -shared, apart) if relay else (-shared, -report.level, apart),
        kind.networks.isdisjoint(report.networks),
        int(load * _STEPS),
    )


def _nearness(one: str, other: str) -> tuple[int, int]:
    """How many words two regions share from the left, and how many they do not."""
    ours, theirs = _words(one), _words(other)
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
        shared += 1
    return shared, len(ours) + len(theirs) - 2 * shared


def _words(region: str) -> list[str]:
    return [word for word in region.split("-") if word]


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from error


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from error


def _hash(*names: str) -> int:
    return xxhash.xxh3_64_intdigest("\0".join(names).encode())


def _is_chosen(where: Where, load: float, best_load: float) -> bool:
    """Whether the asker is of the share that makes both equally busy when it moves."""
    share = (load - best_load) / 2 / load if load > 0 else 0.0
    return _hash("moves", where.name, where.at) < share * 2**64


def _place(ranked: _Ranked) -> Place:
    report = ranked.candidate.report
    return Place(report.name, report.url, report.level, report.region)
