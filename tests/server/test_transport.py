"""Ways to a server: tokens, TLS, unix sockets, several endpoints; what it says of itself; its end."""

import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

import ringdove
from ringdove import limits, metrics
from ringdove.client.address import parse
from ringdove.controllers.broker import Broker
from ringdove.controllers.catalog import QueueInfo
from ringdove.errors import (
    InvalidArgument,
    NotAuthorized,
    StoreLocked,
    StoreUnavailable,
)
from ringdove.pending import Pending
from ringdove.protocol import messages
from ringdove.protocol.messages import Verb
from server.running import PATIENCE_S, ServerProcess, ServerThread, run_command, wait_for
from server.wire import RawClient, error_of


def assert_works(url: str, **options: Any) -> None:
    """A message goes in and comes out."""
    with ringdove.connect(url, **options) as rd:
        queue = rd.create_queue("q")
        queue.send(b"hello")
        [message] = queue.receive(max=10, wait=10)
        assert message.body == b"hello"
        message.ack()


def get(url: str) -> tuple[int, str]:
    """Status and body of a page."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port where nobody listens, and nobody else will meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


# -- tokens ----------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", token="s3cret/@ü", http=-1) as server:
        yield server


def test_the_right_token_opens(guarded: ServerThread):
    assert_works(f"ringdove://:s3cret%2F%40%C3%BC@127.0.0.1:{guarded.port}")


@pytest.mark.parametrize("secret", ["", ":wrong@", ":s3cret@", ":s3cret%2F%40%C3%BC%00@"])
def test_another_token_or_none_is_refused_at_once(guarded: ServerThread, secret):
    with pytest.raises(NotAuthorized, match="token"):
        ringdove.connect(f"ringdove://{secret}127.0.0.1:{guarded.port}")


def test_nothing_can_be_asked_without_the_token(guarded: ServerThread):
    with RawClient(guarded.port) as client:
        client.send(Verb.HELLO, 0, messages.Hello(1, "thief", [], b"guess"))
        client.send(Verb.LIST, 1, "")
        assert isinstance(client.goodbye(), NotAuthorized)


def test_a_token_is_not_shown():
    assert "s3cret" not in repr(parse("ringdove://:s3cret@127.0.0.1:7117"))


# -- TLS -------------------------------------------------------------------------------------------

#: What uvloop says when a loop is closed before the last connection: the client's, before TLS has
#: said goodbye, and the server's, when an HTTP client does not take its answer.
ROUGH_END = (
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)
tls_ends_roughly = pytest.mark.filterwarnings(*ROUGH_END)


class Files:
    """Certificates as files: of the server, of its authority, and of a client."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        self.ca = self.client_ca = str(directory / "ca.pem")
        self.cert, self.key = str(directory / "cert.pem"), str(directory / "key.pem")
        authority.cert_pem.write_to_path(self.ca)
        server.cert_chain_pems[0].write_to_path(self.cert)
        server.private_key_pem.write_to_path(self.key)
        self.client = self._issue(authority, directory / "client.pem")
        self.stranger = self._issue(trustme.CA(), directory / "stranger.pem")

    @staticmethod
    def _issue(authority: trustme.CA, path: Path) -> str:
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(
            str(path)
        )
        return str(path)

    @property
    def server_options(self) -> dict[str, Any]:
        return {"tls_cert": self.cert, "tls_key": self.key, "http": -1}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@tls_ends_roughly
def test_tls_carries_messages_small_and_large(tmp_path: Path, files: Files):
    with ServerThread(tmp_path / "data", **files.server_options) as server:
        assert server.url.startswith("ringdoves://")
        assert_works(server.url, tls_ca=files.ca)
        with ringdove.connect(server.url, tls_ca=files.ca) as rd:
            bodies = [bytes([n]) * 1_000_000 for n in range(5)]
            rd.queue("q").send_many(bodies)
            assert [m.body for m in rd.queue("q").receive(max=10, wait=10)] == bodies


@tls_ends_roughly
def test_a_server_that_is_not_trusted_is_refused(tmp_path: Path, files: Files):
    with (
        ServerThread(tmp_path / "data", **files.server_options) as server,
        pytest.raises(StoreUnavailable, match=r"certificate verify failed.*option tls_ca"),
    ):
        ringdove.connect(server.url, connect_s=1)


