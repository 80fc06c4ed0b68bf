"""What `ringdove pipeline init` writes, without running it."""

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

import ringdove
from cli.shell import Shell
from ringdove.cli import EXIT_REFUSED
from ringdove.config import directory_of
from ringdove.errors import InvalidArgument, QueueNotFound
from ringdove.spark import links
from ringdove.spark.options import Options
from ringdove.spark.pipeline.project import Project, make_queues
from ringdove.spark.pipeline.sample import make_samples
from ringdove.spark.pipeline.scaffold import Plan, write_project
from ringdove.spark.pipeline.schema import make_schema, parse_ddl, read_schema
from ringdove.spark.pipeline.status import tables
from server.running import run_command


@pytest.fixture
def shell(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Shell(capfd, monkeypatch, tmp_path / "data")


def test_a_project_says_where_its_queues_are(shell, tmp_path):
    shell("pipeline", "init", "my-meters", "--queue", "power")
    project = Project.open(tmp_path / "my-meters")
    assert project.name == "my_meters"
    assert project.url == f"file:{tmp_path}/data"
    assert (project.queue, project.dead_letters, project.results) == (
        "power",
        "power-dead",
        "power-results",
    )
    assert project.storage == tmp_path / "my-meters" / "storage"
    assert not project.delta


@pytest.mark.parametrize(
    ("url", "place"),
    [("file:{}/100%25/data", "100%/data"), ("file://localhost{}/plain/data", "plain/data")],
)
def test_a_project_finds_the_directory_that_its_url_names(tmp_path, monkeypatch, url, place):
    write_project(Plan(tmp_path / "meters", url.format(tmp_path), "power"))
    monkeypatch.setattr(links, "find_or_start", lambda directory, _: directory)
    assert links.served_url(Project.open(tmp_path / "meters").url) == tmp_path / place


@pytest.mark.parametrize("form", ["json", "csv", "avro"])
def test_what_is_written_is_tidy_code(shell, tmp_path, form):
    avro = {"type": "record", "name": "R", "fields": [
        {"name": "id", "type": "string"}, {"name": "seq", "type": "int"},
        {"name": "ts", "type": "long"}, {"name": "level", "type": ["null", "float"]},
    ]}  # fmt: skip
    (tmp_path / "fields").write_text(
        json.dumps(avro) if form == "avro" else "meter STRING, number INT, at TIMESTAMP, x DOUBLE"
    )
    shell("pipeline", "init", "made", "--schema", "fields", "--format", form)
    left = subprocess.run(["grep", "-r", "{{", "made"], capture_output=True, check=False).stdout
    assert left == b""
    ruff = [sys.executable, "-m", "ruff"]
    long = ["--isolated", "--line-length", "100", "made"]
    subprocess.run([*ruff, "check", "--select", "E,F,I,UP,B", *long], check=True)
    subprocess.run([*ruff, "format", "--check", *long], check=True)


def test_a_directory_that_is_not_empty_is_left_alone(shell, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("everything")
    shell("pipeline", "init", "mine", code=EXIT_REFUSED)
    assert "not empty" in shell.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis"]


def test_delta_is_an_option(shell, tmp_path):
    shell("pipeline", "init", "lake", "--tables", "delta")
    assert Project.open(tmp_path / "lake").delta
    spec = yaml.safe_load((tmp_path / "lake" / "spark-pipeline.yml").read_text())
    assert "DeltaCatalog" in spec["configuration"]["spark.sql.catalog.spark_catalog"]
    assert 'format="delta"' in (tmp_path / "lake/transformations/readings.py").read_text()


def test_a_directory_without_a_project_is_named(shell):
    for command in ("run", "status", "sample"):
        shell("pipeline", command, code=EXIT_REFUSED)
        assert "There is no spark-pipeline.yml" in shell.err


@pytest.fixture
def run_once(shell, tmp_path):
    """A project with a table of one row, as a run leaves it."""
    shell("pipeline", "init", "meters")
    project = Project.open(tmp_path / "meters")
    table = project.tables / "raw"
    (table / "_spark_metadata").mkdir(parents=True)
    parquet.write_table(pa.table({"body": [b"x"]}), table / "part.parquet")
    added = {"path": (table / "part.parquet").as_uri(), "action": "add"}
    (table / "_spark_metadata" / "0").write_text(f"v1\n{json.dumps(added)}")
    commits = project.checkpoints / "spark_catalog" / "meters" / "raw" / "raw" / "0" / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()
    with project.claimed():
        pass
    return project


def test_tables_are_not_run_without_their_checkpoints(run_once, tmp_path):
    assert tables(run_once)[0]["rows"] == 1
    run_once.directory.rename(tmp_path / "moved")
    moved = Project.open(tmp_path / "moved")
    with pytest.raises(InvalidArgument, match="was the project moved"), moved.claimed():
        pass
    assert not run_once.directory.exists()
    assert tables(moved)[0]["rows"] == 0  # Its log has the files of the old place.


def test_checkpoints_are_not_run_without_their_tables(run_once):
    shutil.rmtree(run_once.tables)
    with pytest.raises(InvalidArgument, match="'raw' is gone"), run_once.claimed():
        pass
    shutil.rmtree(run_once.storage)
    with run_once.claimed():
        pass


def test_fields_are_known_by_their_names():
    ddl = "METER_ID string, -- who\n `seq` int, ts bigint, price DECIMAL(10,2), s STRUCT<a: INT, b: INT>"
    schema = make_schema(parse_ddl(ddl), {})
    assert (schema.device, schema.sequence, schema.time) == ("METER_ID", "seq", "ts")
    assert schema.others == ["price", "s"]
    assert schema.values == ["price"]
    assert schema.type_of("s") == "STRUCT<a: INT, b: INT>"


def test_a_schema_may_be_written_as_spark_prints_it():
    ddl = (
        "device STRING NOT NULL COMMENT 'who, exactly', seq bigint NOT NULL, ts TIMESTAMP, "
        "kwh DOUBLE NOT NULL, place STRUCT<Room: STRING NOT NULL, `floor no`: int>, tags map<string,array<int>>"
    )
    schema = make_schema(parse_ddl(ddl), {})
    assert [field.type for field in schema.fields] == [
        "STRING", "BIGINT", "TIMESTAMP", "DOUBLE", "STRUCT<Room: STRING, `floor no`: INT>",
        "MAP<STRING, ARRAY<INT>>",
    ]  # fmt: skip
    assert (schema.values, schema.required) == (["kwh"], ["kwh"])


@pytest.mark.parametrize(
    ("ddl", "roles", "reason"),
    [
        ("a STRING, seq INT, ts TIMESTAMP", {}, "No field is named like a device"),
        ("a STRING, seq INT, ts TIMESTAMP", {"device": "b"}, "There is no field 'b'"),
        ("device STRING, seq STRING, ts TIMESTAMP", {}, "whole number"),
        ("device STRING, seq INT, time TIMESTAMP, at DATE", {"time": "at"}, "collide"),
        ("device STRING, device INT", {}, "twice"),
        ("device", {}, "is no field"),
        ("device STRING, seq INT, ts TIMESTAMP, v INT, V INT", {}, "twice"),
        ("device STRING, seq INT, ts TIMESTAMP, Offset INT", {}, "collide"),
        ("device STRING, seq INT, ts TIMESTAMP, v DUBLE", {}, "Field 'v' is DUBLE"),
        ("device STRING, seq INT, ts TIMESTAMP, v ARRAY<DUBLE>", {}, "Field 'v' is DUBLE"),
        ("device STRING\nseq INT\nts TIMESTAMP", {}, "a comma after each field"),
        ("device ARRAY<STRING>, seq INT, ts TIMESTAMP", {}, "a device must be one value"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(ddl, roles, reason):
    with pytest.raises(InvalidArgument, match=reason):
        make_schema(parse_ddl(ddl), roles)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b'{"type": "record", "name": "R", "fields": [{"nam": "id"}]}', b"{"]
)
def test_a_file_that_is_no_schema_is_refused(shell, tmp_path, content):
    (tmp_path / "fields").write_bytes(content)
    shell("pipeline", "init", "made", "--schema", "fields", code=EXIT_REFUSED)
    assert "The schema fields is no" in shell.err


def test_csv_has_no_nested_fields(shell, tmp_path):
    (tmp_path / "fields").write_text("id STRING, seq INT, ts TIMESTAMP, x INT, a ARRAY<INT>")
    shell("pipeline", "init", "made", "--schema", "fields", "--format", "csv", code=EXIT_REFUSED)
    assert "a field of CSV is one value" in shell.err


def test_times_are_written_as_spark_reads_them(shell, tmp_path):
    shell("pipeline", "init", "short", "--window", "15m", "--late", "1 day  12 hours")
    settings = Project.open(tmp_path / "short").settings
    assert (settings["ringdove.window"], settings["ringdove.late"]) == (
        "15 minutes",
        "1 day 12 hours",
    )
    shell("pipeline", "init", "wrong", "--late", "soon", code=EXIT_REFUSED)
    assert "--late is 'soon'" in shell.err


def test_a_format_that_is_named_is_the_one(shell, tmp_path):
    fields = [{"name": name, "type": "long"} for name in ("id", "seq", "ts", "level")]
    (tmp_path / "s.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": fields}))
    for form, parser in (("json", "from_json"), (None, "avro_parser")):
        named = ["--format", form] if form else []
        shell("pipeline", "init", f"made-{form}", "--schema", "s.avsc", *named)
        assert parser in (tmp_path / f"made-{form}/transformations/readings.py").read_text()


@pytest.mark.parametrize("name", ["default", "two words", "8ball"])
def test_a_name_that_spark_cannot_use_is_refused(shell, name):
    shell("pipeline", "init", name, code=EXIT_REFUSED)
    assert f"{name!r} cannot be the name" in shell.err


def test_names_that_mean_something_in_yaml_are_names(shell, tmp_path):
    shell("pipeline", "init", "yes")
    spec = yaml.safe_load((tmp_path / "yes" / "spark-pipeline.yml").read_text())
    assert (spec["name"], spec["database"]) == ("yes", "yes")


def test_directories_have_the_same_name_for_spark_and_for_us(shell, tmp_path):
    place, data = tmp_path / "Jürgen's", tmp_path / "my things, 100%"
    data.mkdir()
    shell.directory = data
    shell("pipeline", "init", str(place / "meters"))
    project = Project.open(place / "meters")
    spec = yaml.safe_load((place / "meters" / "spark-pipeline.yml").read_text())
    assert spec["storage"] == f"file://{place}/meters/storage"  # Spark takes %20 for a name.
    assert project.storage == place / "meters" / "storage"
    sampled = run_command("pipeline", "sample", str(place / "meters"), "--count", "10")
    assert sampled.returncode == 0, sampled.stderr.decode()
    named = Options.read({"url": project.url, "queue": "q"}).place.url
    assert directory_of(named) == data
    assert (data / "format").exists()


def test_a_path_that_spark_cannot_use_is_refused(shell, tmp_path):
    shell("pipeline", "init", "my things/meters", code=EXIT_REFUSED)
    assert "has ' ' in it" in shell.err
    shell("pipeline", "init", "meters")
    (tmp_path / "meters").rename(tmp_path / "100%")
    with pytest.raises(InvalidArgument, match="has '%' in it"):
        Project.open(tmp_path / "100%")


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("configuration:", "configuraton:", "does not say what configuration is"),
        ("configuration:", "configuration: [", "while parsing"),
        ("storage: ", "storage: hdfs:", "must be a path"),
    ],
)
def test_a_specification_that_cannot_be_used_is_refused(shell, tmp_path, was, becomes, said):
    shell("pipeline", "init", "meters")
    spec = tmp_path / "meters" / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace(was, becomes))
    with pytest.raises(InvalidArgument, match=said):
        Project.open(tmp_path / "meters")


