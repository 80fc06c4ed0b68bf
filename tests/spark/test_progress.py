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


def test_the_log_of_a_delta_table_decides_which_files_count(tmp_path):
    log = tmp_path / "_delta_log"
    log.mkdir()
    for name, rows in (("a", 1), ("b", 2), ("c d", 4), ("left by a kill", 8)):
        parquet.write_table(pa.table({"x": range(rows)}), tmp_path / f"{name}.parquet")

    def commit(version, *actions):
        lines = [{kind: {"path": f"{name}.parquet"}} for kind, name in actions]
        text = "\n".join(map(json.dumps, [{"commitInfo": {}}, *lines]))
        (log / f"{version:020}.json").write_text(text)

    commit(0, ("add", "a"))
    commit(1, ("add", "b"))
    assert table_files(tmp_path)[:2] == (3, 2)
    commit(2, ("remove", "a"), ("add", "c%20d"))
    assert table_files(tmp_path)[:2] == (6, 2)
    # Delta removes old entries when a later one has put them together.
    adds = [{"path": "b.parquet"}, None, {"path": "c%20d.parquet"}]
    parquet.write_table(pa.table({"add": adds}), log / f"{2:020}.checkpoint.parquet")
    (log / "_last_checkpoint").write_text('{"version": 2}')
    (log / f"{0:020}.json").unlink()
    assert table_files(tmp_path)[:2] == (6, 2)
    commit(3, ("remove", "b"))
    assert table_files(tmp_path)[:2] == (4, 1)
