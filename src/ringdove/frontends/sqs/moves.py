"""Message move tasks: dead letters sent back at a measured pace, remembered as records.

    record move/QUEUE/STARTED-ID     a task, from its start on, and who works on it

One server works on a task and notes after each step how far it is. A task that was running when its
server stopped goes on when the next one starts. On a fabric other servers list it; they cancel it
by a word in its record, which is found with the next step; and one of them goes on with it when
nothing was noted for a while.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.controllers.accounts import full_name, owner_of
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import QueueNotFound, RecordConflict, RingdoveError
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

#: What a task that is not over is, in the API's words.
_UNDER_WAY = ("RUNNING", "CANCELLING")

#: How often a server looks for tasks of others, and after how long it takes one of them over.
_LOOK_S = 5
_SILENCE_MS = 20_000

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
    #: Which server works on it, and when it has last noted so.
    owner: str = ""
    seen_ms: int = 0

    @property
    def key(self) -> str:
        """Of its record; later ones sort behind earlier ones."""
        return f"{_prefix(self.source)}{self.started_ms:015d}-{self.id}"

    @property
    def handle(self) -> str:
        """The API's name of the task."""
        text = msgspec.json.encode({"taskId": self.id, "sourceArn": self.source_arn})
        return base64.b64encode(text).decode()


@dataclass(slots=True)
class _Work:
    """A task that this server works on."""

    task: MoveTask
    #: Of its record, as it was last noted.
    version: int
    worker: asyncio.Task[None] | None = None