def test_a_missing_queue_is_told_without_the_token(shell, tmp_path):
    shell.directory = None
    shell("--url", "ringdove://:secret@h:1", "pipeline", "init", "meters")
    with ringdove.connect("memory:") as rd, pytest.raises(QueueNotFound) as told:
        make_queues(Project.open(tmp_path / "meters"), rd)
    assert "ringdove://h:1" in str(told.value)


def test_an_avro_schema_gives_spark_s_types(tmp_path):
    fields = [
        {"name": "id", "type": "string"},
        {"name": "seq", "type": ["null", "long"]},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
        {"name": "xs", "type": {"type": "array", "items": "float"}},
        {"name": "m", "type": {"type": "map", "values": "boolean"}},
    ]
    (tmp_path / "s.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": fields}))
    schema = read_schema(tmp_path / "s.avsc", {})
    assert [field.type for field in schema.fields] == [
        "STRING", "BIGINT", "TIMESTAMP", "STRING", "ARRAY<FLOAT>", "MAP<STRING, BOOLEAN>",
    ]  # fmt: skip


def test_samples_have_something_of_everything():
    end = datetime(2026, 1, 2, tzinfo=UTC)
    messages, counts = make_samples(3_000, end)
    assert len(messages) == counts.messages
    assert counts.messages == counts.readings + counts.duplicates + counts.dead_letters
    assert min(counts) > 0
    assert (messages, counts) == make_samples(3_000, end)
    assert messages != make_samples(3_000, end, seed=8)[0]


def test_dead_letters_may_be_as_large_as_messages(shell, tmp_path):
    shell("pipeline", "init", "meters", "--queue", "power")
    project = Project.open(tmp_path / "meters")
    with ringdove.connect("memory:") as rd:
        source = rd.create_queue("power", body_bytes_max=4 << 20)
        make_queues(project, rd)
        dead = rd.queue("power-dead")
        assert dead.settings().body_bytes_max == 4 << 20
        assert dead.settings().delivery == rd.queue("power-results").settings().delivery
        source.configure(body_bytes_max=8 << 20)
        make_queues(project, rd)
        assert dead.settings().body_bytes_max == 8 << 20
        source.configure(body_bytes_max=1 << 20)
        make_queues(project, rd)
        assert dead.settings().body_bytes_max == 8 << 20
