"""The demo runs Spark for real, also on a machine without Java."""

import json
import subprocess

from server.running import PROGRAM


def test_the_demo_has_spark_check_every_message(environment_without_java, tmp_path):
    ran = subprocess.run(
        [*PROGRAM, "demo", "--messages", "20000", "--dir", str(tmp_path), "--json"],
        env=environment_without_java, capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode()
    report = json.loads(ran.stdout)
    assert report["spark_messages"] == report["spark_distinct"] == 20_000
    assert report["spark_damaged"] == 0
    assert report["spark_results"] == 6
