"""A fabric's dequeue in simulated time: table I with the real dequeue machines (T4.4).

    senders --> E-Ctrls --> stripes, a node each <-- D-Ctrls <-- back ends

A node does one thing at a time and spends what `costs` says: an append, a visit, each message that
a visit finds, a look at a counter. Senders send at a steady pace, in turn to all stripes; each has
at most `sends_max` messages on their way, so a busy fabric slows them down. Back ends ask at
Poisson times and have at most `asks_max` requests outstanding; a request that would be one too many
is not made. The document gives neither limit, nor the send rate; the defaults show its effect: a
fabric that could carry the load if it made no visits in vain, and cannot with them.

What a request does is decided by the machines of `core/dequeue.py`, the same that a controller
runs. What surrounds them in a controller is modelled: each request begins one stripe further,
counters are read once per period, `wake` does not visit stripes known to be empty, and an arrival
calls one of those who wait at each controller, or keeps one from waiting who is about to.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringdove.core.dequeue import Answer, Look, Try, make_call
from ringdove.core.settings import QueueSettings
from ringdove.errors import InvalidArgument
from ringdove.models.costs import Costs
from ringdove.models.events import Node, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.core.dequeue import Action, DequeueCall, Park

METHODS = ("poll", "monitor", "retry", "wake")


@dataclass(frozen=True, slots=True)
class Load:
    """What a fabric is and has to do."""

    method: str = "poll"
    #: Requests per second of each back end: lambda.
    asks_per_s: float = 100.0
    #: Messages per second of each sender.
    sends_per_s: float = 100.0
    pause_s: float = 0.1
    stripes: int = 10
    senders: int = 10
    back_ends: int = 10
    #: D-Ctrls that serve the back ends: one for each in the document, one on a single server.
    controllers: int = 10
    sends_max: int = 2
    asks_max: int = 2
    #: Nmax, and stripes that a request tries.
    messages_max: int = 100
    tries: int = 3
    #: How long a request is held at most.
    wait_s: float = 30.0
    costs: Costs = field(default_factory=Costs)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidArgument(f"There is no method {self.method!r}: {', '.join(METHODS)}.")
        parts = (self.stripes, self.senders, self.back_ends, self.controllers)
        if min(*parts, self.sends_max, self.asks_max, self.messages_max, self.tries) < 1:
            raise InvalidArgument("Stripes, senders, back ends and limits must be 1 or more.")
        if min(self.asks_per_s, self.sends_per_s, self.pause_s) <= 0:
            raise InvalidArgument("Rates and the pause must be above 0.")

    @property
    def settings(self) -> QueueSettings:
        """The queue's settings, as a user would choose them."""
        return QueueSettings.make(
            stripes=self.stripes,
            dequeue=self.method,
            dequeue_tries=self.tries,
            dequeue_pause_ms=max(1, round(1e3 * self.pause_s)),
        )


class _Stripe:
    """Messages that wait, by when they were sent, and the node that keeps them."""

    def __init__(self, timeline: Timeline) -> None:
        self.node = Node(timeline)
        self.sent_s: deque[float] = deque()
        #: Messages that ever arrived: who has seen the stripe empty at this count need not look.
        self.arrived = 0


@dataclass(slots=True)
class _Tally:
    """What is counted."""

    sent: int = 0
    asked: int = 0
    hits: int = 0
    misses: int = 0
    looks: int = 0
    delivered: int = 0
    delay_s: float = 0.0


class Fabric:
    """One run."""

    def __init__(self, load: Load, seed: int = 0) -> None:
        self.load = load
        self.settings = load.settings
        self.timeline = Timeline()
        self.tally = _Tally()
        #: Messages that ever arrived.
        self.arrivals = 0
        self.stripes = [_Stripe(self.timeline) for _ in range(load.stripes)]
        self.controllers = [_Controller(self, number) for number in range(load.controllers)]
        chance = random.Random(seed)
        for number in range(load.senders):
            _Sender(self, number, chance.random())
        for number in range(load.back_ends):
            controller = self.controllers[number % load.controllers]
            _BackEnd(controller, random.Random(chance.random()))

    def arrived(self, stripe: _Stripe) -> None:
        """A message was stored: each controller calls one of those who wait."""
        stripe.arrived += 1
        self.arrivals += 1
        for controller in self.controllers:
            controller.call_next()


