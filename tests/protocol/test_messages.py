"""What frames say: every value travels whole, newer ones are understood, and rubbish is refused."""

import inspect
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringdove import errors
from ringdove.core.receipt import Receipt
from ringdove.core.settings import QueueSettings
from ringdove.errors import RemoteProtocolError, RingdoveError, SequenceRefused
from ringdove.protocol import messages
from ringdove.protocol.messages import decode, decode_error, encode, encode_error
from ringdove.stores.base import Start, StripeId

#: Time limits of single examples would make tests depend on how busy the machine is.
untimed = settings(deadline=None, max_examples=100)

STRUCTS = [
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not QueueSettings
]

#: Everything that some frame's meta may be, structs apart.
OTHER_KINDS = [
    int,
    str,
    list[str],
    tuple[str, str],
    tuple[messages.Stripe, int],
    list[messages.WireInfo],
    list[messages.WireRun],
    list[messages.WireStripeStats],
    list[int | messages.WireError],
]

ERRORS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, RingdoveError)
]

STRIPE = (2**53, 255, 9)
RECEIPT = (7, 1, 0, 3, 2**63 - 1, 0, 2**53, "default")

EXAMPLES: list[Any] = [
    messages.WireError("sequence_refused", "Jumped.", 2**53),
    messages.Hello(1, "client", ["stream", "later"], b"\x00\xff"),
    messages.Welcome(1, "server", [], 2**31, 1024, 30.5),
    messages.WireSegment(b"producer", 2**53, 65_536, None),
    messages.WireSegment(message_id=b"id"),
    messages.WireSegment(b"producer", 65_536, 32_768, gaps=True),
    messages.Send("q", 3, -1, 9, None, [messages.WireSegment(), messages.WireSegment(b"p", 1, 2)]),
    messages.Send("q", 0, 0, 0, 1000, []),
    messages.Stored(
        STRIPE, [(-1, False, messages.WireError("queue_full", "Full.")), (12, True, None)]
    ),
    messages.Receive("q", "s", 10, None, None),
    messages.Receive("q", "s", 1, 0.25, 30_000),
    messages.WireRun(RECEIPT, 1_000, 2, 500, 3),
    messages.Settle([RECEIPT, RECEIPT]),
    messages.Settle([], 5),
    messages.Bury("q", RECEIPT, "why \N{SNOWMAN}", 2),
    messages.Redrive("q.dead", None, None),
    messages.Redrive("q.dead", "q", 10),
    messages.Settings("q", {"stripes": 4, "order": "key", "x": None, "l": [1, 2.5, b"b"]}),
    messages.WireInfo("q", 2**53, QueueSettings.make(stripes=4, order="key"), 2, 1_000),
    messages.WireStripeStats(STRIPE, 1, 2, 3, 4, 5, [("default", 1, 2, 3, 4)]),
    messages.Subscribe("q", "s", ("time", 1_000), keep_default=True),
    messages.Read(STRIPE, 0, 100, skip_trimmed=False),
    messages.Position(STRIPE, ("latest", 0)),
    messages.Advance(STRIPE, "s", 2**53),
    messages.Stream("q", "s", b"owner", [(STRIPE, 5)], 2**24, 30_000),
    messages.Streaming(9, [(STRIPE, 5)]),
    messages.StreamAck(STRIPE, -1, 100, resend=True),
    messages.Follow("a1"),
    messages.Following("core"),
    messages.Commit("disk", 7, [(11, b"key", b"value"), (0, b"\x00", None)], more=True),
    messages.Applied("memory", 7),
]


def name(value: Any) -> str:
    return type(value).__name__


def test_there_is_an_example_of_every_struct():
    assert {type(value) for value in EXAMPLES} == set(STRUCTS)


@pytest.mark.parametrize("value", EXAMPLES, ids=name)
def test_a_value_comes_back_as_it_was(value):
    assert decode(type(value), encode(value)) == value
    assert decode(type(value), memoryview(bytearray(encode(value)))) == value


@pytest.mark.parametrize("value", EXAMPLES, ids=name)
def test_fields_that_a_later_version_adds_are_ignored(value):
    fields = msgspec.msgpack.decode(encode(value))
    longer = encode([*fields, {"added": "later"}, 1, None])
    assert decode(type(value), longer) == value


