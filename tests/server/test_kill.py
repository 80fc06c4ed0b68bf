"""A server is killed under full load again and again, and its clients never notice (M2, M3, M6).

5 kills by default; `RINGDOVE_SERVER_KILLS=300` for torture.
"""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ringdove.client.delivery import MessageId
from ringdove.stores.base import StripeId
from server.onslaught import LOOSE, ONCE, Onslaught
from server.reckoning import Block, Delivery, Evidence, Kill, Row, check, repeated

KILLS = int(os.environ.get("RINGDOVE_SERVER_KILLS", "5"))


def test_a_killed_server_breaks_no_promise(tmp_path: Path, record_property: Callable) -> None:
    """Nothing is lost, nothing repeated that must not be, and the stream is exact."""
    onslaught = Onslaught(tmp_path / "data", Random(31))
    onslaught.run(KILLS)
    seen = onslaught.seen
    figures = {
        "kills": len(seen.kills),
        "blocks": len(seen.blocks),
        "messages": sum(len(block.bodies) for block in seen.blocks),
        "blocks under way at a kill": sum(
            bool(b.kills(seen.kills)) for b in seen.blocks if b.done_s
        ),
        "repeated in at-least-once": repeated(seen.logs[LOOSE]),
        "repeated in exactly-once": repeated(seen.logs[ONCE]),
        "streamed": len(seen.applied),
        "streams opened": len(seen.fences),
        "streams that lost their claim": onslaught.reopened,
        "acknowledgements refused": onslaught.refused,
        "longest restart_s": round(onslaught.restart_s, 2),
    }
    print(figures)
    record_property("figures", figures)
    assert check(seen, {ONCE}, ONCE) == []
    assert figures["blocks under way at a kill"] >= KILLS, "the kills hardly ever hit a send"
    assert figures["streamed"] > KILLS


# -- the checker finds what it is there for -----------------------------------------------------

STRIPE = StripeId(1, 0, 0)


def flawless() -> Evidence:
    """Two messages in one block, sent over a kill, received, done and streamed."""
    rows = [Row(MessageId(STRIPE, n), b"%d" % n) for n in range(2)]
    bodies, places = [row.body for row in rows], [row.id for row in rows]
    seen = Evidence(kills=[Kill(1.0, 1.1)], applied=list(rows), fences=[1, 2])
    for queue in (LOOSE, ONCE):
        seen.logs[queue] = list(rows)
        seen.blocks.append(Block(queue, "p", 0.9, list(bodies), 1.2, list(places)))
        seen.deliveries[queue] = [Delivery(2, row) for row in rows]
        seen.done[queue] = [(3, row.id) for row in rows]
    return seen


def lose(seen: Evidence) -> None:
    seen.logs[LOOSE].pop()


def repeat_once(seen: Evidence) -> None:
    row = Row(MessageId(STRIPE, 2), b"1")
    seen.logs[ONCE].append(row)
    seen.applied.append(row)
    seen.deliveries[ONCE].append(Delivery(2, row))


def repeat_without_kill(seen: Evidence) -> None:
    row = Row(MessageId(STRIPE, 2), b"1")
    seen.logs[LOOSE].append(row)
    seen.deliveries[LOOSE].append(Delivery(2, row))
    seen.kills.clear()


def misplace(seen: Evidence) -> None:
    seen.blocks[0].placed.reverse()


def invent(seen: Evidence) -> None:
    row = Row(MessageId(STRIPE, 2), b"other")
    seen.logs[LOOSE].append(row)
    seen.deliveries[LOOSE].append(Delivery(2, row))


def never_deliver(seen: Evidence) -> None:
    seen.deliveries[LOOSE].pop()


def bring_back(seen: Evidence) -> None:
    seen.deliveries[LOOSE].append(Delivery(4, seen.logs[LOOSE][0]))


def disorder(seen: Evidence) -> None:
    seen.blocks[1].bodies.reverse()
    seen.blocks[1].placed.reverse()


def stream_twice(seen: Evidence) -> None:
    seen.applied.append(seen.applied[-1])


def stream_out_of_order(seen: Evidence) -> None:
    seen.applied.reverse()


def fall_behind(seen: Evidence) -> None:
    seen.fences.reverse()


def fail(seen: Evidence) -> None:
    seen.blocks[0].error = OSError()


@pytest.mark.parametrize(
    "spoil",
    [
        lose, repeat_once, repeat_without_kill, misplace, invent, never_deliver, bring_back,
        disorder, stream_twice, stream_out_of_order, fall_behind, fail,
    ],
)  # fmt: skip
def test_the_checker_finds_a_broken_promise(spoil: Callable[[Evidence], None]) -> None:
    seen = flawless()
    assert check(seen, {ONCE}, ONCE) == []
    spoil(seen)
    assert len(check(seen, {ONCE}, ONCE)) >= 1


def test_a_repetition_is_allowed_where_a_kill_met_a_send() -> None:
    seen = flawless()
    row = Row(MessageId(STRIPE, 2), b"1")
    seen.logs[LOOSE].append(row)
    seen.deliveries[LOOSE].append(Delivery(2, row))
    assert check(seen, {ONCE}, ONCE) == []
    assert repeated(seen.logs[LOOSE]) == 1
