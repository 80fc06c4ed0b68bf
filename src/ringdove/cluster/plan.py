"""A cluster on real hosts, planned: what to copy to each, and how to start it there.

OUT/plan.json                       the blueprint; `ringdove cluster create --plan OUT` applies it
OUT/README.txt                      what to do, and what lies where
OUT/HOST/SHARD.conf                 the configuration of each process of a host
OUT/HOST/start.sh                   starts one process, never an empty master
OUT/HOST/ringdove-redis@.service    the same as a systemd unit
OUT/HOST/backup.sh, restore.sh      take pictures of shards once a day, begin with them again
OUT/HOST/install.sh                 puts all of it where it belongs and starts it
OUT/HOST/retire.sh                  ends what a change of servers has left over

A plan may be made from another, with a host more or less. Processes that both have stay as they
are; new ones get free ports, so that those that are leaving run beside them until all is moved.
"""

from __future__ import annotations

from itertools import chain
from string import Template
from typing import TYPE_CHECKING

import msgspec

from ringdove.cluster.hosts import BACKUPS_KEPT, host_files, host_of
from ringdove.cluster.layout import (
    Blueprint,
    decode_blueprint,
    encode_blueprint,
    is_address,
    lay_out,
    rearrange,
)
from ringdove.core.ring import COPIES_MAX, RINGS, server_name, server_number
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ringdove.cluster.layout import Member, Tuning
    from ringdove.core.ring import Rings

#: The first port; ring 2 has its own decade, and the cluster's own talk is 10,000 higher.
PORT_DEFAULT = 7_001
_RING_PORTS, _BUS_PORTS = 10, 10_000
_PORT_MAX = 65_535

DATA_DEFAULT = "/var/lib/ringdove-redis"

_README = Template("""\
A Redis cluster for Ringdove: $servers servers, $processes processes, $copies.

1. Copy each directory to its host and run install.sh there as root (Redis 7 or Valkey needed):

$install

2. When all run, make them one cluster, from any machine that reaches them:

       ringdove cluster create --plan $out

   Say it again after a failure: it joins what has lost its data and hands masters back.
$retire
3. Serve queues on it:

       ringdove serve --store $url

Every host keeps the backups of the last $kept days in $data-backup, of the shards whose master it
had then. To restore: copy the pictures of one day from all hosts into one directory, stop the units
ringdove-redis@SHARD on all hosts, run /etc/ringdove-redis/restore.sh DIRECTORY on each, start them.
On this machine 'ringdove cluster restore' makes a cluster of such a directory with its plan.json.

$secret
Let nobody but the hosts above and the Ringdove servers reach the ports of these processes ($ports,
and the same plus $bus for the cluster's own talk, which asks for no password). They do not encrypt.
$names
Failures:

$failures

Layout:

$layout
""")

_RETIRE = Template("""
   It has moved what these processes held, without a moment in which a copy was missing. They hold
   nothing now; end them where they run, and only then:

$retire
""")

_GUARDED = "The URL above and other files here hold a password: keep them to yourself."
_UNGUARDED = "These processes have no password."

_NAMES = """
Hosts are given by name here. Each must find its own name at an address that the others reach:
a line '127.0.1.1 HOST' in /etc/hosts, which Debian writes, makes Redis listen where nobody comes.
"""


def make_plan(
    rings: Rings,
    tuning: Tuning,
    hosts: Sequence[str],
    second_hosts: Sequence[str] = (),
    port: int = PORT_DEFAULT,
    data: str = DATA_DEFAULT,
    password: str = "",
) -> Blueprint:
    """The blueprint for hosts; ring 2 may have addresses of its own, on a second network."""
    _check_hosts(rings, hosts, second_hosts)
    _check_data(data)
    highest = port + _RING_PORTS + COPIES_MAX + _BUS_PORTS
    if port < 1024 or highest > _PORT_MAX:
        raise InvalidArgument(
            f"Ports from {port} do not fit: ports up to {highest} are needed; begin between 1024 "
            f"and {_PORT_MAX - highest + port}."
        )
    by_server = {
        name: [first, second]
        for name, first, second in zip(rings.names, hosts, second_hosts or hosts, strict=True)
    }
    places = _Places(by_server, port)
    found = lay_out(rings, tuning, places.host, places.ports)
    return msgspec.structs.replace(found, hosts=by_server, data=data, password=password)


