"""One of five servers is killed: consistent hashing against round-robin with exclusion (T3.8).

Consistent hashing binds each of many sources to one stripe, and a message for a server that is gone
waits for whoever takes over: that is what queues with order `key` do. Round-robin with exclusion
goes elsewhere as soon as a server has not answered within the slowdown detection time: that is what
loose queues do. Both are sent 30 KB messages at the same steady rate; server D is killed.

Ringdove's senders are told an error only when all attempts have failed; the document's were when
their server did not answer. So sends that took longer than one second are counted, too: a sender
who waits no longer takes them for errors. Counts are also given in seconds of the whole load, to
compare runs with other rates.

`detection` repeats the second method with other detection times.
"""

from __future__ import annotations

from statistics import mean, pstdev
from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.stage import Record, Scene, lost, per_bin, play, running
from ringdove.bench.measure import place
from ringdove.cli.output import watched
from ringdove.core.ring import Rings

if TYPE_CHECKING:
    from pathlib import Path

    Row = dict[str, Any]

HASHING, ROUND_ROBIN = "consistent hashing", "round-robin with exclusion"
DETECTION_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
DEFAULT_S = 0.4

#: A sender who waits longer than this takes it for an error.
LATE_S = 1.0
BIN_S = 0.5

#: The document: error replies at 1,200 messages per second.
_DOCUMENT = {HASHING: 2_379, ROUND_ROBIN: 214}
_DOCUMENT_RATE = 1_200

_SOURCES = 1_000
_VICTIM = "D"


def run(*, quick: bool = False) -> dict[str, Any]:
    """Both methods, then the detection times; see the module."""
    scene = Scene(40, 6.0) if quick else Scene(150, 20.0)
    kill_s = 2.0 if quick else 6.0
    cells = [(HASHING, DEFAULT_S), (ROUND_ROBIN, DEFAULT_S)]
    if not quick:
        cells += [
            (ROUND_ROBIN, detection_s) for detection_s in DETECTION_S if detection_s != DEFAULT_S
        ]
    found: dict[tuple[str, float], tuple[Row, list[Row]]] = {}
    with place(None) as data, running(data / "cluster", Rings(5)) as cluster:
        for number, (method, detection_s) in enumerate(watched(cells, "slowdown")):
            keys = _SOURCES if method == HASHING else 0
            played = scene._replace(keys=keys, slowdown_s=detection_s)
            record = play(cluster, f"slowdown-{number}", played, [(kill_s, _VICTIM)])
            found[method, detection_s] = _figures(record, played)
    methods = [{"method": m, **found[m, DEFAULT_S][0]} for m in (HASHING, ROUND_ROBIN)]
    detection = [
        {"detection_s": s, **row} for (m, s), (row, _) in sorted(found.items()) if m == ROUND_ROBIN
    ]
    timeline = [
        {"method": m, "detection_s": s, **tick} for (m, s), (_, ticks) in found.items()
        for tick in ticks if s in (DEFAULT_S, min(DETECTION_S))
    ]  # fmt: skip
    return {
        "methods": methods,
        "detection": detection,
        "timeline": timeline,
        "beside": _beside(methods, detection),
        "rate_per_s": scene.rate,
        "killed_at_s": kill_s,
    }


