"""Flags that many commands have, and the question before what cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ringdove.errors import InvalidArgument

#: One that is given or not; there is no --no-... of it.
Flag = Annotated[bool, Parameter(negative="")]
JsonFlag = Annotated[bool, Parameter(name="--json", negative="")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless that was answered with --yes; InvalidArgument if it is not wanted after all."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidArgument(f"{question} Say --yes to do it without being asked.")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise InvalidArgument("Nothing was done.")
