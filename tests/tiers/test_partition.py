"""A link that goes dead without a word: a core in a network namespace of its own, cut off (M1).

Nothing is refused and nothing is closed; packets just vanish. So both sides must notice by
themselves, and no segment that TCP still holds may come in twice when the link is back.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ringdove
from server.running import PATIENCE_S, ServerThread, wait_for
from tiers.brokers import bodies, copied


def _ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


class Island:
    """A network namespace with one link to the rest of the machine."""

    def __init__(self) -> None:
        number = os.getpid() % 250
        self.name, self._link = f"ringdove{os.getpid()}", f"rd{os.getpid()}"
        self.host, self._outside = f"10.213.{number}.2", f"10.213.{number}.1"
        if shutil.which("ip") is None or not _ip("netns", "add", self.name):
            pytest.skip("network namespaces need root and the program ip")
        peer = f"{self._link}p"
        made = (
            _ip("link", "add", self._link, "type", "veth", "peer", "name", peer)
            and _ip("link", "set", peer, "netns", self.name)
            and _ip("addr", "add", f"{self._outside}/30", "dev", self._link)
            and _ip("-n", self.name, "addr", "add", f"{self.host}/30", "dev", peer)
            and _ip("-n", self.name, "link", "set", peer, "up")
            and _ip("link", "set", self._link, "up")
        )
        if not made:
            self.close()
            pytest.skip("this machine makes no pairs of virtual links")

    def cut(self) -> None:
        """Let every packet vanish."""
        assert _ip("link", "set", self._link, "down")

    def heal(self) -> None:
        """Let them pass again."""
        assert _ip("link", "set", self._link, "up")

    def close(self) -> None:
        """Remove the namespace, and the link with it."""
        _ip("link", "del", self._link)
        _ip("netns", "del", self.name)


@pytest.fixture
def island() -> Iterator[Island]:
    """One island."""
    made = Island()
    yield made
    made.close()


@pytest.fixture
def core(island: Island, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A core on the island; this side reaches it by its unix socket as well, link or not."""
    socket = tmp_path / "core.sock"
    process = subprocess.Popen(
        [
            "ip", "netns", "exec", island.name, sys.executable, "-m", "ringdove",
            "--data", str(tmp_path / "core"), "serve", "--host", island.host, "--insecure",
            "--port", "0", "--http", "-1", "--unix", str(socket), "--json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    port = json.loads(process.stdout.readline())["port"]
    yield {"url": f"ringdove://{island.host}:{port}", "unix": f"ringdove+unix://{socket}"}
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


def test_a_dead_link_loses_and_doubles_nothing(
    island: Island, core: dict[str, Any], tmp_path: Path
) -> None:
    total = 3000
    found: list[bytes] = []

    def consume(url: str) -> None:
        with ringdove.connect(url) as far, copied(far, "readings", 1).stream(wait=60) as stream:
            for batch in stream:
                found.extend(message.body for message in batch)
                if len(found) >= total:
                    return

    with (
        ServerThread(tmp_path / "edge", level=1, upstream=core["url"], name="edge") as edge,
        ringdove.connect(core["unix"]) as near,
    ):
        queue = near.create_queue("readings", order="strict", delivery="exactly-once")
        queue.send_many(bodies(0, 1000))
        reader = threading.Thread(target=consume, args=(edge.url,))
        reader.start()
        wait_for(lambda: len(found) >= 1000, "what came before the cut")
        island.cut()
        queue.send_many(bodies(1000, 2000))
        wait_for(
            lambda: edge.server.relay.pulled["readings"].state == "away", "the relay to notice"
        )
        assert len(found) == 1000
        island.heal()
        queue.send_many(bodies(2000, total))
        reader.join(PATIENCE_S)
    assert found == bodies(0, total)
