"""Fixtures that many tests share: connections to both kinds of store, on a clock that obeys."""

import signal

import pytest
from xdist.scheduler import LoadFileScheduling

import ringdove
from fabric.redis import RedisProcess
from ringdove import limits
from ringdove.clock import ManualClock


class OneSpark(LoadFileScheduling):
    """A file goes to one worker, and all files about Spark to the same: it starts Spark once."""

    def _split_scope(self, nodeid):
        place = "tests/spark/"
        return place if nodeid.startswith(place) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return OneSpark(config, log) if config.option.dist == "loadfile" else None


def pytest_configure():
    """Let Ctrl-C reach the programs that tests start, also where a shell began all this by `&`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """What takes longest is begun first, so that no worker has it left at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/spark/"))


@pytest.fixture(autouse=True)
def journal_at_once(monkeypatch):
    """Have the journal take the first small commit: tests are short."""
    monkeypatch.setattr(limits, "JOURNAL_AFTER", 0)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(scope="session")
def redis(tmp_path_factory):
    """A cluster of one node, for all tests of the session; empty it before use."""
    with RedisProcess(tmp_path_factory.mktemp("redis")) as process:
        yield process


@pytest.fixture(params=["memory", "file"])
def rd(request, tmp_path, clock):
    """A connection to a fresh store of either kind, under a manual clock."""
    url = "memory:" if request.param == "memory" else f"file:{tmp_path}/data"
    with ringdove.connect(url, clock=clock) as connection:
        yield connection


@pytest.fixture
def file_url(tmp_path):
    return f"file:{tmp_path}/data"