@tls_ends_roughly
def test_plain_and_tls_do_not_mix(tmp_path: Path, files: Files):
    with ServerThread(tmp_path / "tls", **files.server_options) as server:
        with pytest.raises(StoreUnavailable, match="TLS is reached by ringdoves://"):
            ringdove.connect(f"ringdove://127.0.0.1:{server.port}", connect_s=1)
        assert_works(server.url, tls_ca=files.ca)
    with ServerThread(tmp_path / "plain", http=-1) as server:
        with pytest.raises(StoreUnavailable, match="No server answered"):
            ringdove.connect(f"ringdoves://127.0.0.1:{server.port}", tls_ca=files.ca, connect_s=1)
        assert_works(server.url)


@tls_ends_roughly
def test_mutual_tls_takes_only_clients_of_the_authority(tmp_path: Path, files: Files):
    options = {**files.server_options, "tls_client_ca": files.client_ca}
    with ServerThread(tmp_path / "data", **options) as server:
        assert_works(server.url, tls_ca=files.ca, tls_cert=files.client)
        for wrong in (None, files.stranger):
            with pytest.raises(StoreUnavailable, match="No server answered"):
                ringdove.connect(
                    server.url, tls_ca=files.ca, tls_cert=wrong, connect_s=1, session_s=3
                )
        assert_works(server.url, tls_ca=files.ca, tls_cert=files.client)


def test_tls_1_2_is_spoken_too(tmp_path: Path, files: Files):
    with ServerThread(tmp_path / "data", **files.server_options) as server:
        context = ssl.create_default_context(cafile=files.ca)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            assert wrapped.version() == "TLSv1.2"


@pytest.mark.parametrize(
    "options",
    [
        {"tls_key": "key.pem"},
        {"tls_client_ca": "ca.pem"},
        {"tls_cert": "/nowhere/cert.pem", "tls_key": "/nowhere/key.pem"},
        {"tls_cert": __file__, "tls_key": __file__},
    ],
)
def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path, options):
    with pytest.raises(InvalidArgument, match=r"TLS|tls"):
        ServerThread(tmp_path / "data", **options)


def test_a_clients_tls_files_that_cannot_be_used_are_named():
    with pytest.raises(InvalidArgument, match="TLS files"):
        ringdove.connect("ringdoves://127.0.0.1:1", tls_ca="/nowhere/ca.pem")


# -- where to listen and connect -------------------------------------------------------------------


def test_a_unix_socket_serves_and_is_removed(tmp_path: Path):
    path = tmp_path / "socket"
    with ServerThread(tmp_path / "data", port=-1, http=-1, unix=str(path)):
        assert_works(f"ringdove+unix:{path}")
    assert not path.exists()


def test_a_unix_socket_left_by_a_killed_server_is_taken_over(tmp_path: Path):
    path = tmp_path / "socket"
    with ServerProcess(tmp_path / "data", "--unix", str(path)) as server:
        server.kill()
        assert path.exists()
        server.start()
        assert_works(f"ringdove+unix:{path}")


def test_a_unix_socket_can_be_used_with_a_token(tmp_path: Path):
    path = tmp_path / "socket"
    with ServerThread(tmp_path / "data", port=-1, http=-1, unix=str(path), token="t"):
        assert_works(f"ringdove+unix://:t@{path}", connect_s=1)


def test_a_unix_socket_of_a_running_server_is_left_to_it(tmp_path: Path):
    path = tmp_path / "socket"
    with ServerThread(tmp_path / "data", port=-1, http=-1, unix=str(path)):
        with pytest.raises(StoreUnavailable, match=r"A server listens on .*socket already"):
            ServerThread(tmp_path / "other", port=-1, http=-1, unix=str(path))
        assert_works(f"ringdove+unix:{path}")


def test_a_unix_socket_that_cannot_be_made_is_named(tmp_path: Path):
    with pytest.raises(StoreUnavailable, match=r"Cannot listen on .*/socket: No such file"):
        ServerThread(tmp_path / "data", http=-1, unix=str(tmp_path / "nowhere/socket"))


def test_a_socket_in_the_place_of_ones_own_is_not_removed(tmp_path: Path):
    path = tmp_path / "socket"
    with ServerThread(tmp_path / "data", port=-1, http=-1, unix=str(path)):
        path.rename(tmp_path / "ours")
        path.touch()
    assert path.exists()


