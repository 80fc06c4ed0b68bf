"""The commands `ringdove account`, as processes: on a data directory and on a server."""

import json
from pathlib import Path

import pytest

from server.running import ServerProcess, run_command

PASSWORD = "correct horse battery"


class Shell:
    """Runs `ringdove account` at one place and keeps what it prints."""

    def __init__(self, *place: str) -> None:
        self._place = place
        self.out = self.err = ""

    def __call__(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        done = run_command(*self._place, "account", *arguments, input=stdin.encode())
        self.out, self.err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{self.out}\n{self.err}"
        return self.out

    def json(self, *arguments: str, stdin: str = "") -> list:
        return [json.loads(line) for line in self(*arguments, "--json", stdin=stdin).splitlines()]


@pytest.fixture(params=["data", "url"])
def sh(request, tmp_path: Path):
    if request.param == "data":
        yield Shell("--data", str(tmp_path / "data"))
        return
    with ServerProcess(tmp_path / "data") as server:
        yield Shell("--url", server.url)


def test_an_account_lives_from_its_creation_to_its_end(sh):
    [made] = sh.json("create", "shop", "--password-stdin", stdin=PASSWORD + "\n")
    assert made["password"] is True
    secret = made["key"]["secret"]
    assert len(secret) == 40
    [added] = sh.json("key", "add", made["id"], "--only", "send,receive")
    assert added["roles"] == ["send", "receive"]
    [revoked] = sh.json("key", "revoke", made["key"]["id"])
    assert revoked["active"] is False
    sh("grant", "shop", "123456789012.orders*", "receive, send")
    assert "shop may send, receive on 123456789012.orders*" in sh.err
    sh("quota", "shop", "--requests-per-s", "2.5", "--bytes", "10GiB")
    assert "requests/s 2.5, bytes 10.0 GiB" in sh.err
    [listed] = sh.json("list")
    assert [listed] == sh.json("show", "shop")
    assert listed["grants"] == {"123456789012.orders*": ["send", "receive"]}
    assert (listed["requests_per_s"], listed["bytes_max"]) == (2.5, 10 * 2**30)
    assert [key["active"] for key in sh.json("key", "list", "shop")] == [False, True]
    for shown in (sh("list"), sh("show", "shop"), sh("key", "list"), json.dumps(listed)):
        assert "shop" in shown
        assert secret not in shown
        assert added["secret"] not in shown
        assert "argon2" not in shown
    sh("ungrant", "shop", "123456789012.orders*")
    [lifted] = sh.json("quota", "shop", "--bytes", "none")
    assert (lifted["requests_per_s"], lifted["bytes_max"], lifted["grants"]) == (2.5, None, {})
    [role] = sh.json("role", "shop", "viewer")
    assert (listed["console_role"], role["console_role"]) == ("operator", "viewer")
    [without] = sh.json("password", "shop", "--remove")
    assert without["password"] is False
    assert sh.json("delete", "shop", "--yes") == [{"deleted": made["id"]}]
    sh("list")
    assert "There are no accounts" in sh.err


def test_people_see_a_new_secret_once_and_whole(sh):
    out = sh("create", "shop", "--id", "123456789012")
    assert "it is not shown again" in sh.err
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if len(line.split()) > 1)
    assert rows["account"].split() == ["123456789012", "shop"]
    [secret] = [line.split()[-1] for line in out.splitlines() if "secret access key" in line]
    assert len(secret) == 40
    assert "send" in sh("key", "add", "shop", "--only", "send")
    assert "revoked" not in sh("show", "shop")
    [key, *_] = sh.json("key", "list")
    sh("key", "revoke", key["id"])
    assert "revoked" in sh("show", "shop")


def test_mistakes_are_explained(tmp_path):
    sh = Shell("--data", str(tmp_path / "data"))
    sh("list", code=3)
    assert "There is no data directory" in sh.err
    sh("create", "shop")
    for arguments, why in [
        (("create", "shop"), "already"),
        (("create", "a b"), "is no account name"),
        (("create", "x", "--id", "12"), "use 12 digits"),
        (("create", "x", "--password-stdin"), "no password on standard input"),
        (("show", "shp"), "Did you mean 'shop'?"),
        (("delete", "shop"), "--yes"),
        (("key", "add", "shop", "--only", "sned"), "'sned' is no role"),
        (("key", "revoke", "AKIA"), "There is no access key"),
        (("grant", "shop", "orders", "fly"), "'fly' is no role"),
        (("grant", "shop", "a*b", "send"), "is no queue name"),
        (("ungrant", "shop", "orders"), "has no grant on 'orders' (it has: none)"),
        (("role", "shop", "king"), "'king' is no role"),
        (("password", "shop"), "--stdin"),
        (("password", "shop", "--stdin", "--remove"), "not both"),
        (("quota", "shop"), "--requests-per-s or --bytes"),
        (("quota", "shop", "--requests-per-s", "fast"), "'fast' is no number"),
        (("quota", "shop", "--bytes", "much"), "'much' is no size"),
    ]:
        sh(*arguments, code=1)
        assert why in sh.err, arguments
    sh("password", "shop", "--stdin", code=1, stdin="short\n")
    assert "8 to 1024" in sh.err
    sh("grant", "shop", "orders", code=2)
    assert [account["name"] for account in sh.json("list")] == ["shop"]


def test_a_stolen_directory_tells_no_password(tmp_path):
    sh = Shell("--data", str(tmp_path / "data"))
    sh("create", "shop", "--password-stdin", stdin=PASSWORD)
    sh("password", "shop", "--stdin", stdin=PASSWORD + " two\r\n")
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes(), path
