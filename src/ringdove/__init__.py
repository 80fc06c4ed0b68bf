"""Ringdove: a message queue between fleets of devices and the back ends that process their data.

    import ringdove

    with ringdove.connect("file:./data") as rd:
        queue = rd.create_queue("readings")
        queue.send(b"21.5")
        for message in queue.receive(max=100, wait=1):
            print(message.body)
            message.ack()

`ringdove.aio` has the same for asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ringdove.version import __version__

if TYPE_CHECKING:
    from ringdove import aio, errors
    from ringdove.client.outgoing import NewMessage
    from ringdove.client.sync import (
        Batch,
        Connection,
        Consumer,
        Message,
        Producer,
        Queue,
        Stream,
        connect,
    )
    from ringdove.controllers.broker import QueueStats
    from ringdove.controllers.sending import Sent, SentBatch
    from ringdove.core.settings import QueueSettings
    from ringdove.errors import RingdoveError
    from ringdove.stores.base import Start

__all__ = [
    "Batch",
    "Connection",
    "Consumer",
    "Message",
    "NewMessage",
    "Producer",
    "Queue",
    "QueueSettings",
    "QueueStats",
    "RingdoveError",
    "Sent",
    "SentBatch",
    "Start",
    "Stream",
    "__version__",
    "aio",
    "connect",
    "errors",
]

#: Where each public name lives; loaded at first use, so that `ringdove --help` need not wait.
_HOMES = {
    "NewMessage": "ringdove.client.outgoing",
    "QueueSettings": "ringdove.core.settings",
    "QueueStats": "ringdove.controllers.broker",
    "RingdoveError": "ringdove.errors",
    "Sent": "ringdove.controllers.sending",
    "SentBatch": "ringdove.controllers.sending",
    "Start": "ringdove.stores.base",
    "aio": "ringdove.aio",
    "errors": "ringdove.errors",
}


if not TYPE_CHECKING:  # A checker that saw it would believe every name.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'ringdove' has no attribute {name!r}")
        module = import_module(_HOMES.get(name, "ringdove.client.sync"))
        return module if name in ("aio", "errors") else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
