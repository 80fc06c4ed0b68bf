"""Foreign clients in processes of their own, against a real server that wants signed requests.

What a client is told is what AWS's documentation says it may be told by the environment: region,
keys, and the endpoint. Nothing else differs from a run against AWS.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from server.running import ServerProcess, run_command

HERE = Path(__file__).parent
REGION = "eu-west-1"

#: Long enough that only a hang reaches it.
PATIENCE_S = 90


class Shop:
    """An account on a server, and the environment of a program that uses it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        made = run_command("--url", server.url, "account", "create", "shop", "--json")
        assert not made.returncode, made.stderr.decode()
        told = json.loads(made.stdout)
        self.account: str = told["id"]
        self.key: str = told["key"]["id"]
        self.secret: str = told["key"]["secret"]
        self._home = tempfile.TemporaryDirectory(prefix="ringdove-foreign-")

    @property
    def environment(self) -> dict[str, str]:
        """What a client finds: nothing of this machine's own configuration of AWS."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RINGDOVE_"))}
        return {
            **kept,
            "HOME": self._home.name,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL_SQS": self.server.http_url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_PAGER": "",
        }

    def start(self, *command: str, **extra: str) -> "subprocess.Popen[bytes]":
        """Begin a Python program, with more variables in its environment."""
        return subprocess.Popen(
            [sys.executable, *command],
            env={**self.environment, **extra},
            cwd=self._home.name,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, *command: str, **extra: str) -> str:
        """Run a Python program to its good end; answers what it prints."""
        process = self.start(*command, **extra)
        out, err = finish(process)
        assert not process.returncode, f"{command}\n{out}\n{err}\n{self.server.log[-5000:]}"
        return out

    def run_script(self, name: str, *arguments: str, **extra: str) -> str:
        """The same for a script beside this module."""
        return self.run(str(HERE / name), *arguments, **extra)

    def close(self) -> None:
        """Forget the clients' home."""
        self._home.cleanup()


def finish(process: "subprocess.Popen[bytes]") -> tuple[str, str]:
    """Wait for a program's end; ends it and its children when that takes too long.

    Answers what it has printed.
    """
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"hangs:\n{out.decode()}\n{err.decode()}") from None
    return out.decode(), err.decode()