def add_host(former: Blueprint, host: str, second_host: str = "") -> Blueprint:
    """The plan with one more server, after the last, on another host."""
    rings = former.rings.added()
    hosts = _hosts(former) | {rings.names[-1]: [host, second_host or host]}
    present = [hosts[name] for name in rings.names]
    two_networks = any(first != second for first, second in present)
    if two_networks and not second_host:
        raise InvalidArgument(f"Give the address of {host} on the second network too.")
    seconds = [second for _, second in present] if two_networks or second_host else []
    _check_hosts(rings, [first for first, _ in present], seconds)
    return _rearranged(former, rings, hosts)


def remove_host(former: Blueprint, host: str) -> Blueprint:
    """The plan without a server, which is named by its host."""
    rings = former.rings.removed(server_number(server_on(former, host)))
    return _rearranged(former, rings, _hosts(former))


def server_on(blueprint: Blueprint, host: str) -> str:
    """The server on a host."""
    hosts = _hosts(blueprint)
    server = next((name for name in blueprint.rings.names if host in hosts[name]), None)
    if server is None:
        known = ", ".join(hosts[name][0] for name in blueprint.rings.names)
        raise InvalidArgument(f"There is no host {host!r} in the plan; it has {known}.")
    return server


def _hosts(former: Blueprint) -> dict[str, list[str]]:
    """The addresses of each server on both networks."""
    if former.hosts:
        return former.hosts
    found: dict[str, list[str]] = {}
    for member in former.members:  # Of version 1: every server holds shards of both rings.
        both = found.setdefault(member.server, ["", ""])
        both[former.shards[member.shard].ring - 1] = member.host
    return found


def _rearranged(former: Blueprint, rings: Rings, hosts: dict[str, list[str]]) -> Blueprint:
    first_port = min(member.port for member in former.stage.members)
    places = _Places(hosts, first_port, former.stage.members)
    found = rearrange(former, rings, places.host, places.ports)
    used = {member.server for member in found.stage.members}
    kept = {server: both for server, both in hosts.items() if server in used}
    return msgspec.structs.replace(found, hosts=kept, data=former.data or DATA_DEFAULT)


class _Places:
    """Where processes are to be: the first port that is free on the host of their server."""

    def __init__(
        self, hosts: dict[str, list[str]], first_port: int, members: Sequence[Member] = ()
    ) -> None:
        self._hosts = hosts
        self._first_port = first_port
        self._taken = {(member.host, member.port) for member in members}

    def host(self, server: int, ring: int) -> str:
        """The address of a server on the network of a ring."""
        return self._hosts[server_name(server)][ring - 1]

    def ports(self, server: int, ring: int, _rank: int) -> tuple[int, int]:
        """A port that no process there has, and the one for the cluster's own talk."""
        host = self.host(server, ring)
        for port in self._candidates(ring):
            if (host, port) not in self._taken:
                self._taken.add((host, port))
                return port, port + _BUS_PORTS
        raise InvalidArgument(f"Host {host} has no port left from {self._first_port} on.")

    def _candidates(self, ring: int) -> Iterable[int]:
        """The decade of the ring, then what comes after both."""
        own = self._first_port + _RING_PORTS * (ring - 1)
        further = range(self._first_port + RINGS * _RING_PORTS, _PORT_MAX - _BUS_PORTS + 1)
        return chain(range(own, own + _RING_PORTS), further)


