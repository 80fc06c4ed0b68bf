"""The commands in docs/devices.md run as they stand, but for the port and the client's name."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import ringdove
from server.running import PATIENCE_S, PROGRAM, ServerThread

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"
LIBCOAP = next(filter(shutil.which, ("coap-client-notls", "coap-client")), None)

#: What the commands of each example print.
PRINTED = ["", '{"kwh": 0.042}', "valve close", '{"interval_s": 900}']


@pytest.mark.skipif(
    LIBCOAP is None and not os.environ.get("CI"),
    reason="tools/get-program libcoap3-bin coap-client",
)
def test_the_examples_print_what_they_should(tmp_path):
    examples = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with ServerThread(tmp_path, coap=0) as server:
        environment = {**os.environ, "RINGDOVE_URL": server.url}
        printed = [
            subprocess.run(
                example.replace("coap://127.0.0.1/", f"coap://127.0.0.1:{server.server.coap_port}/")
                .replace("coap-client", str(LIBCOAP))
                .replace("ringdove ", shlex.join(PROGRAM) + " "),
                shell=True, env=environment, capture_output=True, text=True, check=True,
                timeout=PATIENCE_S,
            ).stdout.strip()
            for example in examples
        ]  # fmt: skip
        with ringdove.connect(server.url) as rd:
            [reading] = rd.queue("readings").peek()
    assert printed == PRINTED
    assert (reading.key, reading.attributes["site"]) == (b"meter-7", "north")


def test_the_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    scope = {"__name__": "page"}
    exec(compile(block, PAGE.name, "exec"), scope)
    assert scope["report"]["received"] > 0
