"""A fabric under load and under faults: a cluster, controllers, senders and receivers, and a judge.

    with Trial(fabric, tmp_path, seed=7) as trial:
        trial.queue("orders", stripes=30)
        trial.load()
        trial.broke("kill", "A")
        fabric.cluster.kill("A")
        trial.await_sends(500)
    assert trial.faults() == []
    assert trial.verdicts["orders"].error_replies == 0

Leaving the `with` mends everything, drains the queues, reads their logs and judges. `faults` tells
every broken promise, with the seed and the file in which the history was kept.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import ringdove
from fabric.harness import verdict
from fabric.harness.history import Fault, History, Promise, Row
from fabric.harness.load import Load, until
from fabric.harness.wired import WiredCluster
from ringdove.errors import RingdoveError
from ringdove.stores.fabric.cluster import slot_of
from server.running import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from fabric.harness.history import Send
    from fabric.harness.verdict import Verdict

#: How long a receiver holds what it has: what was leased through a lost reply comes back soon.
LEASE_MS = 3_000

#: Logs are read at the end, so nothing that is done goes before.
KEEP_MS = 3_600_000

_names = itertools.count()


class Fabric:
    """A wired cluster and controllers on it."""

    def __init__(self, directory: Path, controllers: int = 3, seed: int = 1) -> None:
        self.cluster = WiredCluster.wire(directory / "cluster", seed=seed)
        self.controllers: list[ServerProcess] = []
        try:
            self.cluster.up()
            for number in range(controllers):
                data = directory / f"controller{number}"
                self.controllers.append(ServerProcess(data, "--store", self.cluster.url))
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """All controllers."""
        places = (f"{one.host}:{one.port}" for one in self.controllers)
        return f"ringdove://{','.join(places)}"

    def pause_controller(self, number: int) -> None:
        """Stop a controller where it is."""
        os.kill(self.controllers[number].process.pid, signal.SIGSTOP)

    def mend(self) -> None:
        """Undo every fault."""
        for controller in self._alive(True):
            os.kill(controller.process.pid, signal.SIGCONT)
        self.cluster.mend()
        for controller in self._alive(False):
            controller.start()

    def _alive(self, choice: bool) -> list[ServerProcess]:
        return [one for one in self.controllers if (one.process.poll() is None) == choice]

    def close(self) -> None:
        """End everything."""
        try:
            for controller in self.controllers:
                controller.close()
        finally:
            self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Trial:
    """See the module. `verdicts` has the judge's opinion by queue, once it is over."""

    def __init__(self, fabric: Fabric, keep: Path, seed: int = 0) -> None:
        self.fabric = fabric
        self.history = History(seed)
        self.verdicts: dict[str, Verdict] = {}
        #: What a random trial has planned; kept with the history.
        self.schedule: list[Any] = []
        self._load = Load(self.history)
        self._keep = keep
        self._queues: dict[str, str] = {}
        self._received = False
        self._connection = ringdove.connect(fabric.cluster.url)

    # -- setting up -----------------------------------------------------------------------------

    def queue(self, name: str, **settings: Any) -> str:
        """Make a queue; its real name, for other trials may have one of this name."""
        real = f"{name}-{next(_names)}"
        settings = {"lease_ms": LEASE_MS, "keep_done_ms": KEEP_MS, **settings}
        self._connection.create_queue(real, **settings)
        self._queues[name] = real
        self.history.promises[real] = Promise(
            settings.get("delivery") == "exactly-once", settings.get("order") == "key"
        )
        return real

    def queue_on(self, shard: str, name: str, **settings: Any) -> str:
        """Make a queue with one stripe, which is on this shard."""
        blueprint = self.fabric.cluster.blueprint
        slots = blueprint.rings.slots(blueprint.shards[shard])
        while True:
            real = self.queue(name, stripes=1, **settings)
            number = self._connection.queue(real).info().id
            if slot_of(f"{number:x}.0.0".encode()) in slots:
                return real
            del self.history.promises[real]
            self._connection.delete_queue(real)

    def load(self, *, direct: bool = True, receivers: bool = True) -> None:
        """Start the usual load: to queues named keyed and once by key and by producer, else loosely.

        Clients use the controllers; with `direct`, every second sender the cluster.
        """
        urls = itertools.cycle(
            [self.fabric.url, self.fabric.cluster.url if direct else self.fabric.url]
        )
        for name, real in self._queues.items():
            if name in ("keyed", "once"):
                start = self._load.send_by_key if name == "keyed" else self._load.send_once
                start(self.fabric.url, real)
            else:
                for url in itertools.islice(urls, 2 if name == "loose" else 1):
                    self._load.send_loosely(url, real)
        if receivers:
            self.receive()
        self.await_sends(20)

    def receive(self) -> None:
        """Start receivers of all queues."""
        for real in self._queues.values():
            self._load.receive(self.fabric.url, real)
        self._received = True

    # -- while it runs --------------------------------------------------------------------------

    def broke(self, kind: str, target: str) -> None:
        """Note that something is broken from now until it is mended."""
        self.history.faults.append(Fault(kind, target, self._load.now_s()))

    def mend(self) -> None:
        """Undo every fault, and note when that was."""
        self.fabric.mend()
        now_s = self._load.now_s()
        for fault in self.history.faults:
            fault.to_s = fault.to_s or now_s

    def await_sends(self, count: int, queue: str | None = None) -> None:
        """Wait until every sender (of a queue) has had so many more messages acknowledged."""
        real = self._queues[queue] if queue else None
        seen = len(self.history.sends)

        def enough() -> bool:
            acknowledged: Counter[str] = Counter()
            for number, send in enumerate(list(self.history.sends)):
                if real in (None, send.queue):
                    acknowledged[send.sender] += number >= seen and send.outcome == "ok"
            return bool(acknowledged) and min(acknowledged.values()) >= count

        until(lambda: enough() or self.history.troubles, f"{count} more sends of each sender")

    # -- the end --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.mend()
            self._load.stop_sending()
            if kind is None:
                if not self._received:
                    self.receive()
                for real in self._queues.values():
                    self._drain(real)
        except BaseException as error:
            self.history.troubles.append(repr(error))
            raise
        finally:
            self._load.stop()
            self._connection.close()
            if kind is not None or self.history.troubles:
                self._save()
        if kind is None:
            found = verdict.judge(self.history)
            self.verdicts = {name: found[real] for name, real in self._queues.items()}

    def _drain(self, real: str) -> None:
        queue = self._connection.queue(real)

        def empty() -> bool:
            try:
                # Who has not received yet looks at every stripe, at its unannounced tail too.
                self._load.take(queue, "trial", wait_s=0)
                return queue.stats().subscriptions["default"] == (0, 0, 0)
            except RingdoveError:
                return False

        until(empty, f"everything in {real} is received")
        self.history.logs[real] = [
            Row((m.id.stripe.number, m.id.offset), m.body.decode(), (m.key or b"").decode())
            for m in queue.replay("earliest")
        ]

    def faults(self) -> list[str]:
        """Every broken promise; the history is kept when there are any."""
        found = verdict.faults(self.history)
        if found:
            found.append(f"seed {self.history.seed}, history in {self._save()}")
        return found

    def sends(self, queue: str) -> list[Send]:
        """Every send to a queue."""
        return [send for send in self.history.sends if send.queue == self._queues[queue]]

    def _save(self) -> Path:
        path = self._keep / f"history-{self.history.seed}-{time.time_ns()}.json"
        availability = {name: verdict.timeline(self.sends(name)) for name in self._queues}
        self.history.save(path, schedule=self.schedule, availability=availability)
        return path
