"""How a process is told what to do: flags, then environment, then a TOML file, then the default.

The same names everywhere: `--url`, RINGDOVE_URL and `url = "..."` in `ringdove.toml` of the working
directory or of ~/.config/ringdove/; those of a server in its table [serve].
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringdove.server_config import ServerConfig

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


def directory_of(url: str) -> Path:
    """The data directory that a URL names."""
    scheme, _, path = url.partition(":")
    if scheme != "file":
        raise InvalidArgument(f"This works on a data directory, not on {url!r}: use --data.")
    return Path(os.path.expanduser(path))  # noqa: PTH111  a path in a URL may start with ~


def server_config(flags: dict[str, Any]) -> ServerConfig:
    """What a server is told, from the flags given and from the surroundings."""
    from ringdove.server_config import ServerConfig  # noqa: PLC0415  heavy, and only servers need it

    names = [field.name for field in msgspec.structs.fields(ServerConfig)]
    environment = {
        name: value
        for name in names
        if name != "data" and (value := os.environ.get(f"RINGDOVE_{name.upper()}"))
    }
    chosen = {key: value for key, value in flags.items() if value is not None}
    written = _file().get("serve", {})
    if not isinstance(written, dict):
        raise InvalidArgument(
            f"'serve' is {written!r} in ringdove.toml; it must be a table: [serve], port = 7117."
        )
    told = {**written, **environment, **chosen}
    if not any(told.get(name) for name in ("data", "store", "memory")):
        told["data"] = str(directory_of(find_url(None, None)))
    try:
        return msgspec.convert(told, ServerConfig, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"The server's configuration cannot be used: {error}.") from error


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where files of this user are kept that can be made or fetched again."""
    cache = environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(cache, "ringdove")


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
