"""Makes one cluster in rings of running Redis processes, and puts it right after failures.

Everything here may be repeated: what is done already is left as it is.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

from ringdove.cluster.asking import ask_each, demand
from ringdove.cluster.views import look
from ringdove.errors import StoreUnavailable
from ringdove.stores.fabric.wire import NodeAddress, NodeLost, ReplyError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ringdove.cluster.asking import Command
    from ringdove.cluster.layout import Blueprint, Member
    from ringdove.cluster.views import View

    Views = Mapping[NodeAddress, View | None]
    Show = Callable[[int], None]

#: Seconds until processes that were started answer, a cluster is formed, or copies have caught up
#: with what they missed. A large data set takes minutes to copy.
START_S, FORM_S, CATCH_UP_S = 60.0, 60.0, 600.0

#: Seconds between two looks at processes that are to change, and before a hand-over that did not
#: happen is asked for again (Redis gives up after five).
_LOOK_S, _ASK_AGAIN_S = 0.1, 6.0


class Handed(NamedTuple):
    """A shard whose master has moved."""

    shard: str
    source: str
    target: str


def ignore(_done: int) -> None:
    """Show nothing."""


# -- waiting ------------------------------------------------------------------------------------


def wait_until(
    condition: Callable[[], bool], timeout_s: float, complaint: Callable[[], str]
) -> None:
    """Look until a condition holds; raises the complaint when it takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise StoreUnavailable(f"{complaint()} within {timeout_s:.0f} s.")
        time.sleep(_LOOK_S)


def await_answers(members: Sequence[Member], show: Show = ignore) -> None:
    """Wait until processes answer."""
    silent: list[str] = []

    def all_answer() -> bool:
        views = look(member.address for member in members)
        silent[:] = [member.name for member in members if views[member.address] is None]
        show(len(members) - len(silent))
        return not silent

    wait_until(all_answer, START_S, lambda: f"{', '.join(silent)} did not answer")


def await_settled(
    blueprint: Blueprint,
    members: Sequence[Member] | None = None,
    show: Show = ignore,
    timeout_s: float = CATCH_UP_S,
) -> None:
    """Wait until processes (all, or those given) have their place and copies are in sync."""
    awaited = blueprint.members if members is None else members
    missing: list[str] = []

    def settled() -> bool:
        views = look(member.address for member in blueprint.members)
        missing[:] = [m.name for m in awaited if not _in_place(blueprint, m, views)]
        show(len(awaited) - len(missing))
        return not missing

    wait_until(settled, timeout_s, lambda: f"{', '.join(missing)} did not come into sync")


def _in_place(blueprint: Blueprint, member: Member, views: Views) -> bool:
    """Whether a process serves its shard, or is a copy in sync with the one that does."""
    view = views[member.address]
    master = master_of(blueprint, member.shard, views)
    if view is None or master is None or not view.healthy:
        return False
    master_view = views[master.address]
    assert master_view is not None
    if master is member:
        return True
    return (
        view.me.master == master_view.me.id
        and view.linked
        and any(address.port == member.port for address in master_view.copies)
    )


# -- who serves what ----------------------------------------------------------------------------


def master_of(blueprint: Blueprint, shard: str, views: Views) -> Member | None:
    """The process that serves a shard, by what they all say; None when none does."""
    claims = [
        (view.me.epoch, member)
        for member in blueprint.holding(shard)
        if (view := views[member.address]) is not None and view.is_master
    ]
    return max(claims, key=lambda claim: claim[0])[1] if claims else None


def masters_of(blueprint: Blueprint, views: Views) -> dict[str, Member | None]:
    """The process that serves each shard."""
    return {shard: master_of(blueprint, shard, views) for shard in blueprint.shards}


