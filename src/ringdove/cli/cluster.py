"""Commands on clusters: plan, create, up, status, kill, pause, resume, restart, down."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ringdove.cli.cluster_status import DIRECTORY, status
from ringdove.cli.output import emit_json, progress, say
from ringdove.cli.queues import JsonFlag
from ringdove.cli.values import duration_ms, size_bytes
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringdove.cluster.forming import Handed
    from ringdove.cluster.layout import Blueprint, Tuning
    from ringdove.cluster.local import LocalCluster, Returned

app = App(name="cluster", help="Plan, run and look after a Redis cluster in two rings.")
app.command(status)

Flag = Annotated[bool, Parameter(negative="")]
Fsync = Literal["always", "everysec"]
Directory = Annotated[Path, Parameter(name="--dir")]

_COPIES = 3

#: Below this many servers a second failure stops more than it must.
_SERVERS_ENOUGH = 5

#: Seconds between two looks whether somebody else has ended the cluster.
_LOOK_S = 0.25


# -- real hosts ---------------------------------------------------------------------------------


@app.command
def plan(
    *,
    hosts: str,
    out: Path,
    second_hosts: str = "",
    copies: int = _COPIES,
    port: int = 7001,
    data_dir: str = "/var/lib/ringdove-redis",
    fsync: Fsync = "always",
    node_timeout: str = "2s",
    memory: str = "1GiB",
    json: JsonFlag = False,
) -> None:
    """Write Redis configurations, start scripts and systemd units for real hosts.

    Example: `ringdove cluster plan --hosts 10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5 --out plan`

    Parameters
    ----------
    hosts
        Names or addresses in ring order, separated by commas.
    out
        A directory that does not exist yet, or is empty.
    second_hosts
        Addresses of the same hosts on a second network, for ring 2.
    copies
        How often a message is kept, 1 to 3.
    port
        The first port on each host.
    data_dir
        Where the hosts keep data.
    fsync
        When Redis syncs its append-only file: always, or everysec, which a power cut of all
        servers can cost a second.
    node_timeout
        Silence after which a process counts as failed, for example 2s.
    memory
        Memory for data of each process, for example 4GiB.
    json
        Print the plan as JSON.
    """
    import msgspec

    from ringdove.cluster.plan import layout_lines, make_plan, write_plan
    from ringdove.core.ring import Rings

    names = hosts.split(",")
    blueprint = make_plan(
        Rings(len(names), copies),
        _tuning(fsync, node_timeout, memory),
        names,
        second_hosts.split(",") if second_hosts else [],
        port,
    )
    files = write_plan(blueprint, out, data_dir)
    if json:
        emit_json(
            {"out": str(out), "files": len(files), "url": blueprint.url}
            | {"failures": blueprint.rings.tell_failures()}
            | msgspec.to_builtins(blueprint)
        )
        return
    print("\n".join(layout_lines(blueprint)))
    _say_failures(blueprint)
    say(f"Wrote {len(files)} files to {out}; {out}/README.txt says how to go on.")


@app.command
def create(*, plan: Path, json: JsonFlag = False) -> None:
    """Make one cluster of the Redis processes of a plan, or put it right after failures.

    Processes that have lost their data join as copies, and masters are handed back to the servers
    where the plan has them. What is in order is left alone.

    Example: `ringdove cluster create --plan plan`

    Parameters
    ----------
    plan
        The directory that `cluster plan` has written.
    json
        Print JSON.
    """
    from ringdove.cluster.forming import form, hand_back
    from ringdove.cluster.plan import read_plan

    blueprint = read_plan(plan)
    with progress("forming the cluster", len(blueprint.members)) as show:
        joined = form(blueprint, show)
        handed = hand_back(blueprint)
    if json:
        emit_json({"url": blueprint.url, "joined": joined, "handed": _handed(handed)})
        return
    say("The cluster is formed." if joined else "The cluster was formed before.")
    _say_handed(handed)
    print(blueprint.url)


# -- one machine --------------------------------------------------------------------------------


@app.command
def up(
    *,
    servers: int | None = None,
    dir: Directory = DIRECTORY,
    copies: int | None = None,
    detach: Flag = False,
    fsync: Fsync | None = None,
    node_timeout: str | None = None,
    memory: str | None = None,
    same_direction: Flag = False,
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
    json
        Print where the cluster is as one JSON object when it is ready.
    """
    from ringdove.cluster.local import LocalCluster

    given: dict[str, Any] = {
        "servers": servers,
        "copies": copies,
        "fsync": fsync,
        "node_timeout_ms": None if node_timeout is None else duration_ms(node_timeout),
        "memory_bytes": None if memory is None else size_bytes(memory),
        "counter_rotating": False if same_direction else None,
    }
    if LocalCluster.exists(dir):
        cluster = LocalCluster.open(dir)
        _check_as_before(cluster.blueprint, given)
    else:
        cluster = _make(dir, given)
    with _terminated_like_interrupted():
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


def _make(directory: Path, given: dict[str, Any]) -> LocalCluster:
    from ringdove.cluster.layout import Tuning
    from ringdove.cluster.local import LocalCluster
    from ringdove.core.ring import Rings

    defaults: dict[str, Any] = {
        "servers": _SERVERS_ENOUGH, "copies": _COPIES, "counter_rotating": True,
        "fsync": "everysec", "node_timeout_ms": 2_000, "memory_bytes": 256 * 1024 * 1024,
    }  # fmt: skip
    chosen = defaults | {name: value for name, value in given.items() if value is not None}
    rings = Rings(chosen.pop("servers"), chosen.pop("copies"), chosen.pop("counter_rotating"))
    return LocalCluster.make(directory, rings, Tuning(**chosen))


