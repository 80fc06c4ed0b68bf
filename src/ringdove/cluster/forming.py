"""Makes one cluster in rings of running Redis processes, and puts it right after failures.

Everything here may be repeated: what is done already is left as it is.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

from ringdove.cluster.asking import ask, ask_each, demand
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

#: Other servers take over within two of the times in which Redis notices a failure, and so many
#: seconds for an election or two.
_ELECTION_S = 6.0

#: Without a majority nothing gets better by itself; a moment is given to those just started.
_NO_MAJORITY_S = 4.0

#: Seconds of silence after which a process that is waited for has ended.
_GONE_S = 15.0

#: Seconds between two looks at processes that are to change, and before a hand-over that did not
#: happen is asked for again (Redis gives up after five).
_LOOK_S, _ASK_AGAIN_S = 0.1, 6.0

#: The least seconds that a copy rests between two elections, in Redis.
_REST_S_MIN = 4.0


class Handed(NamedTuple):
    """A shard whose master has moved."""

    shard: str
    source: str
    target: str


def ignore(_done: int) -> None:
    """Show nothing."""


# -- looking and waiting ------------------------------------------------------------------------


def look_around(
    blueprint: Blueprint, members: Iterable[Member] | None = None
) -> dict[NodeAddress, View | None]:
    """What the processes of a cluster say, all or those given; see `look`."""
    chosen = blueprint.members if members is None else members
    return look((member.address for member in chosen), blueprint.login)


def wait_until(
    condition: Callable[[], bool], timeout_s: float, complaint: Callable[[], str]
) -> None:
    """Look until a condition holds; raises the complaint when it takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise StoreUnavailable(f"{complaint()} within {timeout_s:.0f} s.")
        time.sleep(_LOOK_S)


def await_answers(
    blueprint: Blueprint, members: Sequence[Member], show: Show, check: Callable[[], None]
) -> None:
    """Wait until processes answer; `check` is called between looks and may give up."""
    silent: list[str] = []

    def all_answer() -> bool:
        check()
        views = look_around(blueprint, members)
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
    """Wait until processes (all, or those given) have their place and copies are in sync.

    Raises sooner when nobody serves one of their shards and nobody comes to, or one has ended.
    """
    awaited = blueprint.members if members is None else members
    shards = {member.shard for member in awaited}
    missing: list[str] = []
    served_s = alive_s = straight_s = time.monotonic()

    def settled() -> bool:
        nonlocal served_s, alive_s, straight_s
        views = look_around(blueprint)
        silent = [member for member in awaited if views[member.address] is None]
        if not (gone := _gone(blueprint, silent)):
            alive_s = time.monotonic()
        elif time.monotonic() - alive_s > _GONE_S:
            raise StoreUnavailable(f"{', '.join(gone)} no longer answer.")
        missing[:] = [m.name for m in awaited if not _in_place(blueprint, m, views)]
        show(len(awaited) - len(missing))
        unserved = _unserved(blueprint, shards, views)
        if not unserved:
            served_s = time.monotonic()
        elif time.monotonic() - served_s > _patience_s(blueprint, views):
            raise StoreUnavailable(_tell_unserved(blueprint, unserved, views))
        if not (strays := _astray(blueprint, views)):
            straight_s = time.monotonic()
        elif time.monotonic() - straight_s > take_over_s(blueprint):
            follow_masters(blueprint, strays)
            straight_s = time.monotonic()
        return not missing

    wait_until(settled, timeout_s, lambda: f"{', '.join(missing)} did not come into sync")


def _astray(blueprint: Blueprint, views: Views) -> list[Member]:
    """Copies that follow another than the master of their shard.

    For a moment that is so after every take-over; after a partition it was seen to stay so.
    """
    masters = masters_of(blueprint, views)
    return [
        member
        for member in blueprint.members
        if (view := views[member.address]) is not None
        and (master := masters[member.shard]) is not None
        and (served := views[master.address]) is not None
        and member != master
        and view.me.master != served.me.id
    ]


def follow_masters(blueprint: Blueprint, strays: Sequence[Member] | None = None) -> bool:
    """Have copies follow the masters of their shards; whether all did already."""
    if strays is None:
        strays = _astray(blueprint, look_around(blueprint))
    for stray in strays:
        with contextlib.suppress(StoreUnavailable, NodeLost):  # It is looked at again.
            _replicate(blueprint, [stray])
    return not strays


