"""Which queue a topic belongs to, and which topic a queue.

    meters/+/reading -> readings, key = segment 2      messages of these topics go to that queue
    commands/+ -> commands.{2}                         a queue for each device
    chat/# -> none                                     for subscribers only, in no queue
    configuration => devices/{key}/config, retain      messages of a queue go to these topics
    orders.{2} => devices/+/orders                     from a queue for each device that subscribes

The first rule whose filter matches decides. A topic that no rule names belongs to the queue of its
own name, written with the characters that names of queues may have:

    /        .                      meters/1/reading   meters.1.reading
    . and -  -. and --              plant-1            plant--1
    others   -xx for each byte      room 7             room-207

A name that would begin with '.', '-' or '_' gets '_' in front. `topic_of` is the way back. A name
that would be too long becomes '_-h' and a hash; that one has no way back.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from ringdove import limits
from ringdove.core.settings import check_name
from ringdove.errors import InvalidArgument
from ringdove.protocol.mqtt.topics import is_filter, is_topic, matches

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_]*")
_ODD: Final = re.compile(rb"[^A-Za-z0-9_]")
_ESCAPE: Final = re.compile(r"-(-|\.|[0-9a-f]{2})|\.")
_UP: Final = re.compile(r"(?P<topic>\S+) -> (?P<queue>\S+?)(, key = segment (?P<segment>\d+))?")
_DOWN: Final = re.compile(r"(?P<queue>\S+) => (?P<topic>\S+?)(?P<retain>, retain)?")
_SEGMENT: Final = re.compile(r"\{(\d+)\}")
_NOWHERE: Final = "none"
_KEY: Final = "{key}"
_HASHED: Final = "_-h"


class Place(NamedTuple):
    """Where messages of a topic go."""

    #: None when they go to no queue.
    queue: str | None
    key: bytes = b""


class Downlink(NamedTuple):
    """A queue whose messages are published."""

    #: Perhaps with levels of the topic, such as '{2}': a queue for each topic.
    queue: str
    #: Perhaps with '{key}', which stands for the message's key, or '+' if there are many queues.
    topic: str
    retain: bool

    def of_topic(self, topic: str) -> Downlink | None:
        """The one that serves a topic, of many; None when none does."""
        if "{" not in self.queue or not matches(self.topic, topic) or not is_topic(topic):
            return None
        return Downlink(_fill(self.queue, ["", *topic.split("/")]), topic, self.retain)

    def topic_for(self, key: bytes) -> str | None:
        """The topic of a message; None when its key makes none."""
        if _KEY not in self.topic:
            return self.topic
        try:
            topic = self.topic.replace(_KEY, key.decode())
        except UnicodeDecodeError:
            return None
        return topic if key and is_topic(topic) else None


class _Uplink(NamedTuple):
    pattern: str
    queue: str
    #: Which level of the topic is the message's key, from 1; 0 for none.
    segment: int


class Rules:
    """The rules of a gateway."""

    def __init__(self, texts: list[str] | tuple[str, ...] = ()) -> None:
        self._uplinks: list[_Uplink] = []
        self.downlinks: list[Downlink] = []
        for text in texts:
            self._add(" ".join(text.split()))

    def _add(self, text: str) -> None:
        up, down = _UP.fullmatch(text), _DOWN.fullmatch(text)
        if up is not None:
            if not is_filter(up["topic"]):
                raise InvalidArgument(f"{up['topic']!r} is no topic filter, in rule {text!r}.")
            check_name(_SEGMENT.sub("x", up["queue"]))
            self._uplinks.append(_Uplink(up["topic"], up["queue"], int(up["segment"] or 0)))
        elif down is not None:
            self._add_downlink(down, text)
        else:
            raise InvalidArgument(
                f"{text!r} is no rule: say 'meters/+/reading -> readings, key = segment 2' or "
                "'configuration => devices/{key}/config, retain'."
            )

    def _add_downlink(self, found: re.Match[str], text: str) -> None:
        queue, topic = found["queue"], found["topic"]
        check_name(_SEGMENT.sub("x", queue))
        good = is_filter(topic) if _SEGMENT.search(queue) else is_topic(topic.replace(_KEY, "x"))
        if not good:
            raise InvalidArgument(f"{topic!r} is no topic to publish to, in rule {text!r}.")
        self.downlinks.append(Downlink(queue, topic, found["retain"] is not None))

    def place(self, topic: str) -> Place:
        """Where messages of a topic go."""
        for pattern, queue, segment in self._uplinks:
            if not matches(pattern, topic):
                continue
            if queue == _NOWHERE:
                return Place(None)
            levels = ["", *topic.split("/")]
            key = levels[segment].encode() if segment < len(levels) else b""
            return Place(_fill(queue, levels), key[: limits.KEY_BYTES_MAX])
        if topic.startswith("$"):
            return Place(None)
        return Place(queue_of(topic))


def _fill(queue: str, levels: list[str]) -> str:
    """A queue's name with levels of the topic in it."""
    if "{" not in queue:
        return queue
    filled = _SEGMENT.sub(lambda found: _level(levels, int(found[1])), queue)
    return filled if len(filled) <= limits.NAME_CHARS_MAX else _hashed(filled)


def _level(levels: list[str], number: int) -> str:
    return _escape(levels[number]) if number < len(levels) else ""


def _escape(text: str) -> str:
    return _ODD.sub(_written, text.encode()).decode("ascii")


def _written(found: re.Match[bytes]) -> bytes:
    byte = found[0]
    if byte == b"/":
        return b"."
    return b"-" + byte if byte in b".-" else b"-%02x" % byte[0]


def _hashed(text: str) -> str:
    return _HASHED + hashlib.sha256(text.encode()).hexdigest()[:48]


def queue_of(topic: str) -> str:
    """The queue of a topic that no rule names."""
    if _PLAIN.fullmatch(topic) and len(topic) <= limits.NAME_CHARS_MAX:
        return topic
    name = _escape(topic)
    if name[0] in ".-_":
        name = f"_{name}"
    return name if len(name) <= limits.NAME_CHARS_MAX else _hashed(topic)


def topic_of(queue: str) -> str | None:
    """The topic that `queue_of` wrote so; None when it was hashed."""
    if queue.startswith(_HASHED):
        return None
    name = queue.removeprefix("_")
    raw = bytearray()
    at = 0
    for found in _ESCAPE.finditer(name):
        raw += name[at : found.start()].encode()
        at = found.end()
        code = found[1]
        if code is None:
            raw += b"/"
        else:
            raw += code.encode() if code in "-." else bytes.fromhex(code)
    raw += name[at:].encode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
