"""Draws the pictures of the console in the documentation: docs/img/console-*.png.

    python -m tools.screenshots

A server and a small fabric on this machine, with traffic that goes on while pictures are taken.
Needs redis-server and chromium (tools/get-program).
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image
from playwright.sync_api import sync_playwright

import ringdove
from ringdove import NewMessage
from ringdove.cluster.layout import Tuning
from ringdove.cluster.local import LocalCluster
from ringdove.core.ring import Rings
from ringdove.errors import RingdoveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).parent.parent / "docs" / "img"

#: Seconds that pages are open before their pictures are taken: charts that show something.
OPEN_S = 45

#: Colours of a picture: enough for flat surfaces, and a third of the bytes.
COLOURS = 256


class Picture(NamedTuple):
    """What to take, and how."""

    name: str
    place: str
    theme: str = "light"
    width: int = 1280
    height: int = 800


PICTURES = [
    Picture("overview", "overview"),
    Picture("overview-dark", "overview", "dark"),
    Picture("overview-phone", "overview", width=390, height=844),
    Picture("queues", "queues"),
    Picture("queue", "queues/readings", height=1000),
    Picture("planner", "planner"),
    Picture("fabric", "fabric", height=900),
]


def main() -> None:
    """Draw all pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        tuning = Tuning(fsync="everysec", memory_bytes=64 * 1024 * 1024)
        cluster = LocalCluster.make(Path(scratch, "fabric"), Rings(5), tuning)
        try:
            cluster.up()
            with serving(cluster) as (url, http), traffic(url), playing() as browser:
                pages = [open_page(browser, http, picture) for picture in PICTURES]
                pages[0].wait_for_timeout(1000 * OPEN_S)
                for page, picture in zip(pages, PICTURES, strict=True):
                    take(page, picture)
        finally:
            cluster.down()


@contextlib.contextmanager
def serving(cluster: LocalCluster) -> Iterator[tuple[str, str]]:
    """A server on the fabric: its native address, and that of HTTP."""
    command = [
        sys.executable, "-m", "ringdove", "serve", "--json", "--port", "0", "--http", "0",
        "--store", cluster.url, "--cluster", str(cluster.directory),
    ]  # fmt: skip
    with subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        try:
            told = json.loads(process.stdout.readline())
            yield f"ringdove://127.0.0.1:{told['port']}", f"http://127.0.0.1:{told['http']}"
        finally:
            process.terminate()


@contextlib.contextmanager
def traffic(url: str) -> Iterator[None]:
    """Queues in use, until the end of the block."""
    over = threading.Event()
    with ringdove.connect(url) as rd:
        rd.create_queue("readings", stripes=4, receives_max=5)
        rd.create_queue("orders", order="key", delivery="exactly-once")
        rd.create_queue("invoices", order="strict")
        for site in ("aachen", "bergen", "cadiz", "delft", "espoo", "faro"):
            rd.create_queue(f"site.{site}.alarms").send_many([b"door open"] * random.randrange(9))
    threads = [
        threading.Thread(target=flow, args=(url, name, rate, over))
        for name, rate in (("readings", 160), ("orders", 40), ("invoices", 8))
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def flow(url: str, name: str, rate: int, over: threading.Event) -> None:
    """Send and receive some messages, five times a second, now more and now fewer."""
    numbers = random.Random(name)
    with ringdove.connect(url) as rd:
        queue = rd.queue(name)
        while not over.wait(0.2):
            wave = 1 + 0.4 * numbers.random()
            bodies = [
                json.dumps({"meter": numbers.randrange(500), "kwh": round(numbers.random(), 3)})
                for _ in range(int(rate * wave / 5))
            ]
            with contextlib.suppress(RingdoveError):
                queue.send_many(NewMessage(body, key=f"meter-{len(body)}") for body in bodies)
                batch = queue.receive(max=int(rate * 1.15 / 5))
                messages = list(batch)
                if name == "readings" and messages and numbers.random() < 0.05:
                    messages[0].bury("kwh is below what the meter told before")
                    batch = queue.receive(max=1)
                batch.ack()


@contextlib.contextmanager
def playing() -> Iterator[Browser]:
    """A browser without a window."""
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser: Browser, http: str, picture: Picture) -> Page:
    """Open a page, and have it show what its picture is about."""
    page = browser.new_page(
        viewport={"width": picture.width, "height": picture.height}, color_scheme=picture.theme
    )
    page.goto(f"{http}/console/#/{picture.place}")
    page.wait_for_selector("h1")
    if picture.name == "fabric":
        page.get_by_role("button", name="What if B went away").click()
    return page


def take(page: Page, picture: Picture) -> None:
    """Draw one picture."""
    path = IMAGES / f"console-{picture.name}.png"
    drawn = Image.open(io.BytesIO(page.screenshot()))
    drawn.convert("RGB").quantize(
        COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1024} KiB")  # noqa: T201


if __name__ == "__main__":
    main()
