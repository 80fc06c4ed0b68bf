"""What a route is: one table decides what is served, who may ask, and what the OpenAPI says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ringdove.frontends.exchange import HttpResponse
from ringdove.frontends.rest import shapes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ringdove.controllers.broker import Broker
    from ringdove.frontends.exchange import Drive, HttpRequest

    Handler = Callable[["Call"], Awaitable[HttpResponse]]

Role = Literal["send", "receive", "manage"]

JSON = "application/json"
NDJSON = "application/x-ndjson"
BLOCK = "application/vnd.ringdove.block"

_JSON_HEADER = (b"content-type", JSON.encode())
_encode = msgspec.json.Encoder().encode


class Call(NamedTuple):
    """One request on its way through a handler."""

    broker: Broker
    drive: Drive
    request: HttpRequest
    #: By the names in the path's pattern.
    names: dict[str, str]
    query: Any
    body: Any
    #: Asks whether the caller may also play a role on another queue, or with None on all of them;
    #: raises NotAuthorized.
    check: Callable[[str | None, Role], Awaitable[None]]

    @property
    def queue(self) -> str:
        """The queue that the path names."""
        return self.names["queue"]


class Route(NamedTuple):
    """A method on a path, and everything that is to be known about it."""

    method: str
    path: str
    handle: Handler
    #: What the caller must be allowed to; None for what everybody may see.
    role: Role | None
    summary: str
    #: Answers by status, as the types of their JSON; None for no content.
    answers: Mapping[int, Any]
    #: Statuses of refusals besides those that every route has.
    refusals: tuple[int, ...] = ()
    query: type[msgspec.Struct] = shapes.NoQuery
    #: The type of a JSON body; None when the handler reads the body itself, if it wants any.
    body: Any = None
    #: Types of bodies by media type, where they are not simply JSON of `body`.
    media: Mapping[str, Any] | None = None
    #: Whether the body must be there.
    required: bool = False


def answer(value: Any, status: int = 200, *headers: tuple[bytes, bytes]) -> HttpResponse:
    """A value as JSON."""
    return HttpResponse(status, _encode(value), (_JSON_HEADER, *headers))


def answer_raw(json: bytes) -> HttpResponse:
    """JSON that is encoded already."""
    return HttpResponse(200, json, (_JSON_HEADER,))


NO_CONTENT = HttpResponse(204)
