"""Asks Redis processes, many at once, and waits no longer than said.

Management asks seldom and of every process: each question opens a connection of its own, and all
are asked in parallel, because a process that was stopped accepts connections and never answers.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import hiredis

from ringdove.errors import StoreUnavailable
from ringdove.stores.fabric.wire import Login, NodeAddress, NodeLost, ReplyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Command = Sequence[str | int]

#: Seconds that a process gets to answer. A running one takes milliseconds; a machine that starts
#: thirty of them on two cores is slow for a moment.
ANSWER_S = 2.0

#: Processes asked at the same time.
_PARALLEL_MAX = 32

NO_LOGIN = Login()

_NOT_ENOUGH = object()
_pack: Any = hiredis.pack_command


def ask(
    address: NodeAddress,
    *commands: Command,
    login: Login = NO_LOGIN,
    timeout_s: float = ANSWER_S,
) -> list[Any]:
    """The replies to commands, in order; a refusal is a ReplyError among them.

    Raises NodeLost when the process does not answer all of them in time.
    """
    asked = [*entrance(login), *commands]
    deadline_s = time.monotonic() + timeout_s
    reader: Any = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOT_ENOUGH)
    replies: list[Any] = []
    try:
        with connect(address, login, timeout_s) as connection:
            connection.sendall(b"".join(_pack(tuple(command)) for command in asked))
            while len(replies) < len(asked):
                reply = reader.gets()
                if reply is not _NOT_ENOUGH:
                    replies.append(reply)
                    continue
                connection.settimeout(max(0.001, deadline_s - time.monotonic()))
                data = connection.recv(65_536)
                if not data:
                    raise NodeLost(f"Redis at {address} hung up.")
                reader.feed(data)
    except OSError as error:
        raise NodeLost(f"Redis at {address} does not answer: {error}.") from error
    for reply in replies[: len(asked) - len(commands)]:
        if isinstance(reply, ReplyError) and reply.word != "LOADING":
            raise StoreUnavailable(f"Redis at {address} does not let us in: {reply}")
    return replies[len(asked) - len(commands) :]


def connect(address: NodeAddress, login: Login, timeout_s: float) -> socket.socket:
    """A connection to a process."""
    connection = socket.create_connection(address, timeout_s)
    if login.tls is None:
        return connection
    try:
        return login.tls.wrap_socket(connection, server_hostname=address.host)
    except OSError:
        connection.close()
        raise


def entrance(login: Login) -> list[Command]:
    """What to say first."""
    if not login.password:
        return []
    return [("AUTH", login.user, login.password) if login.user else ("AUTH", login.password)]


def ask_each(
    questions: Mapping[NodeAddress, Sequence[Command]],
    login: Login = NO_LOGIN,
    timeout_s: float = ANSWER_S,
) -> dict[NodeAddress, list[Any] | NodeLost]:
    """The replies of several processes, asked at the same time; NodeLost for one that is silent."""

    def answer(address: NodeAddress) -> list[Any] | NodeLost:
        try:
            return ask(address, *questions[address], login=login, timeout_s=timeout_s)
        except NodeLost as error:
            return error

    if not questions:
        return {}
    with ThreadPoolExecutor(min(_PARALLEL_MAX, len(questions))) as pool:
        return dict(zip(questions, pool.map(answer, questions), strict=True))


def demand(address: NodeAddress, *command: str | int, login: Login = NO_LOGIN) -> Any:
    """The reply to one command; a refusal is raised as it is."""
    [reply] = ask(address, command, login=login)
    if isinstance(reply, ReplyError):
        raise reply
    return reply
