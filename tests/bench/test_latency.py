"""The benchmark of single messages: everything is timed, asleep and awake."""

import os

from ringdove.bench import latency


def test_a_short_run_times_everything_in_turns(tmp_path):
    cores = os.sched_getaffinity(0)
    times = latency._in_turns(tmp_path, size=100, count=20)
    spun = {(d, f"{w}, spinning") for d in ("disk", "memory") for w in ("delivery", "send")}
    assert spun < times.keys()
    assert {len(found) for found in times.values()} == {20}
    assert all(found > 0 for own in times.values() for found in own)
    row = latency._row("disk", "delivery", times["disk", "delivery"])
    assert 0 < row["p50_us"] <= row["p99_us"] <= row["p999_us"]
    assert os.sched_getaffinity(0) == cores
