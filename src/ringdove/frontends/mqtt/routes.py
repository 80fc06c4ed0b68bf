"""Where the messages of a topic go: the queue of its rule, and the sessions that subscribe to it.

A route is worked out once and remembered until subscriptions change.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ringdove import limits
from ringdove.frontends.mqtt.message import attributes_of
from ringdove.protocol.mqtt.rules import topic_of
from ringdove.protocol.mqtt.topics import SHARED, FilterTree, parse_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringdove.frontends.mqtt.session import Session, Subscription
    from ringdove.protocol.mqtt.rules import Rules


class Target(NamedTuple):
    """A session that wants a topic's messages; all its filters that match are one target."""

    session: Session
    qos: int
    no_local: bool
    retain_as_published: bool
    ids: list[int]

    @property
    def keeps(self) -> bool:
        """Whether messages of QoS 1 wait for it while it is away."""
        return self.qos > 0 and self.session.stripe is not None

    @property
    def connected(self) -> bool:
        """Whether it can have messages at once."""
        return self.session.connection is not None


class Route:
    """See the module."""

    __slots__ = ("_turn", "attributes", "key", "queue", "shared", "targets", "topic")

    def __init__(self, topic: str, queue: str | None, key: bytes) -> None:
        self.queue = queue
        self.key = key
        #: What consumers of the queue are told of the topic: nothing where its name tells it.
        self.topic = None if queue is not None and topic_of(queue) == topic else topic
        #: The attributes of a message without properties.
        self.attributes = attributes_of(self.topic, None)
        self.targets: list[Target] = []
        #: The members of each group of a shared subscription, and whose turn it is.
        self.shared: dict[str, list[Target]] = {}
        self._turn = 0

    @property
    def wanted(self) -> bool:
        """Whether anybody subscribes."""
        return bool(self.targets or self.shared)

    @property
    def reaches(self) -> bool:
        """Whether a message of QoS 1 reaches somebody now, or waits for somebody."""
        found = chain(self.targets, *self.shared.values())
        return any(one.connected or one.keeps for one in found)

    def chosen(self) -> Iterable[Target]:
        """The targets of one message."""
        if not self.shared:
            return self.targets
        return self.targets + [self.member(pattern) for pattern in self.shared]

    def member(self, pattern: str) -> Target:
        """The member of a group whose turn it is."""
        self._turn += 1
        return _choose(self.shared[pattern], self._turn)


def _choose(members: list[Target], turn: int) -> Target:
    """The next member in turn: one that is connected; if there is none, one that it waits for."""
    here = [member for member in members if member.connected]
    here = here or [member for member in members if member.keeps] or members
    return here[turn % len(here)]


class Routes:
    """The routes of a gateway."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._tree: FilterTree[tuple[Session, Subscription]] = FilterTree()
        #: What stands in the tree, to find it again.
        self._placed: dict[tuple[Session, str], tuple[Session, Subscription]] = {}
        self._known: dict[str, Route] = {}
        self._known_chars = 0
        #: Called with each filter that somebody subscribes to.
        self.on_added: Callable[[str], None] | None = None

    @property
    def patterns(self) -> list[str]:
        """All filters, with `$share/GROUP/` where they are shared."""
        return [pattern for _, pattern in self._placed]

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
        self._forget()
        if self.on_added is not None:
            self.on_added(subscription.pattern)

    def remove(self, session: Session, pattern: str) -> None:
        """A session does so no more."""
        entry = self._placed.pop((session, pattern), None)
        parsed = parse_filter(pattern)
        if entry is not None and parsed is not None:
            self._tree.remove(parsed.pattern, entry)
            self._forget()

    def find(self, topic: str) -> Route:
        """The route of a topic."""
        route = self._known.get(topic)
        if route is None:
            self._known_chars += len(topic)
            if (
                len(self._known) >= limits.MQTT_ROUTES_MAX
                or self._known_chars > limits.MQTT_ROUTES_CHARS_MAX
            ):
                self._forget()
                self._known_chars = len(topic)
            route = self._known[topic] = self._make(topic)
        return route

    def _forget(self) -> None:
        self._known.clear()
        self._known_chars = 0

    def _make(self, topic: str) -> Route:
        queue, key = self._rules.place(topic)
        route = Route(topic, queue, key)
        own: dict[Session, list[Subscription]] = {}
        groups: dict[str, list[Target]] = {}
        for session, subscription in self._tree.find(topic):
            if subscription.pattern.startswith(SHARED):
                member = _target(session, [subscription])
                groups.setdefault(subscription.pattern, []).append(member)
            else:
                own.setdefault(session, []).append(subscription)
        route.targets = [_target(session, found) for session, found in own.items()]
        route.shared = groups
        return route


def _target(session: Session, found: list[Subscription]) -> Target:
    return Target(
        session,
        max(one.qos for one in found),
        all(one.no_local for one in found),
        any(one.retain_as_published for one in found),
        [one.id for one in found if one.id],
    )
