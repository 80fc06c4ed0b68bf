"""Where a fabric is, and how to get in: redis://USER:PASSWORD@HOST:PORT,HOST:PORT?OPTION=VALUE.

Some of its nodes are enough; they know the others. With rediss:// everything goes over TLS.

    copies   copies of a message at most, by default 3; 1 for a cluster without replicas
    near     hosts of nodes that are on this machine, by default those whose address it has
    ca       file with the authority that has signed the nodes' certificates
    cert     file with this client's certificate chain, where nodes ask for one; key: its key
    names    `any`: certificates need not be made out for the addresses of their nodes
"""

from __future__ import annotations

import ssl
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from ringdove.errors import InvalidArgument
from ringdove.stores.fabric.wire import Login, NodeAddress

SCHEMES = ("redis", "rediss")

_OPTIONS = ("copies", "near")
_TLS_OPTIONS = ("ca", "cert", "key", "names")


class FabricUrl(NamedTuple):
    """What such a URL says."""

    nodes: list[NodeAddress]
    copies: int
    #: Hosts on this machine; None: to be found out.
    near: frozenset[str] | None
    login: Login


def parse_url(url: str) -> FabricUrl:
    """Take a URL apart."""
    scheme, _, rest = url.partition("://")
    secure = scheme == "rediss"
    places, _, query = rest.partition("?")
    account, _, hosts = places.rpartition("@")
    user, _, password = account.partition(":")
    options = _options(url, query, secure=secure)
    copies = options.get("copies", "3")
    if copies not in ("1", "2", "3"):
        raise InvalidArgument(f"{_shown(url)}: copies is {copies!r}; it must be 1, 2 or 3.")
    near = options.get("near")
    return FabricUrl(
        [_node(url, host) for host in hosts.rstrip("/").split(",")],
        int(copies),
        None if near is None else frozenset(near.split(",")),
        Login(unquote(user), unquote(password), _tls(options) if secure else None),
    )


def _options(url: str, query: str, *, secure: bool) -> dict[str, str]:
    known = (*_OPTIONS, *_TLS_OPTIONS) if secure else _OPTIONS
    try:
        found = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    except ValueError as error:
        raise InvalidArgument(
            f"{_shown(url)}: the options cannot be read: write ?copies=2."
        ) from error
    for name in found:
        if name not in known:
            hint = " Those of TLS need rediss://." if name in _TLS_OPTIONS else ""
            raise InvalidArgument(
                f"{_shown(url)}: there is no option {name!r}; options are {', '.join(known)}.{hint}"
            )
    return found


def _node(url: str, place: str) -> NodeAddress:
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidArgument(f"{_shown(url)} names no nodes: use redis://HOST:PORT,HOST:PORT.")
    return NodeAddress(host.strip("[]"), int(port))


def _shown(url: str) -> str:
    """The URL without its password."""
    scheme, _, rest = url.partition("://")
    account, at, hosts = rest.rpartition("@")
    user, colon, _ = account.partition(":")
    return repr(f"{scheme}://{user}{colon}{'...' if colon else ''}{at}{hosts}")


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"The certificates for rediss:// cannot be used: {error}.") from error
    names = options.get("names", "")
    if names not in ("", "any"):
        raise InvalidArgument(f"names is {names!r}; it must be 'any', or be left out.")
    context.check_hostname = not names
    return context
