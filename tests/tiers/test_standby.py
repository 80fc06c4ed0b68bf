"""Hot standby (M6): the standby takes over, nothing acknowledged is lost, and two never serve.

Real processes, a real manager, and networks between them that can be cut.
"""

import asyncio
import time

import msgspec
import pytest

import ringdove
from ringdove import errors
from ringdove.pair import check
from ringdove.server_config import ServerConfig
from ringdove.stores.embedded.replica import Replica
from ringdove.stores.memory import MemoryStore
from ringdove.tiers.grants import Grants, Request, Verdict
from ringdove.tiers.standby import Standby
from server.running import PATIENCE_S, wait_for
from tiers.load import Load
from tiers.pairs import GRANT_MS, Pair, cut, heal


@pytest.fixture
def pair(tmp_path):
    with Pair(tmp_path) as running:
        running.wait_in_sync()
        yield running


def send_some(url, count=10):
    with ringdove.connect(url) as rd:
        queue = rd.create_queue("q")
        for number in range(count):
            queue.send(b"%d" % number)


def stored(url, queue="q"):
    with ringdove.connect(url) as rd:
        return rd.queue(queue).stats().messages


def test_a_killed_primary_is_replaced_and_nothing_acknowledged_is_lost(pair, record_property):
    load = Load(pair.url)
    load.wait(lambda: len(load.done) > 50, "messages come through")
    before = len(load.acknowledged)
    pair.a.kill()
    killed_s = time.monotonic()
    pair.b.wait_serving()
    figures = {"served after_s": round(time.monotonic() - killed_s, 2), "lease_s": GRANT_MS / 1000}
    load.wait(lambda: len(load.acknowledged) > before + 100, "sends go on")
    found = load.end()
    figures |= {"longest send_s": round(load.took_s, 2), "messages": sum(found.values())}
    print(figures)
    record_property("figures", figures)
    assert load.errors == []
    load.check(found)

    pair.a.start()  # It comes back as the standby of the other, by a copy of everything.
    pair.a.wait_standing_by()
    pair.wait_in_sync()
    assert pair.grant.url == pair.back.url
    pair.b.kill()
    pair.a.wait_serving()
    with ringdove.connect(pair.url) as rd:
        assert not rd.queue("load").receive(subscription="audit"), "what is done stays done"


def test_a_primary_cut_off_from_its_standby_goes_on_alone_and_the_standby_never_serves(pair):
    send_some(pair.url)
    assert "ringdove_standby_in_sync 1.0" in pair.a.metrics
    cut(pair.between)
    send_some(pair.url)
    assert pair.grant.in_sync == "", "recorded out before the first send that it lacks was answered"
    assert "ringdove_standby_in_sync 0.0" in pair.a.metrics
    pair.a.kill()
    time.sleep(2 * GRANT_MS / 1000)
    assert pair.b.standing_by, "it lacks what was acknowledged"
    pair.a.start()
    pair.a.wait_serving()
    assert stored(pair.url) == 20
    heal(pair.between)
    pair.wait_in_sync()


def test_a_standby_that_is_silent_is_let_go_after_the_stated_time(tmp_path):
    with Pair(tmp_path, "--standby-timeout-ms", "300") as pair:
        pair.wait_in_sync()
        pair.between.harm = lambda _: "drop"
        send_some(pair.url)
        assert pair.grant.in_sync == ""
        heal(pair.between)
        pair.between.cut()
        pair.wait_in_sync()


def test_a_primary_cut_off_from_the_manager_stops_before_the_standby_serves(pair):
    send_some(pair.url)
    cut(pair.to_manager)
    pair.b.wait_serving()
    wait_for(lambda: pair.a.said_at("serving no more"), "the primary stops")
    assert pair.a.said_at("serving no more") < pair.b.said_at("serving ")
    send_some(pair.url)
    assert stored(pair.url) == 20
    heal(pair.to_manager)
    pair.a.wait_standing_by()
    pair.wait_in_sync()
    assert pair.a.standing_by
    assert pair.b.serving


