"""Commands on accounts: create, list, show, delete, keys, grants, passwords, quotas."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from ringdove.cli.flags import Flag, JsonFlag, confirm
from ringdove.cli.output import emit_json, human_bytes, human_time, say, table
from ringdove.cli.session import connected
from ringdove.cli.values import size_bytes
from ringdove.errors import InvalidArgument

app = App(name="account", help="Accounts: who may use which queues, with which keys.")
key_app = App(name="key", help="Access keys of accounts.")
app.command(key_app)


@app.command
def create(
    name: str,
    *,
    id: Annotated[str | None, Parameter(name="--id")] = None,
    password_stdin: Flag = False,
    json: JsonFlag = False,
) -> None:
    """Make an account with a first access key. Its secret is shown this once.

    From the first account on, front ends that know accounts want signed requests.

    Example: `ringdove account create shop`

    Parameters
    ----------
    name
        Letters, digits, '_', '-' and '.'.
    id
        Twelve digits; by default random ones. 000000000000 owns the queues with plain names.
    password_stdin
        Read a password for the console from standard input.
    json
        Print JSON.
    """
    chosen = {"password": _read_password()} if password_stdin else {}
    made = _ask("create", create=True, name=name, id=id, **chosen)
    if json:
        emit_json(made)
        return
    _show_key(f"{made['id']} {name}", made["key"])


@app.command(name="list")
def list_accounts(*, json: JsonFlag = False) -> None:
    """List accounts.

    Parameters
    ----------
    json
        Print one JSON object per line.
    """
    accounts = _ask("list")
    if json:
        for account in accounts:
            emit_json(account)
    elif accounts:
        table(
            None,
            ["account", "name", "made", "keys", "grants", "password", "requests/s", "bytes"],
            [
                [a["id"], a["name"], human_time(a["created_ms"]),
                 sum(key["active"] for key in a["keys"]), len(a["grants"]),
                 "yes" if a["password"] else "", *_quotas(a)]
                for a in accounts
            ],
        )  # fmt: skip
    else:
        say("There are no accounts. Make one with 'ringdove account create NAME'.")


@app.command
def show(account: str, *, json: JsonFlag = False) -> None:
    """Show an account with its keys and grants, without secrets.

    Parameters
    ----------
    account
        Its id or name.
    json
        Print JSON.
    """
    found = _ask("get", account=account)
    if json:
        emit_json(found)
        return
    requests_per_s, nbytes = _quotas(found)
    table(
        f"Account {found['name']}, made {human_time(found['created_ms'])}",
        ["account", found["id"]],
        [
            ["requests per second", requests_per_s],
            ["bytes stored", nbytes],
            ["password", "yes" if found["password"] else "none"],
            ["console role", found["console_role"]],
        ],
    )
    _key_table([found])
    if found["grants"]:
        table(
            None,
            ["granted on", "roles"],
            [[queue, ", ".join(roles)] for queue, roles in found["grants"].items()],
        )


@app.command
def delete(account: str, *, yes: Flag = False, json: JsonFlag = False) -> None:
    """Delete an account with its keys and grants. Its queues stay.

    Parameters
    ----------
    account
        Its id or name.
    yes
        Do not ask.
    json
        Print JSON.
    """
    found = _ask("get", account=account)
    confirm(f"Delete account {found['id']} {found['name']} and its keys?", yes=yes)
    _ask("delete", account=found["id"])
    if json:
        emit_json({"deleted": found["id"]})
    else:
        say(f"Deleted account {found['id']} {found['name']}.")


@app.command
def grant(account: str, queue: str, roles: str, *, json: JsonFlag = False) -> None:
    """Allow an account to use a queue of another, instead of what it was allowed there before.

    Example: `ringdove account grant shop 123456789012.orders send,receive`

    Parameters
    ----------
    account
        Who may; its id or name.
    queue
        OWNER.QUEUE, or a plain name of the default account; with '*' at the end all that begin so.
    roles
        Some of send, receive and manage, with commas; or all.
    json
        Print the account as JSON.
    """
    changed = _ask("grant", account=account, queue=queue, roles=_roles(roles))
    told = ", ".join(changed["grants"][queue])
    _tell(changed, f"Account {changed['name']} may {told} on {queue}.", json)


@app.command
def ungrant(account: str, queue: str, *, json: JsonFlag = False) -> None:
    """Take a grant back.

    Parameters
    ----------
    account
        Its id or name.
    queue
        As it was granted.
    json
        Print the account as JSON.
    """
    changed = _ask("ungrant", account=account, queue=queue)
    _tell(changed, f"Account {changed['name']} has no grant on {queue} any more.", json)


@app.command
def password(
    account: str, *, stdin: Flag = False, remove: Flag = False, json: JsonFlag = False
) -> None:
    """Set the password for the console.

    Example: `ringdove account password shop --stdin < secret.txt`

    Parameters
    ----------
    account
        Its id or name.
    stdin
        Read it from standard input: the first line. Otherwise you are asked.
    remove
        Take the password away.
    json
        Print the account as JSON.
    """
    if stdin and remove:
        raise InvalidArgument("Give --stdin or --remove, not both.")
    chosen = None if remove else _read_password() if stdin else _ask_password()
    changed = _ask("set_password", account=account, password=chosen)
    done = "no password any more" if remove else "a new password"
    _tell(changed, f"Account {changed['name']} has {done}.", json)


@app.command
def quota(
    account: str,
    *,
    requests_per_s: str | None = None,
    bytes: Annotated[str | None, Parameter(name="--bytes")] = None,
    json: JsonFlag = False,
) -> None:
    """Limit what an account may use. What is not given stays as it is.

    Example: `ringdove account quota shop --requests-per-s 100 --bytes 10GiB`

    Parameters
    ----------
    account
        Its id or name.
    requests_per_s
        Requests per second, or none.
    bytes
        Bytes stored in its queues, for example 10GiB, or none.
    json
        Print the account as JSON.
    """
    chosen: dict[str, Any] = {}
    if requests_per_s is not None:
        chosen["requests_per_s"] = None if requests_per_s == "none" else _number(requests_per_s)
    if bytes is not None:
        chosen["bytes_max"] = None if bytes == "none" else size_bytes(bytes)
    if not chosen:
        raise InvalidArgument("Give --requests-per-s or --bytes; 'none' lifts a limit.")
    changed = _ask("set_quota", account=account, **chosen)
    rate, nbytes = _quotas(changed)
    _tell(changed, f"Account {changed['name']}: requests/s {rate}, bytes {nbytes}.", json)


@app.command
def role(account: str, role: str, *, json: JsonFlag = False) -> None:
    """Say what the account's password lets do in the console.

    A viewer looks at the queues that the account may use, an operator does all that the account
    may, an admin all that the server's token allows.

    Example: `ringdove account role shop viewer`

    Parameters
    ----------
    account
        Its id or name.
    role
        viewer, operator (as every account at first) or admin.
    json
        Print the account as JSON.
    """
    changed = _ask("set_console_role", account=account, role=role)
    _tell(changed, f"Account {changed['name']} is {changed['console_role']} in the console.", json)


@key_app.command
def add(account: str, *, only: str = "all", json: JsonFlag = False) -> None:
    """Make one more access key. Its secret is shown this once.

    To rotate: add a key, give it to your programs, revoke the old one.

    Parameters
    ----------
    account
        Its id or name.
    only
        What the key may do at most: some of send, receive and manage, with commas.
    json
        Print JSON.
    """
    made = _ask("add_key", account=account, roles=_roles(only))
    if json:
        emit_json(made)
    else:
        _show_key(account, made)


@key_app.command
def revoke(key: str, *, json: JsonFlag = False) -> None:
    """Let an access key work no more.

    Parameters
    ----------
    key
        Its id, AKIA...
    json
        Print JSON.
    """
    revoked = _ask("revoke_key", key=key)
    _tell(revoked, f"Key {key} does not work any more.", json)


@key_app.command(name="list")
def list_keys(account: str | None = None, *, json: JsonFlag = False) -> None:
    """List access keys, without secrets.

    Parameters
    ----------
    account
        Only those of this account, by id or name.
    json
        Print one JSON object per line.
    """
    accounts = _ask("list") if account is None else [_ask("get", account=account)]
    if json:
        for found in accounts:
            for key in found["keys"]:
                emit_json({"account": found["id"], **key})
    else:
        _key_table(accounts)


def _ask(command: str, *, create: bool = False, **arguments: Any) -> Any:
    from ringdove.pending import run

    with connected(create=create) as connection:
        return run(connection.backend.account(command, arguments))


def _tell(result: dict[str, Any], text: str, json: bool) -> None:
    if json:
        emit_json(result)
    else:
        say(text)


def _show_key(account: str, key: dict[str, Any]) -> None:
    table(
        None,
        ["account", account],
        [
            ["access key id", key["id"]],
            ["secret access key", key["secret"]],
            ["roles", ", ".join(key["roles"])],
        ],
    )
    say("Keep the secret: it is not shown again.")


def _key_table(accounts: list[dict[str, Any]]) -> None:
    table(
        None,
        ["account", "access key id", "made", "roles", "state"],
        [
            [account["name"], key["id"], human_time(key["created_ms"]), ", ".join(key["roles"]),
             "active" if key["active"] else "revoked"]
            for account in accounts
            for key in account["keys"]
        ],
    )  # fmt: skip


def _quotas(account: dict[str, Any]) -> tuple[str, str]:
    rate, nbytes = account["requests_per_s"], account["bytes_max"]
    return (
        "no limit" if rate is None else f"{rate:g}",
        "no limit" if nbytes is None else human_bytes(nbytes),
    )


def _roles(text: str) -> list[str]:
    from ringdove.controllers.accounts import ALL, check_roles

    return list(check_roles(ALL if text == "all" else map(str.strip, text.split(","))))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is no number: write for example 100, or none.") from None


def _read_password() -> str:
    import sys

    line = sys.stdin.buffer.readline().rstrip(b"\r\n")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("The password on standard input is no UTF-8 text.") from None
    if not text:
        raise InvalidArgument("There is no password on standard input.")
    return text


def _ask_password() -> str:
    import sys
    from getpass import getpass

    if not sys.stdin.isatty():
        raise InvalidArgument("Say --stdin to read the password from standard input.")
    text = getpass("Password: ")
    if getpass("Again: ") != text:
        raise InvalidArgument("These are two passwords. Nothing was done.")
    return text
