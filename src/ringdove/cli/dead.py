"""Commands on dead letters: list, show, redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ringdove.cli.flags import JsonFlag
from ringdove.cli.output import emit_json, human_time, message_dict, progress, say, table
from ringdove.cli.session import connected
from ringdove.errors import InvalidArgument, QueueNotFound

if TYPE_CHECKING:
    from ringdove.client.sync import Connection, Queue

app = App(name="dead", help="Look at dead letters, and send them back.")


@app.command(name="list")
def list_dead(*, json: JsonFlag = False) -> None:
    """List queues with dead letters.

    Parameters
    ----------
    json
        Print one JSON object per line.
    """
    with connected() as connection:
        rows = []
        for queue in connection.queues():
            try:
                target = queue.settings().dead_letter
            except QueueNotFound:
                continue  # Deleted since it was listed.
            if target is None:
                continue
            try:
                stats = connection.queue(target).stats()
            except QueueNotFound:
                rows.append([queue.name, target, 0, "there is no such queue: make it again"])
            else:
                rows.append([queue.name, target, stats.waiting(), human_time(stats.oldest_ms)])
    if json:
        for row in rows:
            emit_json(dict(zip(("queue", "dead_letter", "waiting"), row, strict=False)))
    elif rows:
        table(None, ["queue", "dead-letter queue", "dead letters", "oldest"], rows)
    else:
        say("No queue has a dead-letter queue. Give one with --receives-max or --dead-letter.")


@app.command
def show(
    queue: str, *, max: Annotated[int, Parameter(name=["--max", "-n"])] = 10, json: JsonFlag = False
) -> None:
    """Show dead letters of a queue, with the reason.

    Parameters
    ----------
    queue
        The queue they came from, or the dead-letter queue itself.
    max
        The most to show.
    json
        Print one JSON object per message.
    """
    from ringdove.controllers.deadletter import AT_MS, REASON, SOURCE
    from ringdove.core.stripe import DEFAULT_SUBSCRIPTION

    with connected() as connection:
        found = _dead_letter_queue(connection, queue)
        names = found.subscriptions()
        plain = DEFAULT_SUBSCRIPTION in names or not names
        name = DEFAULT_SUBSCRIPTION if plain else names[0]
        letters = list(found.peek(max, subscription=name))
    if json:
        for letter in letters:
            emit_json(message_dict(letter, receipt=False))
        return
    table(
        None,
        ["offset", "from", "reason", "died", "body"],
        [
            [
                letter.offset,
                letter.attributes.get(SOURCE),
                letter.attributes.get(REASON),
                human_time(died) if isinstance(died, int) else "",
                letter.body[:60].decode(errors="backslashreplace"),
            ]
            for letter, died in ((letter, letter.attributes.get(AT_MS)) for letter in letters)
        ],
    )


@app.command
def redrive(queue: str, *, to: str | None = None, max: int | None = None) -> None:
    """Send dead letters back to the queue they came from.

    Parameters
    ----------
    queue
        The queue they came from, or the dead-letter queue itself.
    to
        Send them to this queue instead.
    max
        The most to send.
    """
    with connected() as connection:
        letters = _dead_letter_queue(connection, queue)
        with progress("sending back", letters.stats().waiting()) as show_done:
            moved = letters.redrive(to, max, show_done)
    say(f"Sent {moved:,} dead letters of {letters.name} back.")


def _dead_letter_queue(connection: Connection, name: str) -> Queue:
    queue = connection.queue(name)
    target = queue.settings().dead_letter
    if target is not None:
        return connection.queue(target)
    sources = [q.name for q in connection.queues() if q.settings().dead_letter == name]
    if not sources:
        raise InvalidArgument(
            f"Queue {name!r} has no dead-letter queue and is none. "
            f"Give it one: ringdove queue set {name} --receives-max 5"
        )
    return queue
