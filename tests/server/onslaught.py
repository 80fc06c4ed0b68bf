"""Full load on a server that is killed again and again, through the public client.

Producers send to two queues, consumers receive and acknowledge, and one reader streams with a
position of its own. Whoever sends notes what was asked and what was answered, and when; the
checker (reckoning.py) holds that against the logs in the end. Everybody rests after a number of
blocks until the next kill, so that a long run stays small; the kills come before that.
"""

import itertools
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import ringdove
from ringdove import errors
from ringdove.client.delivery import MessageId
from ringdove.pending import Pending
from server.reckoning import Block, Delivery, Evidence, Kill, Row
from server.running import PATIENCE_S, ServerProcess, wait_for

LOOSE, ONCE = "loose", "once"
SUBSCRIPTION = "reader"

_DAY_MS = 24 * 3600 * 1000

#: Blocks that a producer sends between two kills, at most; and answered blocks after which the
#: server is killed.
BLOCKS_PER_LIFE = 60
PROGRESS = (0, 1, 10, 40, 100, 200)


class Onslaught:
    """The load, the kills, and what was seen."""

    def __init__(self, data: Path, rng: Random) -> None:
        self.seen = Evidence()
        self.refused = 0
        self.reopened = 0
        self.restart_s = 0.0
        self._rng = rng
        self._server = ServerProcess(data)
        self._life = threading.Condition()
        self._lives = 0
        self._answered = itertools.count()
        self._progress = 0
        self._no_more = threading.Event()
        self._drained = threading.Event()
        self._position: bytes | None = None
        self._ready = threading.Semaphore(0)

    def run(self, kills: int) -> None:
        """The whole of it."""
        with self._server, ringdove.connect(self._server.url) as rd:
            kept = {"keep_done_ms": _DAY_MS, "stripes": 2, "lease_ms": 1_000}
            rd.create_queue(LOOSE, **kept)
            rd.create_queue(ONCE, delivery="exactly-once", **kept)
            rd.queue(ONCE).subscribe(SUBSCRIPTION, "earliest", keep_default=True)
            producers, others = self._start()
            try:
                for _ in range(kills):
                    self._kill()
                    assert not self.seen.troubles, self.seen.troubles[0]
                self._stop(rd, producers, others)
                for name in (LOOSE, ONCE):
                    self.seen.logs[name] = [Row(m.id, m.body) for m in rd.queue(name).replay()]
            finally:
                self._no_more.set()
                self._drained.set()

    def _start(self) -> tuple[list[threading.Thread], list[threading.Thread]]:
        producers = [
            self._thread(self._join_sends, LOOSE, "loose joined"),
            self._thread(self._send_many, LOOSE, "loose many"),
            self._thread(self._join_sends, ONCE, "once joined"),
            self._thread(self._join_sends, ONCE, "once joined too"),
            self._thread(self._send_many, ONCE, "once many"),
            self._thread(self._send_singly, LOOSE, "loose single"),
        ]
        others = [
            self._thread(self._receive, LOOSE),
            self._thread(self._receive, LOOSE),
            self._thread(self._consume, ONCE),
            self._thread(self._receive, ONCE),
            self._thread(self._stream, ONCE),
        ]
        for _ in producers + others:
            assert self._ready.acquire(timeout=PATIENCE_S), self.seen.troubles
        return producers, others

    def _thread(self, work: Callable[..., None], queue: str, *args: str) -> threading.Thread:
        """A worker with a connection of its own; what goes wrong there is noted."""

        def live() -> None:
            try:
                with ringdove.connect(self._server.url) as rd:
                    self._ready.release()
                    work(rd.queue(queue), *args)
            except BaseException:
                self.seen.troubles.append(traceback.format_exc())

        thread = threading.Thread(target=live, name=f"{work.__name__} {queue}", daemon=True)
        thread.start()
        return thread

    # -- kills ----------------------------------------------------------------------------------

    def _kill(self) -> None:
        enough = self._progress + self._rng.choice(PROGRESS)
        wait_for(lambda: self._progress >= enough or self.seen.troubles, "sends are answered")
        time.sleep(self._rng.random() * 0.02)
        from_s = time.monotonic()
        self._server.kill()
        self.seen.kills.append(Kill(from_s, time.monotonic()))
        with self._life:
            self._lives += 1
            self._life.notify_all()
        self._server.start()
        self.restart_s = max(self.restart_s, time.monotonic() - from_s)

    def _stop(
        self,
        rd: ringdove.Connection,
        producers: list[threading.Thread],
        others: list[threading.Thread],
    ) -> None:
        """Let everybody finish: first those who send, then the others when all is received."""
        self._no_more.set()
        with self._life:
            self._life.notify_all()
        _join(producers)
        for name in (LOOSE, ONCE):
            empty = lambda: rd.queue(name).stats().subscriptions["default"] == (0, 0, 0)
            wait_for(lambda: empty() or self.seen.troubles, f"everything in {name} is received")
        tails = rd.queue(ONCE).stats().stripes.values()
        count = sum(stripe.tail for stripe in tails)
        wait_for(lambda: len(self.seen.applied) >= count or self.seen.troubles, "all is streamed")
        self._drained.set()
        _join(others)

    # -- sending --------------------------------------------------------------------------------

    def _rest(self, sent: int, life: int) -> tuple[int, int]:
        """Wait for the next life after enough blocks in this one; blocks and life from now on."""
        with self._life:
            while self._lives == life and sent >= BLOCKS_PER_LIFE and not self._no_more.is_set():
                self._life.wait()
            return (sent, life) if self._lives == life else (0, self._lives)

    def _begin(self, queue: Any, producer: str) -> Block:
        block = Block(queue.name, producer, time.monotonic())
        self.seen.blocks.append(block)
        return block

    def _finish(self, block: Block, sent: Any = None, error: BaseException | None = None) -> None:
        block.done_s = time.monotonic()
        block.error = error
        block.placed = [
            MessageId(one.stripe, one.offset) if one.offset >= 0 else None for one in sent or ()
        ]
        self._progress = next(self._answered)

    def _settled(self, block: Block, ticket: Pending[Any]) -> None:
        error = ticket.error()
        self._finish(block, None if error else ticket.result(), error)

    def _join_sends(self, queue: Any, name: str) -> None:
        """A producer that joins single messages into blocks."""
        blocks, life = 0, 0
        last = block = None
        with queue.producer(name=name, block_messages=25, linger_ms=2) as producer:
            for number in itertools.count():
                if self._no_more.is_set():
                    return
                now_s = time.monotonic()
                ticket = producer.send(body := b"%s %d" % (name.encode(), number))
                if ticket is not last:
                    block = Block(queue.name, name, now_s)
                    self.seen.blocks.append(block)
                    ticket.when_done(partial(self._settled, block, ticket))
                    last = ticket
                    blocks, life = self._rest(blocks + 1, life)
                block.bodies.append(body)

    def _send_many(self, queue: Any, name: str) -> None:
        """Blocks, one after the other."""
        rng = Random(name)
        blocks, life = 0, 0
        numbers = itertools.count()
        while not self._no_more.is_set():
            block = self._begin(queue, name)
            block.bodies = [
                b"%s %d" % (name.encode(), next(numbers)) for _ in range(rng.randrange(1, 120))
            ]
            self._finish(block, queue.send_many(block.bodies))
            blocks, life = self._rest(blocks + 1, life)

    def _send_singly(self, queue: Any, name: str) -> None:
        """Threads that share a connection send message by message."""

        def send(name: str) -> None:
            blocks, life = 0, 0
            for number in itertools.count():
                if self._no_more.is_set():
                    return
                block = self._begin(queue, name)
                block.bodies = [b"%s %d" % (name.encode(), number)]
                self._finish(block, [queue.send(block.bodies[0])])
                blocks, life = self._rest(blocks + 1, life)

        threads = [threading.Thread(target=send, args=(f"{name} {n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        self._no_more.wait()
        _join(threads)

    # -- receiving ------------------------------------------------------------------------------

    def _receive(self, queue: Any) -> None:
        """Leases and acknowledges batches."""
        mine: list[Delivery] = []
        done: list[tuple[float, MessageId]] = []
        while not self._drained.is_set():
            asked_s = time.monotonic()
            batch = queue.receive(max=150, wait=0.2)
            rows = [Row(message.id, message.body) for message in batch]
            mine += [Delivery(asked_s, row) for row in rows]
            try:
                batch.ack()
            except errors.ReceiptStale:  # Leases need not survive a crash.
                self.refused += 1
            else:
                done += [(time.monotonic(), row.id) for row in rows]
        self.seen.deliveries[queue.name] += mine
        self.seen.done[queue.name] += done

    def _consume(self, queue: Any) -> None:
        """The endless iterator, which acknowledges by itself."""
        mine: list[Delivery] = []
        while not self._drained.is_set():
            with queue.consumer(max=150, wait=0.2) as consumer:
                for message in consumer:
                    mine.append(Delivery(0, Row(message.id, message.body)))
        self.seen.deliveries[queue.name] += mine

    def _stream(self, queue: Any) -> None:
        """Applies batches and keeps its position, both at once; now and then it breaks off."""
        rng = Random(7)
        while not self._drained.is_set():
            stream = queue.stream(
                SUBSCRIPTION, position=self._position, owner="reader", wait=0.2, lease_ms=2_000
            )
            try:
                with stream:
                    self.seen.fences.append(stream.fence)
                    for batch in stream:
                        self.seen.applied += [Row(m.id, m.body) for m in batch]
                        self._position = stream.position
                        if rng.random() < 0.02:
                            break
            except errors.FenceStale:
                self.reopened += 1


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{thread.name} does not end"
