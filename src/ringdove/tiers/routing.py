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
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from ringdove.errors import InvalidArgument
from ringdove.tiers.reports import Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringdove.tiers.reports import BrokerReport, Where

ROLES = ("producer", "relay", "consumer")

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


class _Standing(NamedTuple):
    """How good a broker is for somebody; smaller is better, and the order of the fields counts."""

    avoided: bool
    full: bool
    #: Region and level, in the order that counts for the role.
    rank: tuple[int, int, int]
    foreign: bool
    load_step: int
    spread: int

    @property
    def place(self) -> tuple[bool, bool, tuple[int, int, int], bool]:
        """What a little more load does not change."""
        return self[:4]


_Entry = tuple[_Standing, Candidate]


def places(candidates: Iterable[Candidate], where: Where) -> list[Place]:
    """The places to try, best first; where the asker is comes first while it may stay."""
    ranked = _ranked(candidates, where)
    at = _at(ranked, where)
    if at is not None and not _should_move(ranked, at, where):
        ranked = [at, *(other for other in ranked if other is not at)]
    return [_place(candidate.report) for _, candidate in ranked]


def moves(candidates: Iterable[Candidate], where: Where) -> list[Place]:
    """The places to go to, best first; none when the asker may stay or nobody has another."""
    ranked = _ranked(candidates, where)
    at = _at(ranked, where)
    if at is not None and not _should_move(ranked, at, where):
        return []
    return [_place(each.report) for _, each in ranked if each.report.name != where.at]


def load_of(report: BrokerReport, role: str = "") -> float:
    """How busy a broker is, 0 to 1 and beyond; its disk counts for those who fill it."""
    busy = max(report.load.cpu, report.load.connections / max(1, report.capacity))
    return max(busy, report.load.disk) if role == "producer" else busy


def region_words(region: str) -> list[str]:
    """The parts of a region, widest first."""
    return [word for word in region.split("-") if word]


def _ranked(candidates: Iterable[Candidate], where: Where) -> list[_Entry]:
    if where.role not in ROLES:
        raise InvalidArgument(f"The role is {where.role!r}; it is one of {', '.join(ROLES)}.")
    known = {each.report.name: each for each in candidates}
    fit = [each for each in known.values() if _fits(each.report, where, known)]
    return sorted(
        ((_standing(each.report, where), each) for each in fit),
        key=lambda entry: (entry[0], entry[1].report.name),
    )


def _fits(report: BrokerReport, where: Where, known: dict[str, Candidate]) -> bool:
    """Whether the asker may go there at all."""
    if not report.serving:
        return False
    if where.role == "producer":
        return report.level == 0
    if where.role == "consumer":
        return True
    return report.level < where.level and not _is_below(report, where.name, known)


def _is_below(report: BrokerReport, name: str, known: dict[str, Candidate]) -> bool:
    """Whether a broker is the named one or, over any number of others, pulls from it."""
    seen: set[str] = set()
    while name and report.name not in seen:
        if report.name == name:
            return True
        seen.add(report.name)
        upstream = known.get(report.upstream)
        if upstream is None:
            return report.upstream == name
        report = upstream.report
    return False


def _standing(report: BrokerReport, where: Where) -> _Standing:
    load = load_of(report, where.role)
    shared, apart = _nearness(where.region, report.region)
    relay = where.role == "relay"
    return _Standing(
        report.name in where.avoid,
        load >= FULL,
        (-report.level, -shared, apart) if relay else (-shared, -report.level, apart),
        not _in_networks(where.addresses, report.networks),
        int(load * _STEPS),
        _hash(where.name, report.name),
    )


def _nearness(one: str, other: str) -> tuple[int, int]:
    """How many words two regions share from the left, and how many they do not."""
    ours, theirs = region_words(one), region_words(other)
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
        shared += 1
    return shared, len(ours) + len(theirs) - 2 * shared


def _in_networks(addresses: list[str], networks: list[str]) -> bool:
    try:
        nets = [ipaddress.ip_network(network, strict=False) for network in networks]
        return any(ipaddress.ip_address(address) in net for address in addresses for net in nets)
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from error


def _hash(*names: str) -> int:
    return xxhash.xxh3_64_intdigest("\0".join(names).encode())


def _at(ranked: list[_Entry], where: Where) -> _Entry | None:
    return next((entry for entry in ranked if entry[1].report.name == where.at), None)


def _should_move(ranked: list[_Entry], at: _Entry, where: Where) -> bool:
    """Whether another is clearly better than where the asker is."""
    standing, here = at
    if standing.avoided:
        return True
    settled = [entry for entry in ranked if entry[1].up_ms >= SETTLED_MS]
    if not settled or settled[0][1] is here:
        return False
    best_standing, best = settled[0]
    load, best_load = load_of(here.report, where.role), load_of(best.report, where.role)
    if best_standing.place > standing.place:
        return False
    if standing.full or best_standing.place == standing.place:
        busy = standing.full or load - best_load >= MARGIN
        return busy and _is_chosen(where, here, load, best_load)
    return best_load <= ROOMY


def _is_chosen(where: Where, here: Candidate, load: float, best_load: float) -> bool:
    """Whether the asker is of the share that makes both equally busy when it moves."""
    share = (load - best_load) / 2 / load if load > 0 else 0.0
    return _hash("moves", where.name, here.report.name) < share * 2**64


def _place(report: BrokerReport) -> Place:
    return Place(report.name, report.url, report.level, report.region)
