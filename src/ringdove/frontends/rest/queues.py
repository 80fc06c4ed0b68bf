"""Queues and their subscriptions: make, look at, change, empty, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ringdove.controllers.catalog import no_subscription
from ringdove.core.settings import QueueSettings
from ringdove.errors import InvalidArgument
from ringdove.frontends.rest import shapes
from ringdove.frontends.rest.routes import JSON, NO_CONTENT, Call, Route, answer
from ringdove.stores.base import Start

if TYPE_CHECKING:
    from ringdove.controllers.broker import Broker, QueueStats
    from ringdove.controllers.catalog import QueueInfo
    from ringdove.frontends.exchange import HttpResponse

_QUEUE = "/v1/queues/{queue}"
_SUBSCRIPTION = f"{_QUEUE}/subscriptions/{{subscription}}"
#: Settings arrive as they are, because the refusals of `QueueSettings` say more than a decoder's.
_Settings = dict[str, Any]


def _shape(info: QueueInfo) -> shapes.Queue:
    return shapes.Queue(info.name, info.settings, info.version, info.created_ms)


async def list_queues(call: Call) -> HttpResponse:
    """A page of queues, by name."""
    ask: shapes.ListQuery = call.query
    found = await call.drive(call.broker.list_queues(ask.prefix, ask.after, ask.max + 1))
    page = found[: ask.max]
    after = page[-1].name if len(found) > len(page) else None
    return answer(shapes.Queues([_shape(info) for info in page], after))


async def create_queue(call: Call) -> HttpResponse:
    """Make a queue; the same again is no error."""
    await _check_dead_letter(call)
    info, made = await call.drive(_create(call.broker, call.queue, call.body))
    location = f"/v1/queues/{quote(info.name, safe='')}".encode()
    return answer(_shape(info), 201 if made else 200, (b"location", location))


async def _create(broker: Broker, name: str, settings: dict[str, Any]) -> tuple[QueueInfo, bool]:
    """The queue, and whether this call has made it."""
    before = await broker.list_queues(name, max=1)
    info = await broker.create_queue(name, settings)
    # Of all whose name starts so, the queue itself would be the first.
    return info, not before or before[0].name != name


async def get_queue(call: Call) -> HttpResponse:
    """The queue with its settings."""
    return answer(_shape(await call.drive(call.broker.get_queue(call.queue))))


async def change_queue(call: Call) -> HttpResponse:
    """Change the settings given; the others stay."""
    await _check_dead_letter(call)
    return answer(_shape(await call.drive(call.broker.change_queue(call.queue, call.body))))


async def _check_dead_letter(call: Call) -> None:
    """Who names a dead-letter queue has messages put there: that takes a right of its own."""
    target = call.body.get("dead_letter")
    if isinstance(target, str):
        await call.check(target, "manage")


async def delete_queue(call: Call) -> HttpResponse:
    """Forget the queue and everything in it."""
    await call.drive(call.broker.delete_queue(call.queue))
    return NO_CONTENT


async def purge_queue(call: Call) -> HttpResponse:
    """Drop every message."""
    return answer(shapes.Purged(await call.drive(call.broker.purge_queue(call.queue))))


async def queue_stats(call: Call) -> HttpResponse:
    """How many messages wait, are leased, and so on."""
    return answer(stats_shape(await call.drive(call.broker.queue_stats(call.queue))))


def stats_shape(stats: QueueStats) -> shapes.Stats:
    """The state of a queue as JSON has it."""
    stripes = [
        shapes.Stripe(s.number, s.level, t.head, t.tail, t.nbytes, t.oldest_ms or None)
        for s, t in stats.stripes.items()
    ]
    counts = {name: shapes.Counts(*three) for name, three in stats.subscriptions.items()}
    return shapes.Stats(
        stats.name, stats.messages, stats.nbytes, stats.oldest_ms or None, counts, stripes
    )


# -- subscriptions ---------------------------------------------------------------------------------


async def _subscriptions(broker: Broker, queue: str) -> list[shapes.Subscription]:
    names = await broker.subscriptions(queue)
    counts = (await broker.queue_stats(queue)).subscriptions
    return [shapes.Subscription(name, *counts.get(name, (0, 0, 0))) for name in names]


async def list_subscriptions(call: Call) -> HttpResponse:
    """The reader groups of the queue."""
    return answer(shapes.Subscriptions(await call.drive(_subscriptions(call.broker, call.queue))))


async def get_subscription(call: Call) -> HttpResponse:
    """One reader group."""
    return answer(
        await call.drive(_subscription(call.broker, call.queue, call.names["subscription"]))
    )


async def _subscription(broker: Broker, queue: str, name: str) -> shapes.Subscription:
    known = await _subscriptions(broker, queue)
    for found in known:
        if found.name == name:
            return found
    raise no_subscription(queue, name, [other.name for other in known])


async def subscribe(call: Call) -> HttpResponse:
    """Add a reader group; one that exists stays as it is."""
    ask: shapes.Subscribe = call.body
    found, made = await call.drive(
        _subscribe(
            call.broker, call.queue, call.names["subscription"], _start(ask), ask.keep_default
        )
    )
    return answer(found, 201 if made else 200)


async def _subscribe(
    broker: Broker,
    queue: str,
    name: str,
    start: Start,
    keep_default: bool,  # noqa: FBT001
) -> tuple[shapes.Subscription, bool]:
    made = name not in await broker.subscriptions(queue)
    if made:
        await broker.subscribe(queue, name, start, keep_default=keep_default)
    return await _subscription(broker, queue, name), made


def _start(ask: shapes.Subscribe) -> Start:
    given = [
        Start(kind, value)
        for kind, value in (("offset", ask.offset), ("time", ask.time_ms))
        if value is not None
    ]
    if ask.start is not None:
        given.append(Start(ask.start))
    if len(given) > 1:
        raise InvalidArgument("Give one of 'start', 'offset' and 'time_ms', not several.")
    return given[0] if given else Start("latest")


async def unsubscribe(call: Call) -> HttpResponse:
    """Remove a reader group; what only it was waiting for is gone."""
    await call.drive(call.broker.unsubscribe(call.queue, call.names["subscription"]))
    return NO_CONTENT


ROUTES = [
    Route(
        "GET", "/v1/queues", list_queues, "manage", "List queues by name",
        {200: shapes.Queues}, query=shapes.ListQuery,
    ),
    Route(
        "PUT", _QUEUE, create_queue, "manage", "Make a queue; the same again is no error",
        {201: shapes.Queue, 200: shapes.Queue}, (409, 415, 422),
        body=_Settings, media={JSON: QueueSettings},
    ),
    Route(
        "GET", _QUEUE, get_queue, "receive", "A queue with its settings",
        {200: shapes.Queue}, (404,),
    ),
    Route(
        "PATCH", _QUEUE, change_queue, "manage", "Change some settings; the others stay",
        {200: shapes.Queue}, (404, 409, 415, 422),
        body=_Settings, media={JSON: QueueSettings},
    ),
    Route(
        "DELETE", _QUEUE, delete_queue, "manage", "Delete a queue and everything in it",
        {204: None}, (404,),
    ),
    Route(
        "POST", f"{_QUEUE}/purge", purge_queue, "manage", "Drop every message",
        {200: shapes.Purged}, (404,),
    ),
    Route(
        "GET", f"{_QUEUE}/stats", queue_stats, "receive", "How many messages wait, are leased, ...",
        {200: shapes.Stats}, (404,),
    ),
    Route(
        "GET", f"{_QUEUE}/subscriptions", list_subscriptions, "receive", "List reader groups",
        {200: shapes.Subscriptions}, (404,),
    ),
    Route(
        "GET", _SUBSCRIPTION, get_subscription, "receive", "One reader group",
        {200: shapes.Subscription}, (404,),
    ),
    Route(
        "PUT", _SUBSCRIPTION, subscribe, "manage", "Add a reader group; one that exists stays",
        {201: shapes.Subscription, 200: shapes.Subscription}, (404, 409, 415),
        body=shapes.Subscribe,
    ),
    Route(
        "DELETE", _SUBSCRIPTION, unsubscribe, "manage", "Remove a reader group",
        {204: None}, (404,),
    ),
]  # fmt: skip
