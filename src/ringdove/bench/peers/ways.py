"""Ways to drive a broker: through a client class in processes of ours, or by its own load tool.

`flow` sends and receives at the same time; its time is from the first send to the last message in
the consumer's hands. `backlog` sends everything and then receives it.
"""

from __future__ import annotations

import abc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ringdove.bench.processes import Worker, tree_cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ringdove.bench.peers.peer import Client, Peer, Server

#: How clients are asked: with many messages in a request; message by message, while the client
#: joins them or has many on their way; message by message, each waited for; or by the API of SQS.
Style = Literal["batches", "joined", "single", "sqs"]

CLIENTS = "ringdove.bench.peers.clients"


class Load(NamedTuple):
    """What is sent: so many messages in all, from so many connections."""

    messages: int
    size: int
    producers: int = 1


class Flow(NamedTuple):
    """What became of a load."""

    messages: int
    seconds: float
    lost: int
    #: None where a tool does not tell.
    duplicates: int | None = None
    out_of_order: int | None = None
    server_cpu_s: float | None = None

    @property
    def per_s(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


class Way(abc.ABC):
    """One way to drive one broker."""

    #: Messages of the first trial, from which the size of a run is found.
    trial = 2_000
    #: Messages of a run where that is not to be tried out.
    fixed: int | None = None
    #: Workloads that it takes part in; None: all.
    workloads: frozenset[str] | None = None

    def __init__(self, client: str, style: Style, how: str) -> None:
        self.client = client
        self.style = style
        self.how = how
        if style == "single":
            self.trial = 500

    @abc.abstractmethod
    def flow(self, peer: Peer, server: Server, queue: str, load: Load) -> Flow:
        """Send and receive at once."""

    @abc.abstractmethod
    def backlog(self, peer: Peer, server: Server, queue: str, load: Load) -> tuple[Flow, Flow]:
        """Send everything, then receive it."""


class Driven(Way):
    """Through a class of ours that speaks with the broker, in a process for each side."""

    def __init__(self, client: str, style: Style, how: str, made_by: type[Client]) -> None:
        super().__init__(client, style, how)
        self.client_class = f"{made_by.__module__}:{made_by.__qualname__}"

    def sender(self, peer: Peer, server: Server, queue: str, load: Load) -> Worker:
        """The process of the senders."""
        each = load.messages // load.producers
        return self._worker("produce", peer, server, queue, each=each, size=load.size,
                            producers=load.producers)  # fmt: skip

    def receiver(self, peer: Peer, server: Server, queue: str, messages: int) -> Worker:
        """The process of the receiver."""
        return self._worker("consume", peer, server, queue, messages=messages)

    def flow(self, peer: Peer, server: Server, queue: str, load: Load) -> Flow:
        """See Way."""
        messages = load.messages // load.producers * load.producers
        cpu_s = tree_cpu_s(server.pid)
        with (
            ended(self.receiver(peer, server, queue, messages)) as receiver,
            ended(self.sender(peer, server, queue, load)) as sender,
        ):
            _go_together(receiver, sender)
            sent, received = sender.result(), receiver.result()
        elapsed_s = received["ended_s"] - sent["began_s"]
        return _flow(messages, elapsed_s, received, tree_cpu_s(server.pid) - cpu_s)

    def backlog(self, peer: Peer, server: Server, queue: str, load: Load) -> tuple[Flow, Flow]:
        """See Way."""
        with ended(self.sender(peer, server, queue, load)) as sender:
            _go_together(sender)
            sent = sender.result()
        with ended(self.receiver(peer, server, queue, load.messages)) as receiver:
            began_s = _go_together(receiver)
            received = receiver.result()
        filled = Flow(load.messages, sent["ended_s"] - sent["began_s"], 0)
        return filled, _flow(load.messages, received["ended_s"] - began_s, received)

    def latencies(
        self, peer: Peer, server: Server, queue: str, count: int, size: int, gap_s: float
    ) -> list[float]:
        """Seconds from a send to the receiver, one message at a time."""
        with (
            ended(self._worker("pong", peer, server, queue, count=count)) as receiver,
            ended(
                self._worker("ping", peer, server, queue, count=count, size=size, gap_s=gap_s)
            ) as sender,
        ):
            _go_together(receiver, sender)
            sender.result()
            found: list[float] = receiver.result()
        return found

    def _worker(
        self, function: str, peer: Peer, server: Server, queue: str, **arguments: Any
    ) -> Worker:
        return Worker(CLIENTS, function, path=peer.clients_path(), client=self.client_class,
                      address=server.address, queue=queue, **arguments)  # fmt: skip


@contextmanager
def ended(worker: Worker) -> Iterator[Worker]:
    """A process that has ended after the `with` in any case."""
    try:
        yield worker
    finally:
        worker.end()


def _go_together(*workers: Worker) -> float:
    """Let processes begin when all have what they need; answers the time."""
    for worker in workers:
        worker.ready()
    began_s = time.time()
    for worker in workers:
        worker.go()
    return began_s


def _flow(
    messages: int, seconds: float, received: dict[str, Any], server_cpu_s: float | None = None
) -> Flow:
    told = {name: int(received[name]) for name in ("lost", "duplicates", "out_of_order")}
    return Flow(messages, seconds, server_cpu_s=server_cpu_s, **told)
