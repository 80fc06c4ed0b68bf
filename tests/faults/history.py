"""An independent judge of what a store did before and after a crash.

The process under test writes down what it is about to do and what came back (events.py). `Ledger`
follows such a history and knows at any moment what a store has promised; `check` holds a reopened
store against it. Neither uses anything of the store but its public calls.

What is checked, in the words of stores/base.py: nothing acknowledged or ever delivered is lost or
changed (I1), nothing is in two live leases (I3), nothing whose acknowledge returned is delivered
again (I4), nothing goes before it is done (I6), no offset is reused and there is no gap (I7), no
message is stored twice (M2), an append that never returned is there as a whole or not at all, what
is neither done nor on its way to be is deliverable (I2), what one key or all of a strict queue has
is delivered in its order and to one receiver at a time, and a record is what was written last.
"""

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from faults.events import (
    Acknowledged,
    Acknowledging,
    Crash,
    Event,
    Leased,
    Put,
    Putting,
    Refused,
    Releasing,
    Sending,
    Sent,
    Stripe,
    Trouble,
    bodies,
    digest,
    keys,
)
from ringdove.clock import ManualClock
from ringdove.core.block import Block
from ringdove.limits import LEASE_MESSAGES_MAX
from ringdove.pending import run
from ringdove.stores.base import Claim, Store, StripeId, StripeStats

#: How long workloads lease: longer than any process under test lives, so that no lease just ends.
LEASE_MS = 60_000

#: How much longer to wait for leases to end: a commit writes down the time at which it began, so
#: the leases that it takes along may be a little younger than the time found after a crash.
MARGIN_MS = 10_000


class Reader:
    """What the history says about one subscription; offsets that were trimmed are forgotten."""

    def __init__(self) -> None:
        #: Offsets that are leased, with the number of their delivery.
        self.live: dict[int, int] = {}
        self.maybe_done: set[int] = set()
        self.done: set[int] = set()


class Log:
    """What the history says about one stripe."""

    def __init__(self) -> None:
        #: Digests by offset of everything acknowledged or seen, from `head` on.
        self.content: dict[int, str] = {}
        self.head = 0
        self.tail = 0
        self.readers: dict[str, Reader] = {}


