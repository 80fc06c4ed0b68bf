"""Who may connect, and which topics are his."""

import asyncio
import socket
import ssl

import paho.mqtt.client as paho
import pytest
import trustme
from paho.mqtt.enums import CallbackAPIVersion

import ringdove
from mqtt.wire import Wire
from ringdove.controllers.broker import Broker
from ringdove.errors import InvalidArgument
from ringdove.frontends.mqtt import gateway
from ringdove.frontends.mqtt.access import Doorman, Identity, Permissions
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import encode
from ringdove.protocol.mqtt.packets import V5, Reason
from ringdove.protocol.mqtt.rules import Rules
from ringdove.stores.memory import MemoryStore
from server.running import wait_for

EXPIRY = {"session_expiry_interval": 3600}
LASTING = {"clean": False, "properties": EXPIRY}


def answer(server, version=V5, **fields):
    with Wire(server.server.mqtt_port, version) as wire:
        return wire.connect("device", **fields).reason


def test_with_a_token_nobody_comes_in_without(own_server, version):
    server = own_server(token="secret")
    assert answer(server, version, username="x", password=b"secret") == 0
    for fields in ({}, {"username": "x"}, {"username": "x", "password": b"other"}):
        assert answer(server, version, **fields) == Reason.BAD_CREDENTIALS


def test_accounts_come_in_with_a_password_or_a_key_and_use_the_topics_of_their_queues(own_server):
    server = own_server()
    broker = server.server._broker
    _, key = server.call(broker.accounts.create("ann", password="correct horse"))
    server.call(broker.accounts.grant("ann", "meters.*", ["send"]))
    server.call(broker.accounts.grant("ann", "commands", ["receive"]))
    assert answer(server) == Reason.BAD_CREDENTIALS
    assert answer(server, username="ann", password=b"wrong one") == Reason.BAD_CREDENTIALS
    assert answer(server, username=key.id, password=b"wrong") == Reason.BAD_CREDENTIALS
    assert answer(server, username=key.id, password=key.secret.encode()) == 0
    with Wire(server.server.mqtt_port) as wire:
        assert wire.connect(username="ann", password=b"correct horse").reason == 0
        assert wire.publish("meters/7", b"1", 1).reason == 0
        assert wire.publish("other", b"1", 1).reason == Reason.NOT_AUTHORIZED
        assert wire.publish("other", b"1", 2).reason == Reason.NOT_AUTHORIZED
        granted = wire.subscribe("commands", "meters/7", "#", qos=1)
        assert granted == [1, Reason.NOT_AUTHORIZED, Reason.NOT_AUTHORIZED]
    with Wire(server.server.mqtt_port) as wire:
        refused = wire.connect(username="ann", password=b"correct horse", will=p.Will("other", b""))
        assert refused.reason == Reason.NOT_AUTHORIZED
    with ringdove.connect(server.url) as rd:
        assert [queue.name for queue in rd.queues()] == ["meters.7"]


@pytest.mark.parametrize("change", ["key", "password", "account"])
def test_who_may_not_connect_any_more_does_not_stay(own_server, change, monkeypatch):
    server = own_server()
    accounts = server.server._broker.accounts
    _, key = server.call(accounts.create("ann", password="correct horse"))
    other, own = server.call(accounts.create("bob"))
    with Wire(server.server.mqtt_port) as ann, Wire(server.server.mqtt_port) as bob:
        given = ("ann", "correct horse") if change == "password" else (key.id, key.secret)
        ann.connect("a", username=given[0], password=given[1].encode())
        bob.connect("b", username=own.id, password=own.secret.encode())
        monkeypatch.setattr(gateway, "_CHECK_S", 0)
        if change == "key":
            server.call(accounts.revoke_key(key.id))
        elif change == "password":
            server.call(accounts.set_password("ann", "battery staple"))
        else:
            server.call(accounts.delete("ann"))
        assert ann.closed().reason == Reason.NOT_AUTHORIZED
        assert bob.publish(f"{other.id}/x", b"", 1).reason == 0


@pytest.mark.parametrize("permissions", [(), ("send #", "receive #")], ids=["all", "permissions"])
def test_who_came_in_because_everybody_might_goes_when_there_is_an_account(
    own_server, permissions, version, monkeypatch
):
    server = own_server(mqtt_permissions=permissions)
    monkeypatch.setattr(gateway, "_CHECK_S", 0)
    with Wire(server.server.mqtt_port, version) as wire:
        wire.connect("device", username="ann", password=b"any")
        server.call(server.server._mqtt._check_unasked())
        assert wire.subscribe("#", qos=1) == [1]
        server.call(server.server._broker.accounts.create("ann"))
        last = wire.closed()
        if version == V5:
            assert last.reason == Reason.NOT_AUTHORIZED


