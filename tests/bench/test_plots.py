"""Figures of the benchmarks whose runs are tested elsewhere."""

from ringdove.bench.plots import plot_e2e, plot_latency


def test_end_to_end_rates_are_drawn(tmp_path):
    rows = [
        {"durability": d, "size": size, "producers": n, "messages_per_s": 10**6 / size * n}
        for d in ("disk", "memory")
        for n in (1, 50)
        for size in (100, 1_000)
    ]
    plot_e2e({"e2e": rows}, tmp_path / "e2e.png")
    assert (tmp_path / "e2e.png").read_bytes().startswith(b"\x89PNG")


def test_latencies_are_drawn(tmp_path):
    rows = [
        {"durability": d, "what": what, "p50_us": 100, "p99_us": 300, "p999_us": 900}
        for d in ("disk", "memory")
        for what in ("send", "delivery")
    ]
    plot_latency({"latency": rows}, tmp_path / "latency.png")
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")
