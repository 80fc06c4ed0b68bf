"""Who asks over HTTP, and what he may do.

The server's token is the operator's: whoever gives it may do everything (Authorization: Bearer).
Accounts identify themselves by a signature (SigV4) or, where that is too much to ask for, by key
and secret (Basic). While there is neither a token nor an account, everybody may do everything.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from typing import TYPE_CHECKING

from ringdove.controllers.accounts import DEFAULT_ACCOUNT, Quotas, may, owner_of
from ringdove.errors import LimitExceeded, NotAuthorized, NotIdentified
from ringdove.protocol import sigv4
from ringdove.protocol.sigv4 import SignatureRefused

if TYPE_CHECKING:
    from ringdove.controllers.accounts import AccessKey, Account
    from ringdove.controllers.broker import Broker
    from ringdove.frontends.exchange import HttpRequest


#: Milliseconds for which a count of what an account stores is believed.
_COUNT_MS = 1_000


class Access:
    """See the module."""

    def __init__(self, broker: Broker, token: str | None = None) -> None:
        self._broker = broker
        self._accounts = broker.accounts
        self._clock = broker.store.clock
        self._token = None if token is None else token.encode()
        self._quotas = Quotas()
        #: Bytes that accounts with a quota store, and when that was counted.
        self._stored: dict[str, tuple[int, int]] = {}

    async def is_open(self) -> bool:
        """Whether everybody may do everything."""
        return self._token is None and not await self._accounts.configured()

    def is_open_to_operators(self) -> bool:
        """Whether what only operators may see is open to all, because there is no token."""
        return self._token is None

    def is_operator(self, request: HttpRequest) -> bool:
        """Whether a request gives the server's token."""
        scheme, _, given = request.headers.get(b"authorization", b"").partition(b" ")
        return self.is_token(given.strip()) and scheme.lower() == b"bearer"

    def is_token(self, given: bytes) -> bool:
        """Whether this is the server's token; takes as long for any other."""
        same = secrets.compare_digest(given, self._token or b"")
        return self._token is not None and same

    def token_digest(self) -> bytes:
        """Stands for the server's token where that must not be written down."""
        return hashlib.sha256(self._token or b"").digest()

    async def authorize(
        self, request: HttpRequest, queue: str | None, role: str, *, counted: bool = True
    ) -> None:
        """Refuse a caller who may not play a role on a queue, or on all of them (REST)."""
        if self.is_operator(request) or await self.is_open():
            return
        account, key = await self._identified(request)
        await self.check(account, key, request, queue, role, counted=counted)

    async def check(
        self,
        account: Account,
        key: AccessKey,
        request: HttpRequest,
        queue: str | None,
        role: str,
        *,
        counted: bool = True,
    ) -> None:
        """Refuse what an account may not do with a key, or asks for too often, if that counts."""
        if counted and not self.check_rate(account):
            raise LimitExceeded(f"The account may send {account.requests_per_s} requests/s.")
        if queue is None:
            raise NotAuthorized("Only the operator sees all queues: give the server's token.")
        if not may(account, key, owner_of(queue)[0], queue, role):
            own = owner_of(queue)[0] == account.id
            hint = "" if own else f" Queues of its account are called {account.id}.NAME."
            raise NotAuthorized(f"This key may not {role} on queue {queue!r}.{hint}")
        if role == "send":
            await self.check_storage(owner_of(queue)[0], len(request.body))

    async def _identified(self, request: HttpRequest) -> tuple[Account, AccessKey]:
        scheme, _, given = request.headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"basic":
            return await self._by_secret(given)
        try:
            account, key, _ = await self.by_signature(request)
        except SignatureRefused as refusal:
            raise NotIdentified(
                f"{refusal.message} Sign the request, or give an access key and its secret as user "
                "and password, or the server's token: 'Authorization: Bearer TOKEN'."
            ) from None
        return account, key

    async def _by_secret(self, given: bytes) -> tuple[Account, AccessKey]:
        try:
            text = base64.b64decode(given, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        key_id, _, secret = text.partition(":")
        found = await self._accounts.find_key(key_id)
        known = found[1].secret if found is not None else ""
        if not secrets.compare_digest(secret.encode(), known.encode()) or found is None:
            raise NotIdentified("There is no such access key, or its secret is another one.")
        return found

    async def by_signature(self, request: HttpRequest) -> tuple[Account, AccessKey, str]:
        """Account, key and region of a signed request; SignatureRefused unless it is genuine."""
        claim = sigv4.find(request.headers, request.query)
        if claim is None:
            raise SignatureRefused(
                "MissingAuthenticationToken",
                "The request has no signature: sign it with a key of an account "
                "(ringdove account create NAME).",
            )
        found = await self._accounts.find_key(claim.key)
        if found is None:
            raise SignatureRefused(
                "InvalidClientTokenId", "The security token included in the request is invalid."
            )
        account, key = found
        now_ms = self._clock.now_ms()
        sigv4.verify(
            claim,
            key.secret,
            method=request.method,
            raw_path=request.raw_path,
            query=request.query,
            headers=request.headers,
            body=request.body,
            now_s=now_ms / 1000,
        )
        return account, key, claim.region

    async def check_storage(self, owner: str, nbytes: int) -> None:
        """Refuse a send beyond the bytes that the queue's account may store, whoever sends.

        What is stored is counted once a second, and when the quota seems to be reached.
        """
        account = await self._accounts.maybe_get(owner)
        # Nobody's, or of an account that was deleted: its quota is gone with it.
        if account is None or account.bytes_max is None:
            return
        now_ms = self._clock.now_ms()
        stored, counted_ms = self._stored.get(owner, (0, 0))
        if now_ms - counted_ms > _COUNT_MS or stored + nbytes >= account.bytes_max:
            stored, counted_ms = await self._count_stored(owner), now_ms
        self._stored[owner] = (stored + nbytes, counted_ms)
        if stored >= account.bytes_max:
            raise LimitExceeded(
                f"The account stores {stored} bytes and may store {account.bytes_max}."
            )

    async def _count_stored(self, owner: str) -> int:
        prefix = "" if owner == DEFAULT_ACCOUNT else f"{owner}."
        total = 0
        for info in await self._broker.list_queues(prefix):
            if owner_of(info.name)[0] == owner:
                total += (await self._broker.queue_stats(info.name)).nbytes
        return total

    def check_rate(self, account: Account) -> bool:
        """Whether an account may ask once more now."""
        return self._quotas.take(account, self._clock.now_ms())
