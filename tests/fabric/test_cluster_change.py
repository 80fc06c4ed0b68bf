"""Servers come and go while messages are sent and received; nothing is lost."""

from __future__ import annotations

import subprocess

import msgspec
import pytest

import ringdove
from fabric.clusters import TUNING, Host, Traffic, drain, free_base, masters, running, send, until
from ringdove.cluster import converging, local
from ringdove.cluster.asking import demand
from ringdove.cluster.converging import converge
from ringdove.cluster.forming import look_around
from ringdove.cluster.layout import Blueprint, decode_blueprint
from ringdove.cluster.plan import (
    add_host,
    make_plan,
    read_plan,
    remove_host,
    settle_plan,
    write_plan,
)
from ringdove.cluster.status import look_at
from ringdove.core.ring import Rings
from ringdove.errors import InvalidArgument, StoreUnavailable


def known(blueprint):
    """How many processes each process knows."""
    views = look_around(blueprint)
    return {len(view.nodes) for view in views.values()}


def test_a_server_is_added_and_another_removed_under_load_and_nothing_is_lost(tmp_path):
    with (
        running(tmp_path / "data", Rings(3, 2)) as cluster,
        Traffic(cluster.url, "q", stripes=12, copies=2, lease_ms=2_000) as traffic,
    ):
        added = cluster.add()
        assert (added.server, len(added.started)) == ("D", len(added.ended))
        assert masters(cluster) == {
            shard.name: cluster.blueprint.rings.names[cluster.blueprint.rings.home(shard)]
            for shard in cluster.blueprint.rings.shards
        }
        assert sorted(masters(cluster).values()) == ["A", "B", "B", "C", "C", "D"]
        assert cluster.status().ok
        assert known(cluster.blueprint) == {12}
        sent = len(traffic.sent)
        until(lambda: len(traffic.sent) > sent)

        removed = cluster.remove("B")
        assert {move.source for move in removed.handed} >= {"B"}
        assert cluster.blueprint.rings.names == ["A", "C", "D"]
        assert sorted(masters(cluster).values()) == ["A", "A", "C", "C", "D", "D"]
        assert cluster.status().ok
        assert known(cluster.blueprint) == {12}
        assert not (cluster.directory / "B").exists()
        assert len(cluster.running()) == 12
        traffic.stop()
        assert traffic.errors == []

        with pytest.raises(InvalidArgument, match="There is no server 'B'; the cluster has A, C"):
            cluster.remove("B")
        cluster.kill("A")
        assert cluster.await_taken_over("A")
        with pytest.raises(StoreUnavailable, match="Server A is down: restart or remove it first"):
            cluster.remove("C")
        cluster.remove("A")
        assert cluster.status().ok
        assert known(cluster.blueprint) == {12}
        with pytest.raises(InvalidArgument, match="2 copies on as many servers, and without C"):
            cluster.remove("C")
        assert traffic.lost() == set()


def test_an_interrupted_change_is_finished_when_said_again_or_started_again(tmp_path, monkeypatch):
    with (
        running(tmp_path / "data", Rings(2, 2).on([0])) as cluster,
        ringdove.connect(cluster.url) as connection,
    ):
        [first] = {member.address for member in cluster.blueprint.holding("A1")}
        assert demand(first, "CONFIG", "GET", "min-replicas-to-write")[1] == b"0"
        queue = connection.create_queue("q", stripes=8, copies=1)
        sent = send(queue, 0, 20)
        for module, step in ((local, "converge"), (converging, "_forget")):
            with monkeypatch.context() as patched:
                patched.setattr(module, step, interrupt)
                with pytest.raises(KeyboardInterrupt):
                    cluster.add()
        assert cluster.status().servers.keys() == {"A", "B"}
        with pytest.raises(StoreUnavailable, match="finish it first, with 'ringdove cluster add "):
            cluster.restart("A")
        cluster.down()
        cluster.up()
        assert cluster.status().ok
        assert known(cluster.blueprint) == {8}
        assert masters(cluster) == {"A1": "A", "A2": "A", "B1": "B", "B2": "B"}
        assert demand(first, "CONFIG", "GET", "min-replicas-to-write")[1] == b"1"
        assert drain(queue) == sent


def interrupt(*_):
    raise KeyboardInterrupt


def test_all_servers_are_restarted_in_turn_and_senders_notice_nothing(tmp_path):
    with (
        running(tmp_path / "data", Rings(3)) as cluster,
        Traffic(cluster.url, "q", stripes=12, copies=2, lease_ms=2_000) as traffic,
    ):
        before = {process.pid for process in cluster.running()}
        home = masters(cluster)
        shown = []
        handed = cluster.restart_all(shown.append)
        assert shown == [1, 2, 3]
        assert {move.shard for move in handed} == set(home)
        assert len(cluster.running()) == 18
        assert not before & {process.pid for process in cluster.running()}
        assert masters(cluster) == home
        assert cluster.status().ok
        traffic.stop()
        assert traffic.errors == []
        assert traffic.lost() == set()
        cluster.kill("B")
        with pytest.raises(StoreUnavailable, match="Server B is down"):
            cluster.restart_all()


