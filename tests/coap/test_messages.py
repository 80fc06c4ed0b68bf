"""The message layer: repetitions, overload, what is no CoAP, who may, and the end of a server."""

import urllib.request

import pytest

import ringdove
from coap.device import OBSERVE, Device
from ringdove import limits
from ringdove.errors import InvalidArgument
from ringdove.protocol.coap.packet import Code, Kind, Option, Packet
from ringdove.server_config import ServerConfig
from server.running import ServerThread, wait_for


class TestRepetition:
    @pytest.mark.parametrize("kind", [Kind.CON, Kind.NON])
    @pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
    def test_a_send_that_comes_again_is_stored_once(self, rd, device, kind, delivery):
        queue = rd.create_queue(f"again-{delivery}-{kind.name}", delivery=delivery)
        asked = device.request(Code.POST, f"/q/{queue.name}", b"x", kind=kind)
        device.send(asked)
        answer = device.read()
        assert answer.code == Code.CHANGED
        device.send(asked)
        device.send(asked)
        assert device.heard() == ([answer, answer] if kind == Kind.CON else [])
        assert len(queue.receive(max=10)) == 1

    def test_a_receive_that_comes_again_gets_the_same_message(self, queue, device):
        queue.send_many([b"1", b"2"])
        asked = device.request(Code.GET, f"/q/{queue.name}")
        answers = set()
        for _ in range(3):
            device.send(asked)
            answers.add(device.read())
        assert len(answers) == 1
        assert queue.stats().subscriptions["default"] == (1, 1, 0)

    def test_another_device_may_use_the_same_number(self, queue, device, port):
        asked = device.request(Code.POST, f"/q/{queue.name}", b"x")
        with Device(port) as other:
            for one in (device, other):
                one.send(asked)
                assert one.read().code == Code.CHANGED
        assert len(queue.receive(max=10)) == 2

    def test_a_request_that_waits_is_acknowledged_each_time_and_answered_once(self, queue, device):
        asked = device.request(Code.GET, f"/q/{queue.name}?wait=30&ack=auto")
        device.send(asked)
        alone = device.read()
        device.send(asked)
        assert device.read() == alone
        queue.send_many([b"1", b"2"])
        device.acknowledge(device.read())
        assert device.heard() == []
        assert queue.stats().waiting() == 1

    def test_a_notification_is_repeated_until_it_is_acknowledged(self, queue, device):
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        queue.send(b"on")
        first = device.read()
        assert device.read() == first
        device.acknowledge(first)
        wait_for(lambda: queue.stats().subscriptions["default"] == (0, 0, 0), "it is done")

    def test_a_send_repeated_to_a_server_that_was_restarted_is_stored_once(self, tmp_path):
        """Of an exactly-once queue, because the server's own memory has gone with it."""
        with ServerThread(tmp_path, coap=0) as server, Device(server.server.coap_port) as device:
            with ringdove.connect(server.url) as rd:
                rd.create_queue("q", delivery="exactly-once")
            asked = device.request(Code.POST, "/q/q", b"x")
            device.send(asked)
            assert device.read().code == Code.CHANGED
            port = server.server.coap_port
            server.stop()
            server.config = ServerConfig(data=str(tmp_path), port=0, http=0, coap=port)
            server.start()
            device.send(asked)
            assert device.read().code == Code.CHANGED
            with ringdove.connect(server.url) as rd:
                assert len(rd.queue("q").receive(max=10)) == 1


