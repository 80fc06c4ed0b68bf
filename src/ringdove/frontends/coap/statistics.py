"""What /metrics tells of CoAP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from ringdove.frontends.coap.server import CoapServer


class CoapCollector(Collector):
    """The figures of a server."""

    def __init__(self, server: CoapServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        server = self._server
        counters = {
            "coap_requests": ("CoAP requests begun.", server.requests),
            "coap_repeated": ("Requests that came again and were not done again.", server.repeated),
            "coap_refused": ("Requests put off or dropped under overload.", server.refused),
            "coap_malformed": ("Datagrams that were no CoAP.", server.malformed),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"ringdove_{name}", text, value=value)
        gauges = {
            "coap_observers": ("Observations that go on.", server.observers),
            "coap_remembered": ("Requests that would be recognised again.", server.remembered),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"ringdove_{name}", text, value=value)
