"""A prepared process that forks children which work on a store until they are killed.

Started once per test; reads one order per line on its standard input and answers with the process id
of the child it forked; to the next line, which says that the child was killed, it answers how the child
went. Forking saves the time that a new interpreter and its imports would take.
"""

import os
import sys
import threading
import traceback
from pathlib import Path
from random import Random

import msgspec

from faults.history import Diary, Opened, Sending, Stripe, Trouble
from faults.workload import PRODUCERS, QUEUES, Producer, Workload, create_queues
from ringdove.stores.embedded import EmbeddedStore

THREADS = 4


class Order(msgspec.Struct):
    """What a child is to do."""

    path: str
    diary: str
    life: int
    #: Next sequence number of each producer, and what it never got an answer for.
    sequences: dict[str, int]
    retries: list[Sending]


def producer_name(stripe: Stripe, number: int) -> str:
    """Producers keep their names over all lives."""
    return f"{stripe[0]}/{number}"


def producers_of(order: Order, thread: int) -> list[Producer]:
    """The producers that belong to a thread, as earlier lives left them."""
    found = []
    for stripe, settings in QUEUES.items():
        for number in range(PRODUCERS if settings.exactly_once else 0):
            if number == thread:
                producer = Producer(stripe, producer_name(stripe, number))
                producer.sequence = order.sequences.get(producer.name, 0)
                producer.retries = [s for s in order.retries if s.producer == producer.name]
                found.append(producer)
    return found


def work(workload: Workload, order: Order, thread: int) -> None:
    """Take steps until the end."""
    rng = Random(f"{order.life} {thread}")
    producers = producers_of(order, thread)
    owned = {producer.stripe for producer in producers}
    stripes = [s for s, settings in QUEUES.items() if not settings.exactly_once or s in owned]
    try:
        for producer in producers:
            if producer.retries:
                workload.send_in_sequence(rng, producer)
        while True:
            workload.step(rng, producers, stripes)
    except BaseException:
        workload.note(Trouble(traceback.format_exc()))
        os._exit(1)


def live(order: Order) -> None:
    """The life of a child: open, work with several threads, never return."""
    note = Diary(Path(order.diary))
    try:
        store = EmbeddedStore(order.path)
        create_queues(store)
    except BaseException:
        note(Trouble(traceback.format_exc()))
        os._exit(1)
    note(Opened())
    workload = Workload(store, note, order.life)
    for thread in range(1, THREADS):
        threading.Thread(target=work, args=(workload, order, thread)).start()
    work(workload, order, 0)


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
