"""The layout of a cluster: which process listens where, and the configuration of each.

A `Blueprint` is all there is to know about a cluster in rings before it runs. It is written as JSON
beside a local cluster's data and into a plan; its version stands in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import msgspec

from ringdove.core.ring import COPIES_MAX, Rings, server_name, server_number
from ringdove.errors import InvalidArgument
from ringdove.stores.fabric.wire import Login, NodeAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringdove.core.ring import Process, Shard

    #: The host of a process, by server and ring; and its port and that of the cluster's own talk,
    #: by server, ring and rank.
    Hosts = Callable[[int, int], str]
    Ports = Callable[[int, int, int], tuple[int, int]]

#: The version of the JSON form of a blueprint. Version 1 had one order and nobody
#: leaving.
BLUEPRINT_VERSION = 2

#: Milliseconds of silence after which a process counts as failed.
NODE_TIMEOUT_MS, NODE_TIMEOUT_MS_MIN, NODE_TIMEOUT_MS_MAX = 2_000, 500, 60_000

#: The least memory of a process: Redis itself needs some, and its copies' backlog.
MEMORY_BYTES_MIN = 16 * 1024 * 1024

#: What a master keeps for copies that were cut off: a part of its memory, at least 1 MiB.
_BACKLOG_PART = 16
_BACKLOG_BYTES_MIN = 1024 * 1024


#: The append-only file of a process that is to begin with a picture of its data: files in
#: appendonlydir. The picture is the base; what comes later follows in another, empty at first.
BASE_FILE, LATER_FILE = "appendonly.aof.1.base.rdb", "appendonly.aof.1.incr.aof"
MANIFEST_FILE = "appendonly.aof.manifest"
MANIFEST = f"file {BASE_FILE} seq 1 type b\nfile {LATER_FILE} seq 1 type i\n"


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may differ from cluster to cluster."""

    fsync: Literal["always", "everysec"] = "always"
    node_timeout_ms: int = NODE_TIMEOUT_MS
    #: Memory for data of each process.
    memory_bytes: int = 1024 * 1024 * 1024


class Member(msgspec.Struct, frozen=True):
    """One Redis process of the cluster."""

    server: str
    shard: str
    #: 0: the shard's master while all is well; then the order of promotion.
    rank: int
    host: str
    port: int
    bus_port: int

    @property
    def name(self) -> str:
        """Unique in the cluster: the copy of A1 on server B is B/A1."""
        return f"{self.server}/{self.shard}"

    @property
    def address(self) -> NodeAddress:
        """Where it answers."""
        return NodeAddress(self.host, self.port)


