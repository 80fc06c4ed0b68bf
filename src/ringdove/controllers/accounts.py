"""Accounts: who may do what with which queues, and how much of it.

    record account/ID            the account with its keys, grants, quotas and password hash
    record account-name/NAME     the id of the account of that name
    record key/KEYID             the id of the account that the key belongs to

A key works while both its record and its account know it. So `create` and `add_key` write the key's
record first and `delete` removes the account first: a crash half way leaves a key that does not
work, never one that works and is not listed.

Access keys sign requests, so their secrets must be stored as they are. Passwords are not: what is
stored is an argon2 hash. Neither is told to anybody but for the secret of a key just made.

The queue `orders` of account 123456789012 is stored as `123456789012.orders`. Queues of the default
account have plain names.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
import secrets
import string
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ringdove.controllers.passwords import Passwords
from ringdove.core.policy import TokenBucket
from ringdove.core.settings import check_name
from ringdove.errors import InvalidArgument, LimitExceeded, RecordConflict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ringdove.stores.base import Store

#: Every role: put messages in; take them out; make, change, purge and delete queues.
ALL: Final = ("send", "receive", "manage")

#: What somebody with the account's password may do in the console: look at what the account may
#: use; do all that the account may; or everything that the server's token allows.
CONSOLE_ROLES: Final = ("viewer", "operator", "admin")

#: The account of queues with plain names.
DEFAULT_ACCOUNT: Final = "000000000000"

#: Accounts that are listed, and whose request rates are remembered.
ACCOUNTS_MAX = 10_000

#: Keys and grants of one account. Its record stays far below the largest.
KEYS_MAX = 100
GRANTS_MAX = 1_000

#: Bytes of an account's quota: what every integer column holds.
_BYTES_MAX = 2**63 - 1

#: Milliseconds for which a key is remembered: so soon is another process' change seen.
_REMEMBER_MS = 1_000

#: Keys remembered, those that do not exist included.
_REMEMBER_MAX = 10_000

#: Times that a change begins again because somebody else has changed the account.
_ATTEMPTS_MAX = 32

#: Names that one which is missing is compared with, at most: a tenth of a millisecond each.
_ALIKE_MAX = 64

#: What the keys of records begin with.
_ACCOUNT, _NAME, _KEY = "account/", "account-name/", "key/"

_ID = re.compile(r"[0-9]{12}")
_FULL_NAME = re.compile(r"([0-9]{12})\.(.+)")
_BASE32 = string.ascii_uppercase + "234567"


class AccessKey(msgspec.Struct, array_like=True, frozen=True):
    """A key that signs requests."""

    id: str
    secret: str
    created_ms: int
    #: What the key may do at most.
    roles: tuple[str, ...] = ALL
    active: bool = True

    def __repr__(self) -> str:
        return f"AccessKey({self.id!r}, roles={self.roles}, active={self.active})"


class Account(msgspec.Struct, array_like=True, frozen=True):
    """Somebody who owns queues, and may be allowed to use those of others."""

    id: str
    name: str
    created_ms: int
    #: The argon2 hash of the password for the console.
    password: str | None = None
    keys: dict[str, AccessKey] = {}
    #: Roles on queues of other accounts, by full name; one that ends in '*' is a prefix.
    grants: dict[str, tuple[str, ...]] = {}
    requests_per_s: float | None = None
    bytes_max: int | None = None
    console_role: str = "operator"

    def __repr__(self) -> str:
        return f"Account({self.id!r}, {self.name!r}, keys={list(self.keys.values())})"


#: `Accounts.list` hides the built-in name from annotations in its class.
_Accounts = list[Account]
_Names = list[str]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Account).decode


# -- names and rights ------------------------------------------------------------------------------


def full_name(account_id: str, name: str) -> str:
    """The name under which a queue of an account is stored."""
    full = name if account_id == DEFAULT_ACCOUNT else f"{account_id}.{name}"
    if owner_of(full) != (account_id, name):
        raise InvalidArgument(
            f"Account {account_id!r} can have no queue {name!r}: an account id has 12 digits, and "
            f"a name that begins like one and '.' belongs to that account."
        )
    return full


def owner_of(full_name: str) -> tuple[str, str]:
    """The account that a stored queue belongs to, and the name by which it knows the queue."""
    match = _FULL_NAME.fullmatch(full_name)
    if match is None or match[1] == DEFAULT_ACCOUNT:
        return DEFAULT_ACCOUNT, full_name
    return match[1], match[2]


def may(account: Account, key: AccessKey, owner: str, queue: str, role: str) -> bool:
    """Whether `account`, asking with `key`, may act in `role` on a queue of `owner`.

    On its own queues: whatever the key may. On those of others: what both key and a grant allow.
    `queue` is the full name; one that is not of `owner` is refused.
    """
    if not key.active or role not in key.roles or owner_of(queue)[0] != owner:
        return False
    if account.id == owner:
        return True
    return any(
        role in roles
        and (queue.startswith(granted[:-1]) if granted.endswith("*") else queue == granted)
        and owner_of(granted)[0] == owner
        for granted, roles in account.grants.items()
    )


def check_roles(roles: Iterable[str]) -> tuple[str, ...]:
    """The roles in their order, or InvalidArgument."""
    chosen = set(roles)
    unknown = sorted(chosen.difference(ALL))
    if unknown or not chosen:
        what = ", ".join(map(repr, unknown)) or "Nothing"
        raise InvalidArgument(f"{what} is no role: use one or more of {', '.join(ALL)}.")
    return tuple(role for role in ALL if role in chosen)


def by_age(keys: Iterable[AccessKey]) -> list[AccessKey]:
    """The keys, oldest first."""
    return sorted(keys, key=lambda key: (key.created_ms, key.id))


class Quotas:
    """Request rates: a bucket per account that holds what it may ask for in one second."""

    def __init__(self) -> None:
        self._buckets: dict[str, TokenBucket] = {}

    def take(self, account: Account, now_ms: int) -> bool:
        """Count a request; False when the account has made too many."""
        rate = account.requests_per_s
        if rate is None:
            return True
        bucket = self._buckets.get(account.id)
        if bucket is None or bucket.rate_per_s != rate:
            if bucket is None and len(self._buckets) >= ACCOUNTS_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[account.id] = TokenBucket(rate, now_ms)
        return bucket.take(1, now_ms) > 0


# -- the accounts of a store -----------------------------------------------------------------------


class Accounts:
    """Creates, finds, changes and deletes accounts. An account is named by its id or its name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: dict[str, tuple[int, tuple[Account, AccessKey] | None]] = {}
        self._configured: tuple[int, bool] | None = None
        #: Grows with every change: what was read before it is not remembered after it.
        self._changes = 0
        self._passwords = Passwords()

    async def create(
        self, name: str, *, account_id: str | None = None, password: str | None = None
    ) -> tuple[Account, AccessKey]:
        """Make an account, with a first key that may do everything."""
        if _ID.fullmatch(check_name(name, "account")):
            raise InvalidArgument(f"{name!r} is no account name: it looks like an id.")
        if account_id is None:
            account_id = str(10**11 + secrets.randbelow(9 * 10**11))
        elif not _ID.fullmatch(account_id):
            raise InvalidArgument(f"{account_id!r} is no account id: use 12 digits.")
        if await self._maybe_read(name) is not None:
            raise _taken(name)
        hashed = None if password is None else await self._passwords.hash(password)
        key = await self._new_key(account_id, ALL)
        account = Account(account_id, name, key.created_ms, hashed, {key.id: key})
        try:
            await self._store.put(_ACCOUNT + account_id, _encode(account), expect=0)
        except RecordConflict:
            await self._store.remove(_KEY + key.id)
            raise InvalidArgument(
                f"There is an account with the id {account_id} already."
            ) from None
        try:
            await self._take_name(account)
        except InvalidArgument:
            await self._store.remove(_ACCOUNT + account_id)
            await self._store.remove(_KEY + key.id)
            raise
        finally:
            self._forget()
        return account, key

    async def get(self, account: str) -> Account:
        """The account, or InvalidArgument with the nearest name."""
        return (await self._read(account))[0]

    async def maybe_get(self, account: str) -> Account | None:
        """The account, or None: cheaper than a refusal that suggests another."""
        found = await self._maybe_read(account)
        return None if found is None else found[0]

    async def list(self) -> _Accounts:
        """All accounts, by id."""
        records = await self._store.scan(_ACCOUNT, count_max=ACCOUNTS_MAX)
        return [_decode(record.value) for record in records]

    async def delete(self, account: str) -> None:
        """Forget an account, its keys and grants. Its queues stay."""
        for _ in range(_ATTEMPTS_MAX):
            found, version = await self._read(account)
            try:
                await self._store.remove(_ACCOUNT + found.id, expect=version)
            except RecordConflict:
                continue
            break
        else:
            raise _busy(account)
        self._forget()
        for key in found.keys:
            await self._store.remove(_KEY + key)
        record = await self._store.get(_NAME + found.name)
        if record is not None and record.value.decode() == found.id:
            with contextlib.suppress(RecordConflict):
                await self._store.remove(_NAME + found.name, expect=record.version)

    # -- keys -----------------------------------------------------------------------------------

    async def add_key(self, account: str, roles: Iterable[str] = ALL) -> AccessKey:
        """Give the account one more key, which may do `roles` at most.

        Beyond the limit the oldest revoked key is forgotten; LimitExceeded if none is revoked.
        """
        chosen = check_roles(roles)
        account_id = (await self.get(account)).id
        key = await self._new_key(account_id, chosen)
        gone: list[str] = []

        def add(found: Account) -> Account:
            keys = {**found.keys, key.id: key}
            revoked = [known.id for known in by_age(keys.values()) if not known.active]
            gone[:] = revoked[: max(0, len(keys) - KEYS_MAX)]
            if len(keys) - len(gone) > KEYS_MAX:
                raise LimitExceeded(
                    f"Account {found.name!r} has {KEYS_MAX} keys, which is the most: revoke one."
                )
            return replace(found, keys={k: keys[k] for k in keys if k not in gone})

        try:
            await self._change(account_id, add)
        except (InvalidArgument, LimitExceeded, RecordConflict):
            await self._store.remove(_KEY + key.id)
            raise
        for old in gone:
            await self._store.remove(_KEY + old)
        return key

    async def revoke_key(self, key_id: str) -> AccessKey:
        """Let a key work no more; it stays listed. Repeating it is no error."""
        record = await self._store.get(_KEY + key_id) if _like_a_key(key_id) else None
        if record is None:
            raise InvalidArgument(f"There is no access key {key_id!r}.")

        def revoke(found: Account) -> Account:
            if key_id not in found.keys:
                raise InvalidArgument(f"There is no access key {key_id!r}.")
            revoked = replace(found.keys[key_id], active=False)
            return replace(found, keys={**found.keys, key_id: revoked})

        return (await self._change(record.value.decode(), revoke)).keys[key_id]

    async def find_key(self, key_id: str) -> tuple[Account, AccessKey] | None:
        """The account and the key, if the key may be used; up to a second old."""
        now_ms = self._store.clock.now_ms()
        known = self._keys.get(key_id)
        if known is not None and known[0] > now_ms:
            return known[1]
        changes = self._changes
        found = await self._look_up(key_id)
        if changes == self._changes:
            if len(self._keys) >= _REMEMBER_MAX:
                self._keys.clear()
            self._keys[key_id] = (now_ms + _REMEMBER_MS, found)
        return found

    async def configured(self) -> bool:
        """Whether there is any account; up to a second old."""
        now_ms = self._store.clock.now_ms()
        known = self._configured
        if known is not None and known[0] > now_ms:
            return known[1]
        changes = self._changes
        found = bool(await self._store.scan(_ACCOUNT, count_max=1))
        if changes == self._changes:
            self._configured = (now_ms + _REMEMBER_MS, found)
        return found

    # -- rights, passwords, quotas --------------------------------------------------------------

    async def grant(self, account: str, queue: str, roles: Iterable[str]) -> Account:
        """Allow `roles` on a queue of another account, instead of what was allowed before.

        `queue` is a full name; one that ends in '*' means all queues of that account whose name
        begins so.
        """
        chosen = check_roles(roles)
        owner = _check_granted(queue)

        def add(found: Account) -> Account:
            if found.id == owner:
                raise InvalidArgument(
                    f"{queue!r} belongs to account {found.name!r} itself, which may use it anyway."
                )
            grants = {**found.grants, queue: chosen}
            if len(grants) > GRANTS_MAX:
                raise LimitExceeded(
                    f"Account {found.name!r} has {GRANTS_MAX} grants, which is the most: "
                    "grant a prefix that ends in '*'."
                )
            return replace(found, grants=grants)

        return await self._change(account, add)

    async def ungrant(self, account: str, queue: str) -> Account:
        """Take a grant back."""

        def drop(found: Account) -> Account:
            if queue not in found.grants:
                raise InvalidArgument(
                    f"Account {found.name!r} has no grant on {queue!r} "
                    f"(it has: {', '.join(sorted(found.grants)) or 'none'})."
                )
            return replace(found, grants={k: v for k, v in found.grants.items() if k != queue})

        return await self._change(account, drop)

    async def set_password(self, account: str, password: str | None) -> Account:
        """Give the account another password for the console; None takes it away."""
        account_id = (await self.get(account)).id
        hashed = None if password is None else await self._passwords.hash(password)
        return await self._change(account_id, lambda found: replace(found, password=hashed))

    async def check_password(self, account: str, password: str) -> bool:
        """Whether this is the account's password; takes as long where there is none to check."""
        found = await self._maybe_read(account)
        hashed = found[0].password if found is not None else None
        return await self._passwords.check(hashed, password)

    async def set_console_role(self, account: str, role: str) -> Account:
        """Say what the account's password lets do in the console."""
        if role not in CONSOLE_ROLES:
            raise InvalidArgument(f"{role!r} is no role: use one of {', '.join(CONSOLE_ROLES)}.")
        return await self._change(account, lambda found: replace(found, console_role=role))

    async def set_quota(
        self,
        account: str,
        *,
        requests_per_s: float | UnsetType | None = UNSET,
        bytes_max: int | UnsetType | None = UNSET,
    ) -> Account:
        """Limit requests per second and bytes stored; None for no limit, UNSET for as before."""
        chosen: dict[str, Any] = {}
        if requests_per_s is not UNSET:
            if requests_per_s is not None and not 0 < requests_per_s < math.inf:
                raise InvalidArgument(f"requests_per_s is {requests_per_s}; it must be above 0.")
            chosen["requests_per_s"] = requests_per_s
        if bytes_max is not UNSET:
            if bytes_max is not None and not 0 < bytes_max <= _BYTES_MAX:
                raise InvalidArgument(f"bytes_max is {bytes_max}; it must be 1 to {_BYTES_MAX}.")
            chosen["bytes_max"] = bytes_max
        return await self._change(account, lambda found: replace(found, **chosen))

    # -- inside ---------------------------------------------------------------------------------

    async def _maybe_read(self, account: str) -> tuple[Account, int] | None:
        """The account and the version of its record, or None."""
        account_id = account
        if not _ID.fullmatch(account):
            try:
                named = await self._store.get(_NAME + check_name(account, "account"))
            except InvalidArgument:
                return None
            if named is None:
                return None
            account_id = named.value.decode()
        record = await self._store.get(_ACCOUNT + account_id)
        return None if record is None else (_decode(record.value), record.version)

    async def _read(self, account: str) -> tuple[Account, int]:
        found = await self._maybe_read(account)
        if found is None:
            near = difflib.get_close_matches(account, await self._names_like(account), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidArgument(f"There is no account {account!r}.{hint}")
        return found

    async def _names_like(self, account: str) -> _Names:
        """Names as far as a suggestion needs them: few, however many accounts there are."""
        found = await self._store.scan(_NAME, count_max=_ALIKE_MAX)
        if len(found) == _ALIKE_MAX:
            found = await self._store.scan(_NAME + account[:2], count_max=_ALIKE_MAX)
        return [record.key.removeprefix(_NAME) for record in found]

    async def _change(self, account: str, change: Callable[[Account], Account]) -> Account:
        """Change an account; from the beginning if somebody else did so meanwhile."""
        for _ in range(_ATTEMPTS_MAX):
            found, version = await self._read(account)
            changed = change(found)
            try:
                await self._store.put(_ACCOUNT + found.id, _encode(changed), expect=version)
            except RecordConflict:
                continue
            finally:
                self._forget()
            return changed
        raise _busy(account)

    async def _take_name(self, account: Account) -> None:
        """Have the name lead to the account. A deletion cut short may have left it to nobody."""
        record = await self._store.get(_NAME + account.name)
        if record is not None and await self._maybe_read(record.value.decode()) is not None:
            raise _taken(account.name)
        version = 0 if record is None else record.version
        try:
            await self._store.put(_NAME + account.name, account.id.encode(), expect=version)
        except RecordConflict:
            raise _taken(account.name) from None

    async def _new_key(self, account_id: str, roles: tuple[str, ...]) -> AccessKey:
        key = AccessKey(
            "AKIA" + "".join(secrets.choice(_BASE32) for _ in range(16)),
            "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(40)),
            self._store.clock.now_ms(),
            roles,
        )
        await self._store.put(_KEY + key.id, account_id.encode(), expect=0)
        return key

    async def _look_up(self, key_id: str) -> tuple[Account, AccessKey] | None:
        record = await self._store.get(_KEY + key_id) if _like_a_key(key_id) else None
        found = None if record is None else await self._maybe_read(record.value.decode())
        key = None if found is None else found[0].keys.get(key_id)
        return None if found is None or key is None or not key.active else (found[0], key)

    def _forget(self) -> None:
        self._changes += 1
        self._keys.clear()
        self._configured = None


# -- small things ----------------------------------------------------------------------------------


def _check_granted(queue: str) -> str:
    """The account whose queue, or queues, a grant names."""
    owner, name = owner_of(queue)
    if owner == DEFAULT_ACCOUNT and name.startswith(f"{DEFAULT_ACCOUNT}."):
        plain = name.partition(".")[2]
        raise InvalidArgument(
            f"Queues of account {DEFAULT_ACCOUNT} have plain names: use {plain!r}, not {queue!r}."
        )
    if owner == DEFAULT_ACCOUNT and _ID.fullmatch(name[:-1]) and name[-1] in ".*":
        raise InvalidArgument(
            f"{queue!r} names no queue of account {name[:-1]}: use '{name[:-1]}.*' for all of them."
        )
    if name != "*":
        check_name(name.removesuffix("*"))
    return owner


def _like_a_key(key_id: str) -> bool:
    """Whether this could be a key: anything may come from outside, but not reach the store."""
    return len(key_id) == 20 and key_id.isascii() and key_id.isalnum()


def _taken(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"There is an account {name!r} already: give it one more key, or choose another name."
    )


def _busy(account: str) -> RecordConflict:
    return RecordConflict(f"Account {account!r} is being changed by others: try again.")
