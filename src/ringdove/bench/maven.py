"""Files of Maven Central: fetched when first asked for, checked, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import tempfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

from ringdove.cli.output import progress
from ringdove.errors import StoreUnavailable

CENTRAL = "https://repo1.maven.org/maven2/"

_FETCH_SECONDS_MAX = 60


class Jar(NamedTuple):
    """A file of Maven Central."""

    sha256: str
    path: str

    @property
    def name(self) -> str:
        """What the file is called."""
        return self.path.rpartition("/")[2]


def listed(path: Path, part: str) -> list[Jar]:
    """What a part of a list names: lines of SHA-256 and path."""
    text = path.read_text().partition(f"[{part}]\n")[2].partition("\n\n")[0]
    return [Jar(*line.split()) for line in text.splitlines()]


def fetched(wanted: list[Jar], cache: Path, what: str, central: str = CENTRAL) -> list[Path]:
    """The files, from the cache or from Maven Central; StoreUnavailable if one cannot be had."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [jar for jar in wanted if not (cache / jar.name).exists()]
    if missing:
        with progress(f"Fetching {what}", len(missing)) as done:
            for number, jar in enumerate(missing, 1):
                _fetch(jar, cache, central)
                done(number)
    return [cache / jar.name for jar in wanted]


def _fetch(jar: Jar, cache: Path, central: str) -> None:
    try:
        with urllib.request.urlopen(  # noqa: S310  an address of ours
            central + jar.path, timeout=_FETCH_SECONDS_MAX
        ) as answer:
            data = answer.read()
    except OSError as error:
        raise StoreUnavailable(f"{central}{jar.path} cannot be fetched: {error}.") from error
    found = hashlib.sha256(data).hexdigest()
    if found != jar.sha256:
        raise StoreUnavailable(f"{central}{jar.path} has SHA-256 {found}, and not {jar.sha256}.")
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as file:
        file.write(data)
    Path(file.name).replace(cache / jar.name)
