"""Where a process finds its queues: flags, then environment, then a TOML file, then the default.

The same names everywhere: `--url`, RINGDOVE_URL and `url = "..."` in `ringdove.toml` of the working
directory or of ~/.config/ringdove/.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from ringdove.errors import InvalidArgument

#: Where data goes when nobody says otherwise.
DATA_DEFAULT = "./ringdove-data"

_NAMES = ("url", "data")


def find_url(url: str | None, data: str | os.PathLike[str] | None) -> str:
    """The URL to connect to, from the flags given and from the surroundings."""
    if url is not None and data is not None:
        raise InvalidArgument("Give --url or --data, not both.")
    for source in ({"url": url, "data": data}, _environment(), _file()):
        if source.get("url"):
            return str(source["url"])
        if source.get("data"):
            return f"file:{source['data']}"
    return f"file:{DATA_DEFAULT}"


def _environment() -> dict[str, Any]:
    return {name: os.environ.get(f"RINGDOVE_{name.upper()}") for name in _NAMES}


def _file() -> dict[str, Any]:
    for directory in (Path.cwd(), Path("~/.config/ringdove").expanduser()):
        path = directory / "ringdove.toml"
        if path.is_file():
            try:
                return tomllib.loads(path.read_text())
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise InvalidArgument(f"{path} is no valid TOML: {error}.") from error
    return {}
