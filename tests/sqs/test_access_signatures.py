"""Who is let in: signatures that are wrong, old, missing or spoilt, in both protocols."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from server.running import ServerThread
from sqs.foreign_signing import PROTOCOLS, Asker, Spy, Wired, shifted, tampered

MINUTE_S = 60


class Place(NamedTuple):
    """A server with accounts, one of which has a queue with a message in it."""

    server: ServerThread
    spy: Spy
    account: str
    key: str
    secret: str
    owner: Asker
    url: str
    path: str

    def asker(self, key: str, secret: str) -> Asker:
        """Somebody with another key."""
        return Asker(self.server.http_port, key, secret)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with ServerThread("nowhere", port=-1, memory=True) as server:
        broker = server.server.native.broker
        account, key = server.call(broker.accounts.create("shop"))
        owner = Asker(server.http_port, key.id, key.secret)
        url = owner.must("json", "CreateQueue", QueueName="orders").one("QueueUrl")
        owner.must("json", "SendMessage", QueueUrl=url, MessageBody="first")
        path = f"/{account.id}/orders"
        spy = Spy(broker.store)
        yield Place(server, spy, account.id, key.id, key.secret, owner, url, path)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


def send(place: Place, protocol: str, asker: Asker | None = None) -> Wired:
    """A request that would leave a message behind."""
    return (asker or place.owner).make(
        protocol, "SendMessage", QueueUrl=place.url, MessageBody="second"
    )


def refused(place: Place, request: Wired, code: str, status: int = 403) -> str:
    """The request is refused with a code, and nothing of it reaches the store."""
    with place.spy.nothing():
        answer = place.owner.send(request)
    assert (answer.code, answer.status) == (code, status), answer.body
    assert place.secret.encode() not in answer.body
    return answer.body.decode()


def test_a_request_that_is_signed_is_served_and_the_spy_sees_it(place, protocol):
    before = len(place.spy.seen)
    answer = place.owner.send(send(place, protocol))
    assert (answer.status, answer.code) == (200, "")
    assert len(place.spy.seen) > before


def test_a_wrong_secret_is_refused(place, protocol):
    for wrong in (place.secret[:-1] + "?", "", place.secret.swapcase(), place.secret + " "):
        request = send(place, protocol, place.asker(place.key, wrong))
        refused(place, request, "SignatureDoesNotMatch")


@pytest.mark.parametrize(
    "key", ["AKIAAAAAAAAAAAAAAAAA", "x", "000000000000", "123456789012", "A" * 500, "key:%00", ".."]
)
def test_an_unknown_key_is_refused(place, protocol, key):
    request = send(place, protocol, place.asker(key, place.secret))
    refused(place, request, "InvalidClientTokenId")


def test_a_revoked_key_is_refused_at_once_and_the_new_one_works(place, protocol):
    accounts = place.server.server.native.broker.accounts
    old = place.server.call(accounts.add_key(place.account))
    new = place.server.call(accounts.add_key(place.account))
    for key in (old, new):
        asker = place.asker(key.id, key.secret)
        assert asker.send(send(place, protocol, asker)).status == 200
    place.server.call(accounts.revoke_key(old.id))
    request = send(place, protocol, place.asker(old.id, old.secret))
    refused(place, request, "InvalidClientTokenId")
    mixed = send(place, protocol, place.asker(new.id, old.secret))
    refused(place, mixed, "SignatureDoesNotMatch")
    asker = place.asker(new.id, new.secret)
    assert asker.send(send(place, protocol, asker)).status == 200


def test_who_signs_nothing_is_refused(place, protocol):
    nobody = Asker(place.server.http_port)
    refused(place, send(place, protocol, nobody), "MissingAuthenticationToken")
    for scheme in ("Bearer abc", "Basic YTpi", place.key, ""):
        request = tampered(send(place, protocol, nobody), headers={"Authorization": scheme})
        refused(place, request, "MissingAuthenticationToken")


@pytest.mark.parametrize(
    "header",
    [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA512 Credential=a/20200101/r/sqs/aws4_request, SignedHeaders=host, Signature=0",
        "AWS key:signature",
        "AWS4-HMAC-SHA256 Credential=, SignedHeaders=, Signature=",
    ],
)
def test_a_signature_without_form_is_refused(place, protocol, header):
    request = tampered(send(place, protocol), headers={"Authorization": header})
    refused(place, request, "IncompleteSignature", 400)


@pytest.mark.parametrize("minutes", [-16, -60 * 24, 16, 60 * 24])
def test_a_request_of_another_time_is_refused(place, protocol, minutes):
    with shifted(minutes * MINUTE_S):
        request = send(place, protocol)
    text = refused(place, request, "SignatureDoesNotMatch")
    assert ("expired" if minutes < 0 else "not yet current") in text


def test_a_clock_that_is_a_little_wrong_does_no_harm(place, protocol):
    for minutes in (-14, 14):
        with shifted(minutes * MINUTE_S):
            request = send(place, protocol)
        assert place.owner.send(request).status == 200


def test_an_old_request_is_not_made_new_by_another_date(place, protocol):
    with shifted(-20 * MINUTE_S):
        old = send(place, protocol)
    now = send(place, protocol).headers["X-Amz-Date"]
    renewed = tampered(old, headers={"X-Amz-Date": now})
    refused(place, renewed, "SignatureDoesNotMatch")


def _spoilt_json(request: Wired, place: Place) -> list[Wired]:
    body = json.loads(request.body)
    return [
        tampered(request, body=json.dumps({**body, "MessageBody": "third"}).encode()),
        tampered(request, body=request.body + b" "),
        tampered(request, body=b""),
        tampered(request, headers={"X-Amz-Target": "AmazonSQS.PurgeQueue"}),
        tampered(request, headers={"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}),
        tampered(request, headers={"x-amz-content-sha256": "0" * 64}),
        tampered(request, headers={"Host": "elsewhere"}),
        tampered(request, target=place.path),
        tampered(request, target="/?Action=PurgeQueue"),
        tampered(request, method="PUT"),
    ]


def _spoilt_query(request: Wired, place: Place) -> list[Wired]:
    return [
        tampered(request, body=request.body.replace(b"second", b"third")),
        tampered(request, body=request.body + b"&DelaySeconds=900"),
        tampered(request, body=request.body.replace(b"SendMessage", b"PurgeQueue")),
        tampered(request, target="/?DelaySeconds=900"),
        tampered(request, target=place.path),
        tampered(request, target=f"{place.path}?Action=DeleteQueue"),
        tampered(request, target="/?Action=DeleteQueue", body=b""),
        tampered(request, headers={"X-Amz-Target": "AmazonSQS.SendMessage"}),
        tampered(request, headers={"Host": "elsewhere"}),
        tampered(request, method="PUT"),
    ]


@pytest.mark.parametrize("number", range(10))
def test_a_request_that_was_changed_on_its_way_is_refused(place, protocol, number):
    spoil: Callable[[Wired, Place], list[Wired]]
    spoil = _spoilt_json if protocol == "json" else _spoilt_query
    request = spoil(send(place, protocol), place)[number]
    with place.spy.nothing():
        answer = place.owner.send(request)
    assert answer.status in (400, 403), answer
    if answer.status == 403:
        assert answer.code == "SignatureDoesNotMatch", answer
    else:
        # What cannot even be read is refused before anybody asks who sent it.
        assert answer.code in ("SerializationException", "InvalidParameterValue"), answer


def test_a_signature_for_another_service_or_day_is_refused(place, protocol):
    request = send(place, protocol)
    header = request.headers["Authorization"]
    for old, new in (("/sqs/", "/s3/"), (f"/{request.headers['X-Amz-Date'][:8]}/", "/20200101/")):
        assert old in header
        spoilt = tampered(request, headers={"Authorization": header.replace(old, new)})
        refused(place, spoilt, "SignatureDoesNotMatch")


def test_a_header_that_says_what_to_do_must_be_signed(place):
    """Otherwise whoever sees a request could have it do something else."""
    body = json.dumps({"QueueUrl": place.url}).encode()
    request = place.owner.sign("/", {"Content-Type": "application/x-amz-json-1.0"}, body)
    added = tampered(request, headers={"X-Amz-Target": "AmazonSQS.PurgeQueue"})
    refused(place, added, "SignatureDoesNotMatch")


# -- presigned URLs -----------------------------------------------------------------------------


def test_a_presigned_url_is_good_until_it_expires(place):
    request = place.owner.presign(
        "SendMessage", path=place.path, MessageBody="per URL: ü & +", expires_s=60
    )
    assert place.owner.send(request).status == 200
    with shifted(-90 * MINUTE_S):
        lasting = place.owner.presign(
            "SendMessage", path=place.path, MessageBody="lasting", expires_s=7200
        )
        short = place.owner.presign(
            "SendMessage", path=place.path, MessageBody="short", expires_s=60
        )
    assert place.owner.send(lasting).status == 200
    refused(place, short, "RequestExpired", 400)


def test_a_presigned_url_is_good_for_nothing_else(place):
    request = place.owner.presign("SendMessage", path=place.path, MessageBody="mine")
    for old, new in (
        ("mine", "yours"),
        ("SendMessage", "DeleteQueue"),
        ("/orders", "/others"),
        ("Expires=60", "Expires=600000"),
        ("X-Amz-Signature=", "X-Amz-Signature=0"),
        ("?Action", "?DelaySeconds=900&Action"),
    ):
        assert old in request.target
        spoilt = request._replace(target=request.target.replace(old, new))
        with place.spy.nothing():
            answer = place.owner.send(spoilt)
        assert answer.code in ("SignatureDoesNotMatch", "IncompleteSignature"), answer
    too_long = place.owner.presign("ListQueues", expires_s=700_000)
    refused(place, too_long, "IncompleteSignature", 400)


def test_what_a_url_signs_cannot_be_added_to_in_a_body(place):
    request = place.owner.presign("SendMessage", path=place.path, MessageBody="mine")
    spoilt = request._replace(
        method="POST",
        headers={**request.headers, "Content-Type": "application/x-www-form-urlencoded"},
        body=b"MessageBody=yours",
    )
    refused(place, spoilt, "SignatureDoesNotMatch")
    spoilt = tampered(request, headers={"X-Amz-Target": "AmazonSQS.ListQueues"}, body=b"{}")
    refused(place, spoilt, "SignatureDoesNotMatch")


def test_everything_sent_with_a_good_signature_is_there_and_nothing_else(place):
    found: Any = []
    while True:
        answer = place.owner.must(
            "json", "ReceiveMessage", QueueUrl=place.url, MaxNumberOfMessages=10
        )
        if not answer.all("Body"):
            break
        found += answer.all("Body")
    assert set(found) <= {"first", "second", "per URL: ü & +", "lasting"}
    assert "first" in found
