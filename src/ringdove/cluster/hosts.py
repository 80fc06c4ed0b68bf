"""What a host of a planned cluster needs: configurations, the start script, units to run it.

A host runs one systemd unit for each of its processes. All paths are fixed, so that a file may be
looked at on any host and means the same.
"""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from ringdove.cluster.forming import take_over_s
from ringdove.cluster.layout import (
    BASE_FILE,
    LATER_FILE,
    MANIFEST,
    MANIFEST_FILE,
    encode_blueprint,
    redis_conf,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.cluster.layout import Blueprint, Member

_ETC = "/etc/ringdove-redis"

#: Backups that a host keeps, one a day.
BACKUPS_KEPT = 7

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
REDISCLI_AUTH=$$(sed -n 's/^requirepass "\\(.*\\)"/\\1/p' "$$conf")
export REDISCLI_AUTH

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
REDISCLI_AUTH=$$(sed -n 's/^requirepass "\\(.*\\)"/\\1/p' $etc/*.conf | head -n 1)
export REDISCLI_AUTH
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
ls $etc/*.conf >/dev/null 2>&1 || systemctl disable --now ringdove-redis-backup.timer
exit $$left
""")

_BACKUP = Template("""\
#!/bin/sh
# Takes a picture of every shard whose master is on this host: $backup/TIME/SHARD.rdb. Keeps the
# last $keep. The pictures of all hosts, in one directory with plan.json, are a whole backup.
set -eu
here=$$(cd "$$(dirname "$$0")" && pwd)
cli=$$(command -v redis-cli || command -v valkey-cli)
REDISCLI_AUTH=$$(sed -n 's/^requirepass "\\(.*\\)"/\\1/p' "$$here"/*.conf | head -n 1)
export REDISCLI_AUTH
out=$backup/$$(date -u +%Y-%m-%dT%H-%M-%S)
mkdir -p "$backup"
chmod 700 "$backup"
rm -rf "$backup"/*.part
mkdir "$$out.part"
while read -r shard address port; do
    if [ "$$("$$cli" -h "$$address" -p "$$port" ROLE | head -n 1)" = master ]; then
        "$$cli" -h "$$address" -p "$$port" --rdb "$$out.part/$$shard.rdb" >/dev/null
    fi
done <<END
$places
END
cp "$$here/plan.json" "$$out.part/"
sync
mv "$$out.part" "$$out"
find "$backup" -mindepth 1 -maxdepth 1 -type d | sort -r | tail -n +$next | while read -r old; do
    rm -rf "$$old"
done
""")

_RESTORE = Template("""\
#!/bin/sh
# Gives the stopped processes of this host pictures of their shards to begin with:
#   restore.sh DIRECTORY
# The cluster must be a new one that was formed, and all its processes on all hosts be stopped.
set -eu
from=$$1
cli=$$(command -v redis-cli || command -v valkey-cli)
while read -r shard address port; do
    if "$$cli" -h "$$address" -p "$$port" PING >/dev/null 2>&1; then
        echo "restore.sh: $$shard runs: stop all processes of the cluster first" >&2
        exit 1
    fi
    if [ ! -f "$$from/$$shard.rdb" ]; then
        echo "restore.sh: there is no $$from/$$shard.rdb" >&2
        exit 1
    fi
done <<END
$places
END
while read -r shard address port; do
    log=$data/$$shard/appendonlydir
    rm -rf "$$log"
    mkdir -p "$$log"
    cp "$$from/$$shard.rdb" "$$log/$base"
    : > "$$log/$later"
    cat > "$$log/$manifest_file" <<MANIFEST
$manifest
MANIFEST
    chown -R --reference="$data" "$data/$$shard"
done <<END
$places
END
""")

_BACKUP_UNIT = Template("""\
[Unit]
Description=Backup of Redis for Ringdove

[Service]
Type=oneshot
ExecStart=$etc/backup.sh
""")

_BACKUP_TIMER = """\
[Unit]
Description=Daily backup of Redis for Ringdove

[Timer]
OnCalendar=daily
RandomizedDelaySec=10min
Persistent=true

[Install]
WantedBy=timers.target
"""

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
install -m 640 -g redis -- *.conf $etc/
install -m 644 plan.json $etc/plan.json
install -m 755 start.sh backup.sh restore.sh $etc/
install -m 644 ringdove-redis@.service ringdove-redis-backup.service ringdove-redis-backup.timer \\
    /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now $units ringdove-redis-backup.timer
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
        "plan.json": encode_blueprint(blueprint.shape),
        "start.sh": _start(stage, members),
        "ringdove-redis@.service": _UNIT.substitute(etc=_ETC, data=data),
        "install.sh": _INSTALL.substitute(
            server=server, host=host, etc=_ETC, data=data, units=units
        ),
        **_backup_files(members, data),
    }
    for member in members:
        conf = redis_conf(stage, member, f"{data}/{member.shard}")
        files[f"{member.shard}.conf"] = conf
    leaving = [member for member in members if member in blueprint.leaving]
    if leaving:
        files["retire.sh"] = _RETIRE.substitute(
            server=server, host=host, etc=_ETC, data=data, places=_places(leaving)
        )
    return files


def _backup_files(members: Sequence[Member], data: str) -> dict[str, str]:
    places = _places(members)
    return {
        "backup.sh": _BACKUP.substitute(
            backup=f"{data}-backup", keep=BACKUPS_KEPT, next=BACKUPS_KEPT + 1, places=places
        ),
        "restore.sh": _RESTORE.substitute(
            data=data,
            places=places,
            base=BASE_FILE,
            later=LATER_FILE,
            manifest_file=MANIFEST_FILE,
            manifest=MANIFEST.rstrip(),
        ),
        "ringdove-redis-backup.service": _BACKUP_UNIT.substitute(etc=_ETC),
        "ringdove-redis-backup.timer": _BACKUP_TIMER,
    }


def _places(members: Sequence[Member]) -> str:
    """What scripts read: a line for each process, with its shard, address and port."""
    return "\n".join(f"{m.shard} {m.host} {m.port}" for m in members)


def _start(stage: Blueprint, members: Sequence[Member]) -> str:
    peers = []
    for member in members:
        others = [m for m in stage.holding(member.shard) if m.server != member.server]
        peers.append(f'{member.shard}) peers="{" ".join(str(m.address) for m in others)}" ;;')
    return _START.substitute(
        data=stage.data, peers="\n".join(peers), seconds=round(take_over_s(stage))
    )
