"""How much an account may ask for and store; and what is never told, whatever goes wrong."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringdove.errors import StoreUnavailable
from server.running import ServerProcess, ServerThread, run_command
from sqs.foreign_signing import PROTOCOLS, Asker, Spy, shifted, tampered

PASSWORD = "correct horse battery"
TOKEN = "the-token-of-the-server"


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread("nowhere", port=-1, memory=True) as running:
        yield running


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


def accounts(server: ServerThread) -> Any:
    return server.server.native.broker.accounts


def join(server: ServerThread, name: str, **options: Any) -> Asker:
    """Make an account, and somebody who has its key."""
    _, key = server.call(accounts(server).create(name, **options))
    return Asker(server.http_port, key.id, key.secret)


# -- quotas -------------------------------------------------------------------------------------


def test_an_account_that_asks_too_often_is_throttled_and_others_are_not(server, protocol):
    busy, calm = join(server, "busy"), join(server, "calm")
    url = busy.must(protocol, "CreateQueue", QueueName="q").one("QueueUrl")
    server.call(accounts(server).set_quota("busy", requests_per_s=0.001))
    busy.must(protocol, "SendMessage", QueueUrl=url, MessageBody="one a quarter of an hour")
    spy = Spy(server.server.native.broker.store)
    with spy.nothing():
        for action, members in (
            ("SendMessage", {"QueueUrl": url, "MessageBody": "x"}),
            ("ReceiveMessage", {"QueueUrl": url}),
            ("DeleteQueue", {"QueueUrl": url}),
            ("ListQueues", {}),
        ):
            answer = busy.ask(protocol, action, **members)
            assert (answer.code, answer.status) == ("RequestThrottled", 403)
    calm.must(protocol, "ListQueues")
    server.call(accounts(server).set_quota("busy", requests_per_s=None))
    busy.must(protocol, "SendMessage", QueueUrl=url, MessageBody="x")


def test_a_send_to_a_queue_of_nobodys_looks_at_no_other_accounts(server, protocol, monkeypatch):
    asker = join(server, "asker")
    broker = server.server.native.broker
    server.call(broker.create_queue("plain", {}))
    server.call(accounts(server).grant("asker", "plain", ["send"]))
    url = f"http://127.0.0.1:{server.http_port}/000000000000/plain"
    asker.must(protocol, "SendMessage", QueueUrl=url, MessageBody="x")
    looks = []
    scan = broker.store.scan

    def noted(prefix, *arguments, **options):
        looks.append(prefix)
        return scan(prefix, *arguments, **options)

    monkeypatch.setattr(broker.store, "scan", noted)
    asker.must(protocol, "SendMessage", QueueUrl=url, MessageBody="x")
    assert "account-name/" not in looks


def test_who_cannot_sign_uses_up_nobodys_quota(server, protocol):
    owner = join(server, "owner")
    server.call(accounts(server).set_quota("owner", requests_per_s=0.001))
    forged = Asker(server.http_port, owner._credentials.access_key, "guess")
    for _ in range(20):
        assert forged.ask(protocol, "ListQueues").code == "SignatureDoesNotMatch"
    owner.must(protocol, "ListQueues")


def test_an_account_that_stores_too_much_sends_no_more_until_it_deletes(server, protocol):
    owner, other = join(server, "owner"), join(server, "other")
    url = owner.must(protocol, "CreateQueue", QueueName="q").one("QueueUrl")
    second = owner.must(protocol, "CreateQueue", QueueName="r").one("QueueUrl")
    server.call(accounts(server).set_quota("owner", bytes_max=10_000))
    for _ in range(3):
        owner.must(protocol, "SendMessage", QueueUrl=url, MessageBody="x" * 4_000)
    spy = Spy(server.server.native.broker.store)
    with spy.nothing():
        for queue in (url, second):
            answer = owner.ask(protocol, "SendMessage", QueueUrl=queue, MessageBody="y")
            assert (answer.code, answer.status) == ("OverLimit", 403)
            answer = owner.ask(
                protocol,
                "SendMessageBatch",
                QueueUrl=queue,
                Entries=[{"Id": "a", "MessageBody": "y"}],
            )
            assert (answer.code, answer.status) == ("OverLimit", 403)
    own = other.must(protocol, "CreateQueue", QueueName="q").one("QueueUrl")
    other.must(protocol, "SendMessage", QueueUrl=own, MessageBody="z" * 20_000)
    received = owner.must(protocol, "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)
    for handle in received.all("ReceiptHandle"):
        owner.must(protocol, "DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    owner.must(protocol, "SendMessage", QueueUrl=url, MessageBody="y")


def test_what_others_send_counts_for_the_owner_of_the_queue(server, protocol):
    owner, other = join(server, "owner"), join(server, "other", account_id="222222222222")
    url = owner.must(protocol, "CreateQueue", QueueName="q").one("QueueUrl")
    owner.must(
        protocol,
        "AddPermission",
        QueueUrl=url,
        Label="other",
        AWSAccountIds=["222222222222"],
        Actions=["SendMessage"],
    )
    server.call(accounts(server).set_quota("owner", bytes_max=10_000))
    other.must(protocol, "SendMessage", QueueUrl=url, MessageBody="x" * 12_000)
    answer = other.ask(protocol, "SendMessage", QueueUrl=url, MessageBody="x")
    assert (answer.code, answer.status) == ("OverLimit", 403)


# -- secrets ------------------------------------------------------------------------------------


def test_neither_log_nor_reply_tells_a_secret(tmp_path: Path):
    with ServerProcess(tmp_path / "data", "--token", TOKEN, "--log", "json") as server:
        place = f"ringdove://:{TOKEN}@127.0.0.1:{server.port}"
        told = run_command(
            "--url", place, "account", "create", "shop", "--json", "--password-stdin",
            input=PASSWORD.encode() + b"\n",
        )  # fmt: skip
        made = json.loads(told.stdout)
        key, secret = made["key"]["id"], made["key"]["secret"]
        owner = Asker(server.http_port, key, secret)
        answers = [owner.must(protocol, "CreateQueue", QueueName="q") for protocol in PROTOCOLS]
        url = answers[0].one("QueueUrl")
        for protocol in PROTOCOLS:
            good = owner.make(protocol, "SendMessage", QueueUrl=url, MessageBody="m")
            with shifted(-3600):
                old = owner.make(protocol, "SendMessage", QueueUrl=url, MessageBody="m")
            spoilt = tampered(good, body=good.body + b" ")
            forged = Asker(server.http_port, key, secret[::-1]).make(protocol, "ListQueues")
            bearer = tampered(forged, headers={"Authorization": f"Bearer {TOKEN}"})
            broken = tampered(good, headers={"Authorization": f"AWS4-HMAC-SHA256 {secret}"})
            basic = tampered(good, headers={"Authorization": f"Basic {key}:{secret}"})
            answers += map(owner.send, (good, old, spoilt, forged, bearer, broken, basic))
            answers.append(owner.must(protocol, "ListQueues"))
            answers.append(
                owner.must(protocol, "GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
            )
        metrics = (
            Asker(server.http_port)
            .make("query", "x")
            ._replace(
                method="GET",
                target="/metrics",
                body=b"",
                headers={"Authorization": f"Bearer {TOKEN}"},
            )
        )
        answers.append(owner.send(metrics))
        assert answers[-1].status == 200
        server.terminate()
        written = server.log
        assert "serving" in written
        said = written.encode() + b"".join(
            answer.body + repr(answer.headers).encode() for answer in answers
        )
        for hidden in (secret, PASSWORD, TOKEN, "argon2", secret[::-1]):
            assert hidden.encode() not in said


def test_a_failure_inside_is_told_without_details(server, protocol, monkeypatch, caplog):
    owner = join(server, "owner")
    url = owner.must(protocol, "CreateQueue", QueueName="q").one("QueueUrl")
    broker = server.server.native.broker

    async def fail(*_: Any) -> Any:
        raise RuntimeError("disk 7 at /secret/path")

    monkeypatch.setattr(broker.enqueuer, "put", lambda *_: None)
    monkeypatch.setattr(broker, "send", fail)
    with caplog.at_level(logging.DEBUG):
        answer = owner.ask(protocol, "SendMessage", QueueUrl=url, MessageBody="m")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "disk 7" in caplog.text
    assert owner._credentials.secret_key not in caplog.text

    async def vanish(*_: Any) -> Any:
        raise StoreUnavailable("The store is being moved.")

    monkeypatch.setattr(broker, "send", vanish)
    answer = owner.ask(protocol, "SendMessage", QueueUrl=url, MessageBody="m")
    assert (answer.code, answer.status) == ("ServiceUnavailable", 503)
