"""A client's session without I/O: five transitions, and requests that outlive connections."""

from itertools import product
from typing import Any

import pytest

from ringdove.core.block import Block
from ringdove.errors import (
    ConnectionClosed,
    LocalProtocolError,
    NotAuthorized,
    QueueFull,
    RemoteProtocolError,
    RingdoveError,
    SequenceRefused,
)
from ringdove.protocol import frames, messages
from ringdove.protocol.frames import Frame, FrameDecoder
from ringdove.protocol.messages import Verb
from ringdove.protocol.session import ClientSession, Request, SessionState, decode_error

NOT_CONNECTED, CONNECTING, CONNECTED, CLOSED = SessionState

ALLOWED = {
    (NOT_CONNECTED, CONNECTING),
    (CONNECTING, CONNECTED),
    (CONNECTED, CONNECTING),
    (CONNECTING, CLOSED),
    (CONNECTED, CLOSED),
    (NOT_CONNECTED, CLOSED),  # Ended before it began.
}

WELCOME = messages.Welcome(messages.PROTOCOL_VERSION, "server", ["stream"], 1 << 20, 16, 30.0)


def frame(verb: int, number: int = 0, value: Any = None) -> Frame:
    return Frame(verb, number, 0, b"" if value is None else messages.encode(value), b"")


def error_frame(verb: int, number: int, error: RingdoveError) -> Frame:
    return frame(verb, number, messages.encode_error(error))


def request(verb: Verb = Verb.GET, meta: bytes = b"") -> Request:
    return Request(verb, meta)


@pytest.fixture
def session() -> ClientSession:
    """A session whose server has welcomed it."""
    session = ClientSession("test")
    session.change(CONNECTING)
    session.hello()
    session.take(frame(Verb.REPLY, 0, WELCOME))
    session.change(CONNECTED)
    return session


def begun(session: ClientSession, count: int) -> list[Request]:
    requests = [request(meta=b"%d" % n) for n in range(count)]
    for each in requests:
        session.begin(each)
    return requests


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), list(product(SessionState, SessionState)))
def test_a_session_takes_the_allowed_transitions_and_no_other(before, after):
    session = ClientSession("test")
    seen = []
    session.on_state = lambda *change: seen.append(change)
    session.state = before
    if before is after:
        session.change(after, "again")
        assert seen == []
    elif (before, after) in ALLOWED:
        session.change(after, "why")
        assert session.state is after
        assert seen == [(before, after, "why")]
    else:
        with pytest.raises(LocalProtocolError, match="cannot go"):
            session.change(after, "why")
        assert session.state is before
        assert seen == []


def test_a_session_begins_unconnected_and_ends_once():
    session = ClientSession("test")
    seen = []
    session.on_state = lambda *change: seen.append(change)
    assert session.state is NOT_CONNECTED
    session.close(ConnectionClosed("Over."), "over")
    session.close(ConnectionClosed("Again."), "again")
    assert seen == [(NOT_CONNECTED, CLOSED, "over")]


# -- hello and welcome -----------------------------------------------------------------------------


def test_hello_says_who_and_what():
    session = ClientSession("me")
    [sent] = FrameDecoder().feed(frames.join([session.hello(b"secret")]))
    assert (sent.verb, sent.number) == (Verb.HELLO, 0)
    assert messages.decode(messages.Hello, sent.meta) == messages.Hello(
        messages.PROTOCOL_VERSION, "me", list(messages.FEATURES), b"secret"
    )


def test_a_welcome_is_kept_until_the_next_hello(session: ClientSession):
    assert session.welcome == WELCOME
    session.hello()
    assert session.welcome is None


@pytest.mark.parametrize("verb", [Verb.ERROR, Verb.GOODBYE])
def test_a_refusal_instead_of_a_welcome_is_raised(verb):
    session = ClientSession("test")
    session.hello()
    with pytest.raises(NotAuthorized, match="No"):
        session.take(error_frame(verb, 0, NotAuthorized("No.")))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (frame(Verb.BLOCK), "did not begin"),
        (frame(Verb.HELLO), "did not begin"),
        (frame(Verb.REPLY, 0, [2, "later", [], 1, 1, 1.0]), "version 2"),
        (frame(Verb.REPLY, 0, "welcome"), "cannot be read"),
        (frame(Verb.ERROR, 0, "no"), "cannot be read"),
    ],
)
def test_what_is_no_welcome_is_refused(bad, told):
    session = ClientSession("test")
    session.hello()
    with pytest.raises(RemoteProtocolError, match=told):
        session.take(bad)
    assert session.welcome is None


# -- requests --------------------------------------------------------------------------------------


def test_a_request_is_written_with_its_number_and_counts_its_attempts(session: ClientSession):
    block = Block.build([b"body"], sent_ms=1)
    asked = Request(Verb.SEND, b"meta", [block])
    told = []
    asked.on_begin = told.append
    session.begin(asked)
    assert told == [asked.number]
    decoder = FrameDecoder()
    for times in (1, 2):
        [sent] = decoder.feed(frames.join([asked.encode()]))
        assert (sent.verb, sent.number, bytes(sent.meta)) == (Verb.SEND, asked.number, b"meta")
        assert frames.blocks_of(sent, 1)[0].bodies() == [b"body"]
        assert asked.sent_times == times


def test_numbers_are_unique_and_never_zero(session: ClientSession):
    numbers = [each.number for each in begun(session, 100)]
    assert len(set(numbers)) == 100
    assert 0 not in numbers


