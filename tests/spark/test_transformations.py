"""The code of a project, function by function on plain tables: no message stops it."""

import datetime as dt
import json
import sys
import types

import pytest

from ringdove import limits
from ringdove.spark.pipeline.scaffold import Plan, write_project
from ringdove.spark.pipeline.schema import make_schema, parse_ddl

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
RAW = (
    "body binary, key binary, attributes map<string,string>, stripe int, priority int, "
    "offset bigint, sent timestamp, stored timestamp, received timestamp"
)
SETTINGS = {"queue": "q", "dead-letters": "d", "results": "r", "files-per-step": "8",
            "duplicates": "1 hour", "window": "1 hour", "late": "2 hours", "url": "u"}  # fmt: skip


class _OneTable:
    """A session whose every table is the same."""

    def __init__(self, spark, frame):
        self.conf = spark.conf
        self._frame = frame
        self.read = self

    def sql(self, _):
        return self._frame

    def table(self, _):
        return self._frame


@pytest.fixture
def load(spark, tmp_path, monkeypatch):
    """Has functions of a module of a project work on a table."""
    undecorated = types.ModuleType("pyspark.pipelines")
    for name in ("table", "append_flow", "materialized_view"):
        setattr(undecorated, name, lambda **_: lambda function: function)
    undecorated.create_sink = lambda *_: None
    monkeypatch.setitem(sys.modules, "pyspark.pipelines", undecorated)
    monkeypatch.setattr("pyspark.pipelines", undecorated, raising=False)
    kind = type(spark.range(0))
    monkeypatch.setattr(kind, "dropDuplicatesWithinWatermark", kind.dropDuplicates)
    for name, value in SETTINGS.items():
        spark.conf.set(f"ringdove.{name}", value)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")

    def loaded(fields, name, frame, form="json"):
        place = tmp_path / f"p{len(list(tmp_path.iterdir()))}"
        schema = make_schema(parse_ddl(fields), {})
        write_project(Plan(place, "file:/x", "q", form, schema))
        found = {"__name__": name}
        code = (place / f"transformations/{name}.py").read_text()
        exec(compile(code, name, "exec"), found)
        found["spark"] = _OneTable(spark, frame)
        return found

    yield loaded
    spark.conf.set("spark.sql.session.timeZone", zone)


def raw(spark, *bodies, key=None, attributes=None):
    rows = [
        (bytearray(body), key, attributes, 0, 0, at, NOW, NOW, NOW)
        for at, body in enumerate(bodies)
    ]
    return spark.createDataFrame(rows, RAW)


def reading(**fields):
    return json.dumps({"device": "a", "sequence": 1, "ts": NOW_MS, "level": 1, **fields}).encode()


def reasons(frame):
    return {row.attributes["offset"]: row.attributes["reason"] for row in frame.collect()}


def test_impossible_times_sequences_and_devices_are_refused_or_told(spark, load):
    bodies = [
        reading(),
        reading(ts=NOW_MS * 1_000_000),
        reading(ts=-(2**63)),
        reading(device="d" * 1025),
        reading(sequence=2**63),
    ]
    made = load("device STRING, sequence BIGINT, ts BIGINT, level BIGINT", "readings",
                raw(spark, *bodies))  # fmt: skip
    assert [row.time for row in made["readings"]().collect()] == [NOW.replace(tzinfo=None)]
    assert reasons(made["refused"]()) == {
        "1": "ts is no time",
        "2": "ts is no time",
        "3": "device is too long",
        "4": "the body is no JSON of the schema",
    }


@pytest.mark.parametrize("kind", ["TIMESTAMP", "STRING"])
def test_ancient_times_stop_nothing(spark, load, tmp_path, kind):
    fields = f"device STRING, sequence BIGINT, ts {kind}, level DOUBLE"
    years = ("-200000", "-290307", "0001")
    bodies = [reading(ts=f"{y}-01-01T00:00:00Z", sequence=n) for n, y in enumerate(years)]
    made = load(fields, "readings", raw(spark, *bodies))
    found = made["readings"]()
    found.write.parquet(str(tmp_path / "out"))
    assert made["refused"]().count() + found.count() == 3
    windows = load(fields, "windows", found)["windows"]()
    windows.write.parquet(str(tmp_path / "windows"))


