"""Defects that are known and not fixed yet: their tests must fail, and tell when they do not."""

from __future__ import annotations

import pytest

#: Reasons by the end of a test's id, without its parameters.
KNOWN = {
    "test_an_interrupted_leader_leaves_nobody_waiting": (
        "Writer._commit lets KeyboardInterrupt out with the operations of others in hand"
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.partition("[")[0]
        for end, reason in KNOWN.items():
            if name.endswith(end):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
