"""Servers and a browser for tests of the console."""

from collections.abc import Iterator

import pytest
from argon2 import PasswordHasher
from playwright.sync_api import Browser

import ringdove
from console.browser import Shown, chromium, watched
from rest.caller import Caller
from ringdove.controllers import passwords
from server.running import ServerThread


@pytest.fixture(scope="module", autouse=True)
def cheap_passwords() -> Iterator[None]:
    """Hash passwords as always, but at a fraction of the cost."""
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_hasher", lambda: cheap)
        patch.setattr(passwords, "_NOBODY", cheap.hash("nobody"))
        yield


@pytest.fixture(scope="module")
def lasting() -> Iterator[ServerThread]:
    """A server without a disk, for all tests of a module."""
    with ServerThread("nowhere", memory=True) as running:
        yield running


@pytest.fixture
def server(lasting: ServerThread) -> Iterator[ServerThread]:
    """The server, without queues and accounts."""
    yield lasting
    lasting.call(_forget_all(lasting))


async def _forget_all(running: ServerThread) -> None:
    broker = running.server._broker
    for info in await broker.list_queues():
        await broker.delete_queue(info.name)
    for account in await broker.accounts.list():
        await broker.accounts.delete(account.id)


@pytest.fixture
def rd(server: ServerThread) -> Iterator[ringdove.Connection]:
    """A client of the server."""
    with ringdove.connect(server.url) as connection:
        yield connection


@pytest.fixture
def rest(server: ServerThread) -> Caller:
    """A client of the server that does not mind the browser's event loop."""
    return Caller(server.http_port)


@pytest.fixture
def console(server: ServerThread) -> "ConsoleCaller":
    """Asks the server as a page would."""
    return ConsoleCaller(server)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests of a module; while it runs, this thread has an event loop."""
    with chromium() as running:
        yield running


@pytest.fixture
def shown(browser: Browser, server: ServerThread) -> Iterator[Shown]:
    """A page of the console, which must not complain."""
    with watched(browser, server.http_url) as page:
        yield page
        page.check_calm()


class ConsoleCaller(Caller):
    """A page without a browser: keeps the cookie, and knows what goes with changes."""

    def __init__(self, server: ServerThread) -> None:
        super().__init__(server.http_port)
        self.csrf = ""

    def ask(self, method: str, path: str, body=None, **options):
        """Ask below /console/api."""
        if method != "GET":
            self.headers["X-Ringdove-Csrf"] = self.csrf
        return self.at(method, f"/console/api/{path}", body, **options)

    def sign_in(self, **given: str):
        """Begin a session; the answer."""
        answer = self.ask("POST", "session", given)
        if answer.status == 200:
            self.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
            self.csrf = self.ask("GET", "session").json["csrf"]
            self.headers["X-Ringdove-Csrf"] = self.csrf
        return answer
