"""A cluster in rings of real Redis processes: servers fail, return, and nothing is lost."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time

import pytest

import ringdove
from fabric.clusters import TUNING, Host, drain, free_base, insist, masters, running, send, until
from ringdove.cluster import forming, processes
from ringdove.cluster.asking import ask, demand
from ringdove.cluster.forming import look_around
from ringdove.cluster.layout import Tuning, redis_conf
from ringdove.cluster.local import LocalCluster
from ringdove.cluster.plan import make_plan, read_plan, write_plan
from ringdove.cluster.status import look_at, look_at_foreign, slots_missing
from ringdove.core.ring import SLOTS, Rings
from ringdove.errors import InvalidArgument, StoreUnavailable
from ringdove.stores.fabric.url import parse_url

HOME = {"A1": "A", "A2": "A", "B1": "B", "B2": "B", "C1": "C", "C2": "C"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with running(tmp_path_factory.mktemp("cluster") / "data", Rings(3)) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared):
    """Three servers in order, whatever an earlier test has left."""
    for server in shared.blueprint.rings.names:
        if shared.paused():
            shared.resume(server)
        if len(shared.running(shared.blueprint.on(server))) < 6:
            shared.restart(server)
    forming.await_settled(shared.blueprint)
    forming.hand_back(shared.blueprint)
    assert shared.status().ok
    assert masters(shared) == HOME
    return shared


@pytest.fixture
def queue(cluster):
    """Two copies of everything: as many as are left when one of three servers is down."""
    with ringdove.connect(f"{cluster.url}?copies=2") as connection:
        name = f"q{time.monotonic_ns()}"
        yield connection.create_queue(name, stripes=12, lease_ms=600_000, copies=2)


def wipe(cluster, *members):
    for name in members:
        shutil.rmtree(cluster.directory / name / "appendonlydir")


# -- in order -----------------------------------------------------------------------------------


def test_a_fresh_cluster_has_masters_and_copies_where_the_rings_say(cluster):
    status = cluster.status()
    assert status.ok
    assert status.serving
    assert status.servers == {"A": "up", "B": "up", "C": "up"}
    layout = cluster.blueprint.rings
    for shard in status.shards:
        holders = [layout.names[n] for n in layout.holders(cluster.blueprint.shards[shard.shard])]
        assert [shard.master, *shard.copies] == holders
    assert sum(shard.last_slot + 1 - shard.first_slot for shard in status.shards) == SLOTS
    assert len(status.members) == 18


def test_every_process_runs_with_the_settings_of_the_fabric(cluster):
    expected = {
        "appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction",
        "maxmemory": "33554432", "min-replicas-to-write": "1", "min-replicas-max-lag": "3",
        "cluster-node-timeout": "1000", "cluster-replica-validity-factor": "10",
        "cluster-require-full-coverage": "no", "cluster-allow-reads-when-down": "no",
        "cluster-allow-replica-migration": "no", "save": "",
    }  # fmt: skip
    for member in cluster.blueprint.members:
        told = [word.decode() for word in demand(member.address, "CONFIG", "GET", *expected)]
        found = dict(zip(told[::2], told[1::2], strict=True))
        assert found == expected
        [bus] = ask(member.address, ("CONFIG", "GET", "cluster-port"))
        assert int(bus[1]) == member.bus_port


def test_a_cluster_that_somebody_else_made_can_be_looked_at(cluster):
    seeds = parse_url(cluster.url).nodes
    shards = look_at_foreign(seeds)
    assert slots_missing(shards) == 0
    assert [len(shard.copies) for shard in shards] == [2] * 6
    with pytest.raises(StoreUnavailable, match="No node answers at"):
        look_at_foreign([seeds[0]._replace(port=1)])


def test_forming_again_changes_nothing(cluster):
    assert forming.form(cluster.blueprint) is False
    assert forming.hand_back(cluster.blueprint) == []


# -- failures -----------------------------------------------------------------------------------


def test_a_killed_server_is_replaced_and_gets_its_masters_back(cluster, queue):
    sent = send(queue, 0, 50)
    assert len(cluster.kill("B")) == 6
    assert cluster.status().servers["B"] == "down"
    assert cluster.await_taken_over("B")
    status = cluster.status()
    assert status.serving
    assert not status.ok
    assert status.master("B1") in "AC"
    assert status.master("B2") in "AC"
    sent |= send(queue, 50, 50)
    returned = cluster.restart("B", hand_back=False)
    assert (len(returned.started), returned.joined, returned.handed) == (6, [], [])
    assert cluster.status().ok
    assert masters(cluster)["B1"] in "AC"
    handed = forming.hand_back(cluster.blueprint)
    assert {(move.shard, move.target) for move in handed} == {("B1", "B"), ("B2", "B")}
    assert masters(cluster) == HOME
    assert drain(queue) == sent


def test_a_master_that_has_lost_its_data_comes_back_as_a_copy_and_wipes_nobody(cluster, queue):
    sent = send(queue, 0, 50)
    cluster.kill("B")
    wipe(cluster, "B/B1", "B/B2")
    returned = cluster.restart("B", at_once=True)
    assert returned.joined == ["B/B1", "B/B2"]
    assert cluster.status().ok
    assert masters(cluster) == HOME
    assert drain(queue) == sent
    views = look_around(cluster.blueprint)
    assert {len(view.nodes) for view in views.values()} == {18}


def test_a_killed_server_that_is_started_at_once_still_has_its_messages(cluster, queue):
    sent = send(queue, 0, 50)
    cluster.kill("A")
    assert cluster.restart("A", at_once=True).joined == []
    assert drain(queue) == sent


def test_a_paused_server_is_replaced_and_returns_as_a_copy(cluster, queue):
    sent = send(queue, 0, 20)
    assert len(cluster.pause("C")) == 6
    assert cluster.status().servers["C"] == "paused"
    assert cluster.await_taken_over("C")
    sent |= send(queue, 20, 20)
    returned = cluster.resume("C")
    assert {move.target for move in returned.handed} == {"C"}
    assert masters(cluster) == HOME
    assert drain(queue) == sent


def test_a_server_is_restarted_while_messages_are_sent(cluster, queue):
    sent = send(queue, 0, 20)
    before = {process.pid for process in cluster.running(cluster.blueprint.on("A"))}
    returned = cluster.restart("A")
    assert {move.shard for move in returned.handed} == {"A1", "A2"}
    assert not before & {process.pid for process in cluster.running()}
    sent |= send(queue, 20, 20)
    assert drain(queue) == sent


def test_a_copy_that_has_just_been_elected_is_not_asked_in_vain(tmp_path):
    with running(tmp_path / "data", Rings(2, 2)) as cluster:
        forming.hand_over(cluster.blueprint, "A")
        forming.hand_back(cluster.blueprint)
        handed = forming.hand_over(cluster.blueprint, "A")
        assert {(move.shard, move.target) for move in handed} == {("A1", "B"), ("A2", "B")}
        logs = [path.read_text() for path in cluster.directory.glob("*/*/redis.log")]
        assert len(logs) == 8
        assert not any("Manual failover timed out" in log for log in logs)


def test_without_a_majority_a_restart_says_who_is_missing(cluster):
    cluster.kill("A")
    assert cluster.await_taken_over("A")
    served = list(masters(cluster).values())
    second = max("BC", key=served.count)
    cluster.kill(second)
    with pytest.raises(StoreUnavailable, match=f"most masters are out of reach. Start {second} "):
        cluster.restart("A", at_once=True)
    cluster.restart(second, at_once=True)
    assert cluster.status().ok


def test_what_was_sent_is_there_after_down_and_up(cluster, queue):
    sent = send(queue, 0, 50)
    assert len(cluster.down()) == 18
    assert cluster.running() == []
    assert set(cluster.status().servers.values()) == {"down"}
    assert cluster.was_stopped
    again = LocalCluster.open(cluster.directory)
    again.up()
    assert drain(queue) == sent
    with pytest.raises(StoreUnavailable, match="runs already"):
        cluster.up()
    assert cluster.status().ok


# -- starting -----------------------------------------------------------------------------------


def test_small_clusters_run_too(tmp_path):
    with running(tmp_path / "one", Rings(1)) as one:
        assert one.url.endswith("?copies=1")
        assert one.status().ok
        with ringdove.connect(one.url) as connection:
            queue = connection.create_queue("q")
            queue.send("x")
            one.kill("A")
            one.restart("A")
            assert insist(queue.receive).bodies() == [b"x"]
        one.kill("A")
        shutil.rmtree(one.directory / "A" / "A1")
        with pytest.raises(StoreUnavailable, match="A/A1 has lost its data, and there is no copy"):
            one.restart("A")


def test_a_process_that_does_not_start_ends_the_others_and_says_why(tmp_path):
    cluster = LocalCluster.make(tmp_path / "data", Rings(2), TUNING)
    port = cluster.blueprint.members[3].port
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(StoreUnavailable, match="Address already in use"),
    ):
        cluster.up()
    assert cluster.running() == []
    assert not any((tmp_path / "data").iterdir())


def test_without_redis_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreUnavailable, match="apt-get install redis-server"):
        LocalCluster.make(tmp_path / "data", Rings(3), TUNING)
    assert not (tmp_path / "data").exists()


def test_a_directory_without_a_cluster_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="There is no cluster in"):
        LocalCluster.open(tmp_path)
    (tmp_path / "cluster.json").write_text('{"blueprint": {"servers": "many"}}')
    with pytest.raises(InvalidArgument, match="does not describe a cluster"):
        LocalCluster.open(tmp_path)
    with pytest.raises(InvalidArgument, match="is not empty"):
        LocalCluster.make(tmp_path, Rings(3), TUNING)


def test_signals_go_only_to_the_process_that_was_started(tmp_path):
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        taken = processes.Running(stranger.pid, tmp_path / "redis.conf")
        assert not processes.is_alive(taken)
        assert processes.kill([taken]) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_no_process_needs_a_port_that_outgoing_connections_get():
    ports = processes.free_ports(60, "127.0.0.1")
    assert len(set(ports)) == 60
    assert max(ports) < processes._outgoing_port_min()


# -- real hosts ---------------------------------------------------------------------------------


@pytest.fixture
def planned(tmp_path):
    """A plan for three hosts with two copies, on addresses of the loopback network."""
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    data = str(tmp_path / "data")
    blueprint = make_plan(Rings(3, 2), TUNING, hosts, port=free_base(), data=data)
    write_plan(blueprint, tmp_path / "plan")
    found = {name: Host(blueprint, name, tmp_path / "plan") for name in "ABC"}
    try:
        yield tmp_path, found
    finally:
        for host in found.values():
            host.kill()


def test_a_plan_is_started_by_its_scripts_formed_and_mended(planned):
    directory, hosts = planned
    blueprint = read_plan(directory / "plan")
    with pytest.raises(StoreUnavailable, match=r"12 of 12 Redis processes do not answer: A/A1 \("):
        forming.form(blueprint)
    for host in hosts.values():
        host.start()
    until(lambda: all(look_around(blueprint).values()))
    assert forming.form(blueprint)
    assert look_at(blueprint).ok

    hosts["B"].kill()
    shutil.rmtree(directory / "data-B" / "B1" / "appendonlydir")
    hosts["B"].start()
    until(lambda: set(look_at(blueprint).servers.values()) == {"up"})
    assert forming.form(blueprint)
    forming.hand_back(blueprint)
    status = look_at(blueprint)
    assert status.ok
    assert {shard.shard: shard.master for shard in status.shards} == HOME
    assert {move.shard for move in forming.vacate(blueprint, "C")} == {"C1", "C2"}
    assert "C" not in {shard.master for shard in look_at(blueprint).shards}


def test_processes_of_another_cluster_are_not_taken(cluster):
    other = make_plan(Rings(1, 1), TUNING, ["127.0.0.1"], port=20_000)
    first, second = cluster.blueprint.members[:2]
    members = [
        type(first)("A", shard, 0, "127.0.0.1", member.port, member.bus_port)
        for shard, member in (("A1", first), ("A2", second))
    ]
    stolen = type(other)(servers=1, copies=1, tuning=TUNING, members=members)
    with pytest.raises(StoreUnavailable, match="belongs to another cluster: it knows 127"):
        forming.form(stolen)


def test_two_names_of_one_process_are_seen_through(cluster):
    first = cluster.blueprint.members[0]
    members = [
        type(first)("A", shard, 0, host, first.port, first.bus_port)
        for shard, host in (("A1", "127.0.0.1"), ("A2", "localhost"))
    ]
    twice = type(cluster.blueprint)(servers=1, copies=1, tuning=TUNING, members=members)
    with pytest.raises(StoreUnavailable, match="are one process: these hosts have one address"):
        forming.form(twice)


def test_a_plan_has_a_configuration_for_each_process_and_host(tmp_path):
    hosts = ["a", "b", "c", "d", "e"]
    blueprint = make_plan(Rings(5), Tuning(), hosts)
    files = {str(path.relative_to(tmp_path)) for path in write_plan(blueprint, tmp_path)}
    assert len(files) == 2 + 5 * (6 + 8)
    assert {f"{host}/start.sh" for host in hosts} < files
    assert (tmp_path / "a" / "start.sh").stat().st_mode & 0o111
    conf = (tmp_path / "b" / "A1.conf").read_text()
    for line in (
        "bind b", "port 7002", "cluster-port 17002", "appendonly yes", "appendfsync always",
        "cluster-announce-hostname b", 'dir "/var/lib/ringdove-redis/A1"',
    ):  # fmt: skip
        assert line in conf.splitlines()
    readme = (tmp_path / "README.txt").read_text()
    assert "redis://a:7001,b:7001,c:7001,d:7001,e:7001" in readme
    assert "B1   slots  3276 to 4914   master B b:7001  copies C c:7002, D d:7003" in readme
    assert read_plan(tmp_path) == blueprint
    for script in tmp_path.rglob("*.sh"):
        subprocess.run(["sh", "-n", script], check=True)
    with pytest.raises(InvalidArgument, match="not empty"):
        write_plan(blueprint, tmp_path)


def test_the_rings_of_a_plan_may_have_networks_of_their_own():
    first, second = ["10.0.0.1", "10.0.0.2"], ["10.1.0.1", "10.1.0.2"]
    blueprint = make_plan(Rings(2), Tuning(), first, second)
    for member in blueprint.members:
        ring = blueprint.shards[member.shard].ring
        assert member.host.startswith("10.0." if ring == 1 else "10.1.")
        conf = redis_conf(blueprint, member, "/data")
        assert f"cluster-announce-ip {member.host}" in conf
        assert f"bind {member.host}" in conf


@pytest.mark.parametrize(
    ("hosts", "second", "port", "complaint"),
    [
        (["a", ""], [], 7001, "'' is no host"),
        (["a", "b;reboot"], [], 7001, "'b;reboot' is no host"),
        (["a", "-b"], [], 7001, "'-b' is no host"),
        (["a", "a"], [], 7001, "named twice"),
        (["a", "b"], ["c"], 7001, "as many hosts"),
        (["a", "b"], ["c", "d"], 7001, "give addresses"),
        (["a", "b"], [], 60_000, "Ports from 60000 do not fit"),
        (["a", "b"], [], 80, "Ports from 80 do not fit"),
    ],
)
def test_plans_that_make_no_sense_are_refused(hosts, second, port, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        make_plan(Rings(2), Tuning(), hosts, second, port)


@pytest.mark.parametrize(
    ("tuning", "complaint"),
    [
        (Tuning(node_timeout_ms=100), "A node timeout of 100 ms is outside"),
        (Tuning(memory_bytes=1000), "1000 bytes are too little memory"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tuning, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        make_plan(Rings(2), tuning, ["a", "b"])