def _gone(blueprint: Blueprint, members: Iterable[Member]) -> list[str]:
    """Those of some processes that do not even say that they are busy loading their data."""
    names = {member.address: member.name for member in members}
    answers = ask_each({address: [("PING",)] for address in names}, blueprint.login)
    return [names[address] for address, reply in answers.items() if isinstance(reply, NodeLost)]


def take_over_s(blueprint: Blueprint) -> float:
    """Seconds in which other servers take over from one that fails, if they can."""
    return _ELECTION_S + 2 * blueprint.tuning.node_timeout_ms / 1000


def _patience_s(blueprint: Blueprint, views: Views) -> float:
    """How long a shard may go unserved before it is clear that it stays so."""
    return _NO_MAJORITY_S if _most_gone(blueprint, views) else take_over_s(blueprint)


def _most_gone(blueprint: Blueprint, views: Views) -> bool:
    """Whether no majority of masters is left, so that nobody can be promoted."""
    masters = masters_of(blueprint, views).values()
    return 2 * sum(master is not None for master in masters) <= len(masters)


def _tell_unserved(blueprint: Blueprint, shards: Collection[str], views: Views) -> str:
    holders = {m.server for shard in shards for m in blueprint.holding(shard)}
    silent = {m.server for m in blueprint.members if views[m.address] is None}
    advice = f" Start {', '.join(sorted(holders & silent))} too." if holders & silent else ""
    most_gone = _most_gone(blueprint, views)
    why = ", because most masters are out of reach" if most_gone else ""
    return f"Nobody serves {', '.join(sorted(shards))}{why}.{advice}"


def _in_place(blueprint: Blueprint, member: Member, views: Views) -> bool:
    """Whether a process serves its shard, or is a copy in sync with the one that does."""
    view = views[member.address]
    master = master_of(blueprint, member.shard, views)
    if view is None or master is None or not view.healthy:
        return False
    master_view = views[master.address]
    assert master_view is not None
    if master == member:
        return True
    return (
        view.me.master == master_view.me.id
        and view.linked
        and member.address in master_view.copies
        # It hands over only to one that it knows for its copy, which it may learn a little later.
        and any((n.id, n.master) == (view.me.id, master_view.me.id) for n in master_view.nodes)
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


def _unserved(blueprint: Blueprint, shards: Iterable[str], views: Views) -> list[str]:
    """The shards that nobody serves, or only one who takes the cluster for unable to."""
    masters = {shard: master_of(blueprint, shard, views) for shard in shards}
    return [
        shard
        for shard, master in masters.items()
        if master is None or (view := views[master.address]) is None or not view.healthy
    ]


def await_taken_over(blueprint: Blueprint, server: str) -> bool:
    """Wait until other servers serve every shard that a server has held; whether they do.

    A shard of which no other process answers is not waited for.
    """
    shards = {member.shard for member in blueprint.on(server)}
    others = [m for m in blueprint.members if m.shard in shards and m.server != server]
    deadline_s = time.monotonic() + take_over_s(blueprint)
    while True:
        views = dict.fromkeys((m.address for m in blueprint.members), None) | look_around(
            blueprint, others
        )
        reachable = {member.shard for member in others if views[member.address] is not None}
        if not _unserved(blueprint, reachable, views):
            return reachable == shards
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)


def await_served(blueprint: Blueprint, shards: Sequence[str]) -> list[str]:
    """Wait until shards are served; those that are not, in the time that a take-over needs."""
    deadline_s = time.monotonic() + take_over_s(blueprint)
    while True:
        views = look_around(blueprint)
        unserved = _unserved(blueprint, shards, views)
        if not unserved or time.monotonic() > deadline_s:
            return unserved
        time.sleep(_LOOK_S)