class Blueprint(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster in rings: its shape, its settings, and every process."""

    version: int = BLUEPRINT_VERSION
    #: The servers that shards were dealt out for.
    servers: int
    copies: int
    counter_rotating: bool = True
    tuning: Tuning
    members: list[Member]
    #: The servers there are, in ring order; empty: as they were dealt.
    order: list[str] = []
    #: Processes of the layout before: they go when others have what they hold.
    leaving: list[Member] = []
    #: What processes ask of each other and of everybody else; empty: nothing.
    password: str = ""
    #: Of a plan: the addresses of each server on the first and the second network.
    hosts: dict[str, list[str]] = {}
    #: Of a plan: where hosts keep data.
    data: str = ""

    @property
    def rings(self) -> Rings:
        """The shape: a shard is at home where its first member is."""
        homes = {member.shard: member.server for member in self.members if member.rank == 0}
        dealt = Rings(self.servers, self.copies, self.counter_rotating)
        return replace(
            dealt,
            order=tuple(map(server_number, self.order)) or dealt.order,
            homes=tuple(server_number(homes[shard.name]) for shard in dealt.shards),
        )

    @property
    def login(self) -> Login:
        """How to be let in."""
        return Login(password=self.password)

    @property
    def shape(self) -> Blueprint:
        """The same without password and those that are leaving: all that a backup needs to know."""
        return msgspec.structs.replace(self, leaving=[], password="")

    @property
    def stage(self) -> Blueprint:
        """The same with the processes that are leaving: they come last in every shard."""
        return msgspec.structs.replace(self, members=[*self.members, *self.leaving])

    @property
    def shards(self) -> dict[str, Shard]:
        """The shards by name, in the order of their slots."""
        return {shard.name: shard for shard in self.rings.shards}

    @property
    def url(self) -> str:
        """What a store connects to: one process of each server."""
        places = ",".join(str(self.on(name)[0].address) for name in self.rings.names)
        copies = self.rings.holders_count
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{secret}{places}" + (f"?copies={copies}" if copies < COPIES_MAX else "")

    def on(self, server: str) -> list[Member]:
        """The processes of a server."""
        found = [member for member in self.members if member.server == server]
        if not found:
            names = ", ".join(self.rings.names)
            raise InvalidArgument(f"There is no server {server!r}; the cluster has {names}.")
        return found

    def holding(self, shard: str) -> list[Member]:
        """The processes that hold a shard, in the order of promotion."""
        found = [member for member in self.members if member.shard == shard]
        return sorted(found, key=lambda member: member.rank)


def lay_out(rings: Rings, tuning: Tuning, hosts: Hosts, ports: Ports) -> Blueprint:
    """The blueprint of a new cluster."""
    check_tuning(tuning)
    return Blueprint(
        servers=rings.servers,
        copies=rings.copies,
        counter_rotating=rings.counter_rotating,
        tuning=tuning,
        members=[
            _member(process, hosts, ports) for server in rings.placement() for process in server
        ],
        order=rings.names,
    )


def rearrange(former: Blueprint, rings: Rings, hosts: Hosts, ports: Ports) -> Blueprint:
    """The blueprint of a cluster whose servers change; hosts and ports are for new processes.

    What holds a shard on a server now and will do so stays. The others are leaving.
    """
    known = {member.name: member for member in former.stage.members}
    members = []
    for process in (process for server in rings.placement() for process in server):
        name = f"{server_name(process.server)}/{process.shard.name}"
        found = known.pop(name, None)
        members.append(
            msgspec.structs.replace(found, rank=process.rank)
            if found
            else _member(process, hosts, ports)
        )
    leaving = [msgspec.structs.replace(member, rank=COPIES_MAX) for member in known.values()]
    return msgspec.structs.replace(
        former,
        version=BLUEPRINT_VERSION,
        members=members,
        order=rings.names,
        leaving=leaving,
    )


def _member(process: Process, hosts: Hosts, ports: Ports) -> Member:
    server, shard, rank = process
    host = hosts(server, shard.ring)
    return Member(server_name(server), shard.name, rank, host, *ports(server, shard.ring, rank))


def check_tuning(tuning: Tuning) -> None:
    """Refuse what no cluster should run with."""
    if not NODE_TIMEOUT_MS_MIN <= tuning.node_timeout_ms <= NODE_TIMEOUT_MS_MAX:
        raise InvalidArgument(
            f"A node timeout of {tuning.node_timeout_ms} ms is outside {NODE_TIMEOUT_MS_MIN} to "
            f"{NODE_TIMEOUT_MS_MAX} ms; 1,000 to 5,000 ms are usual."
        )
    if tuning.memory_bytes < MEMORY_BYTES_MIN:
        raise InvalidArgument(
            f"{tuning.memory_bytes} bytes are too little memory for a Redis process: give it at "
            f"least {MEMORY_BYTES_MIN >> 20} MiB."
        )


def redis_conf(blueprint: Blueprint, member: Member, directory: str, logfile: str = "") -> str:
    """The redis.conf of a process that keeps its data in a directory."""
    lines = [
        f"# {member.name}: {_purpose(blueprint, member)}. Written by Ringdove.",
        "",
        *_place(member, directory, logfile),
        *_secrets(blueprint),
        "",
        "# What is acknowledged is on disk; nothing is ever evicted.",
        "appendonly yes",
        f"appendfsync {blueprint.tuning.fsync}",
        'save ""',
        f"maxmemory {blueprint.tuning.memory_bytes}",
        "maxmemory-policy noeviction",
        "",
        *_replication(blueprint, member),
        "",
        *_cluster(blueprint, member),
    ]
    return "\n".join(lines) + "\n"


def _purpose(blueprint: Blueprint, member: Member) -> str:
    slots = blueprint.rings.slots(blueprint.shards[member.shard])
    place = {0: "master", COPIES_MAX: "former holder"}.get(member.rank, f"copy {member.rank}")
    return f"{place} of shard {member.shard}, slots {slots.start} to {slots.stop - 1}"


def _place(member: Member, directory: str, logfile: str) -> Sequence[str]:
    return [
        f"bind {member.host}",
        f"port {member.port}",
        # Redis would refuse other hosts when it has no password.
        "protected-mode no",
        f"dir {_quoted(directory)}",
        f"logfile {_quoted(logfile)}",
        "daemonize no",
        "set-proc-title no",
        "tcp-backlog 128",
    ]


def _secrets(blueprint: Blueprint) -> Sequence[str]:
    if not blueprint.password:
        return []
    return [f"{name} {_quoted(blueprint.password)}" for name in ("requirepass", "masterauth")]


def _replication(blueprint: Blueprint, member: Member) -> Sequence[str]:
    backlog = max(_BACKLOG_BYTES_MIN, blueprint.tuning.memory_bytes // _BACKLOG_PART)
    return [
        "# A master that has lost its copies takes no new messages.",
        *(f"{name} {value}" for name, value in copies_settings(blueprint).items()),
        "min-replicas-max-lag 3",
        f"replica-announce-ip {member.host}",
        f"repl-backlog-size {backlog}",
        "repl-diskless-sync yes",
        "repl-diskless-sync-delay 1",
    ]


def copies_settings(blueprint: Blueprint) -> dict[str, int]:
    """The settings that depend on how many copies there can be, which servers may change."""
    copies = blueprint.rings.holders_count - 1
    return {"min-replicas-to-write": min(1, copies), "repl-diskless-sync-max-replicas": copies}


def _cluster(blueprint: Blueprint, member: Member) -> Sequence[str]:
    announced = (
        [f"cluster-announce-ip {member.host}"]
        if is_address(member.host)
        else [
            f"cluster-announce-hostname {member.host}",
            "cluster-preferred-endpoint-type hostname",
        ]
    )
    return [
        "cluster-enabled yes",
        "cluster-config-file nodes.conf",
        f"cluster-port {member.bus_port}",
        *announced,
        f"cluster-node-timeout {blueprint.tuning.node_timeout_ms}",
        "# A copy that was cut off for long is not promoted.",
        "cluster-replica-validity-factor 10",
        "# What is left goes on when some slots are out of reach; a minority does not answer.",
        "cluster-require-full-coverage no",
        "cluster-allow-reads-when-down no",
        "# Copies that moved by themselves would undo the rings.",
        "cluster-allow-replica-migration no",
    ]


def is_address(host: str) -> bool:
    """Whether a host is given by its address rather than its name."""
    return ":" in host or host.replace(".", "").isdecimal()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def decode_blueprint(data: bytes, where: str) -> Blueprint:
    """A blueprint from its JSON."""
    try:
        found = msgspec.json.decode(data, type=Blueprint)
        _ = found.rings
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise InvalidArgument(f"{where} does not describe a cluster: {error}.") from error
    if not 1 <= found.version <= BLUEPRINT_VERSION:
        raise InvalidArgument(
            f"{where} has version {found.version}; this program knows 1 to {BLUEPRINT_VERSION}."
        )
    return found


def encode_blueprint(blueprint: Blueprint) -> str:
    """A blueprint as it is written to plan.json."""
    return msgspec.json.format(msgspec.json.encode(blueprint)).decode() + "\n"
