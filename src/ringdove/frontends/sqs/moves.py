"""Message move tasks: dead letters sent back at a measured pace, remembered as records.

    record move/QUEUE/STARTED-ID     a task, from its start on

A task that was running when its server stopped goes on when the next one starts.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.controllers.accounts import full_name, owner_of
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import QueueNotFound, RingdoveError
from ringdove.pending import Pending
from ringdove.protocol.sqs.attributes import parse_arn
from ringdove.protocol.sqs.errors import SqsError, invalid
from ringdove.protocol.sqs.shapes import need

if TYPE_CHECKING:
    from ringdove.controllers.broker import Broker
    from ringdove.protocol.sqs import shapes

_log = logging.getLogger(__name__)

#: Messages moved per step, when no pace is asked for; and the fastest pace that may be.
_STEP = 500
_RATE_MAX = 500

#: Finished tasks of a queue that are remembered.
_KEPT = 10

#: Why a task has failed, in the API's words.
_NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


class MoveTask(msgspec.Struct):
    """One task."""

    id: str
    source: str
    target: str | None
    source_arn: str
    target_arn: str | None
    per_s: int | None
    started_ms: int
    to_move: int
    moved: int = 0
    status: str = "RUNNING"
    failure: str | None = None

    @property
    def key(self) -> str:
        """Of its record; later ones sort behind earlier ones."""
        return f"{_prefix(self.source)}{self.started_ms:015d}-{self.id}"

    @property
    def handle(self) -> str:
        """The API's name of the task."""
        text = msgspec.json.encode({"taskId": self.id, "sourceArn": self.source_arn})
        return base64.b64encode(text).decode()


