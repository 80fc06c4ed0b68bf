"""The program as a process: signals, pipes, exit codes."""

import json
import os
import signal
import subprocess
import sys

import pytest

PROGRAM = [sys.executable, "-c", "from ringdove.cli import main; main()"]


def background(directory, *arguments, **options):
    """The program running beside the test, listening to Ctrl-C as one on a terminal does.

    A test run started in the background of a shell ignores it, and so would its children.
    """
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        env={**os.environ, "RINGDOVE_DATA": str(directory)},
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        **options,
    )


def ringdove(directory, *arguments, **options):
    environment = {**os.environ, "RINGDOVE_DATA": str(directory)}
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
        **options,
    )


def test_a_pipe_goes_in_and_comes_out(tmp_path):
    assert ringdove(tmp_path, "queue", "create", "q").returncode == 0
    lines = b"".join(b"%d\n" % n for n in range(20_000))
    assert ringdove(tmp_path, "send", "q", "-", input=lines).returncode == 0
    received = ringdove(tmp_path, "receive", "q", "--max", "100000", "--ack")
    assert received.stdout == lines


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_loses_nothing(tmp_path, ending):
    ringdove(tmp_path, "queue", "create", "q")
    waiting = background(tmp_path, "stats", "--watch", "--json")
    assert json.loads(waiting.stdout.readline())["queue"] == "q"
    refused = ringdove(tmp_path, "send", "q", "x")
    assert refused.returncode == 3
    assert str(waiting.pid).encode() in refused.stderr
    waiting.send_signal(ending)
    waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert ringdove(tmp_path, "send", "q", "x").returncode == 0
    assert ringdove(tmp_path, "receive", "q", "--ack").stdout == b"x\n"


def test_lines_that_an_id_cannot_name_are_not_sent(tmp_path):
    ringdove(tmp_path, "queue", "create", "q")
    assert ringdove(tmp_path, "send", "q", "-", "--id", "x", input=b"1\n2\n").returncode == 1
    assert ringdove(tmp_path, "receive", "q").stdout == b""
    assert ringdove(tmp_path, "send", "q", "-", "--id", "x", input=b"1\n").returncode == 0
    assert ringdove(tmp_path, "receive", "q").stdout == b"1\n"


def test_fsck_and_backup_work_beside_a_writer(tmp_path):
    ringdove(tmp_path / "data", "queue", "create", "q")
    ringdove(tmp_path / "data", "send", "q", "x")
    writer = background(tmp_path / "data", "stats", "--watch", "--json")
    writer.stdout.readline()
    try:
        assert ringdove(tmp_path / "data", "fsck").returncode == 0
        assert ringdove(tmp_path / "data", "backup", str(tmp_path / "copy")).returncode == 0
    finally:
        writer.send_signal(signal.SIGINT)
        writer.communicate(timeout=60)
    assert ringdove(tmp_path / "copy", "receive", "q").stdout == b"x\n"


def test_a_closed_pipe_is_no_error(tmp_path):
    ringdove(tmp_path, "queue", "create", "q")
    ringdove(tmp_path, "send", "q", "-", input=b"x\n" * 50_000)
    receiver = background(tmp_path, "peek", "q", "--max", "50000", stderr=subprocess.PIPE)
    receiver.stdout.readline()
    receiver.stdout.close()
    errors = receiver.stderr.read()
    receiver.stderr.close()
    receiver.wait(timeout=60)
    assert b"Traceback" not in errors


def test_a_table_into_a_closed_pipe_is_no_error(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        shown = subprocess.run(
            [*PROGRAM, "--help"], stdout=writing, stderr=subprocess.PIPE, timeout=120, check=False
        )
    finally:
        os.close(writing)
    assert (shown.returncode, shown.stderr) == (0, b"")


@pytest.mark.parametrize("style", ["", " --json"])
@pytest.mark.parametrize(
    ("where", "why"),
    [(">/dev/full", b"No space left on device"), (">&-", b"Bad file descriptor")],
)
def test_what_cannot_be_printed_is_told_and_not_acknowledged(tmp_path, style, where, why):
    ringdove(tmp_path, "queue", "create", "q", "--lease-ms", "1ms")
    ringdove(tmp_path, "send", "q", "x")
    line = f'exec "$@" receive q --ack{style} {where}'
    shown = subprocess.run(
        ["/bin/sh", "-c", line, "sh", *PROGRAM],
        env={**os.environ, "RINGDOVE_DATA": str(tmp_path)},
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 1
    assert why in shown.stderr
    assert b"Traceback" not in shown.stderr
    assert ringdove(tmp_path, "receive", "q", "--wait", "60", "--ack").stdout == b"x\n"
