"""Writes a project: the template, with what is known of the queue and its messages filled in."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, NamedTuple

from ringdove.config import absolute_url
from ringdove.errors import InvalidArgument
from ringdove.spark.pipeline.files import spark_path
from ringdove.spark.pipeline.schema import Schema, make_schema, parse_ddl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable
    from pathlib import Path

Format = Literal["json", "csv", "avro"]
Tables = Literal["parquet", "delta"]

#: What a smart meter tells: the energy since its last reading, and what it sees of grid and radio.
METER_FIELDS = """
    device STRING, sequence BIGINT, time TIMESTAMP,
    kwh DOUBLE, voltage DOUBLE, signal_dbm INT
"""
_METER_POSSIBLE = """{
    "kwh": (0, 100),
    "voltage": (0, 500),
    "signal_dbm": (-150, 0),
}"""
_METER_NORMAL = '{"voltage": (207, 253)}'

_NAME = re.compile(r"[a-z][a-z0-9_]*")

#: Databases that Spark has already, elsewhere.
_SPARKS = ("default", "global_temp")

#: Times as Spark writes them.
_INTERVAL = re.compile(r"(\d+ (second|minute|hour|day|week)s?( (?!$)|$))+", re.IGNORECASE)
_SHORT = re.compile(r"(\d+)(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_HOLE = re.compile(r"\{\{(\w+)\}\}")

_SCHEMA = '''\
#: The fields of a message's body.
SCHEMA = """
%s
"""

'''
_PARSE_TEXT = '''\

def parse(body: Column) -> Column:
    """The fields of a body; what does not fit the schema is found in `_broken`."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_broken"}
    text = body.cast("string")
