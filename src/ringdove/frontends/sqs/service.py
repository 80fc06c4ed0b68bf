"""The SQS endpoint: finds out what is asked, by whom and in which protocol; has it done; answers.

    POST /                     X-Amz-Target: AmazonSQS.ACTION, JSON in and out
    POST / or /ACCOUNT/QUEUE   a form with Action=..., XML out
    GET  / or /ACCOUNT/QUEUE   the same in the query string

While no account exists, anybody may do anything, whatever he signs with: twelve digits as access
key choose an account. As soon as there are accounts, every request must be signed by one.
"""

from __future__ import annotations

import logging
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ringdove.controllers.accounts import DEFAULT_ACCOUNT, may, owner_of
from ringdove.errors import (
    InvalidArgument,
    LimitExceeded,
    MessageTooLarge,
    NotAuthorized,
    QueueFull,
    QueueIsCopy,
    QueueNotFound,
    RecordConflict,
    RingdoveError,
    SettingsRefused,
    SettingsStale,
    StoreUnavailable,
    SubscriptionBusy,
    SubscriptionNotFound,
)
from ringdove.frontends.exchange import HttpResponse
from ringdove.frontends.sqs import holding, receiving, sending
from ringdove.frontends.sqs.moves import Moves, handle_of
from ringdove.frontends.sqs.queues import Queues, may_see
from ringdove.frontends.sqs.translate import as_uuid
from ringdove.frontends.sqs.view import Caller, QueueView, find_queue
from ringdove.protocol import sigv4
from ringdove.protocol.sqs import wire
from ringdove.protocol.sqs.attributes import parse_arn
from ringdove.protocol.sqs.errors import SqsError, no_queue
from ringdove.stores.local import OneNode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ringdove.controllers.broker import Broker
    from ringdove.frontends.access import Access
    from ringdove.frontends.exchange import Drive, HttpRequest
    from ringdove.protocol.sqs.shapes import Shape

_log = logging.getLogger(__name__)

_TARGET = b"AmazonSQS."
_REGION = "us-east-1"
_CREDENTIAL = re.compile(
    rb"Credential=([A-Za-z0-9_-]{1,128})(?:/|%2F)\d{8}(?:/|%2F)([a-z0-9-]{1,32})(?:/|%2F)"
)
#: Where in an Authorization header the credential stands; the signature, which differs, is behind.
_CLAIM_BYTES = 120
_QUEUE_PATH = re.compile(r"/(?:queue/[a-z0-9-]+/)?\d{12}/[^/]+/?")

#: What a caller must be allowed for an action; the others need `manage`.
_ROLES = {
    "SendMessage": "send",
    "SendMessageBatch": "send",
    "ReceiveMessage": "receive",
    "DeleteMessage": "receive",
    "DeleteMessageBatch": "receive",
    "ChangeMessageVisibility": "receive",
    "ChangeMessageVisibilityBatch": "receive",
}

#: Actions that tell of a queue and change nothing: any role will do.
_HARMLESS = ("GetQueueUrl", "GetQueueAttributes", "ListQueues", "ListQueueTags")


