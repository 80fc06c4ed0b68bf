"""Two neighbours are killed: same-direction against counter-rotating rings (T3.9).

Server D is killed, then E, under a steady load of 30 KB messages. Between the two, masters are put
in ring order, as the document's store promotes them; Redis by itself elects by offset and chance.
What is looked at: how many masters each server has (its share is two), how much the delivered
throughput dips, how long nothing is delivered, and how long the queue of every shard becomes.

All servers share the processors of this machine. So a server with three times its share is not
slower here than others, and the document's stop of five seconds, which came from that, need not
show; the masters per server are what would cause it.
"""

from __future__ import annotations

import itertools
import time
from statistics import mean
from typing import TYPE_CHECKING, Any

from experiments.beside import beside
from experiments.stage import Record, Scene, lengths, lost, per_bin, play, running
from ringdove.bench.measure import place
from ringdove.cli.output import watched
from ringdove.cluster import forming
from ringdove.core.ring import Rings

if TYPE_CHECKING:
    from pathlib import Path

    from ringdove.cluster.local import LocalCluster

    Row = dict[str, Any]

SAME, COUNTER = "same direction", "counter-rotating"
FIRST, SECOND = "D", "E"
SHARE = 2

#: Seconds between two looks at who is master of what.
_LOOK_S = 1.0


def run(*, quick: bool = False) -> dict[str, Any]:
    """Both layouts; see the module."""
    scene = Scene(30, 24.0) if quick else Scene(100, 40.0)
    kills_s = (2.0, 16.0) if quick else (8.0, 26.0)
    rows, masters, timeline = [], [], []
    for layout in watched([SAME, COUNTER], "rings"):
        rings = Rings(5, counter_rotating=layout == COUNTER)
        with place(None) as data, running(data / "cluster", rings) as cluster:
            looks = _Looks(cluster)
            kills = list(zip(kills_s, (FIRST, SECOND), strict=True))
            record = play(cluster, "rings", scene, kills, looks)
        rows.append({"layout": layout, **_figures(record, scene, rings, looks)})
        masters += [{"layout": layout, **look} for look in looks.found]
        timeline += [{"layout": layout, **tick} for tick in _ticks(record, scene)]
    return {
        "rings": rows,
        "masters": masters,
        "timeline": timeline,
        "beside": _beside(rows),
        "rate_per_s": scene.rate,
        "first_killed_at_s": kills_s[0],
        "second_killed_at_s": kills_s[1],
    }


