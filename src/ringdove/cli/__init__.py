"""The command line. `main` is the entry point of the program `ringdove`."""

from __future__ import annotations

import os
import signal
import sys

#: Exit codes: done; refused; wrong usage; the store or server cannot be used; interrupted.
EXIT_OK, EXIT_REFUSED, EXIT_USAGE, EXIT_STORE, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def main(arguments: list[str] | None = None) -> None:
    """Run one command and leave with its exit code.

    SIGTERM does what Ctrl-C does: what a command has started, other processes too, is ended.
    """
    _open_missing_streams()
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _open_missing_streams() -> None:
    """Stand in for standard streams that were closed before the program began (`>&-`).

    Otherwise the next file or socket that is opened would be standard output. Reading and writing
    fails as it does for other programs, so that nothing is acknowledged that was not printed.
    """
    for name, flag, mode in (
        ("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"),
    ):  # fmt: skip
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flag), mode))


def run(arguments: list[str]) -> int:
    """Run one command; answers the exit code."""
    from cyclopts import CycloptsError

    from ringdove.errors import RingdoveError

    try:
        return _command(arguments)
    except CycloptsError:
        return EXIT_USAGE
    except RingdoveError as error:
        print(f"ringdove: {error}", file=sys.stderr)
        return _exit_code(error)
    except KeyboardInterrupt:
        print("ringdove: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # Rich, who draws tables and help, makes the second of the first.
        if not any(isinstance(one, BrokenPipeError) for one in (error, error.__context__)):
            raise
        sys.stdout = None  # The reader has gone: say nothing more.
        return EXIT_OK
    except OSError as error:
        print(f"ringdove: {_system_error(error)}", file=sys.stderr)
        return EXIT_REFUSED


def _command(arguments: list[str]) -> int:
    from ringdove.cli.app import app

    result = app.meta(
        arguments, exit_on_error=False, print_error=True, result_action="return_value"
    )
    sys.stdout.flush()  # What cannot be written should be known before the program is done.
    return result if isinstance(result, int) else EXIT_OK


def _exit_code(error: Exception) -> int:
    """A server that is gone is a store that cannot be used: a script may try again later."""
    from ringdove.errors import ConnectionClosed, StoreCorrupted, StoreUnavailable, WaitTimeout

    gone = StoreUnavailable | StoreCorrupted | ConnectionClosed | WaitTimeout
    return EXIT_STORE if isinstance(error, gone) else EXIT_REFUSED


def _system_error(error: OSError) -> str:
    """What the system refused; standard output, if that still has what it could not write."""
    try:
        sys.stdout.flush()
    except OSError as found:
        sys.stdout = None
        return f"Standard output cannot be written: {found.strerror}."
    return f"{error}."