def promote(blueprint: Blueprint, shards: Sequence[str]) -> None:
    """Make a copy of each shard its master though the former one is gone: who has most of it.

    Redis does so by itself, except when the copies have not seen a master since they started. The
    other masters must agree.
    """
    views = look_around(blueprint)
    for shard in shards:
        copies = [
            (view.offset, -member.rank, member.address)
            for member in blueprint.holding(shard)
            if (view := views[member.address]) is not None and view.me.master
        ]
        if copies:
            with contextlib.suppress(ReplyError, NodeLost):
                demand(max(copies)[2], "CLUSTER", "FAILOVER", "FORCE", login=blueprint.login)


# -- forming ------------------------------------------------------------------------------------


def form(blueprint: Blueprint, show: Show = ignore) -> bool:
    """Make one cluster of processes that answer; whether anything was left to do.

    Processes that joined no cluster yet become what the blueprint says; when others are a cluster
    already, they join it as copies, so that none comes to an occupied place empty.
    """
    views = look_around(blueprint)
    running = [member for member in blueprint.members if views[member.address] is not None]
    alone = [m for m in running if (view := views[m.address]) is not None and view.is_alone]
    _check_ours(blueprint, views, forming=len(alone) == len(running))
    if len(alone) == len(blueprint.members):
        _give_slots(blueprint)
        _introduce(blueprint, running, running)
        _await_acquainted(blueprint, running)
        _replicate(blueprint, [member for member in running if member.rank])
    elif alone:
        join_as_copies(blueprint, alone)
    fresh = len(alone) == len(blueprint.members)
    await_settled(blueprint, running, show, FORM_S if fresh else CATCH_UP_S)
    return bool(alone)


