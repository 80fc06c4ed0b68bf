"""The commands on clusters, as a user types them; on real processes where it matters."""

import json
import shutil
import signal

import pytest

from cli.shell import Shell
from cli.test_process import background, ringdove
from ringdove.cli import EXIT_OK, EXIT_REFUSED, EXIT_STORE
from ringdove.cluster import processes
from ringdove.cluster.layout import Tuning
from ringdove.cluster.local import LocalCluster
from ringdove.core.ring import Rings

SMALL = ("--node-timeout", "1s", "--memory", "32MiB")


@pytest.fixture
def sh(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Shell(capfd, monkeypatch)


@pytest.fixture
def place(tmp_path):
    """Where a cluster may be made; whatever runs there is ended."""
    directory = tmp_path / "fabric"
    try:
        yield directory
    finally:
        if LocalCluster.exists(directory):
            processes.kill(LocalCluster.open(directory).running())


def test_a_cluster_on_this_machine_from_up_to_down(sh, place):
    at = ("--dir", str(place))
    [up] = sh.json("cluster", "up", "--servers", "1", *SMALL, *at, "--detach")
    assert up["servers"] == ["A"]
    assert up["processes"] == 2
    assert up["url"].startswith("redis://127.0.0.1:")
    [status] = sh.json("cluster", "status", *at)
    assert status["ok"]
    assert [shard["master"] for shard in status["shards"]] == ["A", "A"]
    assert "All is well." in sh("cluster", "status", *at)
    [other] = sh.json("--url", up["url"], "cluster", "status")
    assert other["slots_missing"] == 0
    assert "All slots are served." in sh("--url", up["url"], "cluster", "status")

    sh("--url", up["url"], "queue", "create", "q")
    sh("--url", up["url"], "send", "q", "hello")
    [paused] = sh.json("cluster", "pause", "a", *at)
    assert len(paused["paused"]) == 2
    assert "Server A: paused." in sh("cluster", "status", *at, code=EXIT_STORE)
    sh("cluster", "resume", "A", *at)
    assert "Server A goes on, in sync after" in sh.err
    sh("cluster", "down", *at)
    assert "Ended 2 processes." in sh.err
    sh("cluster", "up", *at, "--detach")
    assert "2 processes of one server run after" in sh.err
    assert "everything stops until it returns" in sh.err
    assert sh.out.strip() == up["url"]
    [killed] = sh.json("cluster", "kill", "A", *at, "--wait")
    assert killed["taken_over"] is False
    assert "Nobody serves A1, A2." in sh("cluster", "status", *at, code=EXIT_STORE)
    [restarted] = sh.json("cluster", "restart", "A", *at)
    assert restarted["started"] == ["A/A1", "A/A2"]
    assert sh("--url", up["url"], "receive", "q", "--ack") == "hello\n"
    sh("cluster", "up", *at, code=EXIT_STORE)
    assert "runs already" in sh.err
    sh("cluster", "up", *at, "--servers", "2", code=EXIT_REFUSED)
    assert "The cluster there has servers = 1, not 2" in sh.err
    sh("cluster", "kill", "B", *at, code=EXIT_REFUSED)
    assert "There is no server 'B'; the cluster has A." in sh.err
    assert len(sh.json("cluster", "down", *at)[0]["ended"]) == 2
    assert LocalCluster.open(place).running() == []


def test_servers_are_added_removed_backed_up_and_restored(sh, place):
    at = ("--dir", str(place))
    one = ("--servers", "1", "--copies", "1", "--room-for", "2", "--password")
    [up] = sh.json("cluster", "up", *one, *SMALL, *at, "--detach")
    assert up["processes"] == 4
    sh("--url", up["url"], "queue", "create", "q")
    sh("--url", up["url"], "send", "q", "hello")
    [added] = sh.json("cluster", "add", *at)
    assert added["server"] == "B"
    assert [move["to"] for move in added["handed"]] == ["B", "B"]
    assert len(added["started"]) == len(added["ended"]) == 2
    sh("cluster", "remove", "a", *at)
    assert "Server A is removed after" in sh.err
    assert "2 processes started, 2 ended." in sh.err
    [status] = sh.json("cluster", "status", *at)
    assert status["ok"]
    assert status["servers"] == {"B": "up"}
    [taken] = sh.json("cluster", "backup", "--out", "backup", *at)
    assert set(taken["bytes"]) == {"A1", "A2", "B1", "B2"}
    assert sh("--url", status["url"], "receive", "q", "--ack") == "hello\n"
    for words in ((), ("B", "--all"), ("--all", "--now")):
        sh("cluster", "restart", *words, *at, code=EXIT_REFUSED)
        assert "Name one server, or say --all" in sh.err
    sh("cluster", "remove", "B", *at, code=EXIT_REFUSED)
    assert "without B there are 0: add a server first" in sh.err
    sh("cluster", "down", *at)
    shutil.rmtree(place)
    [restored] = sh.json("cluster", "restore", "--from", "backup", *at)
    assert sh("--url", restored["url"], "receive", "q", "--ack") == "hello\n"
    [again] = sh.json("cluster", "restart", "--all", *at)
    assert again["restarted"] == ["B"]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, "down"])
