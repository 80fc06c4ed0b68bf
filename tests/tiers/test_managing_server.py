"""A real server that is a manager: over the native protocol, REST, metrics and its webhook."""

import json
import threading
import urllib.request
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

import ringdove
from ringdove.errors import InvalidArgument, StoreCorrupted
from ringdove.pending import run
from ringdove.tiers import webhook
from ringdove.tiers.alarms import LAG
from ringdove.tiers.reports import BrokerReport, QueueReport, Where, to_wire
from server.running import ServerProcess, ServerThread, wait_for
from tiers.brokers import bodies, copied


def report(name, **fields):
    return to_wire(BrokerReport(name, 0, "eu", f"ringdove://{name}:7117", **fields))


LATE = report("core", queues=[QueueReport("readings", 7, lag_ms=LAG.upper)])


@pytest.fixture
def manager(tmp_path):
    with ServerThread(tmp_path, manager=True) as running:
        yield running


def tier(rd, command, **arguments):
    return run(rd.backend.tier(command, arguments))


def fetch(server, path):
    with urllib.request.urlopen(server.http_url + path) as answer:
        return answer.read().decode()


def test_a_server_that_is_no_manager_says_so(tmp_path):
    with (
        ServerThread(tmp_path) as plain,
        ringdove.connect(plain.url) as rd,
        pytest.raises(InvalidArgument, match="no manager"),
    ):
        tier(rd, "brokers")


def test_rest_tells_of_brokers_queues_and_alarms(manager):
    with ringdove.connect(manager.url) as rd:
        tier(rd, "beat", report=LATE)
        alarms = wait_for(lambda: tier(rd, "alarms")["now"], "the alarm is raised")
    found = json.loads(fetch(manager, "/v1/tiers"))
    [broker] = found["brokers"]
    assert {k: broker[k] for k in ("name", "level", "region", "upstream", "url", "state")} == {
        "name": "core", "level": 0, "region": "eu", "upstream": "",
        "url": "ringdove://core:7117", "state": "up",
    }  # fmt: skip
    assert broker["lag"] == LAG.upper / 1000
    assert [queue["name"] for queue in found["queues"]] == ["readings"]
    assert found["alarms"] == alarms
    assert 'ringdove_alarms{kind="lag"} 1.0' in fetch(manager, "/metrics")


def test_the_route_is_described(manager):
    document = json.loads(fetch(manager, "/v1/openapi.json"))
    OpenAPIV31SpecValidator(document).validate()
    assert document["paths"]["/v1/tiers"]["get"]["operationId"] == "get_tiers"


def test_brokers_are_known_again_when_the_manager_was_killed(tmp_path):
    with ServerProcess(tmp_path, "--manager") as server, ringdove.connect(server.url) as rd:
        tier(rd, "beat", report=report("core"))
        server.kill()
        server.start()
        tier(rd, "beat", report=report("core"))
        [place] = tier(rd, "where", **to_wire(Where("producer")))
        assert place["name"] == "core"


def test_what_was_heard_outlives_a_restart_in_good_order(tmp_path):
    with ServerThread(tmp_path, manager=True) as server:
        with ringdove.connect(server.url) as rd:
            tier(rd, "beat", report=report("core"))
        server.stop()
        server.start()
        with ringdove.connect(server.url) as rd:
            assert [view["name"] for view in tier(rd, "brokers")] == ["core"]


@pytest.mark.parametrize("lost", [False, True])
def test_a_primary_that_lost_its_lease_takes_no_leave_for_its_successor(manager, tmp_path, lost):
    """Both have one name, and the managers may have heard the other one by now."""
    registry = manager.server.manager.registry
    core = ServerThread(tmp_path / "core", name="core", managers=manager.url)
    with core:
        wait_for(lambda: registry.heard("core"), "its first report")
        if lost:
            core.call(core.server.abort())
    assert ("core" in manager.call(registry.missing()) or bool(registry.heard("core"))) == lost


def test_a_queue_that_cannot_be_looked_at_does_not_hide_its_broker(manager, tmp_path):
    with (
        ServerThread(tmp_path / "core", name="core", managers=manager.url) as core,
        ringdove.connect(core.url) as near,
        ringdove.connect(manager.url) as rd,
    ):
        near.create_queue("damaged")
        near.create_queue("sound")
        broker = core.server.broker
        look = broker.queue_stats

        async def fail(name):
            if name == "damaged":
                raise StoreCorrupted("A block is damaged.")
            return await look(name)

        def told():
            return [queue["name"] for queue in tier(rd, "metadata")]

        broker.queue_stats = fail
        wait_for(lambda: told() == ["sound"], "it reports what it can")


