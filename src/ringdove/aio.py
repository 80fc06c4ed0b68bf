"""The asynchronous face of Ringdove: `ringdove.aio.connect(...)`."""

from ringdove.client.aio import Batch, Connection, Message, Producer, Queue, Stream, connect
from ringdove.client.consuming import Consumer

__all__ = ["Batch", "Connection", "Consumer", "Message", "Producer", "Queue", "Stream", "connect"]
