"""What Redis processes say about themselves and their cluster.

Views differ while a cluster changes: a master that was stopped for a while still takes itself for
one when it goes on. Of two that claim a shard, the one with the higher epoch is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ringdove.cluster.asking import NO_LOGIN, ask_each
from ringdove.errors import StoreUnavailable
from ringdove.stores.fabric.wire import NodeAddress, NodeLost, ReplyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ringdove.stores.fabric.wire import Login

_QUESTIONS = (("CLUSTER", "NODES"), ("CLUSTER", "INFO"), ("INFO", "replication"))


class Node(NamedTuple):
    """A line of CLUSTER NODES."""

    id: str
    address: NodeAddress
    flags: frozenset[str]
    #: The id of its master; empty for a master.
    master: str
    epoch: int
    slots: list[range]

    @property
    def slots_count(self) -> int:
        """How many slots it serves."""
        return sum(map(len, self.slots))


class View(NamedTuple):
    """What one process says."""

    me: Node
    nodes: list[Node]
    #: Whether it takes the cluster for able to serve.
    healthy: bool
    #: Whether it has, as a copy, everything up to now from its master.
    linked: bool
    #: Bytes of changes it has made or taken over.
    offset: int
    #: As a master: the bytes that copies have confirmed, and seconds since.
    copies: dict[NodeAddress, tuple[int, int]]

    @property
    def is_master(self) -> bool:
        """Whether it serves slots."""
        return not self.me.master and bool(self.me.slots)

    @property
    def is_alone(self) -> bool:
        """Whether it knows nobody and serves nothing: a process that joined no cluster yet."""
        return len(self.nodes) == 1 and not self.me.slots


def look(
    addresses: Iterable[NodeAddress], login: Login = NO_LOGIN
) -> dict[NodeAddress, View | None]:
    """What each process says; None for one that does not answer, or is still loading its data."""
    answers = ask_each(dict.fromkeys(addresses, _QUESTIONS), login)
    return {address: _view(address, answer) for address, answer in answers.items()}


def _view(address: NodeAddress, answer: list[Any] | NodeLost) -> View | None:
    if isinstance(answer, NodeLost):
        return None
    for reply in answer:
        if isinstance(reply, ReplyError):
            if reply.word in ("LOADING", "MASTERDOWN"):
                return None
            raise StoreUnavailable(f"Redis at {address} is no node of a cluster: {reply}.")
    nodes_text, info_text, replication_text = (reply.decode() for reply in answer)
    nodes = parse_nodes(nodes_text, address.host)
    info, replication = _fields(info_text), _fields(replication_text)
    me = next(node for node in nodes if "myself" in node.flags)
    linked = (
        replication.get("master_link_status") == "up"
        and replication.get("master_sync_in_progress") == "0"
    )
    mine = "slave_repl_offset" if me.master else "master_repl_offset"
    return View(
        me,
        nodes,
        info.get("cluster_state") == "ok",
        linked,
        int(replication.get(mine, 0)),
        _copies(replication),
    )


def parse_nodes(text: str, own_host: str) -> list[Node]:
    """The lines of CLUSTER NODES; a process that knows no address of its own has `own_host`."""
    nodes = []
    for line in text.splitlines():
        node_id, place, flags, master, _, _, epoch, _, *slots = line.split()
        ip_and_ports, *further = place.split(",")
        ip, _, port = ip_and_ports.partition("@")[0].rpartition(":")
        name = further[0] if further and "=" not in further[0] else ""
        nodes.append(
            Node(
                node_id,
                NodeAddress(name or ip or own_host, int(port)),
                frozenset(flags.split(",")),
                "" if master == "-" else master,
                int(epoch),
                [_slots(word) for word in slots if not word.startswith("[")],
            )
        )
    return nodes


def _slots(word: str) -> range:
    first, _, last = word.partition("-")
    return range(int(first), int(last or first) + 1)


def _copies(replication: Mapping[str, str]) -> dict[NodeAddress, tuple[int, int]]:
    """From lines like slave0:ip=127.0.0.1,port=7002,state=online,offset=42,lag=1."""
    found = {}
    for name, value in replication.items():
        if name.startswith("slave") and name[5:].isdecimal():
            copy = dict(part.split("=", 1) for part in value.split(","))
            if copy["state"] == "online":
                address = NodeAddress(copy["ip"], int(copy["port"]))
                found[address] = (int(copy["offset"]), int(copy["lag"]))
    return found


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in pairs}
