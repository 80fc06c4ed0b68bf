"""Accounts over the native protocol: what a command answers, what it never tells, what is lost."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ringdove
from ringdove.controllers import passwords
from ringdove.errors import InvalidArgument, NotAuthorized, RemoteProtocolError
from ringdove.pending import run
from ringdove.protocol import messages
from ringdove.protocol.messages import Verb
from server.running import PATIENCE_S, ServerThread
from server.wire import RawClient, error_of

PASSWORD = "correct horse battery"


@pytest.fixture
def ask(rd: ringdove.Connection) -> Callable[..., Any]:
    return lambda command, **arguments: run(rd.backend.account(command, arguments))


@pytest.fixture
def raw(server: ServerThread) -> Iterator[RawClient]:
    with RawClient(server.port) as client:
        yield client.hello()


def test_an_account_is_administered_from_afar(ask, server):
    made = ask("create", name="shop", id="123456789012", password=PASSWORD)
    assert (made["id"], made["name"], made["password"]) == ("123456789012", "shop", True)
    added = ask("add_key", account="shop", roles=["send"])
    assert added["roles"] == ["send"]
    ask("revoke_key", key=made["key"]["id"])
    ask("grant", account="shop", queue="orders*", roles=["receive"])
    changed = ask("set_quota", account="shop", requests_per_s=5, bytes_max=None)
    assert changed == ask("get", account="shop") == ask("list")[0]
    assert changed["grants"] == {"orders*": ["receive"]}
    assert changed["requests_per_s"] == 5
    assert {key["id"]: key["active"] for key in changed["keys"]} == {
        made["key"]["id"]: False,
        added["id"]: True,
    }
    accounts = server.server.native.broker.accounts
    account, key = server.call(accounts.find_key(added["id"]))
    assert (account.name, key.secret) == ("shop", added["secret"])
    assert server.call(accounts.check_password("shop", PASSWORD)) is True
    ask("ungrant", account="shop", queue="orders*")
    assert ask("set_password", account="shop", password=None)["password"] is False
    assert ask("delete", account="shop") is None
    assert ask("list") == []


def test_no_frame_but_that_of_a_new_key_holds_a_secret(raw):
    made = raw.ask(Verb.ACCOUNT, 1, ("create", {"name": "shop", "password": PASSWORD}))
    secret = messages.decode(Any, made.meta)["key"]["secret"]
    for command, arguments in [("list", {}), ("get", {"account": "shop"})]:
        answer = raw.ask(Verb.ACCOUNT, 2, (command, arguments))
        assert answer.verb == Verb.REPLY
        assert b"shop" in bytes(answer.meta)
        for hidden in (secret.encode(), b"argon2", PASSWORD.encode()):
            assert hidden not in bytes(answer.meta)


@pytest.mark.parametrize(
    ("command", "arguments", "why"),
    [
        ("sing", {}, "no command 'sing'"),
        ("create", {}, "'' is no account name"),
        ("create", {"name": 3}, "name"),
        ("create", {"name": "x", "password": ""}, "8 to 1024"),
        ("create", {"name": "x", "colour": "red"}, "colour"),
        ("create", {"name": "shop"}, "already"),
        ("get", {}, "There is no account ''"),
        ("delete", {"account": "shp"}, "Did you mean 'shop'"),
        ("add_key", {"account": "shop", "roles": []}, "Nothing is no role"),
        ("add_key", {"account": "shop", "roles": ["send", "fly"]}, "'fly' is no role"),
        ("grant", {"account": "shop", "queue": "q"}, "Nothing is no role"),
        ("revoke_key", {}, "no access key ''"),
        ("set_password", {"account": "shop"}, "Say which password"),
        ("set_quota", {"account": "shop", "bytes_max": "many"}, "bytes_max"),
    ],
)
def test_senseless_commands_are_refused(ask, command, arguments, why):
    ask("create", name="shop")
    with pytest.raises(InvalidArgument, match=why):
        ask(command, **arguments)


@pytest.mark.parametrize("meta", [b"", "list", ("list",), ("list", []), (1, {}), ("list", {1: 2})])
def test_rubbish_is_refused_and_the_connection_goes_on(raw, meta):
    answer = raw.ask(Verb.ACCOUNT, 7, meta)
    assert (answer.verb, answer.number) == (Verb.ERROR, 7)
    assert isinstance(error_of(answer), RemoteProtocolError)
    assert raw.ask(Verb.ACCOUNT, 8, ("list", {})).verb == Verb.REPLY


def test_others_are_served_while_a_password_is_hashed(raw, monkeypatch):
    gate = threading.Event()

    class Slow:
        def hash(self, _password: bytes) -> str:
            assert gate.wait(PATIENCE_S)
            return "hash"

    monkeypatch.setattr(passwords, "_hasher", Slow)
    raw.send(Verb.ACCOUNT, 1, ("create", {"name": "shop", "password": PASSWORD}))
    assert raw.ask(Verb.LIST, 2, "").number == 2
    gate.set()
    answer = raw.next()
    assert (answer.verb, answer.number) == (Verb.REPLY, 1)


def test_a_deletion_that_was_answered_in_vain_is_no_error(ask, lose_next_answer):
    ask("create", name="shop")
    lose_next_answer()
    ask("delete", account="shop")
    assert ask("list") == []


def test_who_has_not_the_token_administers_nothing(tmp_path):
    with ServerThread(tmp_path / "data", http=-1, token="secret") as server:
        with pytest.raises(NotAuthorized):
            ringdove.connect(f"ringdove://127.0.0.1:{server.port}", timeout_s=PATIENCE_S)
        with ringdove.connect(server.url) as rd:
            assert run(rd.backend.account("list", {})) == []
