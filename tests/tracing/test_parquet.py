"""Traces in Parquet."""

from datetime import UTC, datetime

import pyarrow.parquet as pq

from ringdove.tracing import Tracer, parquet

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
MOMENT_US = int(MOMENT.timestamp()) * 1_000_000


def test_files_have_the_rows_in_the_columns_of_the_schema(tmp_path):
    with Tracer("a/b", tmp_path, name="x y") as trace:
        trace.sent([b"1", b"2"], at_us=MOMENT_US)
        trace.received([b"2"], at_us=MOMENT_US)
        trace.received([b"1"], intact=False, at_us=MOMENT_US)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("a%2Fb-x%20y-")
    table = pq.read_table(file)
    assert table.schema.equals(parquet.SCHEMA)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    none = (None, None, None)
    assert rows == [
        ("a/b", b"1", "x y", 0, MOMENT, *none, None),
        ("a/b", b"2", "x y", 1, MOMENT, *none, None),
        ("a/b", b"2", *none, "x y", 0, MOMENT, None),
        ("a/b", b"1", *none, "x y", 1, MOMENT, False),
    ]


def test_a_name_used_again_and_many_rows_make_more_files(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROWS_PER_FILE", 3)
    for _ in range(2):
        with Tracer("q", tmp_path, name="same") as trace:
            trace.sent([b"1", b"2", b"3"])
            trace.flush()
            trace.sent(b"4")
            trace.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    assert sorted(pq.read_table(file)["message"].to_pylist() for file in files) == [
        [b"1", b"2", b"3"], [b"1", b"2", b"3"], [b"4"], [b"4"],
    ]  # fmt: skip


def test_without_rows_there_is_no_file(tmp_path):
    with Tracer("q", tmp_path / "new"):
        pass
    assert list((tmp_path / "new").iterdir()) == []
