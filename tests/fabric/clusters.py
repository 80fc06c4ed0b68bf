"""Clusters of real Redis processes for tests, what is sent through them, and hosts of a plan."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from contextlib import contextmanager

import ringdove
from ringdove.cluster import processes
from ringdove.cluster.hosts import host_of
from ringdove.cluster.layout import Tuning
from ringdove.cluster.local import LocalCluster
from ringdove.errors import ReceiptStale, StoreUnavailable

TUNING = Tuning(fsync="always", node_timeout_ms=1_000, memory_bytes=32 * 1024 * 1024)

#: Seconds after which what should have happened has not.
PATIENCE_S = 60


@contextmanager
def running(directory, rings, password=""):
    cluster = LocalCluster.make(directory, rings, TUNING, password)
    try:
        cluster.up()
        yield cluster
    finally:
        processes.kill(cluster.running())


def masters(cluster):
    return {shard.shard: shard.master for shard in cluster.status().shards}


def insist(act):
    """Try until the cluster serves: a new master refuses until a copy follows it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except StoreUnavailable:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def send(queue, first, count):
    """Send numbers, to as many stripes as it takes."""
    numbers = range(first, first + count)
    for number in numbers:
        insist(lambda: queue.send(str(number)))
    return set(numbers)


def drain(queue):
    """Every message; one may come twice, because a send that takes long is sent elsewhere too."""
    found = set()
    deadline_s = time.monotonic() + PATIENCE_S
    while batch := insist(lambda: queue.receive(max=1000)):
        found |= {int(message.body) for message in batch}
        insist(batch.ack)
        assert time.monotonic() < deadline_s
    return found


class Traffic:
    """Sends numbers and receives them, all the time, until the end of the `with`."""

    def __init__(self, url, name, **settings):
        self._url = url
        self._name = name
        self._settings = settings
        self._over = threading.Event()
        self._threads = [threading.Thread(target=act) for act in (self._send, self._receive)]
        self.sent = set()
        self.received = set()
        self.errors = []

    def _send(self):
        number = 0
        with ringdove.connect(self._url) as connection:
            queue = connection.queue(self._name)
            while not self._over.is_set():
                try:
                    queue.send(str(number))
                    self.sent.add(number)
                except Exception as error:
                    self.errors.append(error)
                number += 1

    def _receive(self):
        with ringdove.connect(self._url) as connection:
            queue = connection.queue(self._name)
            while not self._over.is_set():
                try:
                    batch = queue.receive(max=10, wait=0.1)
                    self.received |= {int(message.body) for message in batch}
                    batch.ack()
                except (ReceiptStale, StoreUnavailable):
                    pass  # What was not acknowledged comes again.

    def __enter__(self):
        with ringdove.connect(self._url) as connection:
            connection.create_queue(self._name, **self._settings)
        for thread in self._threads:
            thread.start()
        until(lambda: self.received)
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Send and receive no more."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def lost(self):
        """What was acknowledged to the sender and never comes, though every lease has ended."""
        deadline_s = time.monotonic() + PATIENCE_S
        with ringdove.connect(self._url) as connection:
            queue = connection.queue(self._name)
            while self.sent - self.received and time.monotonic() < deadline_s:
                batch = insist(lambda: queue.receive(max=1000, wait=1))
                self.received |= {int(message.body) for message in batch}
        return self.sent - self.received


# -- hosts of a plan ----------------------------------------------------------------------------


class Host:
    """A host of a plan, played by an address of this machine; started by its own script."""

    def __init__(self, blueprint, server, directory):
        place = directory / host_of(blueprint, server)
        for path in place.iterdir():
            path.write_text(path.read_text().replace("/data", f"/data-{server}"))
        self._place = place
        self._shards = [member.shard for member in blueprint.on(server)]
        self.processes = {}

    def start(self, *shards):
        for shard in shards or self._shards:
            self.processes[shard] = subprocess.Popen(
                [self._place / "start.sh", shard], stdout=subprocess.DEVNULL, start_new_session=True
            )

    def run(self, script, *arguments):
        subprocess.run([self._place / script, *arguments], check=True, capture_output=True)

    def kill(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.processes = {}


def free_base():
    """The first of the ports of a plan; all are free, and none is for outgoing connections."""
    return next(port for port in range(random.randrange(11_000, 20_000), 22_000) if _fits(port))


def _fits(base):
    try:
        for port in (*range(base, base + 30), *range(base + 10_000, base + 10_030)):
            socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def until(condition):
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
