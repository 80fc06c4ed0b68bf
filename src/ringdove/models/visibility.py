"""The document's net: a cloud queue with visibility timeout, as figures 4 to 10 describe it (V2).

    Send_Proc            messages are produced, sent by n1 threads, and enter the queue
    Broker               n2 threads take messages up; the message stays in the queue, hidden
    Recv_Proc            a delivery succeeds with chance q; then a request to delete goes back
    Visibility_Timeout   a request to delete cancels the timer and deletes the message; a timer that
                         ends makes it visible again

The text names places, transitions and functions; where only the figures, which are pictures, have
names, we chose our own. Two brokers:

    out of order   takes any visible message, the one that has waited longest
    in order       Queue_Index holds the ids in the order they were produced; a thread takes up the
                   message of the first one, and waits for it if it has not arrived (ifMsgArrived).
                   A message that failed comes first again.

With `waits_out` a failed delivery stays hidden until its timeout, as in truth; without, the failure
is known at once, as the formulas have it. The timer runs from the moment the broker takes a message
up; it never ends before an acknowledgement could be back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ringdove.errors import InvalidArgument
from ringdove.models.petri.engine import Simulation
from ringdove.models.petri.net import (
    ColourSet,
    Count,
    Give,
    Net,
    Observe,
    Page,
    Place,
    Substitution,
    Take,
    Transition,
)


class Msg(NamedTuple):
    """A message token, with when it was produced, entered the queue, and was last taken up."""

    id: int
    AT: float
    IT: float = 0.0
    OT: float = 0.0


COLOURS = [
    ColourSet("UNIT", str, "unit timed"),
    ColourSet("INT", int, "int"),
    ColourSet("MsgTimeout", int, "int timed"),
    ColourSet("Thread", str, "with thread"),
    ColourSet("Msg", Msg, "record id: INT * AT: INT * IT: INT * OT: INT, timed"),
    ColourSet("ThreadxMsg", tuple, "product Thread * Msg timed"),
]


def _send_proc(enqueued: list[Give], seen: list[Place]) -> Page:
    """The Send_Proc page, and what it gives besides the message itself."""
    return Page(
        "Send_Proc",
        places=[
            Place("Next", "UNIT", "['next']", at=(0, 0)),
            Place("Msg_ID", "INT", "[1]", at=(0, 2)),
            Place("Produced", "Msg", pick="first", at=(2, 1)),
            Place("Send_Threads", "Thread", "['thread'] * n1", at=(3, 2)),
            Place("Sending", "ThreadxMsg", at=(4, 1)),
            Place("On_Link", "Msg", at=(6, 1)),
            Place("Queue", "Msg", port=True, at=(8, 0)),
            *seen,
        ],
        transitions=[
            Transition(
                "Produce",
                takes=[Take("Next", "next"), Take("Msg_ID", "id")],
                gives=[
                    Give("Next", "next", delay="exponential(rate)"),
                    Give("Msg_ID", "id + 1"),
                    Give("Produced", "Msg(id, now)"),
                ],
                at=(1, 1),
            ),
            Transition(
                "Begin_Send",
                takes=[Take("Produced", "msg"), Take("Send_Threads", "thread")],
                gives=[Give("Sending", "(thread, msg)", delay="exponential(mu1)")],
                at=(3, 1),
            ),
            Transition(
                "End_Send",
                takes=[Take("Sending", "(thread, msg)")],
                gives=[Give("Send_Threads", "thread"), Give("On_Link", "msg", delay="link")],
                at=(5, 1),
            ),
            Transition(
                "Enqueue",
                takes=[Take("On_Link", "msg")],
                gives=[Give("Queue", "Msg(msg.id, msg.AT, now)"), *enqueued],
                at=(7, 1),
            ),
        ],
    )


VISIBILITY_TIMEOUT = Page(
    "Visibility_Timeout",
    places=[
        Place("Delete_Req", "INT", port=True, at=(0, 0)),
        Place("Failure", "INT", port=True, at=(0, 2)),
        Place("Timer", "MsgTimeout", port=True, at=(2, 1)),
        Place("Invisible", "INT", port=True, at=(4, 1)),
        Place("Queue", "Msg", port=True, at=(4, 0)),
        Place("Again", "INT", port=True, at=(5, 2)),
    ],
    transitions=[
        Transition(
            "Cancel",
            takes=[
                Take("Delete_Req", "id"),
                Take("Timer", "timer", by="id", ahead=True),
                Take("Invisible", "hidden", by="id"),
                Take("Queue", "msg", by="id"),
            ],
            gives=[],
            at=(2, 0),
        ),
        Transition(
            "Trigger",
            takes=[Take("Timer", "id"), Take("Invisible", "hidden", by="id")],
            gives=[Give("Again", "id", first=True)],
            priority=1,
            at=(4, 3),
        ),
        Transition(
            "Refuse",
            takes=[
                Take("Failure", "id"),
                Take("Timer", "timer", by="id", ahead=True),
                Take("Invisible", "hidden", by="id"),
            ],
            gives=[Give("Again", "id", first=True)],
            at=(2, 2),
        ),
    ],
)

RECV_PROC = Page(
    "Recv_Proc",
    places=[
        Place("To_Receiver", "Msg", port=True, at=(0, 1)),
        Place("Delete_Req", "INT", port=True, at=(3, 0)),
        Place("Failure", "INT", port=True, at=(3, 2)),
    ],
    transitions=[
        Transition(
            "Deliver",
            takes=[Take("To_Receiver", "msg")],
            let={"arrives": "random() < q"},
            gives=[
                Give("Delete_Req", "msg.id", delay="link", when="arrives"),
                Give("Failure", "msg.id", delay="link", when="not (arrives or waits_out)"),
            ],
            at=(1.5, 1),
        )
    ],
)


def _broker(get: Transition, order: list[Place], again: str) -> Page:
    """The Broker page around its way to get a message."""
    return Page(
        "Broker",
        places=[
            Place("Queue", "Msg", port=True, at=(0, 0.7)),
            *order,
            Place("Recv_Threads", "Thread", "['thread'] * n2", at=(3, 0)),
            Place("Forwarding", "ThreadxMsg", at=(4, 1)),
            Place("Invisible", "INT", key="token", at=(3, 3)),
            Place("Timer", "MsgTimeout", key="token", pick="first", at=(5, 2)),
            Place("To_Receiver", "Msg", port=True, at=(7, 1)),
            Place("Delete_Req", "INT", port=True, at=(7, 2)),
            Place("Failure", "INT", port=True, at=(7, 3)),
        ],
        transitions=[
            get,
            Transition(
                "End_Forward",
                takes=[Take("Forwarding", "(thread, msg)")],
                gives=[
                    Give("Recv_Threads", "thread"),
                    Give("Timer", "msg.id", delay="max(msg.OT + timeout - now, 3 * link)"),
                    Give("To_Receiver", "msg", delay="link"),
                ],
                at=(5, 1),
            ),
        ],
        substitutions=[
            Substitution(
                "Visibility_Timeout",
                VISIBILITY_TIMEOUT,
                {name: name for name in ("Delete_Req", "Failure", "Timer", "Invisible", "Queue")}
                | {"Again": again},
                at=(5, 3),
            )
        ],
    )


_TAKEN_UP = [
    Give("Queue", "msg"),
    Give("Invisible", "id"),
    Give("Forwarding", "(thread, Msg(id, msg.AT, msg.IT, now))", delay="exponential(mu2)"),
]

OUT_OF_ORDER_BROKER = _broker(
    Transition(
        "Get_Msg",
        takes=[
            Take("Msg_Vis", "id"),
            Take("Queue", "msg", by="id"),
            Take("Recv_Threads", "thread"),
        ],
        gives=_TAKEN_UP,
        at=(2, 1),
    ),
    [Place("Msg_Vis", "INT", port=True, at=(0, 2))],
    "Msg_Vis",
)

#: The first id that was never taken up is the last in Queue_Index; those that failed are before it.
IN_ORDER_BROKER = _broker(
    Transition(
        "Get_Oldest_Msg",
        takes=[
            Take("Queue_Index", "id"),
            Take("Queue", "msg", by="id"),
            Take("Recv_Threads", "thread"),
            Take("Newest", "newest"),
        ],
        gives=[
            *_TAKEN_UP,
            Give("Queue_Index", "id + 1", when="id > newest"),
            Give("Newest", "max(id, newest)"),
        ],
        at=(2, 1),
    ),
    [
        Place("Queue_Index", "INT", "[1]", pick="first", at=(0, 2)),
        Place("Newest", "INT", "[0]", at=(1.5, 3)),
    ],
    "Queue_Index",
)


def _cloud_queue(send: Page, broker: Page, visible: list[Place]) -> Page:
    names = ["Queue", *(place.name for place in visible)]
    return Page(
        "Cloud_Queue",
        places=[
            Place("Queue", "Msg", key="token.id", at=(2, 0)),
            *visible,
            Place("To_Receiver", "Msg", at=(4, 0)),
            Place("Delete_Req", "INT", pick="first", at=(4, 1)),
            Place("Failure", "INT", pick="first", at=(4, 2)),
        ],
        substitutions=[
            Substitution("Send_Proc", send, {name: name for name in names}, at=(1, 1)),
            Substitution(
                "Broker",
                broker,
                {name: name for name in (*names, "To_Receiver", "Delete_Req", "Failure")},
                at=(3, 1),
            ),
            Substitution(
                "Recv_Proc",
                RECV_PROC,
                {name: name for name in ("To_Receiver", "Delete_Req", "Failure")},
                at=(5, 1),
            ),
        ],
    )


_MONITORS: list[Observe | Count] = [
    Observe("delivery_s", "Recv_Proc.Deliver", "now - msg.AT", when="arrives"),
    Count("produced", "Send_Proc.Produced"),
    Count("sending", "Send_Proc.Sending"),
    Count("queue", "Queue"),
    Count("invisible", "Broker.Invisible"),
    Count("forwarding", "Broker.Forwarding"),
]

OUT_OF_ORDER = Net(
    _cloud_queue(
        _send_proc([Give("Msg_Vis", "msg.id")], [Place("Msg_Vis", "INT", port=True, at=(8, 2))]),
        OUT_OF_ORDER_BROKER,
        [Place("Msg_Vis", "INT", pick="first", at=(2, 2))],
    ),
    COLOURS,
    _MONITORS,
)

IN_ORDER = Net(_cloud_queue(_send_proc([], []), IN_ORDER_BROKER, []), COLOURS, _MONITORS)


@dataclass(frozen=True, slots=True)
class Setup:
    """The values of a run; the defaults are the document's (V3)."""

    in_order: bool = False
    rate_per_s: float = 30.3
    sender_rate_per_s: float = 10.0
    broker_rate_per_s: float = 10.0
    sender_threads: int = 5
    broker_threads: int = 5
    reliability: float = 0.99
    link_s: float = 0.0
    timeout_s: float = 30.0
    waits_out: bool = False

    def __post_init__(self) -> None:
        rates = (self.rate_per_s, self.sender_rate_per_s, self.broker_rate_per_s)
        if min(rates) <= 0 or min(self.sender_threads, self.broker_threads) < 1:
            raise InvalidArgument("Rates must be above 0, and threads 1 or more.")
        if not 0 < self.reliability <= 1 or min(self.link_s, self.timeout_s) < 0:
            raise InvalidArgument("Reliability must be above 0 and at most 1; times 0 or more.")


