"""Staying awake: a loop that looks again for a moment, and then goes to sleep."""

import asyncio
import time

import pytest

import ringdove
from ringdove.errors import InvalidArgument
from ringdove.server_config import ServerConfig, check
from ringdove.spinning import Spinner, spinner_of
from server.running import ServerThread


class Looks:
    """Counts the turns of a loop that somebody keeps awake."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        really = Spinner._look

        def look(spinner: Spinner) -> None:
            self.count += 1
            really(spinner)

        monkeypatch.setattr(Spinner, "_look", look)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def test_a_loop_staysawake_for_its_time_and_no_longer(looks: Looks):
    async def work() -> None:
        spinner = Spinner(asyncio.get_running_loop(), 20_000)
        began_s = time.perf_counter()
        spinner.stay()
        while spinner.awake:  # noqa: ASYNC110  the loop is what is watched
            await asyncio.sleep(0)
        assert time.perf_counter() - began_s >= 0.02
        before = looks.count
        await asyncio.sleep(0.02)
        assert looks.count == before

    asyncio.run(work())
    assert looks.count > 10


def test_what_happens_meanwhile_prolongs_it(looks: Looks):
    async def work() -> None:
        spinner = Spinner(asyncio.get_running_loop(), 5_000)
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < 0.02:
            spinner.stay()
            await asyncio.sleep(0)
            assert spinner.awake

    asyncio.run(work())


def test_a_loop_that_expects_nothing_goes_to_sleep(looks: Looks):
    async def work() -> None:
        spinner = Spinner(asyncio.get_running_loop(), 60_000_000)
        spinner.stay()
        await asyncio.sleep(0)
        spinner.rest()
        for _ in range(2):
            await asyncio.sleep(0)
        assert not spinner.awake

    asyncio.run(work())


def test_nobody_staysawake_unless_told():
    async def work() -> None:
        assert spinner_of(asyncio.get_running_loop(), 0) is None

    asyncio.run(work())


@pytest.mark.parametrize("spin_us", [-1, 100_001, 0.5, "1"])
def test_what_is_no_time_is_refused(spin_us):
    with pytest.raises(InvalidArgument, match="spin_us"):
        ringdove.connect("ringdove://127.0.0.1:1", spin_us=spin_us)
    with pytest.raises(InvalidArgument, match="spin_us"):
        check(ServerConfig(spin_us=spin_us))


def test_server_and_clients_that_stayawake_serve_and_go_to_sleep(tmp_path, looks: Looks):
    with ServerThread(data=tmp_path, spin_us=2_000) as server:
        with ringdove.connect(server.url, spin_us=2_000) as rd:
            queue = rd.create_queue("q")
            for number in range(20):
                queue.send(b"%d" % number)
                batch = queue.receive(wait=5)
                assert batch.bodies() == [b"%d" % number]
                batch.ack()
            assert looks.count > 100
        assert server.server.native.spinner is not None
        deadline_s = time.monotonic() + 60
        while server.server.native.spinner.awake:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
