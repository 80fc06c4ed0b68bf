"""A Kafka broker of one node, to measure beside: fetched when first asked for, and kept.

Neither Spark nor its Python package brings Kafka. The jars come from Maven Central into the user's
cache, as `kafka-jars.txt` lists them.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ringdove.bench import maven
from ringdove.cluster.processes import free_ports
from ringdove.config import cache_directory
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringdove.bench.maven import Jar

_LIST = Path(__file__).with_name("kafka-jars.txt")
_HOST = "127.0.0.1"
_START_SECONDS_MAX = 60

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def jars(part: str) -> list[Jar]:
    """Those of the broker, of its load tools, or what Spark needs to speak with a broker."""
    return maven.listed(_LIST, part)


class Broker(NamedTuple):
    """A running Kafka."""

    address: str
    pid: int
    #: What Spark needs to speak with it, as its setting spark.jars has it.
    jars: str


def command(*parts: str) -> list[str]:
    """How Java is started with these parts of Kafka; StoreUnavailable if they cannot be had."""
    from ringdove.spark.java import find_java

    wanted = [jar for part in parts for jar in jars(part)]
    java = str(find_java(os.environ) / "bin" / "java")
    return [java, "-Xmx1g", "-cp", _classpath(maven.fetched(wanted, _cache(), "Kafka"))]


@contextlib.contextmanager
def running(data: Path, *properties: str) -> Iterator[Broker]:
    """A broker for the length of a benchmark; StoreUnavailable says why there is none."""
    java = command("broker")
    for_spark = maven.fetched(jars("spark"), _cache(), "Kafka for Spark")
    data.mkdir(parents=True)
    port, controller = free_ports(2, _HOST)
    settings = data / "server.properties"
    given = _PROPERTIES.format(host=_HOST, port=port, controller=controller, data=data / "log")
    settings.write_text(given + "\n".join(properties))
    node = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    with (data / "output").open("wb") as output:
        _format([*java, "kafka.tools.StorageTool", "format", "-t", node, "-c", str(settings)])
        process = subprocess.Popen(  # noqa: S603  what was fetched and checked
            [*java, "kafka.Kafka", str(settings)], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait(process, port)
        yield Broker(f"{_HOST}:{port}", process.pid, ",".join(map(str, for_spark)))
    finally:
        process.terminate()
        process.wait()


def _cache() -> Path:
    return cache_directory(os.environ) / "kafka"


def _classpath(own: list[Path]) -> str:
    import pyspark

    shared = Path(pyspark.__file__).parent / "jars" / "*"
    return os.pathsep.join([*map(str, own), str(shared)])


def _format(command: list[str]) -> None:
    done = subprocess.run(  # noqa: S603  see above
        command, capture_output=True, text=True, timeout=_START_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise StoreUnavailable(f"Kafka could not be prepared: {done.stderr.strip()[-500:]}")


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((_HOST, port), timeout=1):
            return
        time.sleep(0.1)
    raise StoreUnavailable("Kafka did not start.")
