"""What people do in the console, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from console.browser import watched
from console.test_server import PASSWORD, make_account
from rest.caller import QueueCaller
from ringdove.tiers.alarms import LAG
from ringdove.tiers.reports import BrokerReport, QueueReport, to_wire
from server.running import ServerThread

PAGES = ["overview", "queues", "fabric", "tiers", "planner", "pipeline", "accounts"]


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def tile(page, label):
    """The value in the tile of a name."""
    return page.locator(".tile", has=page.get_by_text(label, exact=True)).locator(".tile-value")


# -- queues and messages ---------------------------------------------------------------------------


def test_a_queue_is_made_and_a_message_sent_seen_and_received(shown, rest):
    page = shown.open("queues")
    expect(page.get_by_text("There are no queues yet")).to_be_visible()
    press(page, "New queue")
    page.get_by_label("Name").fill("readings")
    expect(page.get_by_text("loose: best effort over all stripes")).to_be_visible()
    page.get_by_label("order", exact=True).select_option("key")
    page.get_by_text("Time", exact=True).click()
    page.get_by_label("lease_ms").fill("45s")
    shown.keep("new-queue")
    press(page, "Make the queue")
    expect(page.get_by_role("heading", name="readings", level=1)).to_be_visible()
    settings = rest.ok("GET", "/queues/readings")["settings"]
    assert (settings["order"], settings["lease_ms"]) == ("key", 45_000)

    press(page, "Send")
    page.get_by_label("Body").fill('{"celsius": 21.5}')
    page.get_by_label("Key").fill("meter-7")
    page.get_by_label("Attributes").fill("unit=C\nfloor=3")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(page.get_by_text("Stored at 0/0.")).to_be_visible()
    expect(tile(page, "Waiting")).to_have_text("1")

    press(page, "Peek")
    row = page.get_by_role("region", name="Oldest messages").locator("tbody tr")
    expect(row).to_contain_text("meter-7")
    expect(row).to_contain_text("unit=C, floor=3")
    press(page, "Receive one")
    expect(page.get_by_role("dialog")).to_contain_text('{"celsius": 21.5}')
    expect(tile(page, "In flight")).to_have_text("1")
    press(page, "Acknowledge")
    expect(tile(page, "In flight")).to_have_text("0")
    expect(page.get_by_text("There is nothing to see")).to_be_visible()
    assert QueueCaller(rest, "readings").waiting() == 0


def test_order_and_duplicates_are_counted(shown, rest):
    queue = QueueCaller(rest, "readings").create()
    page = shown.open("queues/readings")
    for name in ("a", "b", "a"):
        queue.send("21.5", "text/plain", id=name)
    queue.settle("release", queue.receive(max=2), delay_ms=0)
    expect(tile(page, "Handed out")).to_have_text("2")
    queue.receive(max=2)
    expect(tile(page, "Handed out")).to_have_text("4")
    expect(tile(page, "Handed out again")).to_have_text("2")
    expect(tile(page, "Out of order")).to_have_text("0")
    expect(tile(page, "Sent twice")).to_have_text("1")
    shown.keep("queue-regularity")


def test_a_mistake_is_told_in_the_servers_words(shown):
    page = shown.open("queues")
    press(page, "New queue")
    page.get_by_label("Name").fill("both")
    page.get_by_label("order", exact=True).select_option("strict")
    page.get_by_label("stripes", exact=True).fill("4")
    press(page, "Make the queue")
    expect(page.get_by_role("alert")).to_contain_text("order 'strict' keeps one sequence")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    shown.complaints.clear()  # The browser notes the refused request.


def test_settings_are_changed(shown, rest):
    QueueCaller(rest, "readings").create()
    page = shown.open("queues/readings")
    press(page, "Settings")
    page.get_by_text("Failures", exact=True).click()
    page.get_by_label("receives_max").fill("4")
    press(page, "Save")
    expect(page.get_by_text("The settings are changed.")).to_be_visible()
    assert rest.ok("GET", "/queues/readings")["settings"]["receives_max"] == 4
    expect(page.locator("#dead")).to_contain_text("readings.dead")


def test_dead_letters_tell_why_and_go_back_one_or_all(shown, rest):
    queue = QueueCaller(rest, "readings").create(receives_max=2)
    queue.send({"messages": [{"body": word} for word in ("first", "second", "third")]})
    queue.settle("bury", queue.receive(max=3), reason="checksum is wrong")
    page = shown.open("queues/readings")
    letters = page.get_by_role("region", name="Dead letters").locator("tbody tr")
    expect(letters).to_have_count(3)
    expect(letters.first).to_contain_text("checksum is wrong")
    shown.keep("dead-letters")
    press(page, "Redrive one")
    expect(page.get_by_text("1 message is back.")).to_be_visible()
    expect(letters).to_have_count(2)
    press(page, "Redrive all")
    expect(page.get_by_text("2 messages are back.")).to_be_visible()
    expect(tile(page, "Waiting")).to_have_text("3")
    assert {m["body"] for m in queue.receive(max=9)} == {"first", "second", "third"}


def test_what_cannot_be_undone_asks_for_the_name(shown, rest):
    QueueCaller(rest, "precious").create().send({"messages": [{"body": "x"}] * 7})
    page = shown.open("queues/precious")
    press(page, "Purge")
    dialog = page.get_by_role("dialog")
    purge = dialog.get_by_role("button", name="Purge")
    dialog.get_by_role("textbox").fill("preciou")
    expect(purge).to_be_disabled()
    dialog.get_by_role("textbox").fill("precious")
    purge.click()
    expect(page.get_by_text("7 messages dropped.")).to_be_visible()
    expect(tile(page, "Waiting")).to_have_text("0")
    press(page, "Delete")
    dialog.get_by_role("textbox").fill("precious")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("There are no queues yet")).to_be_visible()


def test_buttons_stay_where_they_are_when_the_first_figures_come(shown, rest):
    QueueCaller(rest, "readings").create().send({"body": "x"})
    held = []
    shown.page.route("**/console/api/live*", lambda route: held.append(route))  # noqa: PLW0108
    page = shown.open("queues/readings")
    places = [page.get_by_role("button", name=name, exact=True) for name in ("Purge", "Add")]
    before = [place.bounding_box() for place in places]
    expect(tile(page, "Waiting")).to_have_text("–")  # noqa: RUF001
    for route in held:
        route.continue_()
    expect(tile(page, "Waiting")).to_have_text("1")
    assert [place.bounding_box() for place in places] == before


def test_subscriptions_come_and_go(shown, rest):
    QueueCaller(rest, "readings").create().send({"body": "x"})
    page = shown.open("queues/readings")
    press(page, "Add")
    page.get_by_label("Name").fill("audit")
    page.get_by_label("Starts with").select_option("earliest")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    row = page.get_by_role("row", name=re.compile("audit"))
    expect(row).to_contain_text("1")
    press(page, "Remove audit")
    page.get_by_role("dialog").get_by_role("textbox").fill("audit")
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)


# -- many queues -----------------------------------------------------------------------------------


def test_of_a_thousand_queues_the_page_holds_one_page(shown, server):
    broker = server.server._broker

    async def make() -> None:
        for number in range(1_000):
            await broker.create_queue(f"site-{number:04}", {})

    server.call(make())
    page = shown.open("queues")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(page.get_by_text("1,000 queues")).to_be_visible()
    press(page, "Next")
    expect(rows.first).to_contain_text("site-0050")
    page.get_by_label("Search queues").fill("site-012")
    expect(rows).to_have_count(10)
    with page.expect_request(re.compile("/live")) as asked:
        page.get_by_label("Search queues").fill("0777")
    expect(rows).to_have_count(1)
    assert asked.value.url.count("site-") <= 50
    page.goto(f"{server.http_url}/console/#/overview")
    expect(page.locator(".lead")).to_contain_text("1,000 queues")
    expect(page.locator("tbody tr")).to_have_count(8)


# -- signing in ------------------------------------------------------------------------------------


def sign_in(page, name, password):
    page.get_by_label("Account").fill(name)
    page.get_by_label("Password").fill(password)
    press(page, "Sign in")


def test_who_is_refused_stays_outside_and_who_knows_the_password_comes_in(shown, server, rest):
    QueueCaller(rest, "secret-queue").create()
    make_account(server, "boss", "admin")
    page = shown.open("queues")
    expect(page.get_by_role("heading", name="Sign in to Ringdove")).to_be_visible()
    shown.keep("sign-in")
    shown.check_accessible()
    sign_in(page, "boss", "wrong password")
    expect(page.get_by_role("alert")).to_contain_text("another password")
    expect(page.get_by_text("secret-queue")).to_have_count(0)
    shown.complaints.clear()  # The browser notes the refused request.
    sign_in(page, "boss", PASSWORD)
    expect(page.get_by_role("link", name="secret-queue")).to_be_visible()
    page.reload()
    expect(page.get_by_role("link", name="secret-queue")).to_be_visible()
    press(page, "Sign out")
    expect(page.get_by_role("heading", name="Sign in to Ringdove")).to_be_visible()


def test_a_viewer_has_no_buttons_that_change(shown, server, rest):
    QueueCaller(rest, "readings").create().send({"body": "21.5"})
    make_account(server, "guest", "viewer")
    server.call(server.server._broker.accounts.grant("guest", "*", ["send", "receive", "manage"]))
    page = shown.open("queues/readings")
    sign_in(page, "guest", PASSWORD)
    expect(tile(page, "Waiting")).to_have_text("1")
    press(page, "Peek")
    expect(page.get_by_role("region", name="Oldest messages")).to_contain_text("21.5")
    for name in ("Send", "Purge", "Delete", "Settings", "Receive one"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)


def test_a_session_that_ends_leads_to_the_door(shown, server, rest):
    QueueCaller(rest, "readings").create()
    make_account(server, "boss", "admin")
    page = shown.open("queues")
    sign_in(page, "boss", PASSWORD)
    expect(page.get_by_role("link", name="readings")).to_be_visible()
    server.call(server.server._broker.accounts.set_password("boss", "another password"))
    expect(page.get_by_role("heading", name="Sign in to Ringdove")).to_be_visible()


def test_an_account_gets_a_key_and_loses_it(shown, server):
    make_account(server, "boss", "admin")
    page = shown.open("accounts")
    sign_in(page, "boss", PASSWORD)
    press(page, "New account")
    page.get_by_label("Name").fill("shop")
    press(page, "Make the account")
    expect(page.get_by_text("it is not shown again")).to_be_visible()
    press(page, "I have it")
    keys = page.get_by_role("region", name="Keys of shop").locator("tbody tr")
    expect(keys).to_contain_text("works")
    key = keys.locator("th").inner_text()
    keys.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("textbox").fill(key)
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(keys).to_contain_text("revoked")
    shown.check_accessible()


# -- the planner -----------------------------------------------------------------------------------


def test_the_plan_follows_the_sliders(shown):
    page = shown.open("planner")
    threads = tile(page, "Receiving threads")
    expect(threads).to_have_text(re.compile(r"\d"))
    before = int(threads.inner_text())
    slider = page.get_by_label("Time to process one")
    slider.evaluate("(s) => { s.value = 1; s.dispatchEvent(new Event('input', {bubbles: true})); }")
    expect(threads).not_to_have_text(str(before))
    assert int(threads.inner_text()) > before
    page.get_by_label("Wanted for 99 of 100 messages").evaluate(
        "(s) => { s.value = 0.5; s.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    expect(page.get_by_role("alert")).to_contain_text("No number of threads meets the target")
    shown.complaints.clear()  # The browser notes the refused request.


# -- tiers -----------------------------------------------------------------------------------------


def test_brokers_are_shown_as_a_tree_with_their_alarms(browser, tmp_path):
    late = QueueReport("readings", 7, lag_ms=LAG.upper)
    reports = [
        BrokerReport("core", 0, "eu", "ringdove://core:7117"),
        BrokerReport("edge", 1, "eu", "ringdove://edge:7117", upstream="core", queues=[late]),
    ]
    with (
        ServerThread(tmp_path, memory=True, port=-1, manager=True) as server,
        watched(browser, server.http_url) as shown,
    ):
        for report in reports:
            server.call(server.server.manager.do("beat", {"report": to_wire(report)}))
        page = shown.open("tiers")
        below = page.locator(".tree > li > ul > li")
        expect(page.locator(".tree > li > .broker")).to_contain_text("core")
        expect(below).to_contain_text("edge")
        expect(below).to_contain_text("lag 30 s")
        expect(page.locator(".alarms li")).to_contain_text("readings")
        shown.check_accessible()
        shown.keep("tiers")
        shown.check_calm()


# -- for everybody ---------------------------------------------------------------------------------


def fill(rest) -> None:
    queue = QueueCaller(rest, "readings").create(receives_max=3, stripes=2)
    queue.send({"messages": [{"body": {"celsius": 21.5}, "key": "meter-7"}] * 40})
    queue.settle("bury", queue.receive(max=2), reason="checksum is wrong")
    QueueCaller(rest, "orders").create(order="key", delivery="exactly-once")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_keeps_people_out(browser, server, rest, theme):
    fill(rest)
    rules = () if theme == "light" else ("color-contrast",)  # All else is the same.
    with watched(browser, server.http_url, color_scheme=theme) as shown:
        for place in [*PAGES, "queues/readings"]:
            page = shown.open(place)
            expect(page.locator(".waiting")).to_have_count(0)
            expect(page.locator(".pulse")).to_have_class(re.compile("well"))
            shown.check_accessible(*rules)
            shown.keep(f"{place.replace('/', '-')}-{theme}")
        press(page, "Settings")
        shown.check_accessible(*rules)
        shown.check_calm()


def test_a_phone_shows_everything_without_scrolling_sideways(browser, server, rest):
    fill(rest)
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    with watched(browser, server.http_url, **phone) as shown:
        for place in [*PAGES, "queues/readings"]:
            page = shown.open(place)
            expect(page.locator(".waiting")).to_have_count(0)
            shown.keep(f"{place.replace('/', '-')}-phone")
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{place} is {wide} px too wide"
        shown.check_calm()


def test_the_keyboard_is_enough(shown, rest):
    QueueCaller(rest, "readings").create()
    page = shown.open("queues")
    expect(page.get_by_role("link", name="readings")).to_be_visible()
    page.keyboard.press("Tab")
    for _ in range(30):
        if page.evaluate("document.activeElement.textContent") == "readings":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="readings", level=1)).to_be_focused()


def test_the_theme_is_remembered(shown):
    page = shown.open()
    press(page, "Use the dark theme")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_page_comes_back_with_the_server(browser, tmp_path):
    with (
        ServerThread(tmp_path, memory=True, port=-1) as server,
        watched(browser, server.http_url) as shown,
    ):
        page = shown.open("queues")
        expect(page.locator(".pulse")).to_have_class(re.compile("well"))
        server.stop()
        expect(page.get_by_text("Not connected")).to_be_visible()
        server.start()
        expect(page.locator(".pulse")).to_have_class(re.compile("well"))
