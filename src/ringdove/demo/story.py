"""The story of the demo, from an empty directory to tables and a report.

A server works on an embedded store, or on five servers in rings. Smart meters send readings over
MQTT and HTTP. Consumers take them, and one is killed with readings in its hands. A pipeline on
Spark takes them too, and one of its workers is killed; on rings a whole server is. At the end every
reading is accounted for.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.client.sync import connect
from ringdove.demo.consuming import SUBSCRIPTION, read_journals
from ringdove.demo.parts import Part, fleet_counts, spark_workers
from ringdove.errors import InvalidArgument, RingdoveError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ringdove.cluster.local import LocalCluster

QUEUE = "readings"
_MARK = "ringdove-demo"

#: Devices by what they speak, and readings of each per second.
_MQTT_DEVICES, _HTTP_DEVICES, _RATE = 400, 100, 1.0
_WINDOW, _LATE = "10 seconds", "5 seconds"
_CONSUMERS = 2

#: Of the fleet's time: when a consumer is killed, and a server of the rings.
_CONSUMER_DIES, _SERVER_DIES = 0.4, 0.5

_TICK_S = 0.5

#: Seconds without anything new, when the last reading was sent, after which the rest is given up.
_PATIENCE_S = 120


class Seen(NamedTuple):
    """What there is to see at a moment of the demo."""

    seconds: float
    connected: int
    sent: int
    acknowledged: int
    consumed: int
    spark_rows: int
    spark_state: str


class Story:
    """One run of the demo, in a directory that is its own."""

    def __init__(
        self,
        directory: Path,
        seconds: float,
        show: Callable[[Seen], None],
        tell: Callable[[str], None],
        *,
        fabric: bool = False,
        spark: bool = True,
    ) -> None:
        if not seconds > 0:
            raise InvalidArgument(f"seconds is {seconds}; it must be above 0.")
        self._directory = _own_directory(directory)
        self._seconds = seconds
        self._show = show
        self._tell = tell
        self._fabric = fabric
        self._spark = spark and importlib.util.find_spec("pyspark") is not None
        self._stack = ExitStack()
        self._journals: list[Path] = []
        self._consumers: list[Part] = []
        self._pipeline: Part | None = None
        self._cluster: LocalCluster | None = None
        self._done: set[str] = set()
        self._url = ""

    def run(self) -> dict[str, Any]:
        """Everything, to the report."""
        with self._stack:
            began_s = time.monotonic()
            ports = self._start_server()
            fleets = self._start_fleets(ports)
            self._watch(fleets)
            reports = {name: fleet.result() for name, fleet in fleets.items()}
            self._tell("The fleet is done. Waiting until everything is consumed.")
            self._finish(sum(report["acknowledged"] for report in reports.values()))
            return self._report(reports, time.monotonic() - began_s)

    # -- beginning ------------------------------------------------------------------------------

    def _part(self, name: str, *arguments: str) -> Part:
        part = Part(self._directory / f"{name}.log", *arguments)
        self._stack.callback(part.end)
        return part

    def _start_server(self) -> dict[str, int]:
        place = ["--data", str(self._directory / "data"), "serve"]
        if self._fabric:
            place = ["serve", "--store", self._start_cluster(), "--cluster", self._place("fabric")]
        project = ["--pipeline", self._place("pipeline")] if self._spark else []
        server = self._part(
            "server", "ringdove", *place, "--port", "0", "--http", "0", "--mqtt", "0", "--json",
            *project,
        )  # fmt: skip
        ports = server.first_line()
        self._url = f"ringdove://127.0.0.1:{ports['port']}"
        with connect(self._url) as connection:
            queue = connection.create_queue(QUEUE, stripes=4 if self._fabric else 1)
            queue.subscribe(SUBSCRIPTION, "earliest")
            queue.subscribe("pipeline", "earliest")
        self._tell(f"Console: http://127.0.0.1:{ports['http']}/console")
        if self._spark:
            self._start_pipeline()
        for _ in range(_CONSUMERS):
            self._start_consumer()
        return ports

    def _place(self, name: str) -> str:
        return str(self._directory / name)

    def _start_cluster(self) -> str:
        from ringdove.cluster.layout import Tuning  # noqa: PLC0415  only on rings
        from ringdove.cluster.local import LocalCluster  # noqa: PLC0415
        from ringdove.core.ring import Rings  # noqa: PLC0415

        self._tell("Five servers in two rings start.")
        tuning = Tuning(fsync="everysec", node_timeout_ms=2_000, memory_bytes=256 << 20)
        self._cluster = LocalCluster.make(self._directory / "fabric", Rings(5), tuning)
        self._stack.callback(self._cluster.down)
        self._cluster.up()
        return self._cluster.url

    def _start_pipeline(self) -> None:
        from ringdove.spark.pipeline.scaffold import Plan, write_project  # noqa: PLC0415

        project = self._directory / "pipeline"
        write_project(Plan(project, self._url, QUEUE, window=_WINDOW, late=_LATE))
        self._pipeline = self._part(
            "pipeline", "ringdove", "pipeline", "run", str(project), "--continuous", "--every", "1s"
        )
        self._tell("Spark starts the pipeline.")

    def _start_consumer(self) -> None:
        number = len(self._journals) + 1
        journal = self._directory / f"consumer{number}.txt"
        self._journals.append(journal)
        self._consumers.append(
            self._part(
                f"consumer{number}", "ringdove.demo.consuming", self._url, QUEUE, str(journal)
            )
        )

    def _start_fleets(self, ports: dict[str, int]) -> dict[str, Part]:
        fleets: dict[str, Part] = {}
        for name, devices, port in (
            ("mqtt", _MQTT_DEVICES, ports["mqtt"]),
            ("http", _HTTP_DEVICES, ports["http"]),
        ):
            fleets[name] = self._part(
                f"fleet-{name}", "ringdove", "--url", self._url, "fleet", "--protocol", name,
                "--devices", str(devices), "--rate", str(_RATE), "--seconds", str(self._seconds),
                "--queue", QUEUE, "--to", f"{name}://127.0.0.1:{port}",
                "--seed", str(len(fleets) + 1), "--drop", "0.005", "--json",
            )  # fmt: skip
        self._tell(
            f"{_MQTT_DEVICES} meters send over MQTT and {_HTTP_DEVICES} over HTTP, for "
            f"{self._seconds:.0f} s."
        )
        return fleets

    # -- going on -------------------------------------------------------------------------------

    def _watch(self, fleets: dict[str, Part]) -> None:
        began_s = time.monotonic()
        while any(fleet.runs for fleet in fleets.values()):
            passed_s = time.monotonic() - began_s
            counts = [fleet_counts(fleet.log) for fleet in fleets.values()]
            self._see(passed_s, *(sum(own) for own in zip(*counts, strict=True)))
            self._go_wrong(passed_s / self._seconds)
            time.sleep(_TICK_S)

    def _see(self, passed_s: float, connected: int, sent: int, acknowledged: int) -> None:
        rows, state = self._spark_rows()
        consumed = read_journals(self._journals).readings
        # What a fleet has said last may be some seconds old.
        known = max(sent, acknowledged, consumed)
        self._show(
            Seen(passed_s, connected, known, max(acknowledged, consumed), consumed, rows, state)
        )

    def _spark_rows(self) -> tuple[int, str]:
        if self._pipeline is None:
            return 0, "not installed"
        from ringdove.spark.pipeline.progress import read_status  # noqa: PLC0415
        from ringdove.spark.pipeline.project import Project  # noqa: PLC0415
        from ringdove.spark.pipeline.status import tables  # noqa: PLC0415

        if not self._pipeline.runs:
            raise self._pipeline.failure()
        with suppress(RingdoveError, OSError):
            project = Project.open(self._directory / "pipeline")
            rows = {own["table"]: own["rows"] for own in tables(project)}
            return rows.get("readings", 0), read_status(project.storage).get("state", "starting")
        return 0, "starting"

    def _go_wrong(self, share: float) -> None:
        """Kill what is to be killed by now, once each."""
        if share > _CONSUMER_DIES and self._first("consumer"):
            self._consumers[0].kill()
            self._tell("A consumer is killed with readings in its hands; another takes its place.")
            self._start_consumer()
        if self._cluster is not None and share > _SERVER_DIES and self._first("server"):
            self._cluster.kill("B")
            self._tell("Server B of the rings is killed; its copies take over.")
        if self._pipeline is not None and "worker" not in self._done and self._spark_rows()[0]:
            workers = spark_workers(self._pipeline.pid)
            if workers and self._first("worker"):
                with suppress(ProcessLookupError):
                    os.kill(workers[0], signal.SIGKILL)
                self._tell("A worker of Spark is killed; Spark runs its task again.")

    def _first(self, what: str) -> bool:
        first = what not in self._done
        self._done.add(what)
        return first

    # -- ending ---------------------------------------------------------------------------------

    def _finish(self, acknowledged: int) -> None:
        """Wait until consumers and pipeline have everything."""
        began_s = moved_s = time.monotonic()
        before: Any = None
        while True:
            consumed = read_journals(self._journals).readings
            rows, state = self._spark_rows()
            self._see(time.monotonic() - began_s + self._seconds, 0, acknowledged, acknowledged)
            self._go_wrong(1.0)
            now = (consumed, rows, state, len(self._done))
            if now != before:
                before, moved_s = now, time.monotonic()
            spark_has_all = rows >= acknowledged and state == "waiting"
            if consumed >= acknowledged and (self._pipeline is None or spark_has_all):
                break
            if time.monotonic() > moved_s + _PATIENCE_S:
                raise StoreUnavailable(
                    f"Of {acknowledged} readings, consumers have {consumed} and Spark {rows}, for"
                    f" {_PATIENCE_S} s now. The logs in {self._directory} say why."
                )
            time.sleep(_TICK_S)
        if self._pipeline is not None:
            self._pipeline.end(signal.SIGINT)

    def _report(self, fleets: dict[str, dict[str, Any]], seconds: float) -> dict[str, Any]:
        from ringdove.demo.results import look  # noqa: PLC0415  pyarrow, where there is one

        received = read_journals(self._journals)
        acknowledged = sum(fleet["acknowledged"] for fleet in fleets.values())
        report = {
            "seconds": round(seconds, 1),
            "devices": _MQTT_DEVICES + _HTTP_DEVICES,
            "sent": sum(fleet["sent"] for fleet in fleets.values()),
            "acknowledged": acknowledged,
            "answer_p50_ms": {name: fleet.get("answer_p50_ms") for name, fleet in fleets.items()},
            "consumed": received.readings,
            "lost": max(0, acknowledged - received.readings),
            "consumed_again": received.entries - received.readings,
            "damaged": received.damaged,
            "killed": sorted(self._done),
            "directory": str(self._directory),
        }
        if self._pipeline is not None:
            report |= look(self._directory / "pipeline", self._directory)
            report["spark_lost"] = max(0, acknowledged - report["spark_readings"])
        return report


def _own_directory(directory: Path) -> Path:
    """A fresh directory; one of an earlier demo is removed, any other is left alone."""
    mark = directory / _MARK
    if directory.exists() and any(directory.iterdir()):
        if not mark.exists():
            raise InvalidArgument(f"{directory} holds something else: name another with --dir.")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    mark.write_text("Everything here was made by 'ringdove demo', which begins by removing it.\n")
    return directory.absolute()
