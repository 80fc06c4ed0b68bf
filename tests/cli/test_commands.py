"""Every command of the command line, its failures included, as a user sees them."""

import json
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.shell import Shell
from ringdove.cli import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_STORE,
    EXIT_USAGE,
    messages,
    run,
)
from ringdove.cli.queues import Settings
from ringdove.cli.serve import tell_ready
from ringdove.client.sync import Connection
from ringdove.config import server_config
from ringdove.core.settings import SETTING_NAMES
from ringdove.errors import ConnectionClosed, InvalidArgument, StoreUnavailable, WaitTimeout
from ringdove.server_config import ServerConfig, check


@pytest.fixture
def sh(tmp_path, capfd, monkeypatch):
    return Shell(capfd, monkeypatch, tmp_path / "data")


@pytest.fixture
def readings(sh):
    sh("queue", "create", "readings", "--receives-max", "2", "--lease-ms", "10m")
    return sh


def test_a_queue_is_created_listed_shown_changed_and_deleted(readings):
    sh = readings
    assert "readings.dead" in sh.err
    [dead, queue] = sorted(sh.json("queue", "list"), key=lambda q: q["name"], reverse=True)
    assert (queue["name"], dead["name"]) == ("readings", "readings.dead")
    assert "readings" in sh("queue", "list")
    [shown] = sh.json("queue", "show", "readings")
    assert shown["settings"]["lease_ms"] == 600_000
    assert "600000" in sh("queue", "show", "readings")
    sh("queue", "set", "readings", "--lease-ms", "1.5s", "--bytes-max", "1GiB")
    assert "lease_ms = 1500" in sh.err
    [settings] = sh.json("queue", "set", "readings", "--spread", "auto")
    assert (settings["spread"], settings["bytes_max"]) == ("auto", 2**30)
    sh("queue", "set", "readings", "--receives-max", "none", "--dead-letter", "none")
    [shown] = sh.json("queue", "show", "readings")
    assert (shown["settings"]["receives_max"], shown["settings"]["dead_letter"]) == (None, None)
    sh("queue", "set", "readings", "--receives-max", "many", code=EXIT_REFUSED)
    assert "'many' is no number: write for example 5, or none." in sh.err
    sh("queue", "delete", "readings", "--yes")
    assert [q["name"] for q in sh.json("queue", "list")] == ["readings.dead"]
    sh("queue", "delete", "readings.dead", "--yes")
    assert (sh("queue", "list"), sh("stats")) == ("", "")
    assert "There are no queues." in sh.err


def test_every_setting_is_an_option():
    assert {field.name for field in fields(Settings)} == set(SETTING_NAMES) - {"notes"}


def test_creating_again_is_fine_and_differently_is_refused(readings):
    readings("queue", "create", "readings", "--receives-max", "2", "--lease-ms", "600s")
    readings("queue", "create", "readings", code=EXIT_REFUSED)
    assert "lease_ms is 600000, not 30000" in readings.err
    readings("queue", "set", "readings", code=EXIT_REFUSED)
    assert "at least one setting" in readings.err
    readings("queue", "create", "x", "--order", "key", "--priority", "3", code=EXIT_REFUSED)
    assert "forbids" in readings.err
    readings("queue", "create", "x", "--lease-ms", "soon", code=EXIT_REFUSED)
    assert "'soon' is no duration" in readings.err
    readings("queue", "create", "bad name", code=EXIT_REFUSED)
    assert "no queue name" in readings.err


