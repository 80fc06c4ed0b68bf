"""The run: all servers of one durability at once, all their ways in turns, round after round."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

from ringdove.bench.measure import OTHER_FILES, open_files, place
from ringdove.bench.peers.beanstalkd import Beanstalkd
from ringdove.bench.peers.elasticmq import ElasticMQ
from ringdove.bench.peers.kafka import Kafka
from ringdove.bench.peers.moto import Moto
from ringdove.bench.peers.nats import Nats
from ringdove.bench.peers.peer import use_clients
from ringdove.bench.peers.rabbitmq import RabbitMQ
from ringdove.bench.peers.redis import Redis
from ringdove.bench.peers.report import ratios
from ringdove.bench.peers.ringdove import Ringdove
from ringdove.bench.peers.sqs import RingdoveSqs
from ringdove.bench.peers.workloads import FIGURES, WORKLOADS, Options, Stand, fitting
from ringdove.cli.output import progress, say
from ringdove.errors import InvalidArgument, RingdoveError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ringdove.bench.peers.peer import Peer
    from ringdove.bench.peers.workloads import Row, Workload

_OURS: tuple[type[Peer], ...] = (Ringdove, RingdoveSqs)
_PEERS: tuple[type[Peer], ...] = (Kafka, Redis, Nats, RabbitMQ, Beanstalkd, Moto, ElasticMQ)

NAMES = tuple(peer.name for peer in _PEERS)


def run(
    directory: Path | None,
    peers: Sequence[str] = NAMES,
    workloads: Sequence[str] = tuple(WORKLOADS),
    options: Options | None = None,
    durabilities: Sequence[str] = ("unsynced", "synced"),
) -> dict[str, Any]:
    """Ratios first; then all figures, what the peers are, and what was left out and why."""
    _check("peer", peers, NAMES)
    _check("workload", workloads, WORKLOADS)
    race = _Race(options or Options(), workloads)
    busy = f"load average {os.getloadavg()[0]:.1f} before the run"
    with open_files(race.options.idle + OTHER_FILES), place(directory) as data:
        runners = race.obtained(
            [*_ours(peers), *(known() for known in _PEERS if known.name in peers)]
        )
        for durability in durabilities:
            race.measure(runners, data / durability, synced=durability == "synced")
    return {
        "ratios": ratios(race.figures),
        "figures": race.figures,
        "peers": [_facts(peer) for peer in runners],
        "ways": [
            {"peer": peer.title, "client": way.client, "style": way.style, "how": way.how}
            for peer in runners
            for way in peer.ways
        ],
        "left_out": race.left_out,
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, {busy}",
        **race.options._asdict(),
    }


def _check(what: str, given: Sequence[str], known: Sequence[str] | dict[str, Any]) -> None:
    for name in given:
        if name not in known:
            raise InvalidArgument(f"There is no {what} {name!r}; there are: {', '.join(known)}.")


def _ours(peers: Sequence[str]) -> list[Peer]:
    """Ringdove in the families that are asked for."""
    families = {peer.family for peer in _PEERS if peer.name in peers}
    return [own() for own in _OURS if own.family in families]


def _facts(peer: Peer) -> Row:
    return {"peer": peer.title, "version": peer.version(), "synced": peer.synced or "cannot",
            "unsynced": peer.unsynced}  # fmt: skip


class _Race:
    """What has been measured so far, and what was left out."""

    def __init__(self, options: Options, workloads: Sequence[str]) -> None:
        self.options = options
        self.figures: list[Row] = []
        self.left_out: list[Row] = []
        self._workloads = {name: WORKLOADS[name] for name in WORKLOADS if name in workloads}
        self._numbers = itertools.count()
        self._sizes: dict[tuple[str, str, str, bool], int] = {}

    def obtained(self, peers: list[Peer]) -> list[Peer]:
        """Those that could be had."""
        found = []
        for peer in peers:
            say(f"Obtaining {peer.title}")
            try:
                peer.obtain()
                use_clients(peer.clients_path())
                found.append(peer)
            except RingdoveError as error:
                self._leave_out(peer, "", "all", str(error))
        return found

    def measure(self, peers: list[Peer], directory: Path, *, synced: bool) -> None:
        """All workloads with one durability."""
        with ExitStack() as stack:
            stands = self._started(peers, directory, stack, synced=synced)
            for name, workload in self._workloads.items():
                if not (synced and workload.unsynced_only):
                    self._measure_workload(name, workload, stands)

    def _started(
        self, peers: list[Peer], directory: Path, stack: ExitStack, *, synced: bool
    ) -> list[Stand]:
        """Start every peer that can be had with this durability."""
        stands = []
        for peer in peers:
            if synced and not peer.synced:
                self._leave_out(peer, "", "synced", "it keeps messages in memory only")
                continue
            say(f"Starting {peer.title}, {'synced' if synced else 'unsynced'}")
            try:
                server = stack.enter_context(peer.running(directory / peer.name, synced))
            except RingdoveError as error:
                self._leave_out(peer, "", "all", str(error))
                continue
            stands += [Stand(peer, way, server, synced) for way in peer.ways]
        return stands

    def _measure_workload(self, name: str, workload: Workload, stands: list[Stand]) -> None:
        stands = [stand for stand in stands if self._takes_part(name, workload, stand)]
        rounds = min(self.options.rounds, workload.rounds_max)
        rows: dict[int, list[Row]] = {at: [] for at in range(len(stands))}
        label = f"{name}, {'synced' if stands and stands[0].synced else 'unsynced'}"
        with progress(label, rounds * len(stands)) as show:
            for number in range(rounds):
                # Every other round backwards: nobody always follows the same neighbour.
                order = list(rows) if number % 2 == 0 else list(reversed(rows))
                for done, at in enumerate(order, 1):
                    row = self._one(name, workload, stands[at])
                    if row is None:
                        del rows[at]
                    else:
                        rows[at].append(row)
                    show(number * len(stands) + done)
        self.figures += [
            {**_who(name, stands[at]), **summary(found)} for at, found in rows.items() if found
        ]

    def _takes_part(self, name: str, workload: Workload, stand: Stand) -> bool:
        peer, way = stand.peer, stand.way
        if workload.best_only and way.client != peer.ways[0].client:
            return False
        if name in peer.cannot:
            self._leave_out(peer, "", name, peer.cannot[name])
            return False
        return way.workloads is None or name in way.workloads

    def _one(self, name: str, workload: Workload, stand: Stand) -> Row | None:
        """One run on a queue of its own; None when it failed."""
        try:
            messages = self._size(stand) if workload.sized else 0
            queue, drop = self._fresh(stand)
            try:
                return workload.run(stand, queue, messages, self.options)
            finally:
                drop()
        except Exception as error:  # noqa: BLE001  client libraries raise whatever they like
            self._leave_out(stand.peer, stand.way.client, name, str(error) or repr(error))
            return None

    def _size(self, stand: Stand) -> int:
        key = (stand.peer.name, stand.way.client, stand.way.style, stand.synced)
        if key not in self._sizes:
            self._sizes[key] = fitting(stand, self.options, lambda: self._fresh(stand))
        return self._sizes[key]

    def _fresh(self, stand: Stand) -> tuple[str, Callable[[], None]]:
        """A new queue, and how to be rid of it."""
        queue = f"peers-{next(self._numbers)}"
        stand.peer.create(stand.server, queue, stand.synced)

        def drop() -> None:
            with contextlib.suppress(Exception):  # The run's own failure says more.
                stand.peer.drop(stand.server, queue)

        return queue, drop

    def _leave_out(self, peer: Peer, client: str, what: str, reason: str) -> None:
        row = {"peer": peer.title, "client": client, "what": what, "reason": reason}
        if row not in self.left_out:
            self.left_out.append(row)


def _who(name: str, stand: Stand) -> Row:
    return {
        "workload": name,
        "durability": "synced" if stand.synced else "unsynced",
        "peer": stand.peer.title,
        "family": stand.peer.family,
        "client": stand.way.client,
        "style": stand.way.style,
    }


def summary(rows: list[Row]) -> Row:
    """Medians of the figures over the rounds; none where a round lost messages or has no such."""
    found: Row = {"messages": rows[-1].get("messages")}
    for name in ("lost", "duplicates", "out_of_order"):
        told = [row[name] for row in rows if row.get(name) is not None]
        found[name] = sum(told) if told else None
    for name in (*FIGURES, "server_cpu_us", "idle_cpu_share", "consumers"):
        told = [row.get(name) for row in rows]
        found[name] = None if None in told else median(told)
    return found