%s    return F.from_%s(text, SCHEMA + ", _broken STRING", options)
'''
_FEW_FIELDS = """\
    # Spark's parser stops the whole step at more than 20,480 fields.
    text = F.when(F.size(F.split(text, ",", 20_001)) <= 20_000, text)
"""
_PARSE_AVRO = """\
#: Reads a body by its schema: one record in Avro's binary encoding, without a header.
parse = avro_parser(Path("schema.avsc").read_text())
"""


_DELTA = """
  # Tables as Delta: Spark needs its jars, for example by
  # spark.jars.packages: io.delta:delta-spark_2.13:VERSION
  spark.sql.extensions: io.delta.sql.DeltaSparkSessionExtension
  spark.sql.catalog.spark_catalog: org.apache.spark.sql.delta.catalog.DeltaCatalog
"""


class Plan(NamedTuple):
    """What is asked for."""

    directory: Path
    url: str
    queue: str
    format: Format = "json"
    schema: Schema | None = None
    tables: Tables = "parquet"
    window: str = "1 hour"
    late: str = "2 hours"


def write_project(plan: Plan) -> list[Path]:
    """Write the project of a plan into a new directory; answers the files."""
    directory = plan.directory.absolute()
    if directory.exists() and any(directory.iterdir()):
        raise InvalidArgument(f"{plan.directory} is there already, and not empty: name another.")
    words = _words(plan)
    written = []
    for source, target in _template():
        path = directory / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_HOLE.sub(lambda hole: words[hole[1]], source.read_text()))
        written.append(path)
    schema = plan.schema
    if schema is not None and schema.avro is not None and plan.format == "avro":
        written.append(directory / "schema.avsc")
        written[-1].write_text(json.dumps(schema.avro, indent=2) + "\n")
    return written


def _template() -> list[tuple[Traversable, str]]:
    """The files of the template, and what they are called in a project."""
    root = files("ringdove.spark.pipeline") / "template"
    inner = root / "transformations"
    code = [(f, f"transformations/{f.name.removesuffix('.in')}") for f in inner.iterdir()]
    return [
        (root / "spark-pipeline.yml", "spark-pipeline.yml"),
        (root / "README.md", "README.md"),
        (root / "gitignore", ".gitignore"),
        *sorted(code, key=lambda pair: pair[1]),
    ]


def _words(plan: Plan) -> dict[str, str]:
    """What the holes of the template are filled with."""
    meters = plan.schema is None
    schema = plan.schema or make_schema(parse_ddl(METER_FIELDS), {})
    if plan.format == "avro" and schema.avro is None:
        raise InvalidArgument("Avro needs its schema: --schema FILE.avsc.")
    if not schema.values:
        raise InvalidArgument("The schema has no field that is a number, so nothing to sum up.")
    directory = plan.directory.absolute()
    name = directory.name.lower().replace("-", "_")
    if not _NAME.fullmatch(name) or name in _SPARKS:
        raise InvalidArgument(
            f"{directory.name!r} cannot be the name of a project: use letters, digits, - and _, "
            f"and none of {', '.join(_SPARKS)}."
        )
    return {
        "name": name,
        "name_quoted": _quoted(name),
        "storage": _quoted(spark_path(directory / "storage")),
        "url": _quoted(absolute_url(plan.url)),
        "queue": _quoted(plan.queue),
        "queue_plain": plan.queue,
        "dead_letters": _quoted(f"{plan.queue}-dead"),
        "results": _quoted(f"{plan.queue}-results"),
        "window": _interval("window", plan.window),
        "late": _interval("late", plan.late),
        "tables": plan.tables,
        "delta": _DELTA if plan.tables == "delta" else "",
        "device": schema.device,
        "sequence": schema.sequence,
        "time": schema.time,
        "required": "".join(f", {json.dumps(name)}" for name in schema.required),
        "fields": _list(schema.others),
        "values": _list(schema.values),
        "possible": _METER_POSSIBLE if meters else "{}",
        "normal": _METER_NORMAL if meters else "{}",
        "time_expression": _time_expression(schema.type_of(schema.time)),
        **_parsing(plan.format, schema),
    }


def _interval(name: str, text: str) -> str:
    """A time as Spark reads it, both in SQL and as a window; 15m, as elsewhere here, will do."""
    found = " ".join(text.split())
    if short := _SHORT.fullmatch(found.lower()):
        found = f"{short[1]} {_UNITS[short[2]]}"
    if not _INTERVAL.fullmatch(found):
        raise InvalidArgument(
            f"--{name} is {text!r}; write for example '15m', '1 hour' or '1 day 12 hours'."
        )
    return found


def _parsing(form: Format, schema: Schema) -> dict[str, str]:
    nested = [field.name for field in schema.fields if "<" in field.type]
    if form == "csv" and nested:
        raise InvalidArgument(
            f"Field {nested[0]!r} is {schema.type_of(nested[0])}, and a field of CSV is one value: "
            "call it STRING."
        )
    if form == "avro":
        imports = "from ringdove.spark.pipeline.avro import avro_parser\n"
        return {
            "paths": "from pathlib import Path\n\n",
            "imports": imports,
            "schema": "",
            "parse": _PARSE_AVRO,
            "broken": 'F.concat(F.lit("the body is no Avro of the schema: "), fields["_broken"])',
        }
    return {
        "paths": "",
        "imports": "",
        "schema": _SCHEMA % schema.ddl,
        "parse": _PARSE_TEXT % (_FEW_FIELDS if form == "csv" else "", form),
        "broken": f'"the body is no {form.upper()} of the schema"',
    }


def _time_expression(kind: str) -> str:
    """How a time is made of what a field holds; null if it holds none."""
    if kind in ("BIGINT", "LONG"):
        # Spark ends the whole step at a number that is no time, such as one of nanoseconds.
        return "F.timestamp_millis(F.when(fields[TIME].between(-(10**13), 10**14), fields[TIME]))"
    if kind == "STRING":
        return "F.try_to_timestamp(fields[TIME])"
    if kind == "TIMESTAMP_NTZ":
        return 'fields[TIME].cast("timestamp")'
    if kind.startswith("TIMESTAMP"):
        return "fields[TIME]"
    raise InvalidArgument(
        f"A time is {kind}; it must be TIMESTAMP, STRING (as ISO 8601 has it) or BIGINT "
        "(milliseconds since 1970). Name another field with --time."
    )


def _list(names: list[str]) -> str:
    return json.dumps(names)


def _quoted(text: str) -> str:
    """As YAML: JSON's strings are among its own."""
    return json.dumps(text)
