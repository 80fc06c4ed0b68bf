"""Signatures made by botocore are accepted, and nothing that was changed after signing."""

import ast
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringdove.protocol import sigv4
from ringdove.protocol.sigv4 import EXPIRES_S_MAX, KEYS_MAX, Signature, SignatureRefused

#: Time limits of single examples would make tests depend on how busy the machine is.
untimed = settings(deadline=None, max_examples=150)

KEY = "AKIDEXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
SECRETS = {KEY: SECRET}
STAMP = "20240131T235000Z"
NOW_S = datetime.fromisoformat(STAMP).timestamp()
HOST = "http://localhost:8080"
INCOMPLETE, MISMATCH, EXPIRED = "IncompleteSignature", "SignatureDoesNotMatch", "RequestExpired"
BODY = b'{"QueueUrl": "http://localhost:8080/0/orders", "MessageBody": "hello"}'
TARGET = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}


class Stamped:
    """Signs at a given time instead of now, and leaves out headers it is told to."""

    stamp = STAMP
    unsigned = ()

    def _modify_request_before_signing(self, request):
        request.context["timestamp"] = self.stamp
        super()._modify_request_before_signing(request)

    def headers_to_sign(self, request):
        chosen = super().headers_to_sign(request)
        for name in self.unsigned:
            del chosen[name]
        return chosen


class HeaderSigner(Stamped, SigV4Auth):
    pass


class QuerySigner(Stamped, SigV4QueryAuth):
    pass


@dataclass
class Request:
    """A request as a server receives it."""

    method: str
    raw_path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    body: bytes

    def find(self) -> Signature | None:
        return sigv4.find(self.headers, self.query)

    def verify(self, secret: str | None = None, now_s: float = NOW_S, service: str = "sqs"):
        """Do what the server does: read the claim, look up its secret, verify."""
        claim = self.find()
        assert claim is not None
        if secret is None:
            secret = SECRETS.get(claim.key, "unknown")
        sigv4.verify(claim, secret, now_s=now_s, service=service, **vars(self))

    def refusal(self, *codes: str, **options) -> SignatureRefused:
        """Why it is refused, with one of these codes and never a word about the secret."""
        with pytest.raises(SignatureRefused) as caught:
            self.verify(**options)
        error = caught.value
        assert error.code in codes
        assert error.status == (403 if error.code == MISMATCH else 400)
        assert str(error) == error.message
        assert SECRET not in error.message
        return error

    def with_header(self, name: bytes, value: bytes | None) -> "Request":
        headers = {**self.headers, name: value}
        return replace(self, headers={k: v for k, v in headers.items() if v is not None})


def received(request: AWSRequest, body: bytes) -> Request:
    url = urlsplit(request.prepare().url)
    names = {name.lower() for name in request.headers}
    headers = {
        n.encode(): ",".join(v.strip() for v in request.headers.get_all(n)).encode() for n in names
    }
    headers.setdefault(b"host", url.netloc.encode())
    return Request(request.method, url.path.encode(), url.query.encode(), headers, body)


def sign(
    path="/", method="POST", headers=TARGET, body=BODY, params=None, token=None, region="eu-west-1",
    service="sqs", stamp=STAMP, secret=SECRET, unsigned=(),
):  # fmt: skip
    request = AWSRequest(method, HOST + path, data=body, params=params)
    for name, value in headers.items() if isinstance(headers, dict) else headers:
        request.headers.add_header(name, value)
    signer = HeaderSigner(Credentials(KEY, secret, token), service, region)
    signer.stamp, signer.unsigned = stamp, unsigned
    signer.add_auth(request)
    return received(request, body)


def presign(
    path="/0/orders?Action=SendMessage&MessageBody=a%20b", method="GET", headers=(), token=None,
    expires=3600, service="sqs", unsigned=(),
):  # fmt: skip
    request = AWSRequest(method, HOST + path, headers=dict(headers))
    signer = QuerySigner(Credentials(KEY, SECRET, token), service, "eu-west-1", expires=expires)
    signer.unsigned = unsigned
    signer.add_auth(request)
    return received(request, b"")


methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH"])
segments = [
    "", "orders", "000000000000", "a.fifo", ".", "..", "%20", "%2f", "%2F", "+", "~", "*", "a b",
    "=&", "%", "é", "'",
]  # fmt: skip
paths = st.lists(st.sampled_from(segments)).map(lambda found: "/" + "/".join(found))
pairs = [
    "", "a", "a=", "=b", "a=1", "a=2", "A=b=c", "a=%20", "b=+", "b=x/y:z", "a-b=~", "é=ü", "a=%zz",
]  # fmt: skip
queries = st.lists(st.sampled_from(pairs)).map("&".join)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
params = st.lists(st.tuples(texts, texts), min_size=1, max_size=6)
values = st.text(st.sampled_from('ab,;="  \t'), max_size=12)
extra_headers = st.lists(
    st.tuples(st.sampled_from(["X-One", "x-two", "Accept", "amz-sdk-request"]), values), max_size=5
)
bodies = st.binary(max_size=300)


@untimed
@given(methods, paths, queries, extra_headers, bodies)
def test_a_request_signed_in_its_header_is_accepted(method, path, query, headers, body):
    sign(f"{path}?{query}", method, headers, body).verify()


@untimed
@given(methods, params, st.sampled_from([None, "token/+="]))
def test_parameters_are_accepted_although_sent_otherwise_than_signed(method, found, token):
    request = sign("/", method, params=found, token=token)
    assert request.find().token == (token or "")
    request.verify()


@untimed
@given(methods, paths, queries, extra_headers, st.integers(1, EXPIRES_S_MAX))
def test_a_presigned_url_is_accepted(method, path, query, headers, expires):
    presign(f"{path}?{query}", method, headers, "token/+=", expires).verify()


def test_the_claim_of_a_header_is_read():
    claim = sign(token="the token").find()
    names = ("content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target")
    assert claim[:5] == (KEY, "20240131", "eu-west-1", "sqs", names)
    assert claim[6:] == (STAMP, None, "the token")
    assert len(claim.signature) == 64


def test_the_claim_of_a_presigned_url_is_read():
    claim = presign(token="the token", expires=77).find()
    assert claim[:5] == (KEY, "20240131", "eu-west-1", "sqs", ("host",))
    assert claim[6:] == (STAMP, 77, "the token")
    assert len(claim.signature) == 64


def test_a_request_without_a_signature_claims_none():
    for authorization in [b"", b"Bearer AWS4-HMAC-SHA256", b"Basic QVdTNA=="]:
        assert sigv4.find({b"authorization": authorization}, b"Action=ListQueues") is None
    for query in [b"", b"X-Amz-Date=1", b"Body=X-Amz-Signature", b"a=1&X-Amz-SignatureX=1"]:
        assert sigv4.find({}, query) is None


def test_the_header_counts_when_both_are_signed_and_the_query_when_it_alone_is():
    presign().with_header(b"authorization", b"Bearer token").verify()
    request = sign("/?" + presign().query.decode())
    assert request.find().expires_s is None
    request.verify()


