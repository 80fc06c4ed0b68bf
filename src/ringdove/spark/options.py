"""What `spark.read.format("ringdove").option(...)` and `df.write...` may be told."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from ringdove.errors import InvalidArgument
from ringdove.stores.base import Start

if TYPE_CHECKING:
    from collections.abc import Mapping

_KNOWN = (
    "url", "queue", "subscription", "start", "rowspertrigger", "rowsperpartition", "trimmed",
    "producer", "path",
)  # fmt: skip

#: Rows that one task reads at most, so that large ranges are read by several.
ROWS_PER_PARTITION = 4_000_000


class Options(NamedTuple):
    """The options of a source or sink, read and checked."""

    url: str
    queue: str
    #: A subscription that is told how far a stream has come, so that messages may be trimmed.
    subscription: str | None
    start: Start
    #: Rows of one micro-batch at most; None: everything there is.
    rows_per_trigger: int | None
    rows_per_partition: int
    #: What to do when messages that are asked for have been trimmed.
    trimmed: Literal["fail", "skip"]
    #: Who writes, where batches are to be told apart by somebody else than Spark.
    producer: str | None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Take the options from Spark, which has names in lower case."""
        found = {name.lower(): value for name, value in given.items()}
        for name in found:
            if name not in _KNOWN:
                near = difflib.get_close_matches(name, _KNOWN, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(_KNOWN)}."
                raise InvalidArgument(f"There is no option {name!r} of format 'ringdove'.{hint}")
        queue = found.get("queue") or found.get("path")
        if not queue:
            raise InvalidArgument(
                "Name a queue: .option('queue', 'readings') or .load('readings')."
            )
        trimmed = found.get("trimmed", "fail")
        if trimmed not in ("fail", "skip"):
            raise InvalidArgument(f"Option trimmed is {trimmed!r}; it must be 'fail' or 'skip'.")
        return cls(
            found.get("url") or "file:./ringdove-data",
            queue,
            found.get("subscription"),
            parse_start(found.get("start", "earliest")),
            _count(found, "rowspertrigger"),
            _count(found, "rowsperpartition") or ROWS_PER_PARTITION,
            cast("Literal['fail', 'skip']", trimmed),
            found.get("producer"),
        )


def parse_start(text: str) -> Start:
    """`earliest`, `latest`, `offset:7`, or `time:MILLISECONDS since 1970`."""
    kind, colon, value = text.partition(":")
    if kind in ("earliest", "latest") and not colon:
        return Start(kind)
    if kind in ("offset", "time") and value.isdecimal():
        return Start(kind, int(value))
    raise InvalidArgument(
        f"Option start is {text!r}; it must be 'earliest', 'latest', 'offset:NUMBER' or "
        "'time:MILLISECONDS'."
    )


def _count(found: Mapping[str, str], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise InvalidArgument(f"Option {name} is {value!r}; it must be a number above 0.")
    return int(value)
