"""What a run tells of itself, and what is read from Spark's files."""

import json

import pyarrow as pa
from pyarrow import parquet

from ringdove.spark.pipeline.files import logged_files, position, table_files
from ringdove.spark.pipeline.progress import Progress, read_status, rows_per_s


def step(name, rows, ms=100, duplicates=0, late=0):
    operators = [
        {
            "numRowsDroppedByWatermark": late,
            "customMetrics": {"numDroppedDuplicateRows": duplicates},
        }
    ]
    return json.dumps(
        {
            "name": f"spark_catalog.meters.{name}",
            "numInputRows": rows,
            "batchDuration": ms,
            "stateOperators": operators,
        }
    )


def test_steps_of_an_update_add_up(tmp_path):
    progress = Progress(tmp_path)
    progress.begin()
    progress.flow_is("raw", "RUNNING")
    progress.step(step("raw", 100, ms=500))
    progress.step(step("raw", 300, ms=500, duplicates=3, late=2))
    progress.step(step("raw", 0, ms=90))
    progress.end("waiting")
    told = read_status(tmp_path)
    assert told["flows"]["raw"] == {
        "state": "running", "rows": 400, "ms": 1000, "duplicates": 3, "late": 2,
    }  # fmt: skip
    assert rows_per_s(told["flows"]["raw"]) == 400
    assert (told["state"], told["updates"], progress.rows) == ("waiting", 1, 400)


def test_an_update_without_work_leaves_the_figures_of_the_last(tmp_path):
    progress = Progress(tmp_path)
    progress.begin()
    progress.step(step("raw", 100))
    progress.end("waiting")
    progress.begin()
    assert progress.rows == 0
    assert read_status(tmp_path)["flows"]["raw"]["rows"] == 100
    progress.step(step("raw", 7))
    assert read_status(tmp_path)["flows"]["raw"]["rows"] == 7


def test_an_error_stays_until_an_update_succeeds(tmp_path):
    progress = Progress(tmp_path)
    progress.begin()
    progress.end("failed", "no disk")
    progress.begin()
    assert read_status(tmp_path)["error"] == "no disk"
    progress.end("done")
    assert read_status(tmp_path)["error"] is None


def test_a_table_has_the_files_of_its_log_and_no_others(tmp_path):
    (tmp_path / "_spark_metadata").mkdir()
    for name in ("a", "b", "c", "left over"):
        parquet.write_table(pa.table({"x": [1, 2]}), tmp_path / f"{name}.parquet")

    def log(entry, *names):
        lines = [
            json.dumps({"path": (tmp_path / f"{name}.parquet").as_uri(), "action": "add"})
            for name in names
        ]
        (tmp_path / "_spark_metadata" / entry).write_text("\n".join(["v1", *lines]))

    assert logged_files(tmp_path) == []
    log("8", "a")
    log("9.compact", "a", "b")
    log("10", "c")
    assert [path.stem for path in logged_files(tmp_path)] == ["a", "b", "c"]
    assert table_files(tmp_path)[:2] == (6, 3)


def test_a_flow_is_where_its_last_finished_step_ended(tmp_path):
    assert position(tmp_path) is None
    for number in (9, 10, 11):
        for kind in ("offsets", "commits"):
            (tmp_path / kind).mkdir(exist_ok=True)
            if (number, kind) != (11, "commits"):
                (tmp_path / kind / str(number)).write_text(f'v1\n{{}}\n{{"1.0.0": {number}}}')
    (tmp_path / "offsets" / ".11.crc").write_bytes(b"\0")
    assert position(tmp_path) == {"1.0.0": 10}
