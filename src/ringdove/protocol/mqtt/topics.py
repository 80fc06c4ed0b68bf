"""Topic names and filters: which are valid, and which filters match a name.

`FilterTree` finds all values whose filter matches a name in time that depends on the levels of the
name, not on how many filters there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED = "$share/"

#: Levels of a topic or a filter: trees of them are walked level by level, and kept in memory.
LEVELS_MAX = 128

V = TypeVar("V")


class Shared(NamedTuple):
    """A filter `$share/GROUP/FILTER` in its parts; `group` is empty for any other."""

    group: str
    pattern: str


def is_topic(name: str) -> bool:
    """Whether messages may be published under the name."""
    if not name or "+" in name or "#" in name or "\0" in name:
        return False
    return name.count("/") < LEVELS_MAX


def is_filter(pattern: str) -> bool:
    """Whether the filter, without a `$share`, is well formed."""
    if not pattern or "\0" in pattern:
        return False
    levels = pattern.split("/")
    if any("+" in level and level != "+" for level in levels):
        return False
    return "#" not in pattern or ("#" not in "".join(levels[:-1]) and levels[-1] == "#")


def parse_filter(pattern: str) -> Shared | None:
    """The parts of a filter as a client writes it; None when it is malformed."""
    if not pattern.startswith(SHARED):
        return Shared("", pattern) if is_filter(pattern) else None
    group, slash, rest = pattern[len(SHARED) :].partition("/")
    if not group or not slash or "+" in group or "#" in group or not is_filter(rest):
        return None
    return Shared(group, rest)


def matches(pattern: str, name: str) -> bool:
    """Whether a filter matches a name. Wildcards never match a first level that begins with $."""
    if pattern == name:
        return True
    wanted, levels = pattern.split("/"), name.split("/")
    if name.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at == len(levels) or level not in ("+", levels[at]):
            return False
    return len(wanted) == len(levels)


class _Node(Generic[V]):
    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Node[V]] = {}
        self.here: list[V] = []


class FilterTree(Generic[V]):
    """Values by filter. A value may stand under many filters, once under each."""

    def __init__(self) -> None:
        self._root: _Node[V] = _Node()
        self.count = 0

    def add(self, pattern: str, value: V) -> None:
        """Put a value under a filter."""
        node = self._root
        for level in pattern.split("/"):
            node = node.below.setdefault(level, _Node())
        if value not in node.here:
            node.here.append(value)
            self.count += 1

    def remove(self, pattern: str, value: V) -> None:
        """Take a value away from a filter; nothing happens if it is not there."""
        path = [self._root]
        levels = pattern.split("/")
        for level in levels:
            below = path[-1].below.get(level)
            if below is None:
                return
            path.append(below)
        if value not in path[-1].here:
            return
        path[-1].here.remove(value)
        self.count -= 1
        for level, above, node in zip(
            reversed(levels), reversed(path[:-1]), reversed(path), strict=False
        ):
            if node.here or node.below:
                break
            del above.below[level]

    def find(self, name: str) -> list[V]:
        """The values whose filters match a name; one under several of them comes as often."""
        found: list[V] = []
        levels = name.split("/")
        nodes = [self._root]
        hidden = name.startswith("$")
        for level in levels:
            following = []
            for node in nodes:
                below = node.below
                if not hidden:
                    rest = below.get("#")
                    if rest is not None:
                        found += rest.here
                    one = below.get("+")
                    if one is not None:
                        following.append(one)
                exact = below.get(level)
                if exact is not None:
                    following.append(exact)
            hidden = False
            nodes = following
            if not nodes:
                return found
        for node in nodes:
            found += node.here
            rest = node.below.get("#")
            if rest is not None:
                found += rest.here
        return found

    def __iter__(self) -> Iterator[V]:
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            yield from node.here
            nodes += node.below.values()
