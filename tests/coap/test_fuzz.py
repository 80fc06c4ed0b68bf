"""Whatever comes, each request gets an answer that is CoAP, none is 5.00, and the server goes on."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coap.device import Device
from core.samples import untimed
from ringdove.protocol.coap.packet import Code, Kind, Option, Packet, encode

TEXTS = st.sampled_from(
    [
        b"q", b"fuzz", b"last", b".well-known", b"core", b"", b"\xff", b"key=k", b"id=", b"id=x",
        b"priority=-1", b"delay_ms=x", b"wait=1e400", b"wait=nan", b"wait=0.01", b"ack=auto",
        b"ack=delete", b"lease_ms=1", b"receipt=AAAA", b"subscription=default", b"token=a:b",
        b"a.x=1", b"a.=", b"rt=*", b"href=", b"=",
    ]
)  # fmt: skip
NUMBERS = st.one_of(st.sampled_from(list(Option)), st.integers(1, 300))
OPTIONS = st.lists(st.tuples(NUMBERS, st.one_of(TEXTS, st.binary(max_size=9))), max_size=4)
PATHS = st.lists(st.tuples(st.just(Option.URI_PATH), TEXTS), max_size=2)
QUERIES = st.lists(st.tuples(st.just(Option.URI_QUERY), TEXTS), max_size=3)
QUEUE = [(Option.URI_PATH, b"q"), (Option.URI_PATH, b"fuzz")]


@settings(deadline=None, max_examples=300)
@given(
    code=st.one_of(st.integers(1, 4), st.integers(1, 31)),
    token=st.binary(max_size=8),
    parts=st.tuples(st.sampled_from([[], QUEUE]), PATHS, QUERIES, OPTIONS),
    payload=st.binary(max_size=20),
)
def test_every_request_is_answered(rd, port, code, token, parts, payload):
    rd.create_queue("fuzz")
    with Device(port) as device:
        device.send(Packet(Kind.CON, code, 1, token, tuple(sum(parts, [])), payload))
        answer = device.read()
        assert (answer.kind, answer.mid) == (Kind.ACK, 1)
        assert answer.token == token
        assert answer.code not in (Code.SERVER_ERROR, Code.EMPTY)


@untimed
@given(st.binary(max_size=80), st.booleans())
def test_noise_does_no_harm(port, noise, request_like):
    if request_like:
        noise = encode(Packet(Kind.NON, Code.GET, 1))[:4] + noise
    with Device(port) as device:
        device.send(noise)
        assert len(device.heard()) <= 1