def test_messages_are_sent_and_received(readings):
    sh = readings
    sh("send", "readings", "hello", "-5", "--key", "k", "-a", "n=3", "-a", "serial=007")
    assert "Sent 2 messages" in sh.err
    sh("send", "readings", "-", stdin=b"one\ntwo\n")
    assert sh("peek", "readings").split() == ["hello", "-5", "one", "two"]
    found = sh.json("receive", "readings", "--max", "2")
    assert [m["body"] for m in found] == ["hello", "-5"]
    assert found[0]["attributes"] == {"n": 3, "serial": "007"}
    assert found[0]["key"] == "k"
    assert sh("receive", "readings", "--max", "10", "--ack").split() == ["one", "two"]
    sh("ack", found[0]["receipt"])
    assert "Acknowledged 1 message." in sh.err
    sh("extend", found[1]["receipt"], "--lease-ms", "1h")
    sh("release", found[1]["receipt"], "--delay-ms", "0")
    assert sh("receive", "readings", "--ack").split() == ["-5"]
    assert sh("receive", "readings") == ""
    sh("ack", found[0]["receipt"])


def test_lines_are_sent_as_they_come(monkeypatch):
    """Whoever pipes a log wants its lines sent before there are thousands of them."""
    pieces = [b"one\ntwo\nth", b"ree", b"\n\nfour", b""]
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read1=lambda _: pieces.pop()))
    )
    pieces.reverse()
    parts = messages._parts(messages._messages(("-",), [], False))
    assert next(parts) == [b"one", b"two"]
    assert len(pieces) == 3
    assert list(parts) == [[b"three", b""], [b"four"]]


def test_files_ndjson_and_binary_bodies(readings, tmp_path):
    sh = readings
    (tmp_path / "a.bin").write_bytes(b"\xff\x00\n")
    sh("send", "readings", "--file", str(tmp_path / "a.bin"))
    [message] = sh.json("receive", "readings", "--ack")
    assert message["body_base64"] == "/wAK"
    lines = [
        {"body": "x", "key": "k", "attributes": {"a": 1.5}, "id": "1"},
        {"body_base64": "/wAK", "key_base64": "/w=="},
        {"body": {"nested": True}},
    ]
    stdin = "\n\n".join(map(json.dumps, lines)).encode()  # empty lines mean nothing
    [summary] = sh.json("send", "readings", "--ndjson", "-", stdin=stdin)
    assert summary == {"sent": 3, "duplicates": 0}
    [summary] = sh.json("send", "readings", "--ndjson", '{"body": "x", "id": "1"}')
    assert summary == {"sent": 1, "duplicates": 1}
    first, second, third = sh.json("receive", "readings", "--max", "5", "--ack")
    assert (first["key"], first["attributes"]) == ("k", {"a": 1.5})
    assert (second["body_base64"], second["key_base64"]) == ("/wAK", "/w==")
    assert third["body"] == '{"nested": true}'
    for bad in (
        "{", "[]", '["body"]', '{"text": 1}', '{"body_base64": "?"}', "{}", '{"body": null}',
        '{"body_base64": null}', '{"body": "x", "attributes": [1]}', r'{"body": "\ud800"}',
        r'{"body": "x", "key": "\ud800"}', "[" * 100_000, '{"body": "x", "key_base64": "?"}',
        '{"body": "x", "key": "k", "key_base64": "aw=="}',
    ):  # fmt: skip
        sh("send", "readings", "--ndjson", bad, code=EXIT_REFUSED)
        assert "is no message" in sh.err
    sh("send", "readings", "--file", str(tmp_path / "missing"), code=EXIT_REFUSED)
    assert "No such file" in sh.err
    (tmp_path / "bad.ndjson").write_text('{"body": "x"}\n{\n')
    sh("send", "readings", "--ndjson", "--file", str(tmp_path / "bad.ndjson"), code=EXIT_REFUSED)
    assert f"In line 2 of {tmp_path / 'bad.ndjson'}: '{{' is no message" in sh.err