class Moves:
    """Starts, runs, lists and cancels move tasks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._running: dict[str, tuple[MoveTask, asyncio.Task[None]]] = {}
        #: Queues for which a task is being noted.
        self._starting: set[str] = set()

    async def resume(self) -> None:
        """Go on with what was running."""
        after = ""
        while records := await self._broker.store.scan(_PREFIX, after):
            for record in records:
                task = _decode(record.value)
                if task.status == "RUNNING":
                    self._launch(task)
            after = records[-1].key

    async def close(self) -> None:
        """Stop; what was running goes on with the next start."""
        running = list(self._running.values())
        for _, worker in running:
            worker.cancel()
        for task, worker in running:
            with contextlib.suppress(asyncio.CancelledError):
                await worker
            if task.status == "RUNNING":
                try:
                    await self._save(task)
                except RingdoveError as error:  # Its record says that it runs; the count is old.
                    _log.warning("How far a move task is could not be noted: %s", error)

    # -- actions --------------------------------------------------------------------------------

    async def start(self, ask: shapes.StartMove) -> dict[str, Any]:
        """See StartMessageMoveTask of the API."""
        source_arn: str = need(ask.source_arn, "SourceArn")
        source = await self._queue(source_arn, "SourceArn")
        if ask.destination_arn == source_arn:
            raise invalid("Source queue arn and destination queue arn cannot be the same.")
        target = None
        if ask.destination_arn is not None:
            target = await self._queue(ask.destination_arn, "DestinationArn")
            await self._check_types(source, target)
        if not await self._takes_dead_letters(source):
            raise invalid("Source queue must be configured as a Dead Letter Queue.")
        per_s = ask.max_number_of_messages_per_second
        if per_s is not None and not 1 <= per_s <= _RATE_MAX:
            raise invalid(
                "Value for parameter MaxNumberOfMessagesPerSecond is invalid. "
                f"Reason: You must enter a number that's between 1 and {_RATE_MAX}."
            )
        if source in self._running or source in self._starting:
            raise invalid(
                "There is already a task running. Only one active task is allowed for a source "
                "queue arn at a given time."
            )
        self._starting.add(source)
        try:
            task = await self._make(source, target, ask)
            await self._save(task)
            self._launch(task)
        finally:
            self._starting.discard(source)
        return {"TaskHandle": task.handle}

    async def _make(self, source: str, target: str | None, ask: shapes.StartMove) -> MoveTask:
        stats = await self._broker.queue_stats(source)
        waiting, _, delayed = stats.subscriptions.get(DEFAULT_SUBSCRIPTION, (0, 0, 0))
        return MoveTask(
            str(uuid.uuid4()),
            source,
            target,
            need(ask.source_arn, "SourceArn"),
            ask.destination_arn,
            ask.max_number_of_messages_per_second,
            self._broker.store.clock.now_ms(),
            waiting + delayed,
        )

    async def cancel(self, ask: shapes.CancelMove) -> dict[str, Any]:
        """See CancelMessageMoveTask of the API."""
        named = handle_of(ask)
        source = await self._queue(named.source_arn, "SourceArn")
        task, worker = self._running.get(source, (None, None))
        if task is None or worker is None or task.id != named.task_id:
            raise SqsError("ResourceNotFoundException", "Task does not exist.")
        task.status = "CANCELLING"
        over: Pending[None] = Pending()
        worker.add_done_callback(lambda _: over.resolve(None))
        worker.cancel()
        await over
        task.status = "CANCELLED"
        await self._save(task)
        return {"ApproximateNumberOfMessagesMoved": task.moved}

    async def find(self, ask: shapes.ListMoves) -> dict[str, Any]:
        """See ListMessageMoveTasks of the API."""
        source = await self._queue(need(ask.source_arn, "SourceArn"), "SourceArn")
        count = 1 if ask.max_results is None else ask.max_results
        if not 1 <= count <= _KEPT:
            raise invalid(
                f"Value {count} for parameter MaxResults is invalid. "
                f"Reason: Must be between 1 and {_KEPT}."
            )
        found = (await self._known(source))[-count:][::-1]
        return {"Results": [_described(task) for task in found]}

    # -- inside ---------------------------------------------------------------------------------

    async def _queue(self, arn: str, parameter: str) -> str:
        named = parse_arn(arn)
        if named is None:
            raise invalid(
                f"You must use this format to specify the {parameter}: "
                "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
            )
        full = full_name(*named)
        try:
            await self._broker.get_queue(full)
        except QueueNotFound:
            raise SqsError(
                "ResourceNotFoundException",
                f"The resource that you specified for the {parameter} parameter doesn't exist.",
            ) from None
        return full

    async def _check_types(self, *queues: str) -> None:
        orders = {(await self._broker.get_queue(full)).settings.order for full in queues}
        if len(orders) > 1:
            raise invalid("The source queue and destination queue must be of the same queue type.")

    async def _takes_dead_letters(self, full: str) -> bool:
        account = owner_of(full)[0]
        return any(
            info.settings.dead_letter == full
            for info in await self._broker.list_queues()
            if owner_of(info.name)[0] == account
        )

    async def _known(self, source: str) -> list[MoveTask]:
        running = self._running.get(source)
        found = []
        for record in await self._broker.store.scan(_prefix(source)):
            task = _decode(record.value)
            found.append(running[0] if running and running[0].id == task.id else task)
        return found

    async def _save(self, task: MoveTask) -> None:
        store = self._broker.store
        await store.put(task.key, msgspec.msgpack.encode(task))
        for record in (await store.scan(_prefix(task.source)))[:-_KEPT]:
            await store.remove(record.key)

    def _launch(self, task: MoveTask) -> None:
        worker = asyncio.get_running_loop().create_task(self._run(task))
        self._running[task.source] = (task, worker)

    async def _run(self, task: MoveTask) -> None:
        try:
            while await self._step(task):  # noqa: ASYNC110  a pace, not a condition
                await asyncio.sleep(1 if task.per_s else 0)
            task.status = "COMPLETED"
        except QueueNotFound as error:
            named = "does not say" in str(error)
            task.status = "FAILED"
            task.failure = "CouldNotDetermineMessageSource" if named else _NO_QUEUE
        except RingdoveError as error:
            _log.warning("A move task failed: %s", error)
            task.status, task.failure = "FAILED", type(error).__name__
        finally:
            self._running.pop(task.source, None)
        await self._save(task)

    async def _step(self, task: MoveTask) -> bool:
        """Move some messages; False when there were none."""
        moved = 0

        def note(count: int) -> None:
            nonlocal moved
            task.moved += count - moved
            moved = count

        account = owner_of(task.source)[0]
        await self._broker.redrive(
            task.source,
            task.target,
            task.per_s or _STEP,
            note,
            may_go=lambda home: owner_of(home)[0] == account,
        )
        return moved > 0


class Handle(msgspec.Struct, rename="camel"):
    """What a task's handle says."""

    task_id: str
    source_arn: str


def handle_of(ask: shapes.CancelMove) -> Handle:
    """The handle in a request, or why it is none."""
    text: str = need(ask.task_handle, "TaskHandle")
    try:
        return msgspec.json.decode(base64.b64decode(text, validate=True), type=Handle)
    except (ValueError, msgspec.MsgspecError, UnicodeDecodeError):
        raise invalid("Value for parameter TaskHandle is invalid.") from None


def _described(task: MoveTask) -> dict[str, Any]:
    found: dict[str, Any] = {
        "Status": task.status,
        "SourceArn": task.source_arn,
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "StartedTimestamp": task.started_ms,
    }
    if task.target_arn:
        found["DestinationArn"] = task.target_arn
    if task.per_s:
        found["MaxNumberOfMessagesPerSecond"] = task.per_s
    if task.failure:
        found["FailureReason"] = task.failure
    if task.status == "RUNNING":
        found["TaskHandle"] = task.handle
    return found


_PREFIX = "move/"


def _prefix(source: str) -> str:
    return f"{_PREFIX}{source}/"


_decode = msgspec.msgpack.Decoder(MoveTask).decode
