"""A Kafka broker of one node, to measure beside: fetched when first asked for, and kept.

Neither Spark nor its Python package brings Kafka. The jars come from Maven Central into the user's
cache, each checked against the checksum in `kafka-jars.txt`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ringdove.cli.output import progress
from ringdove.cluster.processes import free_ports
from ringdove.config import cache_directory
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

CENTRAL = "https://repo1.maven.org/maven2/"

_LIST = Path(__file__).with_name("kafka-jars.txt")
_HOST = "127.0.0.1"
_FETCH_SECONDS_MAX = 60
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


class Jar(NamedTuple):
    """A file of Maven Central."""

    sha256: str
    path: str

    @property
    def name(self) -> str:
        """What the file is called."""
        return self.path.rpartition("/")[2]


def jars(part: str) -> list[Jar]:
    """Those of the broker, or those that Spark needs to read from one and write to it."""
    text = _LIST.read_text().partition(f"[{part}]\n")[2].partition("\n\n")[0]
    return [Jar(*line.split()) for line in text.splitlines()]


def fetched(wanted: list[Jar], cache: Path, central: str = CENTRAL) -> list[Path]:
    """The files, from the cache or from Maven Central; StoreUnavailable if one cannot be had."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [jar for jar in wanted if not (cache / jar.name).exists()]
    if missing:
        with progress("Fetching Kafka", len(missing)) as done:
            for number, jar in enumerate(missing, 1):
                _fetch(jar, cache, central)
                done(number)
    return [cache / jar.name for jar in wanted]


def _fetch(jar: Jar, cache: Path, central: str) -> None:
    try:
        with urllib.request.urlopen(  # noqa: S310  an address of ours
            central + jar.path, timeout=_FETCH_SECONDS_MAX
        ) as answer:
            data = answer.read()
    except OSError as error:
        raise StoreUnavailable(f"{central}{jar.path} cannot be fetched: {error}.") from error
    found = hashlib.sha256(data).hexdigest()
    if found != jar.sha256:
        raise StoreUnavailable(f"{central}{jar.path} has SHA-256 {found}, and not {jar.sha256}.")
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as file:
        file.write(data)
    Path(file.name).replace(cache / jar.name)


class Broker(NamedTuple):
    """A running Kafka."""

    address: str
    pid: int
    #: What Spark needs to speak with it, as its setting spark.jars has it.
    jars: str


@contextlib.contextmanager
def running(data: Path) -> Iterator[Broker]:
    """A broker for the length of a benchmark; StoreUnavailable says why there is none."""
    from ringdove.spark.java import find_java

    cache = cache_directory(os.environ) / "kafka"
    own, for_spark = fetched(jars("broker"), cache), fetched(jars("spark"), cache)
    data.mkdir(parents=True)
    port, controller = free_ports(2, _HOST)
    settings = data / "server.properties"
    settings.write_text(
        _PROPERTIES.format(host=_HOST, port=port, controller=controller, data=data / "log")
    )
    java = [str(find_java(os.environ) / "bin" / "java"), "-Xmx1g", "-cp", _classpath(own)]
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
