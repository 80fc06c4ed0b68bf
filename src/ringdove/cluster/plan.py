"""A cluster on real hosts, planned: what to copy to each, and how to start it there.

OUT/plan.json                       the blueprint; `ringdove cluster create --plan OUT` applies it
OUT/README.txt                      what to do, and what lies where
OUT/HOST/SHARD.conf                 the configuration of each process of a host
OUT/HOST/start.sh                   starts one process, never an empty master
OUT/HOST/ringdove-redis@.service    the same as a systemd unit
OUT/HOST/install.sh                 puts all of it where it belongs and starts it
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

import msgspec

from ringdove.cluster.forming import take_over_s
from ringdove.cluster.layout import (
    Blueprint,
    decode_blueprint,
    is_address,
    lay_out,
    redis_conf,
)
from ringdove.core.ring import COPIES_MAX
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ringdove.cluster.layout import Tuning
    from ringdove.core.ring import Rings

#: The first port; ring 2 has its own decade, and the cluster's own talk is 10,000 higher.
PORT_DEFAULT = 7_001
_RING_PORTS, _BUS_PORTS = 10, 10_000
_PORT_MAX = 65_535

DATA_DEFAULT = "/var/lib/ringdove-redis"
_ETC = "/etc/ringdove-redis"

_START = Template("""\
#!/bin/sh
# Starts one Redis process of the fabric:  start.sh SHARD [redis-server options]
# Written by 'ringdove cluster plan'.
#
# Never an empty master: one that comes back empty before its copies have noticed its absence wipes
# them. A process that was a master waits until another has taken over. If none does, it starts from
# its append-only file. One that has lost that file forgets who it was and starts as a stranger,
# which 'ringdove cluster create --plan' makes a copy again.
set -eu
shard=$$1
shift
conf=$$(cd "$$(dirname "$$0")" && pwd)/$$shard.conf
data=$data/$$shard
server=$$(command -v redis-server || command -v valkey-server)
cli=$$(command -v redis-cli || command -v valkey-cli)

case $$shard in
$peers
*) echo "start.sh: this host holds no shard $$shard" >&2; exit 2 ;;
esac

