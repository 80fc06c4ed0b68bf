"""Senders and receivers who remember what they were promised, whatever happens to the servers."""

import itertools
import threading
import time
from collections import Counter

import ringdove
from ringdove import errors
from server.running import wait_for

LEASE_MS = 2_000


class Load:
    """Senders and receivers of one exactly-once queue, and what they were promised."""

    def __init__(self, url, senders=3, receivers=2):
        self.url = url
        self.acknowledged = []
        self.received = set()
        self.done = set()
        #: Messages that came again after they were done.
        self.again = []
        #: Sends that failed, so that nobody knows; and what ended a sender or receiver.
        self.errors = []
        self.failures = []
        self.took_s = 0.0
        self._ended = threading.Event()
        with ringdove.connect(url) as rd:
            queue = rd.create_queue("load", delivery="exactly-once", lease_ms=LEASE_MS)
            queue.subscribe("audit", keep_default=True)
        works = [(self._send, n) for n in range(senders)] + [(self._receive, 0)] * receivers
        self._threads = [
            threading.Thread(target=self._run, args=work, daemon=True) for work in works
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work, number):
        try:
            with ringdove.connect(self.url) as rd:
                work(rd.queue("load"), number)
        except Exception as error:
            self.failures.append(error)

    def _send(self, queue, number):
        for count in itertools.count():
            if self._ended.is_set():
                return
            body = b"%d-%d" % (number, count)
            began_s = time.monotonic()
            try:
                queue.send(body)
            except errors.RingdoveError as error:
                self.errors.append(error)
                continue
            self.took_s = max(self.took_s, time.monotonic() - began_s)
            self.acknowledged.append(body)

    def _receive(self, queue, _):
        while not self._ended.is_set():
            try:
                batch = queue.receive(max=20, wait=0.2)
                self.again += [body for body in batch.bodies() if body in self.done]
                self.received.update(batch.bodies())
                if batch:
                    batch.ack()
                    self.done.update(batch.bodies())
            except errors.RingdoveError as error:
                if not isinstance(error, errors.ReceiptStale):
                    self.errors.append(error)

    def wait(self, condition, what):
        """Wait for something, unless somebody has failed."""
        wait_for(lambda: self.failures or condition(), what)
        assert self.failures == []

    def end(self):
        """Stop everybody; what is in the queue, read from its beginning."""
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        found = Counter()
        with ringdove.connect(self.url) as rd:
            queue = rd.queue("load")
            while batch := queue.receive(max=1_000, wait=0.2, subscription="audit"):
                found.update(batch.bodies())
                batch.ack()
            # What a receiver could not acknowledge comes when its lease has ended.
            while batch := queue.receive(max=1_000, wait=2 * LEASE_MS / 1000):
                self.again += [body for body in batch.bodies() if body in self.done]
                self.received.update(batch.bodies())
                batch.ack()
        return found

    def check(self, found):
        """What was promised, against what there is."""
        assert self.failures == []
        assert self.again == [], "what was done came again"
        assert set(self.acknowledged) <= set(found), "an acknowledged message is lost"
        assert set(found.values()) == {1}, "a message is stored twice"
        assert set(found) == self.received, "a message was never received"
