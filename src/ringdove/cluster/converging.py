"""Brings a running cluster to a blueprint whose servers have changed.

1. New processes join as copies of their shards and come into sync.
2. Masters are handed over to where the blueprint has them at home.
3. Processes that are no longer needed give their shards up, one shard after the other, and all
   others forget them.

No shard ever has fewer copies than before, and nothing is acknowledged that only a leaving process
has: a master rests for a moment until those that stay have all, and only then the others go.

Everything may be repeated, also after an interruption in the middle.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ringdove.cluster.asking import ask_each, demand
from ringdove.cluster.forming import (
    CATCH_UP_S,
    FORM_S,
    Handed,
    await_settled,
    form,
    hand_back,
    ignore,
    look_around,
    master_of,
    wait_until,
)
from ringdove.cluster.layout import copies_settings
from ringdove.errors import StoreUnavailable
from ringdove.stores.fabric.wire import ReplyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringdove.cluster.asking import Command
    from ringdove.cluster.forming import Show
    from ringdove.cluster.layout import Blueprint, Member
    from ringdove.stores.fabric.wire import Login, NodeAddress

#: Milliseconds that a master rests at most while copies take over what is under way, which takes
#: two or three; and seconds in which they must have it, well before it goes on.
_REST_MS, _TAKE_S = 2_000, 1.0


class Converged(NamedTuple):
    """What has changed."""

    joined: bool
    handed: list[Handed]
    #: The processes that hold nothing any more.
    released: list[str]


def converge(blueprint: Blueprint, show: Show = ignore) -> Converged:
    """Make running processes what a blueprint says, without a moment in which a copy is missing."""
    leaving = _still_here(blueprint)
    if leaving:
        _check_answers(blueprint)
    stage = msgspec.structs.replace(blueprint, members=[*blueprint.members, *leaving])
    joined = form(stage, show)
    handed = hand_back(stage)
    if leaving:
        await_settled(stage, blueprint.members)
    _adjust(blueprint)
    for shard in sorted({member.shard for member in leaving}):
        _give_up(blueprint, shard, [member for member in leaving if member.shard == shard])
    _forget(blueprint)
    return Converged(joined, handed, [member.name for member in leaving])


def _still_here(blueprint: Blueprint) -> list[Member]:
    """Those of the leaving processes that still belong to the cluster."""
    views = look_around(blueprint, blueprint.leaving)
    return [
        member
        for member in blueprint.leaving
        if (view := views[member.address]) is not None and not view.is_alone
    ]


def _check_answers(blueprint: Blueprint) -> None:
    """Before anybody goes, all that are to stay must be there."""
    views = look_around(blueprint)
    silent = [f"{m.name} ({m.address})" for m in blueprint.members if views[m.address] is None]
    if silent:
        raise StoreUnavailable(
            f"{', '.join(silent)} do not answer: start them first, or remove their server."
        )


def _adjust(blueprint: Blueprint) -> None:
    """Set in running processes what depends on the number of copies."""
    settings = [word for pair in copies_settings(blueprint).items() for word in pair]
    command: Command = ("CONFIG", "SET", *settings)
    questions = {member.address: [command] for member in blueprint.members}
    for address, answer in ask_each(questions, blueprint.login).items():
        if isinstance(answer, list) and isinstance(answer[0], ReplyError):
            raise StoreUnavailable(f"Redis at {address} takes no settings: {answer[0]}.")


def _give_up(blueprint: Blueprint, shard: str, leaving: Sequence[Member]) -> None:
    """Let processes go from a shard, when those that stay have everything that was acknowledged."""
    deadline_s = time.monotonic() + CATCH_UP_S
    while not _part(blueprint, shard, leaving):
        if time.monotonic() > deadline_s:
            names = ", ".join(member.name for member in leaving)
            raise StoreUnavailable(f"{names} could not leave: the copies of {shard} lag behind.")


def _part(blueprint: Blueprint, shard: str, leaving: Sequence[Member]) -> bool:
    """Have the master rest until its copies have all, then take others away; whether that was so.

    While it rests it takes no changes, so none can have counted on a process that goes.
    """
    holders = blueprint.holding(shard)
    master = master_of(blueprint, shard, look_around(blueprint, holders))
    if master is None:
        raise StoreUnavailable(f"{shard} is not served where it is to be: say it again.")
    copies = [member for member in holders if member != master]
    login = blueprint.login
    demand(master.address, "CLIENT", "PAUSE", _REST_MS, "WRITE", login=login)
    try:
        rested_s = time.monotonic()
        while not _have_all(blueprint, master, copies):
            if time.monotonic() - rested_s > _TAKE_S:
                return False
        for member in leaving:
            _reset(member, login)
    finally:
        demand(master.address, "CLIENT", "UNPAUSE", login=login)
    return True


def _have_all(blueprint: Blueprint, master: Member, copies: Sequence[Member]) -> bool:
    """Whether copies have what their master has."""
    [told] = look_around(blueprint, [master]).values()
    views = look_around(blueprint, copies).values()
    return told is not None and all(
        view is not None and view.linked and view.offset >= told.offset for view in views
    )


def _reset(member: Member, login: Login) -> None:
    """Have a copy forget what it holds and who it was."""
    try:
        demand(member.address, "CLUSTER", "RESET", "HARD", login=login)
    except ReplyError as error:
        raise StoreUnavailable(f"{member.name} at {member.address} stays: {error}.") from error


def _forget(blueprint: Blueprint) -> None:
    """Have everybody forget who has left, before others remind them of it (within a minute)."""
    gone = {member.address for member in blueprint.leaving}

    def forgotten() -> bool:
        views = look_around(blueprint)
        ids = {view.me.id for view in views.values() if view is not None}
        questions: dict[NodeAddress, list[Command]] = {}
        for address, view in views.items():
            for node in view.nodes if view is not None else []:
                if node.id not in ids and (node.address in gone or "noaddr" in node.flags):
                    questions.setdefault(address, []).append(("CLUSTER", "FORGET", node.id))
        ask_each(questions, blueprint.login)
        return not questions

    wait_until(forgotten, FORM_S, lambda: "Processes that have left were not forgotten")
