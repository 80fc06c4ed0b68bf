"""Any sequence of SQS calls, on a clock that obeys, judged by a model of SQS (model.py).

The service runs in this process over the memory store, so that hours pass in no time; requests and
replies are the bytes of the JSON protocol. `RINGDOVE_EXAMPLES` asks for more runs, and other ones.
"""

import json
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ringdove.clock import ManualClock
from ringdove.controllers.broker import Broker
from ringdove.controllers.deadletter import ORIGIN
from ringdove.frontends.access import Access
from ringdove.frontends.exchange import HttpRequest
from ringdove.frontends.sqs.service import SqsService
from ringdove.frontends.sqs.translate import message_id
from ringdove.pending import run
from ringdove.stores.memory import MemoryStore
from sqs.foreign_requests import settings_for
from sqs.model import Model, Queue

ARN = "arn:aws:sqs:us-east-1:000000000000:"
COUNTERS = ("", "NotVisible", "Delayed")

VISIBILITIES = st.sampled_from([0, 2, 30])
#: Which queue, which message, and which of the handles of a kind, counted from the last one.
WHICH = st.integers(0, 2)
MESSAGES = st.tuples(
    st.sampled_from(["x", "y", "z"]),
    st.sampled_from([None, None, 0, 1, 3]),
    st.sampled_from(["a", "a", "b", "c"]),
    st.sampled_from([None, "1", "2"]),
)
PICKS = st.tuples(
    st.sampled_from(["held", "held", "over", "earlier", "any"]),
    st.integers(0, 2) | st.integers(0, 30),
)
RECEIVE = {
    "which": WHICH,
    "want": st.sampled_from([1, 1, 2, 3, 10]),
    "visibility_s": st.sampled_from([None, None, 0, 1, 5, 400]),
}

#: What may be done next, with its arguments, and how often it is among 50 steps.
STEPS: dict[str, tuple[int, dict[str, Any]]] = {
    "send": (6, {"which": WHICH, "message": MESSAGES}),
    "send_batch": (4, {"which": WHICH, "messages": st.lists(MESSAGES, min_size=1, max_size=5)}),
    "receive": (9, RECEIVE),
    "receive_at_an_end": (7, {**RECEIVE, "early_ms": st.sampled_from([0, 0, 0, 2])}),
    "delete": (4, {"pick": PICKS}),
    "delete_batch": (2, {"picks": st.lists(PICKS, min_size=1, max_size=4)}),
    "change_visibility": (4, {"pick": PICKS, "seconds": st.sampled_from([0, 0, 1, 5, 60])}),
    "change_visibility_batch": (
        2,
        {"picks": st.lists(PICKS, min_size=1, max_size=4), "seconds": st.sampled_from([0, 5])},
    ),
    "let_pass": (2, {"pause_ms": st.sampled_from([1, 500, 2000, 31_000, 301_000])}),
    "let_pass_until_something_ends": (
        4,
        {
            "number": st.integers(0, 2) | st.integers(0, 20),
            "early_ms": st.sampled_from([0, 1, 2, 500]),
        },
    ),
    "purge": (1, {"which": WHICH}),
    "create": (
        2,
        {
            "visibility_s": VISIBILITIES,
            "delay_s": st.sampled_from([0, 0, 2]),
            "retention_s": st.sampled_from([60, 345_600]),
            "receives_max": st.sampled_from([None, 1, 2]),
            "by_content": st.booleans(),
            "per_group": st.booleans(),
        },
    ),
    "change_queue": (
        2,
        {
            "which": WHICH,
            "visibility_s": VISIBILITIES,
            "receives_max": st.sampled_from([None, 1, 2]),
        },
    ),
    "delete_queue": (1, {"which": WHICH}),
}
#: One rule that chooses among them, for of many rules Hypothesis leaves some out in each run.
CHOICES = st.sampled_from([name for name, (often, _) in STEPS.items() for _ in range(often)])
STEP = CHOICES.flatmap(lambda name: st.tuples(st.just(name), st.fixed_dictionaries(STEPS[name][1])))


async def drive(coroutine: Any, *, parks: bool = False) -> Any:
    """Nobody waits here for a message to come."""
    return await coroutine


