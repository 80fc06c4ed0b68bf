"""The command `cluster status`: what a cluster looks like now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ringdove.cli import session
from ringdove.cli.flags import JsonFlag
from ringdove.cli.output import emit_json, human_bytes, table

if TYPE_CHECKING:
    from ringdove.cluster.layout import Blueprint
    from ringdove.cluster.status import ClusterStatus

#: Where a cluster on this machine is unless told otherwise.
DIRECTORY = Path("ringdove-cluster")


def status(
    *,
    dir: Annotated[Path | None, Parameter(name="--dir")] = None,
    plan: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Show who is master and copy of what, how far copies lag, and which servers are down.

    Of a cluster that somebody else made: `ringdove --url redis://HOST:PORT cluster status`. Leaves
    with exit code 3 when some slots are not served.

    Parameters
    ----------
    dir
        Where the cluster on this machine is, by default ./ringdove-cluster.
    plan
        The plan of a cluster on real hosts, instead.
    json
        Print JSON.
    """
    from ringdove.cli import EXIT_OK, EXIT_STORE
    from ringdove.cluster.local import LocalCluster
    from ringdove.cluster.plan import read_plan
    from ringdove.cluster.status import look_at

    if dir is None and plan is None and session.url.get().startswith(("redis://", "rediss://")):
        return _foreign_status(session.url.get(), as_json=json)
    if plan is not None:
        blueprint = read_plan(plan)
        found = look_at(blueprint)
    else:
        cluster = LocalCluster.open(dir or DIRECTORY)
        blueprint, found = cluster.blueprint, cluster.status()
    if json:
        emit_json(found.as_dict())
    else:
        _show_status(blueprint, found)
    return EXIT_OK if found.serving else EXIT_STORE


def _show_status(blueprint: Blueprint, found: ClusterStatus) -> None:
    from rich.console import Console

    from ringdove.cluster.status import draw

    console = Console(highlight=False)
    for line in draw(blueprint, found, console.width):
        console.print(line, no_wrap=True, overflow="crop")
    table(
        None,
        ["shard", "slots", "master", "copies in sync", "lag"],
        [
            [
                shard.shard,
                f"{shard.first_slot}-{shard.last_slot}",
                shard.master or "nobody",
                " ".join(shard.copies) or "none",
                human_bytes(shard.lag_bytes),
            ]
            for shard in found.shards
        ],
    )
    for server, state in found.servers.items():
        if state != "up":
            print(f"Server {server}: {state}.")
    print(_verdict(found))


def _verdict(found: ClusterStatus) -> str:
    if found.ok:
        return "All is well."
    if found.serving:
        return "Everything is served; some copies are missing or behind."
    unserved = [shard.shard for shard in found.shards if shard.master is None]
    if unserved:
        return f"Nobody serves {', '.join(unserved)}."
    return "The cluster does not serve: it has no majority of masters, or had none a moment ago."


def _foreign_status(url: str, *, as_json: bool) -> int:
    from ringdove.cli import EXIT_OK, EXIT_STORE
    from ringdove.cluster.status import look_at_foreign, slots_missing
    from ringdove.stores.fabric.url import parse_url

    place = parse_url(url)
    shards = look_at_foreign(place.nodes, place.login)
    missing = slots_missing(shards)
    if as_json:
        emit_json({"slots_missing": missing, "masters": [shard._asdict() for shard in shards]})
    else:
        table(
            None,
            ["master", "slots", "copies", ""],
            [[s.master, s.slots, " ".join(s.copies), "down" if s.down else ""] for s in shards],
        )
        print(f"{missing:,} slots are not served." if missing else "All slots are served.")
    return EXIT_STORE if missing else EXIT_OK
