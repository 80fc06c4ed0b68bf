"""Fleets of a few devices against real servers, over each protocol."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess

import pytest

import ringdove
from ringdove.core.readings import is_intact, who_and_which
from ringdove.errors import ClientError, InvalidArgument
from ringdove.fleet import Fleet, Plan
from ringdove.fleet import running as running_module
from ringdove.fleet.place import find_place
from server.running import PATIENCE_S, PROGRAM, ServerProcess, ServerThread, run_command, wait_for

PLAN = Plan(devices=30, rate=5, seconds=1, seed=3, topic="{queue}/{device}")
RULE = "+/+ -> {1}, key = segment 2"
PROTOCOLS = ["mqtt", "coap", "http", "native"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    place = tmp_path_factory.mktemp("fleet") / "data"
    with ServerThread(place, coap=0, mqtt=0, mqtt_rules=RULE) as found:
        yield found


def plan_for(server, protocol, **changes):
    port = {
        "mqtt": server.server.mqtt_port,
        "coap": server.server.coap_port,
        "http": server.http_port,
        "native": server.port,
    }[protocol]
    scheme = "ringdove" if protocol == "native" else protocol
    return PLAN._replace(protocol=protocol, url=f"{scheme}://127.0.0.1:{port}", **changes)


def run(plan, check_url=None, trace_to=None, meanwhile=None):
    async def main():
        fleet = Fleet(plan, check_url, trace_to)
        doing = meanwhile and asyncio.create_task(meanwhile(fleet))
        try:
            return await fleet.run()
        finally:
            if doing:
                await doing

    return asyncio.run(main())


async def until(condition):
    """Wait in another thread, so that the fleet goes on."""
    await asyncio.to_thread(wait_for, condition, "the fleet is under way")


def perfect(report):
    kept = ("lost", "duplicated", "damaged", "unexpected", "unacknowledged", "out_of_order_rate")
    return {name: report[name] for name in kept} == dict.fromkeys(kept, 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_reading_arrives_once_in_order_and_whole(server, protocol):
    report = run(plan_for(server, protocol, queue=f"all_{protocol}"), server.url)
    assert report["sent"] == report["received"] > 100
    assert perfect(report)
    with ringdove.connect(server.url) as rd:
        queue = rd.queue(f"all_{protocol}")
        messages = list(queue.receive(max=1_000))
        assert queue.subscriptions() == ("default",), "the checker leaves nothing behind"
    assert len(messages) == report["sent"]
    for message in messages:
        assert is_intact(message.body)
        assert who_and_which(message.body)[0].encode() == message.key


def test_the_same_seed_sends_as_many_at_the_same_times(server):
    with ringdove.connect(server.url) as rd:
        rd.create_queue("seeds")
    sent = [run(plan_for(server, "coap", queue="seeds", seed=seed))["sent"] for seed in (5, 5, 6)]
    assert sent[0] == sent[1]
    assert sent[0] != sent[2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_devices_that_lose_their_connection_come_back(server, protocol):
    report = run(plan_for(server, protocol, queue=f"drop_{protocol}", drop=0.5), server.url)
    assert report["connects"] > 1.5 * PLAN.devices
    assert perfect(report)


def test_devices_that_are_put_off_come_again(tmp_path):
    with ServerThread(tmp_path, coap=0, coap_rate=60) as server:
        report = run(plan_for(server, "coap"), server.url)
    assert report["put_off"] > 0
    assert perfect(report)


def free_udp_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("protocol", ["coap", "http"])
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(tmp_path, protocol):
    coap_port = free_udp_port()
    with ServerProcess(tmp_path / "data", "--coap", str(coap_port)) as server:
        port = coap_port if protocol == "coap" else server.http_port
        plan = PLAN._replace(protocol=protocol, url=f"{protocol}://127.0.0.1:{port}", seconds=2)

        async def kill(fleet):
            await until(lambda: fleet.ledger.acknowledged >= 30)
            server.kill()
            await asyncio.to_thread(server.start)

        report = run(plan, server.url, meanwhile=kill)
    assert report["sent"] == report["acknowledged"]
    assert (report["lost"], report["damaged"]) == (0, 0)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [("coap", "4.04: There is no queue"), ("http", "404"), ("native", "no queue 'nobody'")],
)
def test_a_refusal_ends_the_fleet_and_is_told(server, protocol, words):
    with pytest.raises(ClientError, match=words):
        run(plan_for(server, protocol, queue="nobody"))


def test_without_a_topic_the_name_of_the_queue_is_one(server):
    report = run(plan_for(server, "mqtt", queue="plain", topic=""), server.url)
    assert perfect(report)
    with pytest.raises(InvalidArgument, match="No topic leads to queue 'plant-1'"):
        run(plan_for(server, "mqtt", queue="plant-1", topic=""))


def test_a_fleet_can_be_stopped_and_reports(server):
    async def stop(fleet):
        await until(lambda: fleet.ledger.acknowledged)
        fleet.stop()

    plan = plan_for(server, "coap", seconds=3_600)
    report = run(plan, server.url, meanwhile=stop)
    assert 0 < report["sent"] < 10_000
    assert perfect(report)


def test_a_fleet_gives_up_when_nobody_answers(monkeypatch):
    monkeypatch.setattr(running_module, "_PATIENCE_S", 0.5)
    plan = PLAN._replace(protocol="coap", url=f"coap://127.0.0.1:{free_udp_port()}", seconds=0.5)
    report = run(plan)
    assert report["unacknowledged"] == report["sent"] > 0


def test_a_fleet_that_reaches_nobody_says_why(monkeypatch):
    monkeypatch.setattr(running_module, "_PATIENCE_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # It does not listen.
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        report = run(PLAN._replace(protocol="http", url=url, seconds=0.5))
    assert f"[Errno {errno.ECONNREFUSED}]" in report["failure"]


def test_traces_of_a_run_are_kept(server, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    report = run(plan_for(server, "native", queue="traced"), server.url, tmp_path)
    rows = pq.read_table(tmp_path)
    assert len(rows) == report["sent"] + report["received"]


def test_too_many_devices_for_the_system_are_refused(server, monkeypatch):
    monkeypatch.setattr(running_module.resource, "getrlimit", lambda _: (100, 100))
    with pytest.raises(ringdove.errors.LimitExceeded, match="ulimit -n"):
        run(plan_for(server, "coap"))


class TestPlaces:
    def test_devices_of_a_server_go_to_the_usual_port_of_its_host(self):
        with find_place("ringdove://:secret@example:1", None, PLAN._replace(protocol="coap")) as p:
            assert p.queues == "ringdove://:secret@example:1"
            assert (p.plan.url, p.plan.token) == ("coap://example:5683", "secret")
        with find_place("ringdove://example:1", None, PLAN._replace(protocol="native")) as p:
            assert p.plan.address == ("example", 1)

    def test_of_several_servers_devices_go_to_the_first(self):
        url = "ringdove://:a%2Fb@one:1,two:2"
        with find_place(url, None, PLAN._replace(protocol="native")) as p:
            assert (p.queues, p.plan.address, p.plan.token) == (url, ("one", 1), "a/b")

    def test_a_directory_is_the_one_that_its_url_names(self, tmp_path):
        with find_place(f"file:{tmp_path}/100%25", None, PLAN._replace(protocol="http")) as p:
            assert p.queues is not None
            assert [path.name for path in tmp_path.iterdir()] == ["100%"]

    def test_a_url_of_devices_says_nothing_of_queues(self):
        with find_place("coap://example", None, PLAN._replace(protocol="coap")) as p:
            assert (p.queues, p.plan.address) == (None, ("example", 5683))

    def test_devices_that_are_told_where_to_go_need_no_server(self, tmp_path):
        url = f"file:{tmp_path}/none"
        with find_place(url, "coap://example", PLAN._replace(protocol="coap")) as p:
            assert (p.queues, p.plan.url) == (None, "coap://example")

    def test_a_directory_that_is_served_needs_to_be_told_where(self, server):
        url = f"file:{server.config.data}"
        with (
            pytest.raises(InvalidArgument, match="--to"),
            find_place(url, None, PLAN._replace(protocol="coap")),
        ):
            pass
        with find_place(url, "coap://127.0.0.1:9", PLAN._replace(protocol="coap")) as p:
            assert (p.queues, p.plan.url) == (server.url, "coap://127.0.0.1:9")

    def test_other_urls_are_refused(self):
        with pytest.raises(InvalidArgument), find_place("redis://x", None, PLAN):
            pass


class TestCommand:
    def test_it_brings_its_own_server_and_reports(self, tmp_path):
        done = run_command(
            "--data", str(tmp_path / "data"), "fleet", "--devices", "20", "--protocol", "coap",
            "--rate", "5", "--seconds", "1", "--check", "--json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["devices"] == 20
        assert perfect(report)

    def test_ctrl_c_gives_the_report(self, tmp_path):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGDOVE_")}
        with subprocess.Popen(
            [
                *PROGRAM, "--data", str(tmp_path / "data"), "fleet", "--devices", "20",
                "--protocol", "http", "--rate", "20", "--seconds", "3600", "--check",
            ],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as fleet:  # fmt: skip
            assert b"connected" in fleet.stderr.readline()
            fleet.send_signal(signal.SIGINT)
            told, _ = fleet.communicate(timeout=PATIENCE_S)
        assert fleet.returncode == 0
        assert b"acknowledged and never received" in told

    def test_a_check_needs_to_know_where_queues_are(self):
        done = run_command("--url", "coap://127.0.0.1:9", "fleet", "--protocol", "coap", "--check")
        assert done.returncode != 0
        assert b"--to" in done.stderr
