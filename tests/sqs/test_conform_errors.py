"""Every error that a client can meet, in the full form of both protocols."""

import re

import pytest

from ringdove.protocol.sqs.errors import SqsError
from server.running import ServerThread
from sqs.clients import NAMESPACE, SHAPES, STATUS, Wire, form_of, fresh_name, later, refused

_PREFIX = "AWS.SimpleQueueService."
_ONE = "111111111111"

#: Name, action, members (with the URL of a queue filled in), and the code.
_CASES = [
    ("receive-11", "ReceiveMessage", {"MaxNumberOfMessages": 11}, "InvalidParameterValue"),
    ("no-body", "SendMessage", {}, "MissingParameter"),
    ("no-queue", "ReceiveMessage", {"QueueUrl": "unknown"}, _PREFIX + "NonExistentQueue"),
    ("attribute-name", "GetQueueAttributes", {"AttributeNames": ["X"]}, "InvalidAttributeName"),
    (
        "attribute-value",
        "SetQueueAttributes",
        {"Attributes": {"DelaySeconds": "901"}},
        "InvalidAttributeValue",
    ),
    ("contents", "SendMessage", {"MessageBody": "\x00"}, "InvalidMessageContents"),
    ("handle", "DeleteMessage", {"ReceiptHandle": "x"}, "ReceiptHandleIsInvalid"),
    ("empty", "SendMessageBatch", {"Entries": []}, _PREFIX + "EmptyBatchRequest"),
    (
        "too-many",
        "SendMessageBatch",
        {"Entries": [{"Id": str(n), "MessageBody": "x"} for n in range(11)]},
        _PREFIX + "TooManyEntriesInBatchRequest",
    ),
    (
        "not-distinct",
        "SendMessageBatch",
        {"Entries": [{"Id": "1", "MessageBody": "x"}] * 2},
        _PREFIX + "BatchEntryIdsNotDistinct",
    ),
    (
        "entry-id",
        "SendMessageBatch",
        {"Entries": [{"Id": "a:b", "MessageBody": "x"}]},
        _PREFIX + "InvalidBatchEntryId",
    ),
    (
        "too-long",
        "SendMessageBatch",
        {"Entries": [{"Id": str(n), "MessageBody": "x" * 600_000} for n in range(2)]},
        _PREFIX + "BatchRequestTooLong",
    ),
    (
        "over-limit",
        "AddPermission",
        {"Label": "l", "AWSAccountIds": [_ONE], "Actions": ["SendMessage"] * 8},
        "OverLimit",
    ),
    (
        "resource",
        "StartMessageMoveTask",
        {"QueueUrl": None, "SourceArn": "arn:aws:sqs:eu-north-1:000000000000:unknown"},
        "ResourceNotFoundException",
    ),
]


def _members(place, members):
    given = {"QueueUrl": place.url, **members}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("action", "members", "code"), [case[1:] for case in _CASES], ids=[case[0] for case in _CASES]
)
class TestEveryError:
    def test_in_json(self, wire, place, action, members, code):
        answer = wire.json(action, _members(place, members))
        shape = SHAPES.get(code, code.removeprefix(_PREFIX))
        assert answer.status == STATUS.get(code, 400)
        assert answer.kind == "application/x-amz-json-1.0"
        assert answer.headers["x-amzn-query-error"] == f"{code};Sender"
        assert set(answer.json) == {"__type", "message"}
        assert answer.json["__type"] == f"com.amazonaws.sqs#{shape}"
        assert answer.json["message"]

    def test_in_xml(self, wire, place, query_sqs, action, members, code):
        fields = form_of(query_sqs, action, _members(place, members))
        fields.pop("Action")
        answer = wire.post(action, **fields)
        assert answer.status == STATUS.get(code, 400)
        assert answer.kind == "text/xml"
        error, identity = answer.xml
        assert [child.tag for child in error] == [
            f"{NAMESPACE}{tag}" for tag in ("Type", "Code", "Message", "Detail")
        ]
        assert error[0].text == "Sender"
        assert error[1].text == code
        assert error[2].text
        assert error[3].text is None
        assert identity.tag == f"{NAMESPACE}RequestId"
        assert identity.text == answer.headers["x-amzn-requestid"]

    def test_says_the_same_in_both(self, wire, place, query_sqs, action, members, code):
        told = wire.json(action, _members(place, members)).json["message"]
        fields = form_of(query_sqs, action, _members(place, members))
        fields.pop("Action")
        [message] = wire.post(action, **fields).all("Message")
        if code.endswith("NonExistentQueue"):
            told = told.removesuffix(".") + " for this wsdl version."
        assert message == told


