"""Senders and receivers that write down all they do; each is a thread with its own connection.

What an error means is decided here: one that promises that nothing was stored is a failure, every
other leaves the outcome unknown.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import ringdove
from fabric.harness.history import Delivery, History, Send
from ringdove.errors import ClientError, ConnectionClosed, RingdoveError, WaitTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds after which what should have happened has not.
PATIENCE_S = 90

#: Seconds between two messages of a sender: the two cores are for the cluster.
PACE_S = 0.005

#: Keys of one sender by key, and messages that one life of a named producer sends.
KEYS, LIFE = 4, 20


def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition that must come true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"in vain: {what}"
        time.sleep(0.02)


class Load:
    """The threads of a trial, and their history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.began_s = time.monotonic()
        self._enough = threading.Event()
        self._drained = threading.Event()
        self._senders: list[threading.Thread] = []
        self._receivers: list[threading.Thread] = []
        self._names = itertools.count()

    def now_s(self) -> float:
        """Seconds since the trial began."""
        return time.monotonic() - self.began_s

    # -- the threads ----------------------------------------------------------------------------

    def send_loosely(self, url: str, queue: str) -> None:
        """Send one message after the other; what fails is not tried again."""
        self._senders.append(self._live(url, queue, "loose", self._send_loosely))

    def send_by_key(self, url: str, queue: str) -> None:
        """Send messages of a few keys by their ids, each until it is acknowledged."""
        self._senders.append(self._live(url, queue, "keyed", self._send_by_key))

    def send_once(self, url: str, queue: str) -> None:
        """Send with a named producer, which starts over after every error."""
        self._senders.append(self._live(url, queue, "once", self._send_once))

    def receive(self, url: str, queue: str) -> None:
        """Receive batches and acknowledge them."""
        self._receivers.append(self._live(url, queue, "receiver", self._receive))

    def stop_sending(self) -> None:
        """Let senders finish what they have begun."""
        self._enough.set()
        _join(self._senders)

    def stop(self) -> None:
        """Let everybody end."""
        self._drained.set()
        self.stop_sending()
        _join(self._receivers)

    def _live(
        self, url: str, queue: str, kind: str, work: Callable[[ringdove.Queue, str], None]
    ) -> threading.Thread:
        name = f"{kind}{next(self._names)}"
        options = {"silence_s": 2} if url.startswith("ringdove:") else {}

        def live() -> None:
            try:
                with ringdove.connect(url, **options) as connection:
                    work(connection.queue(queue), name)
            except BaseException:
                self.history.troubles.append(f"{name} died: {traceback.format_exc()}")

        thread = threading.Thread(target=live, name=name, daemon=True)
        thread.start()
        return thread

    # -- sending --------------------------------------------------------------------------------

    def _begin(self, queue: ringdove.Queue, name: str, number: int, key: str = "") -> Send:
        send = Send(queue.name, name, f"{name}:{number}", self.now_s(), key)
        self.history.sends.append(send)
        return send

    def _end(self, send: Send, sent: Any) -> None:
        send.place = (sent.stripe.number, sent.offset) if sent.offset >= 0 else None
        send.ended_s = self.now_s()
        send.outcome = "ok"

    def _fail(self, send: Send, error: RingdoveError) -> None:
        send.ended_s = self.now_s()
        send.errors.append((send.ended_s, repr(error)))
        open_ended = isinstance(error, ConnectionClosed | WaitTimeout)
        refused = isinstance(error, ClientError) and not open_ended
        # What one attempt has left open, a later refusal does not settle.
        send.outcome = "failed" if refused and len(send.errors) == 1 else "unknown"

    def _send_loosely(self, queue: ringdove.Queue, name: str) -> None:
        for number in itertools.count():
            if self._enough.wait(PACE_S):
                return
            send = self._begin(queue, name, number)
            try:
                self._end(send, queue.send(send.body))
            except RingdoveError as error:
                self._fail(send, error)

    def _send_by_key(self, queue: ringdove.Queue, name: str) -> None:
        for number in itertools.count():
            if self._enough.wait(PACE_S):
                return
            send = self._begin(queue, name, number, f"{name}.{number % KEYS}")
            while send.outcome != "ok":
                try:
                    self._end(send, queue.send(send.body, key=send.key, id=send.body))
                except RingdoveError as error:
                    self._fail(send, error)
                    time.sleep(0.05)

    def _send_once(self, queue: ringdove.Queue, name: str) -> None:
        for first in itertools.count(0, LIFE):
            if self._enough.wait(PACE_S):
                return
            life = [self._begin(queue, name, number) for number in range(first, first + LIFE)]
            while life[-1].outcome != "ok":
                try:
                    with queue.producer(
                        name=name, sequence=first, block_messages=LIFE // 4, linger_ms=1
                    ) as producer:
                        tickets = [producer.send(send.body) for send in life]
                        producer.flush()
                except RingdoveError as error:
                    for send in life:
                        self._fail(send, error)
                    time.sleep(0.05)
                    continue
                for at, send in enumerate(life):
                    self._end(send, tickets[at].result()[at % (LIFE // 4)])

    # -- receiving ------------------------------------------------------------------------------

    def _receive(self, queue: ringdove.Queue, name: str) -> None:
        while not self._drained.is_set():
            try:
                self.take(queue, name, wait_s=0.2)
            except (
                RingdoveError
            ):  # Leases need not survive a failover; what is not done comes back.
                time.sleep(0.05)

    def take(self, queue: ringdove.Queue, name: str, wait_s: float) -> None:
        """Receive what there is, once, and acknowledge it."""
        asked_s = self.now_s()
        batch = queue.receive(max=100, wait=wait_s)
        came_s = self.now_s()
        mine = [
            Delivery(
                queue.name, name, message.body.decode(),
                (message.id.stripe.number, message.id.offset), asked_s, came_s,
            )
            for message in batch
        ]  # fmt: skip
        self.history.deliveries += mine
        batch.ack()
        done_s = self.now_s()
        for delivery in mine:
            delivery.done_s = done_s


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{thread.name} does not end"
