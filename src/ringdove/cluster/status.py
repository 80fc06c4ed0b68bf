"""What a cluster looks like now: who is master and copy of what, how far copies lag, who is down.

In the drawing every server is a box. A box lists the shards of ring 1 that the server holds, then
those of ring 2, in the order in which it would be promoted; the arrows show where a ring's copies
lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ringdove.cluster.asking import NO_LOGIN
from ringdove.cluster.forming import look_around, masters_of
from ringdove.cluster.views import look
from ringdove.core.ring import RINGS, SLOTS
from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rich.text import Text

    from ringdove.cluster.layout import Blueprint, Member
    from ringdove.cluster.views import Node, View
    from ringdove.stores.fabric.wire import Login, NodeAddress

    Views = Mapping[NodeAddress, View | None]

#: A copy that has confirmed nothing for so many seconds does not count (min-replicas-max-lag).
_LAG_S_MAX = 3

#: Columns of a box, its border included, and between boxes.
_BOX_COLUMNS, _GAP_COLUMNS = 11, 2

State = Literal["master", "copy", "behind", "paused", "down"]

_MARKS: dict[State, tuple[str, str, str]] = {
    "master": ("●", "bold green", "master"),
    "copy": ("○", "cyan", "copy in sync"),
    "behind": ("◌", "yellow", "copy behind or not yet in place"),
    "paused": ("‖", "yellow", "paused"),
    "down": ("✗", "red", "down"),
}


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process."""

    server: str
    shard: str
    address: str
    state: State
    #: What the copy has not confirmed yet, and for how long; none for masters and those down.
    lag_bytes: int | None = None
    lag_s: int | None = None


class ShardStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One shard: its slots, and the servers of its master and of its copies in sync."""

    shard: str
    first_slot: int
    last_slot: int
    master: str | None
    copies: list[str]
    lag_bytes: int


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster. `ok`: every shard is served and every copy in sync."""

    ok: bool
    serving: bool
    url: str
    servers: dict[str, str]
    shards: list[ShardStatus]
    members: list[MemberStatus]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def master(self, shard: str) -> str | None:
        """The server that serves a shard."""
        return next(item.master for item in self.shards if item.shard == shard)


def look_at(blueprint: Blueprint, paused: Collection[str] = ()) -> ClusterStatus:
    """Ask every process; those that are known to be paused are not waited for."""
    asked = [member for member in blueprint.members if member.name not in paused]
    views: dict[NodeAddress, View | None] = {m.address: None for m in blueprint.members}
    views |= look_around(blueprint, asked)
    masters = masters_of(blueprint, views)
    members = [_member(m, masters[m.shard], views, paused) for m in blueprint.members]
    shards = [_shard(blueprint, name, members) for name in blueprint.shards]
    served = [
        (master := masters[name]) is not None
        and (view := views[master.address]) is not None
        and view.healthy
        for name in blueprint.shards
    ]
    return ClusterStatus(
        ok=all(served) and all(member.state in ("master", "copy") for member in members),
        serving=all(served),
        url=blueprint.url,
        servers={name: _server(name, members) for name in _servers(blueprint)},
        shards=shards,
        members=members,
    )


def _member(
    member: Member, master: Member | None, views: Views, paused: Collection[str]
) -> MemberStatus:
    view = views[member.address]
    state: State = "behind"
    lag_bytes = lag_s = None
    if view is None:
        state = "paused" if member.name in paused else "down"
    elif master == member:
        state = "master"
    elif master is not None and (master_view := views[master.address]) is not None:
        confirmed = master_view.copies.get(member.address)
        if confirmed is not None:
            lag_bytes = max(0, master_view.offset - confirmed[0])
            lag_s = confirmed[1]
            if lag_s <= _LAG_S_MAX and view.linked:
                state = "copy"
    return MemberStatus(
        server=member.server,
        shard=member.shard,
        address=str(member.address),
        state=state,
        lag_bytes=lag_bytes,
        lag_s=lag_s,
    )


def _shard(blueprint: Blueprint, name: str, members: Sequence[MemberStatus]) -> ShardStatus:
    slots = blueprint.rings.slots(blueprint.shards[name])
    order = [member.server for member in blueprint.holding(name)]
    held = sorted((m for m in members if m.shard == name), key=lambda m: order.index(m.server))
    return ShardStatus(
        shard=name,
        first_slot=slots.start,
        last_slot=slots.stop - 1,
        master=next((m.server for m in held if m.state == "master"), None),
        copies=[m.server for m in held if m.state == "copy"],
        lag_bytes=max((m.lag_bytes or 0 for m in held), default=0),
    )


def _servers(blueprint: Blueprint) -> list[str]:
    """The servers in ring order, and one that is being removed."""
    return list(dict.fromkeys([*blueprint.rings.names, *(m.server for m in blueprint.members)]))


def _server(name: str, members: Sequence[MemberStatus]) -> str:
    """Up, down, paused, or which of its processes are not up."""
    states = [member.state for member in members if member.server == name]
    for whole in ("down", "paused"):
        if all(state == whole for state in states):
            return whole
    missing = sum(state in ("down", "paused") for state in states)
    return f"{missing} of {len(states)} processes down" if missing else "up"


