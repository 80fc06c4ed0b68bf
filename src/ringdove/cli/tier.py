"""The commands `tier ...`: brokers of several levels, and what their manager knows of them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ringdove.cli import session, tier_local
from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType
    from rich.tree import Tree

    from ringdove.tiers.overview import BrokerView, Tiers

app = App(name="tier", help="Tiers: brokers near their consumers, and their manager.")
for command in (tier_local.up, tier_local.down, tier_local.kill, tier_local.restart):
    app.command(command)

#: Seconds between two looks with --watch.
_WATCH_S = 1.0

#: A broker whose load is above this is shown in colour.
_BUSY = 0.8


@app.command
def status(
    *,
    dir: Annotated[Path | None, Parameter(name="--dir")] = None,
    watch: Flag = False,
    json: JsonFlag = False,
) -> int:
    """Draw the tree of brokers: state, messages per second, lag, load, and alarms.

    Leaves with exit code 3 when a broker is lost.

    Example: `ringdove --url ringdove://127.0.0.1:7100 tier status`, where the manager is; of a
    topology on this machine `ringdove tier status --dir ./tiers`.

    Parameters
    ----------
    dir
        Where a topology on this machine is, by default ./ringdove-tiers if it is there.
    watch
        Draw again every second, until Ctrl-C.
    json
        Print JSON; with --watch, a line every second.
    """
    from ringdove.cli import EXIT_OK, EXIT_STORE

    tiers = None
    for tiers in _looks(_manager_url(dir), forever=watch, draw=not json):
        if json:
            emit_json(_plain(tiers))
            sys.stdout.flush()
    lost = tiers is not None and any(broker.state == "lost" for broker in tiers.brokers)
    return EXIT_STORE if lost else EXIT_OK


def _manager_url(directory: Path | None) -> str:
    from ringdove.client.address import TIER_SCHEMES
    from ringdove.errors import InvalidArgument
    from ringdove.tiers.local import Topology

    default = tier_local.DIRECTORY
    if directory is None and not session.told.get() and Topology.exists(default):
        directory = default
    if directory is not None:
        return Topology.load(directory).manager.url
    scheme, _, rest = session.url.get().partition(":")
    if scheme in TIER_SCHEMES:
        scheme, rest = f"ringdove{'s' if '+tls' in scheme else ''}", rest.partition("?")[0]
    if not scheme.startswith("ringdove"):
        raise InvalidArgument("Say where the manager is: --url ringdove://HOST:PORT.")
    return f"{scheme}:{rest}"


def _looks(url: str, *, forever: bool, draw: bool) -> Iterator[Tiers]:
    """What the manager knows, once or every second; drawn as it comes, if that is wanted."""
    import msgspec
    from rich.console import Console
    from rich.live import Live

    from ringdove.client.remote import RemoteBackend
    from ringdove.pending import run
    from ringdove.tiers.overview import Tiers

    console = Console(highlight=False)
    live = Live(console=console, auto_refresh=False) if draw and forever else None
    backend = RemoteBackend(url)
    run(backend.open())
    try:
        if live is not None:
            live.start()
        while True:
            tiers = msgspec.convert(run(backend.tier("tiers", {})), Tiers)
            if live is not None:
                live.update(picture(tiers), refresh=True)
            elif draw:
                console.print(picture(tiers))
            yield tiers
            if not forever:
                return
            time.sleep(_WATCH_S)
    finally:
        if live is not None:
            live.stop()
        run(backend.close())


def picture(tiers: Tiers) -> RenderableType:
    """The tree, then the queues and the alarms."""
    from rich.console import Group
    from rich.markup import escape

    parts: list[RenderableType] = [_tree(tiers)]
    for queue in tiers.queues:
        levels = "".join(
            f", level {level.level} has {level.least:,}"
            + (f" to {level.furthest:,}" if level.furthest > level.least else "")
            for level in queue.relayed
        )
        done = "".join(f", {name} is done with {n:,}" for name, n in queue.consumed.items())
        late = f"; {queue.lag:.1f} s late" if queue.lag >= 0.1 else ""
        parts.append(f"queue {queue.name}: {queue.produced:,} produced{levels}{done}{late}")
    alarms = [f"[red]alarm[/] ({alarm.kind}) {escape(alarm.text)}" for alarm in tiers.alarms]
    return Group(*parts, *(alarms or ["No alarms."]))


def _tree(tiers: Tiers) -> Tree:
    from rich.tree import Tree

    clients = ", ".join(f"{count} {role}s" for role, count in sorted(tiers.clients.items()))
    root = Tree(f"manager  {clients}".rstrip())
    branches: dict[str, Tree] = {}
    waiting = sorted(tiers.brokers, key=lambda broker: (broker.level, broker.region, broker.name))
    names = {broker.url: broker.name for broker in waiting}
    # Whoever pulls from nobody that is drawn hangs at the root, so none is left out.
    for broker in waiting:
        upstream = names.get(broker.upstream, broker.upstream)
        branches[broker.name] = branches.get(upstream, root).add(_label(broker))
    return root


def _label(broker: BrokerView) -> str:
    """One broker on one line."""
    colour = {"up": "green", "standby": "cyan"}.get(broker.state, "red")
    place = f"level {broker.level}" + (f" {broker.region}" if broker.region else "")
    parts = [f"[bold]{broker.name}[/]", place, f"[{colour}]{broker.state}[/]"]
    if broker.heard_ms:
        load = f"load {broker.load:.0%}"
        parts += [f"{broker.rate:,.0f}/s", f"[yellow]{load}[/]" if broker.load > _BUSY else load]
        parts.append(f"{broker.connections:,} connected")
    if broker.level and broker.heard_ms:
        parts.append(f"lag {broker.lag:.1f} s")
        parts += [f"{broker.behind:,} behind"] if broker.behind else []
    return "  ".join(parts)


def _plain(tiers: Tiers) -> object:
    import msgspec

    return msgspec.to_builtins(tiers)