def _check_hosts(rings: Rings, hosts: Sequence[str], second_hosts: Sequence[str]) -> None:
    if len(hosts) != len(rings.order) or len(second_hosts) not in (0, len(hosts)):
        raise InvalidArgument(
            f"{len(rings.order)} servers need as many hosts, on a second network too."
        )
    for host in [*hosts, *second_hosts]:
        if not host or set(host) & set(" \t/\\\"'$`;&|<>(){}*?#%,@") or host.startswith("-"):
            raise InvalidArgument(f"{host!r} is no host: give names or addresses, as a,b,c.")
    for given in (hosts, second_hosts):
        if len(set(given)) < len(given):
            raise InvalidArgument(f"A host is named twice in {','.join(given)}.")
    if second_hosts and not all(map(is_address, [*hosts, *second_hosts])):
        raise InvalidArgument("With two networks give addresses, not names, for both.")


def _check_data(data: str) -> None:
    if not data.startswith("/") or set(data) & set(" \t\"'$`\\"):
        raise InvalidArgument(f"{data!r} is no data directory: give a plain absolute path.")


def write_plan(blueprint: Blueprint, out: Path) -> list[Path]:
    """Write all files of a plan; those written."""
    if out.exists() and any(out.iterdir()):
        raise InvalidArgument(f"Directory {out} is not empty: name another.")
    files = {"plan.json": encode_blueprint(blueprint), "README.txt": _readme(blueprint, out)}
    for server in dict.fromkeys(member.server for member in blueprint.stage.members):
        host = host_of(blueprint, server)
        files |= {f"{host}/{name}": text for name, text in host_files(blueprint, server).items()}
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # Some of them hold a password.
        path.write_text(text)
        path.chmod(0o700 if name.endswith(".sh") else 0o600)
    return [out / name for name in files]


def settle_plan(directory: Path) -> None:
    """Note in a plan that it was carried out: nobody is leaving any more."""
    blueprint = read_plan(directory)
    if blueprint.leaving:
        path = directory / "plan.json"
        path.write_text(encode_blueprint(msgspec.structs.replace(blueprint, leaving=[])))


def read_plan(directory: Path) -> Blueprint:
    """The blueprint of a plan that was written before."""
    path = directory / "plan.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"There is no plan in {directory}. Write one with 'ringdove cluster plan'."
        ) from error
    return decode_blueprint(data, str(path))


def _readme(blueprint: Blueprint, out: Path) -> str:
    names = blueprint.rings.names
    ports = sorted({member.port for member in blueprint.members})
    hosts = [host_of(blueprint, name) for name in names]
    copies = blueprint.rings.holders_count
    return _README.substitute(
        servers=len(names),
        processes=len(blueprint.members),
        copies=f"{copies} copies of everything" if copies > 1 else "one copy of everything",
        out=out,
        url=blueprint.url,
        ports=", ".join(map(str, ports)),
        bus=_BUS_PORTS,
        install="\n".join(_run(out, host, "install.sh") for host in hosts),
        retire=_retire(blueprint, out),
        secret=_GUARDED if blueprint.password else _UNGUARDED,
        kept=BACKUPS_KEPT,
        data=blueprint.data,
        names="" if all(map(is_address, hosts)) else _NAMES,
        failures="\n".join(f"- {line}" for line in blueprint.rings.tell_failures()),
        layout="\n".join(layout_lines(blueprint)),
    )


def _retire(blueprint: Blueprint, out: Path) -> str:
    """What to do with the processes that a change of servers leaves over."""
    servers = dict.fromkeys(member.server for member in blueprint.leaving)
    lines = [_run(out, host_of(blueprint, server), "retire.sh") for server in servers]
    return _RETIRE.substitute(retire="\n".join(lines)) if lines else ""


def _run(out: Path, host: str, script: str) -> str:
    return f"       scp -r {out}/{host} root@{host}: && ssh root@{host} sh {host}/{script}"


def layout_lines(blueprint: Blueprint) -> list[str]:
    """The shards with their slots, and where master and copies lie."""
    lines = []
    for name, shard in blueprint.shards.items():
        slots = blueprint.rings.slots(shard)
        master, *copies = blueprint.holding(name)
        told = ", ".join(f"{copy.server} {copy.address}" for copy in copies) or "none"
        lines.append(
            f"{name:<4} slots {slots.start:>5} to {slots.stop - 1:<5}  "
            f"master {master.server} {master.address}  copies {told}"
        )
    return lines