class TestOverload:
    def test_above_the_rate_devices_are_told_to_come_back_and_lose_nothing(self, tmp_path):
        with (
            ServerThread(tmp_path, coap=0, coap_rate=5) as server,
            Device(server.server.coap_port) as device,
            ringdove.connect(server.url) as rd,
        ):
            queue = rd.create_queue("q")
            answers = [device.ask(Code.POST, "/q/q", b"%d" % number) for number in range(9)]
            stored = [answer for answer in answers if answer.code == Code.CHANGED]
            busy = [answer for answer in answers if answer.code == Code.UNAVAILABLE]
            assert len(stored) + len(busy) == 9
            assert len(busy) > 0
            assert {answer.number(Option.MAX_AGE) for answer in busy} == {1}
            assert len(queue.receive(max=10)) == len(stored)
            assert server.server.coap.refused == len(busy)

            # What was refused is tried again when it is repeated, with the same message id.
            asked = device.request(Code.POST, "/q/q", b"again")

            def comes_through():
                device.send(asked)
                return Code.CHANGED in [answer.code for answer in device.heard()]

            wait_for(comes_through, "the rate allows it")

    def test_far_above_the_rate_there_is_no_answer(self, tmp_path):
        with (
            ServerThread(tmp_path, coap=0, coap_rate=1) as server,
            Device(server.server.coap_port) as device,
        ):
            for _ in range(50):
                device.send(device.request(Code.GET, "/q"))
            wait_for(lambda: server.server.coap.refused > 40, "the flood has come")
            assert len(device.heard()) < 45

    @pytest.mark.parametrize("limit", ["COAP_EXCHANGES_MAX", "COAP_EXCHANGE_BYTES_MAX"])
    def test_memory_of_requests_is_bounded(self, tmp_path, monkeypatch, limit):
        monkeypatch.setattr(limits, limit, 3)
        with (
            ServerThread(tmp_path, coap=0) as server,
            Device(server.server.coap_port) as device,
            ringdove.connect(server.url) as rd,
        ):
            queue = rd.create_queue("q")
            answers = [device.ask(Code.POST, "/q/q", b"x") for _ in range(10)]
            codes = [answer.code for answer in answers]
            assert codes == [Code.CHANGED] * 3 + [Code.UNAVAILABLE] * 7
            assert answers[-1].number(Option.MAX_AGE) > 100
            assert server.server.coap.remembered == 3
            assert queue.stats().messages == 3

    def test_requests_under_way_are_bounded(self, queue, server, device, monkeypatch):
        monkeypatch.setattr(limits, "COAP_REQUESTS_MAX", 1)
        device.send(device.request(Code.GET, f"/q/{queue.name}?wait=30&ack=auto"))
        busy = device.ask(Code.GET, f"/q/{queue.name}?wait=30", token=b"u")
        assert (busy.code, busy.token) == (Code.UNAVAILABLE, b"u")
        queue.send(b"x")
        while (packet := device.read()).code == Code.EMPTY:
            pass
        assert packet.payload == b"x"

    def test_messages_that_nobody_acknowledges_are_bounded(self, queue, device, monkeypatch):
        monkeypatch.setattr(limits, "COAP_UNACKNOWLEDGED_MAX", 1)
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        queue.send(b"on")
        told = device.read()
        assert device.ask(Code.GET, f"/q/{queue.name}").code == Code.UNAVAILABLE
        device.acknowledge(told)
        assert device.ask(Code.GET, f"/q/{queue.name}").code == Code.CONTENT

    def test_observers_are_bounded(self, queue, device, monkeypatch):
        monkeypatch.setattr(limits, "COAP_OBSERVERS_MAX", 0)
        queue.send(b"x")
        answer = device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        assert (answer.payload, answer.number(Option.OBSERVE)) == (b"x", None)


class TestOtherMessages:
    def test_a_ping_is_answered(self, device):
        assert device.heard() == []

    def test_what_is_no_coap_is_rejected_or_ignored(self, server, device):
        before = server.server.coap.malformed
        for data in (b"", b"\x40", b"\x90\x01\x00\x07", b"\x50\x01\x00\x07\xff"):
            device.send(data)
        device.send(b"\x40\x01\x12\x34\xff")
        assert device.read() == Packet(Kind.RST, Code.EMPTY, 0x1234)
        assert device.heard() == []
        assert server.server.coap.malformed == before + 5

    def test_a_response_to_nothing_is_rejected(self, device):
        device.send(Packet(Kind.CON, Code.CONTENT, 7, b"t", (), b"x"))
        assert device.read() == Packet(Kind.RST, Code.EMPTY, 7)
        device.send(Packet(Kind.ACK, Code.CONTENT, 8, b"t", (), b"x"))
        device.send(Packet(Kind.NON, Code.CONTENT, 9, b"t", (), b"x"))
        assert device.heard() == []

    def test_an_unknown_method_is_not_allowed(self, queue, device):
        assert device.ask(7, f"/q/{queue.name}").code == Code.METHOD_NOT_ALLOWED