def test_a_send_that_ends_early_says_how_many_were_sent(readings, monkeypatch):
    """Else nobody knows where in a long file to go on."""
    sh = readings
    lines = b'{"body": "x"}\n' * 5000 + b'\n{"body": "x"}\noops\n'
    sh("send", "readings", "--ndjson", "-", stdin=lines, code=EXIT_REFUSED)
    told, reason = sh.err.splitlines()
    assert told == "Sent 5,000 messages to readings."
    assert "In line 5003: 'oops' is no message" in reason
    assert sh.json("send", "readings", "--ndjson", "-", stdin=lines, code=EXIT_REFUSED) == [
        {"sent": 5000, "duplicates": 0}
    ]
    [stats] = sh.json("stats", "readings")
    assert stats["waiting"] == 10_000
    sh("send", "readings", "-", stdin=b"x\n" * 5000 + b"x" * 2_000_000, code=EXIT_REFUSED)
    assert "Sent 5,000 messages to readings." in sh.err
    assert "Of the next 1, some may have been stored." in sh.err

    def interrupted(_):
        yield b"one\n"
        raise KeyboardInterrupt

    source = interrupted(None)
    stdin = SimpleNamespace(buffer=SimpleNamespace(read1=lambda _: next(source)))
    monkeypatch.setattr(sys, "stdin", stdin)
    sh("send", "readings", "-", code=EXIT_INTERRUPTED)
    assert sh.err.splitlines() == ["Sent 1 message to readings.", "ringdove: interrupted"]


def test_senseless_sends_are_refused(readings):
    sh = readings
    sh("send", "readings", code=EXIT_REFUSED)
    assert "Nothing to send" in sh.err
    sh("send", "readngs", "x", code=EXIT_REFUSED)
    assert "Did you mean 'readings'?" in sh.err
    sh("send", "readings", "x", "y", "--id", "1", code=EXIT_REFUSED)
    assert "one by one" in sh.err
    sh("send", "readings", "x", "-a", "novalue", code=EXIT_REFUSED)
    assert "name=value" in sh.err
    sh("send", "readings", "--ky", "k", "x", code=EXIT_REFUSED)
    assert "'--ky' is no option of send" in sh.err
    sh("send", "readings", "x", "--url", "memory:", code=EXIT_REFUSED)
    assert "--url stands before the queue" in sh.err
    sh("send", "readings", "--", "--ky", "-x")
    assert sh("peek", "readings") == "--ky\n-x\n"
    sh("send", "readings", "x", "--priority", "3", code=EXIT_REFUSED)
    sh("ack", "ü", code=EXIT_REFUSED)
    sh("receive", "readings", "--max", "0", code=EXIT_REFUSED)
    assert "--max is 0; it must be 1 or more" in sh.err
    sh("ack", "nonsense!", code=EXIT_REFUSED)
    assert "no receipt" in sh.err
    sh("ack", code=EXIT_REFUSED)


def test_looks_that_make_no_sense_are_refused(readings):
    sh = readings
    sh("send", "readings", "x")
    for words, reason in (
        (("peek", "readings", "--max", "0"), "max is 0; it must be 1 or more"),
        (("peek", "readings", "--subscription", "nope"), "(it has: default)"),
        (("replay", "readings", "--max", "-1"), "--max is -1; it must be 1 or more"),
        (("replay", "readings", "--offset", "0", "--time-ms", "0"), "not both"),
        (("stats", "--watch", "--every", "nan"), "--every is nan; it must be 0 seconds or more"),
        (("stats", "--watch", "--every", "1e300"), "--every is 1e+300"),
    ):
        assert sh(*words, code=EXIT_REFUSED) == ""
        assert reason in sh.err


def test_dead_letters_of_a_queue_without_default_are_shown(readings):
    sh = readings
    sh("queue", "subscribe", "readings.dead", "alerts")
    sh("send", "readings.dead", "poison")
    assert "poison" in sh("dead", "show", "readings")


