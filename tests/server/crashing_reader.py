"""A reader that keeps its position together with its effect, and dies at any point (M1).

    python crashing_reader.py URL DATABASE STRIPES SEED PROBABILITY

Ends with 0 when it has seen the end of every stripe, with 9 when it died, with 1 when nothing came.
"""

import os
import random
import sqlite3
import sys

import ringdove

DIED = 9


def open_database(path: str) -> sqlite3.Connection:
    """The effects, in the order they took place, and the position after them."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("CREATE TABLE IF NOT EXISTS seen (stripe, place, body)")
    database.execute("CREATE TABLE IF NOT EXISTS kept (position, fence)")
    return database


def main(url: str, path: str, stripes: int, seed: int, probability: float) -> int:
    chance = random.Random(seed)
    database = open_database(path)

    def perhaps_die() -> None:
        if chance.random() < probability:
            os._exit(DIED)

    kept = database.execute("SELECT position, fence FROM kept").fetchone()
    position, fence = kept or (None, 0)
    with (
        ringdove.connect(url, silence_s=1) as rd,
        rd.queue("q").stream(position=position, owner="reader", wait=3) as stream,
    ):
        if stream.fence <= fence:
            return 2
        for batch in stream:
            perhaps_die()
            database.execute("BEGIN")
            for chunk in batch.chunks():
                database.executemany(
                    "INSERT INTO seen VALUES (?, ?, ?)",
                    zip(
                        [chunk.stripe.number] * (chunk.hi - chunk.lo),
                        range(chunk.lo, chunk.hi),
                        batch.bodies(),
                        strict=True,
                    ),
                )
            perhaps_die()
            database.execute("DELETE FROM kept")
            database.execute("INSERT INTO kept VALUES (?, ?)", (stream.position, stream.fence))
            perhaps_die()
            database.execute("COMMIT")
            perhaps_die()
            ended = "SELECT count(DISTINCT stripe) FROM seen WHERE body = ?"
            if database.execute(ended, (b"end",)).fetchone()[0] == stripes:
                return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), float(sys.argv[5])))
