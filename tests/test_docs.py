"""The documentation does what it says: its code runs, its commands exist, its links lead somewhere.

What a fence says of a block:

    python   runs, all of a page in one scope; in tests/spark where it needs Spark
    sh       runs in bash, in the directory of the page's Python
    console  is for another terminal, for another machine or takes long: a server is started for the
             blocks that follow, all else is checked to be a command with such options
    json, toml, yaml   can be read

Blocks of a page run in order. Ports of the documentation become those of the server.
"""

import contextlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from cyclopts import CoercionError, MissingArgumentError

from ringdove.cli import EXIT_OK, run
from ringdove.cli.app import app
from server.running import PATIENCE_S, PROGRAM

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Pages whose blocks are run by others, who know more of them.
RUN_ELSEWHERE = {"rest.md", "devices.md", "spark.md", "traces.md", "block-format.md"}
#: Sections whose Python is run by tests/spark.
ON_SPARK = "Spark"


class Block(NamedTuple):
    kind: str
    section: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found, section = [], ""
    for heading, kind, text in re.findall(
        r"^##+ ([^\n]*)|^ *```(\w*)\n(.*?)^ *```$", page.read_text(), flags=re.DOTALL | re.MULTILINE
    ):
        section = heading or section
        if not heading:
            found.append(Block(kind, section, textwrap.dedent(text)))
    return found


def python_blocks(page: Path) -> list[str]:
    return [block.text for block in blocks(page) if block.kind == "python"]


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a block, without comments, pipes and redirections."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.replace("$(", " | ").replace(")", " "), comments=True)
        for ends, part in itertools.groupby(words, lambda word: word in ("|", "&&", ";")):
            command = list(itertools.takewhile(lambda word: word not in ("<", ">"), part))
            if not ends:
                yield [command[0].rpartition("/")[2], *command[1:]]


class Reader:
    """Somebody who follows a page, in an empty directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.scope = {"__name__": "page"}
        self.server: subprocess.Popen[bytes] | None = None
        self.ports = {"7117": "7117", "9324": "9324"}
        (directory / "bin").mkdir()
        (directory / "bin" / "ringdove").write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
        (directory / "bin" / "ringdove").chmod(0o755)

    def follow(self, page: Path) -> None:
        for block in blocks(page):
            text = re.sub(r"(?<=:)(7117|9324)\b", lambda port: self.ports[port[0]], block.text)
            if block.kind == "python" and block.section != ON_SPARK:
                exec(compile(text, page.name, "exec"), self.scope)
            elif block.kind == "sh":
                self.run(text)
            elif block.kind == "console":
                for command in commands(text):
                    if "serve" in command[:4]:
                        self.serve(command)

    def run(self, text: str) -> None:
        """Run a block, which keeps the variables of those before."""
        plain = not re.search(r"[^\w\s./:=#,'-]", text)
        if plain and {command[0] for command in commands(text)} == {"ringdove"}:
            for command in commands(text):  # No shell is needed, which saves starting programs.
                assert run(command[1:]) == EXIT_OK
            return
        script = f"set -a; touch vars; . ./vars; set -e\n{text}\nexport -p > vars"
        done = subprocess.run(
            ["bash", "-u", "-o", "pipefail", "-c", script], cwd=self.directory, env=self.environment(),
            capture_output=True, text=True, check=False, timeout=PATIENCE_S * 4,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"

    def serve(self, command: list[str]) -> None:
        """Start a server in another terminal; the one before has been ended."""
        self.end()
        self.server = subprocess.Popen(
            [*PROGRAM, *command[1:], "--port", "0", "--http", "0", "--json"],
            cwd=self.directory, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self.server.stdout is not None
        told = json.loads(self.server.stdout.readline())
        self.ports = {"7117": str(told["port"]), "9324": str(told["http"])}

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RINGDOVE_")}
        return {**kept, "PATH": f"{self.directory}/bin:{os.environ['PATH']}"}

    def end(self) -> None:
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            self.server.communicate(timeout=PATIENCE_S)
            assert self.server.returncode == 0
            self.server = None

    def clean_up(self) -> None:
        """End what a page that could not be followed to its end has left."""
        if self.server is not None:
            self.server.kill()
            self.server.communicate()
        if (self.directory / "fabric").exists():
            subprocess.run(
                [*PROGRAM, "cluster", "down", "--dir", "fabric"],
                cwd=self.directory, capture_output=True, check=False, timeout=PATIENCE_S,
            )  # fmt: skip


FOLLOWED = [
    page
    for page in PAGES
    if page.name not in RUN_ELSEWHERE
    and any(b.kind == "sh" or (b.kind == "python" and b.section != ON_SPARK) for b in blocks(page))
]


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_the_page_can_be_followed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    try:
        reader.follow(page)
        reader.end()
    finally:
        reader.clean_up()


def test_the_pages_that_are_followed_are_many():
    assert {"README.md", "guide.md", "sqs.md", "models.md", "operating.md"} <= {
        page.name for page in FOLLOWED
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_and_blocks_are_of_a_known_kind(page):
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for block in blocks(page):
        match block.kind:
            case "sh" | "console":
                for program, *words in commands(block.text):
                    if program == "ringdove":
                        check_command(words)
                    elif program == "make":
                        assert set(words) <= set(targets)
            case "json":
                json.loads(block.text)
            case "toml":
                tomllib.loads(block.text)
            case "yaml":
                list(yaml.safe_load_all(block.text))
            case kind:
                assert kind in ("python", "text", "hex", "hcl", "ini")


def check_command(words: list[str]) -> None:
    """Fail unless these are words that the command line takes."""
    while words[0] in ("--data", "--url"):
        words = words[2:]
    if words not in (["--help"], ["--version"]):
        app.parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_named_in_passing_exist(page):
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`ringdove ([^`|]+)`", prose):
        # It may be named without arguments, or with words in their place.
        with contextlib.suppress(MissingArgumentError, CoercionError):
            check_command(shlex.split(span.removesuffix(" ...")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_tour_of_the_source_leads_along_files():
    tour = (ROOT / "README.md").read_text().partition("## A tour of the source")[2]
    named = re.findall(r"`(\w[\w/]*(?:\.py|\.lua|/))`", tour.partition("src/ringdove/`")[2])
    assert len(named) > 20
    assert [name for name in named if not (ROOT / "src" / "ringdove" / name).exists()] == []


def test_every_setting_is_explained_in_the_guide():
    from ringdove.core.settings import SETTING_NAMES

    text = (ROOT / "docs" / "guide.md").read_text()
    assert [name for name in SETTING_NAMES if f"`{name}`" not in text] == []


def test_the_tests_that_prove_guarantees_exist():
    text = (ROOT / "docs" / "guarantees.md").read_text()
    files = set(re.findall(r"\b[\w/]+\.py\b", text))
    assert len(files) > 20
    there = [str(path) for part in ("src", "tests") for path in (ROOT / part).rglob("*.py")]
    assert [name for name in files if not any(path.endswith(f"/{name}") for path in there)] == []
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = set(re.findall(r"\b(test_\w+?)_?\.\.\.", text))
    assert len(names) > 10
    assert [name for name in names if f"def {name}" not in sources] == []


def test_the_site_builds_and_asks_nobody_else_for_anything(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        fetched = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?([^\" >]+)", page.read_text()
        )
        assert fetched
        assert [url for url in fetched if re.match(r"(https?:)?//", url)] == []