# -- the drawing --------------------------------------------------------------------------------


def draw(blueprint: Blueprint, status: ClusterStatus, columns: int) -> list[Text]:
    """Both rings, as many servers side by side as fit."""
    from rich.text import Text  # noqa: PLC0415  only who draws pays for it

    per_row = max(1, (columns + _GAP_COLUMNS) // (_BOX_COLUMNS + _GAP_COLUMNS))
    names = list(status.servers)
    rows = [names[start : start + per_row] for start in range(0, len(names), per_row)]
    lines: list[Text] = []
    for number, row in enumerate(rows):
        lines += [
            _arrows(blueprint, 1, len(row), first=number == 0, last=number == len(rows) - 1),
            *_boxes(blueprint, status, row),
            _arrows(blueprint, 2, len(row), first=number == 0, last=number == len(rows) - 1),
        ]
    lines.append(Text("  ").join(Text(f"{m} {word}", style) for m, style, word in _MARKS.values()))
    return lines


def _arrows(blueprint: Blueprint, ring: int, servers: int, *, first: bool, last: bool) -> Text:
    """The way around: ring 1 above the boxes, ring 2 below."""
    from rich.text import Text  # noqa: PLC0415

    step = _BOX_COLUMNS + _GAP_COLUMNS
    head = "▶" if blueprint.rings.direction(ring) > 0 else "◀"
    way = ["─"] * (servers * step - _GAP_COLUMNS)
    for box in range(1, servers):
        way[box * step - _GAP_COLUMNS] = head
    corners = ("╭", "╮") if ring == 1 else ("╰", "╯")
    way[0] = corners[0] if first else "─"
    way[-1] = corners[1] if last else "─"
    label = f" ring {ring} "
    way[2 : 2 + len(label)] = label
    return Text("".join(way), "dim")


def _boxes(blueprint: Blueprint, status: ClusterStatus, row: Sequence[str]) -> list[Text]:
    from rich.text import Text  # noqa: PLC0415

    held = {name: _held(blueprint, name) for name in row}
    heights = [max(len(rings[ring]) for rings in held.values()) for ring in range(RINGS)]
    boxes = [_box(status, name, rings, heights) for name, rings in held.items()]
    gap = Text(" " * _GAP_COLUMNS)
    return [gap.join(parts) for parts in zip(*boxes, strict=True)]


def _held(blueprint: Blueprint, server: str) -> list[list[str]]:
    """The shards that a server holds, of each ring."""
    shards = [member.shard for member in blueprint.on(server)]
    rings = range(1, RINGS + 1)
    return [[shard for shard in shards if blueprint.shards[shard].ring == r] for r in rings]


def _box(
    status: ClusterStatus, server: str, rings: Sequence[Sequence[str]], heights: Sequence[int]
) -> list[Text]:
    """A server with what it holds of each ring, as high as its neighbours."""
    from rich.text import Text  # noqa: PLC0415

    inside = _BOX_COLUMNS - 2
    border = {"up": "", "down": "red"}.get(status.servers[server], "yellow")
    found = {m.shard: m for m in status.members if m.server == server}
    lines = [Text(f"┌{server:─^{inside}}┐", border)]
    for number, (shards, height) in enumerate(zip(rings, heights, strict=True), start=1):
        for place in range(height):
            mark, style, shard = " ", "", ""
            if place < len(shards):
                shard = shards[place]
                mark, style, _ = _MARKS[found[shard].state]
            text = (f" {mark} {shard:<{inside - 3}}", style)
            lines.append(Text.assemble(("│", border), text, ("│", border)))
        edge = "└┘" if number == RINGS else "├┤"
        lines.append(Text(f"{edge[0]}{'─' * inside}{edge[1]}", border))
    return lines


# -- a cluster that somebody else made ----------------------------------------------------------


class ForeignShard(NamedTuple):
    """A master of a cluster without rings, and its copies."""

    master: str
    slots: int
    copies: list[str]
    #: Whether the cluster takes the master for failed.
    down: bool


def look_at_foreign(seeds: Sequence[NodeAddress], login: Login = NO_LOGIN) -> list[ForeignShard]:
    """The masters of any Redis cluster, as the first of its nodes that answers sees them."""
    views = look(seeds, login)
    view = next((found for seed in seeds if (found := views[seed]) is not None), None)
    if view is None:
        raise StoreUnavailable(f"No node answers at {', '.join(map(str, seeds))}.")
    masters = [node for node in view.nodes if node.slots]
    return [
        ForeignShard(
            str(master.address),
            master.slots_count,
            [str(n.address) for n in view.nodes if n.master == master.id and not _failed(n)],
            _failed(master),
        )
        for master in sorted(masters, key=lambda master: master.slots[0].start)
    ]


def slots_missing(shards: Sequence[ForeignShard]) -> int:
    """Slots that nobody serves."""
    return SLOTS - sum(shard.slots for shard in shards if not shard.down)


def _failed(node: Node) -> bool:
    return bool(node.flags & {"fail", "fail?", "noaddr"})
