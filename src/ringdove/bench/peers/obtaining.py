"""How peers are obtained: programs of the system, Python packages and jars.

Python packages go into directories of the user's cache, one for each peer, and never into the
environment that Ringdove is installed in. Programs come from the system's packages.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ringdove.bench import maven
from ringdove.config import cache_directory
from ringdove.errors import RingdoveError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

_INSTALL_SECONDS_MAX = 600
#: Debian puts servers where only the administrator looks.
SEARCHED = os.pathsep.join(
    [os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/lib/rabbitmq/bin"]
)


def cache() -> Path:
    """Where everything is kept that was obtained."""
    return cache_directory(os.environ) / "peers"


def program(name: str, package: str) -> str:
    """A program of the system, installed if it is missing and may be; or why it cannot be had."""
    found = shutil.which(name, path=SEARCHED)
    if found is None:
        _install(package)
        found = shutil.which(name, path=SEARCHED)
    if found is None:
        raise StoreUnavailable(f"There is no {name}, and it could not be installed ({package}).")
    return found


def _install(package: str) -> None:
    apt = shutil.which("apt-get")
    if apt is None:
        raise StoreUnavailable(f"Package {package} is missing; install it by hand (no apt-get).")
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    # Runlevel 1 keeps the package from starting a server of its own.
    quiet = ["env", "RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive", apt, "-qq"]
    for words in (["update"], ["install", "-y", "--no-install-recommends", package]):
        _run([*as_root, *quiet, *words], f"Package {package} cannot be installed")


def python_packages(requirements: Sequence[str]) -> Path:
    """A directory with these packages and what they need, for `sys.path`."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:10]
    name = requirements[0].partition("=")[0]
    place = cache() / f"python{version}-{name}-{key}"
    if not place.exists():
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as temporary:
            made = Path(temporary) / "made"
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run(
                [*pip, "--target", str(made), *requirements], f"{requirements} cannot be installed"
            )
            made.rename(place)
    return place


def jars(part: str) -> str:
    """A class path of what `jars.txt` lists, fetched if need be."""
    wanted = maven.listed(Path(__file__).with_name("jars.txt"), part)
    return os.pathsep.join(map(str, maven.fetched(wanted, cache() / part, part)))


def java() -> str:
    """The Java that there is; or that there is none."""
    from ringdove.spark.java import find_java

    try:
        return str(find_java(os.environ) / "bin" / "java")
    except RingdoveError as error:
        raise StoreUnavailable(f"There is no Java: {error}") from error


def version(command: Sequence[str]) -> str:
    """The first line of what a program says of itself."""
    done = subprocess.run(  # noqa: S603  a program that was asked for
        list(command), capture_output=True, text=True, timeout=60, check=False
    )
    return (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]


def _run(command: list[str], failure: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603  what this benchmark has been asked to install
            command, capture_output=True, text=True, timeout=_INSTALL_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreUnavailable(f"{failure}: {error}.") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise StoreUnavailable(f"{failure}: {' '.join(last)}")
