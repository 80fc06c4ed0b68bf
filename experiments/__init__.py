"""The experiments of the source documents, repeated on this machine.

Each module is one experiment: `run` measures and answers a dictionary of figures, `plot` draws it.
A result is made of lists of rows and of single figures; its rows `beside` put what a document
reports next to what was found here.
"""

from __future__ import annotations

#: In the order of the documents. The module has the same name, with underscores.
NAMES = (
    "kvs", "store-and-forward", "slowdown", "rings",
    "dequeue-throughput", "dequeue-hits", "dequeue-batches", "sleep-time", "placement",
    "spread", "load", "faults",
    "delivery-time", "waiting", "utilisation", "service-time", "arrival-rate", "reality", "planned",
    "flushing", "tiers",
)  # fmt: skip
