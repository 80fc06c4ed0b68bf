"""The resources that CoAP clients see, and what their methods do.

POST, PUT /q/QUEUE    store the payload; answered when it is stored
GET       /q/QUEUE    lease a message; DELETE with its receipt says that it is done
GET       /q/QUEUE + Observe    be told each message; it is done when the notification is
acknowledged, or when the last block of a large one was fetched
GET       /q/QUEUE/last    look at the newest message, or observe it: retained configuration
GET       /q, /.well-known/core    what there is
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import xxhash
from msgspec import UNSET, UnsetType

from ringdove import limits
from ringdove.controllers.sending import Outgoing
from ringdove.core.stripe import DEFAULT_SUBSCRIPTION
from ringdove.errors import InvalidArgument, NotAuthorized, RingdoveError
from ringdove.frontends.coap import media
from ringdove.frontends.coap.exchange import Refused, Request, Response, refusal
from ringdove.frontends.coap.links import queue_links, select
from ringdove.frontends.coap.watching import newest, watch_newest
from ringdove.frontends.exchange import HttpRequest
from ringdove.frontends.rest.leases import read_receipts
from ringdove.frontends.rest.reading import read_pairs
from ringdove.pending import Pending
from ringdove.protocol.coap.blocks import (
    BLOCK_BYTES_MAX,
    EXPONENT_MAX,
    Block,
    Content,
    Downloads,
    Uploads,
    body_key,
    cut,
    find_block,
)
from ringdove.protocol.coap.packet import Code, Option, Packet, uint
from ringdove.stores.base import StripeId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringdove.controllers.broker import Broker
    from ringdove.controllers.visiting import Received
    from ringdove.core.attributes import Attributes
    from ringdove.core.block import Block as MessageBlock
    from ringdove.frontends.access import Access
    from ringdove.frontends.coap.exchange import Observation, Tell
    from ringdove.frontends.coap.watching import Newest
    from ringdove.protocol.coap.packet import Options

#: What a parameter's name begins with that is an attribute of the message.
_ATTRIBUTE = "a."

#: Options that a request may have although we must understand them.
_CRITICAL = {
    Option.URI_HOST, Option.URI_PORT, Option.URI_PATH, Option.URI_QUERY, Option.ACCEPT,
    Option.BLOCK1, Option.BLOCK2,
}  # fmt: skip

#: Bytes that options with a number may have.
_NUMBER_BYTES_MAX: dict[int, int] = {
    Option.OBSERVE: 3, Option.CONTENT_FORMAT: 2, Option.ACCEPT: 2, Option.BLOCK1: 3,
    Option.BLOCK2: 3,
}  # fmt: skip

#: How long a response is fresh: not at all, because a message is given out once; and seconds after
#: which an observer that has heard nothing asks again, because its server may be a new one.
_STALE = (Option.MAX_AGE, uint(0))
_FRESH = (Option.MAX_AGE, uint(120))


class _Query(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing but who asks, which is looked at elsewhere."""


class _SendQuery(_Query):
    """What goes with a message."""

    key: str = ""
    id: str | UnsetType = UNSET
    priority: int = 0
    delay_ms: int | UnsetType = UNSET


class _ReceiveQuery(_Query):
    """How to receive."""

    subscription: str = DEFAULT_SUBSCRIPTION
    wait: float = 0
    lease_ms: int | UnsetType = UNSET
    ack: Literal["auto", "delete"] | UnsetType = UNSET


class _SettleQuery(_Query):
    """Which message is meant."""

    receipt: str


class _LinksQuery(msgspec.Struct):
    """Any attribute may be asked for."""


class _Call(NamedTuple):
    """A request that is allowed and complete."""

    request: Request
    queue: str
    query: Any
    attributes: Attributes
    body: bytes

    @property
    def observes(self) -> int | None:
        """0 to begin to observe, 1 to end it, None for neither."""
        return self.request.packet.number(Option.OBSERVE)

    @property
    def freshness(self) -> tuple[int, bytes]:
        """For how long the response holds, as an option."""
        return _FRESH if self.observes == 0 else _STALE


class _Route(NamedTuple):
    """What one method of one kind of resource does, and who may."""

    handle: Callable[[_Call], Awaitable[Response]]
    role: str
    query: type[msgspec.Struct]


