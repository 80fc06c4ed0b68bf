"""Where the events of a server go that runs in somebody's process."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
from ringdove.server import Server, ServerConfig

{setup}

async def main():
    async with Server(ServerConfig(data="data", port=0, http=-1)):
        print("mine")

asyncio.run(main())
"""

STRUCTLOG = """
import structlog, sys
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
"""


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        ("", []),
        ("import logging; logging.basicConfig(level='INFO')", ["INFO:ringdove:event='serving'"]),
        (STRUCTLOG, ["serving"]),
    ],
    ids=["none", "logging", "structlog"],
)
def test_standard_output_belongs_to_the_program(tmp_path, setup, told):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(setup=setup)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "mine\n"
    assert bool(done.stderr) == bool(told)
    for text in told:
        assert text in done.stderr