@pytest.mark.parametrize(
    ("form", "bodies"),
    [
        ("csv", [b"," * 100_000, b"\n" * 100_000, b'"' * 100_001, b""]),
        ("json", [b"[" * 100_000, b'{"level":' * 100_000, reading(level=10**2_000), b""]),
    ],
)
def test_text_that_parsers_dislike_is_refused(spark, load, form, bodies):
    fields = "device STRING, sequence BIGINT, ts BIGINT, level DOUBLE"
    made = load(fields, "readings", raw(spark, *bodies), form)
    assert made["readings"]().count() == 0
    assert len(reasons(made["refused"]())) == len(bodies)


def test_fields_within_fields_are_read_by_their_own_names(spark, load):
    fields = (
        "device STRING, sequence BIGINT, ts TIMESTAMP_NTZ, x INT NOT NULL, at STRUCT<Room: STRING>"
    )
    bodies = [
        reading(ts="2026-03-01T12:00:00", x=1, at={"Room": "hall"}),
        reading(ts="2026-03-01T12:00:00", at={"Room": "hall"}),
    ]
    made = load(fields, "readings", raw(spark, *bodies))
    [row] = made["readings"]().collect()
    assert (row.at.Room, row.time) == ("hall", NOW.replace(tzinfo=None))
    assert made["readings"]().schema["time"].dataType.simpleString() == "timestamp"
    assert reasons(made["refused"]()) == {"1": "x is missing"}


def test_csv_of_many_fields_is_read(spark, load):
    fields = "device STRING, sequence BIGINT, ts BIGINT, level DOUBLE, note STRING"
    body = b'a,1,%d,2.5,"%s"' % (NOW_MS, b"," * 5_000)
    [row] = load(fields, "readings", raw(spark, body), "csv")["readings"]().collect()
    assert (row.device, row.level, row.note) == ("a", 2.5, "," * 5_000)


def test_a_dead_letter_is_one_that_its_queue_takes(spark, load):
    fields = "device STRING, sequence BIGINT, ts BIGINT, level DOUBLE"
    many = {f"a{n}": "v" for n in range(limits.ATTRIBUTES_MAX)}
    [row] = load(fields, "readings", raw(spark, b"{", attributes=many))["refused"]().collect()
    assert len(row.attributes) == limits.ATTRIBUTES_MAX
    assert row.attributes["reason"] == "the body is no JSON of the schema"
    large = {"a": "v" * limits.ATTRIBUTES_BYTES_MAX}
    frame = raw(spark, b"{", attributes=large, key=bytearray(limits.KEY_BYTES_MAX + 1))
    [row] = load(fields, "readings", frame)["refused"]().collect()
    assert row.attributes.keys() == {"reason", "queue", "stripe", "offset"}
    assert (row.key, bytes(row.body)) == (None, b"{")
    again = {"a": "v", "reason": "an old one"}
    frame = raw(spark, b"{", attributes=again, key=bytearray(limits.KEY_BYTES_MAX))
    [row] = load(fields, "readings", frame)["refused"]().collect()
    assert (row.attributes["a"], len(row.attributes), len(row.key)) == ("v", 5, 1024)


def test_what_is_too_large_to_be_told_is_null(spark, load):
    fields = "device STRING, sequence {0}, ts TIMESTAMP, level BIGINT, price DECIMAL(38,18)"
    for kind, most in (("BIGINT", 2**63 - 1), ("INT", 2**31 - 1)):
        rows = spark.sql(
            f"SELECT 'a' device, cast(s AS {kind}) sequence, timestamp'2026-01-01 10:10:00' time, "
            f"9000000000000000000 level, cast('{'9' * 20}' AS DECIMAL(38,18)) price "
            f"FROM VALUES (-1), ({most}), (5) AS t(s)"
        )
        windows = load(fields.format(kind), "windows", rows)["windows"]()
        [row] = windows.collect()
        assert (row.readings, row.level_sum, row.level_max) == (3, None, 9 * 10**18)
        assert row.expected == (None if kind == "BIGINT" else 2**31 + 1)
        [health] = load(fields.format(kind), "health", windows.union(windows))["health"]().collect()
        assert health.missing == (None if kind == "BIGINT" else 2 * (2**31 - 2))