def test_who_came_in_with_the_token_or_an_account_stays_when_there_is_another_account(own_server):
    server = own_server(token="secret")
    accounts = server.server._broker.accounts
    _, key = server.call(accounts.create("ann"))
    with Wire(server.server.mqtt_port) as operator, Wire(server.server.mqtt_port) as ann:
        operator.connect("operator", password=b"secret")
        ann.connect("ann", username=key.id, password=key.secret.encode())
        server.call(accounts.create("bob"))
        server.call(server.server._mqtt._check_unasked())
        for wire in (operator, ann):
            assert wire.nothing_more()


def test_who_came_in_with_a_certificate_was_asked():
    async def main():
        permissions = Permissions(["send #"])
        doorman = Doorman(Broker(MemoryStore()), None, permissions, Rules([]))
        certificate = {"subject": ((("commonName", "meter"),),)}
        asked = await doorman.identify(p.Connect("meter"), "meter", certificate)
        unasked = await doorman.identify(p.Connect("meter"), "meter", None)
        assert [doorman.is_unasked(identity) for identity in (asked, unasked)] == [False, True]

    asyncio.run(main())


def test_a_right_that_is_withdrawn_ends_for_those_who_are_connected(own_server, monkeypatch):
    server = own_server()
    accounts = server.server._broker.accounts
    _, key = server.call(accounts.create("ann"))
    server.call(accounts.grant("ann", "meters.*", ["send"]))
    with Wire(server.server.mqtt_port) as wire:
        wire.connect(username=key.id, password=key.secret.encode())
        assert wire.publish("meters/7", b"1", 1).reason == 0
        server.call(accounts.ungrant("ann", "meters.*"))
        monkeypatch.setattr(gateway, "_CHECK_S", 0)
        wait_for(
            lambda: wire.publish("meters/7", b"1", 1).reason == Reason.NOT_AUTHORIZED, "refused"
        )


def test_permissions_name_the_topics_of_each_device(own_server, version):
    server = own_server(mqtt_permissions=("send meters/%c/#", "receive devices/%u/#"))
    with Wire(server.server.mqtt_port, version) as wire:
        wire.connect("m1", username="ann")
        wire.publish("meters/m1/reading", b"1", 1)
        refused = Reason.NOT_AUTHORIZED if version == V5 else 0x80
        assert wire.subscribe("devices/ann/+", "devices/#", "devices/bob/x", qos=1) == [
            1,
            refused,
            refused,
        ]
        if version == V5:
            assert wire.publish("meters/m2/reading", b"1", 1).reason == Reason.NOT_AUTHORIZED
            assert wire.publish("meters/m1", b"1", 1).reason == 0
        else:
            wire.send(p.Publish("meters/m2/reading", b"1", 1, 99))
            assert wire.closed() is None


def test_a_session_is_not_given_to_another_user(own_server, version):
    server = own_server(mqtt_permissions=("send #", "receive devices/%u/#"))
    with Wire(server.server.mqtt_port, version) as wire:
        wire.connect("device", username="ann", **LASTING)
        wire.subscribe("devices/ann/#", qos=1)
    with Wire(server.server.mqtt_port, version) as other:
        other.connect("other")
        other.publish("devices/ann/secret", b"1234", 1)
        with Wire(server.server.mqtt_port, version) as wire:
            assert wire.connect("device", username="ann", **LASTING).session_present
            assert wire.messages(1) == [("devices/ann/secret", b"1234", 1)]
        other.publish("devices/ann/secret", b"5678", 1)
        with Wire(server.server.mqtt_port, version) as wire:
            assert not wire.connect("device", username="eve", **LASTING).session_present
            other.publish("devices/ann/secret", b"9999", 1)
            assert wire.nothing_more()


def test_a_session_of_nobody_goes_to_who_may_have_all_of_it(own_server):
    server = own_server(token="secret", mqtt_permissions=("receive devices/%u/#",))
    accounts = server.server._broker.accounts
    for name in ("ann", "eve"):
        server.call(accounts.create(name, password="correct horse"))
    for name, present in (("ann", True), ("eve", False)):
        with Wire(server.server.mqtt_port) as wire:
            wire.connect("device", clean=True, password=b"secret", properties=EXPIRY)
            wire.subscribe("devices/ann/#", qos=1)
        with Wire(server.server.mqtt_port) as wire:
            answer = wire.connect("device", username=name, password=b"correct horse", **LASTING)
            assert answer.session_present is present