was_master() { grep -qs 'myself,master' "$$data/nodes.conf"; }
has_log() { ls "$$data"/appendonlydir/*.manifest >/dev/null 2>&1; }
taken_over() {
    for peer in $$peers; do
        timeout 2 "$$cli" -h "$${peer%:*}" -p "$${peer##*:}" CLUSTER NODES 2>/dev/null \\
            | grep -q 'myself,master.* connected [0-9]' && return 0
    done
    return 1
}

mkdir -p "$$data"
if was_master && [ -n "$$peers" ]; then
    waited=0
    until taken_over || [ $$waited -ge $seconds ]; do
        sleep 1
        waited=$$((waited + 1))
    done
    if ! has_log; then
        if ! taken_over; then
            echo "start.sh: $$shard has lost its data and nobody has taken over: not started" >&2
            exit 1
        fi
        rm -f "$$data/nodes.conf"
    fi
fi
exec "$$server" "$$conf" "$$@"
""")

_UNIT = Template("""\
[Unit]
Description=Redis for Ringdove, shard %i
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
User=redis
Group=redis
ExecStart=$etc/start.sh %i --supervised systemd
TimeoutStartSec=infinity
TimeoutStopSec=60
Restart=always
RestartSec=2
LimitNOFILE=65535
NoNewPrivileges=true
PrivateTmp=true
ProtectHome=true
ProtectSystem=strict
ReadWritePaths=$data

[Install]
WantedBy=multi-user.target
""")

_INSTALL = Template("""\
#!/bin/sh
# Installs and starts the Redis processes of server $server. Run as root on host $host.
set -eu
cd "$$(dirname "$$0")"
command -v redis-server >/dev/null || command -v valkey-server >/dev/null || {
    echo "There is no redis-server: apt-get install redis-server (7 or newer)" >&2
    exit 1
}
install -d -m 755 $etc
install -d -m 750 -o redis -g redis $data
install -m 644 -- *.conf $etc/
install -m 755 start.sh $etc/start.sh
install -m 644 ringdove-redis@.service /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now $units
""")

_README = Template("""\
A Redis cluster for Ringdove: $servers servers, $processes processes, $copies.

1. Copy each directory to its host and run install.sh there as root (Redis 7 or Valkey needed):

$install

2. When all run, make them one cluster, from any machine that reaches them:

       ringdove cluster create --plan $out

   Say it again after a failure: it joins what has lost its data and hands masters back.

3. Serve queues on it:

       ringdove serve --store $url

These Redis processes have no password: let nobody but the hosts above and the Ringdove servers
reach their ports ($ports, and the same plus $bus for the cluster's own talk).
$names
Failures:

$failures

Layout:

$layout
""")

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
) -> Blueprint:
    """The blueprint for hosts; ring 2 may have addresses of its own, on a second network."""
    _check_hosts(rings, hosts, second_hosts)
    highest = port + _RING_PORTS + COPIES_MAX + _BUS_PORTS
    if port < 1024 or highest > _PORT_MAX:
        raise InvalidArgument(
            f"Ports from {port} do not fit: ports up to {highest} are needed; begin between 1024 "
            f"and {_PORT_MAX - highest + port}."
        )

    def ports(_server: int, ring: int, rank: int) -> tuple[int, int]:
        chosen = port + _RING_PORTS * (ring - 1) + rank
        return chosen, chosen + _BUS_PORTS

    def host(server: int, ring: int) -> str:
        return (second_hosts or hosts)[server] if ring == 2 else hosts[server]

    return lay_out(rings, tuning, host, ports)


def _check_hosts(rings: Rings, hosts: Sequence[str], second_hosts: Sequence[str]) -> None:
    if len(hosts) != rings.servers or len(second_hosts) not in (0, len(hosts)):
        raise InvalidArgument(
            f"{rings.servers} servers need as many hosts, on a second network too."
        )
    for host in [*hosts, *second_hosts]:
        if not host or set(host) & set(" \t/\\\"'$`;&|<>(){}*?#%,@") or host.startswith("-"):
            raise InvalidArgument(f"{host!r} is no host: give names or addresses, as a,b,c.")
    for given in (hosts, second_hosts):
        if len(set(given)) < len(given):
            raise InvalidArgument(f"A host is named twice in {','.join(given)}.")
    if second_hosts and not all(map(is_address, [*hosts, *second_hosts])):
        raise InvalidArgument("With two networks give addresses, not names, for both.")


def write_plan(blueprint: Blueprint, out: Path, data: str = DATA_DEFAULT) -> list[Path]:
    """Write all files of a plan; those written."""
    if out.exists() and any(out.iterdir()):
        raise InvalidArgument(f"Directory {out} is not empty: name another.")
    if not data.startswith("/") or set(data) & set(" \t\"'$`\\"):
        raise InvalidArgument(f"{data!r} is no data directory: give a plain absolute path.")
    files = {
        "plan.json": msgspec.json.format(msgspec.json.encode(blueprint)).decode() + "\n",
        "README.txt": _readme(blueprint, out),
    }
    for server in blueprint.rings.names:
        files |= _host_files(blueprint, server, data)
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    return [out / name for name in files]


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


def host_of(blueprint: Blueprint, server: str) -> str:
    """The host of a server, by its address on the first network."""
    return blueprint.on(server)[0].host


def _host_files(blueprint: Blueprint, server: str, data: str) -> dict[str, str]:
    host = host_of(blueprint, server)
    members = blueprint.on(server)
    peers = []
    for member in members:
        others = [m for m in blueprint.holding(member.shard) if m.server != server]
        peers.append(f'{member.shard}) peers="{" ".join(str(m.address) for m in others)}" ;;')
    start = _START.substitute(
        data=data, peers="\n".join(peers), seconds=round(take_over_s(blueprint))
    )
    units = " ".join(f"ringdove-redis@{member.shard}" for member in members)
    files = {
        "start.sh": start,
        "ringdove-redis@.service": _UNIT.substitute(etc=_ETC, data=data),
        "install.sh": _INSTALL.substitute(
            server=server, host=host, etc=_ETC, data=data, units=units
        ),
    }
    for member in members:
        conf = redis_conf(blueprint, member, f"{data}/{member.shard}")
        files[f"{member.shard}.conf"] = conf
    return {f"{host}/{name}": text for name, text in files.items()}


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
        install="\n".join(
            f"       scp -r {out}/{host} root@{host}: && ssh root@{host} sh {host}/install.sh"
            for host in hosts
        ),
        names="" if all(map(is_address, hosts)) else _NAMES,
        failures="\n".join(f"- {line}" for line in blueprint.rings.tell_failures()),
        layout="\n".join(layout_lines(blueprint)),
    )


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