def _check_ours(blueprint: Blueprint, views: Views, *, forming: bool) -> None:
    """Refuse processes of another cluster, and to begin one while some do not answer."""
    silent = [f"{m.name} ({m.address})" for m in blueprint.members if views[m.address] is None]
    if silent and forming:
        raise StoreUnavailable(
            f"{len(silent)} of {len(blueprint.members)} Redis processes do not answer: "
            f"{', '.join(silent)}. Start them first."
        )
    ids: dict[str, NodeAddress] = {}
    known = {*views, *(member.address for member in blueprint.leaving)}
    for address, view in views.items():
        if view is not None and ids.setdefault(view.me.id, address) != address:
            raise StoreUnavailable(
                f"{address} and {ids[view.me.id]} are one process: these hosts have one address."
            )
    for address, view in views.items():
        for node in view.nodes if view is not None else []:
            if node.id not in ids and node.address not in known and "noaddr" not in node.flags:
                raise StoreUnavailable(
                    f"Redis at {address} belongs to another cluster: it knows {node.address}. "
                    "Empty it with FLUSHALL and CLUSTER RESET HARD, or plan other ports."
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
    for address, answer in ask_each(questions, blueprint.login).items():
        for reply in answer if isinstance(answer, list) else [answer]:
            if isinstance(reply, Exception):
                raise StoreUnavailable(f"Redis at {address} takes no slots: {reply}.")


def _introduce(blueprint: Blueprint, members: Iterable[Member], to: Sequence[Member]) -> None:
    """Have processes meet others; gossip does the rest, but slower."""
    meetings: list[Command] = [
        ("CLUSTER", "MEET", _resolve(member.host), member.port, member.bus_port) for member in to
    ]
    ask_each({member.address: meetings for member in members}, blueprint.login)


def _resolve(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise StoreUnavailable(f"Host {host!r} has no address: {error}.") from error


def _await_acquainted(blueprint: Blueprint, members: Sequence[Member]) -> None:
    """Wait until each of some processes knows all that answer, by id."""
    missing: list[str] = []

    def acquainted() -> bool:
        views = look_around(blueprint)
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
    views = look_around(blueprint)
    for member in copies:
        master = master_of(blueprint, member.shard, views)
        if master is None:
            raise StoreUnavailable(
                f"Nobody serves shard {member.shard}, so {member.name} can become no copy of it."
            )
        view = views[master.address]
        assert view is not None
        try:
            demand(member.address, "CLUSTER", "REPLICATE", view.me.id, login=blueprint.login)
        except ReplyError as error:
            raise StoreUnavailable(
                f"{member.name} at {member.address} does not become a copy: {error}."
            ) from error


def join_as_copies(blueprint: Blueprint, members: Sequence[Member]) -> None:
    """Add processes that know nobody to the running cluster, as copies of their shards.

    Who they were before is forgotten.
    """
    views = look_around(blueprint)
    running = [m for m in blueprint.members if views[m.address] is not None and m not in members]
    _forget_former(blueprint, views)
    _introduce(blueprint, members, running)
    _await_acquainted(blueprint, [*members, *running])
    _replicate(blueprint, members)
    _forget_former(blueprint, look_around(blueprint))


def _forget_former(blueprint: Blueprint, views: Views) -> None:
    """Have processes forget who was at an address where another answers now."""
    now = {address: view.me.id for address, view in views.items() if view is not None}
    questions: dict[NodeAddress, list[Command]] = {}
    for address, view in views.items():
        for node in view.nodes if view is not None else []:
            if node.id not in now.values() and (node.address in now or "noaddr" in node.flags):
                questions.setdefault(address, []).append(("CLUSTER", "FORGET", node.id))
    ask_each(questions, blueprint.login)


# -- handing masters over -----------------------------------------------------------------------


def hand_back(blueprint: Blueprint, server: str | None = None) -> list[Handed]:
    """Move masters to the first process in ring order that runs, or only those of one server.

    Redis does it without losing anything: the old master stops writing until the new one has all.
    """
    return _hand(blueprint, only_to=server)


def hand_over(blueprint: Blueprint, server: str) -> list[Handed]:
    """Move the masters of a server to others, as far as there are copies."""
    return _hand(blueprint, away_from=server)


def vacate(blueprint: Blueprint, server: str) -> list[Handed]:
    """Move all masters of a server to others; raises when some have to stay."""
    handed = hand_over(blueprint, server)
    masters = masters_of(blueprint, look_around(blueprint))
    staying = [
        shard for shard, master in masters.items() if master is None or master.server == server
    ]
    if staying:
        raise StoreUnavailable(
            f"No other server has a copy in sync of {', '.join(staying)}: do not restart {server} "
            "now, it would interrupt them."
        )
    return handed


def _hand(
    blueprint: Blueprint, *, away_from: str | None = None, only_to: str | None = None
) -> list[Handed]:
    """Move each master to the first process in ring order that may have it."""
    views = look_around(blueprint)
    moved = []
    for shard, master in masters_of(blueprint, views).items():
        holders = [member for member in blueprint.holding(shard) if member.server != away_from]
        first = next((m for m in holders if _in_place(blueprint, m, views)), None)
        if master is None or first is None or only_to not in (None, first.server):
            continue
        if first != master:
            _fail_over(blueprint, first)
            moved.append(Handed(shard, master.server, first.server))
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
        views = look_around(blueprint, blueprint.holding(target.shard))
        if master_of(blueprint, target.shard, views) == target:
            return True
        with contextlib.suppress(ReplyError, NodeLost):
            if time.monotonic() - asked_s >= _ASK_AGAIN_S and not _stood_lately(blueprint, target):
                demand(target.address, "CLUSTER", "FAILOVER", login=blueprint.login)
                asked_s = time.monotonic()
        return False

    patience_s = FORM_S + _rest_s(blueprint)
    wait_until(serves, patience_s, lambda: f"{target.name} did not become master of {target.shard}")


def _rest_s(blueprint: Blueprint) -> float:
    """Seconds for which a copy that stood for election does not stand again."""
    return max(_REST_S_MIN, 4 * blueprint.tuning.node_timeout_ms / 1000)


def _stood_lately(blueprint: Blueprint, copy: Member) -> bool:
    """Whether a copy may have stood for election too short a time ago to do so again.

    To ask it nevertheless would stop its master for five seconds, in vain. It does not say when it
    stood, but follows its master since a later moment.
    """
    answers = ask(
        copy.address,
        ("CLUSTER", "INFO"),
        ("CLIENT", "LIST", "TYPE", "master"),
        login=blueprint.login,
    )
    info, masters = (answer.decode() if isinstance(answer, bytes) else "" for answer in answers)
    stood = re.search(r"^cluster_stats_messages_auth-req_sent:[1-9]", info, re.MULTILINE)
    age_s = re.search(r" age=(\d+) ", masters)
    return stood is not None and (age_s is None or int(age_s[1]) <= _rest_s(blueprint))
