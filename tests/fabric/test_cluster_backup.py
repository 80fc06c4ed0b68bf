"""Backups of a cluster, and clusters made from them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading

import pytest

import ringdove
from fabric.clusters import TUNING, Host, drain, free_base, running, send, until
from ringdove.cluster import forming, processes
from ringdove.cluster.forming import look_around
from ringdove.cluster.local import LocalCluster
from ringdove.cluster.pictures import back_up, take
from ringdove.cluster.plan import make_plan, write_plan
from ringdove.cluster.status import look_at_foreign, slots_missing
from ringdove.core.ring import Rings
from ringdove.errors import InvalidArgument, StoreUnavailable
from ringdove.stores.fabric.url import parse_url
from ringdove.stores.fabric.wire import Login, NodeAddress


def test_a_cluster_made_from_a_backup_has_every_message_and_what_was_leased_comes_again(tmp_path):
    with (
        running(tmp_path / "old", Rings(2, 2), "old/secret") as old,
        ringdove.connect(old.url) as connection,
    ):
        queue = connection.create_queue("q", stripes=8, copies=2, lease_ms=1_000)
        sent = send(queue, 0, 30)
        done = queue.receive(max=10)
        done.ack()
        sent -= {int(message.body) for message in done}
        leased = queue.receive(max=10)
        assert len(leased) == 10
        shown = []
        sizes = back_up(old.blueprint, tmp_path / "backup", shown.append)
        assert shown == [1, 2, 3, 4]
        assert sizes.keys() == {"A1", "A2", "B1", "B2"}
        send(queue, 1000, 10)
        with pytest.raises(InvalidArgument, match="is not empty"):
            back_up(old.blueprint, tmp_path / "backup")
        check_guarded(old)
    shutil.rmtree(tmp_path / "old")
    with pytest.raises(StoreUnavailable, match="Nobody serves A1, A2, B1, B2: nothing was backed"):
        back_up(old.blueprint, tmp_path / "other")

    for path in (tmp_path / "backup").iterdir():
        assert b"old/secret" not in path.read_bytes()
    new = LocalCluster.restore(tmp_path / "new", tmp_path / "backup", password="new")
    try:
        assert new.status().ok
        with ringdove.connect(new.url) as connection:
            queue = connection.queue("q")
            found = set()
            until(lambda: found.update(drain(queue)) or found >= sent)
            assert found == sent
            assert send(queue, 2000, 10) == drain(queue)
    finally:
        processes.kill(new.running())


def check_guarded(cluster):
    """Nobody gets in without the password, or reads it in a file."""
    assert cluster.url.startswith("redis://:old%2Fsecret@127.0.0.1:")
    place = parse_url(cluster.url)
    assert slots_missing(look_at_foreign(place.nodes, place.login)) == 0
    with pytest.raises(StoreUnavailable, match="is no node of a cluster: NOAUTH"):
        look_at_foreign(place.nodes)
    with pytest.raises(StoreUnavailable, match="does not let us in: WRONGPASS"):
        look_at_foreign(place.nodes, Login(password="wrong"))
    with pytest.raises(StoreUnavailable, match="sent no picture: it answered '-NOAUTH"):
        take(place.nodes[0], cluster.directory / "picture")
    for path in (cluster.directory / "cluster.json", cluster.directory / "A/A1/redis.conf"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_backup_that_is_not_whole_is_refused(tmp_path):
    plan = make_plan(Rings(1, 1), TUNING, ["127.0.0.1"])
    write_plan(plan, tmp_path / "backup")
    (tmp_path / "backup" / "A1.rdb").touch()
    with pytest.raises(InvalidArgument, match="is no whole backup: there is no picture of A2"):
        LocalCluster.restore(tmp_path / "new", tmp_path / "backup")
    assert not (tmp_path / "new").exists()


def test_a_damaged_backup_leaves_no_cluster_behind(tmp_path):
    plan = make_plan(Rings(1, 1), TUNING, ["127.0.0.1"])
    write_plan(plan, tmp_path / "backup")
    for shard in ("A1", "A2"):
        (tmp_path / "backup" / f"{shard}.rdb").write_bytes(b"REDIS0010\xff damaged")
    with pytest.raises(StoreUnavailable, match=r"Redis of A/A. has ended: .*"):
        LocalCluster.restore(tmp_path / "new", tmp_path / "backup")
    assert not any((tmp_path / "new").iterdir())


# -- what a master may answer -------------------------------------------------------------------


def answering(*parts):
    """A port where somebody answers each of several requests with the next part, then hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listener, listener.accept()[0] as connection:
            for part in parts:
                connection.recv(1000)
                connection.sendall(part)

    thread = threading.Thread(target=serve)
    thread.start()
    return NodeAddress("127.0.0.1", listener.getsockname()[1]), thread


