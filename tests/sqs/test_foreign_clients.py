"""Clients that others wrote, unmodified, in processes of their own: only the endpoint is ours."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from server.running import ServerProcess
from sqs.foreign_processes import Shop, finish


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with ServerProcess(tmp_path_factory.mktemp("foreign") / "data") as server:
        made = Shop(server)
        yield made
        made.close()
        assert "Traceback" not in server.log


def test_boto3_does_what_its_documentation_shows(shop):
    out = shop.run_script("foreign_boto3.py")
    assert out.split() == ["standard", "resources", "dead_letters", "long_poll", "fifo"]


def test_aioboto3_has_many_requests_under_way(shop):
    assert shop.run_script("foreign_aioboto3.py") == "done\n"


@pytest.fixture
def aws(shop: Shop) -> Callable[..., Any]:
    """Begins `aws sqs ...`; its version 1 takes the endpoint of this service as a flag only."""
    flags = ("--endpoint-url", shop.server.http_url, "--output", "json")
    return lambda *command: shop.start("-m", "awscli", "sqs", *command, *flags)


def test_the_aws_command_line_manages_and_uses_queues(shop, aws):
    def do(*command: str) -> dict:
        process = aws(*command)
        out, err = finish(process)
        assert not process.returncode, err
        return json.loads(out) if out.strip() else {}

    url = do("create-queue", "--queue-name", "cli", "--attributes", "VisibilityTimeout=45")
    url = url["QueueUrl"]
    assert url.endswith(f"/{shop.account}/cli")
    sent = do(
        "send-message", "--queue-url", url, "--message-body", "Grüße & <xml>",
        "--message-attributes", '{"n": {"DataType": "Number", "StringValue": "7"}}',
    )  # fmt: skip
    found = do(
        "receive-message", "--queue-url", url, "--attribute-names", "All",
        "--message-attribute-names", "All", "--wait-time-seconds", "5",
    )  # fmt: skip
    [message] = found["Messages"]
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == "Grüße & <xml>"
    assert message["MessageAttributes"]["n"]["StringValue"] == "7"
    do("delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
    told = do("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")
    assert told["Attributes"]["VisibilityTimeout"] == "45"
    assert told["Attributes"]["ApproximateNumberOfMessages"] == "0"
    do("delete-queue", "--queue-url", url)


def test_the_aws_command_line_tells_an_error_by_its_code(aws):
    process = aws("get-queue-url", "--queue-name", "nowhere")
    _, err = finish(process)
    assert process.returncode in (254, 255)
    assert "(AWS.SimpleQueueService.NonExistentQueue)" in err


def test_kombu_alone_produces_and_consumes(shop):
    place = f"{shop.server.host}:{shop.server.http_port}"
    out = shop.run_script("foreign_kombu.py", f"sqs://{shop.key}:{shop.secret}@{place}//")
    assert out.split() == ["simple", "consumers", "ordered"]