def test_signatures_that_aws_has_published_are_accepted():
    date = (b"x-amz-date", b"20150830T123600Z")
    now_s = datetime.fromisoformat("20150830T123600Z").timestamp()
    form = b"application/x-www-form-urlencoded; charset=utf-8"
    start = b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/"
    vanilla = start + (
        b"service/aws4_request, SignedHeaders=host;x-amz-date, "
        b"Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    )
    headers = dict([(b"host", b"example.amazonaws.com"), date, (b"authorization", vanilla)])
    Request("GET", b"/", b"", headers, b"").verify(SECRET, now_s, "service")
    users = start + (
        b"iam/aws4_request, SignedHeaders=content-type;host;x-amz-date, "
        b"Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    )
    headers = dict([(b"host", b"iam.amazonaws.com"), date, (b"content-type", form)])
    request = Request("GET", b"/", b"Action=ListUsers&Version=2010-05-08", headers, b"")
    request.with_header(b"authorization", users).verify(SECRET, now_s, "iam")


@untimed
@given(st.binary(min_size=1, max_size=200), st.data())
def test_one_changed_byte_of_the_body_is_refused(body, data):
    request = sign(body=body)
    at = data.draw(st.integers(0, len(body) - 1))
    changed = bytearray(body)
    changed[at] ^= data.draw(st.integers(1, 255))
    replace(request, body=bytes(changed)).refusal(MISMATCH)
    replace(request, body=body + b" ").refusal(MISMATCH)


def changes(text: bytes):
    """The text with each of its letters and digits changed, one at a time."""
    for at, byte in enumerate(text):
        if chr(byte).isalnum():
            yield text[:at] + (b"y" if byte == ord("z") else b"z") + text[at + 1 :]


def test_one_changed_byte_of_the_path_is_refused():
    request = sign("/000000000000/orders%2F.fifo/x")
    path = request.raw_path
    for other in [*changes(path), b"/", path + b"/", b"/a" + path]:
        replace(request, raw_path=other).refusal(MISMATCH)


@pytest.mark.parametrize("given_as", ["url", "params"])
def test_one_changed_byte_of_the_query_is_refused(given_as):
    if given_as == "params":
        request = sign("/", params=[("MessageBody", "a b/c"), ("Tag", "1"), ("Tag", "")])
    else:
        request = sign("/?MessageBody=a+b/c&Tag=1&Tag")
    query = request.query
    more = [b"", query + b"&Tag=2", query + b"&", query.replace(b"+", b"%2B"), query[:-4]]
    for other in [*changes(query), *more]:
        replace(request, query=other).refusal(MISMATCH)


@untimed
@given(extra_headers.filter(bool), st.data())
def test_a_changed_header_is_refused_when_it_was_signed(headers, data):
    request = sign(headers=headers)
    name = data.draw(st.sampled_from(headers))[0].lower().encode()
    value = request.headers[name]
    other = data.draw(st.sampled_from([value + b"x", b"x" + value, value[1:], value[:-1], b""]))
    assume(other.split() != value.split())
    request.with_header(name, other).refusal(MISMATCH)
    assert name.decode() in request.with_header(name, None).refusal(MISMATCH).message


@pytest.mark.parametrize("name", [b"host", b"content-type", b"x-amz-target"])
def test_headers_that_matter_are_signed(name):
    request = sign()
    for other in changes(request.headers[name]):
        request.with_header(name, other).refusal(MISMATCH)


def test_spaces_around_and_within_a_header_do_not_matter():
    request = sign(headers={"X-One": "  a   b\t c "})
    assert request.headers[b"x-one"] == b"a   b\t c"
    request.with_header(b"x-one", b"\ta b c  ").verify()
    request.with_header(b"x-one", b"ab c").refusal(MISMATCH)


def test_headers_that_are_not_signed_may_change():
    request = sign(headers={"User-Agent": "botocore", "X-Amzn-Trace-Id": "1", **TARGET})
    request.with_header(b"user-agent", b"a proxy").with_header(b"x-amzn-trace-id", None).verify()
    request.with_header(b"via", b"a proxy").with_header(b"content-length", b"70").verify()


@pytest.mark.parametrize("request_of", [sign, presign])
def test_another_method_or_secret_is_refused_before_and_after_the_right_one(request_of):
    request = request_of()
    replace(request, method="DELETE").refusal(MISMATCH)
    for secret in ["", "x", SECRET[:-1], SECRET.lower(), SECRET + " "]:
        request.refusal(MISMATCH, secret=secret)
        request.verify()
        request.refusal(MISMATCH, secret=secret)


def test_another_region_or_timestamp_is_refused():
    request = sign()
    authorization = request.headers[b"authorization"]
    other = authorization.replace(b"eu-west-1", b"eu-west-2")
    request.with_header(b"authorization", other).refusal(MISMATCH)
    other = b"20240131T235001Z"
    request.with_header(b"x-amz-date", other).refusal(MISMATCH)


@pytest.mark.parametrize("request_of", [sign, presign])
def test_no_digit_of_a_signature_can_be_changed(request_of):
    request = request_of()
    claim = request.find()
    for at, digit in enumerate(claim.signature):
        other = claim.signature[:at] + "10"[digit == "1"] + claim.signature[at + 1 :]
        with pytest.raises(SignatureRefused, match="does not match"):
            sigv4.verify(claim._replace(signature=other), SECRET, now_s=NOW_S, **vars(request))


def test_no_byte_of_an_authorization_header_can_be_changed():
    request = sign()
    authorization = request.headers[b"authorization"]
    for at in range(len(authorization)):
        byte = b"y" if authorization[at : at + 1] == b"z" else b"z"
        other = authorization[:at] + byte + authorization[at + 1 :]
        if other.startswith(b"AWS"):
            request.with_header(b"authorization", other).refusal(INCOMPLETE, MISMATCH)
        else:
            assert request.with_header(b"authorization", other).find() is None


def test_no_byte_of_a_presigned_query_can_be_changed():
    request = presign(token="token")
    for query in changes(request.query):
        replace(request, query=query).refusal(INCOMPLETE, MISMATCH)
    replace(request, query=request.query + b"&Action=DeleteQueue").refusal(MISMATCH)
    replace(request, body=b"x").refusal(MISMATCH)


def test_a_signature_is_good_for_fifteen_minutes_either_way():
    request = sign(stamp="20240131T235959Z")
    now_s = datetime.fromisoformat("20240131T235959Z").timestamp()
    request.verify(now_s=now_s + 900.9)
    request.verify(now_s=now_s - 900)
    error = request.refusal(MISMATCH, now_s=now_s + 901)
    assert error.message == (
        "Signature expired: 20240131T235959Z is now earlier than 20240201T000000Z "
        "(20240201T001500Z - 15 min.)"
    )
    error = request.refusal(MISMATCH, now_s=now_s - 901)
    assert error.message == (
        "Signature not yet current: 20240131T235959Z is still later than 20240131T235958Z "
        "(20240131T234458Z + 15 min.)"
    )


@pytest.mark.parametrize("expires", [1, 899, 901, EXPIRES_S_MAX])
def test_a_presigned_url_is_good_until_it_expires(expires):
    request = presign(expires=expires)
    request.verify(now_s=NOW_S + expires)
    error = request.refusal(EXPIRED, now_s=NOW_S + expires + 1)
    assert f"signed at {STAMP} for {expires} seconds" in error.message
    request.verify(now_s=NOW_S - 900)
    error = request.refusal(MISMATCH, now_s=NOW_S - 901)
    assert error.message.startswith("Signature not yet current: ")


def test_a_presigned_url_that_does_not_say_how_long_is_good_for_fifteen_minutes():
    class Unlimited(QuerySigner):
        def _modify_request_before_signing(self, request):
            super()._modify_request_before_signing(request)
            request.url = request.url.replace("&X-Amz-Expires=3600", "")

    signed = AWSRequest("GET", HOST + "/?Action=ListQueues")
    Unlimited(Credentials(KEY, SECRET), "sqs", "eu-west-1").add_auth(signed)
    request = received(signed, b"")
    assert b"Expires" not in request.query
    request.verify(now_s=NOW_S + 900)
    request.refusal(EXPIRED, now_s=NOW_S + 901)


def test_the_date_header_is_the_time_when_there_is_no_other():
    request = sign(headers={"Date": "anything"})
    assert b"x-amz-date" not in request.headers
    assert request.headers[b"date"].startswith(b"Wed, 31 Jan 2024 23:50:00 ")
    assert request.find().timestamp == STAMP
    request.verify()
    for same in [b"Wed, 31 Jan 2024 23:50:00 GMT", STAMP.encode()]:
        assert request.with_header(b"date", same).find().timestamp == STAMP


@pytest.mark.parametrize(
    "date",
    [b"", b"now", b"20240131", b"2024-01-31T23:50:00Z", b"20240131T235000", b"20240131T235000Z ",
     b"Wed, 31 Foo 2024 23:50:00 GMT", b"Wed, 31 Jan 2024 23:50:00 CET", b"\xff", b"1706745000"],
)  # fmt: skip
@pytest.mark.parametrize("name", [b"x-amz-date", b"date"])
def test_a_date_that_is_none_is_refused(name, date):
    request = sign().with_header(b"x-amz-date", None)
    assert "'X-Amz-Date'" in request.refusal(INCOMPLETE).message
    request.with_header(name, date).refusal(INCOMPLETE)


@pytest.mark.parametrize("date", [b"20240231T000000Z", b"00000000T000000Z", b"20240131T236000Z"])
def test_a_date_that_is_in_no_calendar_is_refused(date):
    request = sign().with_header(b"x-amz-date", date)
    scoped = request.headers[b"authorization"].replace(b"/20240131/", b"/" + date[:8] + b"/")
    error = request.with_header(b"authorization", scoped).refusal(INCOMPLETE)
    assert date.decode() in error.message


def test_the_date_of_the_scope_must_be_that_of_the_request():
    request = sign(stamp="20240131T235959Z").with_header(b"x-amz-date", b"20240201T000000Z")
    error = request.refusal(MISMATCH, now_s=NOW_S + 600)
    assert "'20240131' != '20240201', from '20240201T000000Z'" in error.message


@pytest.mark.parametrize("request_of", [sign, presign])
def test_a_signature_for_another_service_is_refused(request_of):
    assert "'sqs'" in request_of(service="sns").refusal(MISMATCH).message
    request_of(service="sns").verify(service="sns")


@pytest.mark.parametrize("request_of", [sign, presign])
def test_the_host_must_be_signed(request_of):
    assert "'Host'" in request_of(headers={"A": "1"}, unsigned=["host"]).refusal(MISMATCH).message


@pytest.mark.parametrize("name", ["x-amz-target", "x-amz-security-token"])
def test_what_is_asked_and_for_whom_must_be_signed(name):
    assert name in sign(token="token", unsigned=[name]).refusal(MISMATCH).message
    presign().with_header(name.encode(), b"added later").refusal(MISMATCH)


def test_a_hash_of_the_body_in_the_headers_must_be_right():
    right = sha256(BODY).hexdigest()
    request = sign(headers={"X-Amz-Content-SHA256": right})
    request.verify()
    replace(request, body=b"other").refusal(MISMATCH)
    for claimed in [
        "",
        sha256(b"").hexdigest(),
        right.upper(),
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    ]:
        error = sign(headers={"X-Amz-Content-SHA256": claimed}).refusal(MISMATCH)
        assert "x-amz-content-sha256" in error.message


def test_a_body_may_be_left_out_of_the_signature_only_by_who_signs():
    request = sign(headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    replace(request, body=b"other").verify()
    for other in [sign(), presign()]:
        other.with_header(b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD").refusal(MISMATCH)


SCOPE = "20240131/eu-west-1/sqs/aws4_request"
FIELDS = {"Credential": f"{KEY}/{SCOPE}", "SignedHeaders": "host", "Signature": "0" * 64}
ALL = ", ".join(f"{name}={value}" for name, value in FIELDS.items())
BAD = {
    "Credential": [
        "", KEY, SCOPE, f"/{SCOPE}", f"a/b/{SCOPE}", f"é/{SCOPE}", f"{KEY}/{SCOPE}/", f"{KEY}/{SCOPE}s",
        f"{KEY}/2024-01-31/eu-west-1/sqs/aws4_request", f"{KEY}/20240131//sqs/aws4_request",
    ],
    "SignedHeaders": ["", ";", ";host", "host;", "Host", "host;host", "host:a", "host;é"],
    "Signature": ["", "0", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "é" * 64],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, bad) for name in BAD for bad in BAD[name]])
def test_a_malformed_field_is_refused_in_header_and_query(name, value):
    fields = {**FIELDS, name: value}
    listed = ", ".join(f"{name}={value}" for name, value in fields.items())
    authorization = f"AWS4-HMAC-SHA256 {listed}".encode()
    assert name in sign().with_header(b"authorization", authorization).refusal(INCOMPLETE).message
    query = f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date={STAMP}&" + urlencode(
        {f"X-Amz-{name}": value for name, value in fields.items()}
    )
    assert name in replace(presign(), query=query.encode()).refusal(INCOMPLETE).message


@pytest.mark.parametrize(
    "authorization",
    [
        "AWS",
        "AWS AKIDEXAMPLE:frJIUN8DYpKDtOLCwo//yllqDzg=",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 ",
        "AWS4-HMAC-SHA256 ,,,",
        f"AWS4-HMAC-SHA512 {ALL}",
        f"AWS4-ECDSA-P256-SHA256 {ALL}",
        f"AWS4-HMAC-SHA256 {ALL}, Signature={'0' * 64}",
        f"AWS4-HMAC-SHA256 {ALL}, More=1",
        f"AWS4-HMAC-SHA256 {ALL},AWS4-HMAC-SHA256 {ALL}",
        *("AWS4-HMAC-SHA256 " + ALL.replace(name, "Other") for name in FIELDS),
        *("AWS4-HMAC-SHA256 " + ALL.replace(f"{name}=", name) for name in FIELDS),
    ],
)
def test_a_malformed_authorization_header_is_refused(authorization):
    sign().with_header(b"authorization", authorization.encode()).refusal(INCOMPLETE)


def test_the_fields_of_an_authorization_header_may_come_in_any_order_and_spacing():
    request = sign()
    algorithm, _, rest = request.headers[b"authorization"].partition(b" ")
    for separator in [b",", b", ", b" ", b" ,  "]:
        other = algorithm + b"  " + separator.join(reversed(rest.split(b", ")))
        request.with_header(b"authorization", other).verify()
        other = other.replace(b"content-type;host;", b"host;content-type;")
        request.with_header(b"authorization", other).verify()


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "SignedHeaders", "Signature"])
def test_a_presigned_url_that_lacks_or_repeats_a_part_is_refused(name):
    request = presign()
    parts = request.query.split(b"&")
    own = next(part for part in parts if part.startswith(b"X-Amz-" + name.encode() + b"="))
    without = [part for part in parts if part is not own]
    for some in [without, [*parts, own], [*without, own.partition(b"=")[0]]]:
        replace(request, query=b"&".join(some)).refusal(INCOMPLETE)


