"""The console's dialect: files below /console, and below /console/api the JSON that only it needs.

Queues and messages are not among it: the page uses REST for them, with its session.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ringdove.controllers.accounts import DEFAULT_ACCOUNT
from ringdove.core.settings import describe
from ringdove.errors import LimitExceeded, NotAuthorized
from ringdove.frontends.console import files, planning
from ringdove.frontends.console.asides import Asides
from ringdove.frontends.console.live import Live, LiveQuery
from ringdove.frontends.console.looks import Looks, Row
from ringdove.frontends.console.planning import ObserveQuery, PlanQuery
from ringdove.frontends.console.sessions import Sessions, Visitor, cookie
from ringdove.frontends.rest.api import RestApi
from ringdove.frontends.rest.problems import Throttled
from ringdove.frontends.rest.routes import Call, Route, answer
from ringdove.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.frontends.access import Access
    from ringdove.frontends.exchange import Drive, HttpRequest, HttpResponse
    from ringdove.frontends.http import HttpServer
    from ringdove.frontends.native import NativeServer

_API = "/console/api"

#: Queues of one page of the table.
_PAGE_MAX = 200


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """An account and its password, or the server's token."""

    name: Annotated[str, Meta(max_length=200)] = ""
    password: Annotated[str, Meta(max_length=2_000)] = ""
    token: Annotated[str, Meta(max_length=2_000)] = ""


class QueuesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which queues, in which order, and which page of them."""

    search: Annotated[str, Meta(max_length=200)] = ""
    filter: Literal["all", "waiting", "leased", "empty", "dead"] = "all"
    sort: Literal["name", "waiting", "leased", "bytes", "oldest"] = "name"
    page: Annotated[int, Meta(ge=0)] = 0
    size: Annotated[int, Meta(ge=1, le=_PAGE_MAX)] = 50


class Console:
    """Answers the requests below /console."""

    def __init__(
        self,
        broker: Broker,
        native: NativeServer,
        http: HttpServer,
        access: Access,
        views: dict[str, Callable[[], Any]],
    ) -> None:
        """`views`: what else can be looked at, by name; each takes long and runs in a thread."""
        self._broker = broker
        self._native = native
        self._http = http
        self._access = access
        self.sessions = Sessions(broker, access)
        self._looks = Looks(broker)
        self._asides = Asides(broker.store.clock, views)
        self.live = Live(broker, native, http, self.sessions, self._looks, self._asides)
        self._api = RestApi(broker, routes=self._routes())

    async def respond(self, request: HttpRequest, drive: Drive) -> HttpResponse:
        """The answer to a request."""
        if request.path.startswith(f"{_API}/"):
            return await self._api.respond(request, drive)
        return files.respond(request)

    def close(self) -> None:
        """Look at nothing more."""
        self._asides.close()

    def _routes(self) -> list[Route]:
        table: list[tuple[str, str, Any, dict[str, Any]]] = [
            ("GET", "session", self._session, {}),
            ("POST", "session", self._sign_in, {"body": SignIn}),
            ("DELETE", "session", self._sign_out, {}),
            ("GET", "settings", self._settings, {}),
            ("GET", "queues", self._queues, {"query": QueuesQuery}),
            ("GET", "live", self._live, {"query": LiveQuery}),
            ("GET", "plan", self._plan, {"query": PlanQuery}),
            ("GET", "observed", self._observed, {"query": ObserveQuery}),
            ("GET", "pipeline", self._pipeline, {}),
            ("POST", "accounts/{command}", self._accounts, {"body": dict[str, Any]}),
        ]
        return [
            Route(method, f"{_API}/{path}", handle, None, "", {}, **more)
            for method, path, handle, more in table
        ]

    # -- sessions -------------------------------------------------------------------------------

    async def _session(self, call: Call) -> HttpResponse:
        """Who is signed in, and what the page should know before it is drawn."""
        return answer(await self._describe(await self.sessions.maybe_visitor(call.request)))

    async def _describe(self, visitor: Visitor | None) -> dict[str, Any]:
        told: dict[str, Any] = {
            "version": __version__,
            "open": await self._access.is_open(),
            "token": not self._access.is_open_to_operators(),
            "signed_in": visitor is not None,
        }
        if visitor is not None:
            own = visitor.account
            plain = visitor.is_admin or own is None or own.id == DEFAULT_ACCOUNT
            told |= {
                "name": visitor.name,
                "role": visitor.role,
                "csrf": visitor.csrf,
                "views": self._asides.names,
                # What the names of queues begin with that the visitor makes.
                "prefix": "" if plain or own is None else f"{own.id}.",
            }
        return told

    async def _sign_in(self, call: Call) -> HttpResponse:
        ask: SignIn = call.body
        try:
            if ask.token:
                word = await self.sessions.begin_with_token(ask.token)
            else:
                word = await self.sessions.begin(ask.name, ask.password)
        except LimitExceeded as error:
            raise Throttled(str(error)) from None
        secure = call.request.scheme == "https"
        return answer({"signed_in": True}, 200, cookie(word, secure=secure))

    async def _sign_out(self, call: Call) -> HttpResponse:
        await self.sessions.end(call.request)
        return answer({"signed_in": False}, 200, cookie("", secure=False))

    # -- looking --------------------------------------------------------------------------------

    async def _settings(self, call: Call) -> HttpResponse:
        """Every setting of a queue, explained."""
        await self.sessions.visitor(call.request)
        return answer([setting._asdict() for setting in describe()])

    async def _queues(self, call: Call) -> HttpResponse:
        """A page of the table of queues."""
        visitor = await self.sessions.visitor(call.request)
        ask: QueuesQuery = call.query
        infos = await self._looks.seen_by(visitor, anew=True)
        dead = {info.settings.dead_letter for info in infos}
        if ask.sort != "name" or ask.filter not in ("all", "dead"):
            await self._looks.sweep()
        chosen = [info for info in infos if self._is_wanted(info, ask, dead)]
        if ask.sort != "name":
            chosen.sort(key=lambda info: self._rank(info, ask.sort))
        page = chosen[ask.page * ask.size : (ask.page + 1) * ask.size]
        rows = await self._looks.rows(info.name for info in page)
        told = [
            {"name": info.name, "settings": info.settings, "dead": info.name in dead, "row": row}
            for info in page
            if (row := rows.get(info.name)) is not None
        ]
        return answer({"queues": told, "found": len(chosen), "all": len(infos)})

    def _is_wanted(self, info: QueueInfo, ask: QueuesQuery, dead: set[str | None]) -> bool:
        if ask.search.lower() not in info.name.lower():
            return False
        if ask.filter == "all":
            return True
        if ask.filter == "dead":
            return info.name in dead
        seen = self._looks.known(info.name)
        if seen is None:
            return False
        if ask.filter == "empty":
            return not (seen.waiting or seen.leased or seen.delayed)
        return bool(seen.waiting if ask.filter == "waiting" else seen.leased)

    def _rank(self, info: QueueInfo, sort: str) -> tuple[float, str]:
        seen = self._looks.known(info.name) or _NOTHING
        if sort == "oldest":
            return seen.oldest_ms or float("inf"), info.name
        return -getattr(seen, sort), info.name

    async def _live(self, call: Call) -> HttpResponse:
        """The live stream; refused here already if nobody is signed in."""
        await self.sessions.visitor(call.request)
        return self.live.open(call.request, call.query)

    async def _plan(self, call: Call) -> HttpResponse:
        await self.sessions.visitor(call.request)
        return answer(await self._asides.run(partial(planning.plan, call.query)))

    async def _observed(self, call: Call) -> HttpResponse:
        visitor = await self.sessions.visitor(call.request)
        if not visitor.is_admin:
            raise NotAuthorized("Only an admin sees how a server's receivers do.")
        looking = planning.watch(self._broker, self._native, self._http, call.query)
        return answer(await call.drive(looking, parks=True))

    async def _pipeline(self, call: Call) -> HttpResponse:
        visitor = await self.sessions.visitor(call.request)
        if not visitor.is_admin:
            raise NotAuthorized("Only an admin sees the pipeline.")
        return answer(await self._asides.look("pipeline"))

    async def _accounts(self, call: Call) -> HttpResponse:
        """Administer accounts; see Broker.account."""
        visitor = await self.sessions.visitor(call.request)
        if not visitor.is_admin:
            raise NotAuthorized("Only an admin administers accounts.")
        told = await self._broker.account(call.names["command"], call.body)
        return answer({"result": told})


_NOTHING = Row(0, 0, 0, 0, 0, 0, 0)
