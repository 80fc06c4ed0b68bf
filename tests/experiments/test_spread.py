"""The experiment `spread`: its metrics, its baseline, and what no run of it may show."""

import asyncio

import pytest

from experiments import spread
from experiments.split_index import SplitIndex, open_cluster
from experiments.spread import make_body, metrics, read_body


@pytest.fixture(scope="module")
def result():
    return spread.run(quick=True)


def test_nothing_is_lost_and_atomic_receives_never_repeat(result):
    rows = result["spread"]
    found = {(row["system"], row["spread"]) for row in rows}
    assert found == {(spread.ATOMIC, 1), (spread.ATOMIC, "infinite"), (spread.SPLIT, 1)}
    for row in rows:
        assert (row["messages"], row["lost"], row["damaged"]) == (40, 0, 0)
        if row["system"] == spread.ATOMIC:
            assert row["duplicated"] == 0


def test_every_statement_of_the_document_has_a_figure_beside_it(result):
    assert len(result["beside"]) == 6
    for row in result["beside"]:
        # With nothing displaced at K = 1, as few messages have it, there is nothing to divide by.
        assert row["here"] is not None or row["what"].startswith("displacement")


def test_a_plot_is_drawn(result, tmp_path):
    spread.plot(result, tmp_path / "spread.png")
    assert (tmp_path / "spread.png").read_bytes().startswith(b"\x89PNG")


def test_a_damaged_body_is_noticed():
    body = make_body(7)
    assert read_body(body) == 7
    assert read_body(body[:-1] + bytes([body[-1] ^ 1])) == -1
    assert read_body(body[:-1]) == -1


def test_receivers_are_merged_by_time_and_queues_are_averaged():
    """The first queue was received 1, 0, 2; the second in order, its last message twice."""
    receipts = [
        (0, 0, 2.0), (0, 1, 1.0), (0, 2, 3.0),
        (1, 0, 1.5), (1, 1, 1.6), (1, 2, 1.7), (1, 2, 1.8),
    ]  # fmt: skip
    found = metrics(receipts, queues=2, messages=3)
    assert (found["messages"], found["lost"], found["duplicated"]) == (6, 0, 1)
    assert found["duplication_rate"] == pytest.approx(1 / 6, abs=1e-4)
    assert found["out_of_order_rate"] == pytest.approx(1 / 6, abs=1e-4)
    assert found["displacement"] == pytest.approx((2 / 3) / 2, abs=1e-3)


def test_what_is_damaged_is_lost():
    found = metrics([(0, 0, 1.0), (0, -1, 2.0)], queues=1, messages=2)
    assert (found["lost"], found["damaged"]) == (1, 1)


class Meeting:
    """A cluster whose first two readers of an index wait for each other before they go on."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._barrier = asyncio.Barrier(2)
        self._readers = 0

    async def ask(self, slot, words):
        reply = await self._cluster.ask(slot, words)
        if words[0] == "ZRANGE":
            self._readers += 1
            if self._readers <= 2:
                await self._barrier.wait()
        return reply


def test_two_receivers_between_the_steps_get_the_same_message(redis):
    redis.flush()

    async def work():
        cluster = await open_cluster(redis.url)
        try:
            queue = SplitIndex(Meeting(cluster), "q", 1)
            await queue.send_many([b"first", b"second"])
            both = await asyncio.gather(queue.receive(), queue.receive())
            late = await queue.receive()
            for number, _ in (both[0], late):
                await queue.delete(number)
            return both, late, await queue.is_empty()
        finally:
            cluster.close()

    both, late, empty = asyncio.run(work())
    assert both == [(b"0", b"first")] * 2
    assert late == (b"1", b"second")
    assert empty