@pytest.mark.parametrize("expires", [-1, 0, EXPIRES_S_MAX + 1, 10**9, "", "1.5", "1e3", "+5", "٣"])
def test_a_presigned_url_must_expire_within_a_week(expires):
    assert "604800" in presign(expires=expires).refusal(INCOMPLETE).message


def outcome(request: Request) -> str:
    """The code of the refusal, or what else became of it; other errors are the test's to see."""
    try:
        if request.find() is None:
            return "unsigned"
        request.verify()
    except SignatureRefused as error:
        return error.code
    return "verified"


REFUSALS = {INCOMPLETE, MISMATCH, EXPIRED}
words = [b"AWS4-HMAC-SHA256 ", b" ", b",", b"=", b"/", b";", b"&", b"X-Amz-", b"\x00", b"\xff"]
words += [word.encode() for field in FIELDS.items() for word in (field[0] + "=", "=".join(field))]
nonsense = st.one_of(st.binary(max_size=80), st.lists(st.sampled_from(words)).map(b"".join))


@settings(untimed, max_examples=500)
@given(nonsense, nonsense, st.binary(max_size=20))
def test_any_authorization_header_is_refused_and_nothing_worse(rest, query, date):
    for start in [b"AWS", b"AWS4-HMAC-SHA256 ", b"AWS4-HMAC-SHA256 " + ALL.encode()]:
        for name, value in [(b"x-amz-date", STAMP.encode()), (b"date", date)]:
            headers = {b"host": b"h", name: value, b"authorization": start + rest}
            assert outcome(Request("POST", b"/", query, headers, BODY)) in REFUSALS


