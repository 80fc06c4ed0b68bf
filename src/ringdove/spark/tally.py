"""The figures of groups of messages: loss, duplication, order, displacement, latency (B5).

Works on Arrow tables that hold all messages of their groups. The messages that were sent and
received get two numbers: their place among the sends and their place among the receives, both
counted over all groups, one group after the other. That makes the table one permutation. Where the
first i receives are the first i sends, it falls into two that have nothing to do with each other;
so does its longest increasing subsequence, and group borders are such places. What is in its place
is thus counted in one go, and only the stretches in disorder are searched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ringdove.core.consistency import longest_increasing
from ringdove.spark.matching import codes, ints, sorting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ringdove.spark.matching import Ints

#: Shares of the messages, in thousandths, whose latency is told.
PERCENTILES = {"p50": 500, "p90": 900, "p99": 990, "p999": 999, "max": 1000}

#: What is known of each group, after the columns that name it.
FIGURES = pa.schema(
    [
        ("sent", pa.int64()),
        ("received", pa.int64()),
        ("lost", pa.int64()),
        ("loss_rate", pa.float64()),
        ("duplicated", pa.int64()),
        ("duplication_rate", pa.float64()),
        ("unexpected", pa.int64()),
        ("corrupted", pa.int64()),
        ("out_of_order_rate", pa.float64()),
        ("displacement", pa.float64()),
        ("displacement_max", pa.int64()),
        *((f"latency_{name}_us", pa.int64()) for name in PERCENTILES),
        # How many messages are displaced by 0, 1, 2 to 3, 4 to 7 and so on.
        ("displaced", pa.list_(pa.int64())),
    ]
)


def tally(messages: pa.Table, keys: Sequence[str], *, by_sequence: bool = False) -> pa.Table:
    """One row per group of equal `keys`, in the columns `keys` and those of FIGURES.

    `messages` has the columns of MESSAGES. The right order is that of the send times, or, for
    groups of one producer, of its sequence; between equals, that of producer and sequence, or of
    receiver and arrival.
    """
    group, sample = _grouped(messages, keys)
    count = len(sample)
    was_sent = messages["sent_us"].is_valid().to_numpy()
    was_received = messages["received_us"].is_valid().to_numpy()
    receives = ints(messages["receives"])

    sent = np.bincount(group[was_sent], minlength=count)
    received = _sums(group, receives, count)
    delivered = np.bincount(group[was_sent & was_received], minlength=count)
    duplicated = received - np.bincount(group[was_received], minlength=count)
    unexpected = np.bincount(group[was_received & ~was_sent], minlength=count)

    both = messages.filter(pa.array(was_sent & was_received))
    own = group[was_sent & was_received]
    order = _order(both, own, delivered, by_sequence=by_sequence)
    latency_us = ints(both["received_us"]) - ints(both["sent_us"])
    return pa.table(
        [
            *(messages[key].take(pa.array(sample)) for key in keys),
            pa.array(sent),
            pa.array(received),
            pa.array(sent - delivered),
            pa.array(_rates(sent - delivered, sent)),
            pa.array(duplicated),
            pa.array(_rates(duplicated, received)),
            pa.array(unexpected),
            pa.array(_sums(group, ints(messages["corrupted"]), count)),
            *order[:3],
            *_percentiles(latency_us, own, delivered),
            order[3],
        ],
        schema=pa.schema([*(messages.schema.field(key) for key in keys), *FIGURES]),
    )


def _grouped(messages: pa.Table, keys: Sequence[str]) -> tuple[Ints, Ints]:
    """The number of each row's group, and a row of each group."""
    group = np.zeros(len(messages), np.int64)
    for key in keys:
        column = messages[key]
        values = codes(column) if pa.types.is_string(column.type) else ints(column)
        _, values = np.unique(values, return_inverse=True)
        group = group * (values.max(initial=0) + 1) + values
    _, sample, numbers = np.unique(group, return_index=True, return_inverse=True)
    return numbers, sample


def _sums(group: Ints, values: Ints, count: int) -> Ints:
    found = np.zeros(count, np.int64)
    np.add.at(found, group, values)
    return found


def _rates(part: Ints, whole: Ints) -> NDArray[np.float64]:
    """Shares; of nothing, 0."""
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def _order(
    messages: pa.Table, group: Ints, sizes: Ints, *, by_sequence: bool
) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """Out-of-order rate, mean and largest displacement, and its distribution, by group."""
    sends = [ints(messages["sent_us"]), codes(messages["producer"]), ints(messages["sequence"])]
    if by_sequence:
        sends = [sends[2], sends[0]]
    rank = np.empty(len(group), np.int64)
    rank[sorting(group, *sends)] = np.arange(len(group))
    arrived = sorting(
        group,
        ints(messages["received_us"]),
        codes(messages["receiver"]),
        ints(messages["arrival"]),
    )
    ranks, group = rank[arrived], group[arrived]
    displaced = np.abs(ranks - np.arange(len(ranks)))
    longest = increasing_by_group(ranks, group, len(sizes))
    most = np.zeros(len(sizes), np.int64)
    np.maximum.at(most, group, displaced)
    return (
        pa.array(np.where(sizes > 0, 1 - longest / np.maximum(sizes, 1), 0.0)),
        pa.array(_rates(_sums(group, displaced, len(sizes)), sizes)),
        pa.array(most),
        _distributions(displaced, group, len(sizes)),
    )


def increasing_by_group(ranks: Ints, group: Ints, count: int) -> Ints:
    """The length of the longest increasing subsequence of each group.

    `ranks` is a permutation of 0 to n - 1 whose groups follow each other, in values as in places.
    """
    # A stretch ends where as many have come as the largest of them says.
    ends = np.flatnonzero(np.maximum.accumulate(ranks) == np.arange(len(ranks))) + 1
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    lengths = np.where(ends - starts == 1, 1, 0)
    for stretch in np.flatnonzero(ends - starts > 1).tolist():
        lengths[stretch] = longest_increasing(ranks[starts[stretch] : ends[stretch]].tolist())
    return _sums(group[starts], lengths, count)


def _distributions(displaced: Ints, group: Ints, count: int) -> pa.Array:
    _, bucket = np.frexp(displaced.astype(np.float64))
    width = int(bucket.max(initial=0)) + 1
    found = np.bincount(group * width + bucket, minlength=count * width)
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(found))


def _percentiles(latency_us: Ints, group: Ints, sizes: Ints) -> list[pa.Array]:
    """The smallest latencies that the shares of each group's messages do not exceed."""
    ordered = latency_us[sorting(group, latency_us)]
    starts = np.cumsum(sizes) - sizes
    nothing = sizes == 0
    found = []
    for share in PERCENTILES.values():
        at = np.where(nothing, 0, starts + (sizes * share + 999) // 1000 - 1)
        values = ordered[at] if len(ordered) else np.zeros(len(sizes), np.int64)
        found.append(pa.array(values, mask=nothing))
    return found