@pytest.mark.parametrize("value", EXAMPLES, ids=name)
def test_a_value_without_what_it_needs_is_refused(value):
    needed = [f for f in msgspec.structs.fields(value) if f.required]
    fields = msgspec.msgpack.decode(encode(value))
    for count in range(len(needed)):
        with pytest.raises(RemoteProtocolError, match="cannot be read"):
            decode(type(value), encode(fields[:count]))


@pytest.mark.parametrize("value", EXAMPLES, ids=name)
def test_a_value_cut_anywhere_or_with_bytes_behind_it_is_refused(value):
    data = encode(value)
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode(type(value), data[:end])
    with pytest.raises(RemoteProtocolError):
        decode(type(value), data + b"\x00")


def test_fields_that_may_be_missing_have_their_defaults():
    assert decode(messages.Hello, encode([1, "old client"])) == messages.Hello(1, "old client")
    assert decode(messages.WireSegment, encode([])) == messages.WireSegment()
    assert decode(messages.StreamAck, encode([STRIPE, 1, 2])).resend is False


def test_named_tuples_travel_as_arrays():
    stripe = StripeId(1, 2, 3)
    ask = decode(messages.Position, encode(messages.Position(stripe, Start("offset", 4))))
    assert (StripeId(*ask.stripe), Start(*ask.start)) == (stripe, Start("offset", 4))
    receipt = Receipt(1, 2, 3, 4, 5, 6, 7, "s")
    [found] = decode(messages.Settle, encode(messages.Settle([receipt]))).receipts
    assert Receipt._make(found) == receipt


# -- rubbish ---------------------------------------------------------------------------------------

kinds = st.sampled_from([*STRUCTS, *OTHER_KINDS])


@given(kinds, st.binary(max_size=200))
@settings(untimed, max_examples=500)
def test_arbitrary_bytes_give_a_value_or_an_error(kind, data):
    try:
        decode(kind, data)
    except RemoteProtocolError:
        return


@given(st.sampled_from(EXAMPLES), st.data())
@settings(untimed, max_examples=500)
def test_a_damaged_value_gives_a_value_or_an_error(value, data):
    damaged = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(type(value), damaged)
    except RemoteProtocolError:
        return


@pytest.mark.parametrize(
    "inside",
    [
        b"\x91" * 5_000,  # Arrays in arrays.
        b"\x81\xa1k" * 5_000,  # Maps in maps.
        b"\x81\x80\x01",  # A map as a key.
        b"\x81\x91\x80\x01",  # An array with a map, as a key.
        b"\xd7\xff" + b"\xff" * 8,  # A time that is none.
        b"\xc7\x0c\xff" + b"\xff" * 12,  # A time beyond the calendar.
        b"\xd4\x05x",  # An extension that nobody knows.
        b"\xa1\xff",  # Text that is no text.
        b"\xdd\xff\xff\xff\xff",  # An array of four thousand million.
        b"\xc6\xff\xff\xff\xff",  # As many bytes.
    ],
)
def test_strange_settings_give_a_value_or_an_error(inside):
    """The one field that takes anything."""
    try:
        decode(messages.Settings, b"\x92\xa1q\x81\xa1s" + inside)
    except RemoteProtocolError:
        return


@pytest.mark.parametrize("kind", [*STRUCTS, *OTHER_KINDS], ids=str)
@pytest.mark.parametrize("data", [b"", b"\xc0", b"\xc1", b"\x80", encode(math.nan)])
def test_what_is_no_value_of_the_kind_is_refused(kind, data):
    with pytest.raises(RemoteProtocolError):
        decode(kind, data)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_travels_by_its_code(kind):
    wire = decode(messages.WireError, encode(encode_error(kind("What \N{SNOWMAN} is wrong."))))
    found = decode_error(wire)
    assert type(found) is kind
    assert str(found) == "What \N{SNOWMAN} is wrong."


def test_a_refused_sequence_keeps_what_was_expected():
    wire = decode(messages.WireError, encode(encode_error(SequenceRefused("Jumped.", 2**53))))
    found = decode_error(wire)
    assert isinstance(found, SequenceRefused)
    assert found.expected == 2**53


def test_an_error_of_a_later_version_is_an_error():
    found = decode_error(messages.WireError("from_the_future", "Text.", 3))
    assert type(found) is RingdoveError
    assert str(found) == "Text."