class SqsMachine(RuleBasedStateMachine):
    """What clients of a few queues may do, in any order."""

    suffix: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.broker = Broker(MemoryStore(self.clock, seed=1), seed=1)
        self.service = SqsService(self.broker, Access(self.broker))
        self.model = Model()
        #: Queue and handle, in the order they came.
        self.handles: list[tuple[str, str]] = []
        self.names = [f"{name}{self.suffix}" for name in ("one", "two")]
        self.dead = f"dead{self.suffix}"
        #: Whether the last reply was judged and found good.
        self.sound = True

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def call(self, action: str, **members: Any) -> dict[str, Any]:
        """Ask the service, which takes a millisecond; {"error": CODE} when it refuses."""
        self.sound = False
        self.clock.sleep_ms(1)
        return self.ask(action, **members)

    def ask(self, action: str, **members: Any) -> dict[str, Any]:
        """The same in no time."""
        headers = {b"x-amz-target": b"AmazonSQS." + action.encode(), b"host": b"x"}
        body = json.dumps(members).encode()
        request = HttpRequest("POST", "/", b"/", b"", headers, body)
        response = run(self.service.respond(request, drive))
        assert response.status < 500
        if response.status != 200:
            return {"error": dict(response.headers)[b"x-amzn-query-error"].decode().split(";")[0]}
        return json.loads(response.body or b"{}")

    def must(self, action: str, **members: Any) -> dict[str, Any]:
        """The same, where only a success will do."""
        reply = self.call(action, **members)
        assert "error" not in reply, reply
        return reply

    def pick(self, which: int) -> str:
        """The name of a queue that exists, besides that of dead letters."""
        names = [name for name in self.model.queues if name != self.dead]
        return names[which % len(names)]

    # -- queues ---------------------------------------------------------------------------------

    def make(self, name: str, **chosen: Any) -> None:
        queue = Queue(name, **chosen)
        attributes = {
            "VisibilityTimeout": str(queue.visibility_s),
            "DelaySeconds": str(queue.delay_s),
            "MessageRetentionPeriod": str(queue.retention_s),
        }
        if queue.fifo:
            attributes["FifoQueue"] = "true"
            attributes["ContentBasedDeduplication"] = str(queue.by_content).lower()
            attributes["DeduplicationScope"] = "messageGroup" if queue.per_group else "queue"
        if queue.dead_letter is not None:
            attributes["RedrivePolicy"] = self.redrive(queue.receives_max)
        self.must("CreateQueue", QueueName=name, Attributes=attributes)
        self.model.queues[name] = queue

    def redrive(self, receives_max: int | None) -> str:
        return json.dumps({"deadLetterTargetArn": ARN + self.dead, "maxReceiveCount": receives_max})

    @initialize(
        visibility_s=VISIBILITIES, delay_s=st.sampled_from([0, 0, 2]), by_content=st.booleans()
    )
    def begin(self, visibility_s: int, delay_s: int, by_content: bool) -> None:
        self.make(self.dead)
        self.make(self.names[0], visibility_s=visibility_s, delay_s=delay_s, by_content=by_content)

    @rule(step=STEP)
    def do(self, step: tuple[str, dict[str, Any]]) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)

    def create(self, receives_max: int | None, **chosen: Any) -> None:
        unused = [name for name in self.names if name not in self.model.queues]
        if not unused:
            return
        if receives_max is not None:
            chosen |= {"dead_letter": self.dead, "receives_max": receives_max}
        if not self.suffix:
            chosen |= {"by_content": False, "per_group": False}
        self.make(unused[0], **chosen)

    def delete_queue(self, which: int) -> None:
        if len(self.model.queues) <= 2:
            return
        name = self.pick(which)
        self.must("DeleteQueue", QueueUrl=name)
        del self.model.queues[name]
        self.handles = [(own, handle) for own, handle in self.handles if own != name]
        reply = self.call("ReceiveMessage", QueueUrl=name)
        assert reply["error"] == "AWS.SimpleQueueService.NonExistentQueue"

    def purge(self, which: int) -> None:
        name = self.pick(which)
        self.must("PurgeQueue", QueueUrl=name)
        self.model.purged(name)

    def change_queue(self, which: int, visibility_s: int, receives_max: int | None) -> None:
        queue = self.model.queues[self.pick(which)]
        queue.visibility_s = visibility_s
        queue.receives_max = receives_max
        queue.dead_letter = None if receives_max is None else self.dead
        policy = "" if receives_max is None else self.redrive(receives_max)
        attributes = {"VisibilityTimeout": str(visibility_s), "RedrivePolicy": policy}
        self.must("SetQueueAttributes", QueueUrl=queue.name, Attributes=attributes)

    # -- messages -------------------------------------------------------------------------------

    def entry(self, which: int, chosen: tuple[str, int | None, str, str | None]) -> dict[str, Any]:
        """A message for a queue, as far as its kind has use for what was chosen."""
        body, delay_s, group, dedup = chosen
        queue = self.model.queues[self.pick(which)]
        entry: dict[str, Any] = {"MessageBody": body}
        if queue.fifo:
            entry["MessageGroupId"] = group
            if dedup is not None or not queue.by_content:
                entry["MessageDeduplicationId"] = dedup or f"{body}-{group}-{self.now_ms}"
        else:
            if delay_s is not None:
                entry["DelaySeconds"] = delay_s
            if group != "a":
                entry["MessageGroupId"] = group
        return entry

    def send(self, which: int, message: Any) -> None:
        entry = self.entry(which, message)
        reply = self.must("SendMessage", QueueUrl=self.pick(which), **entry)
        self.model.sent(self.pick(which), entry, reply, self.now_ms)

    def send_batch(self, which: int, messages: list[Any]) -> None:
        entries = [
            self.entry(which, message) | {"Id": str(i)} for i, message in enumerate(messages)
        ]
        reply = self.must("SendMessageBatch", QueueUrl=self.pick(which), Entries=entries)
        told = {entry["Id"]: entry for entry in reply["Successful"]}
        assert len(told) == len(entries)
        for entry in entries:
            self.model.sent(self.pick(which), entry, told[entry["Id"]], self.now_ms)

    def receive(self, which: int, want: int, visibility_s: int | None) -> None:
        """From a queue that has something, if there is one."""
        names = [q.name for q in self.model.queues.values() if q.counters(self.now_ms)[0]]
        names = names or list(self.model.queues)
        self.receive_from(names[which % len(names)], want, visibility_s)

    def receive_at_an_end(self, early_ms: int, **chosen: Any) -> None:
        """As soon as something becomes visible again, or a little before."""
        self.let_pass_until_something_ends(0, early_ms)
        self.receive(**chosen)

    def receive_from(self, name: str, want: int, visibility_s: int | None) -> list[Any]:
        chosen = {} if visibility_s is None else {"VisibilityTimeout": visibility_s}
        before = set(self.model.queues[name].messages)
        reply = self.must(
            "ReceiveMessage",
            QueueUrl=name,
            MaxNumberOfMessages=want,
            AttributeNames=["All"],
            **chosen,
        )
        found = reply.get("Messages", [])
        moved = [] if name == self.dead else [m for m in self.buried() if m in before]
        self.model.received(name, want, visibility_s, found, moved, self.now_ms)
        self.handles += [(name, message["ReceiptHandle"]) for message in found]
        return found

    def buried(self) -> list[str]:
        """Ids of the messages in the dead-letter queue: a look behind the API.

        Which of several dead letters a receive meets, and moves, is not for a client to see.
        """
        info = run(self.broker.get_queue(self.dead))
        blocks = run(self.broker.read(info.stripes()[0], 0, 10_000))
        return [message_id(own[ORIGIN]) for block in blocks for own in block.attributes()]

    # -- handles --------------------------------------------------------------------------------

    def chosen(self, kind: str, number: int) -> tuple[str, str]:
        """A queue and a handle of a kind, if there is one: any other will do as well."""
        now_ms = self.now_ms

        def is_one(name: str, handle: str) -> bool:
            message, last = self.model.queues[name].find(handle)
            if message is None or kind == "any":
                return kind == "any"
            if not last:
                return kind == "earlier"
            return kind == ("held" if message.in_flight(now_ms) else "over")

        found = [pair for pair in self.handles if is_one(*pair)] or self.handles
        return found[-1 - number % len(found)]

    def delete(self, pick: tuple[str, int]) -> None:
        if not self.handles:
            return
        name, handle = self.chosen(*pick)
        reply = self.call("DeleteMessage", QueueUrl=name, ReceiptHandle=handle)
        self.model.deleted(name, handle, reply.get("error", ""), self.now_ms)

    def delete_batch(self, picks: list[tuple[str, int]]) -> None:
        for name, handles in self.by_queue(picks).items():
            entries = [{"Id": str(i), "ReceiptHandle": h} for i, h in enumerate(handles)]
            reply = self.must("DeleteMessageBatch", QueueUrl=name, Entries=entries)
            for handle, error in zip(handles, errors(reply, len(handles)), strict=True):
                self.model.deleted(name, handle, error, self.now_ms)

    def change_visibility(self, pick: tuple[str, int], seconds: int) -> None:
        if not self.handles:
            return
        name, handle = self.chosen(*pick)
        reply = self.call(
            "ChangeMessageVisibility",
            QueueUrl=name,
            ReceiptHandle=handle,
            VisibilityTimeout=seconds,
        )
        self.model.changed(name, handle, seconds, reply.get("error", ""), self.now_ms)

    def change_visibility_batch(self, picks: list[tuple[str, int]], seconds: int) -> None:
        for name, handles in self.by_queue(picks).items():
            entries = [
                {"Id": str(i), "ReceiptHandle": h, "VisibilityTimeout": seconds}
                for i, h in enumerate(handles)
            ]
            reply = self.must("ChangeMessageVisibilityBatch", QueueUrl=name, Entries=entries)
            for handle, error in zip(handles, errors(reply, len(handles)), strict=True):
                self.model.changed(name, handle, seconds, error, self.now_ms)

    def by_queue(self, picks: list[tuple[str, int]]) -> dict[str, list[str]]:
        """Different handles, by queue."""
        found: dict[str, list[str]] = {}
        for name, handle in dict.fromkeys(self.chosen(*pick) for pick in picks if self.handles):
            found.setdefault(name, []).append(handle)
        return found

    # -- always ---------------------------------------------------------------------------------

    def let_pass(self, pause_ms: int) -> None:
        self.clock.sleep_ms(pause_ms)

    def let_pass_until_something_ends(self, number: int, early_ms: int) -> None:
        """To where, or to just before where, something becomes visible, or is forgotten."""
        times = sorted(
            {ms for queue in self.model.queues.values() for ms in queue.ends(self.now_ms)}
        )
        if times:
            self.clock.advance_to(times[number % len(times)] - early_ms)

    @invariant()
    def the_counters_are_right(self) -> None:
        for name, queue in self.model.queues.items():
            told = self.ask("GetQueueAttributes", QueueUrl=name, AttributeNames=["All"])
            told = told["Attributes"]
            counters = tuple(int(told[f"ApproximateNumberOfMessages{kind}"]) for kind in COUNTERS)
            visible, in_flight, delayed = queue.counters(self.now_ms)
            # A delayed message is counted as visible until a receive has met it; see below.
            assert (sum(counters), counters[1]) == (visible + in_flight + delayed, in_flight), name
            assert counters[2] <= delayed, name
        self.sound = True

    def teardown(self) -> None:
        """Everything that was neither deleted nor kept for too long comes, and then no more."""
        if not self.sound:
            return
        self.clock.sleep_ms(500_000)
        for name in sorted(self.model.queues, key=lambda name: name == self.dead):
            while found := self.receive_from(name, 10, 30):
                for message in found:
                    handle = message["ReceiptHandle"]
                    reply = self.call("DeleteMessage", QueueUrl=name, ReceiptHandle=handle)
                    self.model.deleted(name, handle, reply.get("error", ""), self.now_ms)
            assert not self.model.queues[name].messages


def errors(reply: dict[str, Any], count: int) -> list[str]:
    """The code of each entry of a batch; empty for those that succeeded."""
    found = {entry["Id"]: "" for entry in reply.get("Successful", [])}
    found |= {entry["Id"]: entry["Code"] for entry in reply.get("Failed", [])}
    assert sorted(found) == sorted(str(number) for number in range(count))
    return [found[str(number)] for number in range(count)]


class FifoMachine(SqsMachine):
    """The same on FIFO queues."""

    suffix = ".fifo"


TestStandardQueues = SqsMachine.TestCase
TestStandardQueues.settings = settings_for(60, stateful_step_count=40)
TestFifoQueues = FifoMachine.TestCase
TestFifoQueues.settings = settings_for(60, stateful_step_count=40)


def test_a_message_that_is_delayed_is_counted_as_delayed():
    machine = SqsMachine()
    machine.begin(visibility_s=30, delay_s=0, by_content=False)
    machine.send(0, ("x", 3, "a", None))
    told = machine.must("GetQueueAttributes", QueueUrl="one", AttributeNames=["All"])["Attributes"]
    assert told["ApproximateNumberOfMessagesDelayed"] == "1"
