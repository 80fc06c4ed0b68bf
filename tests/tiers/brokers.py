"""Brokers of several levels for tests, and consumers that check what they get."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ringdove
from ringdove.errors import RingdoveError
from server.running import ServerThread, wait_for


@contextmanager
def core_and_edge(tmp_path: Path, **edge: Any) -> Iterator[tuple[ServerThread, ServerThread]]:
    """A core broker, and one of level 1 that pulls from it."""
    with ExitStack() as stack:
        core = stack.enter_context(ServerThread(tmp_path / "core", name="core"))
        chosen = {"upstream": core.url, "level": 1, "name": "edge", **edge}
        yield core, stack.enter_context(ServerThread(tmp_path / "edge", **chosen))


def copied(connection: ringdove.Connection, name: str, count: int) -> ringdove.Queue:
    """The copy of a queue, once so many messages have come."""

    def there() -> ringdove.Queue | None:
        try:
            queue = connection.queue(name)
            stripes = queue.stats().stripes.values()
        except RingdoveError:
            return None
        return queue if sum(stripe.tail for stripe in stripes) >= count else None

    return wait_for(there, f"{count} messages of {name} at the copy")


def bodies(start: int, stop: int) -> list[bytes]:
    """Numbered bodies."""
    return [b"%d" % number for number in range(start, stop)]


def finds_it_has_more(broker: ServerThread, name: str) -> None:
    """Wait until a broker's relay knows that its upstream has less of a queue than itself."""
    pulled = broker.server.relay.pulled
    wait_for(
        lambda: "has to catch up" in getattr(pulled.get(name), "reason", ""),
        "the relay to find that its upstream has less",
    )


def drain(queue: ringdove.Queue, subscription: str, count: int) -> list[bytes]:
    """So many messages of a stream, in the order in which they came."""
    found: list[bytes] = []
    with queue.stream(subscription, wait=30) as stream:
        for batch in stream:
            found += [message.body for message in batch]
            if len(found) >= count:
                stream.ack(batch)
                break
    return found