def test_boto3_has_a_class_for_what_the_api_describes(json_sqs, place):
    made = json_sqs.exceptions
    for error, call in (
        (made.QueueDoesNotExist, lambda: json_sqs.get_queue_url(QueueName="unknown")),
        (made.ReceiptHandleIsInvalid, lambda: place.delete({"ReceiptHandle": "x"})),
        (made.InvalidAttributeName, lambda: place.attributes("X")),
        (made.InvalidAttributeValue, lambda: place.set(DelaySeconds="x")),
        (made.EmptyBatchRequest, place.send_batch),
        (made.InvalidMessageContents, lambda: place.send("\x00")),
    ):
        with pytest.raises(error):
            call()


#: What the description of the API says beyond what `SHAPES` and `STATUS` have.
_DESCRIBED = {
    "InvalidAddress": ("InvalidAddress", 404),
    "InvalidSecurity": ("InvalidSecurity", 403),
    "MessageNotInflight": (_PREFIX + "MessageNotInflight", 400),
    "PurgeQueueInProgress": (_PREFIX + "PurgeQueueInProgress", 403),
    "QueueDeletedRecently": (_PREFIX + "QueueDeletedRecently", 400),
    "UnsupportedOperation": (_PREFIX + "UnsupportedOperation", 400),
    "RequestThrottled": ("RequestThrottled", 403),
    "InvalidIdFormat": ("InvalidIdFormat", 400),
}


@pytest.mark.parametrize("kind", _DESCRIBED)
def test_errors_that_are_hard_to_provoke_have_their_codes(kind):
    error = SqsError(kind, "x")
    assert (error.legacy, error.status) == _DESCRIBED[kind]


# -- who asks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with accounts."""
    folder = tmp_path_factory.mktemp("guarded")
    with ServerThread(folder / "data", port=-1, memory=True) as server:
        yield server


def _account(server, command, **arguments):
    return server.call(server.server._broker.account(command, arguments))


@pytest.fixture(scope="module")
def key(guarded):
    return _account(guarded, "create", name="shop", id=_ONE)["key"]


@pytest.fixture(params=["json", "query"])
def client(request, boto, guarded):
    """Makes clients with a key and a secret."""
    made = []

    def make(key_id, secret):
        made.append(boto.make(request.param, guarded, key_id, aws_secret_access_key=secret))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_genuine_request_is_served(client, key):
    sqs = client(key["id"], key["secret"])
    url = sqs.create_queue(QueueName=fresh_name())["QueueUrl"]
    assert f"/{_ONE}/" in url


def test_an_unknown_key_is_refused(client, key):
    message = "The security token included in the request is invalid."
    with pytest.raises(Exception, match=message) as caught:
        client("AKIAUNKNOWN", "any").list_queues()
    response = caught.value.response
    assert response["Error"]["Code"] == "InvalidClientTokenId"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_a_wrong_secret_is_refused(client, key):
    with pytest.raises(Exception, match="signature") as caught:
        client(key["id"], "wrong").list_queues()
    response = caught.value.response
    assert response["Error"]["Code"] == "SignatureDoesNotMatch"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_a_request_without_a_signature_is_refused(guarded, key):
    wire = Wire(guarded.http_port)
    assert wire.post("ListQueues").error[:2] == (403, "MissingAuthenticationToken")
    assert wire.json("ListQueues").json_error[:2] == (403, "MissingAuthenticationToken")


def test_a_stranger_is_refused(client, guarded, key):
    owner = client(key["id"], key["secret"])
    url = owner.create_queue(QueueName=fresh_name())["QueueUrl"]
    other = _account(guarded, "create", name=fresh_name("other"))["key"]
    stranger = client(other["id"], other["secret"])
    with refused("AccessDenied"):
        stranger.send_message(QueueUrl=url, MessageBody="x")


def test_too_many_requests_are_refused(client, guarded):
    name = fresh_name("hasty")
    made = _account(guarded, "create", name=name)
    _account(guarded, "set_quota", account=name, requests_per_s=1)
    later(guarded, 2)
    sqs = client(made["key"]["id"], made["key"]["secret"])
    with refused("RequestThrottled"):
        for _ in range(10):
            sqs.list_queues()


def test_no_error_shows_a_secret(client, guarded, key):
    wire = Wire(guarded.http_port)
    for answer in (wire.post("ListQueues"), wire.json("ListQueues")):
        assert key["secret"].encode() not in answer.body
        assert not re.search(rb"Traceback|File \"", answer.body)
