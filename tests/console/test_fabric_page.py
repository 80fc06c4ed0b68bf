"""A server of a fabric dies, and the page shows who has taken over."""

import re

from playwright.sync_api import expect

from console.browser import watched
from console.conftest import ConsoleCaller
from console.test_live import stream
from fabric.clusters import running
from ringdove.cluster.outlook import what_a_loss_does
from ringdove.cluster.status import ClusterStatus, ShardStatus
from ringdove.core.ring import Rings
from server.running import ServerThread


def shard(name: str, master: str | None, *copies: str) -> ShardStatus:
    return ShardStatus(
        shard=name, first_slot=0, last_slot=9, master=master, copies=list(copies), lag_bytes=0
    )


def test_a_loss_moves_what_has_a_copy_and_costs_what_has_none():
    status = ClusterStatus(
        ok=True, serving=True, url="", servers={}, members=[],
        shards=[shard("A1", "A", "B", "C"), shard("A2", "A"), shard("B1", "B", "A", "C")],
    )  # fmt: skip
    assert what_a_loss_does(status, "A") == {"moves": {"A1": "B"}, "lost": ["A2"]}
    assert what_a_loss_does(status, "B") == {"moves": {"B1": "A"}, "lost": []}
    assert what_a_loss_does(status, "C") == {"moves": {}, "lost": []}


def test_a_dead_server_is_seen_with_those_who_take_over(browser, tmp_path):
    with (
        running(tmp_path / "fabric", Rings(3, 2)) as cluster,
        ServerThread(
            "nowhere", store=cluster.url, cluster=str(cluster.directory), port=-1
        ) as server,
        watched(browser, server.http_url) as shown,
    ):
        with (
            ServerThread("nowhere", store=cluster.url, port=-1) as untold,
            stream(ConsoleCaller(untold), fabric=1) as live,
        ):
            masters = live.next()["fabric"]
        assert (masters["kind"], masters["slots_missing"]) == ("masters", 0)
        assert [len(master["copies"]) for master in masters["masters"]] == [1] * 6

        page = shown.open("fabric")
        expect(page.get_by_text("Every shard is served and every copy is in sync.")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("^Server [ABC], up"))).to_have_count(3)
        page.get_by_role("button", name="What if B went away").click()
        expect(page.get_by_text("No message would be lost")).to_be_visible()
        expect(page.locator("path.move")).to_have_count(2)
        shown.check_accessible()
        shown.keep("fabric-well")

        cluster.kill("B")
        expect(page.get_by_role("button", name="Server B, down")).to_be_visible()
        expect(page.get_by_text("some copies are missing or behind")).to_be_visible()
        served = page.get_by_role("region", name="Shards").locator("tbody tr td:nth-child(4)")
        expect(served.filter(has_text=re.compile("^(B|nobody)$"))).to_have_count(0)
        expect(page.get_by_text("B serves nothing now")).to_be_visible()
        shown.keep("fabric-killed")
        shown.check_calm()
