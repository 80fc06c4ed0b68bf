"""How a process is told what to do: flags, then environment, then a TOML file, then the default.

The same names everywhere: `--url`, RINGDOVE_URL and `url = "..."` in `ringdove.toml` of the working
directory or of ~/.config/ringdove/; those of a server in its table [serve].
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

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
    for names, source in (
        ("--url or --data", {"url": url, "data": data}),
        ("RINGDOVE_URL or RINGDOVE_DATA", environment()),
        ("url or data in ringdove.toml", _file()),
    ):
        if source.get("url") and source.get("data"):
            raise InvalidArgument(f"Give {names}, not both.")
        if source.get("url"):
            return str(source["url"])
        if directory := source.get("data"):
            return url_of(str(directory))
    return f"file:{DATA_DEFAULT}"


def url_of(directory: str | os.PathLike[str]) -> str:
    """The URL that names a data directory; `directory_of` is the way back."""
    return f"file:{os.fspath(directory).replace('%', '%25')}"


def absolute_url(url: str) -> str:
    """A URL that means the same in every working directory."""
    return url_of(directory_of(url).absolute()) if url.startswith("file:") else url


def directory_of(url: str) -> Path:
    """The data directory that a URL names; after two slashes stands a host, which is this one."""
    scheme, _, path = url.partition(":")
    if scheme != "file":
        _, secret, place = url.rpartition("@")
        shown = f"{scheme}://{place}" if secret else url
        raise InvalidArgument(f"This works on a data directory, not on {shown!r}: use --data.")
    if path.startswith("//"):
        host, path = urlsplit(url)[1:3]
        if host not in ("", "localhost"):
            raise InvalidArgument(
                f"{url!r} names the host {host!r}: write 'file:{host}{path}' for a directory "
                "here, or 'file:///' and all of its path."
            )
    if not path:
        raise InvalidArgument(f"{url!r} names no directory: write for example 'file:./data'.")
    return Path(unquote(path)).expanduser()


def server_config(flags: dict[str, Any]) -> ServerConfig:
    """What a server is told, from the flags given and from the surroundings."""
    from ringdove.server_config import ServerConfig  # noqa: PLC0415  heavy, and only servers need it

    names = [field.name for field in msgspec.structs.fields(ServerConfig)]
    surroundings = {
        name: value
        for name in names
        if name != "data" and (value := os.environ.get(f"RINGDOVE_{name.upper()}")) is not None
        if value or name == "token"  # Empty is as good as not set, but for what keeps others out.
    }
    chosen = {key: value for key, value in flags.items() if value is not None}
    written = _file().get("serve", {})
    if not isinstance(written, dict):
        raise InvalidArgument(
            f"'serve' is {written!r} in ringdove.toml; it must be a table: [serve], port = 7117."
        )
    for name in written.keys() - set(names):
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "'ringdove serve --help' lists them."
        raise InvalidArgument(f"[serve] in ringdove.toml has no option {name!r}. {hint}")
    told = {**written, **surroundings, **chosen}
    try:
        config = msgspec.convert(told, ServerConfig, strict=False)
    except msgspec.ValidationError as error:
        variables = ", ".join(f"RINGDOVE_{name.upper()}" for name in surroundings)
        source = f" (with {variables} from the environment)" if variables else ""
        raise InvalidArgument(
            f"The server's configuration cannot be used{source}: {error}."
        ) from error
    if told.get("data") or config.store or config.memory:
        return config
    directory = directory_of(find_url(None, None))
    return msgspec.structs.replace(config, data=str(directory))


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where files of this user are kept that can be made or fetched again."""
    cache = environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(cache, "ringdove")


def environment() -> dict[str, Any]:
    """What the environment says of the place."""
    return {name: os.environ.get(f"RINGDOVE_{name.upper()}") for name in _NAMES}


def _file() -> dict[str, Any]:
    for directory in (Path.cwd(), Path("~/.config/ringdove").expanduser()):
        path = directory / "ringdove.toml"
        if path.is_file():
            try:
                found = tomllib.loads(path.read_text())
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise InvalidArgument(f"{path} is no valid TOML: {error}.") from error
            if unknown := found.keys() - {*_NAMES, "serve"}:
                raise InvalidArgument(
                    f"{path} may say {', '.join(_NAMES)} and have a table [serve], not "
                    f"{', '.join(sorted(unknown))}: what a server is told belongs into the table."
                )
            return found
    return {}
