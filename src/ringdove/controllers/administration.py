"""Accounts administered by commands that may come from elsewhere: plain values in and out.

Nothing secret is told, but for the secret of a key just made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from ringdove.controllers.accounts import ALL, by_age
from ringdove.errors import InvalidArgument

if TYPE_CHECKING:
    from ringdove.controllers.accounts import AccessKey, Account, Accounts


async def administer(accounts: Accounts, command: str, arguments: dict[str, Any]) -> Any:
    """Carry out a command, perhaps from elsewhere; what may be told of the result."""
    ask = _parse(command, arguments)
    told: Any = None
    match command:
        case "create":
            password = None if ask.password is UNSET else ask.password
            account, key = await accounts.create(ask.name, account_id=ask.id, password=password)
            told = {**_describe(account), "key": {**_describe_key(key), "secret": key.secret}}
        case "list":
            told = [_describe(account) for account in await accounts.list()]
        case "get":
            told = _describe(await accounts.get(ask.account))
        case "delete":
            await accounts.delete(ask.account)
        case "add_key":
            roles = ALL if ask.roles is None else ask.roles
            key = await accounts.add_key(ask.account, roles)
            told = {**_describe_key(key), "secret": key.secret}
        case "revoke_key":
            told = _describe_key(await accounts.revoke_key(ask.key))
        case "grant":
            told = _describe(await accounts.grant(ask.account, ask.queue, ask.roles or ()))
        case "ungrant":
            told = _describe(await accounts.ungrant(ask.account, ask.queue))
        case "set_password" | "set_console_role" | "set_quota":
            told = _describe(await _set(accounts, command, ask))
        case _:
            raise InvalidArgument(f"There is no command {command!r} on accounts.")
    return told


def _describe(account: Account) -> dict[str, Any]:
    """What may be told of an account: everything but its secrets and its password."""
    return {
        "id": account.id,
        "name": account.name,
        "created_ms": account.created_ms,
        "password": account.password is not None,
        "keys": [_describe_key(key) for key in by_age(account.keys.values())],
        "grants": {queue: list(account.grants[queue]) for queue in sorted(account.grants)},
        "requests_per_s": account.requests_per_s,
        "bytes_max": account.bytes_max,
        "console_role": account.console_role,
    }


def _describe_key(key: AccessKey) -> dict[str, Any]:
    """What may be told of a key."""
    return {
        "id": key.id,
        "created_ms": key.created_ms,
        "roles": list(key.roles),
        "active": key.active,
    }


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of all commands; each takes those of the method of its name."""

    account: str = ""
    name: str = ""
    id: str | None = None
    password: str | UnsetType | None = UNSET
    key: str = ""
    queue: str = ""
    roles: list[str] | None = None
    role: str = ""
    requests_per_s: float | UnsetType | None = UNSET
    bytes_max: int | UnsetType | None = UNSET


def _parse(command: str, arguments: dict[str, Any]) -> _Arguments:
    try:
        return msgspec.convert(arguments, _Arguments)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"The arguments of {command!r} are wrong: {error}.") from error


async def _set(accounts: Accounts, command: str, ask: _Arguments) -> Account:
    if command == "set_console_role":
        return await accounts.set_console_role(ask.account, ask.role)
    if command == "set_quota":
        return await accounts.set_quota(
            ask.account, requests_per_s=ask.requests_per_s, bytes_max=ask.bytes_max
        )
    if ask.password is UNSET:
        raise InvalidArgument("Say which password; null takes it away.")
    return await accounts.set_password(ask.account, ask.password)
