"""A queue and a caller as the SQS API sees them: URLs, ARNs, attributes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from ringdove.controllers.accounts import full_name, owner_of
from ringdove.protocol.sqs import attributes as queue_attributes
from ringdove.protocol.sqs.errors import no_queue
from ringdove.protocol.sqs.shapes import need

if TYPE_CHECKING:
    from ringdove.controllers.accounts import AccessKey, Account
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.core.settings import QueueSettings


class Caller(NamedTuple):
    """Who asks, and how the server is reached by him."""

    account: str
    region: str
    #: Scheme and authority of the server, as the caller wrote it.
    base: str
    #: Known when accounts are configured; anybody may do anything otherwise.
    own: Account | None = None
    key: AccessKey | None = None
    #: The queue named by the path of the request.
    path_queue: str = ""
    #: X-Ray's header, when the request had one.
    trace: str = ""
    #: Of the request: what a send adds at most.
    nbytes: int = 0

    def url(self, full: str) -> str:
        """The URL of a queue."""
        account, name = owner_of(full)
        return f"{self.base}/{account}/{name}"

    def arn(self, full: str) -> str:
        """The ARN of a queue."""
        account, name = owner_of(full)
        return f"arn:aws:sqs:{self.region}:{account}:{name}"


def find_queue(caller: Caller, url: str | None) -> str:
    """The full name of the queue that a QueueUrl, or the path of the request, names."""
    return _full_name(caller.account, need(url or caller.path_queue or None, "QueueUrl"))


@lru_cache(maxsize=4096)
def _full_name(account: str, text: str) -> str:
    try:
        path = unquote(urlsplit(text).path) if "//" in text else text
    except ValueError:  # "http://[" and its like.
        raise no_queue() from None
    parts = [part for part in path.split("/") if part]
    if not parts or len(parts[-1]) > 80:
        raise no_queue()
    if len(parts) > 1 and len(parts[-2]) == 12 and parts[-2].isdecimal():
        account = parts[-2]
    return full_name(account, parts[-1])


class QueueView:
    """What sends and receives need to know of a queue, worked out once per change of settings."""

    __slots__ = (
        "attributes", "by_content", "fifo", "id", "in_flight_left", "info", "max_bytes", "name",
        "per_group", "salt", "wait_s",
    )  # fmt: skip

    def __init__(self, info: QueueInfo) -> None:
        settings: QueueSettings = info.settings
        self.info = info
        self.name = info.name
        self.id = info.id
        self.attributes = queue_attributes.described(settings)
        self.fifo = settings.order != "loose"
        self.by_content = self.attributes.get("ContentBasedDeduplication") == "true"
        self.per_group = self.attributes.get("DeduplicationScope") == "messageGroup"
        self.max_bytes = settings.body_bytes_max
        self.wait_s = int(self.attributes.get("ReceiveMessageWaitTimeSeconds", 0))
        #: Set by a purge, so that what was sent before counts for nothing.
        self.salt = settings.notes.get(SALT, "").encode()
        #: Messages that may be handed out before those in flight must be counted.
        self.in_flight_left = 0


SALT = queue_attributes.NOTE + "salt"
MODIFIED = queue_attributes.NOTE + "modified"
PURGED = queue_attributes.NOTE + "purged"