def await_taken_over(
    blueprint: Blueprint, server: str, timeout_s: float, *, only_reachable: bool = True
) -> bool:
    """Wait until other servers serve every shard that a server has held; whether they do.

    With `only_reachable` a shard of which no other process answers is not waited for.
    """
    shards = {member.shard for member in blueprint.on(server)}
    deadline_s = time.monotonic() + timeout_s
    others = [m for m in blueprint.members if m.shard in shards and m.server != server]
    while True:
        views: dict[NodeAddress, View | None] = dict.fromkeys(
            (member.address for member in blueprint.members), None
        )
        views |= look(member.address for member in others)
        awaited = {
            member.shard for member in others if not only_reachable or views[member.address]
        }
        serving = {
            shard
            for shard in awaited
            if (master := master_of(blueprint, shard, views)) is not None
            and (view := views[master.address]) is not None
            and view.healthy
        }
        if serving == awaited:
            return serving == shards
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)


# -- forming ------------------------------------------------------------------------------------


def form(blueprint: Blueprint, show: Show = ignore) -> bool:
    """Make one cluster of processes that answer; whether anything was left to do.

    Processes that joined no cluster yet become what the blueprint says; when the others are a
    cluster already, they join it as copies, so that none comes to an occupied place empty.
    """
    views = look(member.address for member in blueprint.members)
    _check_all_ours(blueprint, views)
    alone = [m for m in blueprint.members if (view := views[m.address]) and view.is_alone]
    if len(alone) == len(blueprint.members):
        _give_slots(blueprint)
        _introduce(blueprint.members, blueprint.members)
        _await_acquainted(blueprint, blueprint.members)
        _replicate(blueprint, [member for member in blueprint.members if member.rank])
    elif alone:
        join_as_copies(blueprint, alone)
    await_settled(blueprint, show=show, timeout_s=FORM_S if alone else CATCH_UP_S)
    return bool(alone)


def _check_all_ours(blueprint: Blueprint, views: Views) -> None:
    silent = [f"{m.name} ({m.address})" for m in blueprint.members if views[m.address] is None]
    if silent:
        raise StoreUnavailable(
            f"{len(silent)} of {len(blueprint.members)} Redis processes do not answer: "
            f"{', '.join(silent)}. Start them first."
        )
    ports = {member.port for member in blueprint.members}
    for member in blueprint.members:
        view = views[member.address]
        assert view is not None
        strangers = [node for node in view.nodes if node.address.port not in ports]
        if strangers:
            raise StoreUnavailable(
                f"Redis at {member.address} belongs to another cluster: it knows "
                f"{strangers[0].address}. Empty it with FLUSHALL and CLUSTER RESET HARD, or plan "
                "other ports."
            )


def _give_slots(blueprint: Blueprint) -> None:
    """Give masters their slots and an epoch each, before they know each other."""
    questions: dict[NodeAddress, list[Command]] = {}
    for epoch, (name, shard) in enumerate(blueprint.shards.items(), start=1):
        slots = blueprint.rings.slots(shard)
        questions[blueprint.holding(name)[0].address] = [
            ("CLUSTER", "SET-CONFIG-EPOCH", epoch),
            ("CLUSTER", "ADDSLOTSRANGE", slots.start, slots.stop - 1),
        ]
    for address, answer in ask_each(questions).items():
        for reply in answer if isinstance(answer, list) else [answer]:
            if isinstance(reply, Exception):
                raise StoreUnavailable(f"Redis at {address} takes no slots: {reply}.")


def _introduce(members: Iterable[Member], to: Sequence[Member]) -> None:
    """Have processes meet others; gossip does the rest, but slower."""
    meetings: list[Command] = [
        ("CLUSTER", "MEET", _resolve(member.host), member.port, member.bus_port) for member in to
    ]
    ask_each({member.address: meetings for member in members})


