"""The command line. `main` is the entry point of the program `ringdove`."""

from __future__ import annotations

import signal
import sys

#: Exit codes: done; refused; wrong usage; the store cannot be used; interrupted.
EXIT_OK, EXIT_REFUSED, EXIT_USAGE, EXIT_STORE, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def main(arguments: list[str] | None = None) -> None:
    """Run one command and leave with its exit code.

    SIGTERM does what Ctrl-C does: what a command has started, other processes too, is ended.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """Run one command; answers the exit code."""
    from cyclopts import CycloptsError

    from ringdove.cli.app import app
    from ringdove.errors import RingdoveError, StoreCorrupted, StoreUnavailable

    try:
        result = app.meta(
            arguments, exit_on_error=False, print_error=True, result_action="return_value"
        )
    except CycloptsError:
        return EXIT_USAGE
    except RingdoveError as error:
        print(f"ringdove: {error}", file=sys.stderr)
        return EXIT_STORE if isinstance(error, StoreUnavailable | StoreCorrupted) else EXIT_REFUSED
    except KeyboardInterrupt:
        print("ringdove: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # The reader has gone: say nothing more.
        return EXIT_OK
    return result if isinstance(result, int) else EXIT_OK
