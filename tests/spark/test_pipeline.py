"""A pipeline on real Spark, as a user runs it: `ringdove pipeline run`, unedited.

Everything is counted: what is expected of tables and queues is computed here, in plain Python, from
the messages that were sent.
"""

import json
import os
import signal
import statistics
import subprocess
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyarrow import parquet

import ringdove
from ringdove import serving
from ringdove.errors import StoreLocked
from ringdove.spark.pipeline.files import logged_files
from ringdove.spark.pipeline.progress import read_status
from ringdove.spark.pipeline.project import Project
from ringdove.spark.pipeline.sample import make_samples
from server.running import PROGRAM, ServerThread, run_command, wait_for
from spark.avro_bodies import double, number, text
from spark.conftest import SHORT_LIVED

#: Starting Spark takes seconds, on a machine that has much to do a minute.
pytestmark = pytest.mark.timeout(900)
PATIENCE_S = 600

QUICK = [
    "--master", "local[2]",
    "--conf", "spark.driver.memory=1g",
    "--conf", "spark.driver.host=127.0.0.1",
    "--conf", "spark.driver.bindAddress=127.0.0.1",
    "--conf", f"spark.driver.extraJavaOptions={SHORT_LIVED}",
]  # fmt: skip

END = datetime(2026, 1, 2, tzinfo=UTC)
MESSAGES, COUNTS = make_samples(1_500, END)
LATE, HOUR = timedelta(hours=2), timedelta(hours=1)

T0 = datetime(2026, 3, 1, tzinfo=UTC)
CSV = [f"s{i % 3},{i // 3},{(T0 + i * HOUR).isoformat()},{20 + i % 7},hall" for i in range(60)]
CSV_BAD = {
    "s1,2": "the body is no CSV of the schema",
    "s1,x,2026-03-01T00:00:00Z,1,hall": "the body is no CSV of the schema",
    "s1,5,yesterday,1,hall": "at is no time",
    ",5,2026-03-01T00:00:00Z,1,hall": "sensor is missing",
}
AVRO_SCHEMA = {"type": "record", "name": "Tank", "fields": [
    {"name": "id", "type": "string"},
    {"name": "seq", "type": "long"},
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "level", "type": ["null", "double"]},
]}  # fmt: skip