def test_dead_letters_are_listed_shown_and_sent_back(readings):
    sh = readings
    sh("dead", "list")
    assert "readings.dead" in sh.out
    sh("send", "readings", "poison")
    for _ in range(2):
        [message] = sh.json("receive", "readings")
        sh("release", message["receipt"], "--delay-ms", "0")
    assert sh("receive", "readings") == ""
    [listed] = sh.json("dead", "list")
    assert listed == {"queue": "readings", "dead_letter": "readings.dead", "waiting": 1}
    assert "received 2 times" in sh("dead", "show", "readings")
    [letter] = sh.json("dead", "show", "readings.dead")
    assert letter["body"] == "poison"
    sh("dead", "redrive", "readings")
    assert "Sent 1 dead letters" in sh.err
    assert sh("receive", "readings", "--ack") == "poison\n"
    sh("queue", "create", "plain")
    sh("dead", "show", "plain", code=EXIT_REFUSED)
    assert "ringdove queue set plain" in sh.err
    sh("queue", "delete", "readings.dead", "--yes")
    assert "there is no such queue" in sh("dead", "list")


def test_what_others_have_put_among_dead_letters_is_shown_too(sh):
    sh("queue", "create", "readings", "--dead-letter", "letters")
    sh("send", "letters", "first", "-a", "ringdove.dead.at_ms=yesterday")
    sh("send", "letters", "second", "-a", f"ringdove.dead.at_ms={2**62}")
    shown = sh("dead", "show", "readings")
    assert "first" in shown
    assert "second" in shown


def test_a_queue_that_is_deleted_while_others_are_listed_is_left_out(readings, monkeypatch):
    sh = readings
    sh("queue", "create", "other")
    queues = Connection.queues

    def vanishing(self, prefix=""):
        found = queues(self, prefix)
        self.delete_queue("other", missing_ok=True)
        return found

    monkeypatch.setattr(Connection, "queues", vanishing)
    assert "readings" in sh("queue", "list")
    sh("queue", "create", "other")
    assert "readings" in sh("stats", "--watch", "--every", "0", "--count", "2")
    sh("stats", "--every", "-1", code=EXIT_REFUSED)


def test_purge_and_delete_ask_before_they_act(readings, monkeypatch):
    sh = readings
    sh("send", "readings", "x")
    sh("queue", "purge", "readings", code=EXIT_REFUSED, stdin=b"")
    assert "--yes" in sh.err
    sh("queue", "purge", "readings", "--yes")
    assert "Dropped 1" in sh.err
    sh("queue", "delete", "nothing", "--yes", code=EXIT_REFUSED)


def test_subscriptions_and_replay(sh):
    sh("queue", "create", "events", "--keep-done-ms", "1h")
    sh("send", "events", "0", "1", "2")
    sh("queue", "subscribe", "events", "billing", "--start", "earliest")
    sh("queue", "subscribe", "events", "tail", "--start", "1")
    assert sh("receive", "events", "-n", "9", "--subscription", "tail", "--ack").split() == [
        "1",
        "2",
    ]
    assert sh("receive", "events", "-n", "9", "--subscription", "billing", "--ack") == "0\n1\n2\n"
    assert sh("replay", "events", "--offset", "1", "--max", "1") == "1\n"
    assert sh("replay", "events", "--time-ms", "0").split() == ["0", "1", "2"]
    sh("queue", "unsubscribe", "events", "tail")
    sh("queue", "unsubscribe", "events", "tail", code=EXIT_REFUSED)
    assert "it has: billing" in sh.err
    sh("queue", "subscribe", "events", "x", "--start", "soon", code=EXIT_REFUSED)
    assert "earliest, latest" in sh.err


def test_stats_once_and_again(readings):
    sh = readings
    sh("send", "readings", "x", "y")
    assert "readings" in sh("stats")
    rows = sh.json("stats", "readings", "--watch", "--every", "0.01", "--count", "2")
    assert [row["waiting"] for row in rows] == [2, 2]
    assert all(row["bytes"] > 0 and row["oldest_ms"] > 0 for row in rows)
    assert rows[1]["sent_per_s"] == 0