@pytest.mark.parametrize("token", [None, "t/@"])
@tls_ends_roughly
def test_a_directory_leads_to_its_server_by_a_unix_socket(
    tmp_path: Path, files: Files, token: str | None
):
    """Also where its port speaks TLS, which needs a certificate that the directory has not."""
    path = tmp_path / "a socket"
    options = {**files.server_options, "unix": str(path), "token": token}
    for ways in ({"port": -1, "http": -1, "unix": str(path), "token": token}, options):
        with ServerThread(tmp_path / "data", **ways):
            assert_works(f"file:{tmp_path / 'data'}")


def test_the_first_endpoint_that_answers_is_used(tmp_path: Path, dead_port: int):
    with ServerThread(tmp_path / "data", http=-1) as server:
        for _ in range(5):  # The order is drawn at random.
            assert_works(f"ringdove://127.0.0.1:{dead_port},127.0.0.1:{server.port}")


def test_a_client_without_any_server_says_where_it_looked(dead_port: int):
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{dead_port}.*Is it running"):
        ringdove.connect(f"ringdove://127.0.0.1:{dead_port}", connect_s=0.5)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_protection(tmp_path: Path, files: Files, host):
    for options in ({}, {"token": "t"}, files.server_options):
        with pytest.raises(InvalidArgument, match="--insecure"):
            ServerThread(tmp_path / "data", host=host, **options)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mqtt_rules", ("nonsense",)),
        ("mqtt_permissions", ("nonsense",)),
        ("mqtt_keep_alive_s", 70_000),
        ("mqtt_session_s", -1),
    ],
)
def test_what_the_gateway_cannot_be_told_is_refused_before_anything_is_made(
    tmp_path: Path, option, value
):
    with pytest.raises(InvalidArgument):
        ServerThread(tmp_path / "data", mqtt=0, **{option: value})
    assert not (tmp_path / "data").exists()


@tls_ends_roughly
def test_an_address_that_others_reach_is_allowed_when_protected(tmp_path: Path, files: Files):
    options = {**files.server_options, "host": "0.0.0.0", "token": "t"}
    with ServerThread(tmp_path / "data", **options) as server:
        assert_works(f"ringdoves://:t@127.0.0.1:{server.port}", tls_ca=files.ca)


def test_an_address_that_others_reach_is_allowed_when_told_so(tmp_path: Path):
    with ServerProcess(tmp_path / "data", "--insecure", host="0.0.0.0") as server:
        assert_works(f"ringdove://127.0.0.1:{server.port}")
    refused = run_command(
        "--data", str(tmp_path / "other"), "serve", "--host", "0.0.0.0", "--port", "0"
    )
    assert refused.returncode == 1
    assert b"--insecure" in refused.stderr
    assert b"Traceback" not in refused.stderr


def test_a_socket_that_cannot_be_made_is_a_clear_error(tmp_path: Path):
    path = tmp_path / "nowhere" / "socket"
    refused = run_command(
        "--data", str(tmp_path / "data"), "serve", "--port", "0", "--http", "-1",
        "--unix", str(path),
    )  # fmt: skip
    assert refused.returncode == 3
    assert f"Cannot listen on {path}: No such file or directory.".encode() in refused.stderr
    assert b"port" not in refused.stderr


@pytest.mark.parametrize("which", ["port", "http"])
def test_a_port_in_use_is_a_clear_error(tmp_path: Path, which):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"port": "0", "http": "0", which: str(taken.getsockname()[1])}
        refused = run_command(
            "--data", str(tmp_path / "data"), "serve",
            "--port", ports["port"], "--http", ports["http"],
        )  # fmt: skip
    assert refused.returncode == 3
    assert b"Cannot listen" in refused.stderr
    assert b"ddress already in use" in refused.stderr
    assert b"Traceback" not in refused.stderr


def test_an_address_of_another_machine_is_a_clear_error(tmp_path: Path):
    refused = run_command(
        "--data", str(tmp_path / "data"), "serve", "--host", "203.0.113.5", "--insecure"
    )
    assert refused.returncode == 3
    assert b"Give --host an address of this machine." in refused.stderr


@pytest.mark.parametrize("ports", [{"port": 70_000, "http": -1}, {"port": -1, "http": 70_000}])
def test_a_port_that_is_none_is_refused(tmp_path: Path, ports):
    try:
        server = ServerThread(tmp_path / "data", **ports)
    except InvalidArgument:
        return
    with server:
        raise AssertionError(f"it serves on {server.port}")


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path, server: ServerThread):
    with pytest.raises(StoreLocked):
        ServerThread(tmp_path / "data")
    refused = run_command("--data", str(tmp_path / "data"), "serve", "--port", "0", "--http", "0")
    assert refused.returncode == 3
    assert b"--url ringdove://" in refused.stderr
    assert b"Traceback" not in refused.stderr
    assert_works(server.url)


