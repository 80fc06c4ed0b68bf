"""Servers without accounts, with a token, and behind TLS."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import pytest
import trustme
from botocore.config import Config

from server.running import ServerThread
from sqs.foreign_signing import PROTOCOLS, REGION, Asker, Spy

DEFAULT = "000000000000"


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread("nowhere", port=-1, memory=True) as running:
        yield running


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


# -- without accounts ---------------------------------------------------------------------------


def test_without_accounts_everybody_may_do_everything(server, protocol):
    for asker in (
        Asker(server.http_port),
        Asker(server.http_port, "whatever", "whatever"),
        Asker(server.http_port, "AKIAIOSFODNN7EXAMPLE", "wrong"),
    ):
        url = asker.must(protocol, "CreateQueue", QueueName="q").one("QueueUrl")
        assert url == f"{server.http_url}/{DEFAULT}/q"
        asker.must(protocol, "SendMessage", QueueUrl=url, MessageBody="m")
        received = asker.must(protocol, "ReceiveMessage", QueueUrl=url)
        assert received.one("Body") == "m"
        asker.must(
            protocol, "DeleteMessage", QueueUrl=url, ReceiptHandle=received.one("ReceiptHandle")
        )


def test_twelve_digits_as_access_key_choose_the_account(server, protocol):
    first = Asker(server.http_port, "111111111111", "x")
    second = Asker(server.http_port, "222222222222", "x")
    nobody = Asker(server.http_port, "1111111111112", "x")
    for asker, account in ((first, "111111111111"), (second, "222222222222"), (nobody, DEFAULT)):
        url = asker.must(protocol, "CreateQueue", QueueName="q").one("QueueUrl")
        assert url == f"{server.http_url}/{account}/q"
        asker.must(protocol, "SendMessage", QueueUrl="q", MessageBody=account)
    for asker, account in ((first, "111111111111"), (second, "222222222222"), (nobody, DEFAULT)):
        url = f"{server.http_url}/{account}/q"
        assert asker.must(protocol, "ListQueues").all("QueueUrl") == [url]
        assert asker.must(protocol, "ReceiveMessage", QueueUrl="q").one("Body") == account
    # Nobody is kept from anything while there are no accounts.
    second.must(protocol, "PurgeQueue", QueueUrl=f"{server.http_url}/111111111111/q")


def test_the_region_of_an_arn_is_that_of_the_signature(server, protocol):
    for region in ("eu-central-1", "ap-southeast-2"):
        asker = Asker(server.http_port, "x", "x", region=region)
        asker.must(protocol, "CreateQueue", QueueName="q")
        told = asker.must(protocol, "GetQueueAttributes", QueueUrl="q", AttributeNames=["QueueArn"])
        assert f"arn:aws:sqs:{region}:{DEFAULT}:q" in told.body.decode()


def test_the_first_account_closes_the_door_and_the_last_one_opens_it(server, protocol):
    anybody = Asker(server.http_port, "x", "x")
    anybody.must(protocol, "CreateQueue", QueueName="q")
    accounts = server.server.native.broker.accounts
    _, key = server.call(accounts.create("shop", account_id=DEFAULT))
    assert anybody.ask(protocol, "ListQueues").code == "InvalidClientTokenId"
    digits = Asker(server.http_port, DEFAULT, "x")
    assert digits.ask(protocol, "ListQueues").code == "InvalidClientTokenId"
    owner = Asker(server.http_port, key.id, key.secret)
    assert owner.must(protocol, "ListQueues").all("QueueUrl") == [f"{server.http_url}/{DEFAULT}/q"]
    server.call(accounts.delete("shop"))
    anybody.must(protocol, "ListQueues")


# -- with a token -------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", DEFAULT, "AKIAIOSFODNN7EXAMPLE"])
def test_a_server_with_a_token_and_no_accounts_refuses_sqs(protocol, key):
    with ServerThread("nowhere", port=-1, memory=True, token="secret") as server:
        spy = Spy(server.server.native.broker.store)
        asker = Asker(server.http_port, key, "secret")
        for action, members in (
            ("ListQueues", {}),
            ("CreateQueue", {"QueueName": "q"}),
            ("SendMessage", {"QueueUrl": "q", "MessageBody": "m"}),
        ):
            with spy.nothing():
                answer = asker.ask(protocol, action, **members)
            code = "InvalidClientTokenId" if key else "MissingAuthenticationToken"
            assert (answer.code, answer.status) == (code, 403)
        _, made = server.call(server.server.native.broker.accounts.create("shop"))
        owner = Asker(server.http_port, made.id, made.secret)
        owner.must(protocol, "CreateQueue", QueueName="q")


# -- TLS ----------------------------------------------------------------------------------------


class Certificates:
    """An authority, and a server's certificate by it, in files."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        self.authority = str(directory / "ca.pem")
        self.certificate = str(directory / "cert.pem")
        self.key = str(directory / "key.pem")
        self.stranger = str(directory / "stranger.pem")
        authority.cert_pem.write_to_path(self.authority)
        trustme.CA().cert_pem.write_to_path(self.stranger)
        issued.private_key_pem.write_to_path(self.key)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(self.certificate, append=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def secure(certificates: Certificates) -> Iterator[ServerThread]:
    with ServerThread(
        "nowhere",
        port=-1,
        memory=True,
        tls_cert=certificates.certificate,
        tls_key=certificates.key,
    ) as running:
        yield running


def client(url: str, key: Any, verify: str) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
        verify=verify,
        config=Config(retries={"max_attempts": 0}, connect_timeout=20, read_timeout=20),
    )


