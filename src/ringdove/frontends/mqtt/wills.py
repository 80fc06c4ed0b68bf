"""Wills: what is published for clients that go without saying goodbye.

    record mqtt/will/CLIENT      the message, its delay, and when it is due once the client is gone

A will is stored before its client is let in. After a restart all clients are gone; they have some
seconds to come back before their wills are published.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from ringdove import limits
from ringdove.frontends.mqtt.message import Message
from ringdove.frontends.mqtt.session import NEVER_S, WILL_PREFIX, encode_record, record_name

if TYPE_CHECKING:
    from ringdove.errors import RingdoveError
    from ringdove.frontends.mqtt.publishing import Publisher
    from ringdove.frontends.mqtt.session import Session
    from ringdove.pending import Runner
    from ringdove.protocol.mqtt.packets import Will
    from ringdove.stores.base import Store

_log = logging.getLogger(__name__)

_PAGE: Final = 1_000


class _Will(msgspec.Struct, array_like=True):
    client_id: str
    message: Message
    delay_s: int
    #: Seconds after its publication for which anybody wants it; 0 for ever.
    expiry_s: int
    #: When it is to be published; 0 while its client is connected.
    due_ms: int = 0


_decode = msgspec.msgpack.Decoder(_Will).decode


class Wills:
    """See the module."""

    def __init__(self, store: Store, runner: Runner, publisher: Publisher) -> None:
        self._store = store
        self._runner = runner
        self._publisher = publisher
        self._wills: dict[str, _Will] = {}
        #: Those whose client is gone.
        self._due: dict[str, _Will] = {}

    async def load(self) -> None:
        """Read the wills of clients that were connected, or gone, when the server ended."""
        after = ""
        grace_ms = self._store.clock.now_ms() + limits.MQTT_WILL_GRACE_S * 1000
        while records := await self._store.scan(WILL_PREFIX, after, _PAGE):
            for record in records:
                will = _decode(record.value)
                will.due_ms = max(will.due_ms, grace_ms + will.delay_s * 1000 * (not will.due_ms))
                self._wills[will.client_id] = self._due[will.client_id] = will
            after = records[-1].key

    async def begin(self, client_id: str, packet: Will | None) -> None:
        """A client has connected, with a will or without; one that waited is void."""
        if packet is None:
            await self.void(client_id)
            return
        self._due.pop(client_id, None)
        properties = packet.properties or {}
        delay_s = properties.get("will_delay_interval", 0)
        expiry_s = properties.get("message_expiry_interval", 0)
        will = _Will(client_id, Message.of(packet, 0), delay_s, expiry_s)
        self._wills[client_id] = will
        await self._store.put(WILL_PREFIX + record_name(client_id), encode_record(will))

    async def void(self, client_id: str) -> None:
        """A client has said goodbye, or has come back without a will."""
        self._due.pop(client_id, None)
        if self._wills.pop(client_id, None) is not None:
            await self._store.remove(WILL_PREFIX + record_name(client_id))

    def lost(self, session: Session) -> None:
        """A client has gone without a word: its will is due after its delay or with its session."""
        will = self._wills.get(session.client_id)
        if will is None:
            return
        wait_s = (
            will.delay_s if session.expiry_s == NEVER_S else min(will.delay_s, session.expiry_s)
        )
        will.due_ms = self._store.clock.now_ms() + wait_s * 1000
        self._due[session.client_id] = will
        if not wait_s:
            self._publish(will)
            return
        key = WILL_PREFIX + record_name(session.client_id)
        self._runner.spawn(self._store.put(key, encode_record(will)), _noted)

    def hurry(self, client_id: str) -> None:
        """A client's session ends: a will that waits for its delay is due."""
        will = self._due.get(client_id)
        if will is not None and will.delay_s:
            self._publish(will)

    def sweep(self) -> None:
        """Publish what is due."""
        now_ms = self._store.clock.now_ms()
        for will in [will for will in self._due.values() if will.due_ms <= now_ms]:
            self._publish(will)

    def _publish(self, will: _Will) -> None:
        self._due.pop(will.client_id, None)
        now_ms = self._store.clock.now_ms()
        will.message.expires_ms = now_ms + will.expiry_s * 1000 if will.expiry_s else 0
        self._publisher.publish_message(will.message, partial(self._published, will))

    def _published(self, will: _Will, error: RingdoveError | None) -> None:
        if error is not None:
            _log.warning("The will of %r could not be published: %s", will.client_id, error)
        if self._wills.get(will.client_id) is will:
            del self._wills[will.client_id]
            removal = self._store.remove(WILL_PREFIX + record_name(will.client_id))
            self._runner.spawn(removal, _noted)


def _noted(_: object, error: BaseException | None) -> None:
    if error is not None:
        _log.warning("A will could not be noted: %r", error)
