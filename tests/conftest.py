"""Fixtures that many tests share: connections to both kinds of store, on a clock that obeys."""

import pytest

import ringdove
from ringdove.clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["memory", "file"])
def rd(request, tmp_path, clock):
    """A connection to a fresh store of either kind, under a manual clock."""
    url = "memory:" if request.param == "memory" else f"file:{tmp_path}/data"
    with ringdove.connect(url, clock=clock) as connection:
        yield connection


@pytest.fixture
def file_url(tmp_path):
    return f"file:{tmp_path}/data"
