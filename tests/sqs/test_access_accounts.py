"""What is somebody else's: queues of two accounts, in both protocols."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from ringdove.errors import RingdoveError
from server.running import ServerThread, wait_for
from sqs.foreign_signing import PROTOCOLS, REGION, Answer, Asker, Spy

SHOP, BANK = "111111111111", "222222222222"


class Place(NamedTuple):
    """A server with two accounts. Each has a queue `orders` with a message in it."""

    server: ServerThread
    spy: Spy
    shop: Asker
    bank: Asker

    @property
    def accounts(self) -> Any:
        return self.server.server.native.broker.accounts

    def url(self, account: str, name: str = "orders") -> str:
        return f"{self.server.http_url}/{account}/{name}"

    def key(self, account: str, roles: tuple[str, ...]) -> Asker:
        """Somebody with one more key of an account."""
        key = self.server.call(self.accounts.add_key(account, roles))
        return Asker(self.server.http_port, key.id, key.secret)


def arn(account: str, name: str = "orders", region: str = REGION) -> str:
    return f"arn:aws:sqs:{region}:{account}:{name}"


@pytest.fixture
def place() -> Iterator[Place]:
    with ServerThread("nowhere", port=-1, memory=True) as server:
        broker = server.server.native.broker
        askers = []
        for name, account_id in (("shop", SHOP), ("bank", BANK)):
            _, key = server.call(broker.accounts.create(name, account_id=account_id))
            asker = Asker(server.http_port, key.id, key.secret)
            url = asker.must("json", "CreateQueue", QueueName="orders").one("QueueUrl")
            asker.must("json", "SendMessage", QueueUrl=url, MessageBody=f"of {name}")
            askers.append(asker)
        yield Place(server, Spy(broker.store), *askers)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


def refused(place: Place, answer: Answer, code: str, status: int) -> None:
    assert (answer.code, answer.status) == (code, status), answer.body


#: Everything that can be asked of a queue, besides its URL.
ON_A_QUEUE: list[tuple[str, dict[str, Any]]] = [
    ("SendMessage", {"MessageBody": "mine"}),
    ("SendMessageBatch", {"Entries": [{"Id": "a", "MessageBody": "mine"}]}),
    ("ReceiveMessage", {}),
    ("ChangeMessageVisibility", {"ReceiptHandle": "HANDLE", "VisibilityTimeout": 600}),
    (
        "ChangeMessageVisibilityBatch",
        {"Entries": [{"Id": "a", "ReceiptHandle": "HANDLE", "VisibilityTimeout": 600}]},
    ),
    ("DeleteMessage", {"ReceiptHandle": "HANDLE"}),
    ("DeleteMessageBatch", {"Entries": [{"Id": "a", "ReceiptHandle": "HANDLE"}]}),
    ("GetQueueAttributes", {"AttributeNames": ["All"]}),
    ("SetQueueAttributes", {"Attributes": {"VisibilityTimeout": "1"}}),
    ("ListDeadLetterSourceQueues", {}),
    ("PurgeQueue", {}),
    ("DeleteQueue", {}),
    ("TagQueue", {"Tags": {"owner": "me"}}),
    ("UntagQueue", {"TagKeys": ["owner"]}),
    ("ListQueueTags", {}),
    ("AddPermission", {"Label": "l", "AWSAccountIds": [BANK], "Actions": ["SendMessage"]}),
    ("RemovePermission", {"Label": "l"}),
]

#: What AddPermission can give away; the rest stays with the owner.
GIVEN = {
    "SendMessage": {"SendMessage", "SendMessageBatch"},
    "ReceiveMessage": {"ReceiveMessage"},
    "DeleteMessage": {"DeleteMessage", "DeleteMessageBatch"},
    "ChangeMessageVisibility": {"ChangeMessageVisibility", "ChangeMessageVisibilityBatch"},
    "GetQueueAttributes": {"GetQueueAttributes"},
    "GetQueueUrl": set(),
    "ListDeadLetterSourceQueues": {"ListDeadLetterSourceQueues"},
    "PurgeQueue": {"PurgeQueue"},
}
SHAREABLE = set().union(*GIVEN.values())


def handled(members: dict[str, Any], handle: str) -> dict[str, Any]:
    """The members with a receipt handle where one belongs."""
    return json.loads(json.dumps(members).replace("HANDLE", handle))


# -- without leave ------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "members"), ON_A_QUEUE, ids=[a for a, _ in ON_A_QUEUE])
def test_a_queue_of_another_account_is_out_of_reach(place, protocol, action, members):
    received = place.shop.must(protocol, "ReceiveMessage", QueueUrl=place.url(SHOP))
    members = handled(members, received.one("ReceiptHandle"))
    with place.spy.nothing():
        answer = place.bank.ask(protocol, action, QueueUrl=place.url(SHOP), **members)
        refused(place, answer, "AccessDenied", 403)
        # Whether a queue exists is told to nobody but its owner.
        missing = place.bank.ask(protocol, action, QueueUrl=place.url(SHOP, "no"), **members)
        refused(place, missing, "AccessDenied", 403)
    if protocol == "query":
        with place.spy.nothing():
            at_path = place.bank.ask(protocol, action, path=f"/{SHOP}/orders", **members)
            refused(place, at_path, "AccessDenied", 403)


def test_the_url_of_another_accounts_queue_is_not_told(place, protocol):
    for name in ("orders", "no"):
        answer = place.bank.ask(
            protocol, "GetQueueUrl", QueueName=name, QueueOwnerAWSAccountId=SHOP
        )
        refused(place, answer, "AWS.SimpleQueueService.NonExistentQueue", 400)


def test_a_name_cannot_be_made_to_mean_another_accounts_queue(place, protocol):
    """However a queue is named, it is one's own or refused."""
    for url in (
        f"{SHOP}.orders",
        f"/{BANK}/{SHOP}.orders",
        f"http://x/{BANK}/{SHOP}.orders",
        f"http://x/{SHOP}%2Forders",
        f"http://x/{SHOP}//orders",
        f"http://x/{BANK}/../{SHOP}/orders",
        f"http://x/{BANK}/x/../../{SHOP}/orders",
        f"http://x/queue/us-east-1/{SHOP}/orders",
        f"{SHOP}/orders",
        f"http://x/{SHOP}/orders?x=/{BANK}/orders",
        f"http://x/{SHOP}/orders#/{BANK}/orders",
    ):
        with place.spy.nothing():
            answer = place.bank.ask(protocol, "PurgeQueue", QueueUrl=url)
        assert answer.status in (400, 403), (url, answer)
    for name in (f"{SHOP}.orders", f"../{SHOP}/orders", f"{SHOP}/orders"):
        with place.spy.nothing():
            answer = place.bank.ask(protocol, "CreateQueue", QueueName=name)
            refused(place, answer, "InvalidParameterValue", 400)


