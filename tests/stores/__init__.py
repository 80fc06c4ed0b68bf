"""Tests of the stores; the shared parts assert, so pytest must rewrite them too."""

import pytest

for _part in ("conformance", "driver", "machine", "model"):
    pytest.register_assert_rewrite(f"stores.{_part}")
for _part in ("append", "lease", "log", "order", "record", "settle", "trim"):
    pytest.register_assert_rewrite(f"stores.contract.{_part}")
