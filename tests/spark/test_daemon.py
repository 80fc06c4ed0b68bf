"""Workers that Java has hung up on, forked by the real daemons, with a test in Java's place."""

import os
import select
import socket
import struct
import subprocess
import sys
import tempfile

import pytest

# A worker module: its first task has to do with Ringdove, or not; then it waits for another one.
TOLD = """
import importlib, os
from pyspark.worker import main as work

done = []

def main(infile, outfile):
    if done:
        work(infile, outfile)
    else:
        importlib.import_module(os.environ["TASK"])
        done.append(True)
"""


@pytest.fixture
def socket_directory():
    """One with a short name: that of a unix socket has at most 107 characters."""
    with tempfile.TemporaryDirectory() as directory:
        yield directory


@pytest.mark.parametrize(
    ("daemon", "task", "complains"),
    [
        ("pyspark.daemon", "json", True),  # This is what there is to mend.
        ("pyspark.daemon", "pyspark_ringdove", False),
        ("ringdove.spark.daemon", "json", False),
        ("ringdove.spark.daemon", "pyspark_ringdove", False),
    ],
)
def test_an_idle_worker_ends_in_silence(daemon, task, complains, tmp_path, socket_directory):
    (tmp_path / "pyspark_told.py").write_text(TOLD)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-m", daemon, "pyspark_told"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={
            **os.environ, "PYTHONPATH": path, "TASK": task,
            "SPARK_REUSE_WORKER": "1",
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": socket_directory,
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        },
    ) as process:  # fmt: skip
        (length,) = struct.unpack(">i", process.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as java:
            java.connect(process.stdout.read(length).decode())
            (worker,) = struct.unpack(">i", java.recv(4))
            ended = os.pidfd_open(worker)
        select.select([ended], [], [], 60)
        os.close(ended)
        _, said = process.communicate()  # Without standard input the daemon ends.
    assert (b"BrokenPipeError" in said) is complains, said
