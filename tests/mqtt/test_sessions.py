"""How far a client has come in the messages that wait for it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ringdove.frontends.mqtt.delivery import Deliveries
from ringdove.frontends.mqtt.message import Message, encode_message
from ringdove.frontends.mqtt.session import Session
from ringdove.stores.memory import MemoryStore


def test_offsets_that_no_message_has_are_passed_when_all_before_them_is_done():
    session = Session("c", "1")
    session.skip(3, 1_000)
    for offset in (1_000, 0, 2):
        session.finish(offset)
    assert (session.flight.floor, session.flight.done) == (1, {2, 1_000})
    assert session.finish(1)
    assert (session.flight.floor, session.flight.done) == (1_001, set())


@settings(deadline=None)
@given(st.data())
def test_the_floor_is_the_first_message_that_is_not_done(data):
    """Whatever is missing, in whichever order messages are done or dropped."""
    steps = data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=8))
    session = Session("c", "1")
    messages: list[int] = []
    at = 0
    for count, missing in steps:
        messages += range(at, at + count)
        at += count + missing
        session.skip(at - missing, at)
    left = set(messages)
    for offset in data.draw(st.permutations(messages)):
        if data.draw(st.booleans()):
            session.finish(offset)
            left.discard(offset)
        else:  # Those before it were dropped.
            session.skip_to(offset)
            left = {one for one in left if one >= offset}
        assert session.flight.floor == min(left, default=at)
        assert len(session.flight.done) <= len(messages)


class Taking:
    """A connection whose client takes everything, and acknowledges when told; and its machine."""

    room = 10

    def __init__(self):
        self.machine = self
        self.taken: list[int] = []

    def in_use(self, packet_id):
        return packet_id in self.taken

    def send(self, message, packet_id, now_ms, *, dup):
        self.taken.append(packet_id)
        return True


class Stored:
    """Messages of a stripe, from an offset on."""

    def __init__(self, base, count):
        self.base = base
        self._bodies = [encode_message(Message("t", b"", 1))] * count

    def bodies(self, first):
        return self._bodies[first:]


def test_a_busy_client_comes_past_what_a_failover_has_skipped():
    session, connection = Session("c", "1"), Taking()
    deliveries = Deliveries(MemoryStore(), None, None, shared=True)
    assert deliveries._send_block(session, connection, Stored(0, 2))
    assert deliveries._send_block(session, connection, Stored(1_000, 2))
    for packet_id in connection.taken:
        deliveries._finish(session, packet_id)
    assert (session.flight.floor, session.flight.done) == (1_002, set())
