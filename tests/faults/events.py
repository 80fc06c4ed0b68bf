"""What a process under test writes down: what it is about to do with a store, and what came back.

One event per line of a file, each written with one `os.write`, so that a SIGKILL loses nothing
that was written. Message bodies are a function of their operation's number, so every byte that
comes back can be verified without having been stored elsewhere.
"""

import os
from hashlib import blake2b
from pathlib import Path
from random import Random

import msgspec

Stripe = tuple[int, int, int]

#: Different keys of a queue.
KEYS = 4


class Event(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Something that a process under test did."""


class Opened(Event, frozen=True):
    """The store is open and its queues are there."""


class Sending(Event, frozen=True):
    """Before an append: the sizes of its bodies by segment, its place in a producer's sequence."""

    op: int
    stripe: Stripe
    sizes: list[list[int]]
    producer: str = ""
    sequence: int = 0


class Sent(Event, frozen=True):
    """An append returned, with the offsets of its segments, -1 where the store forgot them."""

    op: int
    bases: list[int]


class Refused(Event, frozen=True):
    """An append failed with the promise that nothing was stored."""

    op: int


class Leased(Event, frozen=True):
    """A lease returned messages from offset `lo` on; runs of one delivery have its number."""

    stripe: Stripe
    subscription: str
    lo: int
    digests: list[str]
    delivery: int = 0


class Acknowledging(Event, frozen=True):
    """Before an acknowledge: [lo, hi) may be done from now on."""

    stripe: Stripe
    subscription: str
    lo: int
    hi: int


class Acknowledged(Event, frozen=True):
    """An acknowledge returned: [lo, hi) is done for good."""

    stripe: Stripe
    subscription: str
    lo: int
    hi: int


class Releasing(Event, frozen=True):
    """Before a release: [lo, hi) may be leased again."""

    stripe: Stripe
    subscription: str
    lo: int
    hi: int


class Putting(Event, frozen=True):
    """Before a record is written: what it may hold from now on."""

    key: str
    digest: str


class Put(Event, frozen=True):
    """A record was written, as this version of it."""

    key: str
    digest: str
    version: int


class Crash(Event, frozen=True):
    """The process is gone, and its leases with it."""


class Trouble(Event, frozen=True):
    """Something happened that never should, in words."""

    text: str


AnyEvent = (
    Opened | Sending | Sent | Refused | Leased | Acknowledging | Acknowledged | Releasing | Putting
    | Put | Crash | Trouble
)  # fmt: skip
_decode = msgspec.json.Decoder(AnyEvent).decode


def body(op: int, number: int, size: int) -> bytes:
    """The body of message `number` of an operation, which no other message has."""
    seed = blake2b(f"{op} {number}".encode(), digest_size=32).digest()
    return (seed * (size // len(seed) + 1))[: max(size, 8)]


def bodies(sending: Sending) -> list[list[bytes]]:
    """All bodies of an operation, by segment."""
    numbers = iter(range(sum(map(len, sending.sizes))))
    return [[body(sending.op, next(numbers), size) for size in sizes] for sizes in sending.sizes]


def keys(sending: Sending) -> list[list[bytes]]:
    """The keys of an operation's messages, by segment; for queues that have keys."""
    rng = Random(sending.op)
    return [[b"key %d" % rng.randrange(KEYS) for _ in sizes] for sizes in sending.sizes]


def digest(content: bytes) -> str:
    """A short name of a body."""
    return blake2b(content, digest_size=8).hexdigest()


class Diary:
    """An append-only file of events, which several threads may write."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, event: Event) -> None:
        """Write one event, whole."""
        os.write(self._fd, msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def read_events(path: Path, start: int = 0) -> tuple[list[AnyEvent], int]:
    """The events from byte `start` on, and where the next call starts. A torn last line is left."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    return [_decode(line) for line in whole.splitlines()], start + len(whole)
