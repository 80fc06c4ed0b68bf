"""Errors as RFC 9457 problem details: one table from error to status, and nothing secret.

A problem says what went wrong and what would be right (`detail`), names the class of the error
(`code`), and may have members of its own: the `line` that is wrong, the `results` so far.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove import errors
from ringdove.errors import ClientError, LimitExceeded, RingdoveError
from ringdove.frontends.exchange import HttpResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger(__name__)

PROBLEM_JSON = "application/problem+json"


class RouteNotFound(ClientError):
    """Nothing is served under this path."""

    code = "route_not_found"


class MethodNotAllowed(ClientError):
    """The path is right, the method is not."""

    code = "method_not_allowed"

    def __init__(self, message: str, allowed: Iterable[str]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)


class MediaTypeUnsupported(ClientError):
    """The body has a content type or encoding that is not taken here."""

    code = "media_type_unsupported"


class CrossSiteRefused(ClientError):
    """A page of another site asked through somebody's browser."""

    code = "cross_site_refused"


class Throttled(LimitExceeded):
    """The caller asks more often than it may."""

    code = "throttled"


class Explained(RingdoveError):
    """An error with more to say: members that its problem has besides the usual ones."""

    code = "explained"

    def __init__(self, error: RingdoveError, **members: Any) -> None:
        super().__init__(str(error))
        self.error = error
        self.members = members


#: The status of each class of error; a class that is not listed has that of its base.
STATUS: dict[type[Exception], int] = {
    ClientError: 400,
    RouteNotFound: 404,
    MethodNotAllowed: 405,
    MediaTypeUnsupported: 415,
    CrossSiteRefused: 403,
    errors.QueueNotFound: 404,
    errors.QueueExists: 409,
    errors.SettingsRefused: 422,
    errors.SettingsStale: 409,
    errors.SubscriptionNotFound: 404,
    errors.SubscriptionExists: 409,
    errors.SubscriptionBusy: 409,
    errors.MessageTooLarge: 413,
    errors.QueueFull: 429,
    errors.QueueIsCopy: 409,
    errors.ReceiptStale: 409,
    errors.SequenceRefused: 409,
    errors.FenceStale: 409,
    errors.OffsetTrimmed: 410,
    LimitExceeded: 409,
    Throttled: 429,
    errors.RecordConflict: 409,
    errors.WaitTimeout: 504,
    errors.ConnectionClosed: 503,
    errors.FatalClientError: 400,
    errors.NotAuthorized: 403,
    errors.NotIdentified: 401,
    # A block that is none, or messages that no block can hold: both come from the request.
    errors.RemoteProtocolError: 400,
    errors.LocalProtocolError: 400,
    errors.StoreUnavailable: 503,
    errors.StoreFull: 507,
    RingdoveError: 500,
    Exception: 500,
}

#: With these a second attempt may succeed; seconds to wait before it.
_RETRY_AFTER_S = {429: 1, 503: 1}

_CHALLENGE = (b"www-authenticate", b'Bearer realm="ringdove"')


class Problem(msgspec.Struct):
    """RFC 9457: why a request was refused, and what would be right."""

    type: str
    title: str
    status: int
    detail: str
    #: The name of the error's class, as in Ringdove's libraries.
    code: str


def respond(error: Exception) -> HttpResponse:
    """The answer to a request that failed."""
    members: dict[str, Any] = {}
    if isinstance(error, Explained):
        members, error = error.members, error.error
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    content = {**msgspec.to_builtins(_problem(error, status)), **members}
    headers = [(b"content-type", PROBLEM_JSON.encode())]
    if status in _RETRY_AFTER_S:
        headers.append((b"retry-after", str(_RETRY_AFTER_S[status]).encode()))
    if status == 401:
        headers.append(_CHALLENGE)
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    return HttpResponse(status, msgspec.json.encode(content), tuple(headers))


def _problem(error: Exception, status: int) -> Problem:
    if status == 500:
        # What failed inside may name files and data; that belongs in the log.
        _log.error("A request failed.", exc_info=error)
    if not isinstance(error, RingdoveError):
        detail = "The server failed; its log says why."
        return Problem(_type("error"), "The server failed", 500, detail, "InternalError")
    kind = type(error)
    title = (kind.__doc__ or kind.__name__).partition("\n")[0].partition(";")[0].rstrip(".")
    detail = "The server's log says more." if status == 500 else str(error)
    return Problem(_type(kind.code), title, status, detail, kind.__name__)


def _type(code: str) -> str:
    return f"urn:ringdove:problem:{code}"
