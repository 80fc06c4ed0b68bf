"""The console's server side: files, policy, sessions, roles, and what a page is told."""

import hashlib
import re
from pathlib import Path

import pytest

import ringdove
from console.browser import ROOT
from console.conftest import ConsoleCaller
from ringdove import limits
from ringdove.core.settings import SETTING_NAMES
from ringdove.spark.pipeline.scaffold import Plan, write_project
from server.running import ServerThread

PASSWORD = "correct horse battery"
FILES = ROOT / "src" / "ringdove" / "console"


def make_account(server: ServerThread, name: str, role: str) -> str:
    """An account with a password; its id."""
    accounts = server.server._broker.accounts

    async def make() -> str:
        account, _ = await accounts.create(name, password=PASSWORD)
        await accounts.set_console_role(name, role)
        return account.id

    return server.call(make())


# -- files -----------------------------------------------------------------------------------------


def test_every_file_of_the_page_is_served_with_its_type(console):
    kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
    for path in FILES.rglob("*"):
        if path.suffix in kinds:
            answer = console.at("GET", f"/console/{path.relative_to(FILES)}")
            assert answer.status == 200, path
            assert answer.kind.startswith(kinds[path.suffix])
            assert answer.body == path.read_bytes()


def test_the_page_begins_below_its_name(console):
    assert console.at("GET", "/console").headers["location"] == "/console/"
    assert console.at("GET", "/console/").body == (FILES / "index.html").read_bytes()


def test_the_bare_address_leads_a_browser_to_the_page(console):
    browser = {"User-Agent": "Mozilla/5.0"}
    assert console.at("GET", "/", headers=browser).headers["location"] == "/console/"
    assert console.at("GET", "/").status == 404
    assert console.at("GET", "/?Action=ListQueues", headers=browser).status != 302


@pytest.mark.parametrize("path", ["nothing.js", "../server.py", "%2e%2e/server.py", "vendor", ".."])
def test_nothing_else_is_served(console, path):
    assert console.at("GET", f"/console/{path}").status == 404


def test_a_file_that_a_browser_has_is_not_sent_again(console):
    first = console.at("GET", "/console/app.js")
    again = console.at("GET", "/console/app.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert "content-length" not in again.headers


def test_the_policy_allows_nothing_but_this_server(console):
    policy = console.at("GET", "/console/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    for word in re.findall(r"(?:script|style|connect)-src ([^;]*)", policy):
        assert all(source == "'self'" or "'sha256-" in source for source in word.split())


def test_the_policy_of_data_stays_as_it_was(console):
    headers = console.at("GET", "/v1/openapi.json").headers
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_vendored_files_are_those_that_were_published():
    rows = re.findall(
        r"^\| (\S+) \|.*\| ([0-9a-f]{64}) \|$",
        (FILES / "vendor" / "README.md").read_text(),
        flags=re.MULTILINE,
    )
    told = dict(rows)
    there = {p.name for p in (FILES / "vendor").iterdir() if p.suffix in (".js", ".css")}
    assert told.keys() == there
    for name, digest in told.items():
        assert hashlib.sha256((FILES / "vendor" / name).read_bytes()).hexdigest() == digest


def test_no_file_of_ours_names_another_place():
    for path in [*FILES.glob("*.*"), *(FILES / "pages").glob("*.js")]:
        named = re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]+", path.read_text())
        assert [name for name in named if "w3.org" not in name] == []


# -- sessions --------------------------------------------------------------------------------------


def test_a_server_that_is_open_has_an_open_console(console):
    told = console.ask("GET", "session").json
    assert (told["open"], told["signed_in"], told["role"]) == (True, True, "admin")


def test_who_is_not_signed_in_sees_nothing(server, console):
    make_account(server, "shop", "admin")
    assert console.ask("GET", "session").json["signed_in"] is False
    for path in ("settings", "queues", "live", "plan", "pipeline"):
        assert console.ask("GET", path).status == 401, path
    assert console.ask("POST", "accounts/list", {}).status == 401


def test_a_password_begins_a_session_that_scripts_cannot_read(server, console):
    make_account(server, "shop", "admin")
    answer = console.sign_in(name="shop", password=PASSWORD)
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert console.ask("GET", "session").json["name"] == "shop"
    assert console.ask("GET", "queues").status == 200


def test_cookies_of_others_on_the_host_do_not_hide_the_session(server, console):
    """Browsers send them to every port, and none need be well-formed."""
    make_account(server, "shop", "admin")
    console.sign_in(name="shop", password=PASSWORD)
    own = console.headers["Cookie"]
    for odd in ('prefs={"a": 1}', "plain", "a b=1", "x[y]=1", "=", "my-ringdove-session=1"):
        console.headers["Cookie"] = f"{odd}; {own}; {odd}"
        assert console.ask("GET", "session").json["signed_in"], odd
    console.headers["Cookie"] = own.replace("ringdove", "Ringdove")
    assert not console.ask("GET", "session").json["signed_in"]


def test_the_session_is_not_stored_as_the_browser_knows_it(server, console):
    make_account(server, "shop", "admin")
    console.sign_in(name="shop", password=PASSWORD)
    word = console.headers["Cookie"].partition("=")[2]
    records = server.call(server.server._broker.store.scan("session/"))
    assert records
    assert all(word not in record.key and word.encode() not in record.value for record in records)
    now_ms = server.server._broker.store.clock.now_ms()
    assert all(now_ms < r.expires_ms <= now_ms + limits.SESSION_S_MAX * 1000 for r in records)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "shop", "password": "wrong password"},
        {"name": "nobody", "password": PASSWORD},
        {"name": "shop"},
        {"token": "anything"},
    ],
)
def test_a_wrong_word_begins_none(server, console, given):
    make_account(server, "shop", "admin")
    answer = console.sign_in(**given)
    assert (answer.status, answer.json["code"]) == (401, "NotIdentified")
    assert "set-cookie" not in answer.headers


