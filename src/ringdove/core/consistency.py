"""The consistency metrics of B5, as pure functions over what was sent and what was received.

Messages are named by whatever identifies them (any hashable value). All functions take sequences
and give numbers or plain records; demo, benchmarks, tests and the trace analytics use the same
ones.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


class Consistency(NamedTuple):
    """How faithfully a queue delivered one sequence of messages."""

    sent: int
    received: int
    #: Messages sent and never received, as a count and a share of those sent.
    lost: int
    loss_rate: float
    #: Receives beyond the first of each message, as a count and a share of all receives.
    duplicated: int
    duplication_rate: float
    #: Messages received that nobody sent.
    unexpected: int
    #: 1 - longest increasing subsequence / n, duplicates and losses left out.
    out_of_order_rate: float
    #: Mean |position received - correct position|, duplicates and losses left out.
    displacement: float


def measure(sent: Iterable[Hashable], received: Iterable[Hashable]) -> Consistency:
    """All metrics at once; `sent` and `received` in the order it happened.

    Of a message that was sent several times the first send counts.
    """
    rank = {message: position for position, message in enumerate(dict.fromkeys(sent))}
    arrivals = list(received)
    distinct = list(dict.fromkeys(arrivals))
    ranks = [rank[message] for message in distinct if message in rank]
    duplicated = len(arrivals) - len(distinct)
    lost = len(rank) - len(ranks)
    return Consistency(
        sent=len(rank),
        received=len(arrivals),
        lost=lost,
        loss_rate=lost / len(rank) if rank else 0.0,
        duplicated=duplicated,
        duplication_rate=duplicated / len(arrivals) if arrivals else 0.0,
        unexpected=len(distinct) - len(ranks),
        out_of_order_rate=out_of_order_rate(ranks),
        displacement=average_displacement(ranks),
    )


def longest_increasing(ranks: Sequence[int]) -> int:
    """Length of the longest strictly increasing subsequence, in O(n log n)."""
    ends: list[int] = []
    for rank in ranks:
        if not ends or rank > ends[-1]:
            ends.append(rank)
        else:
            ends[bisect_left(ends, rank)] = rank
    return len(ends)


def out_of_order_rate(ranks: Sequence[int]) -> float:
    """Share of messages that would have to be taken out to leave an ordered sequence."""
    return 1 - longest_increasing(ranks) / len(ranks) if ranks else 0.0


def average_displacement(ranks: Sequence[int]) -> float:
    """Mean distance between where a message arrived and where order would have put it."""
    if not ranks:
        return 0.0
    right_place = {rank: position for position, rank in enumerate(sorted(ranks))}
    return sum(abs(at - right_place[rank]) for at, rank in enumerate(ranks)) / len(ranks)
