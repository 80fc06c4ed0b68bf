"""What a commit changes, as puts and deletes: recorded here, shipped, applied to another directory.

A standby's directory is an exact copy because it is told what was written, not what was meant:
messages, done runs, leases, sequences, records are all entries of databases. While a standby
follows, the writer's transaction is wrapped by a `RecordingTxn`; without one nobody pays for it.

A copy of what was there before is made from the same edits, a piece at a time in the order of
databases and keys, while commits go on. Commits ship what they change at or below the place that
the copy has reached (`Progress`); what they change above it, the copy finds when it gets there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import lmdb

from ringdove.errors import RemoteProtocolError
from ringdove.stores.embedded.environment import DATABASES, translated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringdove.core.columns import Buffer
    from ringdove.core.settings import Durability
    from ringdove.errors import RingdoveError
    from ringdove.stores.embedded.environment import Environment
    from ringdove.stores.embedded.store import EmbeddedStore
    from ringdove.stores.embedded.writer import Writer

#: Number of a database in DATABASES, key, and value; None deletes.
Edit = tuple[int, bytes, "Buffer | None"]


class Shipping(Protocol):
    """Takes commits to a standby. Called by whoever leads a commit."""

    def send(self, durability: Durability, edits: list[Edit]) -> None:
        """Send the edits of a commit, without waiting."""
        ...

    def confirm(self, durability: Durability) -> RingdoveError | None:
        """Wait until what was sent is on the standby, or the standby is recorded out.

        Answers what senders are told instead of success, if a standby is required. Raises when
        nothing may be acknowledged any more.
        """
        ...


class Oversight(Protocol):
    """Decides whether a store may be used at all, at this moment."""

    def check(self) -> None:
        """Raise if nothing may be served."""
        ...

    def check_append(self) -> None:
        """Raise if nothing may be appended."""
        ...


class Parcel:
    """What one commit ships."""

    def __init__(self, env: Environment, shipping: Shipping) -> None:
        self.edits: list[Edit] = []
        self._env = env
        self._shipping = shipping
        self._sent = False

    def send(self) -> None:
        """Ship the edits: the transaction is about to be committed."""
        self._sent = True
        self._shipping.send(self._env.durability, self.edits)

    def confirm(self) -> RingdoveError | None:
        """See Shipping."""
        return self._shipping.confirm(self._env.durability)

    def take_back(self) -> RingdoveError | None:
        """The transaction has failed: have the standby put back what is here."""
        if not self._sent:
            return None
        self._shipping.send(self._env.durability, current(self._env, self.edits))
        return self.confirm()


class RecordingTxn:
    """An LMDB transaction that remembers what is put and deleted."""

    __slots__ = ("_edits", "_numbers", "_txn", "get")

    def __init__(self, txn: Any, env: Environment, edits: list[Edit]) -> None:
        self._txn = txn
        self._numbers = {id(env.db[name]): number for number, name in enumerate(DATABASES)}
        self._edits = edits
        self.get = txn.get

    def put(self, key: bytes, value: Buffer, db: Any) -> bool:
        """See lmdb.Transaction."""
        self._edits.append((self._numbers[id(db)], key, value))
        return bool(self._txn.put(key, value, db=db))

    def delete(self, key: bytes, db: Any) -> bool:
        """See lmdb.Transaction."""
        self._edits.append((self._numbers[id(db)], key, None))
        return bool(self._txn.delete(key, db=db))

    def cursor(self, db: Any) -> RecordingCursor:
        """See lmdb.Transaction."""
        return RecordingCursor(self._txn.cursor(db), self._numbers[id(db)], self._edits)


class RecordingCursor:
    """A cursor of a `RecordingTxn`."""

    __slots__ = ("_cursor", "_edits", "_number", "key", "next", "set_range", "value")

    def __init__(self, cursor: Any, number: int, edits: list[Edit]) -> None:
        self._cursor = cursor
        self._number = number
        self._edits = edits
        self.key = cursor.key
        self.next = cursor.next
        self.set_range = cursor.set_range
        self.value = cursor.value

    def delete(self) -> bool:
        """See lmdb.Cursor."""
        self._edits.append((self._number, bytes(self._cursor.key()), None))
        return bool(self._cursor.delete())


class Place(NamedTuple):
    """An entry of an environment, in the order in which it is copied."""

    database: int
    key: bytes


START = Place(0, b"")
END = Place(len(DATABASES), b"")


class Progress:
    """How far the copy of each environment has come. Changed only while its commits are paused."""

    def __init__(self) -> None:
        self._places: dict[Durability, Place] = {}

    def begin(self, durability: Durability) -> None:
        """Nothing is copied yet of an environment that was there before."""
        self._places[durability] = START

    def advance(self, durability: Durability, place: Place) -> None:
        """Everything up to `place` is copied."""
        self._places[durability] = place

    def due(self, durability: Durability, edits: list[Edit]) -> list[Edit]:
        """Those of a commit's edits that the copy will not come by."""
        place = self._places.get(durability, END)
        if place is END:
            return edits
        return [edit for edit in edits if edit[:2] <= place]


def attach(store: EmbeddedStore, shipping: Shipping, progress: Progress) -> list[Writer]:
    """Ship every commit from now on; answers the writers whose environments must be copied.

    Blocks while commits are under way: not for an event loop.
    """
    writers = store.share(shipping)
    for writer in writers:
        with writer.paused():
            progress.begin(writer.env.durability)
            writer.shipping = shipping
    return writers


def detach(store: EmbeddedStore) -> None:
    """Ship no more. Blocks likewise."""
    for writer in store.share(None):
        with writer.paused():
            writer.shipping = None


def read_on(env: Environment, after: Place, bytes_max: int) -> tuple[list[Edit], Place]:
    """The next entries behind `after`, about `bytes_max` of them, and the last one's place."""
    edits: list[Edit] = []
    try:
        with env.lmdb.begin() as txn:
            for number in range(after.database, len(DATABASES)):
                start = after.key + b"\0" if after.key and number == after.database else b""
                cursor = txn.cursor(env.db[DATABASES[number]])
                found = cursor.set_range(start)
                while found:
                    key, value = cursor.item()
                    edits.append((number, key, value))
                    bytes_max -= len(key) + len(value)
                    if bytes_max <= 0:
                        return edits, Place(number, key)
                    found = cursor.next()
    except lmdb.Error as error:
        raise translated(error, env.path) from error
    return edits, END


def current(env: Environment, edits: Iterable[Edit]) -> list[Edit]:
    """Edits that give the keys of others the values that they have now."""
    with env.lmdb.begin() as txn:
        places = dict.fromkeys((number, key) for number, key, _ in edits)
        return [(n, key, txn.get(key, db=env.db[DATABASES[n]])) for n, key in places]


def apply_edits(env: Environment, edits: Iterable[Edit]) -> None:
    """Do in one transaction what a commit did elsewhere."""
    databases = dict(enumerate(env.db[name] for name in DATABASES))
    try:
        with env.lmdb.begin(write=True) as txn:
            for number, key, value in edits:
                if value is None:
                    txn.delete(key, db=databases[number])
                else:
                    txn.put(key, value, db=databases[number])
    except KeyError as error:
        raise RemoteProtocolError(
            f"There is no database {error}: is the primary of a later version than this standby?"
        ) from error
    except lmdb.Error as error:
        raise translated(error, env.path) from error
