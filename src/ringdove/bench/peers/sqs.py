"""SQS through boto3: Ringdove's dialect, and what all servers of SQS share here."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from ringdove.bench.peers.peer import HOST, Peer, Server, library
from ringdove.bench.peers.ways import Driven
from ringdove.bench.processes import serving
from ringdove.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ringdove.bench.peers.ways import Way

_BATCH = 10
_WAIT_S = 2


class Boto3(Driven):
    """boto3 with batches of ten, SQS's largest."""

    trial = 100
    workloads = frozenset({"100-bytes", "1-kb", "latency"})

    def __init__(self) -> None:
        super().__init__("boto3", "sqs", "batches of 10 to send, receive and delete", Library)


class SqsPeer(Peer):
    """A server of SQS; its address is a URL."""

    family = "sqs"
    packages = ("boto3==1.40.61",)

    @property
    def ways(self) -> Sequence[Way]:
        """See Peer."""
        return (Boto3(),)

    def create(self, server: Server, queue: str, synced: bool) -> None:  # noqa: ARG002  by server
        """See Peer."""
        boto3_client(server.address).create_queue(QueueName=queue)

    def drop(self, server: Server, queue: str) -> None:
        """See Peer."""
        client = boto3_client(server.address)
        client.delete_queue(QueueUrl=client.get_queue_url(QueueName=queue)["QueueUrl"])


class RingdoveSqs(SqsPeer):
    """`ringdove serve --http`."""

    name, title = "ringdove-sqs", "Ringdove SQS"
    synced = "synced before the answer"
    unsynced = "synced before the answer all the same: an SQS queue has no other durability"

    def obtain(self) -> None:
        """See Peer."""

    def version(self) -> str:
        """See Peer."""
        return __version__

    @contextlib.contextmanager
    def running(self, directory: Path, synced: bool) -> Iterator[Server]:  # noqa: ARG002  always
        """See Peer."""
        with serving(directory, http=True) as server:
            yield Server(f"http://{HOST}:{server.http_port}", server.pid)


@functools.cache
def boto3_client(address: str) -> Any:
    """A client of a server that knows no accounts; dear to make, so kept."""
    return library("boto3").client(
        "sqs", endpoint_url=address, region_name="us-east-1",
        aws_access_key_id="bench", aws_secret_access_key="bench",  # noqa: S106  nobody's
    )  # fmt: skip


class Library:
    """The Python client as its users know it."""

    def __init__(self, address: str, queue: str) -> None:
        self._sqs = boto3_client(address)
        self._url = self._sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        self._last: list[dict[str, str]] = []

    def send(self, bodies: list[bytes]) -> None:
        """See Client. SQS carries text."""
        for first in range(0, len(bodies), _BATCH):
            self._sqs.send_message_batch(
                QueueUrl=self._url,
                Entries=[
                    {"Id": str(at), "MessageBody": body.hex()}
                    for at, body in enumerate(bodies[first : first + _BATCH])
                ],
            )

    def receive(self) -> list[bytes]:
        """See Client."""
        self._delete()
        told = self._sqs.receive_message(
            QueueUrl=self._url, MaxNumberOfMessages=_BATCH, WaitTimeSeconds=_WAIT_S
        )
        found = told.get("Messages", [])
        self._last = [
            {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]}
            for at, message in enumerate(found)
        ]
        return [bytes.fromhex(message["Body"]) for message in found]

    def close(self) -> None:
        """See Client."""
        self._delete()

    def _delete(self) -> None:
        if self._last:
            self._sqs.delete_message_batch(QueueUrl=self._url, Entries=self._last)
            self._last = []
