"""The tiers as their manager knows them; only a server that is one serves this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringdove.frontends.rest.routes import Call, Route, answer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ringdove.frontends.exchange import HttpResponse


def routes(look: Callable[[], Coroutine[Any, Any, Any]], shape: type) -> list[Route]:
    """The route that answers what `look` finds, which has this shape."""

    async def get_tiers(call: Call) -> HttpResponse:
        return answer(await call.drive(look()))

    summary = "The brokers with their queues, and alarms"
    return [Route("GET", "/v1/tiers", get_tiers, "manage", summary, {200: shape})]
