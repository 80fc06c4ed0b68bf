"""Wills: what is published for clients that go without saying goodbye.

    record mqtt/will/CLIENT      the message, its delay, and when it is due once the client is gone

A will is stored before its client is let in. After a restart all clients are gone; they have some
seconds to come back before their wills are published.

On a fabric several servers may wait for the same will to be due: whoever removes its record
publishes it. One that finds another record there, or none, has nothing to publish: the client has
come back, with a will of its own, or another server was first.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from ringdove import limits
from ringdove.errors import RecordConflict
from ringdove.frontends.mqtt.message import Message
from ringdove.frontends.mqtt.session import NEVER_S, WILL_PREFIX, encode_record, record_name

if TYPE_CHECKING:
    from ringdove.errors import RingdoveError
    from ringdove.frontends.mqtt.peers import Peers
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
    #: The server that its client is connected to.
    owner: str
    #: When it is to be published; 0 while its client is connected.
    due_ms: int = 0


_decode = msgspec.msgpack.Decoder(_Will).decode


class Wills:
    """See the module."""

    def __init__(self, store: Store, runner: Runner, publisher: Publisher, peers: Peers) -> None:
        self._store = store
        self._runner = runner
        self._publisher = publisher
        self._peers = peers
        self._wills: dict[str, _Will] = {}
        #: Those whose client is gone.
        self._due: dict[str, _Will] = {}
        #: Versions of their records; none while one is being written.
        self._versions: dict[str, int] = {}

    async def load(self) -> None:
        """Read the wills of clients whose server has ended, this one's of earlier included."""
        after = ""
        grace_ms = self._store.clock.now_ms() + limits.MQTT_WILL_GRACE_S * 1000
        while records := await self._store.scan(WILL_PREFIX, after, _PAGE):
            for record in records:
                will = _decode(record.value)
                if will.owner in self._peers.alive or will.client_id in self._wills:
                    continue
                will.due_ms = max(will.due_ms, grace_ms + will.delay_s * 1000 * (not will.due_ms))
                self._wills[will.client_id] = self._due[will.client_id] = will
                self._versions[will.client_id] = record.version
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
        will = _Will(client_id, Message.of(packet, 0), delay_s, expiry_s, self._peers.name)
        self._wills[client_id] = will
        self._versions.pop(client_id, None)  # Whosever it was, the client is here now.
        await self._write(will)

    async def void(self, client_id: str) -> None:
        """A client has said goodbye, or has come back without a will."""
        known = client_id in self._wills
        self.forget(client_id)
        if known or self._peers.shared:
            await self._store.remove(WILL_PREFIX + record_name(client_id))

    def forget(self, client_id: str) -> None:
        """The client is connected elsewhere: its will is another server's."""
        for known in (self._wills, self._due, self._versions):
            known.pop(client_id, None)

    async def _write(self, will: _Will) -> None:
        """Raises RecordConflict if another server has written the record meanwhile."""
        key = WILL_PREFIX + record_name(will.client_id)
        expect = self._versions.pop(will.client_id, None)
        record = await self._store.put(key, encode_record(will), expect)
        if self._wills.get(will.client_id) is will:
            self._versions[will.client_id] = record.version

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
        self._runner.spawn(self._wait(will), _noted)

    async def _wait(self, will: _Will) -> None:
        try:
            await self._write(will)
        except RecordConflict:
            self._leave(will)

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
        if self._peers.shared:
            self._runner.spawn(self._claim(will), _noted)
        else:
            self._publish_now(will)

    async def _claim(self, will: _Will) -> None:
        """Of several servers that find a will, the one that removes it publishes it."""
        key = WILL_PREFIX + record_name(will.client_id)
        try:
            first = await self._store.remove(key, self._versions.get(will.client_id))
        except RecordConflict:
            first = False
        if first:
            self._publish_now(will)
        else:
            self._leave(will)

    def _leave(self, will: _Will) -> None:
        """Another server has the will, or has published it."""
        if self._wills.get(will.client_id) is will:
            self.forget(will.client_id)

    def _publish_now(self, will: _Will) -> None:
        now_ms = self._store.clock.now_ms()
        will.message.expires_ms = now_ms + will.expiry_s * 1000 if will.expiry_s else 0
        self._publisher.publish_message(will.message, partial(self._published, will))

    def _published(self, will: _Will, error: RingdoveError | None) -> None:
        if error is not None:
            _log.warning("The will of %r could not be published: %s", will.client_id, error)
        if self._wills.get(will.client_id) is will:
            self.forget(will.client_id)
            if not self._peers.shared:  # Else that was done before it was published.
                removal = self._store.remove(WILL_PREFIX + record_name(will.client_id))
                self._runner.spawn(removal, _noted)


def _noted(_: object, error: BaseException | None) -> None:
    if error is not None:
        _log.warning("A will could not be noted: %r", error)
