"""The REST dialect: finds the route of a request, asks whether it is allowed, and answers.

Nothing reaches the broker before the caller is known to be allowed, and nothing leaves but JSON:
answers, or problems (problems.py). /v1/openapi.json describes every route, from the same table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringdove.errors import LimitExceeded
from ringdove.frontends.rest import leases, messages, openapi, problems, queues
from ringdove.frontends.rest.problems import (
    CrossSiteRefused,
    MethodNotAllowed,
    RouteNotFound,
    Throttled,
)
from ringdove.frontends.rest.reading import read_json_body, read_query, segments
from ringdove.frontends.rest.routes import Call, Role, Route, answer_raw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ringdove.controllers.broker import Broker
    from ringdove.frontends.exchange import Drive, HttpRequest, HttpResponse

    #: Raises NotIdentified unless the caller is known, NotAuthorized unless it may play a role
    #: ('send', 'receive' or 'manage') on a queue; None stands for all queues.
    Authorize = Callable[[HttpRequest, str | None, str], Awaitable[None]]

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class RestApi:
    """Answers the requests below /v1, or those of other routes of its kind."""

    def __init__(
        self,
        broker: Broker,
        *,
        authorize: Authorize | None = None,
        more: Sequence[Route] = (),
        routes: Sequence[Route] | None = None,
    ) -> None:
        self._broker = broker
        self.authorize = authorize
        #: `routes` instead of this dialect's own; `more` are those of the other roles of a server.
        if routes is None:
            routes = [*ROUTES, *more, openapi.route(self._describe)]
            self._document = openapi.document(routes)
        #: Methods by pattern; a part in braces stands for any name.
        self._patterns: dict[tuple[str, ...], dict[str, Route]] = {}
        for route in routes:
            pattern = tuple(route.path.split("/")[1:])
            self._patterns.setdefault(pattern, {})[route.method] = route

    async def respond(self, request: HttpRequest, drive: Drive) -> HttpResponse:
        """The answer to a request; every failure becomes a problem."""
        try:
            _refuse_cross_site(request)
            route, names = self._find(request)
            return await self._call(route, names, request, drive)
        except Exception as error:  # noqa: BLE001  told to the client; logged if it is ours
            return problems.respond(error)

    async def _call(
        self, route: Route, names: dict[str, str], request: HttpRequest, drive: Drive
    ) -> HttpResponse:
        async def check(queue: str | None, role: Role) -> None:
            if self.authorize is None:
                return
            try:
                await self.authorize(request, queue, role)
            except LimitExceeded as error:
                raise Throttled(str(error)) from None

        if route.role is not None:
            await check(names.get("queue"), route.role)
        query = read_query(route.query, request)
        body = None if route.body is None else read_json_body(route.body, request)
        return await route.handle(Call(self._broker, drive, request, names, query, body, check))

    async def _describe(self, _: Call) -> HttpResponse:
        return answer_raw(self._document)

    def _find(self, request: HttpRequest) -> tuple[Route, dict[str, str]]:
        parts = segments(request)
        for pattern, methods in self._patterns.items():
            names = _match(pattern, parts)
            if names is None:
                continue
            method = "GET" if request.method == "HEAD" else request.method
            if method in methods:
                return methods[method], names
            allowed = sorted({*methods, *(["HEAD"] if "GET" in methods else [])})
            raise MethodNotAllowed(
                f"{request.method} is not served here; use {' or '.join(allowed)}.", allowed
            )
        raise RouteNotFound(
            "There is nothing under this path; /v1/openapi.json describes what there is."
        )


def _match(pattern: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    """The names that the path gives, if it has this pattern."""
    if len(pattern) != len(parts):
        return None
    names = {}
    for expected, part in zip(pattern, parts, strict=True):
        if expected.startswith("{") and part:
            names[expected[1:-1]] = part
        elif expected != part:
            return None
    return names


def _refuse_cross_site(request: HttpRequest) -> None:
    if request.method not in _SAFE_METHODS and request.cross_site:
        raise CrossSiteRefused("Requests from pages of another site are not taken.")


#: Everything below /v1 but what describes it.
ROUTES: list[Route] = [*queues.ROUTES, *messages.ROUTES, *leases.ROUTES]