# -- plans --------------------------------------------------------------------------------------


def test_a_plan_made_from_another_moves_a_running_cluster_to_other_hosts(tmp_path):
    data = str(tmp_path / "data")
    addresses = ["127.0.0.1", "127.0.0.2"]
    port = free_base()
    first = make_plan(Rings(2, 2), TUNING, addresses, port=port, data=data, password="secret")
    write_plan(first, tmp_path / "first")
    hosts = [Host(first, name, tmp_path / "first") for name in "AB"]
    try:
        for host in hosts:
            host.start()
        until(lambda: all(look_around(first).values()))
        converge(first)
        with ringdove.connect(first.url) as connection:
            sent = send(connection.create_queue("q", stripes=8, copies=2), 0, 20)

        second = add_host(read_plan(tmp_path / "first"), "127.0.0.3")
        write_plan(second, tmp_path / "second")
        assert "retire.sh" in (tmp_path / "second" / "README.txt").read_text()
        with pytest.raises(StoreUnavailable, match=r"C/A1 .* do not answer: start them first"):
            converge(second)
        stays = {member.name for member in first.members}
        for name in second.rings.names:
            hosts.append(Host(second, name, tmp_path / "second"))
            new = [m.shard for m in second.on(name) if m.name not in stays]
            hosts[-1].start(*new)
        until(lambda: all(look_around(second).values()))
        done = converge(second)
        assert done.joined
        assert set(done.released) == {member.name for member in second.leaving} != set()
        assert look_at(second).ok
        assert known(second) == {8}
        assert converge(second) == (False, [], [])
        settle_plan(tmp_path / "second")
        assert read_plan(tmp_path / "second").leaving == []
        with ringdove.connect(second.url) as connection:
            assert drain(connection.queue("q")) == sent
    finally:
        for host in hosts:
            host.kill()


def test_processes_that_both_plans_have_stay_where_they_are_and_new_ones_get_free_ports():
    five = make_plan(Rings(5), TUNING, ["a", "b", "c", "d", "e"])
    six = add_host(five, "f")
    kept = {m.name: m.address for m in five.members}
    assert sum(kept.get(m.name) == m.address for m in six.members) == 25
    assert len(six.leaving) == 5
    assert len({member.address for member in six.stage.members}) == 35
    four = remove_host(six, "b")
    assert four.rings.names == ["A", "C", "D", "E", "F"]
    assert "B" in {member.server for member in four.leaving}
    with_room = make_plan(Rings(10).on(range(3)), TUNING, ["a", "b", "c"])
    assert len({member.address for member in with_room.members}) == 60


def test_changes_of_plans_that_make_no_sense_are_refused():
    plan = make_plan(Rings(3), TUNING, ["a", "b", "c"])
    with pytest.raises(InvalidArgument, match="named twice"):
        add_host(plan, "a")
    with pytest.raises(InvalidArgument, match="There is no host 'x' in the plan; it has a, b, c"):
        remove_host(plan, "x")
    with pytest.raises(InvalidArgument, match="3 copies on as many servers"):
        remove_host(plan, "a")
    two = make_plan(Rings(2), TUNING, ["10.0.0.1", "10.0.0.2"], ["10.1.0.1", "10.1.0.2"])
    with pytest.raises(InvalidArgument, match=r"address of 10\.0\.0\.3 on the second network"):
        add_host(two, "10.0.0.3")
    three = add_host(two, "10.0.0.3", "10.1.0.3")
    assert {m.host for m in three.on("C")} == {"10.0.0.3", "10.1.0.3"}


def test_scripts_of_a_changed_plan_are_well_formed(tmp_path):
    plan = remove_host(make_plan(Rings(5), TUNING, ["a", "b", "c", "d", "e"]), "b")
    files = {str(path.relative_to(tmp_path)) for path in write_plan(plan, tmp_path)}
    assert "b/retire.sh" in files
    assert "b/B1.conf" in files
    for script in tmp_path.rglob("*.sh"):
        subprocess.run(["sh", "-n", script], check=True)


def test_blueprints_of_version_1_are_read(tmp_path):
    plan = make_plan(Rings(3), TUNING, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    old = msgspec.to_builtins(plan)
    for name in ("order", "leaving", "hosts", "data"):
        del old[name]
    old["version"] = 1
    read = decode_blueprint(msgspec.json.encode(old), "plan.json")
    assert read.rings == plan.rings
    four = add_host(read, "10.0.0.4")
    assert isinstance(four, Blueprint)
    assert four.rings == plan.rings.added()
    assert four.version == 2
    with pytest.raises(InvalidArgument, match="has version 3; this program knows 1 to 2"):
        decode_blueprint(msgspec.json.encode(old | {"version": 3}), "plan.json")