class Site:
    """Answers requests; keeps nothing but bodies that are half way."""

    def __init__(
        self, broker: Broker, access: Access, give_back: Callable[[list[Received]], None]
    ) -> None:
        self._broker = broker
        self._access = access
        self._give_back = give_back
        self._uploads = Uploads(
            limits.COAP_TRANSFERS_MAX, limits.COAP_TRANSFER_BYTES_MAX, limits.COAP_BODY_BYTES_MAX
        )
        self._downloads = Downloads(limits.COAP_TRANSFERS_MAX, limits.COAP_TRANSFER_BYTES_MAX)
        send = _Route(self._send, "send", _SendQuery)
        links: dict[int, _Route] = {Code.GET: _Route(self._links, "manage", _LinksQuery)}
        #: By the shape of the path, then by method.
        self._routes: dict[tuple[str, ...], dict[int, _Route]] = {
            (".well-known", "core"): links,
            ("q",): links,
            ("q", ""): {
                Code.POST: send,
                Code.PUT: send,
                Code.GET: _Route(self._receive, "receive", _ReceiveQuery),
                Code.DELETE: _Route(self._acknowledge, "receive", _SettleQuery),
            },
            ("q", "", "last"): {Code.GET: _Route(self._last, "receive", _Query)},
        }

    async def respond(self, request: Request) -> Response:
        """The response to a request; every failure becomes one."""
        try:
            return await self._find_and_call(request)
        except Exception as error:  # noqa: BLE001  told to the client, and logged
            return refusal(error)

    async def _find_and_call(self, request: Request) -> Response:
        packet = request.packet
        _check_options(packet)
        route, queue = self._find(request)
        pairs = request.query
        await self._authorize(request, queue, route.role)

        wanted = find_block(packet, Option.BLOCK2)
        if wanted is not None and wanted.number:
            content = self._downloads.find(body_key(request.peer, packet), wanted)
            return Response(Code.CONTENT, *cut(content, wanted))
        upload = find_block(packet, Option.BLOCK1)
        echo = () if upload is None else ((Option.BLOCK1, upload.encode()),)
        body = self._assemble(request, upload)
        if body is None:
            return Response(Code.CONTINUE, echo)

        attributes: Attributes = {}
        if route.role == "send":
            attributes |= {n.removeprefix(_ATTRIBUTE): v for n, v in pairs if _is_attribute(n)}
            pairs = [pair for pair in pairs if not _is_attribute(pair[0])]
        query = read_pairs(route.query, [pair for pair in pairs if pair[0] != "token"])
        response = await route.handle(_Call(request, queue or "", query, attributes, body))
        return self._fit(request, response._replace(options=(*response.options, *echo)))

    def _assemble(self, request: Request, upload: Block | None) -> bytes | None:
        """The whole body; None while there is more of it to come."""
        if upload is None:
            return request.packet.payload
        now_s = self._broker.store.clock.now_ms() / 1000
        key = body_key(request.peer, request.packet)
        return self._uploads.take(key, upload, request.packet.payload, now_s)

    def _find(self, request: Request) -> tuple[_Route, str | None]:
        path = request.path
        shape = (*path[:1], "", *path[2:]) if len(path) > 1 and path[0] == "q" else tuple(path)
        methods = self._routes.get(shape)
        if methods is None:
            raise Refused(Code.NOT_FOUND, "There is nothing here: look at /.well-known/core.")
        route = methods.get(request.packet.code)
        if route is None:
            raise Refused(Code.METHOD_NOT_ALLOWED, "This resource has no such method.")
        return route, path[1] if shape[:2] == ("q", "") else None

    async def _authorize(
        self, request: Request, queue: str | None, role: str, *, counted: bool = True
    ) -> None:
        """Let pass whoever may; `token` is the server's, or an access key with its secret."""
        tokens = [value for name, value in request.query if name == "token"]
        given = tokens[0].encode() if tokens else b""
        headers = {b"authorization": b"Bearer " + given} if given else {}
        asked = HttpRequest("COAP", "", b"", b"", headers, request.packet.payload)
        if b":" in given and not self._access.is_operator(asked):
            headers[b"authorization"] = b"Basic " + base64.b64encode(given)
        try:
            await self._access.authorize(asked, queue, role, counted=counted)
        except NotAuthorized as error:
            if given:
                raise Refused(Code.FORBIDDEN, str(error)) from None
            raise NotAuthorized("Give the server's token, or KEY:SECRET, as ?token=.") from None

    def _fit(
        self,
        request: Request,
        response: Response,
        when_over: Callable[[bool], None] | None = None,
    ) -> Response:
        """The response, or its first block when it does not fit in a datagram.

        `when_over` is told whether all of it was asked for, when that is known.
        """
        block = find_block(request.packet, Option.BLOCK2) or Block(0, False, EXPONENT_MAX)  # noqa: FBT003
        if len(response.payload) <= min(block.size, BLOCK_BYTES_MAX):
            if when_over is not None:
                when_over(True)  # noqa: FBT003  whether it was fetched
            return response
        content = Content(
            tuple(o for o in response.options if o[0] != Option.OBSERVE),
            response.payload,
            when_over,
        )
        self._downloads.keep(body_key(request.peer, request.packet), content)
        options, payload = cut(content, block)
        observe = tuple(o for o in response.options if o[0] == Option.OBSERVE)
        return response._replace(options=(*observe, *options), payload=payload)

    # -- messages -------------------------------------------------------------------------------

    async def _send(self, call: _Call) -> Response:
        query: _SendQuery = call.query
        content = call.request.packet.number(Option.CONTENT_FORMAT)
        if content is not None:
            call.attributes.setdefault(media.ATTRIBUTE, media.type_of(content))
        info = await self._broker.get_queue(call.queue)
        message_id = None if query.id is UNSET else query.id.encode()
        if message_id is None and info.settings.delivery == "exactly-once":
            message_id = _identity(call.request)
        await self._broker.send(
            call.queue,
            Outgoing(
                [call.body],
                keys=[query.key.encode()] if query.key else None,
                attributes=[call.attributes] if call.attributes else None,
                ids=None if message_id is None else [message_id],
                priority=query.priority,
                delay_ms=None if query.delay_ms is UNSET else query.delay_ms,
            ),
        )
        return Response(Code.CHANGED)

    async def _receive(self, call: _Call) -> Response:
        query: _ReceiveQuery = call.query
        if not 0 <= query.wait <= limits.COAP_WAIT_S_MAX:
            raise InvalidArgument(
                f"wait is {query.wait}; it must be 0 to {limits.COAP_WAIT_S_MAX} seconds."
            )
        if call.observes is not None:
            info = await self._broker.get_queue(call.queue)
            if query.subscription not in await self._broker.subscriptions(info.name):
                raise Refused(Code.NOT_FOUND, f"There is no subscription {query.subscription!r}.")
            return _observed(call, _nothing(call), self._messages(call))
        received = await self._broker.receive(
            call.queue, query.subscription, 1, query.wait,
            None if query.lease_ms is UNSET else query.lease_ms,
        )  # fmt: skip
        if not received:
            return _nothing(call)
        try:
            response = _message(call, received[0])
        except Refused:
            self._give_back(received)
            raise
        if query.ack == "auto":
            await self._broker.acknowledge([received[0].receipt])
            return response
        return _settled_by_delete(call, received[0], response)._replace(
            when_lost=lambda: self._give_back(received)
        )

    def _messages(self, call: _Call) -> Observation:
        """Tell each message, the next when all of the last was fetched or its lease is over.

        It is done when the device has it, unless the client wants to delete it. One of which not
        all was fetched comes again.
        """
        query: _ReceiveQuery = call.query
        lease_ms = None if query.lease_ms is UNSET else query.lease_ms

        async def observe(tell: Tell) -> None:
            arrived = True
            while arrived:
                fetched: Pending[bool] = Pending()
                received = await self._broker.receive(
                    call.queue, query.subscription, 1, limits.COAP_SILENCE_S_MAX, lease_ms
                )
                held = list(received)
                try:
                    # Rights may have been withdrawn since the observation began.
                    await self._authorize(call.request, call.queue, "receive", counted=False)
                    told = self._told(call, received[0]) if received else _nothing(call)
                    arrived = await tell(self._fit(call.request, told, fetched.resolve))
                    if arrived and not fetched.done:
                        info = await self._broker.get_queue(call.queue)
                        await fetched.until((lease_ms or info.settings.lease_ms) / 1000)
                    if arrived:
                        held.clear()
                finally:
                    if held:
                        self._give_back(held)
                whole = arrived and fetched.done and fetched.result()
                if whole and received and query.ack != "delete":
                    await self._broker.acknowledge([received[0].receipt])

        return observe

    def _told(self, call: _Call, received: Received) -> Response:
        response = _message(call, received)
        if call.query.ack == "delete":
            return _settled_by_delete(call, received, response)
        return response

    async def _acknowledge(self, call: _Call) -> Response:
        info = await self._broker.get_queue(call.queue)
        [answer] = await self._broker.acknowledge(read_receipts(info, [call.query.receipt]))
        if isinstance(answer, RingdoveError):
            raise answer
        return Response(Code.DELETED)

    async def _last(self, call: _Call) -> Response:
        found = await newest(self._broker, call.queue)
        response = _nothing(call) if found is None else _content(call, *found)

        async def observe(tell: Tell) -> None:
            async def tell_newest(message: Newest) -> bool:
                await self._authorize(call.request, call.queue, "receive", counted=False)
                return await tell(self._fit(call.request, _content(call, *message)))

            await watch_newest(self._broker, call.queue, found, tell_newest)

        return _observed(call, response, observe)

    # -- discovery ------------------------------------------------------------------------------

    async def _links(self, call: _Call) -> Response:
        queues = await self._broker.list_queues(max=limits.COAP_LINKS_MAX)
        links = select(queue_links(info.name for info in queues), call.request.query)
        listed = ((Option.CONTENT_FORMAT, uint(media.LINK_FORMAT)),)
        return Response(Code.CONTENT, listed, links.encode())