def simulate(
    setup: Setup, seed: int = 0, seconds: float = 100.0, warm_s: float = 20.0
) -> dict[str, float]:
    """One replication: the document's figures over `seconds`, after a warm-up."""
    simulation = Simulation(
        IN_ORDER if setup.in_order else OUT_OF_ORDER,
        {
            "Msg": Msg,
            "rate": setup.rate_per_s,
            "mu1": setup.sender_rate_per_s,
            "mu2": setup.broker_rate_per_s,
            "n1": setup.sender_threads,
            "n2": setup.broker_threads,
            "q": setup.reliability,
            "link": setup.link_s,
            "timeout": setup.timeout_s,
            "waits_out": setup.waits_out,
        },
        seed,
    )
    simulation.run(warm_s)
    simulation.forget()
    simulation.run(warm_s + seconds)
    times_s = sorted(simulation.seen("delivery_s"))
    sender_waiting = simulation.mean("produced")
    broker_waiting = simulation.mean("queue") - simulation.mean("invisible")
    return {
        "delivered": len(times_s),
        "delivery_ms": 1e3 * sum(times_s) / len(times_s) if times_s else 0.0,
        "p99_ms": 1e3 * times_s[int(0.99 * len(times_s))] if times_s else 0.0,
        "waiting": sender_waiting + broker_waiting,
        "sender_waiting": sender_waiting,
        "broker_waiting": broker_waiting,
        "sender_utilisation": simulation.mean("sending") / setup.sender_threads,
        "broker_utilisation": simulation.mean("forwarding") / setup.broker_threads,
        "sender_busy": simulation.busy("sending"),
        "broker_busy": simulation.busy("forwarding"),
        "fired": simulation.fired,
    }
