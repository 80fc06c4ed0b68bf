"""Calls in another process, which may die of them.

A process of Python's own pools takes the whole pool with it when it dies, and runs the main script
again to find its functions. This one is started again, and knows nothing of the script.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from struct import Struct
from typing import IO, TYPE_CHECKING, Any, Self

from pyspark import cloudpickle

from ringdove.errors import RingdoveError

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH = Struct("<Q")
_END_S = 10


class Died(RingdoveError):
    """The process ended instead of answering."""

    code = "process_died"


class Apart:
    """A process that is called from one thread at a time; started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=_END_S)
            self._process = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What an importable function answers to these arguments, there."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, dumps((function, arguments)))
            return loads(_read(process.stdout))
        except (EOFError, BrokenPipeError):
            process.communicate()
            self._process = None
            raise Died(f"The process ended with code {process.returncode}.") from None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # As Spark's workers have it, so that sets have the same order everywhere.
            environment = {**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
            self._process = subprocess.Popen(  # noqa: S603  our own program
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        return self._process


def dumps(value: object) -> bytes:
    """Anything as bytes; functions that cannot be imported travel by value."""
    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def loads(data: bytes) -> Any:
    """What `dumps` was given."""
    return pickle.loads(data)  # noqa: S301  from our own processes


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data


def _serve() -> None:
    """Answer calls until nobody is there to make them."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What functions print must not get between the answers.
    calls = sys.stdin.buffer
    while True:
        try:
            function, arguments = loads(_read(calls))
        except (EOFError, KeyboardInterrupt):
            return
        answer = dumps(function(*arguments))
        sys.stdout.flush()
        _write(answers, answer)


if __name__ == "__main__":
    _serve()
