"""Commands on queues: create, list, show, set, purge, delete, subscribe."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App, Parameter

from ringdove.cli.flags import Flag, JsonFlag, confirm
from ringdove.cli.output import emit_json, human_age, human_bytes, human_time, say, table
from ringdove.cli.session import connected
from ringdove.cli.values import duration_ms, number, size_bytes
from ringdove.errors import InvalidArgument, QueueNotFound

if TYPE_CHECKING:
    from ringdove.client.sync import Connection
    from ringdove.controllers.broker import QueueStats

app = App(name="queue", help="Make, look at, change and delete queues.")


#: Said where a list of queues would be empty.
NO_QUEUES = "There are no queues. Make one with 'ringdove queue create NAME'."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a queue; those not given keep their defaults."""

    order: Literal["loose", "key", "strict"] | None = None
    "loose: best effort; key: in order per key; strict: in order, one receiver at a time."
    delivery: Literal["at-least-once", "exactly-once"] | None = None
    "exactly-once drops messages that were sent before."
    spread: str | None = None
    "Receive at random among this many of the oldest: 1 to 1000, infinite or auto."
    durability: Literal["disk", "memory"] | None = None
    "disk: a send returns when it is synced; memory: survives a crash, not a power cut."
    copies: int | None = None
    "On a fabric: copies that have a message before it is acknowledged."
    when_short: Literal["degrade", "refuse"] | None = None
    "On a fabric, while fewer copies can be reached: wait for those, or refuse sends."
    stripes: int | None = None
    "Physical queues that share the load."
    lease_ms: str | None = None
    "How long a received message stays hidden, for example 30s."
    delay_ms: str | None = None
    "How long a sent message waits, for example 5m."
    retention_ms: str | None = None
    "How long an unreceived message is kept, for example 4d."
    keep_done_ms: str | None = None
    "How long a finished message stays readable for replay."
    receives_max: str | None = None
    "Receives after which a message goes to the dead-letter queue; none: never."
    dead_letter: str | None = None
    "Name of the dead-letter queue, made by itself when missing; none: no longer any."
    backoff_ms: str | None = None
    "First wait of a released message; doubles with every receive."
    backoff_ms_max: str | None = None
    "Longest wait of a released message."
    bytes_max: str | None = None
    "Bytes that may wait, for example 10GiB."
    when_full: Literal["refuse", "drop-oldest"] | None = None
    "What happens to a send beyond bytes_max."
    body_bytes_max: str | None = None
    "Bytes of one message."
    priority: int | None = None
    "Highest priority a message may have, 0 to 9."
    receive_rate_max: str | None = None
    "Messages per second that each subscription may receive; none: as many as there are."
    dequeue: Literal["wake", "retry", "monitor", "poll"] | None = None
    "What a receive does while the queue is empty."
    dequeue_tries: int | None = None
    "Stripes that a receive tries before it gives up or pauses; wake tries all."
    dequeue_pause_ms: str | None = None
    "The pause of retry, and the period of monitor."
    dedup_ms: str | None = None
    "How long a message id is remembered."
    relay_done: Literal["stored", "consumed"] | None = None
    "A message is done when the next level of brokers has stored it, or when consumed behind it."
    relayed: bool | None = None
    "Only on a copy: false makes it a queue of its own, when its origin is lost for good."

    def chosen(self) -> dict[str, Any]:
        """The settings given, as the library takes them."""
        chosen: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            if value == "none":
                value = None
            elif item.name in ("receives_max", "receive_rate_max"):
                value = number(value)
            elif item.name.endswith("_ms") or item.name == "backoff_ms_max":
                value = duration_ms(value)
            elif item.name in ("bytes_max", "body_bytes_max"):
                value = size_bytes(value)
            elif item.name == "spread":
                value = int(value) if value.isdecimal() else value
            chosen[item.name] = value
        return chosen


@app.command
def create(name: str, settings: Settings | None = None, *, json: JsonFlag = False) -> None:
    """Make a queue. Making it again with the same settings is no error.

    Example: `ringdove queue create readings --order key --receives-max 5`

    Parameters
    ----------
    name
        Letters, digits, '_', '-' and '.'.
    json
        Print JSON.
    """
    with connected(create=True) as connection:
        queue = connection.create_queue(name, **(settings or Settings()).chosen())
        dead_letter = queue.settings().dead_letter
    if json:
        emit_json({"name": name, "dead_letter": dead_letter})
    else:
        say(
            f"Queue {name} is ready."
            + (f" Dead letters go to {dead_letter}." if dead_letter else "")
        )


