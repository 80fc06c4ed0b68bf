"""Runs commands as a user types them, in this process."""

import io
import json
import sys

from ringdove.cli import EXIT_OK, run


class Shell:
    """Keeps what commands print; they work in a data directory, if one is given."""

    def __init__(self, capfd, monkeypatch, directory=None):
        self.directory = directory
        self._capfd = capfd
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments, code=EXIT_OK, stdin=None):
        if stdin is not None:
            self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capfd.readouterr()
        place = [] if self.directory is None else ["--data", str(self.directory)]
        actual = run([*place, *arguments])
        self.out, self.err = self._capfd.readouterr()
        assert actual == code, f"{arguments}: {actual}\n{self.out}\n{self.err}"
        return self.out

    def json(self, *arguments, **options):
        return [json.loads(line) for line in self(*arguments, "--json", **options).splitlines()]
