"""Retained messages: the last one of each topic that was published to be kept.

    record mqtt/retained/TOPIC   the message; vanishes by itself when the message expires

All of them are in memory too, in a tree by the levels of their topics.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from ringdove import limits
from ringdove.errors import LimitExceeded
from ringdove.frontends.mqtt.message import decode_message, encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringdove.frontends.mqtt.message import Message
    from ringdove.stores.base import Store

RETAINED_PREFIX: Final = "mqtt/retained/"

#: Records that one look at the store takes.
_PAGE: Final = 1_000

#: Bytes that a level of a topic takes in memory, beside what is kept there.
_NODE_BYTES: Final = 400

#: Times of expiry that are remembered for each message: when it is replaced, they are more.
_TIMES_MAX: Final = 4


class _Node:
    __slots__ = ("below", "message", "nbytes")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.message: Message | None = None
        #: What the message counts as; 0 if it does not count, as the server's own.
        self.nbytes = 0


class Retained:
    """See the module."""

    def __init__(self) -> None:
        self._root = _Node()
        #: When messages expire, the next first; those that were replaced are there too.
        self._expiring: list[tuple[int, str]] = []
        self.count = 0
        self.nbytes = 0

    async def load(self, store: Store) -> None:
        """Read what is stored."""
        after = ""
        while records := await store.scan(RETAINED_PREFIX, after, _PAGE):
            for record in records:
                self.keep(decode_message(record.value), len(record.value))
            after = records[-1].key

    def admit(self, message: Message) -> bytes:
        """The record of a message, empty to have none; LimitExceeded when there is no room."""
        if not message.payload:
            return b""
        record = encode_message(message)
        levels = message.topic.split("/")
        path = self._path(levels)
        before = path[-1].nbytes if len(path) > len(levels) else 0
        missing = len(levels) + 1 - len(path)
        if (
            (self.count >= limits.MQTT_RETAINED_MAX and not before)
            or self.nbytes + len(record) + missing * _NODE_BYTES - before
            > limits.MQTT_RETAINED_BYTES_MAX
            or len(record) > limits.RECORD_BYTES_MAX
        ):
            raise LimitExceeded("There is no room for this retained message.")
        return record

    def keep(self, message: Message, nbytes: int) -> Message | None:
        """Keep a message, an empty one means: none; what was kept before."""
        levels = message.topic.split("/")
        path = self._path(levels)
        before = path[-1].message if len(path) > len(levels) else None
        if message.payload:
            self._set(path, levels, message, nbytes)
        elif before is not None:
            self._drop(path, levels)
        return before

    def undo(self, message: Message, before: Message | None) -> None:
        """A message could not be stored: keep what was kept before it, unless there is a newer."""
        levels = message.topic.split("/")
        path = self._path(levels)
        kept = path[-1].message if len(path) > len(levels) else None
        if kept is not (message if message.payload else None):
            return
        if before is not None:
            self._set(path, levels, before, len(encode_message(before)))
        elif kept is not None:
            self._drop(path, levels)

    def sweep(self, now_ms: int) -> None:
        """Forget what has expired; its records vanish by themselves."""
        while self._expiring and self._expiring[0][0] <= now_ms:
            _, topic = heappop(self._expiring)
            levels = topic.split("/")
            path = self._path(levels)
            found = path[-1].message if len(path) > len(levels) else None
            if found is not None and found.expired(now_ms):
                self._drop(path, levels)

    def find(self, pattern: str, now_ms: int) -> list[Message]:
        """The messages whose topics match a filter."""
        return [
            message
            for message in _walk(self._root, pattern.split("/"))
            if not message.expired(now_ms)
        ]

    def _path(self, levels: list[str]) -> list[_Node]:
        """The nodes on the way to a topic, as far as there are any."""
        path = [self._root]
        for level in levels:
            below = path[-1].below.get(level)
            if below is None:
                break
            path.append(below)
        return path

    def _set(self, path: list[_Node], levels: list[str], message: Message, nbytes: int) -> None:
        for level in levels[len(path) - 1 :]:
            node = path[-1].below[level] = _Node()
            path.append(node)
            self.nbytes += _NODE_BYTES
        node = path[-1]
        self._count(node, nbytes)
        node.message = message
        if message.expires_ms:
            heappush(self._expiring, (message.expires_ms, message.topic))
            if len(self._expiring) > _TIMES_MAX * self.count + _PAGE:
                kept = list(_all_below([self._root]))
                self._expiring = [(one.expires_ms, one.topic) for one in kept if one.expires_ms]
                heapify(self._expiring)

    def _drop(self, path: list[_Node], levels: list[str]) -> None:
        self._count(path[-1], 0)
        path[-1].message = None
        for level, above, node in zip(
            reversed(levels), reversed(path[:-1]), reversed(path), strict=False
        ):
            if node.message is not None or node.below:
                break
            del above.below[level]
            self.nbytes -= _NODE_BYTES

    def _count(self, node: _Node, nbytes: int) -> None:
        self.count += bool(nbytes) - bool(node.nbytes)
        self.nbytes += nbytes - node.nbytes
        node.nbytes = nbytes


def _walk(root: _Node, levels: list[str]) -> Iterator[Message]:
    """Messages below `root` whose levels match those of a filter."""
    nodes = [root]
    for at, level in enumerate(levels):
        if level == "#":
            yield from _all_below(_visible(root) if not at else nodes)
            return
        if level == "+":
            nodes = [n for node in nodes for n in (node.below.values() if at else _visible(node))]
        else:
            nodes = [node.below[level] for node in nodes if level in node.below]
    for node in nodes:
        if node.message is not None:
            yield node.message


def _visible(root: _Node) -> list[_Node]:
    """What wildcards of the first level match."""
    return [node for name, node in root.below.items() if not name.startswith("$")]


def _all_below(nodes: list[_Node]) -> Iterator[Message]:
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.message is not None:
            yield node.message
        stack += node.below.values()