def test_fsck_backup_and_compact(readings, tmp_path):
    sh = readings
    sh("send", "readings", "-", stdin=b"x\n" * 1000)
    assert "All is well." in sh("fsck")
    [report] = sh.json("fsck")
    assert (report["messages"], report["faults"]) == (1000, [])
    sh("backup", str(tmp_path / "copy"))
    sh("backup", str(tmp_path / "copy"), code=EXIT_REFUSED)
    assert "not empty" in sh.err
    sh("backup", str(sh.directory / "copies" / "first"), code=EXIT_REFUSED)
    assert "would be lost with it" in sh.err
    [summary] = sh.json("compact")
    assert summary["bytes_after"] <= summary["bytes_before"]
    copy = Shell(sh._capfd, sh._monkeypatch, tmp_path / "copy")
    assert copy("receive", "readings", "-n", "9999", "--ack").count("x") == 1000
    assert sh("receive", "readings", "-n", "9999", "--ack").count("x") == 1000


@pytest.mark.parametrize("url", ["ringdove://127.0.0.1:1", "memory:"])
@pytest.mark.parametrize("arguments", [["fsck"], ["backup", "copy"], ["compact"]])
def test_what_works_on_a_directory_refuses_another_place(capfd, url, arguments):
    assert run(["--url", url, *arguments]) == EXIT_REFUSED
    assert f"not on {url!r}: use --data" in capfd.readouterr().err


def test_fsck_finds_a_flipped_byte(readings):
    sh = readings
    sh("send", "readings", "findme" * 100)
    data = sh.directory / "disk" / "data.mdb"
    content = bytearray(data.read_bytes())
    at = content.rindex(b"findmefindme")
    content[at] ^= 1
    data.write_bytes(content)
    assert "FAULT" in sh("fsck", code=EXIT_STORE)
    sh("receive", "readings", code=EXIT_STORE)
    assert "damaged" in sh.err


def test_a_typo_in_the_directory_makes_no_directory(sh):
    sh("queue", "list", code=EXIT_STORE)
    assert "There is no data directory" in sh.err
    assert not sh.directory.exists()
    sh("fsck", code=EXIT_STORE)


def test_usage_errors_suggest_what_was_meant(readings):
    sh = readings
    sh("sned", "readings", "x", code=EXIT_USAGE)
    assert 'Did you mean "send"' in sh.out + sh.err
    sh("receive", "readings", "--mx", "3", code=EXIT_USAGE)
    assert "--max" in sh.out + sh.err
    sh("receive", code=EXIT_USAGE)
    sh("queue", "create", "x", "--order", "random", code=EXIT_USAGE)


def test_help_version_and_completion(sh):
    assert "\n ringdove queue create readings " in sh("--help")
    assert "\n seq 1000000 | ringdove send readings - " in sh("send", "--help")
    assert "--empty-file" not in sh("send", "--help")
    assert "How long a received" in sh("queue", "create", "--help")
    assert sh("--version").strip()
    for shell in ("bash", "zsh", "fish"):
        assert "ringdove" in sh("completion", shell)


def test_url_environment_and_config_name_the_place(readings, tmp_path, monkeypatch, capfd):
    sh = readings
    url = f"file:{sh.directory}"
    assert run(["--url", url, "queue", "list"]) == EXIT_OK
    assert run(["--url", url, "--data", "x", "queue", "list"]) == EXIT_REFUSED
    monkeypatch.setenv("RINGDOVE_URL", url)
    assert run(["queue", "list"]) == EXIT_OK
    monkeypatch.delenv("RINGDOVE_URL")
    monkeypatch.setenv("RINGDOVE_DATA", str(sh.directory))
    assert run(["queue", "list"]) == EXIT_OK
    assert run(["--url", "file:elsewhere", "queue", "list"]) == EXIT_STORE  # A flag comes first.
    monkeypatch.setenv("RINGDOVE_URL", url)
    assert run(["queue", "list"]) == EXIT_REFUSED
    monkeypatch.delenv("RINGDOVE_URL")
    monkeypatch.delenv("RINGDOVE_DATA")
    monkeypatch.chdir(tmp_path)
    assert run(["queue", "list"]) == EXIT_STORE
    (tmp_path / "ringdove.toml").write_text(f'url = "{url}"\n')
    assert run(["queue", "list"]) == EXIT_OK
    (tmp_path / "ringdove.toml").write_text("url = \n")
    assert run(["queue", "list"]) == EXIT_REFUSED
    assert run(["--url", "memory:", "fsck"]) == EXIT_REFUSED


