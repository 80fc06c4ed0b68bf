"""What the format may be told, and what it says to everything else."""

import pytest

from ringdove.config import directory_of
from ringdove.errors import InvalidArgument
from ringdove.spark.columns import COLUMNS
from ringdove.spark.options import Options, parse_start
from ringdove.stores.base import Start


def test_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = Options.read({"path": "readings"})
    assert options.queue == "readings"
    assert options.place.url == f"file:{tmp_path / 'ringdove-data'}"
    assert options.columns == tuple(COLUMNS)
    assert (options.start, options.subscription, options.rows_per_trigger) == (None, None, None)
    assert (options.skip_trimmed, options.split) == (False, False)


@pytest.mark.parametrize("url", ["file:a%25b", "file:./a%25b", "file://{}/a%25b"])
def test_a_directory_is_the_same_wherever_a_task_runs(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    place = Options.read({"queue": "q", "url": url.format(tmp_path)}).place
    assert directory_of(place.url) == tmp_path / "a%b"


def test_names_come_in_any_case_and_sparks_own_are_left_alone():
    given = {
        "QUEUE": "q", "url": "ringdove://h:1", "rowspertrigger": "5", "bytesPerTrigger": "9",
        "trimmed": "SKIP", "columns": "body, offset", "checkpointLocation": "/cp", "batch": "0", "producer": "p",
        "tlsCa": "ca.pem",
    }  # fmt: skip
    options = Options.read(given)
    assert (options.rows_per_trigger, options.bytes_per_trigger) == (5, 9)
    assert options.skip_trimmed
    assert options.columns == ("body", "offset")
    assert options.place == ("ringdove://h:1", "ca.pem", None, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Name a queue"),
        ({"queu": "q"}, "Did you mean 'queue'"),
        ({"queue": "q", "xyz": "1"}, "Known: url, queue"),
        ({"queue": "q", "rowsPerTrigger": "0"}, "'rowsPerTrigger' is '0'"),
        ({"queue": "q", "rowsPerPartition": "many"}, "'rowsPerPartition' is 'many'"),
        ({"queue": "q", "producer": "p", "batch": "-1"}, "'batch' is '-1'"),
        ({"queue": "q", "producer": "p", "batch": str(2**31)}, "a number from 0 to 2147483647"),
        ({"queue": "q", "batch": "7"}, "'batch' is '7', and nothing would be recognised"),
        ({"queue": "q", "producer": "p" * 49}, "1 to 48 bytes"),
        ({"queue": "q", "producer": ""}, "1 to 48 bytes"),
        ({"queue": "q", "trimmed": "maybe"}, "one of fail, skip"),
        ({"queue": "q", "split": "1"}, "one of false, true, sorted"),
        ({"queue": "q", "compression": "rar"}, "one of none"),
        ({"queue": "q", "columns": "body,size"}, "no column 'size'"),
        ({"queue": "q", "columns": "body, offset,body"}, "it names 'body' twice"),
        ({"queue": "q", "start": "yesterday"}, "'start' is 'yesterday'"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, said):
    with pytest.raises(InvalidArgument, match=said):
        Options.read(given)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start("earliest")),
        ("latest", Start("latest")),
        ("offset:7", Start("offset", 7)),
        ("time:1700000000000", Start("time", 1_700_000_000_000)),
    ],
)
def test_starts(text, start):
    assert parse_start(text) == start
