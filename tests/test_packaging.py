"""What is handed out: the wheel and the source archive have everything, and one version."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from ringdove.version import __version__

ROOT = Path(__file__).parent.parent
BUILD = """
import sys
from hatchling import build
print(build.build_wheel(sys.argv[1]))
print(build.build_sdist(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[zipfile.ZipFile, tarfile.TarFile]:
    """The wheel and the source archive, made as pip makes them."""
    place = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(place)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wheel, archive = done.stdout.split()
    return zipfile.ZipFile(place / wheel), tarfile.open(place / archive)


def test_the_wheel_has_every_file_of_the_package_and_no_other(built, tracked):
    wheel, _ = built
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == {n.removeprefix("src/") for n in tracked if n.startswith("src/")}
    for needed in (
        "ringdove/py.typed",
        "ringdove/stores/fabric/library.lua",
        "ringdove/spark/pipeline/template/transformations/raw.py.in",
        "pyspark_ringdove/__init__.py",
    ):
        assert needed in packed


def test_the_source_archive_has_what_the_repository_has(built, tracked):
    _, archive = built
    packed = {name.partition("/")[2] for name in archive.getnames()}
    assert packed - {"PKG-INFO"} == tracked


def test_the_version_is_stated_once(built):
    wheel, archive = built
    [name] = [name for name in wheel.namelist() if name.endswith("METADATA")]
    assert message_from_bytes(wheel.read(name))["Version"] == __version__
    assert archive.getnames()[0].startswith(f"ringdove-{__version__}/")
    said = subprocess.run(
        [sys.executable, "-m", "ringdove", "--version"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert said.stdout.strip() == __version__


def test_the_wheel_brings_the_command(built):
    wheel, _ = built
    [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "ringdove = ringdove.cli:main" in wheel.read(name).decode()


def test_whatever_is_locked_runs_on_the_oldest_python_that_will_do():
    """Debian 12 has 3.11.2: what needs a later 3.11 would end `make setup` there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    lock = (ROOT / "requirements" / "dev.lock").read_text()
    locked = re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)
    assert len(locked) > 100
    needs = {name: metadata(name).get("Requires-Python", "") for name in locked}
    assert not {name: own for name, own in needs.items() if oldest not in SpecifierSet(own)}
