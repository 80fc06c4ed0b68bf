"""A data directory that a server has open is reached through it."""

import errno
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

import ringdove
from ringdove import serving
from ringdove.errors import StoreLocked, StoreUnavailable
from server.running import PROGRAM, ServerProcess, ServerThread, run_command, wait_for

IDLE_S = 1


@pytest.fixture
def directory(tmp_path):
    """A data directory with a queue."""
    with ringdove.connect(f"file:{tmp_path / 'data'}") as rd:
        rd.create_queue("readings").send(b"first")
    return tmp_path / "data"


def bodies(url):
    with ringdove.connect(url) as rd:
        return [message.body for message in rd.queue("readings").replay()]


def test_a_directory_is_shared_through_its_server(directory):
    with ServerThread(directory, token="secret?/@"):
        with ringdove.connect(f"file:{directory}") as rd:
            rd.queue("readings").send(b"second")
        assert bodies(f"file:{directory}") == [b"first", b"second"]
        shown = run_command("--data", str(directory), "receive", "readings", "-n", "9")
        assert shown.stdout.split() == [b"first", b"second"]
        refused = run_command("--data", str(directory), "compact")
        assert (refused.returncode, refused.stdout) == (3, b"")
        assert b"end it, then compact" in refused.stderr
    assert not (directory / "server.json").exists()
    assert len(bodies(f"file:{directory}")) == 2


def test_only_the_owner_of_a_directory_reads_the_way_to_its_server(directory):
    with ServerThread(directory, token="secret"):
        assert (directory / "server.json").stat().st_mode & 0o077 == 0


def test_a_server_without_room_for_its_note_serves(directory, monkeypatch):
    """On a full disk, too, messages are received and acknowledged: that makes room."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(serving, "announce", Mock(side_effect=full))
    with ServerThread(directory) as server, ringdove.connect(server.url) as rd:
        assert rd.queue("readings").receive().ack() == 1


def test_a_server_that_was_killed_is_not_looked_for(directory):
    with ServerProcess(directory) as server:
        assert serving.find(directory) == server.url
        server.kill()
        assert serving.find(directory) is None
        assert bodies(f"file:{directory}") == [b"first"]


def test_another_process_that_has_the_directory_open_is_no_server(directory):
    """The note of a server that was killed is still there, and somebody else came."""
    with ServerProcess(directory) as server:
        server.kill()
    with ringdove.connect(f"file:{directory}"):
        assert (directory / "server.json").exists()
        assert serving.find(directory) is None
        with pytest.raises(StoreLocked):
            ringdove.connect(f"file:{directory}").close()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": 1}', '{"pid": "x", "url": "y"}'])
def test_a_note_that_says_nothing_is_none(directory, text):
    (directory / "server.json").write_text(text)
    assert serving.find(directory) is None


def test_a_server_is_started_once_for_many_and_ends_after_the_last(directory):
    ask = "import sys; from pathlib import Path; from ringdove import serving\n"
    ask += (
        f"print(serving.find_or_start(Path(sys.argv[1]), {IDLE_S}), flush=True)\nsys.stdin.read()"
    )
    several = [
        subprocess.Popen(
            [sys.executable, "-c", ask, str(directory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    urls = {process.stdout.readline().strip() for process in several}
    [url] = urls
    with ringdove.connect(url) as rd:
        for process in several:
            process.communicate()
        pid = json.loads((directory / "server.json").read_text())["pid"]
        rd.queue("readings").send(b"second")
    wait_for(lambda: not _runs(pid), "the server's end")
    assert bodies(f"file:{directory}") == [b"first", b"second"]


def test_of_many_who_find_no_server_one_starts_it(directory, monkeypatch):
    started = []
    start = serving._start
    monkeypatch.setattr(serving, "_start", lambda *given: started.append(given) or start(*given))
    with ThreadPoolExecutor(8) as pool:
        urls = set(pool.map(lambda _: serving.find_or_start(directory, IDLE_S), range(8)))
    for child in serving._started:
        child.wait(timeout=60)
    assert (len(urls), len(started)) == (1, 1)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_does_not_end_while_somebody_is_connected(directory):
    command = [*PROGRAM, "--data", str(directory), "serve", "--port", "0", "--http", "-1"]
    process = subprocess.Popen(
        [*command, "--idle-s", "1", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    port = json.loads(process.stdout.readline())["port"]
    with (
        socket.create_connection(("127.0.0.1", port)),
        pytest.raises(subprocess.TimeoutExpired),
    ):
        process.wait(timeout=3)
    assert process.wait(timeout=60) == 0
    process.stdout.close()


def test_nothing_is_served_where_nothing_is(tmp_path):
    with pytest.raises(StoreUnavailable, match="no data directory"):
        serving.find_or_start(tmp_path, IDLE_S)


def test_a_directory_that_cannot_be_served_says_why(directory):
    with (
        ringdove.connect(f"file:{directory}"),
        pytest.raises(StoreUnavailable, match=f"in use by process {os.getpid()}"),
    ):
        serving.find_or_start(directory, IDLE_S)