def test_up_stays_until_it_is_told_to_end_and_leaves_no_process(tmp_path, place, ending):
    options = ("--servers", "1", *SMALL, "--dir", str(place))
    program = background(tmp_path, "cluster", "up", *options, "--json")
    try:
        assert json.loads(program.stdout.readline())["processes"] == 2
        assert len(LocalCluster.open(place).running()) == 2
        if ending == "down":
            ended = ringdove(tmp_path, "cluster", "down", "--dir", str(place), "--json")
            assert len(json.loads(ended.stdout)["ended"]) == 2
        else:
            program.send_signal(ending)
        program.communicate(timeout=60)
    finally:
        program.kill()
        program.communicate()
    assert program.returncode == EXIT_OK
    assert LocalCluster.open(place).running() == []


def test_status_draws_both_rings(sh, place):
    LocalCluster.make(place, Rings(5), Tuning())
    drawn = sh("cluster", "status", "--dir", str(place), code=EXIT_STORE).splitlines()
    assert drawn[:12] == [
        "╭─ ring 1 ─▶────────────▶────────────▶────────────▶───────────╮",
        "┌────A────┐  ┌────B────┐  ┌────C────┐  ┌────D────┐  ┌────E────┐",
        "│ ✗ A1    │  │ ✗ B1    │  │ ✗ C1    │  │ ✗ D1    │  │ ✗ E1    │",
        "│ ✗ E1    │  │ ✗ A1    │  │ ✗ B1    │  │ ✗ C1    │  │ ✗ D1    │",
        "│ ✗ D1    │  │ ✗ E1    │  │ ✗ A1    │  │ ✗ B1    │  │ ✗ C1    │",
        "├─────────┤  ├─────────┤  ├─────────┤  ├─────────┤  ├─────────┤",
        "│ ✗ A2    │  │ ✗ B2    │  │ ✗ C2    │  │ ✗ D2    │  │ ✗ E2    │",
        "│ ✗ B2    │  │ ✗ C2    │  │ ✗ D2    │  │ ✗ E2    │  │ ✗ A2    │",
        "│ ✗ C2    │  │ ✗ D2    │  │ ✗ E2    │  │ ✗ A2    │  │ ✗ B2    │",
        "└─────────┘  └─────────┘  └─────────┘  └─────────┘  └─────────┘",
        "╰─ ring 2 ─◀────────────◀────────────◀────────────◀───────────╯",
        "● master  ○ copy in sync  ◌ copy behind or not yet in place  ‖ paused  ✗ down",
    ]
    assert "Server E: down." in drawn
    assert drawn[-1] == "Nobody serves A1, A2, B1, B2, C1, C2, D1, D2, E1, E2."


def test_a_wide_cluster_is_drawn_in_rows(sh, place):
    LocalCluster.make(place, Rings(8, 1, counter_rotating=False), Tuning())
    drawn = sh("cluster", "status", "--dir", str(place), code=EXIT_STORE)
    assert sum(line.startswith("┌") for line in drawn.splitlines()) == 2
    assert "◀" not in drawn


