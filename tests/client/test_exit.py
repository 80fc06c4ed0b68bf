"""Producers that nobody closed when the process ends."""

import subprocess
import sys

import ringdove
from ringdove.limits import BLOCK_MESSAGES_MAX

#: Ends while messages linger; `sys.argv[2]` says what it does before.
ENDS = f"""
import os, sys
import ringdove

rd = ringdove.connect(sys.argv[1])
producer = rd.create_queue("readings").producer(linger_ms=60_000, block_messages={BLOCK_MESSAGES_MAX})
for number in range(3):
    producer.send(b"%d" % number)
exec(sys.argv[2])
"""


def ends(url, before=""):
    command = [sys.executable, "-W", "ignore", "-c", ENDS, url, before]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def stored(url):
    with ringdove.connect(url) as rd:
        return [message.body for message in rd.queue("readings").receive(max=10)]


def test_what_lingers_is_stored_when_the_process_ends(url):
    assert ends(url) == ""
    assert stored(url) == [b"0", b"1", b"2"]


def test_a_forked_process_that_ends_sends_nothing_twice(url):
    before = "child = os.fork()\nif child: assert os.waitpid(child, 0)[1] == 0"
    assert ends(url, before) == ""
    assert stored(url) == [b"0", b"1", b"2"]


def test_what_cannot_be_stored_any_more_is_told_of(url):
    told = ends(url, "rd.close()")
    assert "'readings' were lost" in told
    assert "closed" in told
    assert stored(url) == []


def test_a_producer_that_was_closed_is_waited_for_by_nobody(url):
    assert ends(url, "producer.close(); rd.close()") == ""
    assert stored(url) == [b"0", b"1", b"2"]
