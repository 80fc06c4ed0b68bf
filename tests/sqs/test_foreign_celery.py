"""Celery with kombu's SQS transport does real work, in processes of its own."""

import signal
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from server.running import ServerProcess, wait_for
from sqs.foreign_processes import HERE, REGION, Shop, finish


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with ServerProcess(tmp_path / "data") as server:
        made = Shop(server)
        yield made
        made.close()
        assert "Traceback" not in server.log


#: As in foreign_celery.py, which only its own processes may import.
TASKS = 50
DELAYED_S = 2


def test_a_worker_does_fifty_tasks_and_leaves_nothing(shop, tmp_path):
    done = tmp_path / "done"
    done.touch()
    place = f"{shop.server.host}:{shop.server.http_port}"
    told = {
        "BROKER": f"sqs://{shop.key}:{shop.secret}@{place}//",
        "DONE": str(done),
        "PYTHONPATH": str(HERE),
    }
    shop.run("-c", "import foreign_celery; foreign_celery.send()", **told)
    worker = shop.start(
        "-m", "celery", "-A", "foreign_celery", "worker", "--concurrency", "2", "--loglevel",
        "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat", **told,
    )  # fmt: skip
    try:
        wait_for(lambda: len(done.read_text().splitlines()) >= TASKS, "fifty tasks")
        wait_for(lambda: left(shop, "celery-celery") == (0, 0, 0), "their messages' end")
    finally:
        worker.send_signal(signal.SIGTERM)
        out, err = finish(worker)
    assert not worker.returncode, f"{out}\n{err}"
    lines = done.read_text().splitlines()
    assert len(lines) == TASKS
    sums = {f"add {number} {number + 1000}" for number in range(TASKS - 2)}
    assert sums < set(lines)
    [stubborn, later] = sorted(set(lines) - sums, reverse=True)
    assert stubborn == "stubborn 2"
    assert float(later.removeprefix("later ")) >= DELAYED_S


def left(shop: Shop, name: str) -> tuple[int, ...]:
    """Messages of a queue that wait, are in flight, are delayed."""
    client = boto3.client(
        "sqs",
        endpoint_url=shop.server.http_url,
        region_name=REGION,
        aws_access_key_id=shop.key,
        aws_secret_access_key=shop.secret,
    )
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    told = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    client.close()
    names = ("", "NotVisible", "Delayed")
    return tuple(int(told[f"ApproximateNumberOfMessages{name}"]) for name in names)
