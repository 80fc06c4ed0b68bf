"""Message move tasks: dead letters sent back."""

import asyncio
import base64
import contextlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.sending import Outgoing
from ringdove.errors import StoreFull
from ringdove.frontends.sqs.moves import Moves
from ringdove.protocol.sqs.errors import SqsError
from ringdove.protocol.sqs.shapes import CancelMove, ListMoves, StartMove
from ringdove.stores.memory import MemoryStore
from server.running import wait_for
from sqs.clients import ACCOUNT, REGION, Queue, bare, fresh_name, refused
from sqs.conftest import maker

_NO_ARN = (
    "You must use this format to specify the {}: "
    "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
)
_MISSING = "The resource that you specified for the {} parameter doesn't exist."


def _arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def _handle(task: str, arn: str) -> str:
    return base64.b64encode(json.dumps({"taskId": task, "sourceArn": arn}).encode()).decode()


class Desk:
    """A queue, its dead letters, and what moves them."""

    def __init__(self, source: Queue, dead: Queue) -> None:
        self.sqs = source.sqs
        self.source = source
        self.dead = dead
        source.redrive_to(dead)

    def fill(self, count: int, source: Queue | None = None) -> list[str]:
        """Have messages of a queue become dead letters; answers their bodies."""
        own = source or self.source
        bodies = [f"{own.name} {number}" for number in range(count)]
        if own.name.endswith(".fifo"):
            bodies = [f"g/{body}" for body in bodies]
        own.send_all(*bodies)
        for message in own.receive():
            own.hide(message, 0)
        before = self.dead.counts()[0]
        assert own.receive() == []
        assert self.dead.counts()[0] == before + count
        return bodies

    def start(self, **options: Any) -> str:
        reply = bare(self.sqs.start_message_move_task(SourceArn=self.dead.arn, **options))
        assert set(reply) == {"TaskHandle"}
        return reply["TaskHandle"]

    def tasks(self, **options: Any) -> list[dict[str, Any]]:
        reply = self.sqs.list_message_move_tasks(SourceArn=self.dead.arn, **options)
        return reply.get("Results", [])

    def finished(self) -> dict[str, Any]:
        """The latest task, once it is over."""
        wait_for(lambda: self.tasks()[0]["Status"] != "RUNNING", "the task ends")
        return self.tasks()[0]


@pytest.fixture
def desk(make) -> Desk:
    return Desk(make(), make())


# -- moving -----------------------------------------------------------------------------------------


def test_dead_letters_are_moved_to_another_queue(make, desk):
    bodies = desk.fill(2)
    target = make()
    before_ms = int(time.time() * 1000)
    handle = json.loads(base64.b64decode(desk.start(DestinationArn=target.arn)))
    assert set(handle) == {"taskId", "sourceArn"}
    assert handle["sourceArn"] == desk.dead.arn
    assert uuid.UUID(handle["taskId"])
    task = desk.finished()
    started_ms = task.pop("StartedTimestamp")
    assert before_ms <= started_ms < before_ms + 86_400_000
    assert task == {
        "Status": "COMPLETED",
        "SourceArn": desk.dead.arn,
        "DestinationArn": target.arn,
        "ApproximateNumberOfMessagesMoved": 2,
        "ApproximateNumberOfMessagesToMove": 2,
    }
    assert sorted(target.bodies()) == bodies
    assert desk.dead.counts() == (0, 0, 0)


def test_dead_letters_go_back_where_they_came_from(make, desk):
    other = make()
    other.redrive_to(desk.dead)
    bodies = desk.fill(2)
    others = desk.fill(3, other)
    desk.start()
    task = desk.finished()
    assert "DestinationArn" not in task
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 5)
    assert sorted(desk.source.bodies()) == bodies
    assert sorted(other.bodies()) == others
    assert desk.dead.counts() == (0, 0, 0)


def test_a_moved_message_begins_anew(desk):
    attributes = {"k": {"DataType": "String", "StringValue": "x"}}
    sent = desk.source.send("x", MessageAttributes=attributes)
    desk.source.hide(desk.source.one(), 0)
    assert desk.source.receive() == []
    desk.start()
    desk.finished()
    message = desk.source.one(AttributeNames=["All"], MessageAttributeNames=["All"])
    assert message["MessageId"] != sent["MessageId"]
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert "DeadLetterQueueSourceArn" not in message["Attributes"]


