"""The benchmark of parked receivers: each message reaches one, and none is left over."""

import resource

from ringdove.bench import parked
from ringdove.bench.plots import plot_parked


def test_a_quick_run_delivers_every_message_to_a_parked_receiver(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    result = parked.run(tmp_path, receivers=250, quick=True)
    [row] = result["parked"]
    assert (row["receivers"], row["queues"], row["sends"]) == (250, 3, 100)
    assert result["lost"] == result["left"] == result["failed"] == 0
    assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
    assert not list(tmp_path.iterdir())


def test_a_plot_is_drawn(tmp_path):
    rows = [
        {"receivers": n, "idle_cpu_share": n / 1e6, "server_mb": n / 100, "kb_per_receiver": 10,
         "p50_ms": 1, "p99_ms": 2}
        for n in (100, 1_000)
    ]  # fmt: skip
    plot_parked({"parked": rows}, tmp_path / "parked.png")
    assert (tmp_path / "parked.png").read_bytes().startswith(b"\x89PNG")
