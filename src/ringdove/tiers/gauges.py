"""Figures of a manager, and of a broker with a standby, for /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ringdove.tiers.alarms import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from ringdove.tiers.manager import Manager
    from ringdove.tiers.primary import Primary


class TierCollector(Collector):
    """What a manager has counted, and what it saw when it last looked for alarms."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        alarms, webhook = self._manager.alarms, self._manager.webhook
        present = GaugeMetricFamily("ringdove_alarms", "Alarms that are raised.", labels=["kind"])
        raised = CounterMetricFamily(
            "ringdove_alarms_raised", "Alarms that this manager raised.", labels=["kind"]
        )
        for kind in KINDS:
            present.add_metric([kind], alarms.present[kind])
            raised.add_metric([kind], alarms.raised[kind])
        yield from (present, raised)
        yield GaugeMetricFamily(
            "ringdove_tier_brokers", "Brokers that report.", value=alarms.brokers
        )
        if webhook is not None:
            yield CounterMetricFamily(
                "ringdove_webhook_posted", "Alarms posted.", value=webhook.posted
            )
            yield CounterMetricFamily(
                "ringdove_webhook_given_up", "Alarms not posted.", value=webhook.given_up
            )


class StandbyCollector(Collector):
    """Whether somebody could take over."""

    def __init__(self, primary: Primary) -> None:
        self._primary = primary

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        yield GaugeMetricFamily(
            "ringdove_standby_in_sync",
            "1 while a standby has everything and could take over.",
            value=self._primary.in_sync,
        )
