"""The command `tier status`."""

import json
import signal
import subprocess

import pytest

import ringdove
from cli.shell import Shell
from ringdove.cli import EXIT_INTERRUPTED, EXIT_REFUSED, EXIT_STORE
from ringdove.pending import run
from ringdove.tiers import registry
from ringdove.tiers.reports import BrokerReport, QueueReport, to_wire
from server.running import PATIENCE_S, PROGRAM, ServerThread, wait_for


@pytest.fixture
def shell(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return Shell(capfd, monkeypatch)


@pytest.fixture
def manager():
    with ServerThread("nowhere", memory=True, manager=True, http=-1) as running:
        yield running


def beat(manager, *reports):
    with ringdove.connect(manager.url) as rd:
        for report in reports:
            run(rd.backend.tier("beat", {"report": to_wire(report)}))


def report(name, level, region="", upstream="", **queue):
    queues = [QueueReport("readings", 7, **queue)] if queue else []
    url = f"ringdove://:s3cret@{name}:7117"
    return BrokerReport(name, level, region, url, upstream=upstream, queues=queues)


TREE = [
    report("core", 0, stored=1200),
    report("hub", 1, "eu", "core", stored=1100, lag_ms=2_000, behind=100),
    report("west", 2, "eu-west", "ringdove://hub:7117", stored=900, consumed={"billing": 800}),
    report("lonely", 2, "us"),
]


def test_the_tree_is_drawn(shell, manager):
    beat(manager, *TREE)
    lines = shell("--url", manager.url, "tier", "status").splitlines()
    depth = {
        report.name: line.index(report.name)
        for line in lines
        for report in TREE
        if f" {report.name}  level" in line
    }
    assert depth["core"] == depth["lonely"] < depth["hub"] < depth["west"]
    [hub] = [line for line in lines if " hub  level" in line]
    assert "level 1 eu  up" in hub
    assert "lag 2.0 s  100 behind" in hub
    [lonely] = [line for line in lines if " lonely  level" in line]
    assert "away" in lonely
    text = " ".join("\n".join(lines).split())
    assert "readings: 1,200 produced, level 1 has 1,100, level 2 has 900" in text
    assert "billing is done with 800; 2.0 s late" in text
    assert "No alarms." in text
    assert "s3cret" not in text


def test_json_and_a_url_of_tiers(shell, manager):
    beat(manager, *TREE)
    url = manager.url.replace("ringdove://", "tiers://") + "?region=eu"
    [found] = shell.json("--url", url, "tier", "status")
    assert [broker["name"] for broker in found["brokers"]] == ["core", "hub", "west", "lonely"]
    assert "s3cret" not in str(found)


def test_a_broker_that_is_lost_stays_in_its_place_and_shows_in_the_exit_code(
    shell, manager, monkeypatch
):
    monkeypatch.setattr(registry, "BROKER_EXPIRES_MS", 50)
    beat(manager, *TREE)
    with ringdove.connect(manager.url) as rd:

        def states():
            return {view["state"] for view in run(rd.backend.tier("brokers", {}))}

        wait_for(lambda: states() == {"lost"}, "all brokers are lost")
    lines = shell("--url", manager.url, "tier", "status", code=EXIT_STORE).splitlines()
    [hub] = [line for line in lines if " hub  level 1 eu  lost" in line]
    [west] = [line for line in lines if " west  level 2 eu-west  lost" in line]
    assert hub.index("hub") < west.index("west")


def test_watching_goes_on_until_it_is_interrupted(manager):
    beat(manager, *TREE)
    words = ["--url", manager.url, "tier", "status", "--watch", "--json"]
    with subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE) as watcher:
        looks = [json.loads(watcher.stdout.readline()) for _ in range(2)]
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=PATIENCE_S)
    assert [len(look["brokers"]) for look in looks] == [4, 4]
    assert watcher.returncode == EXIT_INTERRUPTED


def test_who_names_no_manager_is_told(shell):
    shell("tier", "status", code=EXIT_REFUSED)
    assert "Say where the manager is" in shell.err