def test_a_plan_is_written_and_shown(sh, tmp_path):
    shown = sh("cluster", "plan", "--hosts", "a,b,c,d,e", "--out", "plan")
    assert "A1   slots     0 to 1637   master A a:7001  copies B b:7002, C c:7003" in shown
    assert "Wrote 72 files to plan; plan/README.txt says how to go on." in sh.err
    assert (tmp_path / "plan" / "e" / "install.sh").exists()
    secret = json.loads((tmp_path / "plan" / "plan.json").read_text())["password"]
    assert len(secret) == 32
    assert f'requirepass "{secret}"' in (tmp_path / "plan" / "e" / "E1.conf").read_text()
    assert (tmp_path / "plan" / "plan.json").stat().st_mode & 0o777 == 0o600
    [planned] = sh.json("cluster", "plan", "--hosts", "10.0.0.1,10.0.0.2", "--out", "two",
                        "--second-hosts", "10.1.0.1,10.1.0.2", "--fsync", "everysec", "--no-password")  # fmt: skip
    assert len(planned["members"]) == 8
    assert planned["tuning"]["fsync"] == "everysec"
    assert planned["url"].startswith("redis://10.0.0.1:")
    assert "everything stops until it returns" in planned["failures"][0]
    sh("cluster", "plan", "--hosts", "a,b", "--out", "plan", code=EXIT_REFUSED)
    assert "Directory plan is not empty" in sh.err
    sh("cluster", "plan", "--hosts", "a,b", "--out", "x", "--copies", "4", code=EXIT_REFUSED)
    assert "1 to 3 copies, not 4" in sh.err


def test_a_plan_is_made_from_another(sh, tmp_path):
    sh("cluster", "plan", "--hosts", "a,b,c", "--out", "three", "--room-for", "4")
    [four] = sh.json("cluster", "plan", "--from", "three", "--add", "d", "--out", "four")
    assert four["order"] == ["A", "B", "C", "D"]
    assert four["hosts"]["D"] == ["d", "d"]
    assert (tmp_path / "four" / "d" / "install.sh").exists()
    [back] = sh.json("cluster", "plan", "--from", "four", "--remove", "d", "--out", "back")
    assert back["order"] == ["A", "B", "C"]
    assert {member["server"] for member in back["leaving"]} >= {"D"}
    for options, complaint in (
        ((), "Give --hosts for a new plan, or --from"),
        (("--hosts", "a", "--add", "b"), "Give --hosts for a new plan, or --from"),
        (("--from", "three"), "Give either --add or --remove"),
        (("--from", "three", "--add", "d", "--copies", "2"), "nothing but the servers changes"),
        (("--from", "three", "--add", "d", "--hosts", "a"), "nothing but the servers changes"),
        (("--hosts", "a,b,c", "--room-for", "2"), "There are 3 servers, more than room for 2"),
    ):
        sh("cluster", "plan", "--out", "no", *options, code=EXIT_REFUSED)
        assert complaint in sh.err


def test_create_and_status_of_a_plan_that_does_not_run(sh):
    sh("cluster", "create", "--plan", "nowhere", code=EXIT_REFUSED)
    assert "There is no plan in nowhere" in sh.err
    sh("cluster", "plan", "--hosts", "127.0.0.1", "--port", "1024", "--out", "plan")
    sh("cluster", "create", "--plan", "plan", code=EXIT_STORE)
    assert "2 of 2 Redis processes do not answer: A/A1 (127.0.0.1:1024)" in sh.err
    sh("cluster", "hand-over", "127.0.0.1", "--plan", "plan", code=EXIT_STORE)
    assert "No other server has a copy in sync of A1, A2: do not restart A now" in sh.err
    sh("cluster", "hand-over", "b", "--plan", "plan", code=EXIT_REFUSED)
    assert "There is no host 'b' in the plan; it has 127.0.0.1." in sh.err
    [status] = sh.json("cluster", "status", "--plan", "plan", code=EXIT_STORE)
    assert status["servers"] == {"A": "down"}


def test_what_is_not_there_is_said_clearly(sh, monkeypatch):
    sh("cluster", "status", code=EXIT_REFUSED)
    assert "There is no cluster in ringdove-cluster. Make one with" in sh.err
    monkeypatch.setenv("PATH", "")
    sh("cluster", "up", "--dir", "d", code=EXIT_STORE)
    assert "There is no redis-server" in sh.err
    assert "apt-get install redis-server" in sh.err
