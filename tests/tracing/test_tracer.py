"""Tracers: rows of sends and receives that name the same messages, in few blocks."""

from array import array

import pytest

from ringdove.errors import InvalidArgument, QueueNotFound
from ringdove.tracing import TraceBlock, Tracer
from ringdove.tracing.block import DAMAGED, INTACT, UNCHECKED
from ringdove.tracing.tracer import LINGER_S, ROWS_PER_MESSAGE, ROWS_TOGETHER, ids_of


class Time:
    """A clock of nanoseconds that obeys."""

    def __init__(self):
        self.us = 5_000_000

    def __call__(self):
        return self.us * 1000


@pytest.fixture
def time():
    return Time()


def decoded(bodies):
    return [TraceBlock.decode(body) for body in bodies]


def times(block):
    return list(array("q", block.times_us))


def ids(block):
    ends = array("i", block.offsets)
    return [block.ids[lo:hi] for lo, hi in zip(ends, ends[1:], strict=False)]


def test_sends_and_receives_name_the_same_messages(rd, time):
    queue = rd.create_queue("readings", stripes=3)
    trace = Tracer("readings", None, name="me", clock_ns=time)
    trace.sent(queue.send(b"one"))
    trace.sent(queue.send_many([b"two", b"three", b"four"]))
    time.us += 40
    batch = queue.receive(max=2)
    trace.received(batch, intact=True)
    for message in queue.receive(max=2):
        trace.received(message)
    sent, received = decoded(trace.take())
    assert (sent.queue, sent.kind, sent.party, sent.first) == ("readings", "sent", "me", 0)
    assert (received.kind, received.party, received.first) == ("received", "me", 0)
    assert sorted(ids(sent)) == sorted(ids(received))
    assert len(set(ids(sent))) == 4
    assert (times(sent), times(received)) == (4 * [5_000_000], 4 * [5_000_040])
    assert list(received.checks) == [INTACT, INTACT, UNCHECKED, UNCHECKED]
    assert trace.take() == []


def test_rows_are_numbered_on_from_block_to_block(time):
    trace = Tracer("q", None, clock_ns=time)
    trace.sent([b"%d" % n for n in range(ROWS_PER_MESSAGE + 5)])
    first, second = decoded(trace.take())
    assert (first.first, first.count) == (0, ROWS_PER_MESSAGE)
    assert (second.first, second.count) == (ROWS_PER_MESSAGE, 5)
    trace.sent(b"later", at_us=17)
    (third,) = decoded(trace.take())
    assert (third.first, ids(third), times(third)) == (ROWS_PER_MESSAGE + 5, [b"later"], [17])


def test_checksum_results_may_differ_by_message(time):
    trace = Tracer("q", None, clock_ns=time)
    trace.received([b"a", b"b"], intact=[True, False])
    trace.received([b"c"], intact=False)
    (block,) = decoded(trace.take())
    assert list(block.checks) == [INTACT, DAMAGED, DAMAGED]
    with pytest.raises(InvalidArgument, match="2 checksum results do not fit 1"):
        trace.received(b"d", intact=[True, False])


def test_a_trace_queue_gets_blocks_at_the_end_or_after_a_while_or_when_there_are_many(rd, time):
    traces = rd.create_queue("traces")
    with Tracer("q", traces, clock_ns=time) as trace:
        trace.sent(b"a")
        assert traces.stats().messages == 0
        time.us += int(LINGER_S * 1e6)
        trace.received(b"a")
        assert traces.stats().messages == 2
        trace.sent([b"%d" % n for n in range(ROWS_TOGETHER)])
        many = traces.stats().messages
        assert many == 2 + -(-ROWS_TOGETHER // ROWS_PER_MESSAGE)
        trace.sent(b"last")
    bodies = [message.body for message in traces.replay()]
    assert len(bodies) == many + 1
    assert sum(block.count for block in decoded(bodies)) == ROWS_TOGETHER + 3


def test_rows_that_could_not_be_passed_on_are_passed_on_later(rd, time):
    traces = rd.queue("not-yet-there")
    trace = Tracer("q", traces, clock_ns=time)
    trace.sent([b"a", b"b"])
    with pytest.raises(QueueNotFound):
        trace.flush()
    rd.create_queue("not-yet-there")
    trace.sent(b"c")
    trace.close()
    (block,) = decoded(message.body for message in traces.replay())
    assert (block.first, ids(block)) == (0, [b"a", b"b", b"c"])


def test_names_are_unique_unless_given():
    assert Tracer("q", None).name != Tracer("q", None).name
    assert Tracer("q", None, name="x").name == "x"


def test_a_message_that_the_queue_had_already_has_the_same_id(rd):
    queue = rd.create_queue("once", delivery="exactly-once")
    sent, again = queue.send(b"a", id="same"), queue.send(b"a", id="same")
    assert again.duplicate
    assert ids_of([sent, again]) == 2 * ids_of(sent)
    assert ids_of([sent, again._replace(offset=-1)]) == ids_of(sent)


@pytest.mark.parametrize("wrong", [[5], ["text"], [None]])
def test_what_names_no_message_is_refused(wrong):
    with pytest.raises(InvalidArgument, match="names no message"):
        Tracer("q", None).sent(wrong)


def test_a_place_that_cannot_take_traces_is_refused():
    with pytest.raises(InvalidArgument, match="cannot go to 7"):
        Tracer("q", 7)