def test_a_primary_without_standby_needs_no_manager(pair):
    pair.b.kill()
    wait_for(lambda: pair.a.said_at("standby recorded out"), "the standby is out")
    cut(pair.to_manager)
    time.sleep(1.5 * GRANT_MS / 1000)
    send_some(pair.url)
    assert pair.a.serving


def test_a_directory_is_not_thrown_away_before_a_manager_says_that_another_serves(pair):
    pair.b.kill()
    wait_for(lambda: not pair.grant.in_sync, "the standby is out")
    before = (pair.b.data / "member").read_text()
    cut(pair.b_to_manager)
    pair.b.start()
    wait_for(lambda: pair.b.said_at("no manager answers"), "it asks in vain")
    assert (pair.b.data / "member").read_text() == before
    heal(pair.b_to_manager)
    pair.wait_in_sync()
    assert (pair.b.data / "member").read_text() != before


def test_a_primary_that_ends_in_good_order_hands_over_at_once(pair):
    send_some(pair.url)
    assert pair.a.terminate() == 0
    wait_for(lambda: pair.b.serving or pair.grant.released, "it gives its lease back")
    pair.b.wait_serving()
    assert stored(pair.url) == 10


def test_sends_are_refused_without_a_standby_where_one_is_required(tmp_path):
    with Pair(tmp_path, "--standby-required") as pair:
        pair.wait_in_sync()
        send_some(pair.url)
        pair.b.kill()
        wait_for(lambda: not pair.grant.in_sync, "the standby is out")
        with ringdove.connect(pair.url) as rd:
            queue = rd.queue("q")
            with pytest.raises(errors.StoreUnavailable, match="No standby is in sync"):
                queue.send(b"refused")
            assert len(queue.receive(max=3)) == 3, "receiving goes on"
        pair.b.start()
        pair.wait_in_sync()
        send_some(pair.url)
        assert stored(pair.url) == 20


class Managers:
    """Those of a store, without a network; None while they are away."""

    trouble = "silence"

    def __init__(self) -> None:
        self.grants: Grants | None = None
        self.asked = asyncio.Event()

    async def ask(self, command, name, member, **more):
        self.asked.set()
        if self.grants is None:
            return None
        request = msgspec.to_builtins(Request(name, member, **more))
        return msgspec.convert(await self.grants.commands[f"grant.{command}"](request), Verdict)


async def one_life(directory, managers, *, granted):
    """A process of a new broker: until it may serve, or was told that it may not."""
    replica = Replica(directory)
    managers.asked.clear()
    waiting = asyncio.create_task(Standby(replica, managers, "", "").until_granted("core", None))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await (waiting if granted else managers.asked.wait())
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])
        replica.close()
    return replica.member


def test_a_new_primary_that_ended_before_a_manager_answered_serves_later(tmp_path):
    async def scenario():
        managers = Managers()
        before = await one_life(tmp_path / "a", managers, granted=False)
        managers.grants = Grants(MemoryStore())
        member = await one_life(tmp_path / "a", managers, granted=True)
        assert (member.name, member.id) == ("core", before.id)

        managers.grants = Grants(MemoryStore())  # All records are lost: it may lack something.
        assert await one_life(tmp_path / "a", managers, granted=False) == member
        request = msgspec.to_builtins(Request("core", member.id))
        verdict = await managers.grants.commands["grant.acquire"](request)
        assert verdict["grant"] is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"store": "redis://127.0.0.1:1"}, "On a fabric a standby is not needed"),
        ({"memory": True}, "--memory has none"),
        ({"managers": None}, "without a manager"),
        ({"name": None}, "needs --name"),
        ({"standby_of": "ringdove://127.0.0.1:1"}, "not both"),
        ({"standby_timeout_ms": 0}, "must be above 0"),
        ({"grant_ms": 299}, "must be 300 to 60000"),
    ],
)
def test_what_makes_no_sense_is_refused(options, reason):
    chosen = {"name": "core", "managers": "ringdove://127.0.0.1:1", "with_standby": True}
    with pytest.raises(errors.InvalidArgument, match=reason):
        check(ServerConfig(**{**chosen, **options}))
