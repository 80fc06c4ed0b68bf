"""A real Spark cluster on this machine: a master and workers, each a process of its own."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyspark

from ringdove.spark.java import find_java
from server.running import wait_for
from spark.conftest import SHORT_LIVED

HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = b"CoarseGrainedExecutorBackend"


class Standalone:
    """A cluster with so many workers of one core each."""

    def __init__(self, directory: Path, workers: int) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        try:
            self.url = self._start("master", rb"(spark://127.0.0.1:\d+)", MASTER, *ports)
            for number in range(workers):
                own = directory / f"worker{number}"
                self._start(
                    own.name, rb"Successfully (registered)", WORKER, *ports, "--cores", "1",
                    "--memory", "1g", "--work-dir", str(own / "work"), self.url,
                )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, sign: bytes, *arguments: str) -> str:
        log = self._directory / f"{name}.log"
        environment = {
            **os.environ,
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        }
        with log.open("wb") as file:
            process = subprocess.Popen(
                [HOME / "bin" / "spark-class", *arguments], env=environment,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip
        self._processes.append(process)

        def found() -> re.Match[bytes] | None:
            assert process.poll() is None, log.read_text(errors="replace")
            return re.search(sign, log.read_bytes())

        match = wait_for(found, f"{name} to start")
        return match[1].decode()

    def kill_executor(self) -> None:
        """End one executor at once, whatever it is doing; its worker starts another."""
        mine = {process.pid for process in self._processes}
        for found in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((found / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in mine and EXECUTOR in (found / "cmdline").read_bytes():
                    os.kill(int(found.name), signal.SIGKILL)
                    return
            except (FileNotFoundError, ProcessLookupError):
                continue
        raise AssertionError("no executor runs")

    def close(self) -> None:
        """End everything."""
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            process.wait(timeout=60)
