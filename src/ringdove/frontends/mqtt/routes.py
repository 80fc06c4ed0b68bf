"""Where the messages of a topic go: the queue of its rule, and the sessions that subscribe to it.

A route is worked out once and remembered until subscriptions change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ringdove import limits
from ringdove.frontends.mqtt.message import attributes_of
from ringdove.protocol.mqtt.rules import topic_of
from ringdove.protocol.mqtt.topics import FilterTree, parse_filter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringdove.frontends.mqtt.session import Session, Subscription
    from ringdove.protocol.mqtt.rules import Rules


class Target(NamedTuple):
    """A session that wants a topic's messages; all its filters that match are one target."""

    session: Session
    qos: int
    no_local: bool
    retain_as_published: bool
    ids: list[int]


class Route:
    """See the module."""

    __slots__ = ("_shared", "_turn", "attributes", "key", "queue", "targets", "topic")

    def __init__(self, topic: str, queue: str | None, key: bytes) -> None:
        self.queue = queue
        self.key = key
        #: What consumers of the queue are told of the topic: nothing where its name tells it.
        self.topic = None if queue is not None and topic_of(queue) == topic else topic
        #: The attributes of a message without properties.
        self.attributes = attributes_of(self.topic, None)
        self.targets: list[Target] = []
        #: Per group of a shared subscription: its members, and whose turn it is.
        self._shared: list[list[Target]] = []
        self._turn = 0

    def share(self, members: list[Target]) -> None:
        """Add a group of which one member gets each message."""
        self._shared.append(members)

    @property
    def wanted(self) -> bool:
        """Whether anybody subscribes."""
        return bool(self.targets or self._shared)

    def chosen(self) -> Iterable[Target]:
        """The targets of one message."""
        if not self._shared:
            return self.targets
        self._turn += 1
        return self.targets + [_choose(members, self._turn) for members in self._shared]


def _choose(members: list[Target], turn: int) -> Target:
    """The next member in turn, of those that are connected if any is."""
    here = [member for member in members if member.session.connection is not None] or members
    return here[turn % len(here)]


class Routes:
    """The routes of a gateway."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._tree: FilterTree[tuple[Session, Subscription]] = FilterTree()
        #: What stands in the tree, to find it again.
        self._placed: dict[tuple[Session, str], tuple[Session, Subscription]] = {}
        self._known: dict[str, Route] = {}

    @property
    def subscriptions(self) -> int:
        """How many subscriptions there are."""
        return len(self._placed)

    def add(self, session: Session, subscription: Subscription) -> None:
        """A session subscribes, perhaps anew."""
        self.remove(session, subscription.pattern)
        parsed = parse_filter(subscription.pattern)
        assert parsed is not None
        entry = (session, subscription)
        self._placed[session, subscription.pattern] = entry
        self._tree.add(parsed.pattern, entry)
        self._known.clear()

    def remove(self, session: Session, pattern: str) -> None:
        """A session does so no more."""
        entry = self._placed.pop((session, pattern), None)
        parsed = parse_filter(pattern)
        if entry is not None and parsed is not None:
            self._tree.remove(parsed.pattern, entry)
            self._known.clear()

    def find(self, topic: str) -> Route:
        """The route of a topic."""
        route = self._known.get(topic)
        if route is None:
            if len(self._known) >= limits.MQTT_ROUTES_MAX:
                self._known.clear()
            route = self._known[topic] = self._make(topic)
        return route

    def _make(self, topic: str) -> Route:
        queue, key = self._rules.place(topic)
        route = Route(topic, queue, key)
        own: dict[Session, list[Subscription]] = {}
        groups: dict[str, list[Target]] = {}
        for session, subscription in self._tree.find(topic):
            if subscription.pattern.startswith("$share/"):
                member = _target(session, [subscription])
                groups.setdefault(subscription.pattern, []).append(member)
            else:
                own.setdefault(session, []).append(subscription)
        route.targets = [_target(session, found) for session, found in own.items()]
        for members in groups.values():
            route.share(members)
        return route


def _target(session: Session, found: list[Subscription]) -> Target:
    return Target(
        session,
        max(one.qos for one in found),
        all(one.no_local for one in found),
        any(one.retain_as_published for one in found),
        [one.id for one in found if one.id],
    )