class _Sender:
    """Devices behind one E-Ctrl: a message every so often, to the stripes in turn."""

    def __init__(self, fabric: Fabric, number: int, phase: float) -> None:
        self._fabric = fabric
        self._next = number
        self._sending = 0
        self._gap_s = 1 / fabric.load.sends_per_s
        fabric.timeline.after(phase * self._gap_s, self._tick)

    def _tick(self) -> None:
        fabric = self._fabric
        if self._sending < fabric.load.sends_max:
            stripe = fabric.stripes[self._next % len(fabric.stripes)]
            self._next += 1
            self._sending += 1
            sent_s = fabric.timeline.now_s
            stripe.node.serve(
                lambda: fabric.load.costs.enqueue_s, lambda: self._stored(stripe, sent_s)
            )
        fabric.timeline.after(self._gap_s, self._tick)

    def _stored(self, stripe: _Stripe, sent_s: float) -> None:
        self._sending -= 1
        self._fabric.tally.sent += 1
        stripe.sent_s.append(sent_s)
        self._fabric.arrived(stripe)


class _BackEnd:
    """Asks at Poisson times."""

    def __init__(self, controller: _Controller, chance: random.Random) -> None:
        self._controller = controller
        self._chance = chance
        self._asking = 0
        self._ask_later()

    def answered(self) -> None:
        """A request is done."""
        self._asking -= 1

    def _ask_later(self) -> None:
        fabric = self._controller.fabric
        fabric.timeline.after(self._chance.expovariate(fabric.load.asks_per_s), self._ask)

    def _ask(self) -> None:
        fabric = self._controller.fabric
        if self._asking < fabric.load.asks_max:
            self._asking += 1
            fabric.tally.asked += 1
            _Request(self, self._controller).start()
        self._ask_later()


class _Controller:
    """A D-Ctrl."""

    def __init__(self, fabric: Fabric, number: int) -> None:
        self.fabric = fabric
        self._turn = number
        #: Those who wait for an arrival, in the order they came, and how to go on with them.
        self.lobby: OrderedDict[_Request, Callable[[], None]] = OrderedDict()
        #: How many messages had arrived at each stripe when it was last seen empty.
        self.barren: dict[int, int] = {}
        self._counters: list[int] = []
        self._read_s = -1e9

    def turn(self) -> int:
        """The stripe that a request begins with; one further each time."""
        self._turn += 1
        return self._turn % self.fabric.load.stripes

    def call_next(self) -> None:
        """Call the first of those who wait."""
        if self.lobby:
            _, wake = self.lobby.popitem(last=False)
            wake()

    def counters(self, then: Callable[[list[int]], None]) -> None:
        """The messages of each stripe, read at most once per period, one node after the other."""
        fabric = self.fabric
        if fabric.timeline.now_s - self._read_s < fabric.load.pause_s:
            then(self._counters)
            return
        self._read_s = fabric.timeline.now_s
        self._counters = [0] * len(fabric.stripes)
        fabric.tally.looks += len(fabric.stripes)

        def read(number: int) -> None:
            if number == len(fabric.stripes):
                then(self._counters)
                return
            stripe = fabric.stripes[number]

            def note() -> None:
                self._counters[number] = len(stripe.sent_s)
                read(number + 1)

            stripe.node.serve(lambda: fabric.load.costs.look_s, note)

        read(0)

    def note(self, number: int, found: int) -> None:
        """What a visit found corrects the counter."""
        if self._counters:
            self._counters[number] = max(0, self._counters[number] - found) if found else 0


