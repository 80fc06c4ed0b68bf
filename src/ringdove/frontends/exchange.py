"""One HTTP request and its response, as the dialects (SQS, REST, the console) see them."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class HttpRequest(NamedTuple):
    """A request that has arrived whole."""

    method: str
    #: Decoded, and as it was written.
    path: str
    raw_path: bytes
    query: bytes
    #: By lower-case name; the values of a repeated header are joined with commas.
    headers: dict[bytes, bytes]
    body: bytes
    scheme: str = "http"

    def header(self, name: bytes) -> str:
        """A header as text; empty when it is missing."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def cross_site(self) -> bool:
        """Whether a page of another site asks, through the browser of somebody who may.

        Browsers send simple requests anywhere, also to a server on this machine without a token.
        They say so: in Sec-Fetch-Site, older ones in Origin.
        """
        site = self.header(b"sec-fetch-site")
        if site:
            return site not in ("same-origin", "none")
        origin = self.header(b"origin")
        return bool(origin) and origin.partition("://")[2] != self.header(b"host")

    @property
    def from_browser(self) -> bool:
        """Whether it seems to come from a browser; a page cannot leave out all that tells so."""
        return any(name in self.headers for name in _BROWSERS_SEND) or self.headers.get(
            b"user-agent", b""
        ).startswith(b"Mozilla/")

    @property
    def names_this_machine(self) -> bool:
        """Whether Host is an address, or a name that leads nowhere else; old clients send none."""
        host = self.header(b"host").lower()
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return not name or is_local(name)
        return True


def is_local(host: str) -> bool:
    """Whether an address is one that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


#: Headers that programs have no reason to send.
_BROWSERS_SEND = (b"accept-language", b"cookie", b"origin", b"referer", b"sec-fetch-site")


class Feed(Protocol):
    """A body without an end: it is written piece by piece until one side hangs up."""

    def begin(self, write: Callable[[bytes], bool]) -> None:
        """The head is written. `write` answers False, and writes nothing, while pieces pile up."""
        ...

    def end(self) -> None:
        """The client has gone, or the server closes: write no more."""
        ...


#: What a browser may do with most answers: they are data, never a page to be framed or guessed at.
DATA_ONLY = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


class HttpResponse(NamedTuple):
    """What to answer."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    #: What browsers are told to beware of.
    protection: tuple[tuple[bytes, bytes], ...] = DATA_ONLY
    #: Goes on where `body` ends.
    feed: Feed | None = None


class Drive(Protocol):
    """Runs a coroutine of the broker to its end, together with those of other requests.

    With `parks`, it may wait long: if the asking client goes away meanwhile, the request's work is
    ended where it waits.
    """

    async def __call__(self, coroutine: Coroutine[Any, Any, T], *, parks: bool = False) -> T:
        """Its result, or its error."""
        ...


TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


def text_response(
    status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> HttpResponse:
    """A response of one line."""
    return HttpResponse(status, text.encode() + b"\n", (TEXT, *headers))
