"""The benchmark of Spark: what it asks for is done, and Kafka is what it should be."""

import hashlib
import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from ringdove.bench import kafka, maven, spark
from ringdove.errors import InvalidArgument, StoreUnavailable


@pytest.mark.skipif(not os.environ.get("RINGDOVE_SLOW"), reason="a minute; in make torture")
def test_a_short_run_does_what_was_chosen(tmp_path):
    chosen = ["ringdove/batch/queue", "tuples/stream/noop", "memory/batch/noop"]
    result = spark.run(tmp_path, 8_000, (100,), (1,), chosen=chosen)
    rows = result["spark"]
    assert ["/".join((row["way"], row["mode"], row["into"])) for row in rows] == chosen
    assert [row["rows"] for row in rows] == [2_000, 2_000, 8_000]
    assert result["kafka_left_out"] == "not asked for"
    assert not list(tmp_path.iterdir()), "something was left behind"


def test_what_there_is_not_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="there are memory/batch/noop, "):
        spark.run(tmp_path, 8, (100,), (1,), chosen=["ringdove/batch/nothing"])


def test_ratios_are_those_of_one_core():
    def row(cores, way, into, rate):
        return {
            "cores": cores, "size": 100, "way": way, "mode": "batch", "into": into,
            "rows_per_s": rate,
        }  # fmt: skip

    rows = [
        row(1, "ringdove", "noop", 40),
        row(2, "ringdove", "noop", 70),
        row(1, "memory", "noop", 50),
        row(1, "tuples", "noop", 10),
        row(1, "kafka", "noop", None),
        row(1, "ringdove", "queue", 9),
        row(1, "kafka", "queue", 6),
    ]
    assert spark.summary(rows, 100) == {
        "source_rows_per_s_per_core": 40,
        "source_over_memory": 0.8,
        "source_over_tuples": 4.0,
        "sink_rows_per_s_per_core": 9,
        "sink_over_kafka": 1.5,
    }


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def central(tmp_path):
    """A repository of jars on this machine."""
    directory = tmp_path / "central"
    directory.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=directory)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield directory, f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_jar_is_fetched_once_and_only_if_it_is_the_right_one(central, tmp_path):
    directory, url = central
    (directory / "a.jar").write_bytes(b"a")
    jar = maven.Jar(hashlib.sha256(b"a").hexdigest(), "a.jar")
    cache = tmp_path / "cache"
    with pytest.raises(StoreUnavailable, match="has SHA-256"):
        maven.fetched([maven.Jar("0" * 64, "a.jar")], cache, "a", url)
    with pytest.raises(StoreUnavailable, match="cannot be fetched"):
        maven.fetched([maven.Jar("0" * 64, "b.jar")], cache, "b", url)
    assert not list(cache.iterdir())
    for _ in range(2):
        [path] = maven.fetched([jar], cache, "a", url)
        assert path.read_bytes() == b"a"
        (directory / "a.jar").unlink(missing_ok=True)


def test_the_list_of_jars_is_whole():
    listed = kafka.jars("broker") + kafka.jars("spark")
    assert {"kafka_2.13-4.3.1.jar", "commons-pool2-2.13.1.jar"} <= {jar.name for jar in listed}
    assert all(len(jar.sha256) == 64 for jar in listed)
