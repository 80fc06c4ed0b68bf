"""Python workers of Spark that end in silence when Java has hung up on them.

Java ends a worker that has been idle for a minute by closing its socket. Over TCP the worker's
last words are lost unnoticed; over a unix socket writing them fails, and Spark has each worker
write a traceback to the terminal. Workers that do tasks are forked by this module, which
`spark.python.daemon.module` names; those that plan come from Spark's own, and are told by `hush`.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from pyspark import daemon

if TYPE_CHECKING:
    from collections.abc import Callable

_SPARKS_OWN = daemon.__name__


def quiet(work: Callable[..., int]) -> Callable[..., int]:
    """What a worker does, task by task, without complaints of a socket that was closed."""

    @wraps(work)
    def worked(*arguments: Any) -> int:
        try:
            return work(*arguments)
        except BrokenPipeError:
            return 1  # As after any failure: there will be no other task.

    return worked


def hush() -> None:
    """Have this process end in silence, if it is a worker that Spark's own module has forked."""
    main: Any = sys.modules["__main__"]
    if getattr(main.__spec__, "name", "") == _SPARKS_OWN:
        main.worker = quiet(main.worker)


if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)
    daemon.manager()
