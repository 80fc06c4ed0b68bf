"""A small run to try tracing with: threads that send and receive through one queue, and trace it.

Bodies end with a checksum. Receivers may crash (B7), before or after they have handled what they
hold: it comes again when its lease has ended, late or twice.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from ringdove.errors import InvalidArgument, WaitTimeout
from ringdove.tracing.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ringdove.client.sync import Queue

#: Messages of one send, and of one receive at most.
_BATCH = 100
_PATIENCE_S = 0.5

#: Receivers give up when messages are missing and none has come for so long.
_QUIET_S = 60.0


class Plan(NamedTuple):
    """What to do."""

    messages: int = 200_000
    producers: int = 2
    receivers: int = 2
    #: Bytes of a body.
    size: int = 100
    #: Messages per second of all producers together; 0: as fast as they are taken.
    rate: int = 20_000
    #: Share of receives after which the receiver crashes.
    crash: float = 0.0


def _check(plan: Plan) -> None:
    """Refuse what would wait in vain, or record nothing."""
    least = {"messages": 1, "producers": 1, "receivers": 1, "size": 0, "rate": 0}
    for name, bound in least.items():
        if getattr(plan, name) < bound:
            raise InvalidArgument(f"{name} is {getattr(plan, name)}; it must be {bound} or more.")
    if not 0 <= plan.crash < 1:
        raise InvalidArgument(
            f"crash is {plan.crash}; it is the share of receives that fail: from 0 to below 1."
        )


class Recording:
    """One run; `to` is where the traces go."""

    def __init__(self, queue: Queue, to: Queue | Path | str, plan: Plan) -> None:
        _check(plan)
        self.queue = queue
        self.plan = plan
        self._to = to
        self._lock = threading.Lock()
        self._done = 0
        self._last_s = time.monotonic()
        self._failed = threading.Event()

    def run(self, on_progress: Callable[[int], None] | None = None) -> dict[str, float]:
        """Send, receive and trace everything; answers what was done in how long."""
        plan = self.plan
        began_s = time.monotonic()
        with ThreadPoolExecutor(plan.producers + plan.receivers) as pool:
            work = [pool.submit(self._guard, self._produce, n) for n in range(plan.producers)]
            work += [pool.submit(self._guard, self._receive, n) for n in range(plan.receivers)]
            while not all(job.done() for job in work):
                time.sleep(0.1)
                if on_progress is not None:
                    on_progress(self._done)
        for job in work:
            job.result()
        return {"messages": self._done, "seconds": round(time.monotonic() - began_s, 2)}

    def _guard(self, work: Callable[[int], None], number: int) -> None:
        """Have the others end when one has failed."""
        try:
            work(number)
        except BaseException:
            self._failed.set()
            raise

    def _produce(self, number: int) -> None:
        plan = self.plan
        share = plan.messages // plan.producers + (number < plan.messages % plan.producers)
        filler = random.Random(number).randbytes(max(0, plan.size - 12))
        began_s = time.monotonic()
        with Tracer(self.queue.name, self._to, name=f"producer-{number}") as trace:
            for first in range(0, share, _BATCH):
                if self._failed.is_set():
                    return
                if plan.rate:
                    due_s = began_s + first * plan.producers / plan.rate
                    time.sleep(max(0.0, due_s - time.monotonic()))
                last = min(share, first + _BATCH)
                bodies = [_sealed(number, own, filler) for own in range(first, last)]
                sent_us = trace.now_us()
                trace.sent(self.queue.send_many(bodies), sent_us)

    def _receive(self, number: int) -> None:
        draw = random.Random(number)
        with Tracer(self.queue.name, self._to, name=f"receiver-{number}") as trace:
            while self._done < self.plan.messages and not self._failed.is_set():
                batch = self.queue.receive(max=_BATCH, wait=_PATIENCE_S)
                if not batch:
                    self._check_quiet()
                    continue
                crashes = draw.random() < self.plan.crash
                if crashes and draw.random() < 0.5:
                    continue
                trace.received(batch, [intact(body) for body in batch.bodies()])
                if not crashes:
                    settled = batch.ack()
                    with self._lock:
                        self._done += settled
                        self._last_s = time.monotonic()

    def _check_quiet(self) -> None:
        if time.monotonic() - self._last_s > _QUIET_S:
            raise WaitTimeout(
                f"{self.plan.messages - self._done:,} messages have not come for {_QUIET_S:.0f} s."
            )


def _sealed(producer: int, number: int, filler: bytes) -> bytes:
    content = producer.to_bytes(4, "big") + number.to_bytes(4, "big") + filler
    return content + zlib.crc32(content).to_bytes(4, "big")


def intact(body: bytes) -> bool:
    """Whether a body of a recording is as it was sent."""
    return zlib.crc32(body[:-4]) == int.from_bytes(body[-4:], "big")
