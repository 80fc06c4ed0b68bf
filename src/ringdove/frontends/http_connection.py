"""One HTTP connection: bytes to requests, responses to bytes, limits on everything.

`httptools` (llhttp) parses; it refuses what smugglers use: both lengths, bad chunks, bare line
ends. Requests of a connection are answered in order, one at a time; while one is under way and
others wait, nothing more is read. A request's work is driven without a task of its own
(pending.py), so a parked long poll costs a few kilobytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote

import httptools

from ringdove import limits
from ringdove.frontends.exchange import DATA_ONLY, HttpRequest, HttpResponse, text_response

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ringdove.frontends.exchange import Feed
    from ringdove.frontends.http import HttpServer
    from ringdove.pending import Driven

T = TypeVar("T")

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

#: Statuses whose responses have no body, and say no length of one.
_BODILESS = (204, 304)


class HttpConnection(asyncio.Protocol):
    """See the module."""

    __slots__ = (
        "_arriving", "_body", "_body_bytes", "_close_after", "_drive", "_driven", "_feed",
        "_head_bytes", "_headers", "_in_head", "_parser", "_reading", "_refusal", "_server",
        "_transport", "_unread_bytes", "_url", "_waiting", "_writable", "busy", "due_s",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        #: Whether a request has begun to arrive and not ended.
        self._arriving = False
        #: Whether its head has not ended, and the bytes that have come meanwhile.
        self._in_head = False
        self._unread_bytes = 0
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        #: Requests that have come and are not begun, with whether the connection stays after each.
        self._waiting: deque[tuple[HttpRequest, bool]] = deque()
        self._driven: Driven | None = None
        self._drive = _Drive()
        #: What writes the body of the response under way, if that has no end.
        self._feed: Feed | None = None
        self._refusal: HttpResponse | None = None
        self._reading = True
        self._writable = True
        self._close_after = False
        #: Whether a request is under way.
        self.busy = False
        #: When a request that has begun to arrive must be whole, or the next one must begin.
        self.due_s = server.loop.time() + limits.FRAME_S_MAX

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._server.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See asyncio."""
        self._transport = None
        self._parser = None  # It holds this connection, and this connection it.
        self._waiting.clear()
        self._server.disconnected(self)
        if self._driven is not None and self._drive.parked:
            self._driven.cancel()
            self.busy = False
        if self._feed is not None:
            self._end_feed(self._feed)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._refusal is not None or self._close_after:
            return
        in_head = self._in_head  # A head that begins within `data` is not charged for all of it.
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._close_after = True  # Nothing else is spoken here; the request itself is served.
        except httptools.HttpParserError as error:
            if self._refusal is None:
                self._refusal = text_response(400, f"This is no HTTP request: {error}.")
        if in_head and self._in_head:
            self._unread_bytes += len(data)
            if self._unread_bytes > limits.HTTP_HEAD_BYTES_MAX and self._refusal is None:
                self._refusal = _head_refusal()
        self._go_on()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._writable = False
        self._regulate()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._writable = True
        self._regulate()

    # -- httptools ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """See httptools."""
        self._arriving = self._in_head = True
        self._unread_bytes = 0
        self._url = b""
        self._headers = {}
        self._head_bytes = self._body_bytes = 0
        self._body = []
        self.due_s = self._server.loop.time() + limits.HELLO_S_MAX

    def on_url(self, url: bytes) -> None:
        """See httptools."""
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        self._count_head(len(name) + len(value) + 4)
        name = name.lower()
        known = self._headers.get(name)
        self._headers[name] = value if known is None else known + b"," + value

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._in_head = False
        self.due_s = self._server.loop.time() + limits.FRAME_S_MAX
        length = self._headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limits.HTTP_BODY_BYTES_MAX:
            self._refuse_length()
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._body_bytes += len(body)
        if self._body_bytes > limits.HTTP_BODY_BYTES_MAX:
            self._refuse_length()
        self._body.append(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self._arriving = False
        try:
            path, raw_path, query = _split_url(self._url)
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            self._stop(text_response(400, "The path of the request cannot be read."))
        request = HttpRequest(
            self._parser.get_method().decode(),
            path,
            raw_path,
            query,
            self._headers,
            b"".join(self._body),
            self._server.scheme,
        )
        self._body = []
        self.due_s = self._server.loop.time() + limits.IDLE_S_MAX
        self._waiting.append((request, self._parser.should_keep_alive()))

    def _count_head(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > limits.HTTP_HEAD_BYTES_MAX:
            self._stop(_head_refusal())

    def _refuse_length(self) -> None:
        most = limits.HTTP_BODY_BYTES_MAX
        self._stop(text_response(413, f"A request has at most {most} bytes."))

    def _stop(self, refusal: HttpResponse) -> None:
        """Refuse the rest of the stream: what follows cannot be told from what was refused."""
        self._refusal = refusal
        raise ValueError(refusal.status)  # Ends the parsing, too.

    # -- answering ------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Begin what has come, in order, until something is under way."""
        while self._waiting and not self.busy and self._transport is not None:
            request, stays = self._waiting.popleft()
            self._close_after |= not stays
            self.busy = True
            driven = self._server.runner.spawn(
                self._server.respond(request, self._drive), partial(self._answer, request.method)
            )
            self._driven = None if driven.over else driven
        if not self.busy and not self._waiting and self._refusal is not None:
            self._server.count(self._refusal)
            self._write("GET", self._refusal)
            self._linger()
        self._regulate()

    def _linger(self) -> None:
        """Say no more, but take for a moment what still comes: else the refusal may be lost."""
        transport = self._transport
        if transport is None or self._close_after:
            return
        self._close_after = True
        self.due_s = self._server.loop.time() + _LINGER_S
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def _answer(
        self, method: str, response: HttpResponse | None, error: BaseException | None
    ) -> None:
        self._driven = None
        self.busy = False
        if response is None:
            response = self._server.failure(error)
        self._server.count(response)
        self.due_s = self._server.loop.time() + limits.IDLE_S_MAX
        if response.feed is not None and method != "HEAD" and not self._server.draining:
            self._begin_feed(response, response.feed)
            return
        self._write(method, response)
        if self._close_after and not self._waiting:
            self.close()
        elif self._waiting or self._refusal is not None or self._server.draining:
            self._server.loop.call_soon(self._take_up)

    def _take_up(self) -> None:
        if self._server.draining and not self.busy:
            self.close()
        else:
            self._go_on()

    def _write(self, method: str, response: HttpResponse) -> None:
        transport = self._transport
        if transport is None:
            return
        closing = self._close_after or self._refusal is not None or self._server.draining
        bodiless = response.status in _BODILESS
        parts = (
            _STATUS_LINES[response.status],
            self._server.date_line(),
            _lines(response.headers),
            _lines(response.protection),
            b"connection: close\r\n" if closing else b"",
            b"" if bodiless else b"content-length: %d\r\n" % len(response.body),
            b"\r\n",
            b"" if method == "HEAD" else response.body,
        )
        transport.write(b"".join(parts))

    # -- responses without an end ---------------------------------------------------------------

    def _begin_feed(self, response: HttpResponse, feed: Feed) -> None:
        transport = self._transport
        if transport is None:
            return
        self.busy = True
        self._feed = feed
        parts = (
            _STATUS_LINES[response.status],
            self._server.date_line(),
            _lines(response.headers),
            _lines(response.protection),
            b"transfer-encoding: chunked\r\n\r\n",
        )
        transport.write(b"".join(parts))
        feed.begin(self._write_piece)

    def _write_piece(self, piece: bytes) -> bool:
        if self._transport is None or not self._writable:
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.due_s = self._server.loop.time() + limits.IDLE_S_MAX
        return True

    def _end_feed(self, feed: Feed) -> None:
        self._feed = None
        self.busy = False
        feed.end()
        if self._transport is not None:
            self._transport.write(b"0\r\n\r\n")

    # -- pressure and the end -------------------------------------------------------------------

    def _regulate(self) -> None:
        """Read on only while nothing waits and answers are taken."""
        # Whoever is parked is read from even so, to notice that he has gone.
        most = _PIPELINED_MAX if self._drive.parked else 0
        wanted = self._writable and len(self._waiting) <= most
        if wanted != self._reading and self._transport is not None:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def expire(self, now_s: float) -> None:
        """Drop the connection if it dawdles."""
        if now_s <= self.due_s or (self.busy and self._writable):
            return
        if self._arriving and not self.busy and not self._close_after:
            self._close_after = True
            self._write("GET", text_response(408, "The request did not arrive in time."))
        self._server.refused += self._arriving or not self._writable
        self.abort()

    def drain(self) -> None:
        """Answer a parked request and hang up, as soon as nothing is under way."""
        if self._driven is not None and self._drive.parked:
            self._driven.cancel()
            closing = text_response(503, "The server is closing; ask again elsewhere, or later.")
            self._answer("GET", closing, None)
        elif self._feed is not None:
            self._end_feed(self._feed)
            self.close()
        elif not self.busy:
            self.close()

    def close(self) -> None:
        """Hang up, once everything is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()


def _lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    if headers is DATA_ONLY:
        return _DATA_ONLY_LINES
    return b"".join(b"%b: %b\r\n" % header for header in headers)


#: They are on almost every response, so they are put together once.
_DATA_ONLY_LINES = b"".join(b"%b: %b\r\n" % header for header in DATA_ONLY)


@lru_cache(maxsize=256)
def _split_url(url: bytes) -> tuple[str, bytes, bytes]:
    """Path, path as written, and query."""
    found = httptools.parse_url(url)
    raw_path = found.path or b"/"
    return unquote(raw_path.decode("ascii")), raw_path, found.query or b""


def _head_refusal() -> HttpResponse:
    most = limits.HTTP_HEAD_BYTES_MAX
    return text_response(431, f"A request's head has at most {most} bytes.")


#: Seconds for which what follows a refused request is taken and thrown away.
_LINGER_S = 2.0

#: Requests that are read behind one that is parked.
_PIPELINED_MAX = 4


class _Drive:
    """See `exchange.Drive`."""

    __slots__ = ("parked",)

    def __init__(self) -> None:
        self.parked = False

    async def __call__(self, coroutine: Coroutine[Any, Any, T], *, parks: bool = False) -> T:
        if not parks:
            return await coroutine
        self.parked = True
        try:
            return await coroutine
        finally:
            self.parked = False


def date_line(now_s: float) -> bytes:
    """The header that says what time it is."""
    return f"date: {formatdate(now_s, usegmt=True)}\r\n".encode()
