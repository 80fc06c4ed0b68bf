"""The documentation does what it says: its Python runs, its links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_the_python_on_the_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(ROOT / name)
    assert blocks
    scope = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, name, "exec"), scope)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_setting_is_explained_in_the_guide():
    from ringdove.core.settings import SETTING_NAMES

    text = (ROOT / "docs" / "guide.md").read_text()
    assert [name for name in SETTING_NAMES if f"`{name}`" not in text] == []
