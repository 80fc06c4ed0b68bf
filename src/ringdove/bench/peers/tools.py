"""Load tools that brokers bring along: run as programs, and read."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOOL_S_MAX = 300


class Tool:
    """A running load tool."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603  what was fetched and checked
            list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def output(self) -> tuple[str, float]:
        """What it printed, and when it had ended."""
        try:
            told, _ = self._process.communicate(timeout=_TOOL_S_MAX)
        except subprocess.TimeoutExpired as error:
            raise StoreUnavailable(f"A load tool has not ended after {_TOOL_S_MAX} s.") from error
        if self._process.returncode:
            raise StoreUnavailable(f"A load tool failed: {told.strip()[-300:]}")
        return told, time.time()

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
