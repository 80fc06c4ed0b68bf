"""A cluster in rings whose servers talk to each other, and to clients, over a network that can fail.

Every server has a loopback address of its own. Its processes listen on ports that nobody is told;
what they announce are ports of the proxy (network.py), and their own calls come from the server's
address, so that the proxy knows both ends of every connection.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Self
from unittest import mock

from fabric.harness.network import CLIENTS, Network
from ringdove.cluster import forming, local, processes
from ringdove.cluster.layout import Tuning, lay_out, redis_conf
from ringdove.cluster.local import LocalCluster
from ringdove.core.ring import Rings
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ringdove.cluster.layout import Blueprint, Member

#: Short, so that a test need not wait for a take-over, and long enough for two busy cores.
TUNING = Tuning(fsync="always", node_timeout_ms=1_500, memory_bytes=64 * 1024 * 1024)


#: Seconds in which everything must be in order again.
_MEND_S = 180.0


def address_of(server: int) -> str:
    """The loopback address of a server."""
    return f"127.1.0.{server + 1}"


class WiredCluster(LocalCluster):
    """A `LocalCluster` behind a `Network`; the network ends with it."""

    network: Network
    _real: dict[str, tuple[int, int]]

    @classmethod
    def wire(
        cls, directory: Path, rings: Rings | None = None, tuning: Tuning = TUNING, seed: int = 1
    ) -> Self:
        """A new cluster; nothing of it is started but the network."""
        rings = rings or Rings(5)
        hosts = {server: address_of(server) for server in range(rings.servers)}
        count = max(map(len, rings.placement()))
        ports = {n: iter(processes.free_ports(4 * count, hosts[n])) for n in hosts}
        blueprint = lay_out(
            rings, tuning,
            lambda server, _ring: hosts[server],
            lambda server, *_: (next(ports[server]), next(ports[server])),
        )  # fmt: skip
        directory.mkdir(parents=True)
        record = local._Record(blueprint=blueprint, pids={}, stopped=True)
        cluster = cls(directory.absolute(), record)
        cluster._save()
        cluster.network = Network(seed)
        cluster._real = {}
        for server, host in hosts.items():
            cluster.network.name(host, rings.names[server])
            for member in blueprint.on(rings.names[server]):
                cluster._real[member.name] = (next(ports[server]), next(ports[server]))
                cluster._lay_wires(member)
        return cluster

    def _lay_wires(self, member: Member) -> None:
        port, bus_port = self._real[member.name]
        self.network.listen(member.server, member.host, member.port, port)
        self.network.listen(member.server, member.host, member.bus_port, bus_port)

    def _conf(self, blueprint: Blueprint, member: Member, directory: str) -> str:
        port, bus_port = self._real[member.name]
        lines = redis_conf(blueprint, member, directory).splitlines()
        kept = [line for line in lines if not line.startswith(("port ", "cluster-port "))]
        return "\n".join([
            *kept,
            f"port {port}",
            f"cluster-port {bus_port}",
            f"cluster-announce-port {member.port}",
            f"cluster-announce-bus-port {member.bus_port}",
            f"replica-announce-port {member.port}",
            f"bind-source-addr {member.host}",
            "",
        ])  # fmt: skip

    def _start(
        self, members: Sequence[Member], show: forming.Show = forming.ignore
    ) -> list[Member]:
        with mock.patch.object(local, "redis_conf", self._conf):
            return super()._start(members, show)

    @property
    def names(self) -> list[str]:
        """The servers."""
        return self.blueprint.rings.names

    def others(self, *servers: str) -> list[str]:
        """The servers that are not among these."""
        return [name for name in self.names if name not in servers]

    def master(self, shard: str) -> Member:
        """The process that serves a shard now, waited for."""
        found: list[Member] = []

        def served() -> bool:
            members = self.blueprint.holding(shard)
            views = forming.look(member.address for member in members)
            master = forming.master_of(self.blueprint, shard, views)
            found[:] = [master] if master is not None else []
            return bool(found)

        forming.wait_until(served, forming.FORM_S, lambda: f"nobody serves {shard}")
        return found[0]

    # -- faults ---------------------------------------------------------------------------------

    def kill_process(self, member: Member) -> None:
        """Kill one process."""
        processes.kill(self.running([member]))

    def bounce(self, member: Member) -> float:
        """Kill a process and start it at once, before anybody notices; seconds it was away."""
        with self._alone():
            running = self.running([member])
            began_s = time.monotonic()
            processes.kill(running)
            program, conf = processes.redis_program(), self._place(member) / "redis.conf"
            self._record.pids[member.name] = processes.start(program, conf).pid
            away_s = time.monotonic() - began_s
            self._save()
        return away_s

    def pause_process(self, member: Member) -> None:
        """Stop one process where it is."""
        processes.pause(self.running([member]))

    def partition(self, *servers: str, clients: bool = False) -> None:
        """Cut servers off from the others; with `clients`, from controllers and clients too."""
        others = self.others(*servers)
        self.network.block(servers, [*others, CLIENTS] if clients else others)

    # -- coming back ----------------------------------------------------------------------------

    def mend(self) -> None:
        """Undo every fault: a calm network, every copy in sync, masters where the rings say."""
        self.network.calm()
        processes.send_signal(self.running(), signal.SIGCONT)
        for server in self.names:
            self._start_missing(server)
        forming.wait_until(self._in_order, _MEND_S, lambda: "the cluster did not come into order")

    def _in_order(self) -> bool:
        """Whether every shard has its first master and its copies; on a busy machine that takes time.

        A copy that is not in sync at that moment is not handed its shard.
        """
        if not forming.follow_masters(self.blueprint):
            return False
        try:
            forming.await_settled(self.blueprint, timeout_s=forming.FORM_S)
            forming.hand_back(self.blueprint)
        except StoreUnavailable:
            return False
        masters = forming.masters_of(self.blueprint, forming.look_around(self.blueprint))
        return all(self.blueprint.holding(shard)[0] == one for shard, one in masters.items())

    def _start_missing(self, server: str) -> None:
        members = self.blueprint.on(server)
        alive = {process.conf for process in self.running(members)}
        missing = [m for m in members if self._place(m) / "redis.conf" not in alive]
        if missing:
            forming.await_taken_over(self.blueprint, server)
            with self._alone():
                self._put_in_place(self._start(missing))

    def close(self) -> None:
        """End every process, and the network."""
        try:
            processes.kill(self.running())
        finally:
            self.network.close()