def test_numbers_start_over_before_they_outgrow_the_header(session: ClientSession):
    session._number = 2**32 - 2
    last, first = begun(session, 2)
    assert (last.number, first.number) == (2**32 - 2, 1)
    last.encode()


def test_a_number_that_is_still_in_use_is_not_given_out_again(session: ClientSession):
    old = begun(session, 3)
    session._number = 2**32 - 2
    new = begun(session, 2)
    assert [each.number for each in new] == [2**32 - 2, 4]
    assert session.unanswered == [*old, *new]


def test_answers_are_delivered_by_number_in_any_order(session: ClientSession):
    first, second, third = begun(session, 3)
    session.take(frame(Verb.REPLY, third.number, "third"))
    session.take(frame(Verb.REPLY, first.number, "first"))
    assert not second.answer.done
    assert messages.decode(str, first.answer.result().meta) == "first"
    assert messages.decode(str, third.answer.result().meta) == "third"
    assert session.unanswered == [second]


def test_an_error_is_delivered_as_an_exception(session: ClientSession):
    full, refused = begun(session, 2)
    session.take(error_frame(Verb.ERROR, full.number, QueueFull("Full.")))
    session.take(error_frame(Verb.ERROR, refused.number, SequenceRefused("Jumped.", 7)))
    with pytest.raises(QueueFull, match="Full"):
        full.answer.result()
    with pytest.raises(SequenceRefused) as caught:
        refused.answer.result()
    assert caught.value.expected == 7
    assert session.unanswered == []


def test_an_answer_that_nobody_waits_for_is_ignored(session: ClientSession):
    [asked] = begun(session, 1)
    session.take(frame(Verb.REPLY, 0))
    session.take(frame(Verb.REPLY, 4_000))
    session.take(error_frame(Verb.ERROR, 4_000, QueueFull("Full.")))
    session.forget(asked)
    session.forget(asked)
    session.take(frame(Verb.REPLY, asked.number))
    assert not asked.answer.done
    assert session.unanswered == []


def test_a_request_survives_an_error_that_cannot_be_read(session: ClientSession):
    [asked] = begun(session, 1)
    with pytest.raises(RemoteProtocolError):
        session.take(frame(Verb.ERROR, asked.number, "no error"))
    assert session.unanswered == [asked]


def test_what_no_request_asked_for_is_pushed(session: ClientSession):
    session.take(frame(Verb.BLOCK, 1))  # Nobody listens: no harm.
    seen = []
    session.on_push = seen.append
    pushed = [frame(Verb.BLOCK, 5), frame(Verb.STREAM_ENDED, 5), frame(Verb.GOODBYE)]
    for each in pushed:
        session.take(each)
    assert seen == pushed


def test_a_goodbye_says_why():
    error = decode_error(error_frame(Verb.GOODBYE, 0, NotAuthorized("Who?")))
    assert isinstance(error, NotAuthorized)
    assert str(error) == "Who?"


# -- across connections ----------------------------------------------------------------------------


def test_unanswered_requests_survive_a_connection_in_their_order(session: ClientSession):
    requests = begun(session, 5)
    for each in requests:
        each.encode()
    numbers = [each.number for each in requests]
    session.take(frame(Verb.REPLY, requests[2].number))
    session.change(CONNECTING, "broke")
    late = request()
    session.begin(late)
    session.hello()
    session.take(frame(Verb.REPLY, 0, WELCOME))
    session.change(CONNECTED)
    survivors = [requests[n] for n in (0, 1, 3, 4)]
    assert session.unanswered == [*survivors, late]
    assert [each.number for each in survivors] == [numbers[n] for n in (0, 1, 3, 4)]
    assert not any(each.answer.done for each in session.unanswered)
    session.take(frame(Verb.REPLY, late.number, "at last"))
    assert messages.decode(str, late.answer.result().meta) == "at last"


def test_a_request_that_is_begun_again_keeps_its_number_and_its_place(session: ClientSession):
    first, second = begun(session, 2)
    number = first.number
    session.begin(first)
    assert first.number == number
    assert session.unanswered == [first, second]


def test_a_welcome_is_never_taken_for_an_answer(session: ClientSession):
    [asked] = begun(session, 1)
    session.change(CONNECTING, "broke")
    session.hello()
    session.take(frame(Verb.REPLY, asked.number, WELCOME))
    assert session.welcome == WELCOME
    assert session.unanswered == [asked]


# -- the end ---------------------------------------------------------------------------------------


def test_closing_fails_everything_that_waits(session: ClientSession):
    answered, *waiting = begun(session, 4)
    session.take(frame(Verb.REPLY, answered.number))
    session.close(ConnectionClosed("No server for 60 s."), "timed out")
    assert session.state is CLOSED
    assert session.unanswered == []
    assert answered.answer.error() is None
    for each in waiting:
        with pytest.raises(ConnectionClosed, match="60 s"):
            each.answer.result()


def test_a_request_after_the_end_fails_at_once(session: ClientSession):
    session.close(ConnectionClosed("Over."), "over")
    [late] = begun(session, 1)
    assert isinstance(late.answer.error(), ConnectionClosed)
    assert session.unanswered == []


def test_who_is_told_of_the_end_may_ask_again(session: ClientSession):
    """A caller that retries from within its own failure must not be kept waiting for ever."""
    [asked] = begun(session, 1)
    again = request()
    asked.answer.when_done(lambda: session.begin(again))
    session.close(ConnectionClosed("Over."), "over")
    assert isinstance(again.answer.error(), ConnectionClosed)