def _resolve(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise StoreUnavailable(f"Host {host!r} has no address: {error}.") from error


def _await_acquainted(blueprint: Blueprint, members: Sequence[Member]) -> None:
    """Wait until each of some processes knows all that answer, by id."""
    missing: list[str] = []

    def acquainted() -> bool:
        views = look(member.address for member in blueprint.members)
        ids = {view.me.id for view in views.values() if view is not None}
        missing[:] = [
            member.name
            for member in members
            if (view := views[member.address]) is None
            or ids - {node.id for node in view.nodes if "handshake" not in node.flags}
        ]
        return not missing

    wait_until(acquainted, FORM_S, lambda: f"{', '.join(missing)} did not meet the others")


def _replicate(blueprint: Blueprint, copies: Sequence[Member]) -> None:
    """Make processes copies of whoever serves their shard."""
    views = look(member.address for member in blueprint.members)
    for member in copies:
        master = master_of(blueprint, member.shard, views)
        if master is None:
            raise StoreUnavailable(
                f"Nobody serves shard {member.shard}, so {member.name} can become no copy of it."
            )
        view = views[master.address]
        assert view is not None
        try:
            demand(member.address, "CLUSTER", "REPLICATE", view.me.id)
        except ReplyError as error:
            raise StoreUnavailable(
                f"{member.name} at {member.address} does not become a copy: {error}."
            ) from error


def join_as_copies(blueprint: Blueprint, members: Sequence[Member]) -> None:
    """Add processes that know nobody to the running cluster, as copies of their shards.

    Who they were before is forgotten.
    """
    views = look(member.address for member in blueprint.members)
    running = [m for m in blueprint.members if views[m.address] is not None and m not in members]
    _forget(blueprint, running, views)
    _introduce(members, running)
    _await_acquainted(blueprint, [*members, *running])
    _replicate(blueprint, members)


def _forget(blueprint: Blueprint, running: Sequence[Member], views: Views) -> None:
    """Have processes forget ids at addresses where another id answers now."""
    now = {m.port: view.me.id for m in blueprint.members if (view := views[m.address]) is not None}
    questions: dict[NodeAddress, list[Command]] = {}
    for member in running:
        view = views[member.address]
        assert view is not None
        former = [n.id for n in view.nodes if now.get(n.address.port, n.id) != n.id]
        questions[member.address] = [("CLUSTER", "FORGET", node_id) for node_id in former]
    ask_each({address: commands for address, commands in questions.items() if commands})


# -- handing masters over -----------------------------------------------------------------------


def hand_back(blueprint: Blueprint) -> list[Handed]:
    """Move each master to the first process in ring order that runs; what was moved.

    Redis does it without losing anything: the old master stops writing until the new one has all.
    """
    return _hand(blueprint, without=())


def hand_over(blueprint: Blueprint, server: str) -> list[Handed]:
    """Move the masters of a server to others, as far as there are copies."""
    return _hand(blueprint, without=(server,))


def _hand(blueprint: Blueprint, without: Collection[str]) -> list[Handed]:
    views = look(member.address for member in blueprint.members)
    moved = []
    for shard, master in masters_of(blueprint, views).items():
        fit = [
            member
            for member in blueprint.holding(shard)
            if member.server not in without and _in_place(blueprint, member, views)
        ]
        if master is not None and fit and fit[0] != master:
            _fail_over(blueprint, fit[0])
            moved.append(Handed(shard, master.server, fit[0].server))
    if moved:
        shards = {handed.shard for handed in moved}
        awaited = [m for m in blueprint.members if m.shard in shards and views[m.address]]
        await_settled(blueprint, awaited)
    return moved


def _fail_over(blueprint: Blueprint, target: Member) -> None:
    """Make a copy the master of its shard, with the agreement of the present one."""
    asked_s = -_ASK_AGAIN_S

    def serves() -> bool:
        nonlocal asked_s
        views = look(member.address for member in blueprint.holding(target.shard))
        if master_of(blueprint, target.shard, views) is target:
            return True
        if time.monotonic() - asked_s >= _ASK_AGAIN_S:
            asked_s = time.monotonic()
            with contextlib.suppress(ReplyError, NodeLost):
                demand(target.address, "CLUSTER", "FAILOVER")
        return False

    wait_until(
        serves, FORM_S, lambda: f"{target.name} did not become master of {target.shard}"
    )
