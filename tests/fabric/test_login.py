"""Passwords and TLS between Ringdove and the nodes of its fabric."""

from __future__ import annotations

import ssl

import pytest
import trustme

import ringdove
from fabric.redis import RedisProcess
from ringdove.errors import InvalidArgument, StoreUnavailable
from ringdove.stores.fabric.url import parse_url

PASSWORD = "s3cret/@:word"
QUOTED = "s3cret%2F%40%3Aword"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("guarded")
    with RedisProcess(directory, "--requirepass", PASSWORD, password=PASSWORD) as process:
        yield process


def assert_works(url):
    with ringdove.connect(url) as connection:
        queue = connection.create_queue("q")
        queue.send("hello")
        batch = queue.receive(wait=10)
        assert [message.body for message in batch] == [b"hello"]
        batch.ack()


@pytest.mark.parametrize("account", [f":{QUOTED}", f"default:{QUOTED}"])
def test_with_the_password_everything_works(guarded, account):
    assert_works(f"redis://{account}@127.0.0.1:{guarded.port}?copies=1")


@pytest.mark.parametrize(("account", "reason"), [("", "NOAUTH"), (":wrong@", "WRONGPASS")])
def test_without_it_the_reason_is_told_and_the_password_is_not(guarded, account, reason):
    with pytest.raises(StoreUnavailable, match=reason) as raised:
        ringdove.connect(f"redis://{account}127.0.0.1:{guarded.port}?copies=1")
    assert "wrong" not in str(raised.value).replace("WRONGPASS", "")


class Files:
    """Certificates of an authority of our own."""

    def __init__(self, directory):
        authority = trustme.CA()
        self.ca = str(directory / "ca.pem")
        authority.cert_pem.write_to_path(self.ca)
        self.right = self._issue(authority, directory, "127.0.0.1")
        self.misnamed = self._issue(authority, directory, "elsewhere.test")

    def _issue(self, authority, directory, name):
        issued = authority.issue_cert(name)
        cert, key = str(directory / f"{name}.pem"), str(directory / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        return cert, key


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("certificates"))


def secured(directory, files, pair):
    cert, key = pair
    context = ssl.create_default_context(cafile=files.ca)
    context.check_hostname = False
    context.load_cert_chain(cert, key)
    return RedisProcess(
        directory, "--tls-cluster", "yes", "--tls-cert-file", cert, "--tls-key-file", key,
        "--tls-ca-cert-file", files.ca, tls=context,
    )  # fmt: skip


def test_over_tls_both_sides_are_known(tmp_path, files):
    cert, key = files.right
    with secured(tmp_path, files, files.right) as node:
        place = f"rediss://127.0.0.1:{node.port}?copies=1&ca={files.ca}"
        assert_works(f"{place}&cert={cert}&key={key}")
        for url in (place, f"rediss://127.0.0.1:{node.port}?copies=1"):
            with pytest.raises(StoreUnavailable):
                ringdove.connect(url)


def test_a_certificate_for_another_name_must_be_allowed(tmp_path, files):
    cert, key = files.misnamed
    with secured(tmp_path, files, files.misnamed) as node:
        url = f"rediss://127.0.0.1:{node.port}?copies=1&ca={files.ca}&cert={cert}&key={key}"
        assert_works(f"{url}&names=any")
        with pytest.raises(StoreUnavailable, match="mismatch"):
            ringdove.connect(url)


def test_a_url_says_it_all():
    place = parse_url("redis://bob:a%40b@one:1,[::1]:2?copies=2&near=one,two")
    assert place.nodes == [("one", 1), ("::1", 2)]
    assert place.copies == 2
    assert place.near == {"one", "two"}
    assert (place.login.user, place.login.password, place.login.tls) == ("bob", "a@b", None)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://", "names no nodes"),
        ("redis://:hush@host", "names no nodes"),
        ("redis://:hush@h:1?copies=4", "must be 1, 2 or 3"),
        ("redis://:hush@h:1?copy=2", "no option 'copy'"),
        ("redis://:hush@h:1?ca=x", "need rediss://"),
        ("redis://:hush@h:1?copies", "cannot be read"),
        ("rediss://:hush@h:1?ca=/nowhere", "cannot be used"),
        ("rediss://:hush@h:1?names=all", "must be 'any'"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_showing_the_password(url, reason):
    with pytest.raises(InvalidArgument, match=reason) as raised:
        parse_url(url)
    assert "hush" not in str(raised.value)