def test_a_receipt_is_of_no_use_on_ones_own_queue(place, protocol):
    handle = place.shop.must(protocol, "ReceiveMessage", QueueUrl=place.url(SHOP)).one(
        "ReceiptHandle"
    )
    with place.spy.nothing():
        answer = place.bank.ask(
            protocol, "DeleteMessage", QueueUrl=place.url(BANK), ReceiptHandle=handle
        )
        refused(place, answer, "ReceiptHandleIsInvalid", answer.status)
        assert answer.status in (400, 404)


def test_dead_letters_cannot_be_sent_to_another_account(place, protocol):
    policy = json.dumps({"deadLetterTargetArn": arn(SHOP), "maxReceiveCount": 1})
    with place.spy.nothing():
        answer = place.bank.ask(
            protocol,
            "SetQueueAttributes",
            QueueUrl=place.url(BANK),
            Attributes={"RedrivePolicy": policy},
        )
        refused(place, answer, "InvalidParameterValue", 400)
        answer = place.bank.ask(
            protocol, "CreateQueue", QueueName="other", Attributes={"RedrivePolicy": policy}
        )
        refused(place, answer, "InvalidParameterValue", 400)


@pytest.mark.parametrize("region", [REGION, "", BANK], ids=["region", "none", "account"])
def test_move_tasks_of_another_account_are_out_of_reach(place, protocol, region):
    """Not even where an ARN has one's own account where the region belongs."""
    place.shop.must(protocol, "CreateQueue", QueueName="dead")
    policy = json.dumps({"deadLetterTargetArn": arn(SHOP, "dead"), "maxReceiveCount": 1})
    place.shop.must(
        protocol,
        "SetQueueAttributes",
        QueueUrl=place.url(SHOP),
        Attributes={"RedrivePolicy": policy},
    )
    place.shop.must(protocol, "SendMessage", QueueUrl=place.url(SHOP, "dead"), MessageBody="dead")
    dead = arn(SHOP, "dead", region)
    started = place.shop.must(
        protocol,
        "StartMessageMoveTask",
        SourceArn=arn(SHOP, "dead"),
        DestinationArn=arn(SHOP),
    )
    wait_for(lambda: _moved(place), "the task is done")
    with place.spy.nothing():
        for action, members in (
            ("StartMessageMoveTask", {"SourceArn": dead}),
            ("StartMessageMoveTask", {"SourceArn": dead, "DestinationArn": arn(BANK)}),
            ("StartMessageMoveTask", {"SourceArn": arn(BANK), "DestinationArn": dead}),
            ("ListMessageMoveTasks", {"SourceArn": dead}),
            ("CancelMessageMoveTask", {"TaskHandle": started.one("TaskHandle")}),
        ):
            refused(place, place.bank.ask(protocol, action, **members), "AccessDenied", 403)


