"""The server is killed and started again under boto3: nothing that was acknowledged is lost."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from server.running import ServerProcess, wait_for
from sqs.foreign_processes import HERE, PATIENCE_S, REGION, Shop

COUNT = 400

#: When the server is killed, as shares of what is sent; and what the witness receives at a time.
KILLS_AT = (0.2, 0.6)
RECEIVED_MAX = 5

#: boto3's own retries, as its documentation has them.
RETRIES = {"AWS_RETRY_MODE": "standard", "AWS_MAX_ATTEMPTS": "20"}


class Witness:
    """A running foreign_witness.py, and what it has told so far."""

    def __init__(self, shop: Shop, verb: str, name: str) -> None:
        script = str(HERE / "foreign_witness.py")
        self._process = shop.start(script, verb, name, str(COUNT), **RETRIES)
        #: Numbers of messages, and their ids, as far as it tells them.
        self.told: list[int] = []
        self.ids: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, *ids = line.decode().split()
            self.told.append(int(number))
            self.ids += ids

    def finish(self) -> None:
        """Wait for its good end."""
        assert self._process.stderr is not None
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"hangs after {len(self.told)}") from None
        finally:
            self._reader.join()
            err = self._process.stderr.read().decode()
            self._process.stdout.close()
            self._process.stderr.close()
        assert not self._process.returncode, err


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with ServerProcess(tmp_path / "data") as server:
        made = Shop(server)
        yield made
        made.close()


@pytest.mark.parametrize("name", ["work", "work.fifo"])
def test_a_killed_server_loses_nothing_that_boto3_was_told(shop, name):
    client = boto3.client(
        "sqs",
        endpoint_url=shop.server.http_url,
        region_name=REGION,
        aws_access_key_id=shop.key,
        aws_secret_access_key=shop.secret,
    )
    fifo = name.endswith(".fifo")
    client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if fifo else {})
    client.close()
    sender, taker = Witness(shop, "send", name), Witness(shop, "take", name)
    for share in KILLS_AT:
        wait_for(lambda: len(sender.told) > COUNT * share, f"{share:%} sent", PATIENCE_S)
        shop.server.kill()
        shop.server.start()
    sender.finish()
    taker.finish()
    assert sender.told == list(range(COUNT))
    assert set(taker.told) == set(range(COUNT))
    # A send that is repeated because its answer was lost may store a second message. None comes
    # back whose deletion was answered, but for what was received right before a kill: the server
    # may not know such handles any more, and a standard queue then says yes, as AWS does.
    assert len(taker.ids) - len(set(taker.ids)) <= (0 if fifo else len(KILLS_AT) * RECEIVED_MAX)
    if fifo:
        # Each came in order, and what was sent twice because an answer was lost came once. A
        # deletion that is repeated because its answer was lost is told once, too.
        assert taker.told == list(range(COUNT))