def _check_options(packet: Packet) -> None:
    """Refuse what must be understood and is not."""
    for number, value in packet.options:
        if number in (Option.PROXY_URI, Option.PROXY_SCHEME):
            raise Refused(Code.PROXYING_NOT_SUPPORTED, "This is no proxy.")
        if number & 1 and number not in _CRITICAL:
            raise Refused(Code.BAD_OPTION, f"Option {number} is critical and not known here.")
        if len(value) > _NUMBER_BYTES_MAX.get(number, len(value)):
            raise Refused(Code.BAD_OPTION, f"Option {number} is a number of fewer bytes.")


def _identity(request: Request) -> bytes:
    """What a repetition of a request has in common with it, and no other request has.

    The memory of a server does not outlive it, and another server has its own; the queue's does.
    """
    peer, packet = request
    told = repr((peer[:2], packet.mid, packet.token)).encode()
    return b"coap:" + xxhash.xxh3_128_digest(told + packet.payload)


def _is_attribute(name: str) -> bool:
    return name.startswith(_ATTRIBUTE)


def _nothing(call: _Call) -> Response:
    """There is no message: a response without an ETag."""
    return Response(Code.CONTENT, (call.freshness,))


def _observed(call: _Call, response: Response, observation: Observation) -> Response:
    """The response, and what follows it where the client asks to observe."""
    if call.observes != 0:
        return response
    begins = (Option.OBSERVE, uint(0))
    return response._replace(options=(*response.options, begins), observation=observation)