class Moves:
    """Starts, runs, lists and cancels move tasks; `shared` where other servers do so, too."""

    def __init__(self, broker: Broker, *, shared: bool = False) -> None:
        self._broker = broker
        self._shared = shared
        self._id = str(uuid.uuid4())
        #: By source.
        self._running: dict[str, _Work] = {}
        #: Queues for which a task is being noted.
        self._starting: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    async def resume(self) -> None:
        """Go on with what was running, and on a fabric with what others leave from now on."""
        await self.take_over()
        if self._shared:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.take_over()
            except RingdoveError as error:
                _log.warning("Whether move tasks were left by others is not known: %s", error)

    async def take_over(self) -> None:
        """Go on with tasks that nobody works on."""
        after = ""
        while records := await self._broker.store.scan(_PREFIX, after):
            for record in records:
                task = _decode(record.value)
                if task.status not in _UNDER_WAY or self._is_worked_on(task):
                    continue
                cancelled = task.status == "CANCELLING"
                if cancelled:
                    task.status = "CANCELLED"
                work = _Work(task, record.version)
                task.owner = self._id
                with contextlib.suppress(RecordConflict):  # Another server was sooner.
                    await self._write(work)
                    if not cancelled:
                        self._launch(work)
            after = records[-1].key

    def _is_worked_on(self, task: MoveTask) -> bool:
        if task.source in self._running:
            return True
        silence_ms = self._broker.store.clock.now_ms() - task.seen_ms
        return self._shared and bool(task.owner) and silence_ms < _SILENCE_MS

    async def close(self) -> None:
        """Stop; what was running goes on with the next start, or on another server."""
        if self._looking is not None:
            self._looking.cancel()
        running = list(self._running.values())
        for work in running:
            await self._stop(work)
            if work.task.status == "RUNNING":
                try:
                    await self._note(work, leave=True)
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
            raise _one_at_a_time()
        self._starting.add(source)
        try:
            return {"TaskHandle": (await self._start(source, target, ask)).handle}
        finally:
            self._starting.discard(source)

    async def _start(self, source: str, target: str | None, ask: shapes.StartMove) -> MoveTask:
        """Note a task and begin; of servers that do so at once, the one whose task is first."""
        if await self._first_under_way(source) is not None:
            raise _one_at_a_time()
        work = _Work(await self._make(source, target, ask), 0)
        await self._write(work)
        if await self._first_under_way(source) != work.task.id:
            await self._broker.store.remove(work.task.key)
            raise _one_at_a_time()
        self._launch(work)
        await self._forget_old(source)
        return work.task

    async def _first_under_way(self, source: str) -> str | None:
        known = await self._known(source)
        return next((task.id for task in known if task.status in _UNDER_WAY), None)

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
            owner=self._id,
        )

    async def cancel(self, ask: shapes.CancelMove) -> dict[str, Any]:
        """See CancelMessageMoveTask of the API."""
        named = handle_of(ask)
        source = await self._queue(named.source_arn, "SourceArn")
        work = self._running.get(source)
        if work is None or work.task.id != named.task_id:
            return _moved(await self._cancel_elsewhere(source, named.task_id))
        work.task.status = "CANCELLING"
        await self._stop(work)
        work.task.status = "CANCELLED"
        await self._note(work)
        return _moved(work.task)

    async def _cancel_elsewhere(self, source: str, task_id: str) -> MoveTask:
        """Say in the record of a task that another server works on that it is to end."""
        while True:
            for record in await self._broker.store.scan(_prefix(source)):
                task = _decode(record.value)
                if task.id == task_id and task.status == "RUNNING":
                    break
            else:
                raise SqsError("ResourceNotFoundException", "Task does not exist.")
            task.status = "CANCELLING"
            with contextlib.suppress(RecordConflict):  # It has just made a step.
                await self._broker.store.put(task.key, _encode(task), expect=record.version)
                return task

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
        work = self._running.get(source)
        found = []
        for record in await self._broker.store.scan(_prefix(source)):
            task = _decode(record.value)
            found.append(work.task if work and work.task.id == task.id else task)
        return found

    async def _write(self, work: _Work) -> None:
        """Write a task's record, unless somebody else has."""
        work.task.seen_ms = self._broker.store.clock.now_ms()
        record = await self._broker.store.put(
            work.task.key, _encode(work.task), expect=work.version
        )
        work.version = record.version

    async def _note(self, work: _Work, *, leave: bool = False) -> bool:
        """Note how far a task is, for others to go on with if this server leaves it.

        False if it is over, or no longer this server's.
        """
        task = work.task
        while True:
            task.owner = "" if leave else self._id
            try:
                await self._write(work)
            except RecordConflict:
                record = await self._broker.store.get(task.key)
                found = None if record is None else _decode(record.value)
                if record is None or found is None or found.owner != self._id:
                    return False
                if found.status == "CANCELLING":
                    task.status = "CANCELLED"
                work.version = record.version
            else:
                return task.status == "RUNNING"

    async def _forget_old(self, source: str) -> None:
        store = self._broker.store
        for record in (await store.scan(_prefix(source)))[:-_KEPT]:
            await store.remove(record.key)

    def _launch(self, work: _Work) -> None:
        work.worker = asyncio.get_running_loop().create_task(self._run(work))
        self._running[work.task.source] = work

    async def _stop(self, work: _Work) -> None:
        if work.worker is not None:
            over: Pending[None] = Pending()
            work.worker.add_done_callback(lambda _: over.resolve(None))
            work.worker.cancel()
            await over
        self._running.pop(work.task.source, None)  # It may never have begun.

    async def _run(self, work: _Work) -> None:
        task = work.task
        try:
            while await self._step(task):
                if not await self._note(work):
                    return
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
        try:
            await self._note(work)
        except RingdoveError as error:
            _log.warning("The end of a move task could not be noted: %s", error)

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


def _one_at_a_time() -> SqsError:
    return invalid(
        "There is already a task running. Only one active task is allowed for a source "
        "queue arn at a given time."
    )


def _moved(task: MoveTask) -> dict[str, Any]:
    return {"ApproximateNumberOfMessagesMoved": task.moved}


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
_encode = msgspec.msgpack.Encoder().encode
