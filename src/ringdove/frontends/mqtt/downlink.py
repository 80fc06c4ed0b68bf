"""From queues to devices: messages of a queue are published to the topics that a rule says.

A message is acknowledged in its queue when it is stored for everybody who subscribes, or retained.
While nobody subscribes to its topic it stays in the queue and is tried again after the queue's
back-off, so a device that comes later catches up. Rules with a queue for each topic begin when
somebody subscribes to the topic, and end when nobody does any more.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import QueueNotFound, RingdoveError
from ringdove.frontends.mqtt.message import Message
from ringdove.pending import Pending

if TYPE_CHECKING:
    from ringdove.controllers.broker import Broker
    from ringdove.controllers.dequeue import Received
    from ringdove.core.attributes import Attributes
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
        self._closed = False

    def open(self, rules: list[Downlink]) -> None:
        """Begin with what the rules say."""
        for rule in rules:
            if "{" in rule.queue:
                self._templates.append(rule)
            else:
                self._begin(rule)

    def close(self) -> None:
        """Take no more; what was taken goes back to its queue when its lease is over."""
        self._closed = True
        for driven in self._running.values():
            if driven is not None:
                driven.cancel()
        self._running.clear()

    def subscribed(self, pattern: str) -> None:
        """Somebody subscribes: the topic may have a queue."""
        for template in self._templates:
            found = template.of_topic(pattern)
            if found is not None and found not in self._running:
                self._begin(found)

    def _begin(self, rule: Downlink) -> None:
        if self._closed:
            return
        self._running[rule] = None
        driven = self._runner.spawn(self._serve(rule), partial(self._ended, rule))
        if rule in self._running and not driven.over:
            self._running[rule] = driven

    def _ended(self, rule: Downlink, _: None, error: BaseException | None) -> None:
        self._running.pop(rule, None)
        if error is not None and not self._closed:
            _log.warning("Queue %r is not published now: %s", rule.queue, error)
            asyncio.get_running_loop().call_later(_AGAIN_S, self._begin, rule)

    async def _serve(self, rule: Downlink) -> None:
        made = any(template.of_topic(rule.topic) == rule for template in self._templates)
        while not made or self._routes.find(rule.topic).wanted:
            try:
                received = await self._broker.receive(
                    rule.queue, DEFAULT_SUBSCRIPTION, _BATCH, _WAIT_S, None
                )
            except QueueNotFound:
                await self._broker.create_queue(rule.queue, {})
                continue
            await self._publish(rule, received)

    async def _publish(self, rule: Downlink, received: list[Received]) -> None:
        """Publish what was received, then settle it: done, or later again."""
        done: list[Receipt] = []
        later: list[Receipt] = []
        stored: list[Pending[RingdoveError | None]] = []
        for run in received:
            offset = run.receipt.lo
            for block in run.delivered.blocks:
                for body, key, attributes in _messages(block):
                    receipt = run.receipt._replace(lo=offset, hi=offset + 1)
                    offset += 1
                    pending = self._publish_one(rule, body, key, attributes)
                    if pending is None:
                        later.append(receipt)
                    else:
                        done.append(receipt)
                        stored.append(pending)
        failed = [receipt for receipt, one in zip(done, stored, strict=True) if await one]
        if done:
            await self._broker.acknowledge([one for one in done if one not in failed])
        if later or failed:
            await self._broker.release(later + failed, None)

    def _publish_one(
        self, rule: Downlink, body: bytes, key: bytes, attributes: Attributes
    ) -> Pending[RingdoveError | None] | None:
        """Publish a message; None when nobody wants it now."""
        topic = rule.topic_for(key)
        if topic is None:
            _log.warning("A message of queue %r has no topic: its key is %r.", rule.queue, key)
        if topic is None or not (rule.retain or self._routes.find(topic).wanted):
            return None
        message = Message(topic, body, 1, rule.retain, properties=_properties(attributes))
        stored = Pending[RingdoveError | None]()
        self._publisher.publish_message(message, stored.resolve, stored=False)
        return stored


def _messages(block: Any) -> list[tuple[bytes, bytes, Attributes]]:
    keys = block.keys() if block.keyed else [b""] * block.count
    return list(zip(block.bodies(), keys, block.attributes(), strict=True))


def _properties(attributes: Attributes) -> dict[str, Any] | None:
    """Attributes that are text become user properties."""
    pairs = [(name, value) for name, value in attributes.items() if isinstance(value, str)]
    return {"user_property": pairs} if pairs else None
