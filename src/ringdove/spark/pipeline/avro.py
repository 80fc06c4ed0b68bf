"""Bodies in Avro's binary encoding, read by their schema.

Spark reads Avro with a Java package that does not come with PySpark, so bodies are decoded here, in
Python workers. A body is one record without a header; what follows it makes it invalid.
"""

from __future__ import annotations

import datetime as dt
import json
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf

from ringdove.errors import AvroInvalid, InvalidArgument
from ringdove.spark.pipeline.schema import avro_type, plain_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column

    Reader = Callable[["_Bytes"], Any]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")

#: A number has ten bytes at most.
_SHIFT_MAX = 63


class _Bytes:
    """A body and how far it has been read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise AvroInvalid(f"it ends after {len(self.data)} bytes, within a value")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self, bits: int = 64) -> int:
        """A whole number: seven bits to a byte, the sign in the lowest."""
        shift = found = 0
        while True:
            byte = self.take(1)[0]
            found |= (byte & 0x7F) << shift
            if not byte & 0x80:
                if found >> bits:
                    raise AvroInvalid(f"a number has more than {bits} bits")
                return (found >> 1) ^ -(found & 1)
            shift += 7
            if shift > _SHIFT_MAX:
                raise AvroInvalid("a number has more than ten bytes")

    def counts(self) -> Iterator[int]:
        """The sizes of the blocks of an array or map."""
        while count := self.number():
            if count < 0:
                self.number()  # The bytes of the block, for those who skip it.
            yield abs(count)


def decode(schema: str, body: bytes) -> dict[str, Any]:
    """The record in a body; AvroInvalid if there is none."""
    data = _Bytes(body)
    try:
        found: dict[str, Any] = _reader_of(schema)(data)
    except (UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise AvroInvalid(str(error)) from error
    if data.at != len(body):
        raise AvroInvalid(f"{len(body) - data.at} bytes follow the record")
    return found


def avro_parser(schema: str) -> Callable[[Column], Column]:
    """A function of Spark: bodies in, their fields out.

    A body that is no record has null fields, and `_broken` says why.
    """
    fields = json.loads(schema)["fields"]
    names = ", ".join(f"{field['name']}: {avro_type(field['type'])}" for field in fields)
    kind = pa.struct(
        [
            *((field["name"], _arrow_type(field["type"])) for field in fields),
            ("_broken", pa.string()),
        ]
    )

    def parse(bodies: pa.Array) -> pa.Array:
        return pa.array([_fields(schema, body) for body in bodies.to_pylist()], kind)

    parse.__annotations__ = {"bodies": pa.Array, "return": pa.Array}  # Spark looks at them.
    make = cast("Any", arrow_udf)  # Its own types know only some of the ways to call it.
    made: Callable[[Column], Column] = make(parse, f"STRUCT<{names}, _broken: STRING>")
    return made


def _fields(schema: str, body: bytes) -> dict[str, Any]:
    try:
        return decode(schema, body)
    except AvroInvalid as error:
        return {"_broken": str(error)}


def _arrow_type(kind: Any) -> pa.DataType:
    """Arrow's type for a type of Avro."""
    kind = plain_type(kind)
    name = kind["type"]
    if kind.get("logicalType") in _LOGICAL:
        return pa.date32() if kind["logicalType"] == "date" else pa.timestamp("us", tz="UTC")
    if name == "array":
        return pa.list_(_arrow_type(kind["items"]))
    if name == "map":
        return pa.map_(pa.string(), _arrow_type(kind["values"]))
    if name == "record":
        return pa.struct([(f["name"], _arrow_type(f["type"])) for f in kind["fields"]])
    return _ARROW[name]


@lru_cache(maxsize=16)
def _reader_of(schema: str) -> Reader:
    return _make(json.loads(schema), {})


def _make(kind: Any, named: dict[str, Reader]) -> Reader:
    """A function that reads values of a type; `named` are the types that have a name so far."""
    if isinstance(kind, list):
        options = [_make(option, named) for option in kind]
        return lambda data: _pick(options, data.number())(data)
    if isinstance(kind, str):
        if kind in named:
            return named[kind]
        kind = {"type": kind}
    name = kind["type"]
    if not isinstance(name, str):
        return _make(name, named)
    logical = _LOGICAL.get(kind.get("logicalType"))
    if logical is not None:
        return lambda data: logical(data.number())
    if name in _MAKERS:
        reader = _MAKERS[name](kind, named)
    elif name in _PLAIN:
        reader = _PLAIN[name]
    else:
        raise InvalidArgument(f"The Avro type {name!r} is not known.")
    if "name" in kind:
        named[kind["name"]] = reader
    return reader


def _pick(options: list[Any], number: int) -> Any:
    if not 0 <= number < len(options):
        raise AvroInvalid(f"choice {number} of {len(options)}")
    return options[number]


def _record(kind: Any, named: dict[str, Reader]) -> Reader:
    fields: list[tuple[str, Reader]] = []

    def read(data: _Bytes) -> dict[str, Any]:
        return {name: reader(data) for name, reader in fields}

    named[kind["name"]] = read  # Before its fields: a record may contain itself.
    fields += [(field["name"], _make(field["type"], named)) for field in kind["fields"]]
    return read


def _enum(kind: Any, _: dict[str, Reader]) -> Reader:
    return lambda data: _pick(kind["symbols"], data.number())


def _fixed(kind: Any, _: dict[str, Reader]) -> Reader:
    return lambda data: data.take(kind["size"])


def _array(kind: Any, named: dict[str, Reader]) -> Reader:
    item = _make(kind["items"], named)
    return lambda data: [item(data) for count in data.counts() for _ in range(count)]


def _map(kind: Any, named: dict[str, Reader]) -> Reader:
    value = _make(kind["values"], named)
    return lambda data: [
        (_text(data), value(data)) for count in data.counts() for _ in range(count)
    ]


def _text(data: _Bytes) -> str:
    return data.take(data.number()).decode()


_MAKERS: dict[str, Callable[[Any, dict[str, Reader]], Reader]] = {
    "record": _record, "enum": _enum, "fixed": _fixed, "array": _array, "map": _map,
}  # fmt: skip

_PLAIN: dict[str, Reader] = {
    "null": lambda _: None,
    "boolean": lambda data: data.take(1) != b"\0",
    "int": lambda data: data.number(32),
    "long": _Bytes.number,
    "float": lambda data: _FLOAT.unpack(data.take(4))[0],
    "double": lambda data: _DOUBLE.unpack(data.take(8))[0],
    "bytes": lambda data: data.take(data.number()),
    "string": _text,
}

_ARROW = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(), "enum": pa.string(),
    "fixed": pa.binary(),
}  # fmt: skip

_LOGICAL: dict[str | None, Callable[[int], Any]] = {
    "timestamp-millis": lambda ms: _EPOCH + dt.timedelta(milliseconds=ms),
    "timestamp-micros": lambda us: _EPOCH + dt.timedelta(microseconds=us),
    "date": lambda days: (_EPOCH + dt.timedelta(days=days)).date(),
}