def test_a_moved_message_keeps_its_group(make):
    desk = Desk(make(fifo=True), make(fifo=True))
    bodies = desk.fill(2)
    desk.start()
    assert desk.finished()["Status"] == "COMPLETED"
    found = desk.source.receive(AttributeNames=["MessageGroupId"])
    assert [message["Body"] for message in found] == bodies
    assert {message["Attributes"]["MessageGroupId"] for message in found} == {"g"}


def test_a_message_that_nobody_has_buried_cannot_go_back(desk):
    desk.dead.send("sent here")
    desk.start()
    task = desk.finished()
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")
    assert desk.dead.counts() == (1, 0, 0)


def test_a_task_without_messages_is_done_at_once(desk):
    desk.start()
    task = desk.finished()
    assert task["Status"] == "COMPLETED"
    assert task["ApproximateNumberOfMessagesMoved"] == 0


def test_a_task_keeps_its_pace(json_sqs):
    make = maker(json_sqs)
    desk = Desk(make(), make())
    desk.fill(4)
    begun_s = time.monotonic()
    desk.start(MaxNumberOfMessagesPerSecond=1)
    running = desk.tasks()[0]
    assert running["Status"] == "RUNNING"
    assert running["MaxNumberOfMessagesPerSecond"] == 1
    wait_for(lambda: desk.tasks()[0]["ApproximateNumberOfMessagesMoved"] == 4, "all are moved")
    assert time.monotonic() - begun_s >= 2.9
    assert desk.finished()["Status"] == "COMPLETED"


def test_there_is_one_task_at_a_time(desk):
    desk.fill(3)
    handle = desk.start(MaxNumberOfMessagesPerSecond=1)
    message = (
        "There is already a task running. Only one active task is allowed for a source queue arn "
        "at a given time."
    )
    with refused("InvalidParameterValue", message):
        desk.start()
    desk.sqs.cancel_message_move_task(TaskHandle=handle)
    desk.start()
    assert desk.finished()["Status"] == "COMPLETED"


def test_of_tasks_that_start_at_the_same_time_one_does(desk):
    desk.fill(9)

    def start(_: int) -> str | None:
        with contextlib.suppress(ClientError):
            return desk.start(MaxNumberOfMessagesPerSecond=1)
        return None

    with ThreadPoolExecutor(6) as pool:
        [handle] = filter(None, pool.map(start, range(6)))
    desk.sqs.cancel_message_move_task(TaskHandle=handle)
    assert [task["Status"] for task in desk.tasks(MaxResults=10)] == ["CANCELLED"]


def test_a_task_is_cancelled(desk):
    desk.fill(5)
    handle = desk.start(MaxNumberOfMessagesPerSecond=1)
    [running] = desk.tasks()
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", handle)
    wait_for(lambda: desk.tasks()[0]["ApproximateNumberOfMessagesMoved"], "one is moved")
    reply = bare(desk.sqs.cancel_message_move_task(TaskHandle=handle))
    assert set(reply) == {"ApproximateNumberOfMessagesMoved"}
    assert 1 <= reply["ApproximateNumberOfMessagesMoved"] < 5
    [cancelled] = desk.tasks()
    assert cancelled["Status"] == "CANCELLED"
    assert "TaskHandle" not in cancelled
    assert desk.dead.counts()[0] == 5 - reply["ApproximateNumberOfMessagesMoved"]