def test_guessing_is_slowed_down(server, console):
    make_account(server, "guessed", "admin")
    statuses = [
        console.sign_in(name="guessed", password="wrong password").status
        for _ in range(limits.LOGIN_FAILURES_MAX + 1)
    ]
    assert statuses == [401] * limits.LOGIN_FAILURES_MAX + [429]
    assert console.sign_in(name="guessed", password=PASSWORD).status == 429


def test_signing_out_ends_the_session(server, console):
    make_account(server, "shop", "admin")
    console.sign_in(name="shop", password=PASSWORD)
    assert "Max-Age=0" in console.ask("DELETE", "session").headers["set-cookie"]
    assert console.ask("GET", "queues").status == 401
    assert console.ask("GET", "session").json["signed_in"] is False


@pytest.mark.parametrize("change", ["password", "role", "delete"])
def test_what_becomes_of_the_account_becomes_of_its_sessions(server, console, change):
    make_account(server, "shop", "admin")
    console.sign_in(name="shop", password=PASSWORD)
    accounts = server.server._broker.accounts
    if change == "password":
        server.call(accounts.set_password("shop", "another password"))
    elif change == "delete":
        make_account(server, "other", "admin")  # Else everybody may do everything.
        server.call(accounts.delete("shop"))
    else:
        server.call(accounts.set_console_role("shop", "viewer"))
        assert console.ask("GET", "session").json["role"] == "viewer"
        return
    assert console.ask("GET", "session").json["signed_in"] is False


def test_the_servers_token_lets_in(tmp_path):
    with ServerThread(tmp_path, memory=True, port=-1, token="sesame") as server:
        console = ConsoleCaller(server)
        assert console.ask("GET", "queues").status == 401
        assert console.sign_in(token="open").status == 401
        assert console.sign_in(token="sesame").status == 200
        assert console.ask("GET", "session").json["role"] == "admin"
        assert console.call("PUT", "/queues/made").status == 201


# -- changes ---------------------------------------------------------------------------------------


def test_a_change_without_the_second_secret_is_refused(server, console):
    make_account(server, "shop", "admin")
    console.sign_in(name="shop", password=PASSWORD)
    for given in ({"X-Ringdove-Csrf": ""}, {"X-Ringdove-Csrf": "wrong"}):
        assert console.call("PUT", "/queues/stolen", {}, headers=given).status == 403
        answer = console.at("POST", "/console/api/accounts/list", {}, headers=given)
        assert answer.status == 403
    assert console.call("PUT", "/queues/made", {}).status == 201
    assert [q["name"] for q in console.ask("GET", "queues").json["queues"]] == ["made"]


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://elsewhere.example"}]
)
def test_a_page_of_another_site_changes_nothing(console, headers):
    answer = console.at("POST", "/console/api/accounts/create", {"name": "x"}, headers=headers)
    assert (answer.status, answer.json["code"]) == (403, "CrossSiteRefused")
    answer = console.at("POST", "/console/api/session", {"token": "x"}, headers=headers)
    assert answer.status == 403


# -- roles -----------------------------------------------------------------------------------------


def test_an_account_sees_and_uses_its_own_queues(server, rd, console):
    rd.create_queue("somebody-elses").send("secret")
    own = f"{make_account(server, 'shop', 'operator')}.orders"
    console.sign_in(name="shop", password=PASSWORD)
    assert console.call("PUT", f"/queues/{own}", {}).status == 201
    assert [q["name"] for q in console.ask("GET", "queues").json["queues"]] == [own]
    assert console.ask("GET", "session").json["prefix"] == own.removesuffix("orders")
    assert console.call("POST", f"/queues/{own}/messages", {"body": "x"}).status == 201
    for method, path in (("GET", "/peek"), ("POST", "/purge"), ("DELETE", "")):
        assert console.call(method, f"/queues/somebody-elses{path}").status == 403, path
    assert console.ask("POST", "accounts/list", {}).status == 403
    assert console.ask("GET", "observed", queue=own).status == 403
    assert rd.queue("somebody-elses").stats().messages == 1


