"""Retained messages: the last one of each topic that was published to be kept.

    record mqtt/retained/TOPIC   the message; vanishes by itself when the message expires

All of them are in memory too, in a tree by the levels of their topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ringdove import limits
from ringdove.errors import LimitExceeded
from ringdove.frontends.mqtt.message import decode_message, encode_message
from ringdove.frontends.mqtt.session import record_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringdove.frontends.mqtt.message import Message
    from ringdove.frontends.mqtt.turn import Turn
    from ringdove.stores.base import Store

RETAINED_PREFIX: Final = "mqtt/retained/"

#: Records that one look at the store takes.
_PAGE: Final = 1_000

#: Bytes of a retained message's record beside its payload and topic.
_OVERHEAD: Final = 128 * 1024


class _Node:
    __slots__ = ("below", "message")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.message: Message | None = None


class Retained:
    """See the module."""

    def __init__(self) -> None:
        self._root = _Node()
        self.count = 0
        self.nbytes = 0

    async def load(self, store: Store) -> None:
        """Read what is stored."""
        after = ""
        while records := await store.scan(RETAINED_PREFIX, after, _PAGE):
            for record in records:
                self._set(decode_message(record.value))
            after = records[-1].key

    def keep(self, message: Message, turn: Turn | None) -> None:
        """Keep a message; an empty one means: none. Without a turn it is not stored."""
        if not message.payload:
            if self._drop(message.topic) and turn is not None:
                turn.retained[RETAINED_PREFIX + record_name(message.topic)] = None
            return
        nbytes = len(message.payload)
        replaces = any(_walk(self._root, message.topic.split("/")))
        if (
            (self.count >= limits.MQTT_RETAINED_MAX and not replaces)
            or self.nbytes + nbytes > limits.MQTT_RETAINED_BYTES_MAX
            or nbytes > limits.RECORD_BYTES_MAX - _OVERHEAD
        ):
            raise LimitExceeded("There is no room for this retained message.")
        self._set(message)
        if turn is not None:
            key = RETAINED_PREFIX + record_name(message.topic)
            turn.retained[key] = (encode_message(message), message.expires_ms)

    def find(self, pattern: str, now_ms: int) -> list[Message]:
        """The messages whose topics match a filter."""
        return [
            message
            for message in _walk(self._root, pattern.split("/"))
            if not message.expired(now_ms)
        ]

    def _set(self, message: Message) -> None:
        node = self._root
        for level in message.topic.split("/"):
            node = node.below.setdefault(level, _Node())
        if node.message is None:
            self.count += 1
        else:
            self.nbytes -= len(node.message.payload)
        node.message = message
        self.nbytes += len(message.payload)

    def _drop(self, topic: str) -> bool:
        levels = topic.split("/")
        path = [self._root]
        for level in levels:
            below = path[-1].below.get(level)
            if below is None:
                return False
            path.append(below)
        found = path[-1].message
        if found is None:
            return False
        path[-1].message = None
        self.count -= 1
        self.nbytes -= len(found.payload)
        for level, above, node in zip(
            reversed(levels), reversed(path[:-1]), reversed(path), strict=False
        ):
            if node.message is not None or node.below:
                break
            del above.below[level]
        return True


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