def _moved(place: Place) -> bool:
    told = place.shop.must("json", "ListMessageMoveTasks", SourceArn=arn(SHOP, "dead"))
    return told.one("Status") == "COMPLETED"


def test_a_sender_cannot_choose_where_a_dead_letter_goes_back_to(place, protocol):
    """A move without a destination follows what the server has noted, never the sender."""
    place.bank.must(protocol, "CreateQueue", QueueName="dead")
    policy = json.dumps({"deadLetterTargetArn": arn(BANK, "dead"), "maxReceiveCount": 1})
    place.bank.must(
        protocol,
        "SetQueueAttributes",
        QueueUrl=place.url(BANK),
        Attributes={"RedrivePolicy": policy},
    )
    before = place.server.call(stats(place))
    answer = place.bank.ask(
        protocol,
        "SendMessage",
        QueueUrl=place.url(BANK, "dead"),
        MessageBody="smuggled",
        MessageAttributes={
            "ringdove.dead.queue": {"DataType": "String", "StringValue": f"{SHOP}.orders"}
        },
    )
    refused(place, answer, "InvalidParameterValue", 400)
    place.bank.must(protocol, "StartMessageMoveTask", SourceArn=arn(BANK, "dead"))
    assert place.server.call(stats(place)) == before


async def stats(place: Place) -> Any:
    broker = place.server.server.native.broker
    return (await broker.queue_stats(f"{SHOP}.orders")).subscriptions


# -- the same names -----------------------------------------------------------------------------