class SqsService:
    """See the module."""

    def __init__(self, broker: Broker, access: Access, *, strict: bool = False) -> None:
        self._broker = broker
        self._access = access
        self._queues = Queues(broker, strict=strict)
        self.moves = Moves(broker, shared=not isinstance(broker.store, OneNode))
        self._views: dict[str, QueueView] = {}
        self._on_queue = self._queue_actions()

    # -- HTTP -----------------------------------------------------------------------------------

    async def respond(self, request: HttpRequest, drive: Drive) -> HttpResponse:
        """The dialect, for the HTTP server."""
        request_id = as_uuid(os.urandom(16).hex())
        target = request.headers.get(b"x-amz-target")
        if target is not None:
            return await self._respond_json(request, drive, target, request_id)
        return await self._respond_query(request, drive, request_id)

    async def _respond_json(
        self, request: HttpRequest, drive: Drive, target: bytes, request_id: str
    ) -> HttpResponse:
        headers = (
            (b"content-type", b"application/x-amz-json-1.0"),
            (b"x-amzn-requestid", request_id.encode()),
        )
        try:
            action = target.removeprefix(_TARGET).decode("latin-1")
            _refuse_cross_site(request)
            ask = wire.from_json(action, request.body)
            reply = await self._do(request, drive, action, ask)
        except SqsError as error:
            blame = "Sender" if error.sender else "Receiver"
            legacy = (b"x-amzn-query-error", f"{error.legacy};{blame}".encode())
            return HttpResponse(error.status, wire.error_to_json(error), (*headers, legacy))
        return HttpResponse(200, wire.to_json(reply), headers)

    async def _respond_query(
        self, request: HttpRequest, drive: Drive, request_id: str
    ) -> HttpResponse:
        json = request.header(b"accept").startswith("application/json")
        kind = b"application/json" if json else b"text/xml"
        headers = ((b"content-type", kind), (b"x-amzn-requestid", request_id.encode()))
        try:
            fields = wire.parse_fields(request.query)
            if request.body and b"form" in request.headers.get(b"content-type", b""):
                fields |= wire.parse_fields(request.body)
            action = fields.get("Action", "")
            if not action:
                body = b"<UnknownOperationException/>\n"
                return HttpResponse(404, body, ((b"content-type", b"text/xml"), headers[1]))
            if action in ("CreateQueue", "ListQueues") and _QUEUE_PATH.fullmatch(request.path):
                raise wire.invalid_action(action)
            _refuse_cross_site(request)
            ask = wire.from_fields(action, fields)
            reply = await self._do(request, drive, action, ask)
        except SqsError as error:
            encode_error = wire.error_to_query_json if json else wire.error_to_xml
            return HttpResponse(error.status, encode_error(error, request_id), headers)
        encode = wire.to_query_json if json else wire.to_xml
        return HttpResponse(200, encode(action, reply, request_id), headers)

    # -- who and what ---------------------------------------------------------------------------

    async def _do(
        self, request: HttpRequest, drive: Drive, action: str, ask: Shape
    ) -> dict[str, Any] | None:
        try:
            caller = await self._caller(request)
            return await self._act(drive, caller, action, ask)
        except sigv4.SignatureRefused as refusal:
            raise SqsError(refusal.code, refusal.message) from None
        except QueueNotFound:
            raise no_queue() from None
        except RingdoveError as error:
            raise _translated(error) from error

    async def _caller(self, request: HttpRequest) -> Caller:
        host = request.header(b"host") or "localhost"
        base = f"{request.scheme}://{host}"
        path = request.path if _QUEUE_PATH.fullmatch(request.path) else ""
        trace = request.header(b"x-amzn-trace-id")
        if await self._access.is_open():
            account, region = _claimed(request)
            return Caller(account, region, base, path_queue=path, trace=trace)
        own, key, region = await self._access.by_signature(request)
        if not self._access.check_rate(own):
            text = f"The account may send {own.requests_per_s} requests/s."
            raise SqsError("RequestThrottled", text)
        return Caller(own.id, region, base, own, key, path, trace, len(request.body))

    async def _act(
        self, drive: Drive, caller: Caller, action: str, ask: Shape
    ) -> dict[str, Any] | None:
        on_queue = self._on_queue.get(action)
        if on_queue is None:
            return await self._without_queue(drive, caller, action, ask)
        full = find_queue(caller, getattr(ask, "queue_url", None))
        if action not in _ROLES:
            self._broker.forget_queue(full)  # Another server may have changed it.
        queue = await self._view(drive, caller, full)
        if caller.own is not None:
            self._authorize(caller, queue, action)
            if _ROLES.get(action) == "send":
                await self._access.check_storage(owner_of(full)[0], caller.nbytes)
        return await on_queue(drive, caller, queue, ask)

    async def _without_queue(
        self, drive: Drive, caller: Caller, action: str, ask: Any
    ) -> dict[str, Any] | None:
        if caller.own is not None and caller.key is not None:
            role = "manage" if action not in _HARMLESS else ""
            if role and role not in caller.key.roles:
                raise _denied(action)
        if action == "CreateQueue":
            return await drive(self._queues.create(caller, ask))
        if action == "GetQueueUrl":
            return await drive(self._queues.url(caller, ask))
        if action == "ListQueues":
            return await drive(self._queues.find(caller, ask))
        return await self._move(caller, action, ask)

    async def _move(self, caller: Caller, action: str, ask: Any) -> dict[str, Any]:
        if action == "StartMessageMoveTask":
            self._authorize_arns(caller, action, ask.source_arn, ask.destination_arn)
            return await self.moves.start(ask)
        if action == "CancelMessageMoveTask":
            self._authorize_arns(caller, action, handle_of(ask).source_arn)
            return await self.moves.cancel(ask)
        self._authorize_arns(caller, action, ask.source_arn)
        return await self.moves.find(ask)

    async def _view(self, drive: Drive, caller: Caller, full: str) -> QueueView:
        info = self._broker.known_queue(full)
        if info is None:
            try:
                info = await drive(self._broker.get_queue(full))
            except QueueNotFound:
                self._views.pop(full, None)
                if caller.own is not None and owner_of(full)[0] != caller.account:
                    raise _denied("") from None  # Whether it exists is nobody else's business.
                raise
        view = self._views.get(full)
        if view is None or view.info is not info:
            if len(self._views) >= _VIEWS_MAX:
                self._views.clear()
            view = self._views[full] = QueueView(info)
        return view

    def _authorize(self, caller: Caller, queue: QueueView, action: str) -> None:
        own, key = caller.own, caller.key
        if own is None or key is None:
            return
        owner = owner_of(queue.name)[0]
        role = _ROLES.get(action, "manage")
        roles = key.roles if action in _HARMLESS else (role,)
        if any(may(own, key, owner, queue.name, each) for each in roles):
            return
        plain = action.removesuffix("Batch")
        within_role = action in _HARMLESS or role in key.roles
        if owner != own.id and within_role and may_see(caller, queue.info, plain):
            return
        raise _denied(action)

    def _authorize_arns(self, caller: Caller, action: str, *arns: str | None) -> None:
        for named in (parse_arn(arn or "") for arn in arns):
            if caller.own is not None and named is not None and named[0] != caller.account:
                raise _denied(action)

    def _queue_actions(self) -> dict[str, Callable[..., Awaitable[dict[str, Any] | None]]]:
        """What is done to one queue, by action; each gets drive, caller, queue and request."""
        broker, queues = self._broker, self._queues
        return {
            "SendMessage": lambda d, c, q, a: sending.send(broker, d, c, q, a),
            "SendMessageBatch": lambda d, c, q, a: sending.send_batch(broker, d, c, q, a),
            "ReceiveMessage": lambda d, c, q, a: receiving.receive(broker, d, c, q, a),
            "DeleteMessage": lambda d, _, q, a: holding.delete(broker, d, q, a),
            "DeleteMessageBatch": lambda d, _, q, a: holding.delete_batch(broker, d, q, a),
            "ChangeMessageVisibility": (
                lambda d, _, q, a: holding.change_visibility(broker, d, q, a)
            ),
            "ChangeMessageVisibilityBatch": (
                lambda d, _, q, a: holding.change_visibility_batch(broker, d, q, a)
            ),
            "GetQueueAttributes": lambda d, c, q, a: d(queues.attributes(c, q, a)),
            "SetQueueAttributes": lambda d, c, q, a: d(queues.change(c, q, a)),
            "ListDeadLetterSourceQueues": lambda d, c, q, a: d(queues.sources(c, q, a)),
            "AddPermission": lambda d, c, q, a: d(queues.permit(c, q, a)),
            "RemovePermission": lambda d, _, q, a: d(queues.forbid(q, a)),
            "TagQueue": lambda d, _, q, a: d(queues.tag(q, a)),
            "UntagQueue": lambda d, _, q, a: d(queues.untag(q, a)),
            "ListQueueTags": lambda d, _, q, __: d(queues.tags(q)),
            "PurgeQueue": lambda d, _, q, __: d(queues.purge(q)),
            "DeleteQueue": lambda d, _, q, __: d(queues.delete(q)),
        }


