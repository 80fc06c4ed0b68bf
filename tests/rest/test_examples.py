"""The commands in docs/rest.md run as they stand, and answer what the page says."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from server.running import ServerThread

PAGE = Path(__file__).parents[2] / "docs" / "rest.md"
FENCE = re.compile(r"```(sh|json)\n(.*?)```", re.DOTALL)
MARK = "==== end of example ===="


def examples() -> list[tuple[str, str | None]]:
    """Commands, each with the answer that follows it on the page, if one does."""
    found: list[tuple[str, str | None]] = []
    for kind, text in FENCE.findall(PAGE.read_text()):
        if kind == "sh":
            found.append((text, None))
        else:
            found[-1] = (found[-1][0], text)
    return found


def agrees(told: Any, real: Any, name: str = "") -> bool:
    """Whether an answer is as told, but for times and what the page leaves out."""
    if isinstance(told, dict) and isinstance(real, dict):
        return told.keys() == real.keys() and all(agrees(told[n], real[n], n) for n in told)
    if isinstance(told, list) and isinstance(real, list):
        return len(told) == len(real) and all(map(agrees, told, real))
    return told in ("...", real) or (name.endswith("_ms") and type(told) is type(real))


def last_value(output: str) -> Any:
    """The last of several JSON values that stand one after the other: curl ends no lines."""
    decoder = json.JSONDecoder()
    value, rest = None, output.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        rest = rest[end:].lstrip()
    return value


def test_every_command_answers_as_the_page_says(server: ServerThread, tmp_path: Path):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    commands = examples()
    script = "".join(f"{command}\necho; echo '{MARK}'\n" for command, _ in commands)
    script = script.replace("127.0.0.1:9324", f"127.0.0.1:{server.http_port}")
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs = done.stdout.split(MARK)
    compared = 0
    for (command, told), output in zip(commands, outputs, strict=False):
        if told is not None:
            real = last_value(output)
            assert agrees(json.loads(told), real), (command, real)
            compared += 1
    assert compared >= 8