def test_queues_of_one_name_never_meet(place, protocol):
    for asker, account, name in ((place.shop, SHOP, "shop"), (place.bank, BANK, "bank")):
        url = asker.must(protocol, "GetQueueUrl", QueueName="orders").one("QueueUrl")
        assert url == place.url(account)
        assert asker.must(protocol, "ListQueues").all("QueueUrl") == [url]
        assert asker.must(protocol, "ListQueues", QueueNamePrefix="ord").all("QueueUrl") == [url]
        assert asker.must(protocol, "ListQueues", QueueNamePrefix="x").all("QueueUrl") == []
        asker.must(protocol, "SendMessage", QueueUrl="orders", MessageBody=f"more of {name}")
        found = asker.must(protocol, "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10).all(
            "Body"
        )
        assert sorted(found) == [f"more of {name}", f"of {name}"]
        told = asker.must(protocol, "GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])
        assert arn(account) in told.body.decode()
    place.shop.must(protocol, "DeleteQueue", QueueUrl=place.url(SHOP))
    assert place.shop.must(protocol, "ListQueues").all("QueueUrl") == []
    assert place.bank.must(protocol, "ListQueues").all("QueueUrl") == [place.url(BANK)]


# -- with leave ---------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [*GIVEN, "*"])
def test_a_permission_lets_another_account_do_exactly_that(place, protocol, given):
    place.shop.must(
        protocol,
        "AddPermission",
        QueueUrl=place.url(SHOP),
        Label="bank",
        AWSAccountIds=[BANK],
        Actions=[given],
    )
    may = SHAREABLE if given == "*" else GIVEN[given]
    handle = place.shop.must(
        protocol, "ReceiveMessage", QueueUrl=place.url(SHOP), VisibilityTimeout=600
    ).one("ReceiptHandle")
    for action, members in ON_A_QUEUE:
        answer = place.bank.ask(
            protocol, action, QueueUrl=place.url(SHOP), **handled(members, handle)
        )
        if action in may:
            assert answer.status == 200, (action, answer)
        else:
            refused(place, answer, "AccessDenied", 403)
    answer = place.bank.ask(
        protocol, "GetQueueUrl", QueueName="orders", QueueOwnerAWSAccountId=SHOP
    )
    assert (answer.status == 200) == (given in ("GetQueueUrl", "*")), answer
    place.shop.must(protocol, "RemovePermission", QueueUrl=place.url(SHOP), Label="bank")
    for action, members in ON_A_QUEUE:
        answer = place.bank.ask(
            protocol, action, QueueUrl=place.url(SHOP), **handled(members, handle)
        )
        refused(place, answer, "AccessDenied", 403)


def allow(**changes: Any) -> dict[str, Any]:
    statement = {
        "Sid": "s",
        "Effect": "Allow",
        "Principal": {"AWS": BANK},
        "Action": "sqs:SendMessage",
        "Resource": arn(SHOP),
    }
    return {k: v for k, v in {**statement, **changes}.items() if v is not None}


POLICIES = [
    ("by number", [allow()], True),
    ("by arn", [allow(Principal={"AWS": f"arn:aws:iam::{BANK}:root"})], True),
    ("in a list", [allow(Principal={"AWS": [SHOP, BANK]}, Action=["SQS:Foo", "sqs:Send*"])], True),
    ("everybody", [allow(Principal="*")], True),
    ("everything", [allow(Action="SQS:*", Resource="*")], True),
    ("another account", [allow(Principal={"AWS": "333333333333"})], False),
    (
        "an account that begins alike",
        [allow(Principal={"AWS": f"arn:aws:iam::{BANK}9:root"})],
        False,
    ),
    ("another action", [allow(Action="SQS:ReceiveMessage")], False),
    ("another queue", [allow(Resource=arn(SHOP, "other"))], False),
    ("under a condition", [allow(Condition={"Bool": {"aws:SecureTransport": "true"}})], False),
    ("denied as well", [allow(), allow(Effect="Deny", Principal="*")], False),
    ("denied first", [allow(Effect="Deny", Action="*"), allow()], False),
    ("denied in part", [allow(), allow(Effect="Deny", Action="sqs:*Mess?ge")], False),
    ("brackets, which stand for themselves", [allow(Resource=arn(SHOP, "[a-z]*"))], False),
    ("all but", [allow(), allow(Effect="Deny", Principal=None, NotPrincipal={"AWS": SHOP})], False),
    (
        "all but him",
        [allow(), allow(Effect="Deny", Principal=None, NotPrincipal={"AWS": BANK})],
        True,
    ),
    ("but some actions", [allow(), allow(Effect="Deny", Action=None, NotAction="SQS:Foo")], False),
    ("allowed all but", [allow(Principal=None, NotPrincipal={"AWS": SHOP})], False),
    ("nothing", [], False),
]


@pytest.mark.parametrize(
    ("statements", "may"), [p[1:] for p in POLICIES], ids=[p[0] for p in POLICIES]
)
def test_a_policy_lets_others_in_only_where_it_plainly_says_so(place, protocol, statements, may):
    policy = {"Version": "2012-10-17", "Statement": statements}
    place.shop.must(
        protocol,
        "SetQueueAttributes",
        QueueUrl=place.url(SHOP),
        Attributes={"Policy": json.dumps(policy)},
    )
    answer = place.bank.ask(protocol, "SendMessage", QueueUrl=place.url(SHOP), MessageBody="m")
    if may:
        assert answer.status == 200
    else:
        refused(place, answer, "AccessDenied", 403)
    place.shop.must(protocol, "SendMessage", QueueUrl=place.url(SHOP), MessageBody="own")


def test_the_sender_is_told_to_the_receiver(place, protocol):
    place.shop.must(
        protocol,
        "AddPermission",
        QueueUrl=place.url(SHOP),
        Label="bank",
        AWSAccountIds=[BANK],
        Actions=["SendMessage"],
    )
    place.shop.must(protocol, "PurgeQueue", QueueUrl=place.url(SHOP))
    place.bank.must(protocol, "SendMessage", QueueUrl=place.url(SHOP), MessageBody="hello")
    answer = place.shop.must(
        protocol, "ReceiveMessage", QueueUrl=place.url(SHOP), AttributeNames=["SenderId"]
    )
    assert BANK in answer.body.decode()


# -- roles of keys, and grants ------------------------------------------------------------------

ROLES = {
    "send": {"SendMessage", "SendMessageBatch"},
    "receive": {
        "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch", "ChangeMessageVisibility",
        "ChangeMessageVisibilityBatch",
    },
    "manage": {
        "SetQueueAttributes", "ListDeadLetterSourceQueues", "PurgeQueue", "DeleteQueue",
        "TagQueue", "UntagQueue", "AddPermission", "RemovePermission",
    },
}  # fmt: skip
HARMLESS = {"GetQueueAttributes", "ListQueueTags"}


@pytest.mark.parametrize("role", ROLES)
def test_a_key_does_no_more_than_its_role(place, protocol, role):
    asker = place.key("shop", (role,))
    handle = place.shop.must(
        protocol, "ReceiveMessage", QueueUrl=place.url(SHOP), VisibilityTimeout=600
    ).one("ReceiptHandle")
    actions = sorted(ON_A_QUEUE, key=lambda pair: pair[0] == "DeleteQueue")
    for action, members in actions:
        answer = asker.ask(protocol, action, QueueUrl=place.url(SHOP), **handled(members, handle))
        if action in ROLES[role] | HARMLESS:
            assert answer.status == 200, (action, answer)
        else:
            refused(place, answer, "AccessDenied", 403)
    made = asker.ask(protocol, "CreateQueue", QueueName="made")
    assert (made.status == 200) == (role == "manage")
    moved = asker.ask(protocol, "ListMessageMoveTasks", SourceArn=arn(SHOP))
    assert (moved.code == "AccessDenied") == (role != "manage")
    asker.must(protocol, "ListQueues")


def test_a_role_bounds_what_a_policy_gives(place, protocol):
    place.shop.must(
        protocol,
        "AddPermission",
        QueueUrl=place.url(SHOP),
        Label="bank",
        AWSAccountIds=[BANK],
        Actions=["*"],
    )
    sender = place.key("bank", ("send",))
    sender.must(protocol, "SendMessage", QueueUrl=place.url(SHOP), MessageBody="x")
    sender.must(protocol, "GetQueueAttributes", QueueUrl=place.url(SHOP), AttributeNames=["All"])
    for action in ("ReceiveMessage", "PurgeQueue"):
        answer = sender.ask(protocol, action, QueueUrl=place.url(SHOP))
        refused(place, answer, "AccessDenied", 403)


def test_a_grant_opens_queues_by_role_and_prefix(place, protocol):
    place.server.call(place.accounts.grant("bank", f"{SHOP}.ord*", ["receive"]))
    place.bank.must(protocol, "ReceiveMessage", QueueUrl=place.url(SHOP))
    answer = place.bank.ask(protocol, "SendMessage", QueueUrl=place.url(SHOP), MessageBody="x")
    refused(place, answer, "AccessDenied", 403)
    place.shop.must(protocol, "CreateQueue", QueueName="private")
    answer = place.bank.ask(protocol, "ReceiveMessage", QueueUrl=place.url(SHOP, "private"))
    refused(place, answer, "AccessDenied", 403)
    place.server.call(place.accounts.ungrant("bank", f"{SHOP}.ord*"))
    answer = place.bank.ask(protocol, "ReceiveMessage", QueueUrl=place.url(SHOP))
    refused(place, answer, "AccessDenied", 403)


def test_the_default_account_is_an_account_like_others(place, protocol):
    """Queues with plain names are not everybody's."""
    _, key = place.server.call(place.accounts.create("root", account_id="000000000000"))
    root = Asker(place.server.http_port, key.id, key.secret)
    root.must(protocol, "CreateQueue", QueueName="plain")
    answer = place.bank.ask(protocol, "PurgeQueue", QueueUrl=place.url("000000000000", "plain"))
    refused(place, answer, "AccessDenied", 403)
    assert root.must(protocol, "ListQueues").all("QueueUrl") == [place.url("000000000000", "plain")]
    for url in (f"{SHOP}.orders", place.url("000000000000", f"{SHOP}.orders")):
        with place.spy.nothing():
            assert root.ask(protocol, "PurgeQueue", QueueUrl=url).status in (400, 403)


def test_an_account_that_is_deleted_is_out_and_its_queues_stay(place, protocol):
    place.server.call(place.accounts.delete("shop"))
    answer = place.shop.ask(protocol, "ReceiveMessage", QueueUrl=place.url(SHOP))
    refused(place, answer, "InvalidClientTokenId", 403)
    answer = place.bank.ask(protocol, "ReceiveMessage", QueueUrl=place.url(SHOP))
    refused(place, answer, "AccessDenied", 403)
    with pytest.raises(RingdoveError):
        place.server.call(place.accounts.get("shop"))
    assert sum(place.server.call(stats(place))["default"]) == 1
