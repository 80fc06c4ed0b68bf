"""The commands `tier up`, `down`, `kill` and `restart`: a topology on this machine, to try."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ringdove.cli.flags import JsonFlag
from ringdove.cli.output import emit_json, progress, say, table

if TYPE_CHECKING:
    from ringdove.tiers.local import Topology

DIRECTORY = Path("./ringdove-tiers")
Directory = Annotated[Path, Parameter(name="--dir", help="Where the topology is.")]


def up(
    *,
    levels: int | None = None,
    regions: int | None = None,
    dir: Directory = DIRECTORY,
    json: JsonFlag = False,
) -> None:
    """Run brokers of several levels and their manager on this machine; or those there are, again.

    They run until `tier down`. Producers connect to the core, consumers to the broker of their
    region; or both to the manager, which tells them.

    Example: `ringdove tier up --levels 3 --regions 4 --dir ./tiers`, then `ringdove tier status
    --dir ./tiers`.

    Parameters
    ----------
    levels
        Levels from the core to the edge, by default 3.
    regions
        Regions at the edge, with a broker each; by default 4.
    json
        Print the brokers as JSON.
    """
    from ringdove.tiers.local import Topology

    exists = Topology.exists(dir)
    if exists and levels is None and regions is None:
        topology = Topology.load(dir)
    else:
        topology = Topology.make(
            dir, 3 if levels is None else levels, 4 if regions is None else regions
        )
    started = count(1)
    with progress("brokers", len(topology.brokers) + 1) as show:
        topology.up(lambda _: show(next(started)))
    described = _describe(topology)
    if json:
        emit_json(described)
        return
    rows = [[b["level"], b["region"], b["name"], b["url"]] for b in described["brokers"]]
    table(None, ["level", "region", "broker", "url"], rows)
    say(f"Clients: tiers://{described['manager']}?region=region-1")
    if described["http"]:
        say(f"Manager: {described['http']}/v1/tiers")
    say(f"ringdove tier status --dir {dir} shows the tree, ringdove tier down --dir {dir} ends it.")


def down(*, dir: Directory = DIRECTORY) -> None:
    """End a topology in good order; its data stays, and `tier up` goes on with it."""
    from ringdove.tiers.local import Topology

    ended = Topology.load(dir).down()
    say(f"Ended {', '.join(ended)}." if ended else "Nothing was running.")


def kill(name: str, /, *, dir: Directory = DIRECTORY) -> None:
    """Kill one broker, or the manager, as a power cut would.

    Parameters
    ----------
    name
        As `tier up` names it.
    """
    from ringdove.tiers.local import Topology

    Topology.load(dir).kill(name)
    say(f"Killed {name}. 'ringdove tier restart {name} --dir {dir}' starts it again.")


def restart(name: str, /, *, dir: Directory = DIRECTORY) -> None:
    """Start a broker that was killed.

    Parameters
    ----------
    name
        As `tier up` names it.
    """
    from ringdove.tiers.local import Topology

    Topology.load(dir).start(name)
    say(f"{name} serves.")


def _describe(topology: Topology) -> dict[str, Any]:
    manager = topology.manager
    return {
        "manager": manager.url.removeprefix("ringdove://"),
        "http": f"http://127.0.0.1:{manager.http}" if manager.http > 0 else None,
        "brokers": [
            {"name": b.name, "level": b.level, "region": b.region, "url": b.url}
            for b in topology.brokers
        ],
    }