class _Request:
    """One request of a back end: does what its machine says."""

    def __init__(self, back_end: _BackEnd, controller: _Controller) -> None:
        self._back_end = back_end
        self._controller = controller
        self._fabric = controller.fabric
        load = self._fabric.load
        self._first = controller.turn()
        deadline_ms = self._now_ms + round(1e3 * load.wait_s)
        self._call: DequeueCall = make_call(
            self._fabric.settings, load.messages_max, load.stripes, deadline_ms
        )
        self._found_s: list[float] = []
        #: Whether a stripe that it visited has more.
        self._left = False
        self._parked = 0
        #: Messages that had arrived when the round began.
        self._seen = self._fabric.arrivals

    @property
    def _now_ms(self) -> int:
        return self._fabric.timeline.now_ms

    def start(self) -> None:
        """Begin."""
        self._do(self._call.start(self._now_ms))

    def _do(self, action: Action) -> None:
        while isinstance(action, Try):
            number = (self._first + action.stripe) % self._fabric.load.stripes
            if not self._is_barren(number):
                self._visit(number)
                return
            action = self._call.tried(0, self._now_ms)
        if isinstance(action, Look):
            self._controller.counters(self._looked)
        elif isinstance(action, Answer):
            self._answer()
        else:
            self._park(action)

    def _is_barren(self, number: int) -> bool:
        """Whether `wake` knows that nothing has come since the stripe was seen empty."""
        seen = self._controller.barren.get(number)
        return self._fabric.load.method == "wake" and seen == self._fabric.stripes[number].arrived

    def _visit(self, number: int) -> None:
        stripe, costs = self._fabric.stripes[number], self._fabric.load.costs
        found = 0

        def begin() -> float:
            nonlocal found
            arrived = stripe.arrived
            found = min(self._call.want - self._call.found, len(stripe.sent_s))
            self._found_s += [stripe.sent_s.popleft() for _ in range(found)]
            if stripe.sent_s:
                self._controller.barren.pop(number, None)
            else:
                self._controller.barren[number] = arrived
            if not found:
                self._fabric.tally.misses += 1
                return costs.miss_s
            self._fabric.tally.hits += 1
            return costs.hit_s + found * costs.message_s

        def end() -> None:
            self._left = self._left or bool(stripe.sent_s)
            self._controller.note(number, found)
            self._do(self._call.tried(found, self._now_ms))

        stripe.node.serve(begin, end)

    def _looked(self, counters: list[int]) -> None:
        count = self._fabric.load.stripes
        depths = [counters[(self._first + step) % count] for step in range(count)]
        self._do(self._call.looked(depths, self._now_ms))

    def _park(self, park: Park) -> None:
        self._parked += 1
        spell = self._parked

        def wake() -> None:
            if self._parked == spell:
                self._parked += 1
                self._controller.lobby.pop(self, None)
                self._first = self._controller.turn()
                self._seen = self._fabric.arrivals
                self._do(self._call.woken(self._now_ms))

        if park.watch and self._fabric.arrivals > self._seen:
            self._fabric.timeline.after(0, wake)  # Something has come meanwhile.
            return
        if park.watch:
            self._controller.lobby[self] = wake
        assert park.until_ms is not None  # Every request has a deadline.
        # Never before the moment itself: the machine would find that it is not over yet.
        delay_s = park.until_ms / 1e3 - self._fabric.timeline.now_s
        self._fabric.timeline.after(max(1e-3, delay_s + 1e-9), wake)

    def _answer(self) -> None:
        tally, now_s = self._fabric.tally, self._fabric.timeline.now_s
        tally.delivered += len(self._found_s)
        tally.delay_s += sum(now_s - sent_s for sent_s in self._found_s)
        self._back_end.answered()
        if self._left:
            self._controller.call_next()


def simulate(
    load: Load, seed: int = 0, seconds: float = 30.0, warm_s: float = 10.0
) -> dict[str, float]:
    """One run: throughput, hit rate, messages per hit and delay over `seconds`, after a warm-up."""
    fabric = Fabric(load, seed)
    fabric.timeline.run(warm_s)
    fabric.tally = tally = _Tally()
    worked_s = sum(stripe.node.worked_s for stripe in fabric.stripes)
    fabric.timeline.run(warm_s + seconds)
    worked_s = sum(stripe.node.worked_s for stripe in fabric.stripes) - worked_s
    visits = tally.hits + tally.misses
    return {
        "sent_per_s": tally.sent / seconds,
        "delivered_per_s": tally.delivered / seconds,
        "asked_per_s": tally.asked / seconds,
        "visits_per_s": visits / seconds,
        "hit_rate": tally.hits / visits if visits else 0.0,
        "messages_per_hit": tally.delivered / tally.hits if tally.hits else 0.0,
        "delay_ms": 1e3 * tally.delay_s / tally.delivered if tally.delivered else 0.0,
        "looks_per_s": tally.looks / seconds,
        "busy_share": worked_s / seconds / load.stripes,
    }