def test_queues_in_memory_vanish_with_the_server(tmp_path: Path):
    with ServerThread(tmp_path / "data", memory=True, http=-1) as server:
        assert_works(server.url)
        server.stop()
        server.start()
        with ringdove.connect(server.url) as rd:
            assert rd.queues() == []
    assert not (tmp_path / "data").exists()


# -- HTTP ------------------------------------------------------------------------------------------


def test_health_and_readiness(server: ServerThread):
    assert get(f"{server.http_url}/healthz") == (200, "ok\n")
    assert get(f"{server.http_url}/readyz") == (200, "ready\n")
    server.server._http.ready = False
    assert get(f"{server.http_url}/readyz") == (503, "not ready\n")
    assert get(f"{server.http_url}/healthz") == (200, "ok\n")


def test_other_pages_and_methods_are_refused(server: ServerThread):
    assert get(f"{server.http_url}/")[0] == 404
    post = urllib.request.Request(f"{server.http_url}/metrics", data=b"x")
    with pytest.raises(urllib.error.HTTPError, match="405") as caught:
        urllib.request.urlopen(post, timeout=PATIENCE_S)
    caught.value.close()


def test_metrics_tell_what_happens(server: ServerThread, rd: ringdove.Connection):
    queue = rd.create_queue("readings")
    queue.send_many([b"x"] * 10)
    queue.receive(max=3)
    streamed = rd.create_queue("streamed")
    streamed.send_many([b"x"] * 5)
    with streamed.stream() as stream:
        assert len(next(iter(stream))) == 5
    status, text = get(f"{server.http_url}/metrics")
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    state = 'ringdove_queue_messages{queue="readings",state="%s",subscription="default"}'
    assert float(values["ringdove_connections"]) == 1
    assert float(values["ringdove_connections_accepted_total"]) == 1
    assert float(values["ringdove_requests_total"]) >= 3
    assert float(values["ringdove_delivered_messages_total"]) == 3
    assert float(values["ringdove_written_messages_total"]) == 8
    assert float(values['ringdove_queue_sent_messages_total{queue="readings"}']) == 10
    assert float(values['ringdove_queue_bytes{queue="readings"}']) > 0
    assert float(values['ringdove_queue_delivered_messages_total{queue="readings"}']) == 3
    assert float(values['ringdove_queue_delivered_messages_total{queue="streamed"}']) == 5
    assert float(values['ringdove_queue_redelivered_messages_total{queue="readings"}']) == 0
    assert float(values[state % "leased"]) == 3
    assert float(values[state % "waiting"]) == 7
    assert "# HELP ringdove_requests_total" in text


def test_metrics_count_receivers_that_wait(server: ServerThread, rd: ringdove.Connection):
    rd.create_queue("empty")
    with RawClient(server.port) as client:
        client.hello().send(Verb.RECEIVE, 1, messages.Receive("empty", "default", 1, 60, None))
        wait_for(
            lambda: "ringdove_receivers_parked 1.0" in get(f"{server.http_url}/metrics")[1],
            "a receiver is parked",
        )


# -- the end ---------------------------------------------------------------------------------------


def test_sigterm_answers_receivers_that_wait_and_ends_well(process: ServerProcess):
    with ringdove.connect(process.url) as rd:
        rd.create_queue("empty")
    with RawClient(process.port) as client:
        client.hello()
        client.send(Verb.RECEIVE, 1, messages.Receive("empty", "default", 1, 600, None))
        assert client.ask(Verb.PING, 2).number == 2
        process.ask_to_stop()
        answer = client.next()
        assert (answer.verb, answer.number) == (Verb.ERROR, 1)
        assert error_of(answer).code == "closed"
        goodbye = client.next()
        assert goodbye.verb == Verb.GOODBYE
        assert error_of(goodbye).code == "closed"
        assert client.closed()
    assert process.wait() == 0
    assert "Traceback" not in process.log