def test_a_broker_reports_its_memory_queues_after_a_power_cut(manager, tmp_path):
    with ServerThread(tmp_path / "core", name="core", managers=manager.url) as core:
        with ringdove.connect(core.url) as near:
            near.create_queue("idle", durability="memory").send(b"gone")
        core.stop()
        (tmp_path / "core" / "memory.boot").write_text("another boot")
        with ringdove.connect(manager.url) as rd:
            wait_for(lambda: not tier(rd, "brokers"), "it has left")
            core.start()
            wait_for(lambda: tier(rd, "brokers") and tier(rd, "metadata"), "it reports")
        with ringdove.connect(core.url) as near:
            assert near.queue("idle").stats().messages == 0


def test_managers_hand_out_no_tokens_and_relays_bring_their_own(tmp_path):
    with ExitStack() as stack:

        def add(name, **options):
            server = ServerThread(tmp_path / name, name=name, http=-1, **options)
            return stack.enter_context(server)

        manager = add("manager", manager=True)
        managed = {"managers": manager.url, "token": "s3cret"}
        core = add("core", **managed)
        rd = stack.enter_context(ringdove.connect(manager.url))
        wait_for(lambda: tier(rd, "brokers"), "the core reports")
        with ringdove.connect(core.url) as near:
            origin = near.create_queue("readings")
            origin.subscribe("local")
            origin.send_many(bodies(0, 3))
        for name, upstream in (("fixed", core.url), ("told", "manager")):
            edge = add(name, level=1, upstream=upstream, **managed)
            with ringdove.connect(edge.url) as far:
                copied(far, "readings", 3)
        wait_for(lambda: len(tier(rd, "brokers")) == 3, "all report")
        wait_for(lambda: repr(tier(rd, "brokers")).count("'upstream': ''") == 1, "they pull")
        places = tier(rd, "where", role="consumer")
        records = manager.call(manager.server.broker.store.scan("tier/"))
        assert len(places) == 3
        assert "s3cret" not in repr([places, tier(rd, "brokers"), tier(rd, "tiers"), records])


@contextmanager
def listener(statuses):
    """An HTTP server that answers with these statuses in turn, the last for ever; what it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, json.loads(body)))
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook?to=us", got
        finally:
            server.shutdown()
            thread.join()


def test_alarms_are_posted_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(webhook, "RETRY_S", (0.01, 0.01, 0.01))
    with (
        listener([500, 503, 204]) as (url, got),
        ServerThread(tmp_path, manager=True, alarm_webhook=url) as server,
        ringdove.connect(server.url) as rd,
    ):
        tier(rd, "beat", report=LATE)
        hook = server.server.manager.webhook
        wait_for(lambda: hook.posted, "the alarm is posted")
        assert [path for path, _ in got] == ["/hook?to=us"] * 3
        assert got[2][1] == {"event": "raised", **tier(rd, "alarms")["now"][0]} | {
            "seen_ms": got[2][1]["seen_ms"]
        }
        assert "ringdove_webhook_posted_total 1.0" in fetch(server, "/metrics")


def test_a_webhook_that_is_away_is_given_up_and_the_manager_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(webhook, "RETRY_S", (0.01,))
    with listener([200]) as (url, _):
        pass  # Nobody listens there any more.
    with (
        ServerThread(tmp_path, manager=True, alarm_webhook=url) as server,
        ringdove.connect(server.url) as rd,
    ):
        tier(rd, "beat", report=LATE)
        wait_for(lambda: server.server.manager.webhook.given_up, "the alarm is given up")
        assert tier(rd, "alarms")["now"][0]["kind"] == "lag"


@pytest.mark.parametrize(
    "options",
    [{"alarm_webhook": "http://here/"}, {"manager": True, "alarm_webhook": "ftp://here/"}],
)
def test_a_webhook_that_makes_no_sense_is_refused(tmp_path, options):
    with pytest.raises(InvalidArgument):
        ServerThread(tmp_path, **options)