def tank(i):
    at = int((T0 + i * HOUR).timestamp() * 1000)
    return text(f"t{i % 3}") + number(i // 3) + number(at) + number(1) + double(i / 4)


# -- what is expected ---------------------------------------------------------------------------


def valid(body):
    """The reading in a body, by rules of its own; None if there is none."""
    try:
        found = json.loads(body)
        at = datetime.fromisoformat(found["time"])
    except (ValueError, KeyError):
        return None
    return None if found["kwh"] < 0 or at > END else (found["device"], found["sequence"], at, found)


def expected_readings():
    found = {}
    for message in MESSAGES:
        if reading := valid(message.body):
            found[reading[:2]] = reading
    return found


def expected_windows():
    """Device, start, number of readings, sum of kwh, least voltage; of windows that are final."""
    grouped = defaultdict(list)
    for device, _, at, fields in expected_readings().values():
        grouped[device, at.replace(minute=0)].append(fields)
    final = max(at for _, _, at, _ in expected_readings().values()) - LATE
    return {
        (
            device,
            start,
            len(own),
            round(sum(f["kwh"] for f in own), 6),
            min(f["voltage"] for f in own),
        )
        for (device, start), own in grouped.items()
        if start + HOUR <= final
    }


# -- what is there ------------------------------------------------------------------------------


def rows(project, name):
    """The rows of a table, without Spark."""
    table = project.tables / name
    return parquet.read_table(logged_files(table) or sorted(table.glob("*.parquet"))).to_pylist()


def bodies(project, queue):
    def connection():
        try:
            return ringdove.connect(project.url)
        except StoreLocked:  # The server that Spark had is about to end.
            return None

    if project.url.startswith("file:"):
        directory = Path(project.url.removeprefix("file:"))
        wait_for(lambda: serving.find(directory) is None, "Spark's server to end", PATIENCE_S)
    with wait_for(connection, "the directory to be free", PATIENCE_S) as rd:
        return [(m.body, m.attributes) for m in rd.queue(queue).replay()]


def status(project):
    done = run_command("pipeline", "status", str(project.directory), "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def check_meters(project):
    """Everything that was sent is where it should be, once."""
    sent = Counter(message.body for message in MESSAGES)
    assert Counter(row["body"] for row in rows(project, "raw")) == sent
    readings = rows(project, "readings")
    assert len(readings) == COUNTS.readings
    assert {
        (r["device"], r["sequence"]): (r["time"], r["kwh"], r["voltage"]) for r in readings
    } == {key: (at, f["kwh"], f["voltage"]) for key, (_, _, at, f) in expected_readings().items()}
    refused = bodies(project, project.dead_letters)
    assert Counter(body for body, _ in refused) == Counter(
        {body: count for body, count in sent.items() if valid(body) is None}
    )
    assert {attributes["reason"] for _, attributes in refused} == {
        "the body is no JSON of the schema",
        "device is missing",
        "kwh is not within (0, 100)",
        "time is in the future",
    }
    windows = rows(project, "windows")
    found = [
        (w["device"], w["start"], w["readings"], w["kwh_sum"], w["voltage_min"]) for w in windows
    ]
    assert len(found) == len(set(found))
    assert set(found) == expected_windows()
    results = [json.loads(body) for body, _ in bodies(project, project.results)]
    assert Counter((r["device"], r["start"], r["kwh_sum"]) for r in results) == Counter(
        (w["device"], w["start"].strftime("%Y-%m-%dT%H:%M:%S.000Z"), w["kwh_sum"]) for w in windows
    )


def check_health(project):
    states = {row["device"]: row["state"] for row in rows(project, "health")}
    assert states["meter-7-0001"] == "silent"
    assert states["meter-7-0003"] == "bad"
    flags = Counter(flag for row in rows(project, "windows") for flag in row["flags"])
    assert flags["voltage is not normal"] > 10
    assert flags["voltage never changes"] > 10
    assert flags["readings are missing"] > 0
    assert statistics.mean(row["windows"] for row in rows(project, "health")) > 10


# -- running it ---------------------------------------------------------------------------------


def init(directory, url, queue, *options):
    done = run_command("--url", url, "pipeline", "init", str(directory), "--queue", queue, *options)
    assert done.returncode == 0, done.stderr.decode()
    return Project.open(directory)


def send(url, queue, messages):
    with ringdove.connect(url) as connection:
        made = connection.create_queue(queue, stripes=2)
        with made.producer() as producer:
            for body, key in messages:
                producer.send(body, key=key)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, redis):
    """Five projects, run by one command: the same on three kinds of store, and two of their own."""
    place = tmp_path_factory.mktemp("pipelines")
    redis.flush()
    (place / "fields.ddl").write_text(
        "sensor STRING, counter INT, at STRING, celsius DOUBLE, place STRING"
    )
    (place / "tank.avsc").write_text(json.dumps(AVRO_SCHEMA))
    with ServerThread(place / "served") as server:
        embedded = f"file:{place}/data"
        urls = {"embedded": embedded, "server": server.url, "fabric": redis.url}
        for url in urls.values():
            send(url, "readings", MESSAGES)
        send(embedded, "sensors", [(line.encode(), None) for line in [*CSV, *CSV_BAD]])
        send(
            embedded, "tanks", [(body, None) for body in [*map(tank, range(60)), b"", b"\xff" * 9]]
        )
        projects = {name: init(place / name, url, "readings") for name, url in urls.items()}
        projects["csv"] = init(
            place / "Jürgen's" / "csv", embedded, "sensors",
            "--format", "csv", "--schema", str(place / "fields.ddl"),
        )  # fmt: skip
        projects["avro"] = init(
            place / "avro", embedded, "tanks", "--schema", str(place / "tank.avsc")
        )
        done = subprocess.run(
            [*PROGRAM, "pipeline", "run", *(str(p.directory) for p in projects.values()), *QUICK],
            capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()[-4000:]
        yield projects


@pytest.mark.parametrize("store", ["embedded", "server", "fabric"])
def test_an_unedited_project_runs_on_every_store(ran, store):
    check_meters(ran[store])
    check_health(ran[store])


def test_the_status_tells_how_far_a_project_is(ran):
    found = status(ran["embedded"])
    assert (found["state"], found["error"], found["updates"]) == ("done", None, 1)
    assert found["queues"]["lag"] == 0
    assert found["queues"]["dead_letters"] == COUNTS.dead_letters
    tables = {table["table"]: table["rows"] for table in found["tables"]}
    assert tables["raw"] == COUNTS.messages
    assert tables["readings"] == COUNTS.readings
    flows = {flow["flow"]: flow for flow in found["flows"]}
    assert flows["raw"]["rows"] == COUNTS.messages
    assert flows["raw"]["rows_per_s"] > 0
    assert flows["readings"]["duplicates"] == COUNTS.duplicates


def test_csv_with_a_schema_of_its_own(ran):
    project = ran["csv"]
    readings = {(r["device"], r["sequence"]): r for r in rows(project, "readings")}
    assert len(readings) == len(CSV)
    assert readings["s1", 4]["celsius"] == 20 + 13 % 7
    assert readings["s1", 4]["place"] == "hall"
    assert readings["s1", 4]["time"] == T0 + 13 * HOUR
    refused = bodies(project, project.dead_letters)
    assert {body.decode(): a["reason"] for body, a in refused} == CSV_BAD
    assert len(rows(project, "windows")) == len(bodies(project, project.results)) > 40


def test_avro_with_a_schema_of_its_own(ran):
    project = ran["avro"]
    readings = {(r["device"], r["sequence"]): r["level"] for r in rows(project, "readings")}
    assert readings == {(f"t{i % 3}", i // 3): i / 4 for i in range(60)}
    assert {body: a["reason"] for body, a in bodies(project, project.dead_letters)} == {
        b"": "the body is no Avro of the schema: it ends after 0 bytes, within a value",
        b"\xff" * 9: "the body is no Avro of the schema: it ends after 9 bytes, within a value",
    }


def start(project, *options):
    """Run a project in a process group of its own."""
    command = [*PROGRAM, "pipeline", "run", str(project.directory), *QUICK, *options]
    with (project.directory / "output").open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


def kill(process):
    """Python, Java and all, as a power cut would."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_killed_and_run_again_nothing_is_missing_and_nothing_is_there_twice(tmp_path):
    url = f"file:{tmp_path}/data"
    send(url, "readings", MESSAGES)
    project = init(tmp_path / "meters", url, "readings")
    spec = project.directory / "spark-pipeline.yml"
    # Many small steps, so that there is something to interrupt.
    spec.write_text(spec.read_text().replace('"500000"', '"300"').replace('"8"', '"2"'))

    def waits_for(process, pattern):
        def there():
            output = (project.directory / "output").read_text()
            assert process.poll() is None, output[-4000:]
            return list(project.checkpoints.glob(pattern))

        wait_for(there, pattern, PATIENCE_S)

    first = start(project)
    waits_for(first, "*/*/raw/raw/0/commits/1")
    kill(first)
    assert status(project)["state"] == "killed"
    second = start(project)
    waits_for(second, "dead_letters/refused/0/offsets/0")
    kill(second)
    third = start(project, "--continuous", "--every", "1s")
    try:
        wait_for(
            lambda: read_status(project.storage)["updates"] or third.poll(), "an update", PATIENCE_S
        )
        third.send_signal(signal.SIGINT)
        output = (project.directory / "output").read_text
        assert third.wait(PATIENCE_S) == 130, output()[-4000:]
    finally:
        if third.poll() is None:
            kill(third)
    assert status(project)["state"] == "interrupted"
    check_meters(project)