@settings(untimed, max_examples=500)
@given(st.lists(st.tuples(st.integers(0, 600), st.binary(max_size=3)), max_size=4), st.booleans())
def test_damage_to_a_signature_is_refused_unless_it_says_the_same(damages, in_query):
    request = presign() if in_query else sign()
    text = request.query if in_query else request.headers[b"authorization"]
    for at, data in damages:
        text = text[: at % len(text)] + data + text[at % len(text) + len(data) // 2 :]
    if in_query:
        damaged = replace(request, query=text)
    else:
        damaged = request.with_header(b"authorization", text)
    if outcome(damaged) == "verified":
        assert damaged.find() == request.find()
        assert sorted(parse_qsl(damaged.query)) == sorted(parse_qsl(request.query))
    else:
        assert outcome(damaged) in REFUSALS | {"unsigned"}


def test_signing_keys_are_remembered_up_to_a_limit_and_the_used_ones_longest(monkeypatch):
    monkeypatch.setattr(sigv4, "_signers", type(sigv4._signers)())
    first = sign(region="first")
    for number in range(KEYS_MAX + 10):
        sign(region=f"region-{number}").verify()
        first.verify()
    assert len(sigv4._signers) == KEYS_MAX
    scopes = [scope.split("/")[1] for _, scope in sigv4._signers]
    assert scopes[-2:] == [f"region-{KEYS_MAX + 9}", "first"]
    assert "region-0" not in scopes
    sign(region="region-0").verify()


def test_only_what_was_verified_is_remembered_and_never_the_secret(monkeypatch):
    monkeypatch.setattr(sigv4, "_signers", type(sigv4._signers)())
    sign(secret="another").refusal(MISMATCH, secret=SECRET)
    assert not sigv4._signers
    sign().verify()
    sign(secret="another").verify(secret="another")
    assert len(sigv4._signers) == 2
    assert SECRET not in repr(list(sigv4._signers))


def test_every_code_has_the_status_that_aws_gives_it():
    statuses = {INCOMPLETE: 400, EXPIRED: 400, MISMATCH: 403, "InvalidClientTokenId": 403}
    assert {code: SignatureRefused(code, "why").status for code in statuses} == statuses


def test_the_module_neither_waits_nor_looks_at_the_clock():
    nodes = list(ast.walk(ast.parse(Path(sigv4.__file__).read_text())))
    imports = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not imports & {"asyncio", "socket", "time", "botocore", "email.utils"}
