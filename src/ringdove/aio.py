"""The asynchronous face of Ringdove: `ringdove.aio.connect(...)`."""

from ringdove.client.aio import (
    Batch,
    Connection,
    Consumer,
    Message,
    Producer,
    Queue,
    Stream,
    connect,
)

__all__ = ["Batch", "Connection", "Consumer", "Message", "Producer", "Queue", "Stream", "connect"]
