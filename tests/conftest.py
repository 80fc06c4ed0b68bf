"""Fixtures that many tests share: connections to both kinds of store, on a clock that obeys."""

import pytest

import ringdove
from fabric.redis import RedisProcess
from ringdove.clock import ManualClock


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
