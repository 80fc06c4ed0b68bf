"""Commands on clusters of this machine: up, kill, pause, resume, restart, add, remove, down."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from ringdove.cli.cluster_backup import backup, restore
from ringdove.cli.cluster_plan import (
    COPIES,
    SERVERS_ENOUGH,
    Fsync,
    create,
    deal,
    hand_over,
    handed_json,
    new_password,
    plan,
    say_failures,
    say_handed,
)
from ringdove.cli.cluster_status import DIRECTORY, status
from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json, progress, say
from ringdove.cli.values import duration_ms, size_bytes
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from ringdove.cluster.layout import Blueprint
    from ringdove.cluster.local import Changed, LocalCluster, Returned

app = App(name="cluster", help="Plan, run and look after a Redis cluster in two rings.")
for command in (plan, create, hand_over, status, backup, restore):
    app.command(command)

Directory = Annotated[Path, Parameter(name="--dir", help="Where the cluster is.")]
Server = Annotated[str, Parameter(help="Its name: A, B, C, ...")]
Wait = Annotated[bool, Parameter(negative="", help="Wait until other servers have taken over.")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]

#: Seconds between two looks whether somebody else has ended the cluster.
_LOOK_S = 0.25


# -- one machine --------------------------------------------------------------------------------


@app.command
def up(
    *,
    servers: int | None = None,
    dir: Directory = DIRECTORY,
    copies: int | None = None,
    room_for: int | None = None,
    detach: Flag = False,
    fsync: Fsync | None = None,
    node_timeout: str | None = None,
    memory: str | None = None,
    same_direction: Flag = False,
    password: Flag = False,
    json: JsonFlag = False,
) -> None:
    """Run a cluster on this machine, until Ctrl-C or `cluster down`; or one that was ended, again.

    Example: `ringdove cluster up --servers 5 --dir ./fabric --detach`, then
    `ringdove serve --store redis://...`

    Parameters
    ----------
    servers
        How many, named A, B, C and so on; by default 5.
    dir
        Where to keep everything.
    copies
        How often a message is kept, 1 to 3; by default 3.
    room_for
        Servers to deal out shards for, by default as many as there are. A cluster can grow to
        twice that number.
    detach
        Return when the cluster is ready and let it run.
    fsync
        When Redis syncs its append-only file, by default everysec.
    node_timeout
        Silence after which a process counts as failed, by default 2s.
    memory
        Memory for data of each process, by default 256MiB.
    same_direction
        Both rings in one direction, to see what it does when neighbours fail.
    password
        Make up a password for a new cluster; it is part of the URL.
    json
        Print where the cluster is as one JSON object when it is ready.
    """
    from ringdove.cluster.local import LocalCluster

    given = _given(servers, room_for, copies, fsync, node_timeout, memory)
    given["counter_rotating"] = False if same_direction else None
    if LocalCluster.exists(dir):
        cluster = LocalCluster.open(dir)
        _check_as_before(cluster.blueprint, given)
    else:
        cluster = _make(dir, given, new_password() if password else "")
    took_s = _start(cluster)
    try:
        _tell_start(cluster, took_s, as_json=json)
        if not detach:
            _stay(cluster)
    except BaseException as error:
        ended = cluster.down()
        if not isinstance(error, KeyboardInterrupt):
            raise
        say(f"Ended {len(ended)} processes.")


def _given(
    servers: int | None,
    room_for: int | None,
    copies: int | None,
    fsync: Fsync | None,
    node_timeout: str | None,
    memory: str | None,
) -> dict[str, Any]:
    """What was given, by the names that the layout has for it; None for what was not."""
    return {
        "servers": servers,
        "room_for": room_for,
        "copies": copies,
        "fsync": fsync,
        "node_timeout_ms": None if node_timeout is None else duration_ms(node_timeout),
        "memory_bytes": None if memory is None else size_bytes(memory),
    }


def _make(directory: Path, given: dict[str, Any], password: str) -> LocalCluster:
    from ringdove.cluster.layout import Tuning
    from ringdove.cluster.local import LocalCluster

    defaults: dict[str, Any] = {
        "servers": SERVERS_ENOUGH, "room_for": 0, "copies": COPIES, "counter_rotating": True,
        "fsync": "everysec", "node_timeout_ms": 2_000, "memory_bytes": 256 * 1024 * 1024,
    }  # fmt: skip
    chosen = defaults | {name: value for name, value in given.items() if value is not None}
    rings = deal(*(chosen.pop(n) for n in ("servers", "copies", "room_for", "counter_rotating")))
    return LocalCluster.make(directory, rings, Tuning(**chosen), password)


def _check_as_before(blueprint: Blueprint, given: dict[str, Any]) -> None:
    """A cluster that exists has its shape and settings; refuse others."""
    import msgspec

    there: dict[str, Any] = {
        "servers": len(blueprint.rings.order), "room_for": blueprint.servers,
        "copies": blueprint.copies, "counter_rotating": blueprint.counter_rotating,
        **msgspec.structs.asdict(blueprint.tuning),
    }  # fmt: skip
    for name, value in given.items():
        if value is not None and value != there[name]:
            raise InvalidArgument(
                f"The cluster there has {name} = {there[name]}, not {value}: "
                "leave the option out, or name another directory."
            )


def _start(cluster: LocalCluster) -> float:
    """Start it; seconds that this took. Interrupted or failing, it leaves nothing running."""
    total = len(cluster.blueprint.members)
    begun_s = time.monotonic()
    with progress("starting the cluster", 2 * total) as show:
        cluster.up(show, lambda settled: show(total + settled))
    return round(time.monotonic() - begun_s, 2)


def _tell_start(cluster: LocalCluster, took_s: float, *, as_json: bool) -> None:
    total = len(cluster.blueprint.members)
    if as_json:
        emit_json(
            {
                "url": cluster.url,
                "dir": str(cluster.directory),
                "servers": cluster.blueprint.rings.names,
                "processes": total,
                "seconds": took_s,
            }
        )
    else:
        count = len(cluster.blueprint.rings.order)
        servers = f"{count} servers" if count > 1 else "one server"
        say(f"{total} processes of {servers} run after {took_s} s.")
        say_failures(cluster.blueprint)
        print(cluster.url)
    sys.stdout.flush()


def _stay(cluster: LocalCluster) -> None:
    """Wait until somebody else has ended the cluster, or Ctrl-C."""
    say("Ctrl-C ends.")
    while not cluster.was_stopped:
        cluster.running()  # Takes notice of those that were killed.
        time.sleep(_LOOK_S)
    say("Somebody else has ended the cluster.")


@app.command
def down(*, dir: Directory = DIRECTORY, json: AsJson = False) -> None:
    """End all processes of a cluster on this machine. What they hold stays, for the next `up`."""
    ended = _open(dir).down()
    if json:
        emit_json({"ended": ended})
    else:
        say(f"Ended {len(ended)} processes.")


# -- failures, and coming back ------------------------------------------------------------------


@app.command
def kill(
    server: Server, *, dir: Directory = DIRECTORY, wait: Wait = False, json: AsJson = False
) -> None:
    """Kill all processes of a server (kill -9), as a power cut would."""
    _fail("killed", _open(dir), server, wait=wait, as_json=json)


@app.command
def pause(
    server: Server, *, dir: Directory = DIRECTORY, wait: Wait = False, json: AsJson = False
) -> None:
    """Stop all processes of a server where they are (SIGSTOP), as a machine that hangs."""
    _fail("paused", _open(dir), server, wait=wait, as_json=json)


def _fail(verb: str, cluster: LocalCluster, server: str, *, wait: bool, as_json: bool) -> None:
    name = server.upper()
    begun_s = time.monotonic()
    pids = cluster.kill(name) if verb == "killed" else cluster.pause(name)
    report: dict[str, Any] = {"server": name, verb: pids}
    if wait:
        report["taken_over"] = cluster.await_taken_over(name)
        report["seconds"] = round(time.monotonic() - begun_s, 2)
    if as_json:
        emit_json(report)
        return
    say(f"{verb.capitalize()} {len(pids)} processes of server {name}.")
    if wait:
        say(
            f"Others took over within {report['seconds']} s."
            if report["taken_over"]
            else "Others could not take over everything; 'ringdove cluster status' shows what."
        )


@app.command
def resume(
    server: Server, *, dir: Directory = DIRECTORY, hand_back: bool = True, json: AsJson = False
) -> None:
    """Let the processes of a paused server go on, and hand its masters back.

    Parameters
    ----------
    hand_back
        Give the server its masters back when it has caught up.
    """
    cluster = _open(dir)
    begun_s = time.monotonic()
    with progress("waiting until the server has caught up"):
        returned = cluster.resume(server.upper(), hand_back=hand_back)
    _tell_return("goes on", server.upper(), returned, begun_s, as_json=json)


@app.command
def restart(
    server: Server | None = None,
    *,
    all: Annotated[bool, Parameter(name="--all", negative="")] = False,
    dir: Directory = DIRECTORY,
    now: Flag = False,
    hand_back: bool = True,
    json: AsJson = False,
) -> None:
    """Start a server again, safely, and hand its masters back; or all, one after the other.

    One that runs hands its masters over first. One that was killed waits until others have taken
    over; processes that have lost their data join as copies.

    Parameters
    ----------
    all
        Restart all servers in turn, each when all copies are in sync. Nothing is interrupted.
    now
        Do not wait until others have taken over, if the server has its append-only files. With
        fsync everysec this can cost the last second.
    hand_back
        Give the server its masters back when it has caught up.
    """
    cluster = _open(dir)
    begun_s = time.monotonic()
    if (server is None) != all or (all and (now or not hand_back)):
        raise InvalidArgument("Name one server, or say --all and nothing else.")
    if server is None:
        _restart_all(cluster, begun_s, as_json=json)
        return
    with progress("waiting until the server has caught up"):
        returned = cluster.restart(server.upper(), at_once=now, hand_back=hand_back)
    _tell_return("runs again", server.upper(), returned, begun_s, as_json=json)


def _restart_all(cluster: LocalCluster, begun_s: float, *, as_json: bool) -> None:
    names = cluster.blueprint.rings.names
    with progress("restarting one server after the other", len(names)) as show:
        handed = cluster.restart_all(show)
    took_s = round(time.monotonic() - begun_s, 2)
    if as_json:
        emit_json({"restarted": names, "handed": handed_json(handed), "seconds": took_s})
    else:
        say(f"Restarted {', '.join(names)} within {took_s} s.")


def _tell_return(
    verb: str, server: str, returned: Returned, begun_s: float, *, as_json: bool
) -> None:
    took_s = round(time.monotonic() - begun_s, 2)
    if as_json:
        emit_json(
            {
                "server": server,
                "started": returned.started,
                "joined_as_copies": returned.joined,
                "handed": handed_json(returned.handed),
                "seconds": took_s,
            }
        )
        return
    say(f"Server {server} {verb}, in sync after {took_s} s.")
    if returned.joined:
        say(f"Joined as copies, because their data were lost: {', '.join(returned.joined)}.")
    say_handed(returned.handed)


# -- growing and shrinking ----------------------------------------------------------------------


@app.command
def add(*, dir: Directory = DIRECTORY, json: AsJson = False) -> None:
    """Add a server to a running cluster, after the last: it takes its share of all shards.

    Messages are sent and received meanwhile. What was interrupted is finished when said again.
    """
    cluster = _open(dir)
    begun_s = time.monotonic()
    with progress("moving shards to the new server"):
        changed = cluster.add()
    _tell_change("added", changed, begun_s, as_json=json)


@app.command
def remove(server: Server, *, dir: Directory = DIRECTORY, json: AsJson = False) -> None:
    """Remove a server from a running cluster: others take over what it holds, then it ends.

    It may be down already. Messages are sent and received meanwhile. What was interrupted is
    finished when said again.
    """
    cluster = _open(dir)
    begun_s = time.monotonic()
    with progress("moving shards to the other servers"):
        changed = cluster.remove(server.upper())
    _tell_change("removed", changed, begun_s, as_json=json)


def _tell_change(verb: str, changed: Changed, begun_s: float, *, as_json: bool) -> None:
    took_s = round(time.monotonic() - begun_s, 2)
    if as_json:
        emit_json(
            {
                "server": changed.server,
                "started": changed.started,
                "handed": handed_json(changed.handed),
                "ended": changed.ended,
                "seconds": took_s,
            }
        )
        return
    say(
        f"Server {changed.server} is {verb} after {took_s} s: {len(changed.started)} processes "
        f"started, {len(changed.ended)} ended."
    )
    say_handed(changed.handed)


# -- what they share ----------------------------------------------------------------------------


def _open(directory: Path) -> LocalCluster:
    from ringdove.cluster.local import LocalCluster

    return LocalCluster.open(directory)