@app.command(name="list")
def list_queues(prefix: str = "", *, json: JsonFlag = False) -> None:
    """List queues with what they hold.

    Parameters
    ----------
    prefix
        Only names that start with it.
    json
        Print one JSON object per line.
    """
    with connected() as connection:
        found = all_stats(connection, prefix)
    if json:
        for stats in found:
            emit_json(_stats_dict(stats))
        return
    if not found:
        say(NO_QUEUES)
        return
    table(
        None,
        ["queue", "subscription", "waiting", "leased", "delayed", "stored", "size", "oldest"],
        [
            [stats.name, sub, *counts, stats.messages, human_bytes(stats.nbytes),
             human_age(stats.oldest_ms)]
            for stats in found
            for sub, counts in (stats.subscriptions or {"(none)": (0, 0, 0)}).items()
        ],
    )  # fmt: skip


@app.command
def show(name: str, *, json: JsonFlag = False) -> None:
    """Show a queue's settings and state.

    Parameters
    ----------
    name
        The queue.
    json
        Print JSON.
    """
    with connected() as connection:
        queue = connection.queue(name)
        info, stats = queue.info(), queue.stats()
    settings = info.settings.to_dict()
    if json:
        emit_json(_stats_dict(stats) | {"settings": settings, "version": info.version})
        return
    defaults = type(info.settings)().to_dict()
    table(
        f"Queue {name}, made {human_time(info.created_ms)}, settings version {info.version}",
        ["setting", "value", ""],
        [[k, str(v), "" if v == defaults[k] else "changed"] for k, v in settings.items()],
    )
    table(
        None,
        ["subscription", "waiting", "leased", "delayed"],
        [[name, *counts] for name, counts in stats.subscriptions.items()],
    )
    table(
        None,
        ["stripe", "priority", "first offset", "next offset", "size"],
        [
            [s.number, s.level, t.head, t.tail, human_bytes(t.nbytes)]
            for s, t in stats.stripes.items()
        ],
    )


@app.command(name="set")
def change(name: str, settings: Settings | None = None, *, json: JsonFlag = False) -> None:
    """Change settings of a queue; those not given stay.

    Example: `ringdove queue set readings --lease-ms 2m`

    Parameters
    ----------
    name
        The queue.
    json
        Print the new settings as JSON.
    """
    chosen = (settings or Settings()).chosen()
    if not chosen:
        raise InvalidArgument("Name at least one setting to change, for example --lease-ms 1m.")
    with connected() as connection:
        changed = connection.queue(name).configure(**chosen)
    if json:
        emit_json(changed.to_dict())
    else:
        say(f"Queue {name}: " + ", ".join(f"{k} = {getattr(changed, k)}" for k in chosen))


@app.command
def purge(name: str, *, yes: Flag = False) -> None:
    """Drop every message of a queue.

    Parameters
    ----------
    name
        The queue.
    yes
        Do not ask.
    """
    with connected() as connection:
        queue = connection.queue(name)
        confirm(f"Drop all {queue.stats().messages:,} messages of {name}?", yes=yes)
        say(f"Dropped {queue.purge():,} messages.")


@app.command
def delete(name: str, *, yes: Flag = False) -> None:
    """Delete a queue and everything in it.

    Parameters
    ----------
    name
        The queue.
    yes
        Do not ask.
    """
    with connected() as connection:
        messages = connection.queue(name).stats().messages
        confirm(f"Delete {name} with {messages:,} messages?", yes=yes)
        connection.delete_queue(name)
        say(f"Deleted {name}.")


@app.command
def subscribe(
    name: str,
    subscription: str,
    *,
    start: str = "latest",
    keep_default: Flag = False,
) -> None:
    """Add an independent reader group to a queue.

    Parameters
    ----------
    name
        The queue.
    subscription
        Name of the reader group.
    start
        earliest, latest, or an offset.
    keep_default
        Keep the subscription 'default' as well.
    """
    if start not in ("earliest", "latest") and not start.isdecimal():
        raise InvalidArgument(f"{start!r} is no start: use earliest, latest, or an offset.")
    with connected() as connection:
        where: str | int = int(start) if start.isdecimal() else start
        connection.queue(name).subscribe(subscription, where, keep_default=keep_default)
    say(f"Subscription {subscription} of {name} starts at {start}.")


@app.command
def unsubscribe(name: str, subscription: str) -> None:
    """Remove a reader group from a queue."""
    with connected() as connection:
        connection.queue(name).unsubscribe(subscription)
    say(f"Removed subscription {subscription} of {name}.")


def all_stats(connection: Connection, prefix: str = "") -> list[QueueStats]:
    """What queues hold, but for those that are deleted meanwhile."""
    found = []
    for queue in connection.queues(prefix):
        with suppress(QueueNotFound):
            found.append(queue.stats())
    return found


def _stats_dict(stats: QueueStats) -> dict[str, Any]:
    return {
        "name": stats.name,
        "messages": stats.messages,
        "bytes": stats.nbytes,
        "oldest_ms": stats.oldest_ms,
        "subscriptions": {
            name: dict(zip(("waiting", "leased", "delayed"), counts, strict=True))
            for name, counts in stats.subscriptions.items()
        },
    }
