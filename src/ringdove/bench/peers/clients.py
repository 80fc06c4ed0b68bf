"""What runs in the processes of senders and receivers, whichever broker they speak with.

A body begins with its sender's number and its own, so that loss, duplicates and order are known of
every message; they are checked after the clock has stopped.
"""

from __future__ import annotations

import importlib
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ringdove.bench.e2e import HEAD, check
from ringdove.bench.peers.peer import Pipelined, send_pipelined, use_clients
from ringdove.bench.processes import wait_for_go

if TYPE_CHECKING:
    from ringdove.bench.peers.peer import Client

#: A receiver gives up when nothing came for so long; what is missing then is lost.
LOST_S = 20
#: The first messages find connections and caches cold, and are not timed.
WARM_UP = 20

_TIME = struct.Struct(">d")


def produce(
    path: str, client: str, address: str, queue: str, each: int, size: int, producers: int
) -> dict[str, float]:
    """Send `each` messages over each of `producers` connections."""
    filler = bytes(size - HEAD.size)
    bodies = [[HEAD.pack(n, at) + filler for at in range(each)] for n in range(producers)]
    senders = [connect_client(path, client, address, queue) for _ in bodies]
    began_s = wait_for_go()
    cpu_s = time.process_time()
    _send_all(senders, bodies)
    ended_s = time.time()
    cpu_s = time.process_time() - cpu_s
    for sender in senders:
        sender.close()
    return {"began_s": began_s, "ended_s": ended_s, "cpu_s": cpu_s}


def _send_all(senders: list[Client], bodies: list[list[bytes]]) -> None:
    """Each connection its own: in one thread where none has to wait, in a thread each otherwise."""
    pipelined = [sender for sender in senders if isinstance(sender, Pipelined)]
    if pipelined:
        send_pipelined(pipelined, bodies)
    elif len(senders) == 1:
        senders[0].send(bodies[0])
    else:
        with ThreadPoolExecutor(len(senders)) as pool:
            for _ in pool.map(lambda sender, own: sender.send(own), senders, bodies):
                pass  # Raises what a thread raised.


def consume(path: str, client: str, address: str, queue: str, messages: int) -> dict[str, float]:
    """Receive so many messages, then check them."""
    receiver = connect_client(path, client, address, queue)
    batches: list[list[bytes]] = []
    left = messages
    wait_for_go()
    cpu_s = time.process_time()
    ended_s = time.time()
    while left > 0 and time.time() - ended_s < LOST_S:
        if bodies := receiver.receive():
            batches.append(bodies)
            left -= len(bodies)
            ended_s = time.time()
    cpu_s = time.process_time() - cpu_s
    receiver.close()
    return {"ended_s": ended_s, "cpu_s": cpu_s, **check(batches, messages)}


def ping(
    path: str, client: str, address: str, queue: str, count: int, size: int, gap_s: float
) -> int:
    """Send single messages that carry the time, with a gap between them."""
    sender = connect_client(path, client, address, queue)
    wait_for_go()
    for _ in range(count + WARM_UP):
        sender.send([_TIME.pack(time.time()).ljust(size, b".")])
        time.sleep(gap_s)
    sender.close()
    return count


def pong(path: str, client: str, address: str, queue: str, count: int) -> list[float]:
    """How many seconds after its sending each message was in hand."""
    receiver = connect_client(path, client, address, queue)
    wait_for_go()
    took_s: list[float] = []
    last_s = time.time()
    while len(took_s) < count + WARM_UP and time.time() - last_s < LOST_S:
        bodies = receiver.receive()
        now_s = time.time()
        took_s += [now_s - _TIME.unpack_from(body)[0] for body in bodies]
        last_s = now_s if bodies else last_s
    receiver.close()
    return took_s[WARM_UP:]


def connect_client(path: str, client: str, address: str, queue: str) -> Client:
    """A client of the class that `client` names, as module:class."""
    use_clients(path)
    module, _, name = client.partition(":")
    made: Any = getattr(importlib.import_module(module), name)
    found: Client = made(address, queue)
    return found
