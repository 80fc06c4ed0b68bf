"""A forked process and the connections of the one it came from."""

import os
import signal
import subprocess
import sys

import ringdove

#: Forks in the middle of its work; says what the new process, then the old one, came to.
FORKS = """
import os, sys
import ringdove

rd = ringdove.connect(sys.argv[1])
queue = rd.create_queue("readings")
queue.send(b"before")
[message] = queue.receive()
child = os.fork()
if child == 0:
    for use in (lambda: queue.send(b"child"), queue.receive, message.ack):
        try:
            use()
        except ringdove.RingdoveError as error:
            print(type(error).__name__, "connect anew" in str(error), flush=True)
    rd.close()
    if sys.argv[1].startswith("ringdove:"):
        with ringdove.connect(sys.argv[1]) as own:
            own.queue("readings").send(b"anew")
    os._exit(0)
os.waitpid(child, 0)
message.ack()
queue.send(b"after")
print([message.body for message in queue.receive(max=9)])
rd.close()
"""


#: Closes a directory, and opens it again, before a process that it has forked has run anything.
CLOSES = """
import os, signal, sys
os.register_at_fork(after_in_child=signal.pause)
import ringdove

rd = ringdove.connect(sys.argv[1])
child = os.fork()
try:
    rd.close()
    ringdove.connect(sys.argv[1]).close()
finally:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""

#: Ends without closing its directory, while a process that it has forked lives on.
DIES = """
import os, signal, sys
import ringdove

rd = ringdove.connect(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""


def test_a_directory_that_was_closed_opens_again_whatever_was_forked(file_url):
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CLOSES, file_url],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr


def test_a_forked_process_does_not_keep_the_directory_of_one_that_died(file_url):
    command = [sys.executable, "-W", "ignore", "-c", DIES, file_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait()
            ringdove.connect(file_url).close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_process_is_told_to_connect_anew_and_the_other_goes_on(url):
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    bodies = [b"after"] if url.startswith("file:") else [b"anew", b"after"]
    assert told.stdout.splitlines() == ["ConnectionClosed True"] * 3 + [str(bodies)], told.stderr