def test_a_directory_is_the_same_by_path_and_by_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run(["--data", "100%25 sure", "queue", "create", "readings"]) == EXIT_OK
    assert run(["--data", "100%25 sure", "queue", "show", "readings"]) == EXIT_OK
    assert run(["--url", "file:100%2525%20sure", "queue", "show", "readings"]) == EXIT_OK
    assert run(["--url", "file:~/data", "queue", "create", "readings"]) == EXIT_OK
    assert {path.name for path in tmp_path.iterdir()} == {"100%25 sure", "home"}


def test_a_server_says_where_it_is_reached(capfd):
    ports = {"port": -1, "http_port": 9324, "mqtt_port": -1, "mqtt_ws_port": -1, "coap_port": 5683}
    tell_ready(SimpleNamespace(config=ServerConfig(host="::1"), **ports), as_json=False)
    assert capfd.readouterr().err.splitlines() == [
        "SQS and REST on http://[::1]:9324, /console in a browser",
        "CoAP on coap://[::1]:5683",
        "Ctrl-C ends.",
    ]


@pytest.mark.parametrize("text", ["serve = 3", "serve = 'fast'", "serve = [1]", "[[serve]]"])
def test_a_file_whose_serve_is_no_table_is_refused(sh, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ringdove.toml").write_text(text)
    sh("serve", code=EXIT_REFUSED)
    assert "it must be a table" in sh.err


def test_what_a_server_is_told_comes_from_flags_then_environment_then_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ringdove.toml").write_text("[serve]\nport = 1\nhttp = 2\ntoken = 'written'\n")
    monkeypatch.setenv("RINGDOVE_HTTP", "3")
    monkeypatch.setenv("RINGDOVE_TOKEN", "surrounding")
    config = server_config({"token": "given", "unix": None})
    assert (config.port, config.http, config.token, config.unix) == (1, 3, "given", None)
    monkeypatch.setenv("RINGDOVE_HTTP", "many")
    with pytest.raises(InvalidArgument, match="RINGDOVE_HTTP, RINGDOVE_TOKEN from the environment"):
        server_config({})


def test_an_empty_token_is_not_taken_for_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="would let everybody in"):
        check(server_config({"token": ""}))
    monkeypatch.setenv("RINGDOVE_TOKEN", "")
    monkeypatch.setenv("RINGDOVE_HTTP", "")  # Others are as good as not set.
    with pytest.raises(InvalidArgument, match="would let everybody in"):
        check(server_config({}))


