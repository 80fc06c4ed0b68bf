"""Metrics in Prometheus's format, made from plain integers when somebody asks.

Nothing on the data path knows of this module: controllers and front ends count in attributes of
their own, and a scrape reads them.
"""

from __future__ import annotations

import contextlib
import time
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from ringdove.core.delays import BOUNDS_MS
from ringdove.errors import QueueNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import Metric

    from ringdove.controllers.broker import Broker, QueueStats
    from ringdove.frontends.http import HttpServer
    from ringdove.frontends.native import NativeServer

#: What a queue's tally counts: its metric's name, and what it is.
TALLIED = {
    "delivered": ("delivered", "Messages handed to receivers."),
    "again": ("redelivered", "Of these, handed out before."),
    "late": ("late", "Of these, behind a later one of their stripe, for the first time."),
    "repeated": ("repeated", "Sends recognised as repetitions and not stored again."),
}

#: Queues that one scrape looks at.
QUEUES_MAX = 1_000


async def render(
    broker: Broker, native: NativeServer, http: HttpServer, names: Sequence[str] | None = None
) -> bytes:
    """Everything there is to know, as text; of queues, those named or else all."""
    if names is None:
        names = [info.name for info in await broker.list_queues(max=QUEUES_MAX)]
    queues = []
    for name in names:
        with contextlib.suppress(QueueNotFound):  # Deleted meanwhile.
            queues.append(await broker.queue_stats(name))
    registry = CollectorRegistry()
    for collector in (_Collector(broker, native, http, queues), *http.collectors):
        registry.register(collector)
    return generate_latest(registry)


def counters(
    broker: Broker, native: NativeServer, http: HttpServer
) -> dict[str, tuple[str, float]]:
    """What only grows while a server runs, by name: what it is, and how many."""
    dequeuer, enqueuer = broker.dequeuer, broker.enqueuer
    return {
        "connections_accepted": ("Connections accepted.", native.accepted),
        "connections_refused": ("Connections refused or dropped.", native.refused),
        "requests": ("Requests begun.", native.requests),
        "received_bytes": ("Bytes received.", native.bytes_in),
        "sent_bytes": ("Bytes sent.", native.bytes_out),
        "http_requests": ("HTTP requests answered.", http.requests),
        "http_refused": ("Of these with an error, or dropped.", http.refused),
        "delivered_messages": ("Messages handed to receivers.", dequeuer.delivered),
        "dequeue_hits": ("Visits to stripes that found messages.", dequeuer.hits),
        "dequeue_misses": ("Visits to stripes that found none.", dequeuer.misses),
        "dequeue_looks": ("Rounds of reading counters.", dequeuer.looks),
        "written_messages": ("Messages written to clients and streams.", native.messages_out),
        "appended_messages": ("Messages given to the store.", enqueuer.messages),
        "appended_blocks": ("Blocks given to the store.", enqueuer.blocks),
        "joined_blocks": ("Of these, joined from several sends.", enqueuer.joined),
        "cpu_seconds": ("Processor time of the server.", time.process_time()),
    }


class _Collector:
    def __init__(
        self, broker: Broker, native: NativeServer, http: HttpServer, queues: list[QueueStats]
    ) -> None:
        self._broker = broker
        self._http = http
        self._native = native
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        native, dequeuer = self._native, self._broker.dequeuer
        told = counters(self._broker, native, self._http)
        for name, (text, value) in told.items():
            yield CounterMetricFamily(f"ringdove_{name}", text, value=value)
        yield GaugeMetricFamily(
            "ringdove_connections", "Connections open.", value=len(native.connections)
        )
        yield GaugeMetricFamily(
            "ringdove_receivers_parked", "Receivers that wait.", value=dequeuer.parked
        )
        yield self._delays()
        yield from self._collect_nodes()
        yield from self._collect_queues()

    def _delays(self) -> Metric:
        delays = self._broker.dequeuer.delays
        totals = accumulate(delays.counts)
        bounds = [*(f"{bound_ms / 1000:g}" for bound_ms in BOUNDS_MS), "+Inf"]
        return HistogramMetricFamily(
            "ringdove_delivery_delay_seconds",
            "From a message's arrival to its first delivery; of each run of messages, the first.",
            buckets=list(zip(bounds, totals, strict=True)),
            sum_value=delays.total_ms / 1000,
        )

    def _collect_nodes(self) -> Iterator[Metric]:
        latency = GaugeMetricFamily(
            "ringdove_node_latency_seconds",
            "Moving average of a fabric node's answers.",
            labels=["node", "controller"],
        )
        excluded = GaugeMetricFamily(
            "ringdove_node_excluded",
            "1 while a fabric node is left alone.",
            labels=["node", "controller"],
        )
        healths = {
            "enqueue": self._broker.enqueuer.health,
            "dequeue": self._broker.dequeuer.health,
        }
        for controller, health in healths.items():
            for node, seen in health.seen().items():
                latency.add_metric([str(node), controller], seen.latency_s)
                excluded.add_metric([str(node), controller], seen.excluded)
        yield from (latency, excluded)

    def _collect_queues(self) -> Iterator[Metric]:
        stored = GaugeMetricFamily("ringdove_queue_bytes", "Bytes stored.", labels=["queue"])
        tails = CounterMetricFamily(
            "ringdove_queue_sent_messages", "Messages ever sent.", labels=["queue"]
        )
        states = GaugeMetricFamily(
            "ringdove_queue_messages",
            "Messages by state.",
            labels=["queue", "subscription", "state"],
        )
        tallied = {
            what: CounterMetricFamily(f"ringdove_queue_{name}_messages", text, labels=["queue"])
            for what, (name, text) in TALLIED.items()
        }
        for queue in self._queues:
            stored.add_metric([queue.name], queue.nbytes)
            tails.add_metric([queue.name], sum(s.tail for s in queue.stripes.values()))
            for subscription, counts in queue.subscriptions.items():
                for state, count in zip(("waiting", "leased", "delayed"), counts, strict=True):
                    states.add_metric([queue.name, subscription, state], count)
            tally = self._broker.tallies.of(queue.id)
            for what, family in tallied.items():
                family.add_metric([queue.name], getattr(tally, what))
        yield from (stored, tails, states, *tallied.values())
