"""The benchmark of the MQTT gateway: what it asks for is done, and its picture is drawn."""

import shutil

from ringdove.bench import mqtt
from ringdove.bench.plots import plot_mqtt


def test_a_quick_run_compares_with_mosquitto_if_it_is_there(tmp_path):
    result = mqtt.run(tmp_path, connections=5, seconds=0.3, idle=20, quick=True)
    servers = ["ringdove"] + ["mosquitto"] * (shutil.which("mosquitto") is not None)
    for name in ("latency", "idle"):
        assert [row["server"] for row in result[name]] == servers
    assert [(row["server"], row["qos"]) for row in result["publish"]] == [
        (server, qos) for server in servers for qos in (0, 1, 2)
    ]
    for row in result["publish"] + result["connections"]:
        assert min(row["publishes_per_s"], row["per_cpu_s"]) > 0
    assert all(row["devices"] == 20 and row["resident_mb"] > 1 for row in result["idle"])
    assert result["qos_1_per_s"] > 0
    plot_mqtt(result, tmp_path / "mqtt.png")
    assert (tmp_path / "mqtt.png").read_bytes().startswith(b"\x89PNG")