def test_a_viewer_looks_and_changes_nothing(server, rd, console):
    rd.create_queue("readings").send("21.5")
    make_account(server, "guest", "viewer")
    server.call(server.server._broker.accounts.grant("guest", "readings", ["send", "receive"]))
    console.sign_in(name="guest", password=PASSWORD)
    assert console.call("GET", "/queues/readings/peek").json["messages"][0]["body"] == "21.5"
    for method, path in (("POST", "/messages"), ("POST", "/receive"), ("POST", "/purge")):
        assert console.call(method, f"/queues/readings{path}", {}).status == 403, path
    stats = rd.queue("readings").stats()
    assert (stats.messages, stats.waiting()) == (1, 1)


def test_an_admin_administers_accounts(server, console):
    make_account(server, "boss", "admin")
    console.sign_in(name="boss", password=PASSWORD)
    made = console.ask("POST", "accounts/create", {"name": "new"}).json["result"]
    assert made["key"]["secret"]
    listed = console.ask("POST", "accounts/list", {}).json["result"]
    assert {account["name"] for account in listed} == {"boss", "new"}
    assert "secret" not in str(listed)
    assert (
        console.ask("POST", "accounts/set_console_role", {"account": "new", "role": "x"}).status
        == 400
    )


# -- what a page is told ---------------------------------------------------------------------------


def test_every_setting_is_explained(console):
    told = console.ask("GET", "settings").json
    assert [setting["name"] for setting in told] == list(SETTING_NAMES)
    assert all(setting["text"].endswith(".") for setting in told)
    assert told[0]["words"] == ["loose", "key", "strict"]


def test_the_table_of_queues_is_searched_filtered_sorted_and_paged(rd, console):
    for number in range(30):
        queue = rd.create_queue(f"site-{number:02}", receives_max=3 if number == 7 else None)
        queue.send_many([b"x"] * (number % 5))
    answer = console.ask("GET", "queues", search="SITE-1", size=4, page=1).json
    assert [q["name"] for q in answer["queues"]] == ["site-14", "site-15", "site-16", "site-17"]
    assert (answer["found"], answer["all"]) == (10, 31)
    deepest = console.ask("GET", "queues", sort="waiting", size=3).json["queues"]
    assert [q["row"]["waiting"] for q in deepest] == [4, 4, 4]
    empty = console.ask("GET", "queues", filter="empty", size=200).json
    assert empty["found"] == 7
    dead = console.ask("GET", "queues", filter="dead").json["queues"]
    assert [q["name"] for q in dead] == ["site-07.dead"]
    assert console.ask("GET", "queues", sort="beauty").status == 400


def test_a_plan_is_made_and_a_mistake_explained(console):
    made = console.ask("GET", "plan", rate=1000, service_ms=5, p99_ms=50).json
    assert made["figures"]["p99_ms"] <= 50
    assert made["by_rate"][0]["mean_ms"] > 0
    refused = console.ask("GET", "plan", rate=1000, service_ms=500, p99_ms=50)
    assert (refused.status, refused.json["code"]) == (400, "InvalidArgument")
    assert console.ask("GET", "plan", rate=1e5, service_ms=1000).status == 400


def test_a_queue_in_use_is_observed(server, rd, console):
    queue = rd.create_queue("readings")
    queue.send_many([b"x"] * 100)
    held = queue.receive(max=10)
    told = console.ask("GET", "observed", queue="readings").json
    assert (told["busy_threads"], told["waiting"]) == (10, 90)
    assert told["advice"].endswith(".")
    held.ack()
    missing = console.ask("GET", "observed", queue="nothing")
    assert (missing.status, missing.json["code"]) == (400, "InvalidArgument")


def test_what_this_server_cannot_show_is_refused_with_a_reason(console):
    assert console.ask("GET", "session").json["views"] == []
    answer = console.ask("GET", "pipeline")
    assert (answer.status, answer.json["detail"]) == (
        400,
        "This server has no pipeline to look at.",
    )


def test_a_pipelines_project_is_looked_at(tmp_path: Path):
    project = tmp_path / "meters"
    with (
        ServerThread("nowhere", memory=True, pipeline=str(project)) as server,
        ringdove.connect(server.url) as rd,
    ):
        rd.create_queue("readings")
        write_project(Plan(project, server.url, "readings"))
        console = ConsoleCaller(server)
        assert console.ask("GET", "session").json["views"] == ["pipeline"]
        told = console.ask("GET", "pipeline").json
        assert (told["pipeline"], told["state"], told["queues"]["lag"]) == (
            "meters",
            "never run",
            0,
        )
