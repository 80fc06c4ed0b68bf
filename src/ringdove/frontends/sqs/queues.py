"""SQS actions on queues: create, find, describe, change, tag, share, purge, delete."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

from ringdove.controllers.accounts import DEFAULT_ACCOUNT, full_name, owner_of
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import QueueExists, QueueNotFound
from ringdove.frontends.sqs.view import MODIFIED, PURGED, SALT
from ringdove.protocol.sqs import attributes as queue_attributes
from ringdove.protocol.sqs import policy
from ringdove.protocol.sqs.errors import SqsError, invalid, invalid_value, missing, no_queue
from ringdove.protocol.sqs.shapes import need, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.frontends.sqs.view import Caller, QueueView
    from ringdove.protocol.sqs import shapes

TAGS_MAX = 50
_PAGE_MAX = 1_000
_PURGE_MS = 60_000
_TOKEN = re.compile(r"[0-9]{1,9}")


class Queues:
    """See the module."""

    def __init__(self, broker: Broker, *, strict: bool = False) -> None:
        self._broker = broker
        #: Keep to the API's waiting times after a purge.
        self._strict = strict

    def _now_ms(self) -> int:
        return self._broker.store.clock.now_ms()

    # -- creating and finding -------------------------------------------------------------------

    async def create(self, caller: Caller, ask: shapes.CreateQueue) -> dict[str, Any]:
        """See CreateQueue of the API."""
        name = queue_attributes.check_name(need(ask.queue_name, "QueueName"))
        given = texts(ask.attributes)
        fifo = name.endswith(".fifo")
        wants_fifo = given.get("FifoQueue", "false").lower() == "true"
        if fifo != wants_fifo and (fifo or wants_fifo):
            raise invalid(_FIFO_NAME if wants_fifo else _FIFO_FLAG)
        checked = queue_attributes.check(given, {}, fifo=fifo, creating=True)
        _check_tags(name, ask.tags or {}, {})
        full = full_name(caller.account, name)
        existing = await self._maybe(full)
        if existing is not None:
            return self._same_or_refuse(caller, existing, checked)
        settings = await self._settings(caller, full, checked, fifo=fifo)
        if fifo:
            settings |= queue_attributes.fifo_settings()
        settings["notes"] = {
            name: text
            for name, text in queue_attributes.notes_of(checked).items()
            if text is not None
        } | {queue_attributes.TAG + key: value for key, value in (ask.tags or {}).items()}
        try:
            await self._broker.create_queue(full, settings)
        except QueueExists:
            return self._same_or_refuse(caller, await self._broker.get_queue(full), checked)
        return {"QueueUrl": caller.url(full)}

    def _same_or_refuse(
        self, caller: Caller, existing: QueueInfo, checked: dict[str, str]
    ) -> dict[str, Any]:
        known = queue_attributes.described(existing.settings)
        for name, value in checked.items():
            if known.get(name, "") != value:
                raise SqsError(
                    "QueueNameExists",
                    "A queue already exists with the same name and a different value for "
                    f"attribute {name}",
                )
        return {"QueueUrl": caller.url(existing.name)}

    async def _maybe(self, full: str) -> QueueInfo | None:
        try:
            return await self._broker.get_queue(full)
        except QueueNotFound:
            return None

    async def _settings(
        self, caller: Caller, full: str, checked: dict[str, str], *, fifo: bool
    ) -> dict[str, Any]:
        """The settings that attributes ask for, their redrive policy included."""
        settings = queue_attributes.settings_of(checked)
        queue_attributes.parse_redrive_allow(checked.get("RedriveAllowPolicy", ""))
        if "RedrivePolicy" in checked:
            text = checked["RedrivePolicy"]
            redrive = queue_attributes.parse_redrive(text)
            settings |= {"dead_letter": None, "receives_max": None}
            if redrive is not None:
                target = await self._dead_letter_queue(caller, full, text, redrive, fifo=fifo)
                settings |= {"dead_letter": target, "receives_max": redrive.receives_max}
        return settings

    async def _dead_letter_queue(
        self, caller: Caller, full: str, text: str, redrive: queue_attributes.Redrive, *, fifo: bool
    ) -> str:
        target = full_name(redrive.account, redrive.queue)
        info = await self._maybe(target)
        if info is None or (caller.own is not None and redrive.account != owner_of(full)[0]):
            raise invalid_value(text, "RedrivePolicy", "Dead letter target does not exist.")
        if (info.settings.order != "loose") != fifo:
            raise invalid_value(
                text,
                "RedrivePolicy",
                "Dead-letter queue must be same type of queue as the source..",
            )
        note = info.settings.notes.get(queue_attributes.NOTE + "RedriveAllowPolicy", "")
        if not queue_attributes.parse_redrive_allow(note).allows(caller.arn(full)):
            raise invalid_value(
                text,
                "RedrivePolicy",
                "Redrive permission in RedriveAllowPolicy of dead-letter queue denies the source.",
            )
        return target

    async def url(self, caller: Caller, ask: shapes.GetQueueUrl) -> dict[str, Any]:
        """See GetQueueUrl of the API."""
        name = need(ask.queue_name, "QueueName")
        owner = ask.queue_owner_aws_account_id or caller.account
        full = full_name(owner, queue_attributes.check_name(name))
        info = await self._maybe(full)
        if info is None or not may_see(caller, info, "GetQueueUrl"):
            raise no_queue()
        return {"QueueUrl": caller.url(full)}

    async def find(self, caller: Caller, ask: shapes.ListQueues) -> dict[str, Any]:
        """See ListQueues of the API."""
        infos = await self._of(caller.account, ask.queue_name_prefix or "")
        urls = [caller.url(info.name) for info in infos]
        return _page("QueueUrls", urls, ask.max_results, ask.next_token)

    async def _of(self, account: str, prefix: str = "") -> list[QueueInfo]:
        start = prefix if account == DEFAULT_ACCOUNT else f"{account}.{prefix}"
        found = await self._broker.list_queues(start)
        return [info for info in found if owner_of(info.name)[0] == account]

    async def sources(
        self, caller: Caller, queue: QueueView, ask: shapes.ListSources
    ) -> dict[str, Any]:
        """See ListDeadLetterSourceQueues of the API."""
        infos = await self._of(owner_of(queue.name)[0])
        urls = [caller.url(info.name) for info in infos if info.settings.dead_letter == queue.name]
        return {"queueUrls": [], **_page("queueUrls", urls, ask.max_results, ask.next_token)}

    # -- attributes -----------------------------------------------------------------------------

    async def attributes(
        self, caller: Caller, queue: QueueView, ask: shapes.GetAttributes
    ) -> dict[str, Any]:
        """See GetQueueAttributes of the API."""
        names = ask.attribute_names or []
        for name in names:
            if name not in queue_attributes.READABLE and name != "All":
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        known = dict(queue.attributes)
        info = queue.info
        known["QueueArn"] = caller.arn(queue.name)
        known["CreatedTimestamp"] = str(info.created_ms // 1000)
        known["LastModifiedTimestamp"] = info.settings.notes.get(
            MODIFIED, known["CreatedTimestamp"]
        )
        if "RedrivePolicy" not in known and info.settings.dead_letter:
            arn = caller.arn(info.settings.dead_letter)
            count = info.settings.receives_max
            known["RedrivePolicy"] = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":{count}}}'
        if "All" in names or any(name.startswith("Approximate") for name in names):
            stats = await self._broker.queue_stats(queue.name)
            counts = stats.subscriptions.get(DEFAULT_SUBSCRIPTION, (0, 0, 0))
            for name, count in zip(_COUNTERS, counts, strict=True):
                known[name] = str(count)
        chosen = known if "All" in names else {n: known[n] for n in names if n in known}
        return {"Attributes": chosen} if chosen else {}

    async def change(self, caller: Caller, queue: QueueView, ask: shapes.SetAttributes) -> None:
        """See SetQueueAttributes of the API."""
        given: dict[str, str] = need(texts(ask.attributes) or None, "Attribute.Name")
        checked = queue_attributes.check(given, queue.attributes, fifo=queue.fifo, creating=False)
        settings = await self._settings(caller, queue.name, checked, fifo=queue.fifo)
        await self._annotate(queue, queue_attributes.notes_of(checked), settings)

    async def _annotate(
        self,
        queue: QueueView,
        notes: dict[str, str | None],
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Change settings and notes together; a note of None goes."""
        notes = {**notes, MODIFIED: str(self._now_ms() // 1000)}
        await self._broker.change_queue(queue.name, settings or {}, notes)

    async def _change_policy(self, queue: QueueView, change: Callable[[str], str]) -> None:
        """Make another policy of the present one, whoever else does so meanwhile."""
        note = queue_attributes.NOTE + "Policy"
        modified = str(self._now_ms() // 1000)

        def changed(notes: Mapping[str, str]) -> dict[str, str | None]:
            return {note: change(notes.get(note, "")) or None, MODIFIED: modified}

        await self._broker.change_queue(queue.name, {}, changed)

    # -- tags and permissions -------------------------------------------------------------------

    async def tag(self, queue: QueueView, ask: shapes.TagQueue) -> None:
        """See TagQueue of the API."""
        tags: dict[str, str] = ask.tags or {}
        if not tags:
            raise missing("Tags")
        _check_tags(owner_of(queue.name)[1], tags, _tags(queue))
        await self._annotate(
            queue, {queue_attributes.TAG + key: value for key, value in tags.items()}
        )

    async def untag(self, queue: QueueView, ask: shapes.UntagQueue) -> None:
        """See UntagQueue of the API."""
        keys: list[str] = ask.tag_keys or []
        if not keys:
            raise invalid("Tag keys must be between 1 and 128 characters in length.")
        await self._annotate(queue, {queue_attributes.TAG + key: None for key in keys})

    async def tags(self, queue: QueueView) -> dict[str, Any]:
        """See ListQueueTags of the API."""
        tags = _tags(queue)
        return {"Tags": tags} if tags else {}

    async def permit(self, caller: Caller, queue: QueueView, ask: shapes.AddPermission) -> None:
        """See AddPermission of the API."""
        label = _label(ask.label)
        arn = caller.arn(queue.name)
        given = ask.aws_account_ids or [], ask.actions or []
        await self._change_policy(queue, lambda document: policy.add(document, arn, label, *given))

    async def forbid(self, queue: QueueView, ask: shapes.RemovePermission) -> None:
        """See RemovePermission of the API."""
        label = _label(ask.label)
        await self._change_policy(queue, lambda document: policy.remove(document, label))

    # -- emptying and deleting ------------------------------------------------------------------

    async def purge(self, queue: QueueView) -> None:
        """See PurgeQueue of the API."""
        now_ms = self._now_ms()
        purged_ms = int(queue.info.settings.notes.get(PURGED, 0))
        if self._strict and now_ms - purged_ms < _PURGE_MS:
            raise SqsError(
                "PurgeQueueInProgress",
                f"Only one PurgeQueue operation on {owner_of(queue.name)[1]} is allowed every "
                "60 seconds.",
            )
        await self._broker.purge_queue(queue.name)
        notes: dict[str, str | None] = {}
        if self._strict:
            notes[PURGED] = str(now_ms)
        if queue.fifo:
            notes[SALT] = secrets.token_hex(8)  # What was sent before counts for nothing now.
        if notes:
            await self._annotate(queue, notes)

    async def delete(self, queue: QueueView) -> None:
        """See DeleteQueue of the API."""
        await self._broker.delete_queue(queue.name)


def may_see(caller: Caller, info: QueueInfo, action: str) -> bool:
    """Whether the queue's own policy lets a stranger do this; its owner always may."""
    if caller.own is None or owner_of(info.name)[0] == caller.account:
        return True
    document = info.settings.notes.get(queue_attributes.NOTE + "Policy", "")
    return bool(document) and policy.allows(document, caller.arn(info.name), caller.account, action)


def _tags(queue: QueueView) -> dict[str, str]:
    return {
        name.removeprefix(queue_attributes.TAG): text
        for name, text in queue.info.settings.notes.items()
        if name.startswith(queue_attributes.TAG)
    }


def _check_tags(name: str, tags: dict[str, str], known: dict[str, str]) -> None:
    for key, value in tags.items():
        if not 1 <= len(key) <= 128:
            raise invalid("Tag keys must be between 1 and 128 characters in length.")
        if len(value) > 256:
            raise invalid("Tag values must be between 0 and 256 characters in length.")
        if key.lower().startswith("aws:"):
            raise invalid("Tag keys can't start with 'aws:'.")
    if len(known | tags) > TAGS_MAX:
        raise invalid(f"Too many tags added for queue {name}.")


def _label(label: str | None) -> str:
    if not label:
        raise missing("Label")
    stem = label.replace("-", "").replace("_", "")
    if len(label) > 80 or not stem.isascii() or not (stem.isalnum() or not stem):
        raise invalid_value(
            label,
            "Label",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )
    return label


def _page(
    member: str, urls: list[str], max_results: int | None, token: str | None
) -> dict[str, Any]:
    """One page of URLs; the token is the number of those before it."""
    max_results = max_results or None
    if max_results is not None and not 1 <= max_results <= _PAGE_MAX:
        raise invalid(
            "Value for parameter MaxResults is invalid. "
            f"Reason: MaxResults must be an integer between 1 and {_PAGE_MAX}."
        )
    if token is not None and not _TOKEN.fullmatch(token):
        raise invalid("Invalid or expired next token.")
    start = int(token or 0)
    stop = start + (max_results or _PAGE_MAX)
    reply: dict[str, Any] = {member: urls[start:stop]} if urls[start:stop] else {}
    if max_results is not None and stop < len(urls):
        reply["NextToken"] = str(stop)
    return reply


_COUNTERS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)

_FIFO_FLAG = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
_FIFO_NAME = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
    "must end with .fifo suffix and be 1 to 80 in length"
)
