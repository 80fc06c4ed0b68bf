"""One Spark session for all tests of a process, and machines that have no Java."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

import ringdove
from server.running import ServerThread

#: For a Java that lives for a minute.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: A session that starts in seconds and leaves the other core alone.
QUICK = {
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "spark-warehouse")),
}


@pytest.fixture(scope="session")
def spark():
    from ringdove.spark.session import session

    made = session("local[2]", QUICK)
    yield made
    gateway = made.sparkContext._gateway
    made.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends when nobody can speak to it any more.
    gateway.proc.wait(timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server for the tests of a module, which have a queue each."""
    with ServerThread(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def rd(server):
    """A connection to it."""
    with ringdove.connect(server.url) as connection:
        yield connection


@pytest.fixture(scope="session")
def environment_without_java(tmp_path_factory):
    """The environment of a machine like this one, but with no Java on it."""
    place = tmp_path_factory.mktemp("path")
    path = [
        _without_java(Path(directory), place / str(number))
        for number, directory in enumerate(os.environ["PATH"].split(os.pathsep))
    ]
    environment = {**os.environ, "PATH": os.pathsep.join(path)}
    environment.pop("JAVA_HOME", None)
    assert shutil.which("java", path=environment["PATH"]) is None
    return environment


def _without_java(directory, copy):
    """The directory itself, or one that has links to all its programs but Java."""
    if not (directory / "java").exists():
        return str(directory)
    copy.mkdir()
    for program in directory.iterdir():
        if program.name != "java":
            (copy / program.name).symlink_to(program)
    return str(copy)
