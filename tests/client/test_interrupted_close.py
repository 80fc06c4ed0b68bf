"""Ctrl-C within `close` leaves something to do; closing once more does it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ringdove
from ringdove.stores.embedded.environment import Directory, Environment
from ringdove.stores.embedded.readers import Readers
from ringdove.stores.embedded.writer import Writer

STEPS: list[tuple[Any, str]] = [
    (Writer, "close"),
    (Readers, "close"),
    (Environment, "close"),
    (Directory, "close"),
]


def strike(
    monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, *, after: bool
) -> Callable[[], int]:
    """Have Ctrl-C strike the first call of a method, before or after its work; counts its calls."""
    original = getattr(kind, name)
    calls = 0

    def struck(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            return original(*arguments, **options)
        if after:
            original(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, name, struck)
    return lambda: calls


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("kind", "name"), STEPS, ids=[kind.__name__ for kind, _ in STEPS])
def test_closing_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, after: bool
):
    url = f"file:{tmp_path / 'data'}"
    connection = ringdove.connect(url)
    for durability in ("disk", "memory"):
        connection.create_queue(durability, durability=durability).send(b"kept")
    calls = strike(monkeypatch, kind, name, after=after)
    with pytest.raises(KeyboardInterrupt):
        connection.close()
    with pytest.raises(ringdove.errors.ConnectionClosed):
        connection.queue("disk").send(b"too late")
    connection.close()
    assert calls() > 1
    connection.close()
    with ringdove.connect(url) as again:
        for durability in ("disk", "memory"):
            assert again.queue(durability).receive().bodies() == [b"kept"]


def test_what_failed_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"file:{tmp_path / 'data'}"
    connection = ringdove.connect(url)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("No.")

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "close", fail)
        with pytest.raises(OSError, match="No"):
            connection.close()
    connection.close()
    ringdove.connect(url).close()
