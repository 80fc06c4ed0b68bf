"""The demo runs as a whole, Spark included, also on a machine without Java."""

import json
import os
import subprocess

import pytest

from server.running import PROGRAM

pytestmark = pytest.mark.skipif(
    not os.environ.get("RINGDOVE_SLOW"), reason="minutes; in make torture, and in make demo"
)


@pytest.fixture
def demo(environment_without_java, tmp_path):
    """The report of a short demo, and what it said meanwhile."""
    ran = subprocess.run(
        [*PROGRAM, "demo", "--seconds", "10", "--dir", str(tmp_path / "demo"), "--json"],
        env=environment_without_java, capture_output=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode()
    return json.loads(ran.stdout), ran.stderr.decode()


def test_every_reading_is_accounted_for_whatever_was_killed(demo):
    report, said = demo
    assert report["acknowledged"] == report["sent"] > 1_000
    assert report["consumed"] == report["spark_readings"] == report["acknowledged"]
    assert (report["lost"], report["damaged"], report["spark_lost"]) == (0, 0, 0)
    assert {"consumer", "worker"} == set(report["killed"])
    assert "/console" in said
