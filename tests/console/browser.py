"""A real browser for tests: Debian's Chromium, driven by Playwright; and what a page must never do.

with chromium() as browser, watched(browser, server) as page: page.open("queues")
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).parent.parent.parent

#: Pictures of what tests saw; git ignores them.
SHOTS = ROOT / "build" / "console"

#: Milliseconds: long enough that only a hang reaches it.
PATIENCE_MS = 60_000

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    assert program is not None, "there is no Chromium: tools/get-program chromium"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # Chromium's own sandbox is not for root, as whom containers run.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Shown:
    """A page of a console, and what it has complained about."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._hear)
        page.on("request", lambda request: self.asked.append(request.url))

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, place: str = "overview") -> Page:
        """Go to a page of the console, and wait until it is drawn."""
        self.page.goto(f"{self.url}/console/#/{place}")
        expect(self.page.locator("h1")).to_be_visible()
        return self.page

    def keep(self, name: str) -> Path:
        """Keep a picture of the page."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        return path

    def check_accessible(self, *rules: str) -> None:
        """Fail if a checker finds what keeps people out; by some rules, or all."""
        options = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else None
        found = Axe().run(self.page, options=options)
        assert found.violations_count == 0, found.generate_report()

    def check_calm(self, *allowed: str) -> None:
        """Fail if the page has complained, but for what is allowed, or asked anybody else."""
        wrong = [text for text in self.complaints if not any(re.search(a, text) for a in allowed)]
        assert not wrong, wrong
        assert all(url.startswith((self.url, "data:")) for url in self.asked)


@contextmanager
def watched(browser: Browser, url: str, **options: Any) -> Iterator[Shown]:
    """A window of its own, without cookies of others."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    try:
        yield Shown(context.new_page(), url)
    finally:
        context.close()