def _claimed(request: HttpRequest) -> tuple[str, str]:
    """Account and region that a request claims, believed without a look at its signature."""
    return _read_claim(request.headers.get(b"authorization", b"")[:_CLAIM_BYTES] or request.query)


@lru_cache(maxsize=1024)
def _read_claim(text: bytes) -> tuple[str, str]:
    found = _CREDENTIAL.search(text)
    if found is None:
        return DEFAULT_ACCOUNT, _REGION
    key, region = found[1].decode("latin-1"), found[2].decode("latin-1")
    return key if len(key) == 12 and key.isdecimal() else DEFAULT_ACCOUNT, region


def _refuse_cross_site(request: HttpRequest) -> None:
    """Of all methods: here GET changes things, too."""
    if request.cross_site:
        raise SqsError(
            "AccessDeniedException", "Requests from pages of another site are not taken."
        )


def _denied(action: str) -> SqsError:
    what = f" to do {action}" if action else ""
    return SqsError("AccessDeniedException", f"Access to the resource is denied{what}.")


def _translated(error: RingdoveError) -> SqsError:
    """What the API says for an error of the broker."""
    for known, kind in _KINDS:
        if isinstance(error, known):
            return SqsError(kind, str(error))
    _log.error("A request failed.", exc_info=error)
    return SqsError("InternalFailure", "The server failed; its log says why.")


_KINDS: tuple[tuple[type[RingdoveError], str], ...] = (
    (SettingsRefused, "InvalidAttributeValue"),
    (InvalidArgument, "InvalidParameterValueException"),
    (MessageTooLarge, "InvalidParameterValueException"),
    (QueueFull, "OverLimit"),
    (LimitExceeded, "OverLimit"),
    (NotAuthorized, "AccessDeniedException"),
    # The queue is read by other means: as a topic, or by a stream.
    (SubscriptionNotFound, "UnsupportedOperation"),
    (SubscriptionBusy, "UnsupportedOperation"),
    (QueueIsCopy, "UnsupportedOperation"),
    # Others were faster, several times: clients try again by themselves.
    (SettingsStale, "ServiceUnavailable"),
    (RecordConflict, "ServiceUnavailable"),
    (StoreUnavailable, "ServiceUnavailable"),
)

#: Queues whose settings are kept worked out.
_VIEWS_MAX = 10_000