class _Looks:
    """Looks at the cluster now and then; puts masters in order once the first server is gone."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._next_s = 0.0
        self._ordered = False
        #: Masters of each server, over time; none for one that is down.
        self.found: list[Row] = []

    def __call__(self, at_s: float) -> None:
        if at_s < self._next_s:
            return
        began_s = time.monotonic()
        status = self._cluster.status()
        held = [shard.master for shard in status.shards]
        counts = {
            name: held.count(name) if status.servers[name] != "down" else None
            for name in self._cluster.blueprint.rings.names
        }
        self.found.append({"at_s": round(at_s, 1), **counts})
        down = [name for name, state in status.servers.items() if state == "down"]
        if down == [FIRST] and status.serving and not self._ordered:
            forming.hand_back(self._cluster.blueprint)
            self._ordered = True
        self._next_s = at_s + time.monotonic() - began_s + _LOOK_S


def _figures(record: Record, scene: Scene, rings: Rings, looks: _Looks) -> Row:
    first_s, second_s = record.kills_s
    delivered = per_bin([got.at_s for got in record.got], 1.0, scene.seconds)
    accepted = per_bin([one.ended_s for one in record.sent if one.stripe >= 0], 1.0, scene.seconds)
    before = mean(delivered[1 : int(first_s)])
    failed = [rings.names.index(FIRST), rings.names.index(SECOND)]
    last = [count for name, count in looks.found[-1].items() if name in rings.names and count]
    after_s = sorted(got.at_s for got in record.got if second_s < got.at_s < scene.seconds)
    gaps_s = [b - a for a, b in itertools.pairwise([second_s, *after_s, scene.seconds])]
    longest = [max(lengths(record, at_s).values()) for at_s in range(int(scene.seconds))]
    return {
        "masters_expected": max(rings.load(failed).values()),
        "masters_found": max(last),
        "delivered_per_s": round(before),
        "accepted_lowest": round(min(accepted[int(first_s) : -1])),
        "lowest_after_first": round(min(delivered[int(first_s) : int(second_s)])),
        "lowest_after_second": round(min(delivered[int(second_s) : -1])),
        "longest_gap_s": round(max(gaps_s), 2),
        "longest_queue": max(longest),
        "error_replies": sum(sent.stripe < 0 for sent in record.sent),
        "worst_send_s": round(max(sent.ended_s - sent.begun_s for sent in record.sent), 2),
        "lost": lost(record),
    }


def _ticks(record: Record, scene: Scene) -> list[Row]:
    delivered = per_bin([got.at_s for got in record.got], 1.0, scene.seconds)
    accepted = per_bin([one.ended_s for one in record.sent if one.stripe >= 0], 1.0, scene.seconds)
    return [
        {
            "at_s": at_s,
            "accepted_per_s": accepted[at_s],
            "delivered_per_s": delivered[at_s],
            **lengths(record, at_s),
        }
        for at_s in range(int(scene.seconds))
    ]


def _beside(rows: list[Row]) -> list[Row]:
    same, counter = rows
    accepting = 1 - counter["accepted_lowest"] / counter["delivered_per_s"]
    dip = 1 - counter["lowest_after_second"] / counter["delivered_per_s"]
    return [
        beside("load of a server, same direction (shares)", 3, same["masters_found"] / SHARE),
        beside("load of a server, counter-rotating (shares)", 2, counter["masters_found"] / SHARE),
        beside("nothing delivered, same direction (s)", 5, same["longest_gap_s"]),
        beside("nothing delivered, counter-rotating (s)", 0, counter["longest_gap_s"]),
        beside("delivery dips for a second, counter-rotating", "20 %", f"{max(0.0, dip):.0%}"),
        beside("acceptance dips, counter-rotating", "20 %", f"{max(0.0, accepting):.0%}"),
        beside("messages lost", 0, same["lost"] + counter["lost"]),
    ]


# -- the picture ----------------------------------------------------------------------------------


def plot(result: dict[str, Any], path: Path) -> None:
    """For each layout: throughput, queue lengths of all shards, and masters of all servers."""
    from ringdove.bench.plots import figure_of, grouped, save

    title = f"Two neighbours killed at {result['rate_per_s']} messages/s of 30 KB (T3.9)"
    figure, panels = figure_of(6, title)
    masters = grouped(result["masters"], "layout")
    for at, (layout, rows) in enumerate(grouped(result["timeline"], "layout").items()):
        throughput, queues, servers = panels[3 * at : 3 * at + 3]
        x = [row["at_s"] for row in rows]
        throughput.plot(x, [row["accepted_per_s"] for row in rows], "--", label="accepted")
        throughput.plot(x, [row["delivered_per_s"] for row in rows], label="delivered")
        throughput.set_title(f"{layout}: throughput")
        throughput.set_ylabel("messages per second")
        shards = [name for name in rows[0] if len(name) == 2]
        for number, shard in enumerate(shards):
            style = "-" if shard[1] == "1" else "--"
            label = f"Q{shard[1]}-{shard[0]}"
            lengths_of = [row[shard] for row in rows]
            queues.plot(x, lengths_of, linestyle=style, color=f"C{number // 2}", label=label)
        queues.set_title(f"{layout}: queue lengths by shard")
        queues.set_ylabel("messages")
        looks = masters[layout]
        for server in (name for name in looks[0] if len(name) == 1):
            servers.step([row["at_s"] for row in looks], [row[server] for row in looks],
                         where="post", label=server)  # fmt: skip
        servers.set_title(f"{layout}: masters on each server")
        servers.set_ylabel("masters (a share is 2)")
        servers.set_ylim(-0.2, 6.5)
        for axes in (throughput, queues, servers):
            for which, server in (("first", FIRST), ("second", SECOND)):
                at_s = result[f"{which}_killed_at_s"]
                axes.axvline(at_s, color="grey", linewidth=0.8)
                axes.annotate(f"{server} killed", (at_s, 0), (3, 3), fontsize=8, color="grey",
                              textcoords="offset points")  # fmt: skip
            axes.set_xlabel("time (s)")
        throughput.set_ylim(bottom=0)
    top = max(axes.get_ylim()[1] for axes in panels[1::3])
    for axes in panels[1::3]:
        axes.set_ylim(0, top)
    save(figure, panels, path)