def test_a_request_to_a_server_that_drains_is_refused_and_what_was_accepted_is_answered(
    server: ServerThread, rd: ringdove.Connection, monkeypatch: pytest.MonkeyPatch
):
    rd.create_queue("q")
    held: Pending[None] = Pending()
    get_queue = Broker.get_queue

    async def slow(self: Broker, name: str) -> QueueInfo:
        await held
        return await get_queue(self, name)

    monkeypatch.setattr(Broker, "get_queue", slow)
    with RawClient(server.port) as client:
        client.hello().send(Verb.GET, 1, "q")
        assert client.ask(Verb.PING, 2).number == 2
        server.ask_to_stop()
        assert client.next().verb == Verb.GOODBYE
        refused = client.ask(Verb.LIST, 3, "")
        assert (refused.verb, refused.number) == (Verb.ERROR, 3)
        assert error_of(refused).code == "closed"
        server.loop.call_soon_threadsafe(held.resolve, None)
        accepted = client.next()
        assert (accepted.verb, accepted.number) == (Verb.REPLY, 1)
        assert client.closed()


def test_sigterm_keeps_every_send_that_was_acknowledged(process: ServerProcess):
    accepted: list[bytes] = []
    enough = threading.Event()

    def produce(name: int) -> None:
        with ringdove.connect(process.url, session_s=1, timeout_s=5) as rd:
            queue = rd.create_queue("q")
            for number in range(100_000):
                body = b"%d-%d" % (name, number)
                try:
                    queue.send(body)
                except ringdove.RingdoveError:
                    return
                accepted.append(body)
                if len(accepted) > 500:
                    enough.set()

    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(produce, name) for name in range(4)]
        assert enough.wait(PATIENCE_S)
        assert process.terminate() == 0
        for each in work:
            each.result(PATIENCE_S)
    with ringdove.connect(f"file:{process.data}") as rd:
        found = [message.body for message in rd.queue("q").receive(max=100_000)]
    assert set(accepted) <= set(found)
    assert len(found) == len(set(found)), "a send was stored twice"


def test_ctrl_c_ends_well_too(process: ServerProcess):
    process.process.send_signal(2)
    assert process.wait() == 0


def test_an_idle_http_client_does_not_delay_the_end(process: ServerProcess):
    with socket.create_connection(("127.0.0.1", process.http_port), PATIENCE_S) as idle:
        idle.sendall(b"GET /metr")
        assert process.terminate() == 0


@pytest.mark.filterwarnings(*ROUGH_END)
def test_an_http_client_that_does_not_read_does_not_delay_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def endless(*_: object) -> bytes:
        return bytes(32 << 20)

    monkeypatch.setattr(limits, "DRAIN_S_MAX", 1)
    monkeypatch.setattr(metrics, "render", endless)
    with ServerThread(tmp_path / "data") as server, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(PATIENCE_S)
        deaf.connect(("127.0.0.1", server.http_port))
        deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert deaf.recv(4) == b"HTTP"
        server.ask_to_stop()
        wait_for(lambda: not server.running, "the server ends", patience_s=4)


# -- the command line ------------------------------------------------------------------------------


def test_commands_work_on_a_server(server: ServerThread):
    def command(*arguments: str, **options: Any) -> str:
        done = run_command("--url", server.url, *arguments, **options)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    command("queue", "create", "readings", "--lease-ms", "10m")
    [listed] = [json.loads(line) for line in command("queue", "list", "--json").splitlines()]
    assert listed["name"] == "readings"
    command("send", "readings", "one", "two")
    command("send", "readings", "-", input=b"three\nfour\n")
    assert command("receive", "readings", "--max", "3", "--ack") == "one\ntwo\nthree\n"
    [stats] = [json.loads(line) for line in command("stats", "--json").splitlines()]
    assert stats["queue"] == "readings"
    assert "readings" in command("stats")
    assert command("receive", "readings", "--max", "3", "--ack") == "four\n"


def test_a_command_without_a_server_says_so(dead_port: int):
    done = run_command("--url", f"ringdove://127.0.0.1:{dead_port}", "queue", "list")
    assert done.returncode == 3
    assert b"Is it running?" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_command_with_the_wrong_token_says_so(tmp_path: Path):
    with ServerThread(tmp_path / "data", token="right", http=-1) as server:
        done = run_command("--url", f"ringdove://:wrong@127.0.0.1:{server.port}", "queue", "list")
        assert done.returncode == 1
        assert b"token" in done.stderr
        assert b"wrong@" not in done.stderr