def _check_as_before(blueprint: Blueprint, given: dict[str, Any]) -> None:
    """A cluster that exists has its shape and settings; refuse others."""
    for name, value in given.items():
        place = blueprint if hasattr(blueprint, name) else blueprint.tuning
        if value is not None and value != getattr(place, name):
            raise InvalidArgument(
                f"The cluster there was made with {name} = {getattr(place, name)}, not {value}: "
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
        count = cluster.blueprint.servers
        servers = f"{count} servers" if count > 1 else "one server"
        say(f"{total} processes of {servers} run after {took_s} s.")
        _say_failures(cluster.blueprint)
        print(cluster.url)
    sys.stdout.flush()


def _stay(cluster: LocalCluster) -> None:
    """Wait until somebody else has ended the cluster, or Ctrl-C."""
    say("Ctrl-C ends.")
    while not cluster.was_stopped:
        cluster.running()  # Takes notice of those that were killed.
        time.sleep(_LOOK_S)
    say("Somebody else has ended the cluster.")


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that nothing is left running."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command
def down(*, dir: Directory = DIRECTORY, json: JsonFlag = False) -> None:
    """End all processes of a cluster on this machine. What they hold stays, for the next `up`.

    Parameters
    ----------
    dir
        Where the cluster is.
    json
        Print the ids of the processes as JSON.
    """
    ended = _open(dir).down()
    if json:
        emit_json({"ended": ended})
    else:
        say(f"Ended {len(ended)} processes.")


# -- failures, and coming back ------------------------------------------------------------------


@app.command
def kill(
    server: str, *, dir: Directory = DIRECTORY, wait: Flag = False, json: JsonFlag = False
) -> None:
    """Kill all processes of a server (kill -9), as a power cut would.

    Parameters
    ----------
    server
        Its name: A, B, C, ...
    dir
        Where the cluster is.
    wait
        Wait until other servers have taken over.
    json
        Print JSON.
    """
    _fail("killed", _open(dir), server, wait=wait, as_json=json)


@app.command
def pause(
    server: str, *, dir: Directory = DIRECTORY, wait: Flag = False, json: JsonFlag = False
) -> None:
    """Stop all processes of a server where they are (SIGSTOP), as a machine that hangs.

    Parameters
    ----------
    server
        Its name: A, B, C, ...
    dir
        Where the cluster is.
    wait
        Wait until other servers have taken over.
    json
        Print JSON.
    """
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
    server: str, *, dir: Directory = DIRECTORY, hand_back: bool = True, json: JsonFlag = False
) -> None:
    """Let the processes of a paused server go on, and hand its masters back.

    Parameters
    ----------
    server
        Its name: A, B, C, ...
    dir
        Where the cluster is.
    hand_back
        Give the server its masters back when it has caught up.
    json
        Print JSON.
    """
    cluster = _open(dir)
    begun_s = time.monotonic()
    with progress("waiting until the server has caught up"):
        returned = cluster.resume(server.upper(), hand_back=hand_back)
    _tell_return("goes on", server.upper(), returned, begun_s, as_json=json)


@app.command
def restart(
    server: str,
    *,
    dir: Directory = DIRECTORY,
    now: Flag = False,
    hand_back: bool = True,
    json: JsonFlag = False,
) -> None:
    """Start a server again, safely, and hand its masters back.

    One that runs hands its masters over first. One that was killed waits until others have taken
    over; processes that have lost their data join as copies.

    Parameters
    ----------
    server
        Its name: A, B, C, ...
    dir
        Where the cluster is.
    now
        Do not wait until others have taken over, if the server has its append-only files. With
        fsync everysec this can cost the last second.
    hand_back
        Give the server its masters back when it has caught up.
    json
        Print JSON.
    """
    cluster = _open(dir)
    begun_s = time.monotonic()
    with progress("waiting until the server has caught up"):
        returned = cluster.restart(server.upper(), at_once=now, hand_back=hand_back)
    _tell_return("runs again", server.upper(), returned, begun_s, as_json=json)


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
                "handed": _handed(returned.handed),
                "seconds": took_s,
            }
        )
        return
    say(f"Server {server} {verb}, in sync after {took_s} s.")
    if returned.joined:
        say(f"Joined as copies, because their data were lost: {', '.join(returned.joined)}.")
    _say_handed(returned.handed)


# -- what they share ----------------------------------------------------------------------------


def _open(directory: Path) -> LocalCluster:
    from ringdove.cluster.local import LocalCluster

    return LocalCluster.open(directory)


def _tuning(fsync: Fsync, node_timeout: str, memory: str) -> Tuning:
    from ringdove.cluster.layout import Tuning

    return Tuning(
        fsync=fsync,
        node_timeout_ms=duration_ms(node_timeout),
        memory_bytes=size_bytes(memory),
    )


def _say_failures(blueprint: Blueprint) -> None:
    if blueprint.servers < _SERVERS_ENOUGH or blueprint.copies < _COPIES:
        for line in blueprint.rings.tell_failures():
            say(line)


def _handed(handed: list[Handed]) -> list[dict[str, str]]:
    return [{"shard": h.shard, "from": h.source, "to": h.target} for h in handed]


def _say_handed(handed: list[Handed]) -> None:
    for shard, source, target in handed:
        say(f"Handed the master of {shard} from {source} to {target}.")