def _message(call: _Call, received: Received) -> Response:
    part = received.delivered.parts[0]
    place = StripeId(*received.receipt[:3]).place(received.receipt.lo)
    return _content(call, place, part.block.slice(part.start, part.start + 1))


def _settled_by_delete(call: _Call, received: Received, response: Response) -> Response:
    """The response, with the place to delete when the message is done."""
    receipt = base64.urlsafe_b64encode(received.receipt.encode()).rstrip(b"=")
    where: Options = (
        (Option.LOCATION_PATH, b"q"),
        (Option.LOCATION_PATH, call.queue.encode()),
        (Option.LOCATION_QUERY, b"receipt=" + receipt),
    )
    return response._replace(options=(*response.options, *where))


def _content(call: _Call, place: bytes, block: MessageBlock) -> Response:
    """A message as a response; refused if the client wants another format than it has."""
    [attributes] = block.attributes()
    content = media.format_of((attributes or {}).get(media.ATTRIBUTE))
    accepted = call.request.packet.number(Option.ACCEPT)
    if accepted is not None and content not in (None, accepted):
        raise Refused(Code.NOT_ACCEPTABLE, "The message has another format.")
    options: list[tuple[int, bytes]] = [(Option.ETAG, xxhash.xxh3_64_digest(place))]
    options.append(call.freshness)
    if content is not None:
        options.append((Option.CONTENT_FORMAT, uint(content)))
    [body] = block.bodies()
    return Response(Code.CONTENT, tuple(options), body)
