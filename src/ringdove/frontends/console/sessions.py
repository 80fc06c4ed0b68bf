"""Who uses the console, and what he may do.

    record session/DIGEST    whose session it is, and what changes must be accompanied by

A browser keeps a random word in a cookie that scripts cannot read and that is sent to this server
only; the record is named by its digest, so whoever reads records has no sessions. A session ends
with its time, with the password or the token that began it, and with its account. Changes carry the
session's second secret in a header, which no other site can set.

Roles are what accounts.py says: a viewer looks at what the account may use, an operator does what
the account may, an admin everything, as the server's token allows. While the server is open to
everybody, so is the console.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ringdove import limits
from ringdove.controllers.accounts import ALL, AccessKey, Account, may, owner_of
from ringdove.errors import InvalidArgument, LimitExceeded, NotAuthorized, NotIdentified

if TYPE_CHECKING:
    from ringdove.controllers.broker import Broker
    from ringdove.frontends.access import Access
    from ringdove.frontends.exchange import HttpRequest

COOKIE = "ringdove-session"
#: The header with the session's second secret.
CSRF = b"x-ringdove-csrf"

_SAFE_METHODS = ("GET", "HEAD")
_RECORD = "session/"

#: The account of a session that the server's token has begun.
_SERVER = ""


class _Session(msgspec.Struct, array_like=True, frozen=True):
    account: str
    csrf: str
    #: The digest of the password's hash, or of the token: when it changes, the session is over.
    proof: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Session).decode


class Visitor(NamedTuple):
    """Somebody who is let in."""

    name: str
    role: str
    #: What changes must be accompanied by; empty where everybody may do everything.
    csrf: str = ""
    #: None only for admins: the operator of the server, and everybody if it is open.
    account: Account | None = None

    @property
    def is_admin(self) -> bool:
        """Whether everything is allowed."""
        return self.role == "admin"

    def may(self, queue: str, role: str) -> bool:
        """Whether a queue may be used in a role of accounts.py."""
        if self.is_admin or self.account is None:
            return self.is_admin
        return may(self.account, self.key, owner_of(queue)[0], queue, role)

    @property
    def key(self) -> AccessKey:
        """What the visitor may do at most, said as accounts do."""
        return AccessKey("console", "", 0, ("receive",) if self.role == "viewer" else ALL)


class Sessions:
    """Begins, finds and ends sessions."""

    def __init__(self, broker: Broker, access: Access) -> None:
        self._store = broker.store
        self._accounts = broker.accounts
        self._access = access
        #: Failed attempts by name, and when they are forgotten.
        self._failures: dict[str, tuple[int, int]] = {}

    # -- for routes -----------------------------------------------------------------------------

    async def visitor(self, request: HttpRequest) -> Visitor:
        """Who asks, if that is allowed to look; changes must also be proven to be wanted."""
        found = await self.maybe_visitor(request)
        if found is None:
            raise NotIdentified("Sign in: there is no session, or it has ended.")
        if request.method not in _SAFE_METHODS:
            given = request.header(CSRF)
            if not secrets.compare_digest(given.encode(), found.csrf.encode()):
                raise NotAuthorized("The request does not come from the console: load it again.")
            if found.role == "viewer":
                raise NotAuthorized("A viewer changes nothing: ask for the role operator.")
        return found

    async def maybe_visitor(self, request: HttpRequest) -> Visitor | None:
        """Who asks, or None."""
        if await self._access.is_open():
            return Visitor("everybody", "admin")
        word = _word(request)
        record = None if word is None else await self._store.get(_RECORD + _digest(word))
        if record is None:
            return None
        session = _decode(record.value)
        if session.account == _SERVER:
            proven = secrets.compare_digest(session.proof, self._access.token_digest())
            return Visitor("server", "admin", session.csrf) if proven else None
        try:
            account = await self._accounts.get(session.account)
        except InvalidArgument:
            return None
        if not secrets.compare_digest(session.proof, _proof(account.password)):
            return None
        return Visitor(account.name, account.console_role, session.csrf, account)

    async def authorize(self, request: HttpRequest, queue: str | None, role: str) -> None:
        """As `Access.authorize`, of those with a session too: so the console uses REST."""
        if b"authorization" in request.headers or _word(request) is None:
            await self._access.authorize(request, queue, role)
            return
        visitor = await self.visitor(request)
        if not visitor.is_admin and visitor.account is not None:
            await self._access.check(visitor.account, visitor.key, request, queue, role)

    # -- beginning and ending -------------------------------------------------------------------

    async def begin(self, name: str, password: str) -> str:
        """The word of a new session of an account."""
        self._refuse_guessing(name)
        if not await self._accounts.check_password(name, password):
            self._note_failure(name)
            raise NotIdentified("There is no such account, or it has another password.")
        self._failures.pop(name, None)
        account = await self._accounts.get(name)
        return await self._begin(account.id, _proof(account.password))

    async def begin_with_token(self, token: str) -> str:
        """The word of a new session of the server's operator."""
        self._refuse_guessing(_SERVER)
        if not self._access.is_token(token.encode()):
            self._note_failure(_SERVER)
            raise NotIdentified("This is not the server's token.")
        return await self._begin(_SERVER, self._access.token_digest())

    async def end(self, request: HttpRequest) -> None:
        """Forget the session of a request."""
        word = _word(request)
        if word is not None:
            await self._store.remove(_RECORD + _digest(word))

    async def _begin(self, account: str, proof: bytes) -> str:
        word = secrets.token_urlsafe(32)
        session = _Session(account, secrets.token_urlsafe(32), proof)
        expires_ms = self._store.clock.now_ms() + limits.SESSION_S_MAX * 1000
        await self._store.put(_RECORD + _digest(word), _encode(session), 0, expires_ms)
        return word

    # -- guessing -------------------------------------------------------------------------------

    def _refuse_guessing(self, name: str) -> None:
        count, until_ms = self._failures.get(name, (0, 0))
        if count >= limits.LOGIN_FAILURES_MAX and self._store.clock.now_ms() < until_ms:
            raise LimitExceeded("There were too many failed attempts: wait a minute.")

    def _note_failure(self, name: str) -> None:
        now_ms = self._store.clock.now_ms()
        count, until_ms = self._failures.get(name, (0, 0))
        if until_ms < now_ms:
            count = 0
        if len(self._failures) >= _NAMES_MAX:
            self._failures.clear()
        self._failures[name] = (count + 1, now_ms + _FORGET_MS)


#: Milliseconds after which failed attempts are forgotten, and names whose attempts are remembered.
_FORGET_MS = 60_000
_NAMES_MAX = 10_000


def cookie(word: str, *, secure: bool) -> tuple[bytes, bytes]:
    """The header that has a browser keep a session's word; an empty one ends it."""
    age_s = limits.SESSION_S_MAX if word else 0
    parts = [f"{COOKIE}={word}", "Path=/", f"Max-Age={age_s}", "HttpOnly", "SameSite=Strict"]
    return b"set-cookie", "; ".join([*parts, *(["Secure"] if secure else [])]).encode()


def _word(request: HttpRequest) -> str | None:
    """The word that the browser keeps, if any; whatever cookies others on this host have set."""
    for part in request.header(b"cookie").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value or None
    return None


def _digest(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def _proof(password: str | None) -> bytes:
    return hashlib.sha256((password or "").encode()).digest()
