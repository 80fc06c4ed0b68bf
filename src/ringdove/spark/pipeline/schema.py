"""What is in a message's body: fields and types, as Spark writes them, and what they stand for.

A schema comes as Spark's DDL (`device STRING, sequence BIGINT, ...`) or as an Avro schema.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: Names that say what a field stands for, the likeliest first.
_LIKELY = {
    "device": ("device", "device_id", "deviceid", "meter", "meter_id", "sensor", "sensor_id", "id"),
    "sequence": ("sequence", "sequence_number", "seq", "seq_no", "number", "counter"),
    "time": ("time", "timestamp", "ts", "event_time", "measured_at", "at"),
}

_NUMBERS = re.compile(r"TINYINT|SMALLINT|INT|INTEGER|BIGINT|LONG|FLOAT|DOUBLE|REAL|DECIMAL.*")
_WHOLE = ("TINYINT", "SMALLINT", "INT", "INTEGER", "BIGINT", "LONG")
_FIELD = re.compile(r"(?:`([^`]+)`|(\w+))\s*:?\s+(.+)", re.DOTALL)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")

#: Avro's types in Spark.
_AVRO = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "bytes": "BINARY", "string": "STRING", "enum": "STRING", "fixed": "BINARY",
}  # fmt: skip
_AVRO_LOGICAL = {
    "timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP", "date": "DATE",
}  # fmt: skip


class Field(NamedTuple):
    """A field of a body and its type in Spark, in capitals."""

    name: str
    type: str


class Schema(NamedTuple):
    """The fields of a body, and which of them say who, which and when."""

    fields: tuple[Field, ...]
    device: str
    sequence: str
    time: str
    #: The Avro schema that they were taken from.
    avro: dict[str, Any] | None = None

    @property
    def others(self) -> list[str]:
        """Fields that are neither of the three."""
        return [
            f.name for f in self.fields if f.name not in (self.device, self.sequence, self.time)
        ]

    @property
    def values(self) -> list[str]:
        """Those of them that can be summed up."""
        types = dict(self.fields)
        return [name for name in self.others if _NUMBERS.fullmatch(types[name])]

    @property
    def ddl(self) -> str:
        """As Spark writes it, a line for each field."""
        return ",\n".join(f"    {field.name} {field.type}" for field in self.fields)

    def type_of(self, name: str) -> str:
        """The type of a field."""
        return dict(self.fields)[name]


def read_schema(path: Path, roles: dict[str, str | None]) -> Schema:
    """The schema in a file; `roles` names fields that their names do not tell."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidArgument(f"The schema {path} cannot be read: {error.strerror}.") from error
    if text.lstrip().startswith("{"):
        avro = _avro_record(text, path)
        fields = tuple(Field(f["name"], avro_type(f["type"])) for f in avro["fields"])
        return make_schema(fields, roles, avro)
    return make_schema(parse_ddl(text), roles)


def parse_ddl(text: str) -> tuple[Field, ...]:
    """The fields of `name TYPE, name TYPE, ...`."""
    lines = (line.split("--")[0] for line in text.splitlines())
    fields = []
    for part in _split("\n".join(lines)):
        match = _FIELD.fullmatch(part.strip())
        if match is None:
            raise InvalidArgument(
                f"{part.strip()!r} is no field: write name TYPE, for example 'kwh DOUBLE'."
            )
        fields.append(Field(match[1] or match[2], " ".join(match[3].upper().split())))
    return tuple(fields)


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are not within brackets."""
    depth = begun = 0
    for at, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            yield text[begun:at]
            begun = at + 1
    if text[begun:].strip():
        yield text[begun:]


def make_schema(
    fields: Sequence[Field], roles: dict[str, str | None], avro: dict[str, Any] | None = None
) -> Schema:
    """Decide which field is which."""
    names = [field.name for field in fields]
    for name in names:
        if not _PLAIN_NAME.fullmatch(name) or names.count(name) > 1:
            raise InvalidArgument(f"{name!r} cannot be the name of a field, or is there twice.")
    chosen = {role: _choose(role, roles.get(role), names) for role in _LIKELY}
    schema = Schema(tuple(fields), **chosen, avro=avro)
    taken = {"device", "sequence", "time", "stripe", "offset", "received"} & set(schema.others)
    if taken:
        raise InvalidArgument(
            f"Field {min(taken)!r} would collide with a column of that name in table 'readings': "
            "rename it, or say which field is which with --device, --sequence and --time."
        )
    if schema.type_of(schema.sequence) not in _WHOLE:
        raise InvalidArgument(
            f"Field {schema.sequence!r} is {schema.type_of(schema.sequence)}; a sequence must be "
            "a whole number, for example BIGINT. Name another with --sequence."
        )
    return schema


def _choose(role: str, given: str | None, names: list[str]) -> str:
    if given is not None:
        if given not in names:
            raise InvalidArgument(f"There is no field {given!r} for --{role}: {', '.join(names)}.")
        return given
    for likely in _LIKELY[role]:
        for name in names:
            if name.lower() == likely:
                return name
    raise InvalidArgument(
        f"No field is named like a {role}. Say which one it is: --{role} NAME ({', '.join(names)})."
    )


def _avro_record(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"The schema {path} is no JSON: {error}.") from error
    if found.get("type") != "record" or not found.get("fields"):
        raise InvalidArgument(f"The schema {path} is no Avro record with fields.")
    return dict(found)


def avro_type(kind: Any) -> str:
    """Spark's type for a type of Avro."""
    kind = plain_type(kind)
    name = kind["type"]
    if kind.get("logicalType") in _AVRO_LOGICAL:
        found = _AVRO_LOGICAL[kind["logicalType"]]
    elif name == "array":
        found = f"ARRAY<{avro_type(kind['items'])}>"
    elif name == "map":
        found = f"MAP<STRING, {avro_type(kind['values'])}>"
    elif name == "record":
        inner = ", ".join(f"{f['name']}: {avro_type(f['type'])}" for f in kind["fields"])
        found = f"STRUCT<{inner}>"
    elif name in _AVRO:
        found = _AVRO[name]
    else:
        raise InvalidArgument(f"The Avro type {name!r} is not known, or one named before.")
    return found


def plain_type(kind: Any) -> dict[str, Any]:
    """A type of Avro as an object, without the null that may join it."""
    if isinstance(kind, list):
        rest = [option for option in kind if option != "null"]
        if len(rest) != 1:
            raise InvalidArgument(
                f"The Avro union {kind!r} has no type in Spark; only null may join."
            )
        return plain_type(rest[0])
    if isinstance(kind, str):
        return {"type": kind}
    return dict(kind) if isinstance(kind["type"], str) else plain_type(kind["type"])