MARK = b"m" * 40


@pytest.mark.parametrize(
    ("answer", "picture"),
    [
        (b"\n\n$EOF:" + MARK + b"\r\n" + b"picture" + MARK, b"picture"),
        (b"$EOF:" + MARK + b"\r\n" + b"m" * 30 + MARK, b"m" * 30),
        (b"$EOF:" + MARK + b"\r\n" + MARK, b""),
        (b"\n$7\r\npicture", b"picture"),
        (b"$7\r\npicture*1\r\n$4\r\nPING\r\n", b"picture"),
    ],
)
def test_a_picture_is_what_lies_between_head_and_mark(tmp_path, answer, picture):
    address, thread = answering(b"+OK\r\n", b"+OK\r\n", answer)
    assert take(address, tmp_path / "A1.rdb") == len(picture)
    thread.join()
    assert (tmp_path / "A1.rdb").read_bytes() == picture


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ((b"-ERR unknown command\r\n",), "it answered '-ERR unknown command'"),
        ((b"+OK\r\n", b"+OK\r\n", b"-NOMASTERLINK\r\n"), "it answered '-NOMASTERLINK'"),
        ((b"+OK\r\n", b"+OK\r\n", b"$9\r\npicture"), "it hung up"),
        ((b"+OK\r\n", b"+OK\r\n", b"$EOF:" + MARK + b"\r\npicture"), "it hung up"),
        ((b"+OK\r\n", b"+OK\r\n", b"$EOF:short\r\n"), "a mark of 5 bytes"),
    ],
)
def test_half_a_picture_is_no_backup(tmp_path, answers, complaint):
    address, thread = answering(*answers)
    with pytest.raises(StoreUnavailable, match=complaint):
        take(address, tmp_path / "A1.rdb")
    thread.join()


# -- hosts of a plan ----------------------------------------------------------------------------


def test_a_host_takes_pictures_by_its_script_and_begins_with_them_again(tmp_path):
    data = str(tmp_path / "data")
    hosts = ["127.0.0.1"]
    plan = make_plan(Rings(1, 1), TUNING, hosts, port=free_base(), data=data, password="secret")
    write_plan(plan, tmp_path / "plan")
    host = Host(plan, "A", tmp_path / "plan")
    backups = tmp_path / "data-A-backup"
    for day in range(1, 9):
        (backups / f"2000-01-0{day}T00-00-00").mkdir(parents=True)
    try:
        host.start()
        until(lambda: all(look_around(plan).values()))
        forming.form(plan)
        with ringdove.connect(plan.url) as connection:
            queue = connection.create_queue("q", stripes=4, copies=1)
            sent = send(queue, 0, 20)
            host.run("backup.sh")
            kept = sorted(backups.iterdir())
            assert [path.name[:10] for path in kept[:-1]] == [
                f"2000-01-0{day}" for day in range(3, 9)
            ]
            assert {p.name for p in kept[-1].iterdir()} == {"A1.rdb", "A2.rdb", "plan.json"}
            assert drain(queue) == sent
        with pytest.raises(subprocess.CalledProcessError) as refused:
            host.run("restore.sh", kept[-1])
        assert b"A1 runs: stop all processes" in refused.value.stderr
        host.kill()
        host.run("restore.sh", kept[-1])
        host.start()
        until(lambda: all(look_around(plan).values()))
        with ringdove.connect(plan.url) as connection:
            assert drain(connection.queue("q")) == sent
    finally:
        host.kill()
