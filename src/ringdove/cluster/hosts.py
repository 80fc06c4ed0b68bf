"""What a host of a planned cluster needs: configurations, the start script, units to run it.

A host runs one systemd unit for each of its processes. All paths are fixed, so that a file may be
looked at on any host and means the same.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ringdove.cluster.forming import take_over_s
from ringdove.cluster.layout import redis_conf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.cluster.layout import Blueprint, Member

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

_RETIRE = Template("""\
#!/bin/sh
# Ends the Redis processes of server $server that hold nothing any more and removes what is left of
# them. Run as root on host $host, after 'ringdove cluster create --plan'.
set -eu
cli=$$(command -v redis-cli || command -v valkey-cli)
left=0
while read -r shard address port; do
    if "$$cli" -h "$$address" -p "$$port" CLUSTER INFO 2>/dev/null | tr -d '\\r' \\
        | grep -qx 'cluster_known_nodes:1'
    then
        systemctl disable --now "ringdove-redis@$$shard"
        rm -rf "$etc/$$shard.conf" "$data/$${shard:?}"
    else
        echo "retire.sh: $$shard does not answer, or belongs to the cluster: left as it is" >&2
        left=1
    fi
done <<END
$places
END
exit $$left
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


def host_of(blueprint: Blueprint, server: str) -> str:
    """The host of a server, by its address on the first network."""
    addresses = blueprint.hosts.get(server)
    return addresses[0] if addresses else blueprint.on(server)[0].host


def host_files(blueprint: Blueprint, server: str) -> dict[str, str]:
    """The files of a host by name; those of processes that are leaving included."""
    stage = blueprint.stage
    host = host_of(stage, server)
    members = stage.on(server)
    units = " ".join(f"ringdove-redis@{member.shard}" for member in members)
    data = blueprint.data
    files = {
        "start.sh": _start(stage, members),
        "ringdove-redis@.service": _UNIT.substitute(etc=_ETC, data=data),
        "install.sh": _INSTALL.substitute(
            server=server, host=host, etc=_ETC, data=data, units=units
        ),
    }
    for member in members:
        conf = redis_conf(stage, member, f"{data}/{member.shard}")
        files[f"{member.shard}.conf"] = conf
    leaving = [member for member in members if member in blueprint.leaving]
    if leaving:
        places = "\n".join(f"{m.shard} {m.host} {m.port}" for m in leaving)
        files["retire.sh"] = _RETIRE.substitute(
            server=server, host=host, etc=_ETC, data=data, places=places
        )
    return files


def _start(stage: Blueprint, members: Sequence[Member]) -> str:
    peers = []
    for member in members:
        others = [m for m in stage.holding(member.shard) if m.server != member.server]
        peers.append(f'{member.shard}) peers="{" ".join(str(m.address) for m in others)}" ;;')
    return _START.substitute(
        data=stage.data, peers="\n".join(peers), seconds=round(take_over_s(stage))
    )
