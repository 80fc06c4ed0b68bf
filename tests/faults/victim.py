"""A prepared process that forks children which work on a store until they are killed.

Started once per test; reads one order per line on its standard input and answers with the process
id of the child it forked; to the next line, which says that the child was killed, it answers how
the child went. Forking saves the time that a new interpreter and its imports would take.
"""

import asyncio
import os
import sys
import threading
import traceback
from pathlib import Path
from random import Random

import msgspec

from faults.events import Diary, Opened, Sending, Stripe, Trouble
from faults.workload import PRODUCERS, QUEUES, Producer, Workload, create_queues
from ringdove import limits
from ringdove.pending import run
from ringdove.stores.embedded import EmbeddedStore

#: Threads, beside the one of the event loop.
THREADS = 3


class Order(msgspec.Struct):
    """What a child is to do."""

    path: str
    diary: str
    life: int
    #: Next sequence number of each producer, and what it never got an answer for.
    sequences: dict[str, int]
    retries: list[Sending]
    #: Stripes that the store keeps in memory; with few of them it drops and reads again.
    stripes_loaded_max: int


def producer_name(stripe: Stripe, number: int) -> str:
    """Producers keep their names over all lives."""
    return f"{stripe[0]}/{number}"


def producers_of(order: Order, worker: int) -> list[Producer]:
    """The producers that belong to a worker, as earlier lives left them."""
    found = []
    for stripe, settings in QUEUES.items():
        for number in range(PRODUCERS if settings.exactly_once else 0):
            if number == worker:
                producer = Producer(stripe, producer_name(stripe, number))
                producer.sequence = order.sequences.get(producer.name, 0)
                producer.retries = [s for s in order.retries if s.producer == producer.name]
                found.append(producer)
    return found


async def work(workload: Workload, order: Order, worker: int) -> None:
    """Take steps until the end."""
    rng = Random(f"{order.life} {worker}")
    producers = producers_of(order, worker)
    owned = {producer.stripe for producer in producers}
    received = [s for s, settings in QUEUES.items() if settings.exactly_once]
    # Exactly-once queues are sent to by some, but often, and received from by everybody.
    stripes = [s for s in QUEUES if s not in received] + 3 * [s for s in received if s in owned]
    try:
        for producer in producers:
            if producer.retries:
                await workload.send_in_sequence(rng, producer)
        while True:
            await workload.step(rng, producers, stripes)
            await workload.receive(rng, rng.choice(received), "default")
    except BaseException:
        workload.note(Trouble(traceback.format_exc()))
        os._exit(1)


async def work_together(workload: Workload, order: Order, workers: list[int]) -> None:
    """Several workers on one event loop."""
    await asyncio.gather(*(work(workload, order, worker) for worker in workers))


def live(order: Order) -> None:
    """The life of a child: open, work with threads and an event loop, never return."""
    limits.STRIPES_LOADED_MAX = order.stripes_loaded_max
    note = Diary(Path(order.diary))
    try:
        store = EmbeddedStore(order.path)
        create_queues(store)
    except BaseException:
        note(Trouble(traceback.format_exc()))
        os._exit(1)
    note(Opened())
    workload = Workload(store, note, order.life)
    for worker in range(THREADS):
        threading.Thread(target=run, args=(work(workload, order, worker),)).start()
    asyncio.run(work_together(workload, order, [THREADS, THREADS + 1, THREADS + 2]))


def main() -> None:
    """Serve requests until the input ends."""
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        pid = os.fork()
        if pid == 0:
            live(order)
        print(pid, flush=True)
        sys.stdin.buffer.readline()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