def test_boto3_uses_a_server_whose_authority_it_trusts(secure, certificates):
    _, key = secure.call(secure.server.native.broker.accounts.create("shop"))
    url = f"https://localhost:{secure.http_port}"
    with closing(client(url, key, certificates.authority)) as sqs:
        queue = sqs.create_queue(QueueName="q")["QueueUrl"]
        assert queue.startswith(url)
        sqs.send_message(QueueUrl=queue, MessageBody="m" * 300_000)
        [message] = sqs.receive_message(QueueUrl=queue)["Messages"]
        assert message["Body"] == "m" * 300_000
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    with (
        closing(client(url, key, certificates.stranger)) as sqs,
        pytest.raises(botocore.exceptions.SSLError),
    ):
        sqs.list_queues()


def test_plain_http_to_a_tls_port_fails_cleanly_and_the_server_goes_on(
    secure, certificates, caplog
):
    _, key = secure.call(secure.server.native.broker.accounts.create("shop"))
    for opening in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 100,
        b"\x16\x03\x01\x00\x05hello",
    ):
        with socket.create_connection(("127.0.0.1", secure.http_port), timeout=20) as plain:
            plain.sendall(opening)
            plain.shutdown(socket.SHUT_WR)
            answered = b""
            while data := _received(plain):
                answered += data
        assert b"HTTP/1.1 200" not in answered
    with (
        closing(client(f"http://127.0.0.1:{secure.http_port}", key, "")) as sqs,
        pytest.raises(botocore.exceptions.HTTPClientError),
    ):
        sqs.list_queues()
    with closing(
        client(f"https://localhost:{secure.http_port}", key, certificates.authority)
    ) as sqs:
        sqs.list_queues()
    assert "Traceback" not in caplog.text


def _received(plain: socket.socket) -> bytes:
    try:
        return plain.recv(4096)
    except ConnectionError:
        return b""


def test_old_versions_of_tls_are_refused(secure, certificates):
    context = ssl.create_default_context(cafile=certificates.authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", secure.http_port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        assert wrapped.version() == "TLSv1.2"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(certificates.authority)
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", secure.http_port), timeout=20) as plain,
        pytest.raises(ssl.SSLError),
    ):
        old.wrap_socket(plain, server_hostname="localhost")