def _figures(record: Record, scene: Scene) -> tuple[Row, list[Row]]:
    """The figures of a run, and what it was like over time."""
    [kill_s] = record.kills_s
    good = [sent for sent in record.sent if sent.stripe >= 0]
    errors = [sent for sent in record.sent if sent.stripe < 0]
    late = [sent for sent in record.sent if sent.ended_s - sent.begun_s > LATE_S]
    acknowledged = per_bin([sent.ended_s for sent in good], BIN_S, scene.seconds)
    delayed = per_bin([sent.begun_s + LATE_S for sent in late], BIN_S, scene.seconds)
    after = acknowledged[int(kill_s / BIN_S) :]
    before = acknowledged[int(1 / BIN_S) : int(kill_s / BIN_S)]
    responses = sorted(sent.ended_s - sent.begun_s for sent in record.sent)
    row = {
        "sent": len(record.sent),
        "error_replies": len(errors),
        "over_1_s": len(late),
        "seconds_of_load": round((len(errors) + len(late)) / scene.rate, 2),
        "before_per_s": round(mean(before)),
        "after_per_s": round(mean(after)),
        "after_deviation": round(pstdev(after), 1),
        "lowest_per_s": round(min(after)),
        "p50_ms": round(1000 * responses[len(responses) // 2], 1),
        "worst_s": round(responses[-1], 2),
        "repeated": len(record.got) - len({got.number for got in record.got}),
        "lost": lost(record),
    }
    ticks = [
        {"at_s": number * BIN_S, "acknowledged_per_s": one, "over_1_s_per_s": other}
        for number, (one, other) in enumerate(zip(acknowledged, delayed, strict=True))
    ]
    return row, ticks


def _beside(methods: list[Row], detection: list[Row]) -> list[Row]:
    hashing, ours = methods
    shown = []
    for row in methods:
        document = _DOCUMENT[row["method"]]
        told = f"{document:,} ({document / _DOCUMENT_RATE:.2f} s of load)"
        here = row["error_replies"] + row["over_1_s"]
        shown.append(
            beside(f"errors, {row['method']}", told, f"{here} ({row['seconds_of_load']} s of load)")
        )
    kept = 1 - ours["seconds_of_load"] / (hashing["seconds_of_load"] or 1)
    by_time = {row["detection_s"]: row["after_per_s"] for row in detection}
    shortest = by_time.get(min(DETECTION_S))
    gap = f"{1 - shortest / by_time[DEFAULT_S]:.1%}" if shortest else None
    return [
        *shown,
        beside("fewer errors with exclusion", "92 %", f"{kept:.0%}"),
        beside("error replies by the system itself, with exclusion", 214, ours["error_replies"]),
        beside("throughput lost with 0.1 s instead of 0.4 s", "9 %", gap),
        beside("messages lost", 0, hashing["lost"] + ours["lost"]),
    ]


# -- the picture ----------------------------------------------------------------------------------


def plot(result: dict[str, Any], path: Path) -> None:
    """Throughput and late sends over time for both methods, and the detection times."""
    from ringdove.bench.plots import figure_of, grouped, save

    title = f"One of five servers killed at {result['rate_per_s']} messages/s of 30 KB (T3.8)"
    figure, panels = figure_of(3, title)
    throughput, errors, detection = panels
    for number, ((method, at), rows) in enumerate(_by_run(result["timeline"], grouped).items()):
        style: dict[str, Any] = {"linestyle": ("-", "--", ":")[number % 3]}
        label = method if method == HASHING else f"{method}, {at} s"
        x = [row["at_s"] for row in rows]
        throughput.plot(x, [row["acknowledged_per_s"] for row in rows], label=label, **style)
        errors.plot(x, [row["over_1_s_per_s"] for row in rows], label=label, **style)
    for axes in (throughput, errors):
        axes.axvline(result["killed_at_s"], color="grey", linewidth=0.8)
        axes.annotate("server D killed", (result["killed_at_s"], 0), (3, 3), fontsize=8,
                      textcoords="offset points", color="grey")  # fmt: skip
        axes.set_xlabel("time (s)")
        axes.set_ylim(bottom=0)
    throughput.set_title("throughput")
    throughput.set_ylabel("acknowledged per second")
    errors.set_title("sends without an answer for 1 s")
    errors.set_ylabel("per second")
    rows = result["detection"]
    x = [row["detection_s"] for row in rows]
    detection.errorbar(x, [row["after_per_s"] for row in rows],
                       yerr=[row["after_deviation"] for row in rows], marker="o", capsize=3,
                       label="after the kill: mean and deviation")  # fmt: skip
    detection.axvline(DEFAULT_S, color="grey", linewidth=0.8, linestyle=":",
                      label="the document's best, our default")  # fmt: skip
    detection.set_title("throughput by slowdown detection time")
    detection.set_xlabel("slowdown detection time (s)")
    detection.set_ylabel("acknowledged per second")
    detection.set_ylim(bottom=0)
    save(figure, panels, path)


def _by_run(rows: list[Row], grouped: Any) -> dict[tuple[str, float], list[Row]]:
    return {
        (method, at): mine
        for method, of_method in grouped(rows, "method").items()
        for at, mine in grouped(of_method, "detection_s").items()
    }