def test_a_file_that_says_what_nobody_reads_is_refused(sh, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RINGDOVE_DATA", raising=False)
    (tmp_path / "ringdove.toml").write_text("data = 'own'\nport = 7117\n")
    sh("queue", "list", code=EXIT_REFUSED)
    assert "not port: what a server is told belongs into the table" in sh.err


@pytest.mark.parametrize(
    ("flags", "surrounding", "written", "served"),
    [
        ([], {}, "", "ringdove-data"),
        ([], {}, "data = 'shared'", "shared"),
        ([], {}, "data = 'shared'\n[serve]\ndata = 'own'", "own"),
        ([], {}, "url = 'ringdove://far:1'\n[serve]\ndata = 'own'", "own"),
        ([], {"RINGDOVE_DATA": "around"}, "[serve]\ndata = 'own'", "around"),
        (["--data", "given"], {"RINGDOVE_DATA": "around"}, "[serve]\ndata = 'own'", "given"),
        (["--url", "file:given"], {}, "[serve]\ndata = 'own'", "given"),
        ([], {"RINGDOVE_MEMORY": "false"}, "data = 'shared'", "shared"),
    ],
)
def test_a_server_takes_the_directory_that_was_said_closest(
    flags, surrounding, written, served, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ringdove.toml").write_text(written)
    for name, value in surrounding.items():
        monkeypatch.setenv(name, value)
    begun = []
    monkeypatch.setattr("ringdove.server.run_server", lambda config, _: begun.append(config))
    assert run([*flags, "serve"]) == EXIT_OK
    assert [Path(config.data) for config in begun] == [Path(served)]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("prot = 7", "[serve] in ringdove.toml has no option 'prot'. Did you mean 'port'?"),
        ("tls-cert = 'x'", "has no option 'tls-cert'. Did you mean 'tls_cert'?"),
        ("xyzzy = 1", "has no option 'xyzzy'. 'ringdove serve --help' lists them."),
    ],
)
def test_an_option_of_a_server_that_is_misspelled_in_the_file_is_named(
    written, reason, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ringdove.toml").write_text(f"[serve]\n{written}")
    assert run(["serve"]) == EXIT_REFUSED
    assert reason in capfd.readouterr().err


@pytest.mark.parametrize("words", [["fsck"], ["backup", "copy"], ["compact"], ["serve"]])
def test_a_url_that_is_no_directory_is_refused_without_its_secret(words, capfd):
    assert run(["--url", "ringdove://:s3cret@far:1", *words]) == EXIT_REFUSED
    told = capfd.readouterr().err
    assert "This works on a data directory, not on 'ringdove://far:1': use --data." in told
    assert "s3cret" not in told


def test_a_server_of_a_url_that_is_no_directory_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ringdove.toml").write_text("url = 'ringdove://far:1'")
    assert run(["serve"]) == EXIT_REFUSED


@pytest.mark.parametrize("error", [ConnectionClosed, WaitTimeout, StoreUnavailable])
def test_a_server_that_is_gone_is_not_a_refusal(readings, monkeypatch, error):
    """Scripts try again later by the exit code, whenever the server went away."""

    def gone(*_arguments, **_options):
        raise error("No server for 60 s.")

    monkeypatch.setattr("ringdove.client.sync.Queue.receive", gone)
    readings("receive", "readings", code=EXIT_STORE)
    assert "ringdove: No server for 60 s." in readings.err


def test_ctrl_c_leaves_cleanly(readings, monkeypatch):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ringdove.client.sync.Queue.receive", interrupted)
    readings("receive", "readings", "--wait", "60", code=EXIT_INTERRUPTED)
    assert "interrupted" in readings.err


def test_a_million_or_fewer_are_checked_one_by_one(sh, tmp_path):
    [report] = sh.json("bench", "million", "--messages", "20000", "--dir", str(tmp_path))
    assert (report["lost"], report["damaged"], report["unexpected"]) == (0, 0, 0)
    assert report["left_in_queue"] == 0
    assert report["died_holding"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("engine", "--quick"),
        ("backlog", "--messages", "20000"),
        ("leases", "--count", "1000"),
        ("groups", "--messages", "2000", "--groups", "200"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_benchmarks_run_and_report(sh, tmp_path, arguments):
    [result] = sh.json("bench", *arguments, "--dir", str(tmp_path))
    assert result[arguments[0]]
    assert result.get("out_of_order", 0) == 0


def test_the_demo_accounts_for_every_reading(sh, tmp_path):
    place = str(tmp_path / "demo")
    [report] = sh.json("demo", "--seconds", "4", "--no-spark", "--dir", place)
    assert report["consumed"] == report["acknowledged"] == report["sent"] > 500
    assert (report["lost"], report["damaged"], report["killed"]) == (0, 0, ["consumer"])
