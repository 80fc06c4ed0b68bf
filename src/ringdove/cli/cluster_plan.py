"""Commands on clusters of real hosts: plan, create."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ringdove.cli.flags import JsonFlag
from ringdove.cli.output import emit_json, progress, say
from ringdove.cli.values import duration_ms, size_bytes
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from ringdove.cluster.forming import Handed
    from ringdove.cluster.layout import Blueprint
    from ringdove.core.ring import Rings

Fsync = Literal["always", "everysec"]

COPIES = 3

#: Below this many servers a second failure stops more than it must.
SERVERS_ENOUGH = 5


def plan(
    *,
    out: Path,
    hosts: str | None = None,
    second_hosts: str = "",
    copies: int | None = None,
    room_for: int | None = None,
    port: int | None = None,
    data_dir: str | None = None,
    fsync: Fsync | None = None,
    node_timeout: str | None = None,
    memory: str | None = None,
    former: Annotated[Path | None, Parameter(name="--from")] = None,
    add: str | None = None,
    remove: str | None = None,
    password: bool = True,
    json: JsonFlag = False,
) -> None:
    """Write Redis configurations, start scripts and systemd units for real hosts.

    Example: `ringdove cluster plan --hosts 10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5 --out plan`

    Later: `ringdove cluster plan --from plan --add 10.0.0.6 --out plan2`

    Parameters
    ----------
    out
        A directory that does not exist yet, or is empty.
    hosts
        Names or addresses in ring order, separated by commas.
    second_hosts
        Addresses on a second network, for ring 2: of all hosts, or of the one that is added.
    copies
        How often a message is kept, 1 to 3; by default 3.
    room_for
        Servers to deal out shards for, by default as many as hosts; it can grow to twice that.
    port
        The first port on each host, by default 7001.
    data_dir
        Where the hosts keep data, by default /var/lib/ringdove-redis.
    fsync
        When Redis syncs its file: always; everysec can cost a second if all lose their power.
    node_timeout
        Silence after which a process counts as failed, by default 2s.
    memory
        Memory for data of each process, by default 1GiB.
    former
        Make the plan from this one; only the servers change.
    add
        A host to add, as a server after the last.
    remove
        A host to remove.
    password
        Make up a password for the processes; not with --from, which keeps what there is.
    json
        Print the plan as JSON.
    """
    settings = _settings(copies, room_for, port, data_dir, fsync, node_timeout, memory)
    if former is not None:
        blueprint = _changed(former, add, remove, second_hosts, {"hosts": hosts} | settings)
    elif hosts is None or add or remove:
        raise InvalidArgument("Give --hosts for a new plan, or --from with --add or --remove.")
    else:
        blueprint = _planned(hosts.split(","), second_hosts, settings, secret=password)
    _write(blueprint, out, as_json=json)


def _settings(
    copies: int | None,
    room_for: int | None,
    port: int | None,
    data: str | None,
    fsync: Fsync | None,
    node_timeout: str | None,
    memory: str | None,
) -> dict[str, Any]:
    """What was given, by the names that the layout has for it."""
    given = {
        "copies": copies,
        "room_for": room_for,
        "port": port,
        "data": data,
        "fsync": fsync,
        "node_timeout_ms": None if node_timeout is None else duration_ms(node_timeout),
        "memory_bytes": None if memory is None else size_bytes(memory),
    }
    return {name: value for name, value in given.items() if value is not None}


def _planned(
    hosts: list[str], second_hosts: str, settings: dict[str, Any], *, secret: bool
) -> Blueprint:
    from ringdove.cluster.layout import Tuning
    from ringdove.cluster.plan import make_plan

    rings = deal(len(hosts), settings.pop("copies", COPIES), settings.pop("room_for", 0))
    places = {name: settings.pop(name) for name in ("port", "data") if name in settings}
    second = second_hosts.split(",") if second_hosts else []
    password = new_password() if secret else ""
    return make_plan(rings, Tuning(**settings), hosts, second, **places, password=password)


def _changed(
    former: Path, add: str | None, remove: str | None, second_host: str, others: dict[str, Any]
) -> Blueprint:
    from ringdove.cluster.plan import add_host, read_plan, remove_host

    for name, value in others.items():
        if value is not None:
            raise InvalidArgument(f"With --from nothing but the servers changes, not {name}.")
    if (add is None) == (remove is None):
        raise InvalidArgument("Give either --add or --remove with --from.")
    blueprint = read_plan(former)
    if add is not None:
        return add_host(blueprint, add, second_host)
    return remove_host(blueprint, str(remove))


def _write(blueprint: Blueprint, out: Path, *, as_json: bool) -> None:
    import msgspec

    from ringdove.cluster.plan import layout_lines, write_plan

    files = write_plan(blueprint, out)
    if as_json:
        emit_json(
            {"out": str(out), "files": len(files), "url": blueprint.url}
            | {"failures": blueprint.rings.tell_failures()}
            | msgspec.to_builtins(blueprint)
        )
        return
    print("\n".join(layout_lines(blueprint)))
    say_failures(blueprint)
    say(f"Wrote {len(files)} files to {out}; {out}/README.txt says how to go on.")


def create(*, plan: Path, json: JsonFlag = False) -> None:
    """Make one cluster of the Redis processes of a plan, or put it right after failures.

    Processes that have lost their data join as copies, and masters are handed back to the servers
    where the plan has them. When the plan was made from another one, what has moved is copied
    first, and processes that are no longer needed are let go. What is in order is left alone.

    Example: `ringdove cluster create --plan plan`

    Parameters
    ----------
    plan
        The directory that `cluster plan` has written.
    json
        Print JSON.
    """
    from ringdove.cluster.converging import converge
    from ringdove.cluster.plan import read_plan, settle_plan

    blueprint = read_plan(plan)
    with progress("forming the cluster", len(blueprint.members)) as show:
        done = converge(blueprint, show)
    settle_plan(plan)
    if json:
        emit_json(
            {"url": blueprint.url, "joined": done.joined}
            | {"handed": handed_json(done.handed), "released": done.released}
        )
        return
    say("The cluster is formed." if done.joined else "The cluster was formed before.")
    say_handed(done.handed)
    if done.released:
        say(
            f"No longer needed: {', '.join(done.released)}. End them with retire.sh on their hosts."
        )
    print(blueprint.url)


def hand_over(host: str, *, plan: Path, json: JsonFlag = False) -> None:
    """Hand the masters of a host to others, before it is restarted or upgraded.

    Then restart its units, and `ringdove cluster create --plan` waits until they are in sync and
    hands the masters back. Do so with one host after the other.

    Parameters
    ----------
    host
        The host, as it is named in the plan.
    plan
        The directory that `cluster plan` has written.
    json
        Print JSON.
    """
    from ringdove.cluster.forming import vacate
    from ringdove.cluster.plan import read_plan, server_on

    blueprint = read_plan(plan)
    with progress("handing masters over"):
        handed = vacate(blueprint, server_on(blueprint, host))
    if json:
        emit_json({"host": host, "handed": handed_json(handed)})
    else:
        say_handed(handed)
        say(f"Now restart the units on {host}; 'ringdove cluster create --plan {plan}' hands back.")


# -- what the commands share --------------------------------------------------------------------


def deal(servers: int, copies: int, room_for: int, counter_rotating: bool = True) -> Rings:
    """The layout of a new cluster, perhaps with shards for more servers than there are."""
    from ringdove.core.ring import Rings

    if room_for and room_for < servers:
        raise InvalidArgument(f"There are {servers} servers, more than room for {room_for}.")
    rings = Rings(room_for or servers, copies, counter_rotating)
    return rings if not room_for else rings.on(range(servers))


def new_password() -> str:
    """One that nobody guesses, of letters that need no quoting."""
    return secrets.token_urlsafe(24)


def say_failures(blueprint: Blueprint) -> None:
    """Say what failures do, where they do more than they must."""
    if len(blueprint.rings.order) < SERVERS_ENOUGH or blueprint.copies < COPIES:
        for line in blueprint.rings.tell_failures():
            say(line)


def handed_json(handed: list[Handed]) -> list[dict[str, str]]:
    """Masters that have moved, for JSON."""
    return [{"shard": h.shard, "from": h.source, "to": h.target} for h in handed]


def say_handed(handed: list[Handed]) -> None:
    """Say which masters have moved."""
    for shard, source, target in handed:
        say(f"Handed the master of {shard} from {source} to {target}.")