def test_a_filter_that_is_not_allowed_any_more_ends_when_its_client_comes_back(own_server):
    server = own_server(token="secret")
    accounts = server.server._broker.accounts
    server.call(accounts.create("ann", password="correct horse"))
    server.call(accounts.grant("ann", "commands", ["receive"]))
    server.call(accounts.grant("ann", "news", ["receive"]))
    fields = {"username": "ann", "password": b"correct horse", **LASTING}
    with Wire(server.server.mqtt_port) as wire:
        wire.connect("device", **fields)
        assert wire.subscribe("commands", "news", qos=1) == [1, 1]
    server.call(accounts.ungrant("ann", "commands"))
    with Wire(server.server.mqtt_port) as wire, Wire(server.server.mqtt_port) as operator:
        assert wire.connect("device", **fields).session_present
        operator.connect(password=b"secret")
        operator.publish("commands", b"secret", 1)
        operator.publish("news", b"for you", 1)
        assert wire.messages(1) == [("news", b"for you", 1)]
        assert wire.nothing_more()


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_wildcard_gives_only_what_is_allowed(own_server, qos, lasting):
    server = own_server(token="secret", mqtt_rules=("meters/+/reading -> readings",))
    accounts = server.server._broker.accounts
    server.call(accounts.create("ann", password="correct horse"))
    server.call(accounts.grant("ann", "meters.*", ["receive"]))
    fields = {"username": "ann", "password": b"correct horse", **(LASTING if lasting else {})}
    with Wire(server.server.mqtt_port) as wire, Wire(server.server.mqtt_port) as operator:
        operator.connect(password=b"secret")
        operator.publish("meters/1/reading", b"kept", 1, retain=True)
        wire.connect("device", **fields)
        assert wire.subscribe("meters/7/reading", qos=qos) == [Reason.NOT_AUTHORIZED]
        assert wire.subscribe("meters/#", qos=qos) == [qos]
        for topic in ("meters/7/reading", "meters", "meters/7/state"):
            operator.publish(topic, b"12.5", 1)
        assert wire.messages(1) == [("meters/7/state", b"12.5", qos)]
        assert wire.nothing_more()


def test_a_name_cannot_widen_its_permission():
    permissions = Permissions(["send a/%u/#"])
    for name in ("+", "#", "x/y", ""):
        who = Identity(name, "c", permissions, Rules())
        assert not who.may_send("a/b/c")
        assert not who.may_send(f"a/{name}/c")
    assert Identity("b", "c", permissions, Rules()).may_send("a/b/c")
    # Nor does a user get the place of another by what he calls his client.
    who = Identity("%c", "b", permissions, Rules())
    assert (who.may_send("a/b/c"), who.may_send("a/%c/c")) == (False, True)


@pytest.mark.parametrize("text", ["", "send", "manage a", "send a/#/b"])
def test_what_is_no_permission_is_refused(text):
    with pytest.raises(InvalidArgument):
        Permissions([text])


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def secure_server(own_server, authority, tmp_path):
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    files = {
        "chain": tmp_path / "chain.pem",
        "key": tmp_path / "key.pem",
        "ca": tmp_path / "ca.pem",
    }
    certificate.cert_chain_pems[0].write_to_path(files["chain"])
    certificate.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    return own_server(
        tls_cert=str(files["chain"]), tls_key=str(files["key"]), tls_client_ca=str(files["ca"]),
        mqtt_permissions=("send meters/%u/#", "receive meters/%u/#"),
    )  # fmt: skip


def test_a_certificate_says_who_a_device_is(secure_server, authority):
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    authority.configure_trust(context)
    authority.issue_cert("meter-7.example", common_name="meter-7").configure_cert(context)
    got, refused = [], []
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.tls_set_context(context)
    client.on_message = lambda *args: got.append(args[2].payload)
    client.on_publish = lambda *args: refused.append(args[3].value)

    def go_on(*_):
        client.publish("meters/meter-7/reading", b"mine", 1)
        client.publish("meters/meter-8/reading", b"not mine", 1)

    client.on_subscribe = go_on
    client.on_connect = lambda *args: client.subscribe("meters/meter-7/#", 1)
    client.connect("127.0.0.1", secure_server.server.mqtt_port)
    client.loop_start()
    wait_for(lambda: len(refused) == 2 and got, "answers over TLS")
    assert got == [b"mine"]
    assert sorted(refused) == [0, Reason.NOT_AUTHORIZED]
    client.disconnect()
    client.loop_stop()


def test_without_a_certificate_of_the_authority_there_is_no_connection(secure_server, authority):
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    authority.configure_trust(context)
    with (
        socket.create_connection(("127.0.0.1", secure_server.server.mqtt_port), 30) as plain,
        pytest.raises(OSError),
    ):
        _converse(context, plain)


def _converse(context, plain):
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        secure.sendall(encode(p.Connect("stranger", V5), V5))
        if not secure.recv(100):
            raise ConnectionError("The server hung up.")
