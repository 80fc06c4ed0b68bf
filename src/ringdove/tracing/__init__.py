"""Traces: who sent and who received which message, when, and whether it was intact (S2, B5).

    from ringdove.tracing import Tracer

    with Tracer("readings", to=connection.create_queue("traces")) as trace:
        began_us = trace.now_us()
        trace.sent(queue.send_many(bodies), began_us)
        trace.received(queue.receive(max=100))

Traces go to a queue or to Parquet files; `ringdove trace report` makes figures of them.
"""

from __future__ import annotations

from ringdove.tracing.block import TraceBlock
from ringdove.tracing.tracer import Tracer

__all__ = ["TraceBlock", "Tracer"]
