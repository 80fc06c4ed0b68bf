"""What `spark.read.format("ringdove").option(...)` and `df.write...` may be told."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

from ringdove.config import DATA_DEFAULT, absolute_url
from ringdove.core.compression import CODEC_NUMBERS
from ringdove.core.dedup import PRODUCER_BYTES_MAX
from ringdove.errors import InvalidArgument
from ringdove.spark.columns import COLUMNS
from ringdove.stores.base import Start

if TYPE_CHECKING:
    from collections.abc import Mapping

_KNOWN = (
    "url", "queue", "tlsCa", "tlsCert", "tlsKey",
    "subscription", "start", "columns", "trimmed",
    "rowsPerTrigger", "bytesPerTrigger", "rowsPerPartition",
    "producer", "batch", "split", "compression",
)  # fmt: skip
_NAMES = {name.lower(): name for name in _KNOWN}

#: Options that Spark hands on although they are its own.
_SPARKS = ("path", "checkpointlocation", "queryname")

#: Rows that one task reads at most, so that large ranges are read by several. Which rows a task
#: gets follows from it, so a batch that is repeated is cut as it was the first time.
ROWS_PER_PARTITION = 1_000_000

#: Batches of one producer: more than a stream of ten per second has in six years, and enough for
#: batches that are named after a second or an hour. The more there are, the fewer numbers each has.
BATCHES_MAX = 1 << 31

#: Bytes of a producer's name as it is given; partition and stripe are added to it.
_PRODUCER_BYTES_MAX = PRODUCER_BYTES_MAX - 16


class Place(NamedTuple):
    """Where queues are, and what a connection there needs."""

    url: str
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


class Options(NamedTuple):
    """The options of a source or sink, read and checked."""

    place: Place
    queue: str
    #: A subscription that is told how far a stream has come, so that messages may go.
    subscription: str | None = None
    #: Where to begin; None: where the subscription is, or at the first message there is.
    start: Start | None = None
    columns: tuple[str, ...] = tuple(COLUMNS)
    #: Whether messages that are asked for and no longer there are left out, or an error.
    skip_trimmed: bool = False
    #: Rows and bytes of one micro-batch at most; None: everything there is.
    rows_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    rows_per_partition: int = ROWS_PER_PARTITION
    #: Who writes, and which of its batches this is, where somebody else than Spark knows it.
    producer: str | None = None
    batch: int = 0
    #: Whether a task may write more than goes in one step, and has its rows sorted for that.
    split: bool = False
    split_sorted: bool = False
    compression: str = "none"

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Take the options from Spark, in whichever case their names are."""
        found: dict[str, str] = {}
        for told, value in given.items():
            name = told.lower()
            if name in _NAMES:
                found[_NAMES[name]] = value
            elif name not in _SPARKS:
                raise _unknown(told)
        queue = found.get("queue") or given.get("path")
        if not queue:
            raise InvalidArgument(
                "Name a queue: .option('queue', 'readings'), or .load('readings')."
            )
        place = Place(
            absolute_url(found.get("url") or f"file:{DATA_DEFAULT}"),
            found.get("tlsCa"),
            found.get("tlsCert"),
            found.get("tlsKey"),
        )
        split = _choice(found, "split", ("false", "true", "sorted"))
        return cls(
            place,
            queue,
            found.get("subscription"),
            parse_start(found["start"]) if "start" in found else None,
            _columns(found.get("columns")),
            _choice(found, "trimmed", ("fail", "skip")) == "skip",
            _count(found, "rowsPerTrigger"),
            _count(found, "bytesPerTrigger"),
            _count(found, "rowsPerPartition") or ROWS_PER_PARTITION,
            _producer(found),
            _count(found, "batch", least=0, most=BATCHES_MAX - 1) or 0,
            split != "false",
            split == "sorted",
            _choice(found, "compression", tuple(CODEC_NUMBERS)),
        )


def _unknown(name: str) -> InvalidArgument:
    if name == "provider":  # A property of every table in Spark's catalog.
        return InvalidArgument(
            "Spark gives CREATE TABLE's options to no Python source when the table is read: use "
            "CREATE TEMPORARY VIEW name USING ringdove OPTIONS (...)."
        )
    near = difflib.get_close_matches(name.lower(), _NAMES, n=1)
    hint = f"Did you mean {_NAMES[near[0]]!r}?" if near else f"Known: {', '.join(_KNOWN)}."
    return InvalidArgument(f"There is no option {name!r} of format 'ringdove'. {hint}")


def parse_start(text: str) -> Start:
    """`earliest`, `latest`, `offset:7`, or `time:MILLISECONDS since 1970`."""
    kind, colon, value = text.partition(":")
    if kind in ("earliest", "latest") and not colon:
        return Start(kind)
    if kind in ("offset", "time") and value.isdecimal():
        return Start(kind, int(value))
    raise InvalidArgument(
        f"Option 'start' is {text!r}; it must be 'earliest', 'latest', 'offset:NUMBER' or "
        "'time:MILLISECONDS' (since 1970)."
    )


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return tuple(COLUMNS)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise InvalidArgument(
                f"A queue has no column {name!r}; its columns are {', '.join(COLUMNS)}."
            )
        if names.count(name) > 1:
            raise InvalidArgument(f"Option 'columns' is {text!r}; it names {name!r} twice.")
    return names


def _choice(found: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of some values, by default the first."""
    value = found.get(name, choices[0]).lower()
    if value not in choices:
        raise InvalidArgument(
            f"Option {name!r} is {found[name]!r}; it must be one of {', '.join(choices)}."
        )
    return value


def _producer(found: Mapping[str, str]) -> str | None:
    name = found.get("producer")
    if name is None and "batch" in found:
        raise InvalidArgument(
            f"Option 'batch' is {found['batch']!r}, and nothing would be recognised by it: it is "
            "the batch of a producer. Name that, too, by .option('producer', ...)."
        )
    if name is not None and not 0 < len(name.encode()) <= _PRODUCER_BYTES_MAX:
        raise InvalidArgument(
            f"Option 'producer' is {name!r}; it must have 1 to {_PRODUCER_BYTES_MAX} bytes."
        )
    return name


def _count(
    found: Mapping[str, str], name: str, least: int = 1, most: int | None = None
) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < least or (most is not None and int(value) > most):
        bounds = f"from {least} up" if most is None else f"from {least} to {most}"
        raise InvalidArgument(f"Option {name!r} is {value!r}; it must be a number {bounds}.")
    return int(value)
