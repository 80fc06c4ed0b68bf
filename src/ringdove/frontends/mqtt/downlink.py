"""From queues to devices: messages of a queue are published to the topics that a rule says.

A message is acknowledged in its queue when it is stored for everybody who subscribes, or retained.
While it would reach nobody it stays in the queue and is tried again after the queue's back-off, so
a device that comes later catches up; that does not count as received. Rules with a queue for each
topic begin when somebody subscribes to the topic, and end when nobody does any more.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from ringdove import limits
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import LimitExceeded, QueueNotFound, RingdoveError
from ringdove.frontends.mqtt.message import Message
from ringdove.pending import Pending
from ringdove.protocol.mqtt.properties import is_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.visiting import Received
    from ringdove.core.attributes import Attributes
    from ringdove.core.block import Block
    from ringdove.core.receipt import Receipt
    from ringdove.frontends.mqtt.publishing import Publisher
    from ringdove.frontends.mqtt.routes import Routes
    from ringdove.pending import Driven, Runner
    from ringdove.protocol.mqtt.rules import Downlink

_log = logging.getLogger(__name__)

#: Messages that are taken at a time, and seconds after which one looks whether anybody subscribes.
_BATCH = 256
_WAIT_S = 10.0

#: Seconds after which one that failed begins again.
_AGAIN_S = 1.0

#: The same where subscribers have made too many queues: somebody else may make this one.
_AT_LIMIT_S = 30.0

#: Messages that nobody wants, and that are kept leased until they are tried again: so those behind
#: them have their turn. Beyond, they are released, which counts as received.
_KEPT_MAX = 10_000

#: Milliseconds at least between two attempts, whatever the back-off.
_PAUSE_MS_MIN = 10


class _TooManyQueues(LimitExceeded):
    """Subscribers may not make another one."""


class Downlinks:
    """See the module."""

    def __init__(
        self, broker: Broker, runner: Runner, routes: Routes, publisher: Publisher
    ) -> None:
        self._broker = broker
        self._runner = runner
        self._routes = routes
        self._publisher = publisher
        #: Rules with a queue for each topic.
        self._templates: list[Downlink] = []
        self._running: dict[Downlink, Driven | None] = {}
        #: What waits for its next attempt, and how many messages that are.
        self._waiting: dict[asyncio.TimerHandle, list[Receipt]] = {}
        self._kept = 0
        #: Queues that were made because somebody subscribed.
        self._created = 0
        self._closed = False

    def open(self, rules: list[Downlink]) -> None:
        """Begin with what the rules say."""
        for rule in rules:
            if "{" in rule.queue:
                self._templates.append(rule)
            else:
                self._begin(rule)
        for pattern in self._routes.patterns:
            self.subscribed(pattern)
        self._routes.on_added = self.subscribed

    def close(self) -> None:
        """Take no more; what was just taken goes back to its queue when its lease is over."""
        self._closed = True
        for driven in self._running.values():
            if driven is not None:
                driven.cancel()
        self._running.clear()
        for timer in list(self._waiting):
            timer.cancel()
            self._give_back(timer)

    def subscribed(self, pattern: str) -> None:
        """Somebody subscribes: the topic may have a queue."""
        for template in self._templates:
            found = template.of_topic(pattern)
            if found is not None:
                self._begin(found)

    def _begin(self, rule: Downlink) -> None:
        if self._closed or rule in self._running:
            return
        self._running[rule] = None
        driven = self._runner.spawn(self._serve(rule), partial(self._ended, rule))
        if rule in self._running and not driven.over:
            self._running[rule] = driven

    def _ended(self, rule: Downlink, _: None, error: BaseException | None) -> None:
        self._running.pop(rule, None)
        if error is not None and not self._closed:
            _log.warning("Queue %r is not published now: %s", rule.queue, error)
            again_s = _AT_LIMIT_S if isinstance(error, _TooManyQueues) else _AGAIN_S
            asyncio.get_running_loop().call_later(again_s, self._begin, rule)

    async def _serve(self, rule: Downlink) -> None:
        fruitless, until_s = 0, 0.0
        made = any(template.of_topic(rule.topic) == rule for template in self._templates)
        while not made or self._routes.find(rule.topic).wanted:
            try:
                received = await self._broker.receive(
                    rule.queue, DEFAULT_SUBSCRIPTION, _BATCH, _WAIT_S, None
                )
            except QueueNotFound:
                await self._create(rule.queue, made=made)
                continue
            published, later = await self._publish(rule, received)
            if published:
                fruitless = 0
            if later:
                now_s = self._runner.loop.time()
                fruitless += now_s >= until_s
                pause_s = await self._keep(rule, later, fruitless)
                until_s = max(until_s, now_s + pause_s)

    async def _create(self, queue: str, *, made: bool) -> None:
        """Make a queue that is missing; those of subscribers are counted."""
        if made and self._created >= limits.MQTT_QUEUES_MAX:
            raise _TooManyQueues(f"Subscribers have made {self._created} queues, the most.")
        self._created += made
        try:
            await self._broker.create_queue(queue, {})
        except BaseException:
            self._created -= made
            raise

    async def _publish(self, rule: Downlink, received: list[Received]) -> tuple[int, list[Receipt]]:
        """Publish what was received, and settle it; how many that were, and those for later."""
        done: list[Receipt] = []
        later: list[Receipt] = []
        unnamed: list[Receipt] = []
        stored: list[Pending[RingdoveError | None]] = []
        for run in received:
            offset = run.receipt.lo
            for block in run.delivered.blocks:
                for body, key, attributes in _messages(block):
                    receipt = run.receipt._replace(lo=offset, hi=offset + 1)
                    offset += 1
                    topic = rule.topic_for(key)
                    if topic is None:
                        _log.warning("Queue %r: no topic for key %r.", rule.queue, key)
                        unnamed.append(receipt)
                    elif rule.retain or self._routes.find(topic).reaches:
                        done.append(receipt)
                        stored.append(self._publish_one(rule, topic, body, attributes))
                    else:
                        later.append(receipt)
        failed = [receipt for receipt, one in zip(done, stored, strict=True) if await one]
        if done:
            await self._broker.acknowledge([one for one in done if one not in failed])
        if unnamed or failed:
            await self._broker.release(unnamed + failed, None)
        return len(done), later

    async def _keep(self, rule: Downlink, receipts: list[Receipt], fruitless: int) -> float:
        """Have messages tried again later, as if they had not been received; after how long."""
        if self._kept + len(receipts) > _KEPT_MAX:
            await self._broker.release(receipts, None)
            return 0.0
        settings = (await self._broker.get_queue(rule.queue)).settings
        # The lease must not end meanwhile: that would count.
        pause_ms = min(settings.backoff_after_ms(fruitless), settings.lease_ms // 2)
        pause_s = max(pause_ms, _PAUSE_MS_MIN) / 1000
        timer: asyncio.TimerHandle = self._runner.loop.call_later(
            pause_s, lambda: self._give_back(timer)
        )
        self._waiting[timer] = receipts
        self._kept += len(receipts)
        return pause_s

    def _give_back(self, timer: asyncio.TimerHandle) -> None:
        receipts = self._waiting.pop(timer)
        self._kept -= len(receipts)
        self._runner.spawn(self._broker.unlease(receipts), _given_back)

    def _publish_one(
        self, rule: Downlink, topic: str, body: bytes, attributes: Attributes
    ) -> Pending[RingdoveError | None]:
        """Publish a message; done when it is stored for those who want it."""
        message = Message(topic, body, 1, rule.retain, properties=_properties(attributes))
        stored = Pending[RingdoveError | None]()
        self._publisher.publish_message(message, stored.resolve, stored=False)
        return stored


def _given_back(_: object, error: BaseException | None) -> None:
    if error is not None:
        _log.warning("Messages go back to their queue when their lease is over: %r", error)


def _messages(block: Block) -> Iterator[tuple[bytes, bytes, Attributes]]:
    return zip(block.bodies(), block.keys(), block.attributes(), strict=True)


def _properties(attributes: Attributes) -> dict[str, Any] | None:
    """Attributes that are text become user properties, as far as MQTT can carry them."""
    pairs = [
        (name, value)
        for name, value in attributes.items()
        if isinstance(value, str) and is_text(name) and is_text(value)
    ]
    return {"user_property": pairs} if pairs else None
