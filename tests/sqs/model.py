"""A model of SQS: what its documentation promises, in the plainest form.

The model predicts no replies; it judges those that were given, and believes what it could not have
known: the ids of messages, their handles, and, where the order is open, which ones came. So it
allows what SQS leaves open and insists on the rest:

    a message is received until it is deleted, or until its retention ends; none is lost
    nobody else receives it while it is hidden, and it is not hidden for longer than was said
    its receives are counted; after the last one it is received no more, but moved
    FIFO: a group comes in order, from its front, to one receiver at a time
    FIFO: what was sent within five minutes under the same id is not sent again
    the counters of a queue are right

One thing it asks for beyond SQS, whose short polls look at some of the servers only: a receive
finds what there is. On a standard queue it comes back with as many messages as there are, up to
what was asked for; on a FIFO queue, with some of every group, up to that.

Times are milliseconds of the clock that the service is given.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEDUP_MS = 300_000

#: The longest time from a receive to the end of what hides the message.
VISIBILITY_MS_MAX = 43_200_000


@dataclass
class Message:
    """A message of a queue that is not deleted."""

    id: str
    body: str
    sent_ms: int
    stored_ms: int
    #: Until then it is delayed or, if it was received here, in flight.
    hidden_ms: int
    group: str | None = None
    receives: int = 0
    first_ms: int = 0
    #: Those given out in this queue, and when; the last one last.
    handles: dict[str, int] = field(default_factory=dict)
    #: Made visible by its receiver.
    released: bool = False

    def visible(self, now_ms: int) -> bool:
        return now_ms >= self.hidden_ms

    def in_flight(self, now_ms: int) -> bool:
        return now_ms < self.hidden_ms and bool(self.handles)

    def hide(self, seconds: int, now_ms: int) -> None:
        self.hidden_ms = now_ms + seconds * 1000
        self.released = not seconds


@dataclass
class Queue:
    """A queue, its settings in seconds."""

    name: str
    visibility_s: int = 30
    delay_s: int = 0
    retention_s: int = 345_600
    dead_letter: str | None = None
    receives_max: int | None = None
    by_content: bool = False
    per_group: bool = False
    #: By id, in the order of sending.
    messages: dict[str, Message] = field(default_factory=dict)
    #: FIFO: when each deduplication id was sent, and the message and sequence number it got.
    known: dict[tuple[str, str], tuple[int, str, str]] = field(default_factory=dict)
    last_sequence: str = ""
    #: Handles whose messages were deleted.
    done: set[str] = field(default_factory=set)

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")

    def expire(self, now_ms: int) -> None:
        """Forget what is older than the queue keeps."""
        for message in list(self.messages.values()):
            if self.overdue(message, now_ms):
                del self.messages[message.id]

    def overdue(self, message: Message, now_ms: int) -> bool:
        """Whether a message has been here for as long as it may."""
        return message.stored_ms + self.retention_s * 1000 <= now_ms

    def exhausted(self, message: Message) -> bool:
        """Whether a message was received as often as it may be."""
        return self.receives_max is not None and message.receives >= self.receives_max

    def find(self, handle: str) -> tuple[Message | None, bool]:
        """The message that a handle is for, and whether it is the last one given out."""
        for message in self.messages.values():
            if handle in message.handles:
                return message, list(message.handles)[-1] == handle
        return None, False

    def groups(self) -> list[list[Message]]:
        """FIFO: the messages of each group, in order."""
        found: dict[str | None, list[Message]] = {}
        for message in self.messages.values():
            found.setdefault(message.group, []).append(message)
        return list(found.values())

    def ends(self, now_ms: int) -> list[int]:
        """When something about the queue will change by time alone."""
        found = [message.hidden_ms for message in self.messages.values()]
        found += [message.stored_ms + self.retention_s * 1000 for message in self.messages.values()]
        found += [sent_ms + DEDUP_MS for sent_ms, _, _ in self.known.values()]
        return [ms for ms in found if ms > now_ms]

    def counters(self, now_ms: int) -> tuple[int, int, int]:
        """Messages visible, in flight, delayed."""
        self.expire(now_ms)
        messages = self.messages.values()
        visible = sum(message.visible(now_ms) for message in messages)
        in_flight = sum(message.in_flight(now_ms) for message in messages)
        return visible, in_flight, len(messages) - visible - in_flight


class Model:
    """All queues."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self._ids: set[str] = set()

    # -- sending --------------------------------------------------------------------------------

    def sent(self, name: str, entry: dict[str, Any], reply: dict[str, Any], now_ms: int) -> None:
        """A message was accepted."""
        queue = self.queues[name]
        queue.expire(now_ms)
        body = entry["MessageBody"]
        assert reply["MD5OfMessageBody"] == hashlib.md5(body.encode()).hexdigest()
        assert ("SequenceNumber" in reply) == queue.fifo
        if queue.fifo and self._is_repetition(queue, entry, reply, now_ms):
            return
        assert reply["MessageId"] not in self._ids, "two messages have one id"
        self._ids.add(reply["MessageId"])
        delay_s = queue.delay_s if queue.fifo else entry.get("DelaySeconds", queue.delay_s)
        queue.messages[reply["MessageId"]] = Message(
            reply["MessageId"],
            body,
            now_ms,
            now_ms,
            now_ms + delay_s * 1000,
            entry.get("MessageGroupId"),
        )

    def _is_repetition(
        self, queue: Queue, entry: dict[str, Any], reply: dict[str, Any], now_ms: int
    ) -> bool:
        content = hashlib.sha256(entry["MessageBody"].encode()).hexdigest()
        scope = entry["MessageGroupId"] if queue.per_group else ""
        key = (scope, entry.get("MessageDeduplicationId", content))
        told = (reply["MessageId"], reply["SequenceNumber"])
        first = queue.known.get(key)
        if first is not None and now_ms < first[0] + DEDUP_MS:
            assert told == first[1:], "a repetition was taken for a new message"
            return True
        assert len(told[1]) == 20
        assert told[1] > queue.last_sequence, "sequence numbers must rise"
        queue.last_sequence = told[1]
        queue.known[key] = (now_ms, *told)
        return False

    # -- receiving ------------------------------------------------------------------------------

    def received(
        self,
        name: str,
        want: int,
        visibility_s: int | None,
        found: list[dict[str, Any]],
        moved: Iterable[str],
        now_ms: int,
    ) -> None:
        """A receive came back with `found`, and the server has `moved` dead letters meanwhile."""
        queue = self.queues[name]
        queue.expire(now_ms)
        for message_id in moved:
            message = queue.messages[message_id]
            assert queue.exhausted(message), "moved though it may be received again"
            assert message.visible(now_ms), "moved while it is hidden"
            self._bury(queue, message, now_ms)
        ids = [message["MessageId"] for message in found]
        assert len(ids) == len(set(ids)) <= want
        for told in found:
            message = queue.messages.get(told["MessageId"])
            assert message is not None, "never sent here, or deleted"
            assert message.visible(now_ms), "received while it is hidden"
            assert not queue.exhausted(message), "received once too often"
        if queue.fifo:
            self._judge_groups(queue, want, ids, now_ms)
        else:
            self._judge_loose(queue, want, ids, now_ms)
        for told in found:
            self._hand_out(queue, told, visibility_s, now_ms)

    def _judge_loose(self, queue: Queue, want: int, ids: list[str], now_ms: int) -> None:
        visible = [m for m in queue.messages.values() if m.visible(now_ms)]
        receivable = [m for m in visible if not queue.exhausted(m)]
        assert len(ids) == min(want, len(receivable)), "fewer came than there are"
        assert len(ids) == want or visible == receivable, "a dead letter was left"

    def _judge_groups(self, queue: Queue, want: int, ids: list[str], now_ms: int) -> None:
        for line in queue.groups():
            got = [message_id for message_id in ids if queue.messages[message_id] in line]
            assert got == [message.id for message in line[: len(got)]], "out of order"
            front = _front(line, lambda m: m.visible(now_ms))
            assert len(got) <= len(front), "past a message that is hidden"
            # How many a group gives at once is left open; and whether it gives any while some of
            # its messages are in flight, even if its first one is visible again.
            locked = any(message.in_flight(now_ms) for message in line)
            if front and not locked and len(ids) < want:
                assert not queue.exhausted(front[0]), "a dead letter was left"
                assert got, "a group was left though there was room"

    def _hand_out(
        self, queue: Queue, told: dict[str, Any], visibility_s: int | None, now_ms: int
    ) -> None:
        message = queue.messages[told["MessageId"]]
        message.receives += 1
        message.first_ms = message.first_ms or now_ms
        attributes = told["Attributes"]
        assert told["Body"] == message.body
        assert attributes["ApproximateReceiveCount"] == str(message.receives)
        assert attributes["ApproximateFirstReceiveTimestamp"] == str(message.first_ms)
        assert attributes["SentTimestamp"] == str(message.sent_ms)
        assert attributes.get("MessageGroupId") == message.group
        assert all(told["ReceiptHandle"] not in m.handles for m in queue.messages.values())
        message.handles[told["ReceiptHandle"]] = now_ms
        seconds = queue.visibility_s if visibility_s is None else visibility_s
        # Not hidden at all means: for less than what the clock can tell.
        message.hidden_ms = now_ms + max(1, seconds * 1000)
        message.released = False

    def _bury(self, queue: Queue, message: Message, now_ms: int) -> None:
        assert queue.dead_letter is not None
        del queue.messages[message.id]
        queue.done |= set(message.handles)
        self.queues[queue.dead_letter].messages[message.id] = Message(
            message.id,
            message.body,
            message.sent_ms,
            now_ms,
            now_ms,
            message.group,
            message.receives,
        )

    # -- what a receiver does with a message ----------------------------------------------------

    def deleted(self, name: str, handle: str, error: str, now_ms: int) -> None:
        """A deletion was answered, with an error's code or none."""
        queue = self.queues[name]
        message, last = queue.find(handle)
        if message is not None and queue.overdue(message, now_ms):
            return  # It may be gone already.
        if queue.fifo and message is not None:
            held = last and message.in_flight(now_ms)
            assert error == ("" if held else "InvalidParameterValue")
        elif not queue.fifo or handle in queue.done:
            assert not error
        if message is not None and not error:
            del queue.messages[message.id]
            queue.done |= set(message.handles)

    def changed(self, name: str, handle: str, seconds: int, error: str, now_ms: int) -> None:
        """A change of visibility was answered, with an error's code or none."""
        assert error in ("", "InvalidParameterValue")
        queue = self.queues[name]
        message, last = queue.find(handle)
        if message is None:
            assert error or handle not in queue.done, "it is deleted"
        elif queue.overdue(message, now_ms):
            return
        elif now_ms + seconds * 1000 - message.handles[handle] > VISIBILITY_MS_MAX:
            assert error, "hidden for too long"
        elif queue.fifo:
            assert not error or not (last and message.in_flight(now_ms))
            assert error or last, "somebody else has it"
        elif not message.released:
            assert not error
        if message is not None and not error:
            message.hide(seconds, now_ms)

    # -- queues ---------------------------------------------------------------------------------

    def purged(self, name: str) -> None:
        """Everything is gone, and what was sent before is forgotten."""
        queue = self.queues[name]
        queue.messages.clear()
        queue.known.clear()


def _front(line: list[Message], good: Callable[[Message], bool]) -> list[Message]:
    """The messages before the first one that is not good."""
    for number, message in enumerate(line):
        if not good(message):
            return line[:number]
    return line
