"""The benchmark of the SQS dialect: what it asks for is done, and its picture is drawn."""

from ringdove.bench import sqs
from ringdove.bench.plots import plot_sqs


def test_a_quick_run_compares_with_moto(tmp_path):
    result = sqs.run(tmp_path, connections=5, seconds=0.5, parked=50, quick=True)
    assert [row["server"] for row in result["sqs"]] == ["ringdove", "moto"]
    for row in result["sqs"]:
        assert min(value for name, value in row.items() if name.endswith("_per_s")) > 0
    [parked] = result["parked"]
    assert parked["answered"] == parked["long_polls"] == 50
    assert [row["waiting"] for row in result["fifo"]] == [200, 20_000]
    assert not list(tmp_path.iterdir())


def test_a_plot_is_drawn(tmp_path):
    rows = [
        {"server": name, "connections": 50, "send_per_s": 10 * n, "receive_delete_per_s": 5 * n}
        for n, name in enumerate(("ringdove", "moto"), 1)
    ]
    plot_sqs({"sqs": rows}, tmp_path / "sqs.png")
    assert (tmp_path / "sqs.png").read_bytes().startswith(b"\x89PNG")