class Ledger:
    """Everything that the events so far promise, and every promise they show broken."""

    def __init__(
        self, stripes: dict[Stripe, list[str]], orders: Mapping[Stripe, str] | None = None
    ) -> None:
        """`stripes` names the subscriptions of each stripe to be judged; others are ignored.

        `orders` says which of them keep the order of all their messages, or of a key's.
        """
        self.faults: list[str] = []
        self.logs = {stripe: Log() for stripe in stripes}
        for stripe, names in stripes.items():
            self.logs[stripe].readers = {name: Reader() for name in names}
        #: Appends that did not return, those first that began first.
        self.open: dict[int, Sending] = {}
        #: Which operation a body belongs to, and where it was seen.
        self.op_of: dict[str, int] = {}
        self.places: dict[str, int] = {}
        #: How often each kind of event was seen, so that a test can show that it tested something.
        self.counts: dict[str, int] = {}
        self.orders = orders or {}
        #: Which messages of an ordered queue go one after the other.
        self.group_of: dict[str, bytes] = {}
        #: Version and digest of every record, and digests that were being written.
        self.records: dict[str, tuple[int, str]] = {}
        self.putting: dict[str, set[str]] = {}
        self._of_op: dict[int, list[list[str]]] = {}
        self._stripe_of: dict[int, Stripe] = {}
        #: Appends that returned without an offset: they must be somewhere.
        self._somewhere: set[int] = set()

    def follow(self, events: Iterable[Event]) -> None:
        """Take further events into account."""
        for event in events:
            kind = type(event).__name__
            self.counts[kind] = self.counts.get(kind, 0) + 1
            match event:
                case Sending():
                    self._sending(event)
                case Sent():
                    self._sent(event)
                case Refused():
                    self._refused(event)
                case Leased():
                    self._leased(event)
                case Acknowledging() | Acknowledged() | Releasing():
                    self._settled(event)
                case Putting():
                    self.putting.setdefault(event.key, set()).add(event.digest)
                case Put():
                    self._put(event)
                case Crash():
                    for log in self.logs.values():
                        for reader in log.readers.values():
                            reader.live.clear()
                case Trouble():
                    self.faults.append(event.text)

    def _sending(self, event: Sending) -> None:
        if event.stripe not in self.logs or event.op in self._of_op:
            return
        digests = [[digest(content) for content in segment] for segment in bodies(event)]
        self.open[event.op] = event
        self._of_op[event.op] = digests
        self._stripe_of[event.op] = event.stripe
        self.op_of.update((name, event.op) for segment in digests for name in segment)
        order = self.orders.get(event.stripe)
        if order:
            for names, groups in zip(digests, keys(event), strict=True):
                self.group_of.update(
                    zip(names, groups if order == "key" else [b""] * len(names), strict=True)
                )

    def _sent(self, event: Sent) -> None:
        if event.op not in self._of_op:
            return
        stripe = self._stripe_of[event.op]
        self.open.pop(event.op, None)
        for base, segment in zip(event.bases, self._of_op[event.op], strict=True):
            if base < 0:
                self._somewhere.add(event.op)
                continue
            for offset, name in enumerate(segment, base):
                self.saw(stripe, offset, name, "acknowledged")

    def _refused(self, event: Refused) -> None:
        self.open.pop(event.op, None)
        for segment in self._of_op.get(event.op, []):
            for name in segment:
                self.op_of.pop(name, None)

    def saw(self, stripe: Stripe, offset: int, name: str, how: str) -> None:
        """A body was seen at an offset, where it must stay until it is trimmed."""
        log = self.logs[stripe]
        log.tail = max(log.tail, offset + 1)
        at = self.places.setdefault(name, offset)
        if at != offset:
            self.faults.append(f"{how} at {stripe} {offset}, a message is also at {at} (M2)")
        if name not in self.op_of:
            self.faults.append(f"{how} at {stripe} {offset} is a body that nobody sent")
        if offset >= log.head:
            known = log.content.setdefault(offset, name)
            if known != name:
                self.faults.append(
                    f"{how} at {stripe} {offset} is another message than before (I7)"
                )

    def _leased(self, event: Leased) -> None:
        if event.stripe not in self.logs:
            return
        log = self.logs[event.stripe]
        reader = log.readers[event.subscription]
        for offset, name in enumerate(event.digests, event.lo):
            where = f"{event.stripe} {offset} to {event.subscription}"
            self.saw(event.stripe, offset, name, "delivered")
            if offset in reader.done or offset < log.head:
                self.faults.append(f"delivered again although acknowledged: {where} (I4)")
            if offset in reader.live:
                self.faults.append(f"delivered twice at a time: {where} (I3)")
            reader.live[offset] = event.delivery
        if event.stripe in self.orders:
            self._in_order(event, log, reader)

    def _in_order(self, event: Leased, log: Log, reader: Reader) -> None:
        """What comes before a message in its group is done, or is in the same delivery."""
        last = {self.group_of.get(name): o for o, name in enumerate(event.digests, event.lo)}
        for offset, name in log.content.items():
            highest = last.get(self.group_of.get(name), -1)
            held = reader.live.get(offset)
            if highest < 0 or held == event.delivery or offset in reader.maybe_done:
                continue
            if offset < highest or held is not None:
                self.faults.append(
                    f"delivered out of order: {event.stripe} {highest} to {event.subscription}, "
                    f"while {offset} is not done"
                )

    def _put(self, event: Put) -> None:
        self.putting[event.key].discard(event.digest)
        if event.version > self.records.get(event.key, (0, ""))[0]:
            self.records[event.key] = event.version, event.digest

    def _settled(self, event: Acknowledging | Acknowledged | Releasing) -> None:
        if event.stripe not in self.logs:
            return
        reader = self.logs[event.stripe].readers[event.subscription]
        for offset in range(event.lo, event.hi):
            match event:
                case Releasing():
                    reader.live.pop(offset, None)
                case Acknowledging():
                    reader.maybe_done.add(offset)
                case Acknowledged():
                    reader.done.add(offset)

    def unfinished(self) -> list[str]:
        """Appends of which there is a part without the rest, or nothing although they returned."""
        faults = []
        for op in [*self.open, *self._somewhere]:
            found = [name in self.places for segment in self._of_op[op] for name in segment]
            if any(found) != all(found):
                faults.append(f"operation {op} is torn: {sum(found)} of {len(found)} messages")
            if op in self._somewhere and not any(found):
                faults.append(f"operation {op} was a repetition, but its messages are nowhere (I1)")
        self._somewhere.clear()
        return faults


