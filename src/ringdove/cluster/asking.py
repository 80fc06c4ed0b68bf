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

from ringdove.stores.fabric.wire import NodeAddress, NodeLost, ReplyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Command = Sequence[str | int]

#: Seconds that a process gets to answer. A running one takes milliseconds; a machine that starts
#: thirty of them on two cores is slow for a moment.
ANSWER_S = 2.0

#: Processes asked at the same time.
_PARALLEL_MAX = 32

_NOT_ENOUGH = object()
_pack: Any = hiredis.pack_command


def ask(address: NodeAddress, *commands: Command, timeout_s: float = ANSWER_S) -> list[Any]:
    """The replies to commands, in order; a refusal is a ReplyError among them.

    Raises NodeLost when the process does not answer all of them in time.
    """
    deadline_s = time.monotonic() + timeout_s
    reader: Any = hiredis.Reader(replyError=ReplyError, notEnoughData=_NOT_ENOUGH)
    replies: list[Any] = []
    try:
        with socket.create_connection(address, timeout_s) as connection:
            connection.sendall(b"".join(_pack(tuple(command)) for command in commands))
            while len(replies) < len(commands):
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
    return replies


def ask_each(
    questions: Mapping[NodeAddress, Sequence[Command]], timeout_s: float = ANSWER_S
) -> dict[NodeAddress, list[Any] | NodeLost]:
    """The replies of several processes, asked at the same time; NodeLost for one that is silent."""

    def answer(address: NodeAddress) -> list[Any] | NodeLost:
        try:
            return ask(address, *questions[address], timeout_s=timeout_s)
        except NodeLost as error:
            return error

    if not questions:
        return {}
    with ThreadPoolExecutor(min(_PARALLEL_MAX, len(questions))) as pool:
        return dict(zip(questions, pool.map(answer, questions), strict=True))


def demand(address: NodeAddress, *command: str | int) -> Any:
    """The reply to one command; a refusal is raised as it is."""
    [reply] = ask(address, command)
    if isinstance(reply, ReplyError):
        raise reply
    return reply
