"""The experiment `store-and-forward`: nothing is lost on the way, whichever queue it goes through."""

import asyncio

import pytest

from experiments import relay, store_and_forward


@pytest.fixture(scope="module")
def result():
    return store_and_forward.run(quick=True)


def test_every_message_that_was_replied_to_reaches_the_back_end_once(result):
    rows = result["store_and_forward"]
    assert [row["queue"] for row in rows] == [store_and_forward.FABRIC, store_and_forward.FILES]
    for row in rows:
        assert row["sent"] > 0
        assert (row["lost"], row["again"]) == (0, 0)
    [compared] = result["beside"]
    assert compared["document"] == 4.2


def test_a_plot_is_drawn(result, tmp_path):
    store_and_forward.plot(result, tmp_path / "forward.png")
    assert (tmp_path / "forward.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["ringdove", "files", "sqlite"])
def test_a_queue_gives_what_was_put_until_it_is_deleted(kind, tmp_path):
    place = str(tmp_path / "queue")
    options = {"url": f"file:{place}"} if kind == "ringdove" else {"directory": place}
    bodies = [b"%d" % number * 100 for number in range(150)]

    async def work():
        queue = relay.QUEUES[kind](**options)
        await queue.open()
        await asyncio.gather(*map(queue.put, bodies))
        found = []
        while True:
            handle, some = await queue.take()
            if not some:
                break
            found += some
            await queue.delete(handle)
        await queue.close()
        return found

    assert sorted(asyncio.run(work())) == sorted(bodies)
    left = list((tmp_path / "queue").iterdir()) if kind == "files" else []
    assert not left