class TestAccess:
    @pytest.fixture
    def guarded(self, tmp_path):
        with ServerThread(tmp_path, coap=0, token="secret") as server:
            with ringdove.connect(server.url) as rd:
                rd.create_queue("q")
            with Device(server.server.coap_port) as device:
                yield server, device

    def test_the_token_goes_in_the_query(self, guarded):
        _, device = guarded
        assert device.ask(Code.POST, "/q/q", b"x").code == Code.UNAUTHORIZED
        assert device.ask(Code.POST, "/q/q?token=guess", b"x").code == Code.FORBIDDEN
        assert device.ask(Code.POST, "/q/q?token=secret", b"x").code == Code.CHANGED
        assert device.ask(Code.GET, "/.well-known/core").code == Code.UNAUTHORIZED
        assert device.ask(Code.GET, "/q?token=secret").code == Code.CONTENT

    def test_an_access_key_may_do_what_it_may(self, guarded):
        server, device = guarded

        async def make_key():
            accounts = server.server._broker.accounts
            account, _ = await accounts.create("devices")
            await accounts.grant(account.id, "q", ["send"])
            return await accounts.add_key(account.id, ["send"])

        key = server.call(make_key())
        token = f"token={key.id}:{key.secret}"
        assert device.ask(Code.POST, f"/q/q?{token}", b"x").code == Code.CHANGED
        assert device.ask(Code.GET, f"/q/q?{token}").code == Code.FORBIDDEN
        assert device.ask(Code.POST, f"/q/q?{token}x", b"x").code == Code.FORBIDDEN

    @pytest.mark.parametrize("path", ["/q/q", "/q/q/last"])
    def test_an_observer_whose_key_is_revoked_is_told_no_more(self, guarded, path):
        server, device = guarded
        accounts = server.server._broker.accounts
        _, key = server.call(accounts.create("devices"))
        server.call(accounts.grant("devices", "q", ["receive"]))
        with ringdove.connect(server.url) as rd:
            asked = f"{path}?token={key.id}:{key.secret}"
            assert device.ask(Code.GET, asked, b"", OBSERVE).number(Option.OBSERVE) == 0
            rd.queue("q").send(b"one")
            told = device.read()
            device.acknowledge(told)
            assert told.payload == b"one"
            server.call(accounts.revoke_key(key.id))
            rd.queue("q").send(b"two")
            last = device.read()
            assert (last.code, last.number(Option.OBSERVE)) == (Code.FORBIDDEN, None)
            wait_for(lambda: rd.queue("q").stats().waiting(), "it was given back")

    def test_an_address_that_others_reach_must_be_asked_for(self, tmp_path):
        with pytest.raises(InvalidArgument, match="no DTLS"):
            ServerThread(
                tmp_path, coap=0, host="0.0.0.0", token="secret", tls_cert="c", tls_key="k"
            )


def test_a_closing_server_ends_what_waits(tmp_path):
    with (
        ServerThread(tmp_path, coap=0) as server,
        Device(server.server.coap_port) as device,
        ringdove.connect(server.url) as rd,
    ):
        rd.create_queue("q")
        device.ask(Code.GET, "/q/q", b"", OBSERVE)
        device.send(device.request(Code.GET, "/q/q?wait=60", token=b"u"))
        assert device.read().code == Code.EMPTY
        device.send(device.request(Code.GET, "/q/q?wait=60", token=b"v", kind=Kind.NON))
        wait_for(lambda: server.server._broker.dequeuer.parked == 3, "all of them wait")
        server.stop()
        last = {device.read() for _ in range(2)}
        assert {(packet.code, packet.token) for packet in last} == {
            (Code.UNAVAILABLE, b"u"),
            (Code.UNAVAILABLE, b"v"),
        }


def test_a_failure_inside_is_not_told(server, device, monkeypatch, caplog):
    async def fail(**_):
        raise RuntimeError("a secret of the house")

    monkeypatch.setattr(server.server._broker, "list_queues", fail)
    answer = device.ask(Code.GET, "/q")
    assert (answer.code, answer.payload) == (Code.SERVER_ERROR, b"")
    assert "a secret of the house" in caplog.text


def test_metrics_tell_of_it(server, queue, device):
    asked = device.request(Code.POST, f"/q/{queue.name}", b"x")
    for _ in range(2):
        device.send(asked)
        device.read()
    with urllib.request.urlopen(f"{server.http_url}/metrics") as answer:
        told = dict(line.rsplit(b" ", 1) for line in answer if not line.startswith(b"#"))
    assert float(told[b"ringdove_coap_repeated_total"]) == server.server.coap.repeated > 0
    assert float(told[b"ringdove_coap_remembered"]) == server.server.coap.remembered > 0


def test_a_port_that_is_taken_is_reported(port, tmp_path):
    with pytest.raises(ringdove.errors.StoreUnavailable, match="Cannot listen"):
        ServerThread(tmp_path, coap=port)
