"""What a fabric looks like, and what the loss of each server would do: for those who watch it.

A fabric in rings is known by its directory, or that of its plan. Of one that somebody else made,
only masters and copies are known.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringdove.cluster.local import LocalCluster
from ringdove.cluster.plan import read_plan
from ringdove.cluster.status import look_at, look_at_foreign, slots_missing
from ringdove.stores.fabric.url import parse_url

if TYPE_CHECKING:
    from ringdove.cluster.layout import Blueprint
    from ringdove.cluster.status import ClusterStatus


def look_at_fabric(url: str, place: str | None) -> dict[str, Any]:
    """The fabric at a URL; `place` is the directory of it on this machine, or of its plan."""
    if place is None:
        return _foreign(url)
    path = Path(place)
    if LocalCluster.exists(path):
        cluster = LocalCluster.open(path)
        return _rings(cluster.blueprint, cluster.status())
    blueprint = read_plan(path)
    return _rings(blueprint, look_at(blueprint))


def _rings(blueprint: Blueprint, status: ClusterStatus) -> dict[str, Any]:
    rings = blueprint.rings
    return {
        "kind": "rings",
        **status.as_dict(),
        "url": "",  # It may hold a password.
        "directions": [rings.direction(ring) for ring in (1, 2)],
        "homes": {
            name: {"ring": shard.ring, "holders": [m.server for m in blueprint.holding(name)]}
            for name, shard in blueprint.shards.items()
        },
        "losses": {server: what_a_loss_does(status, server) for server in status.servers},
    }


def what_a_loss_does(status: ClusterStatus, server: str) -> dict[str, Any]:
    """Which shards would be served by whom, and which by nobody, if a server went away now."""
    moves: dict[str, str] = {}
    lost: list[str] = []
    for shard in status.shards:
        heirs = [copy for copy in shard.copies if copy != server]
        if shard.master == server and heirs:
            moves[shard.shard] = heirs[0]
        elif shard.master == server:
            lost.append(shard.shard)
    return {"moves": moves, "lost": lost}


def _foreign(url: str) -> dict[str, Any]:
    place = parse_url(url)
    shards = look_at_foreign(place.nodes, place.login)
    return {
        "kind": "masters",
        "masters": [shard._asdict() for shard in shards],
        "slots_missing": slots_missing(shards),
    }
