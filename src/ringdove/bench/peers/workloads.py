"""What is measured: each workload has its figures, and a figure says whether more of it is better.

A rate counts only when nothing was lost. Sizes follow from speed: a broker that is a hundred times
slower is given fewer messages, so that a run takes about the same time for all; the first trial is
small, and grows until its time can be trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.bench.load import percentile
from ringdove.bench.peers import idle
from ringdove.bench.peers.ways import Driven, Flow, Load

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.bench.peers.peer import Peer, Server
    from ringdove.bench.peers.ways import Way

_GAP_S = 0.01
#: A trial is trusted when it took this share of the time wanted.
_TRUSTED = 0.3
#: A backlog is no larger than what can be sent in so many times the length of a run.
_FILL = 5


class Options(NamedTuple):
    """How much is measured."""

    #: Messages of a run, at most.
    messages: int = 2_000_000
    #: Seconds of a run, about.
    seconds: float = 1.0
    rounds: int = 3
    #: Messages that wait before they are drained, at most.
    backlog: int = 1_000_000
    #: Consumers that wait.
    idle: int = 10_000
    #: Messages of a latency.
    latencies: int = 300


#: A run of seconds for each peer, to see that everything works; its figures mean little.
QUICK = Options(messages=20_000, seconds=0.1, rounds=1, backlog=20_000, idle=200, latencies=30)


class Stand(NamedTuple):
    """A way to drive a server that runs."""

    peer: Peer
    way: Way
    server: Server
    synced: bool


class Figure(NamedTuple):
    """A number that can be compared."""

    title: str
    unit: str
    more_is_better: bool = True


FIGURES = {
    "messages_per_s": Figure("rate", "/s"),
    "p50_ms": Figure("p50", "ms", more_is_better=False),
    "p99_ms": Figure("p99", "ms", more_is_better=False),
    "fill_per_s": Figure("fill", "/s"),
    "drain_per_s": Figure("drain", "/s"),
    "kb_per_consumer": Figure("memory each", "KB", more_is_better=False),
    "wake_ms": Figure("wake", "ms", more_is_better=False),
}

Row = dict[str, Any]


class Workload(NamedTuple):
    """One thing to measure.

    `run` is given a stand, a queue, and how many messages of 100 bytes make a run.
    """

    title: str
    run: Callable[[Stand, str, int, Options], Row]
    #: Whether it has to be known how many messages make a run.
    sized: bool = True
    rounds_max: int = 100
    #: Only the best way of each peer takes part.
    best_only: bool = False
    #: Only unsynced: nothing is sent that a disk would see.
    unsynced_only: bool = False


# -- runs -----------------------------------------------------------------------------------------


def _flow(size: int, producers: int, share: float) -> Callable[[Stand, str, int, Options], Row]:
    """Send and receive at once; so many of the messages as the share says."""

    def run(stand: Stand, queue: str, messages: int, _: Options) -> Row:
        load = Load(max(producers, int(messages * share)), size, producers)
        return _told(stand.way.flow(stand.peer, stand.server, queue, load), "messages_per_s")

    return run


def _latency(stand: Stand, queue: str, _: int, options: Options) -> Row:
    assert isinstance(stand.way, Driven)  # Load tools do not take part.
    count = options.latencies
    took_s = stand.way.latencies(stand.peer, stand.server, queue, count, 100, _GAP_S)
    row: Row = {"messages": count, "lost": count - len(took_s)}
    if len(took_s) == count:
        took_ms = [took * 1e3 for took in took_s]
        row |= {f"p{share}_ms": percentile(took_ms, share) for share in (50, 99)}
    return row


def _backlog(stand: Stand, queue: str, messages: int, options: Options) -> Row:
    load = Load(min(options.backlog, messages * _FILL), 100)
    filled, drained = stand.way.backlog(stand.peer, stand.server, queue, load)
    row = _told(drained, "drain_per_s")
    if not drained.lost:
        row["fill_per_s"] = round(filled.per_s)
    return row


def _idle(stand: Stand, queue: str, _: int, options: Options) -> Row:
    return idle.measure(stand.peer, stand.server, queue, options.idle, options.seconds)


def _told(flow: Flow, name: str) -> Row:
    row: Row = {
        "messages": flow.messages,
        "lost": flow.lost,
        "duplicates": flow.duplicates,
        "out_of_order": flow.out_of_order,
    }
    if flow.server_cpu_s is not None:
        row["server_cpu_us"] = round(flow.server_cpu_s / flow.messages * 1e6, 2)
    if not flow.lost:
        row[name] = round(flow.per_s)
    return row


WORKLOADS = {
    "100-bytes": Workload("1 producer, 1 consumer, 100 B", _flow(100, 1, 1)),
    "1-kb": Workload("1 producer, 1 consumer, 1 KB", _flow(1_000, 1, 0.25)),
    "50-producers": Workload("50 producers, 1 consumer, 100 B", _flow(100, 50, 0.5)),
    "latency": Workload("one message of 100 B every 10 ms", _latency, sized=False, rounds_max=1),
    "backlog": Workload("fill a queue with 100 B, then drain it", _backlog, rounds_max=1,
                        best_only=True),
    "idle": Workload("consumers that wait", _idle, sized=False, rounds_max=1, best_only=True,
                     unsynced_only=True),
}  # fmt: skip


# -- sizes ----------------------------------------------------------------------------------------


def fitting(
    stand: Stand, options: Options, fresh: Callable[[], tuple[str, Callable[[], None]]]
) -> int:
    """How many messages of 100 bytes make a run of the length wanted; tried on fresh queues."""
    messages = stand.way.fixed or stand.way.trial
    if stand.way.fixed or messages >= options.messages:
        return min(messages, options.messages)
    while True:
        queue, drop = fresh()
        try:
            flow = stand.way.flow(stand.peer, stand.server, queue, Load(messages, 100))
        finally:
            drop()
        wanted = min(options.messages, max(stand.way.trial, int(flow.per_s * options.seconds)))
        if flow.seconds >= _TRUSTED * options.seconds or wanted <= messages:
            return wanted
        messages = min(wanted, messages * 25)