def test_a_task_fails_when_its_target_is_deleted(make, desk):
    desk.fill(5)
    target = make()
    desk.start(DestinationArn=target.arn, MaxNumberOfMessagesPerSecond=1)
    wait_for(lambda: desk.tasks()[0]["ApproximateNumberOfMessagesMoved"], "one is moved")
    target.call("delete_queue")
    task = desk.finished()
    assert task["Status"] == "FAILED"
    assert task["FailureReason"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert "TaskHandle" not in task


# -- listing ----------------------------------------------------------------------------------------


def test_tasks_are_listed_from_the_latest_on(desk):
    for pace in (500, 400, 300):
        desk.start(MaxNumberOfMessagesPerSecond=pace)
        desk.finished()
    assert [task["MaxNumberOfMessagesPerSecond"] for task in desk.tasks()] == [300]
    found = desk.tasks(MaxResults=10)
    assert [task["MaxNumberOfMessagesPerSecond"] for task in found] == [300, 400, 500]
    assert len(desk.tasks(MaxResults=2)) == 2


def test_a_queue_without_tasks_has_an_empty_list(json_sqs, desk):
    assert desk.tasks() == []
    assert bare(json_sqs.list_message_move_tasks(SourceArn=desk.dead.arn)) == {"Results": []}


@pytest.mark.parametrize("count", [0, 11])
def test_a_list_has_1_to_10_tasks(desk, count):
    message = (
        f"Value {count} for parameter MaxResults is invalid. Reason: Must be between 1 and 10."
    )
    with refused("InvalidParameterValue", message):
        desk.tasks(MaxResults=count)


# -- refusals ---------------------------------------------------------------------------------------


def test_a_source_has_dead_letters(sqs, queue):
    message = "Source queue must be configured as a Dead Letter Queue."
    with refused("InvalidParameterValue", message):
        sqs.start_message_move_task(SourceArn=queue.arn)


def test_a_target_exists(desk):
    with refused("ResourceNotFoundException", _MISSING.format("DestinationArn")):
        desk.start(DestinationArn=_arn("unknown"))


def test_a_source_exists(sqs):
    message = _MISSING.format("SourceArn")
    with refused("ResourceNotFoundException", message):
        sqs.start_message_move_task(SourceArn=_arn("unknown"))
    with refused("ResourceNotFoundException", message):
        sqs.list_message_move_tasks(SourceArn=_arn("unknown"))


def test_a_source_is_named(sqs):
    message = "The request must contain the parameter SourceArn."
    for call in (sqs.start_message_move_task, sqs.list_message_move_tasks):
        with refused("MissingParameter", message):
            call()


@pytest.mark.parametrize("arn", ["", "no arn", "arn:aws:sqs", "arn:aws:sqs:eu-north-1:1:q"])
def test_queues_are_named_by_arns(sqs, desk, arn):
    with refused("InvalidParameterValue", _NO_ARN.format("SourceArn")):
        sqs.start_message_move_task(SourceArn=arn)
    with refused("InvalidParameterValue", _NO_ARN.format("SourceArn")):
        sqs.list_message_move_tasks(SourceArn=arn)
    with refused("InvalidParameterValue", _NO_ARN.format("DestinationArn")):
        desk.start(DestinationArn=arn)


def test_source_and_target_differ(desk):
    message = "Source queue arn and destination queue arn cannot be the same."
    with refused("InvalidParameterValue", message):
        desk.start(DestinationArn=desk.dead.arn)


def test_source_and_target_are_of_one_type(make, desk):
    message = "The source queue and destination queue must be of the same queue type."
    with refused("InvalidParameterValue", message):
        desk.start(DestinationArn=make(fifo=True).arn)


@pytest.mark.parametrize("pace", [0, -1, 501, 509])
def test_a_pace_is_1_to_500_per_second(desk, pace):
    message = (
        "Value for parameter MaxNumberOfMessagesPerSecond is invalid. "
        "Reason: You must enter a number that's between 1 and 500."
    )
    with refused("InvalidParameterValue", message):
        desk.start(MaxNumberOfMessagesPerSecond=pace)


@pytest.mark.parametrize("handle", ["foobared", "no base64!", base64.b64encode(b"{}").decode()])
def test_a_handle_that_is_none_is_refused(sqs, handle):
    message = "Value for parameter TaskHandle is invalid."
    with refused("InvalidParameterValue", message):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_the_queue_of_a_handle_exists(sqs):
    handle = _handle(str(uuid.uuid4()), _arn(fresh_name("never-made")))
    with refused("ResourceNotFoundException", _MISSING.format("SourceArn")):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_the_task_of_a_handle_exists(sqs, desk):
    handle = _handle(str(uuid.uuid4()), desk.dead.arn)
    with refused("ResourceNotFoundException", "Task does not exist."):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_a_task_that_is_over_is_not_cancelled(sqs, desk):
    handle = desk.start()
    desk.finished()
    with refused("ResourceNotFoundException", "Task does not exist."):
        sqs.cancel_message_move_task(TaskHandle=handle)


def test_a_cancellation_needs_a_handle(sqs):
    with refused("MissingParameter", "The request must contain the parameter TaskHandle."):
        sqs.cancel_message_move_task()


def test_a_server_closes_although_the_count_of_a_task_cannot_be_noted(monkeypatch):
    async def main():
        store = MemoryStore()
        broker = Broker(store)
        await broker.create_queue("source", {"receives_max": 1, "dead_letter": "dead"})
        await broker.send("dead", Outgoing([b"x"] * 3))
        moves = Moves(broker)
        ask = StartMove(_arn("dead"), _arn("source"), 1)
        await moves.start(ask)

        async def refuse(*_, **__):
            raise StoreFull("There is no room.")

        monkeypatch.setattr(store, "put", refuse)
        await moves.close()

    asyncio.run(main())


# -- several servers --------------------------------------------------------------------------------

_START = StartMove(_arn("dead"), _arn("source"), 1)


class Servers:
    """Two servers of one store, and dead letters to be moved, one a second."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.store = MemoryStore(self.clock)
        self.brokers = [Broker(self.store), Broker(self.store)]
        self.one, self.other = (Moves(broker, shared=True) for broker in self.brokers)

    async def fill(self, count: int = 3) -> None:
        broker = self.brokers[0]
        await broker.create_queue("source", {"receives_max": 1, "dead_letter": "dead"})
        await broker.send("dead", Outgoing([b"%d" % number for number in range(count)]))

    async def become(self, status: str) -> dict[str, Any]:
        """The task as both see it, once it is that."""
        while True:
            found = [(await moves.find(ListMoves(_arn("dead"))))["Results"] for moves in self.all]
            if all(tasks[0]["Status"] == status for tasks in found):
                return found[0][0]
            await asyncio.sleep(0.01)

    def kill_one(self) -> None:
        self.one._running.pop("dead").worker.cancel()

    @property
    def all(self) -> tuple[Moves, Moves]:
        return self.one, self.other

    async def close(self) -> None:
        for moves in self.all:
            await moves.close()


def with_servers(test: Callable[[Servers], Awaitable[None]]) -> Callable[[], None]:
    async def main() -> None:
        servers = Servers()
        await servers.fill()
        async with asyncio.timeout(30):
            await test(servers)
            await servers.close()

    def run() -> None:
        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@with_servers
async def test_a_task_of_another_server_is_listed_and_keeps_others_away(servers):
    await servers.one.start(_START)
    assert (await servers.become("RUNNING"))["ApproximateNumberOfMessagesToMove"] == 3
    with pytest.raises(SqsError, match="There is already a task running"):
        await servers.other.start(_START)
    await servers.other.take_over()
    assert servers.other._running == {}


@with_servers
async def test_a_task_of_another_server_is_cancelled(servers):
    handle = (await servers.one.start(_START))["TaskHandle"]
    await servers.other.cancel(CancelMove(handle))
    assert (await servers.become("CANCELLED"))["ApproximateNumberOfMessagesMoved"] < 3
    assert servers.one._running == {}
    with pytest.raises(SqsError, match="Task does not exist"):
        await servers.other.cancel(CancelMove(handle))


@with_servers
async def test_a_task_of_a_server_that_closes_goes_on_at_another(servers):
    await servers.one.start(_START)
    await servers.one.close()
    await servers.other.take_over()
    assert (await servers.become("COMPLETED"))["ApproximateNumberOfMessagesMoved"] == 3
    assert (await servers.brokers[0].queue_stats("source")).messages == 3


@with_servers
async def test_a_task_of_a_server_that_died_goes_on_at_another(servers):
    await servers.one.start(_START)
    servers.kill_one()
    await servers.other.take_over()
    assert servers.other._running == {}
    servers.clock.sleep_ms(20_000)
    await servers.other.take_over()
    assert (await servers.become("COMPLETED"))["ApproximateNumberOfMessagesMoved"] == 3


@with_servers
async def test_a_task_that_was_to_be_cancelled_when_its_server_died_does_not_go_on(servers):
    handle = (await servers.one.start(_START))["TaskHandle"]
    servers.kill_one()
    await servers.other.cancel(CancelMove(handle))
    servers.clock.sleep_ms(20_000)
    await servers.other.take_over()
    await servers.become("CANCELLED")
    assert servers.other._running == {}


@with_servers
async def test_a_server_that_comes_back_leaves_its_task_to_the_one_that_went_on(servers):
    await servers.one.start(_START)
    servers.clock.sleep_ms(20_000)
    await servers.other.take_over()
    await servers.become("COMPLETED")
    assert servers.one._running == {}
    assert (await servers.brokers[0].queue_stats("source")).messages == 3


@with_servers
async def test_of_servers_that_start_a_task_at_once_at_most_one_does(servers):
    answers = await asyncio.gather(
        *(moves.start(_START) for moves in servers.all), return_exceptions=True
    )
    assert sum(isinstance(answer, dict) for answer in answers) == 1
    assert len(await servers.store.scan("move/")) == 1
