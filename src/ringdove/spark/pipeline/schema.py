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

_WHOLE = ("TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG")
_DECIMAL = re.compile(r"(DECIMAL|DEC|NUMERIC) ?(\( ?\d+ ?(, ?\d+ ?)?\))?")
_FLOATING = ("FLOAT", "REAL", "DOUBLE")
_OTHERS = ("BOOLEAN", "STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ")
_NESTED = re.compile(r"(ARRAY|MAP|STRUCT) ?<(.*)>", re.DOTALL | re.IGNORECASE)
_FIELD = re.compile(r"(?:`([^`]+)`|(\w+))(?:\s*:\s*|\s+)(.+)", re.DOTALL)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")

#: What may follow a type. A comment is for people, and stays in their file.
_COMMENT = re.compile(r"""\s+COMMENT\s+('([^'\\]|\\.)*'|"([^"\\]|\\.)*")$""", re.IGNORECASE)
_NOT_NULL = re.compile(r"\s+NOT\s+NULL$", re.IGNORECASE)

#: Columns of table `readings` that are not fields of the body, and one that its making needs.
_COLUMNS = ("device", "sequence", "time", "stripe", "offset", "received", "_broken")

#: Avro's types in Spark.
_AVRO = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE",
    "bytes": "BINARY", "string": "STRING", "enum": "STRING", "fixed": "BINARY",
}  # fmt: skip
_AVRO_LOGICAL = {
    "timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP", "date": "DATE",
}  # fmt: skip


class Field(NamedTuple):
    """A field of a body and its type in Spark, in capitals but for names within it."""

    name: str
    type: str
    #: Whether a body without it is no reading.
    required: bool = False


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
        return [name for name in self.others if _is_number(self.type_of(name))]

    @property
    def required(self) -> list[str]:
        """Those of them that must be there."""
        required = {field.name for field in self.fields if field.required}
        return [name for name in self.others if name in required]

    @property
    def ddl(self) -> str:
        """As Spark writes it, a line for each field."""
        return ",\n".join(f"    {field.name} {field.type}" for field in self.fields)

    def type_of(self, name: str) -> str:
        """The type of a field."""
        return next(field.type for field in self.fields if field.name == name)


def read_schema(path: Path, roles: dict[str, str | None]) -> Schema:
    """The schema in a file; `roles` names fields that their names do not tell."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidArgument(f"The schema {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"The schema {path} is no text in UTF-8: {error}.") from error
    if text.lstrip().startswith("{"):
        avro = _avro_record(text, path)
        try:
            fields = tuple(Field(f["name"], avro_type(f["type"])) for f in avro["fields"])
        except (KeyError, TypeError) as error:
            raise InvalidArgument(f"The schema {path} is no Avro record: {error!r}.") from error
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
        kind = _COMMENT.sub("", match[3])
        required = _NOT_NULL.search(kind) is not None
        name = match[1] or match[2]
        fields.append(Field(name, _type(_NOT_NULL.sub("", kind), name), required))
    return tuple(fields)


def _type(text: str, name: str) -> str:
    """A type in capitals; names within it are those of the body, and stay as they are."""
    found = " ".join(text.split())
    nested = _NESTED.fullmatch(found)
    if nested is None:
        found = found.upper()
        if _is_number(found) or found in _OTHERS:
            return found
        raise InvalidArgument(
            f"Field {name!r} is {found}, which is no type of a field: write {', '.join(_OTHERS)}, "
            f"{', '.join(_WHOLE)}, {', '.join(_FLOATING)}, DECIMAL(p, s), ARRAY<...>, "
            "MAP<..., ...> or STRUCT<name: TYPE, ...>, with a comma after each field."
        )
    kind = nested[1].upper()
    if kind == "STRUCT":
        inner = [f"{_quoted(own.name)}: {own.type}" for own in parse_ddl(nested[2])]
    else:
        inner = [_type(part, name) for part in _split(nested[2])]
    return f"{kind}<{', '.join(inner)}>"


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name}`"


def _is_number(kind: str) -> bool:
    return kind in _WHOLE or kind in _FLOATING or _DECIMAL.fullmatch(kind) is not None


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are not within brackets or quotes."""
    depth = begun = 0
    quote = ""
    for at, letter in enumerate(text):
        if quote or letter in "'\"":
            quote = "" if letter == quote else quote or letter
            continue
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
    lower = [name.lower() for name in names]  # Spark does not tell them apart by case.
    for name in names:
        if not _PLAIN_NAME.fullmatch(name) or lower.count(name.lower()) > 1:
            raise InvalidArgument(f"{name!r} cannot be the name of a field, or is there twice.")
    chosen = {role: _choose(role, roles.get(role), names) for role in _LIKELY}
    schema = Schema(tuple(fields), **chosen, avro=avro)
    taken = [name for name in schema.others if name.lower() in _COLUMNS]
    if taken:
        raise InvalidArgument(
            f"Field {taken[0]!r} would collide with a column of that name in table 'readings': "
            "rename it, or say which field is which with --device, --sequence and --time."
        )
    if schema.type_of(schema.sequence) not in _WHOLE:
        raise InvalidArgument(
            f"Field {schema.sequence!r} is {schema.type_of(schema.sequence)}; a sequence must be "
            "a whole number, for example BIGINT. Name another with --sequence."
        )
    if "<" in schema.type_of(schema.device):
        raise InvalidArgument(
            f"Field {schema.device!r} is {schema.type_of(schema.device)}; a device must be one "
            "value, for example STRING. Name another with --device."
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
    if found.get("type") != "record" or not isinstance(found.get("fields"), list):
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
