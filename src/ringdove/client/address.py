"""Addresses of servers, as URLs name them.

    ringdove://HOST:PORT,HOST:PORT     TCP, to whichever of them answers
    ringdoves://HOST:PORT              the same with TLS
    ringdove+unix:PATH                 a unix socket
    tiers://HOST:PORT,HOST:PORT        managers of tiers, who say where to connect; tiers+tls://
                                       with TLS. ?role= is producer or consumer, ?region= one's own

A secret that the server asks for goes before the address: `ringdove://:TOKEN@HOST:PORT`, and
`ringdove+unix://:TOKEN@PATH`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote

from ringdove.errors import InvalidArgument

PORT_DEFAULT = 7117
TIER_SCHEMES = ("tiers", "tiers+tls")
SCHEMES = ("ringdove", "ringdoves", "ringdove+unix", *TIER_SCHEMES)
ROLES = ("producer", "consumer")


@dataclass(frozen=True)
class Endpoint:
    """One place where a server may be, and what it takes to enter."""

    host: str = ""
    port: int = 0
    unix: str | None = None
    tls: bool = False
    token: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.unix if self.unix is not None else authority(self.host, self.port)


@dataclass(frozen=True)
class Asker:
    """Who asks managers where to connect."""

    role: str = "consumer"
    region: str = ""


@dataclass(frozen=True)
class Address:
    """What a URL says."""

    endpoints: list[Endpoint]
    #: Set where the endpoints are managers.
    asker: Asker | None = None


def authority(host: str, port: int) -> str:
    """Host and port as they stand in a URL: an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse(url: str) -> Address:
    """The address that a URL names, or InvalidArgument."""
    scheme, _, rest = url.partition(":")
    if scheme not in SCHEMES:
        raise _no_server(url)
    if scheme in TIER_SCHEMES:
        rest, _, query = rest.partition("?")
        kind = "ringdoves" if scheme == "tiers+tls" else "ringdove"
        return Address(parse(f"{kind}:{rest}").endpoints, _asker(url, query))
    if scheme == "ringdove+unix":
        token, at, path = rest.removeprefix("//").partition("@")
        if not at or not token.startswith(":"):
            token, path = "", rest.removeprefix("//")
        if not path:
            shown = without_token(url)
            raise InvalidArgument(
                f"{shown!r} names no socket: write ringdove+unix:/path/to/socket."
            )
        return Address([Endpoint(unix=unquote(path), token=unquote(token.removeprefix(":")))])
    token, _, hosts = rest.removeprefix("//").rstrip("/").rpartition("@")
    tls, token = scheme == "ringdoves", unquote(token.removeprefix(":"))
    endpoints = [_endpoint(url, part, tls, token) for part in hosts.split(",") if part]
    if not endpoints:
        raise _no_server(url)
    return Address(endpoints)


def _no_server(url: str) -> InvalidArgument:
    return InvalidArgument(f"{without_token(url)!r} names no server: write ringdove://HOST:PORT.")


def without_token(url: str) -> str:
    """A URL as it may be written down and handed out."""
    scheme, _, rest = url.partition(":")
    if scheme == "file":
        return url
    slashes = "//" if rest.startswith("//") else ""
    rest = rest.removeprefix("//")
    if scheme == "ringdove+unix" and not rest.startswith(":"):
        return url
    cut = rest.partition("@") if scheme == "ringdove+unix" else rest.rpartition("@")
    return f"{scheme}:{slashes}{cut[2]}" if cut[1] else url


def with_token(url: str, token: str) -> str:
    """A URL with a token, if it has none."""
    if not token or parse(url).endpoints[0].token:
        return url
    scheme, _, rest = url.partition(":")
    return f"{scheme}://:{quote(token, safe='')}@{rest.removeprefix('//')}"


def _asker(url: str, query: str) -> Asker:
    chosen = dict(parse_qsl(query, keep_blank_values=True))
    role, region = chosen.pop("role", "consumer"), chosen.pop("region", "")
    if chosen or role not in ROLES:
        raise InvalidArgument(
            f"{without_token(url)!r}: after '?' there may be role=producer, role=consumer and "
            "region=NAME."
        )
    return Asker(role, region)


def _endpoint(url: str, part: str, tls: bool, token: str) -> Endpoint:  # noqa: FBT001
    host, colon, port = part.rpartition(":")
    if not colon or part.endswith("]"):
        host, port = part, str(PORT_DEFAULT)
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidArgument(
            f"{without_token(url)!r}: {port!r} is no port; it is a number from 1 to 65535."
        )
    return Endpoint(host.strip("[]") or "127.0.0.1", int(port), tls=tls, token=token)


def tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """What a client needs for TLS: whom it trusts, and who it is."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except OSError as error:
        files = ", ".join(filter(None, (ca, cert, key)))
        raise InvalidArgument(f"The TLS files {files} cannot be used: {error}.") from error
    return context