def present() -> ManualClock:
    """A clock that starts now and then moves only when told."""
    return ManualClock(time.time_ns() // 1_000_000)


def check(ledger: Ledger, store: Store) -> list[str]:
    """What is wrong with a reopened store; it is left as it was, but its clock has moved on."""
    assert isinstance(store.clock, ManualClock), "the time must be made to pass"
    store.clock.sleep_ms(LEASE_MS + MARGIN_MS)
    faults, ledger.faults = ledger.faults, []
    for stripe, log in ledger.logs.items():
        try:
            faults += _check_stripe(ledger, store, stripe, log)
        except Exception as error:
            faults.append(f"{stripe} cannot be read: {error!r}")
    faults += ledger.faults + ledger.unfinished() + _check_records(ledger, store)
    ledger.faults = []
    return faults


def _check_records(ledger: Ledger, store: Store) -> list[str]:
    """Records are as the last that returned has left them, or one that did not."""
    faults = []
    for key in ledger.records.keys() | ledger.putting.keys():
        version, name = ledger.records.get(key, (0, ""))
        record = run(store.get(key))
        found = (record.version, digest(record.value)) if record is not None else (0, "")
        newer = found[0] > version and found[1] in ledger.putting.get(key, ())
        if found != (version, name) and not newer:
            faults.append(f"record {key!r} has version {found[0]}, not {version} (I1)")
        ledger.records[key] = found
    ledger.putting.clear()
    return faults


def _check_stripe(ledger: Ledger, store: Store, stripe: Stripe, log: Log) -> list[str]:
    # So that the writer does not trim while the log is read.
    run(store.trim(StripeId(*stripe)))
    stats = run(store.stats(StripeId(*stripe)))
    faults = []
    if stats.tail < log.tail:
        faults.append(f"{stripe} ends at {stats.tail}, but {log.tail - 1} was promised (I1)")
    if stats.head < log.head:
        faults.append(f"{stripe} starts at {stats.head}, but was trimmed to {log.head}")
    at = stats.head
    for block in _blocks(store, stripe, stats.head, stats.tail):
        if block.base != at:
            faults.append(f"{stripe} has a gap from {at} to {block.base} (I7)")
        for offset, content in enumerate(block.bodies(), block.base):
            ledger.saw(stripe, offset, digest(content), "stored")
        at = block.end
    if at != stats.tail:
        faults.append(f"{stripe} has blocks up to {at}, but says {stats.tail}")
    names = {subscription.name for subscription in stats.subscriptions}
    if names != set(log.readers):
        return [*faults, f"{stripe} has subscriptions {names}, not {set(log.readers)}"]
    for name, reader in log.readers.items():
        rounds = deliveries(store, StripeId(*stripe), name)
        if stripe in ledger.orders:
            faults += _check_order(ledger, stripe, name, rounds)
        delivered = {offset: found for round_ in rounds for offset, found in round_}
        faults += _check_reader(f"{stripe} to {name}", delivered, reader, log, stats)
    _forget(log, stats.head)
    return faults


def _blocks(store: Store, stripe: Stripe, at: int, tail: int) -> Iterator[Block]:
    while at < tail:
        found = run(store.read(StripeId(*stripe), at, 1_000, 1 << 20))
        if not found:
            return
        yield from found
        at = found[-1].end


def _check_order(
    ledger: Ledger, stripe: Stripe, name: str, rounds: list[list[tuple[int, str]]]
) -> list[str]:
    """Whatever comes of a group is what it has first."""
    groups: dict[bytes | None, set[int]] = {}
    for offset, found in itertools.chain.from_iterable(rounds):
        groups.setdefault(ledger.group_of.get(found), set()).add(offset)
    for number, round_ in enumerate(rounds):
        for group, offsets in groups.items():
            came = [offset for offset, found in round_ if ledger.group_of.get(found) == group]
            if came != sorted(offsets)[: len(came)]:
                return [f"delivered out of order: {stripe} to {name}, {group!r} in round {number}"]
    return []


def _check_reader(
    where: str, delivered: dict[int, str], reader: Reader, log: Log, stats: StripeStats
) -> list[str]:
    head, tail = stats.head, stats.tail
    faults = [
        f"delivered again although acknowledged: {where}, offset {offset} (I4)"
        for offset in sorted(delivered.keys() & reader.done)
    ]
    faults += [
        f"delivered as another message: {where}, offset {offset}"
        for offset, found in delivered.items()
        if log.content.get(offset) != found
    ]
    maybe_done = reader.maybe_done | reader.done
    faults += [
        f"trimmed before it was done: {where}, offset {offset} (I6)"
        for offset in log.content
        if offset < head and offset not in maybe_done
    ]
    missing = [o for o in range(head, tail) if o not in delivered and o not in maybe_done]
    if missing:
        faults.append(f"never delivered: {where}, {len(missing)} from offset {missing[0]} on (I2)")
    # What was on its way to be done is so or not, from now on.
    reader.done |= maybe_done - delivered.keys()
    reader.maybe_done = set(reader.done)
    return faults


def deliverable(store: Store, stripe: StripeId, subscription: str) -> dict[int, str]:
    """The digests of everything that can be leased, which is released again."""
    return dict(itertools.chain.from_iterable(deliveries(store, stripe, subscription)))


def deliveries(store: Store, stripe: StripeId, subscription: str) -> list[list[tuple[int, str]]]:
    """Offsets and digests of everything that can be leased, as it came; it is released again.

    Several rounds, because the messages of a key that come after leased ones wait for these.
    """
    rounds: list[list[tuple[int, str]]] = []
    known: set[int] = set()
    while True:
        claims: list[Claim] = []
        found: list[tuple[int, str]] = []
        more = True
        while more:
            delivery = run(store.lease(stripe, subscription, LEASE_MESSAGES_MAX, LEASE_MS, 1, 0))
            for leased in delivery.runs:
                lo, hi = leased.run.lo, leased.run.hi
                claims.append(Claim(delivery.epoch, leased.run.token, lo, hi))
                contents = (content for block in leased.blocks for content in block.bodies())
                found += zip(range(lo, hi), map(digest, contents), strict=True)
            more = delivery.more
        answers: list[Any] = (
            run(store.release(stripe, subscription, claims, 0, 0)) if claims else []
        )
        assert all(isinstance(answer, int) for answer in answers), answers
        rounds.append(found)
        if known.issuperset(offset for offset, _ in found):
            return rounds
        known.update(offset for offset, _ in found)


def _forget(log: Log, head: int) -> None:
    """Keep nothing about what was trimmed, so that a long history stays cheap to follow."""
    log.head = max(log.head, head)
    log.content = {offset: name for offset, name in log.content.items() if offset >= log.head}
    for reader in log.readers.values():
        reader.live.clear()
        reader.done = {offset for offset in reader.done if offset >= log.head}
        reader.maybe_done = {offset for offset in reader.maybe_done if offset >= log.head}
