"""A cluster in rings on this machine: every server is a directory and a handful of processes.

    DIR/cluster.json      the blueprint, and the id of every process
    DIR/B/A1/redis.conf   the process of server B that holds shard A1; its log and data beside it

Commands find the cluster by its directory; nothing needs to run between them.

*No empty master.* A master that starts empty before its copies have noticed its absence wipes them.
So a process that was a master is started again only when another has taken its shard over, or when
it has its append-only file; one that has lost it is given a new identity and joins as a copy. The
file is second best: unless every change is synced, it lacks the last second, which copies have.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ringdove.cluster import forming, processes
from ringdove.cluster.converging import converge
from ringdove.cluster.forming import Handed, ignore
from ringdove.cluster.layout import (
    BASE_FILE,
    LATER_FILE,
    MANIFEST,
    MANIFEST_FILE,
    Blueprint,
    Member,
    Tuning,
    decode_blueprint,
    lay_out,
    rearrange,
    redis_conf,
)
from ringdove.cluster.pictures import read_backup
from ringdove.cluster.processes import Running
from ringdove.cluster.status import ClusterStatus, look_at
from ringdove.core.ring import server_number
from ringdove.errors import InvalidArgument, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ringdove.cluster.forming import Show
    from ringdove.core.ring import Rings

HOST = "127.0.0.1"


class _Record(msgspec.Struct, kw_only=True):
    """What is written to cluster.json."""

    blueprint: Blueprint
    #: Process ids by the member's name.
    pids: dict[str, int]
    #: Whether the processes once were one cluster.
    formed: bool = False
    #: Whether `down` was the last that was said.
    stopped: bool = False
    #: The server that is being added or removed.
    adding: str = ""
    removing: str = ""

    @property
    def change(self) -> str:
        """What was said to begin the change of servers that is under way."""
        return "add" if self.adding else f"remove {self.removing}" if self.removing else ""


class Returned(NamedTuple):
    """What a restart or a resume has done."""

    started: list[str]
    #: Those that had lost their data and came back as copies under a new identity.
    joined: list[str]
    handed: list[Handed]


class Changed(NamedTuple):
    """A server that was added or removed, and what that has done."""

    server: str
    started: list[str]
    handed: list[Handed]
    ended: list[str]


class LocalCluster:
    """A cluster below one directory."""

    def __init__(self, directory: Path, record: _Record) -> None:
        self.directory = directory
        self._record = record

    @classmethod
    def make(
        cls, directory: Path, rings: Rings, tuning: Tuning, password: str = ""
    ) -> LocalCluster:
        """A new cluster in a directory that is empty or missing; nothing is started yet."""
        processes.redis_program()
        if directory.exists() and any(directory.iterdir()):
            raise InvalidArgument(f"Directory {directory} is not empty: name another.")
        blueprint = lay_out(rings, tuning, _host, _Ports(rings))
        blueprint = msgspec.structs.replace(blueprint, password=password)
        directory.mkdir(parents=True, exist_ok=True)
        cluster = cls(directory.absolute(), _Record(blueprint=blueprint, pids={}, stopped=True))
        cluster._save()
        return cluster

    @classmethod
    def restore(
        cls, directory: Path, backup: Path, show: Show = ignore, password: str = ""
    ) -> LocalCluster:
        """A new cluster that runs and holds what a backup holds; `show` counts what is settled."""
        former, pictures = read_backup(backup)
        cluster = cls.make(directory, former.rings, former.tuning, password)
        cluster.up()
        cluster.fill(pictures, show)
        return cluster

    @classmethod
    def open(cls, directory: Path) -> LocalCluster:
        """The cluster that was made in a directory."""
        return cls(directory.absolute(), _read(directory))

    @staticmethod
    def exists(directory: Path) -> bool:
        """Whether a cluster was made in a directory."""
        return (directory / "cluster.json").exists()

    # -- looking --------------------------------------------------------------------------------

    @property
    def blueprint(self) -> Blueprint:
        """Its shape and its processes, those that are leaving included."""
        return self._record.blueprint.stage

    @property
    def url(self) -> str:
        """What a store connects to."""
        return self.blueprint.url

    @property
    def was_stopped(self) -> bool:
        """Whether `down` was said, by anybody."""
        return _read(self.directory).stopped

    def running(self, members: Sequence[Member] | None = None) -> list[Running]:
        """The processes of members, or all, that are alive."""
        self._refresh()
        chosen = self.blueprint.members if members is None else members
        return [found for found in map(self._running, chosen) if processes.is_alive(found)]

    def paused(self) -> set[str]:
        """The members that are stopped by a signal."""
        self._refresh()
        members = self.blueprint.members
        return {m.name for m in members if processes.is_paused(self._running(m))}

    def _members(self, server: str) -> list[Member]:
        self._refresh()
        return self.blueprint.on(server)

    def _refresh(self) -> None:
        """Take notice of what other commands have written."""
        if LocalCluster.exists(self.directory):
            self._record = _read(self.directory)

    def _running(self, member: Member) -> Running:
        pid = self._record.pids.get(member.name, 0)
        return Running(pid, self._place(member) / "redis.conf")

    def _place(self, member: Member) -> Path:
        return self.directory / member.server / member.shard

    def _save(self) -> None:
        path = self.directory / "cluster.json"
        scratch = path.with_suffix(".new")
        scratch.touch(mode=0o600)  # It may hold a password.
        scratch.write_bytes(msgspec.json.format(msgspec.json.encode(self._record)))
        scratch.replace(path)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other commands from starting or ending processes at the same time."""
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._record = _read(self.directory)
            yield
        finally:
            os.close(descriptor)

    # -- starting and ending --------------------------------------------------------------------

    def up(self, show_started: Show = ignore, show_settled: Show = ignore) -> None:
        """Start all processes and make them one cluster, or what it was before `down`.

        A change of servers that was interrupted is finished.

        When that fails, or is interrupted, what was started is ended, and what never was a cluster
        is removed: the next attempt takes other ports.
        """
        with self._alone():
            if self.running():
                raise StoreUnavailable(
                    f"The cluster in {self.directory} runs already; end it with "
                    f"'ringdove cluster down --dir {self.directory}'."
                )
            self._record.stopped = False
            try:
                strangers = self._start(self.blueprint.members, show_started)
                if self._record.change:
                    self._finish_change(show_settled)
                elif self._record.formed:
                    self._put_in_place(strangers)
                    forming.await_settled(self.blueprint, show=show_settled)
                    forming.hand_back(self.blueprint)
                else:
                    forming.form(self.blueprint, show_settled)
                    self._record.formed = True
                    self._save()
            except BaseException:
                self._end()
                if not self._record.formed:
                    self._discard()
                raise

    def fill(self, pictures: Mapping[str, Path], show: Show = ignore) -> None:
        """Restart a new cluster with pictures of its shards; when that fails it is removed.

        All processes of a shard begin with its picture, as with the first part of their
        append-only file: whoever becomes master, nothing is missing.
        """
        try:
            self.down()
            for member in self.blueprint.members:
                log = self._place(member) / "appendonlydir"
                shutil.rmtree(log)
                log.mkdir()
                shutil.copyfile(pictures[member.shard], log / BASE_FILE)
                (log / LATER_FILE).touch()
                (log / MANIFEST_FILE).write_text(MANIFEST)
            self.up(show_settled=show)
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        for server in self.blueprint.rings.names:
            shutil.rmtree(self.directory / server, ignore_errors=True)
        for name in ("cluster.json", "lock"):
            (self.directory / name).unlink(missing_ok=True)

    def down(self) -> list[int]:
        """End all processes; their ids. What they hold stays in the directory."""
        with self._alone():
            return self._end()

    def _end(self) -> list[int]:
        ended = processes.end([self._running(member) for member in self.blueprint.members])
        self._record.stopped = True
        self._record.pids = {}
        self._save()
        return ended

    def _start(self, members: Sequence[Member], show: Show = ignore) -> list[Member]:
        """Start processes and wait for their answers; those that come without their past."""
        program = processes.redis_program()
        strangers = [member for member in members if self._must_begin_anew(member)]
        for member in strangers:
            (self._place(member) / "nodes.conf").unlink(missing_ok=True)
        for member in members:
            place = self._place(member)
            place.mkdir(parents=True, exist_ok=True)
            conf = place / "redis.conf"
            conf.touch(mode=0o600)
            conf.write_text(redis_conf(self.blueprint, member, str(place)))
            self._record.pids[member.name] = processes.start(program, conf).pid
            self._save()  # Whatever happens next, `down` finds it.
        forming.await_answers(self.blueprint, members, show, lambda: self._check_alive(members))
        return strangers

    def _check_alive(self, members: Sequence[Member]) -> None:
        for member in members:
            process = self._running(member)
            if not processes.is_alive(process):
                words = processes.last_words(process)
                raise StoreUnavailable(f"Redis of {member.name} has ended: {words}.")

    def _must_begin_anew(self, member: Member) -> bool:
        """Whether a process has lost what it was, or was a master and has lost what it held."""
        if not self._record.formed:
            return False
        try:
            nodes = (self._place(member) / "nodes.conf").read_text()
        except FileNotFoundError:
            nodes = ""
        if nodes and ("myself,master" not in nodes or self._has_log(member)):
            return False
        if len(self.blueprint.holding(member.shard)) == 1:
            raise StoreUnavailable(
                f"{member.name} has lost its data, and there is no copy. Make a new cluster."
            )
        return True

    def _has_log(self, member: Member) -> bool:
        place = self._place(member) / "appendonlydir"
        return any(place.glob("*.manifest")) and any(place.glob("*.aof"))

    # -- failures, and coming back --------------------------------------------------------------

    def kill(self, server: str) -> list[int]:
        """End all processes of a server at once, as a power cut would; their ids."""
        return processes.kill(self.running(self._members(server)))

    def pause(self, server: str) -> list[int]:
        """Stop all processes of a server where they are; their ids."""
        return processes.pause(self.running(self._members(server)))

    def resume(self, server: str, *, hand_back: bool = True) -> Returned:
        """Let the processes of a server go on, and give it its masters back."""
        members = self._members(server)
        processes.send_signal(self.running(members), signal.SIGCONT)
        self._check_unchanging()
        alive = [m for m in members if processes.is_alive(self._running(m))]
        forming.await_settled(self.blueprint, alive)
        return Returned([], [], forming.hand_back(self.blueprint, server) if hand_back else [])

    def status(self) -> ClusterStatus:
        """Who is master and copy of what."""
        paused = self.paused()
        return look_at(self.blueprint, paused)

    def await_taken_over(self, server: str) -> bool:
        """Wait until other servers serve what a server held; False when they do not, in time."""
        return forming.await_taken_over(self.blueprint, server)

    def restart(self, server: str, *, at_once: bool = False, hand_back: bool = True) -> Returned:
        """Start a server again, safely, and give it its masters back.

        One that runs hands its masters over first: nothing is interrupted. One that was killed
        waits until others have taken over; with `at_once` it does not if it has its append-only
        file. That is safe when every change was synced to it (fsync `always`): with `everysec` the
        last second may be missing, and copies that have it lose it to the master that does not.
        """
        with self._alone():
            self._check_unchanging()
            members = self.blueprint.on(server)
            if self.running(members):
                forming.hand_over(self.blueprint, server)
                processes.end(self.running(members))
            elif not at_once or any(map(self._must_begin_anew, members)):
                self.await_taken_over(server)
            strangers = self._start(members)
            self._put_in_place(strangers)
            forming.await_settled(self.blueprint, members)
            handed = forming.hand_back(self.blueprint, server) if hand_back else []
        return Returned([m.name for m in members], [m.name for m in strangers], handed)

    def restart_all(self, show: Show = ignore) -> list[Handed]:
        """Restart every server, one after the other: after an upgrade of Redis, for example.

        Each hands its masters over first and gets them back, and the next one follows when every
        copy is in sync. `show` is told how many are done.
        """
        self._refresh()
        names = self.blueprint.rings.names
        self._check_up(names)
        handed = []
        for done, server in enumerate(names, start=1):
            handed += self.restart(server).handed
            forming.await_settled(self.blueprint)
            show(done)
        return handed

    def _check_unchanging(self) -> None:
        """Refuse what would wait for processes that are leaving."""
        if self._record.change:
            raise StoreUnavailable(
                "A change of servers was interrupted: finish it first, with 'ringdove cluster "
                f"{self._record.change} --dir {self.directory}'."
            )

    def _check_up(self, servers: Iterable[str]) -> None:
        """Refuse what needs servers of which some are down."""
        for server in servers:
            members = self.blueprint.on(server)
            if len(self.running(members)) < len(members):
                raise StoreUnavailable(f"Server {server} is down: restart or remove it first.")

    # -- growing and shrinking ------------------------------------------------------------------

    def add(self, show: Show = ignore) -> Changed:
        """Add a server, after the last: it takes its share of masters and copies.

        An addition that was interrupted is finished instead.
        """
        with self._alone():
            if not self._record.adding:
                self._finish_change(ignore)
                rings = self.blueprint.rings.added()
                self._begin_change(rings, adding=rings.names[-1])
            return self._finish_change(show)

    def remove(self, server: str, show: Show = ignore) -> Changed:
        """Remove a server: others take what it holds before it ends. It may be down already."""
        with self._alone():
            if self._record.removing != server:
                self._finish_change(ignore)
                self.blueprint.on(server)
                rings = self.blueprint.rings.removed(server_number(server))
                self._begin_change(rings, removing=server)
            return self._finish_change(show)

    def _begin_change(self, rings: Rings, *, adding: str = "", removing: str = "") -> None:
        """Write down what is to be, unless somebody is missing who must help."""
        self._check_up(name for name in self.blueprint.rings.names if name != removing)
        self._record.blueprint = rearrange(self._record.blueprint, rings, _host, _Ports(rings))
        self._record.adding, self._record.removing = adding, removing
        self._save()

    def _finish_change(self, show: Show) -> Changed:
        """Do what is left of the change that was begun, if one was."""
        target = self._record.blueprint
        if not self._record.change:
            return Changed("", [], [], [])
        new = [m for m in target.members if not processes.is_alive(self._running(m))]
        self._start(new)
        done = converge(target, show)
        ended = self._dismiss(target.leaving)
        server = self._record.adding or self._record.removing
        self._record.blueprint = msgspec.structs.replace(target, leaving=[])
        self._record.adding = self._record.removing = ""
        self._save()
        return Changed(server, [member.name for member in new], done.handed, ended)

    def _dismiss(self, members: Sequence[Member]) -> list[str]:
        """End processes that hold nothing any more and remove their directories; their names."""
        processes.end([self._running(member) for member in members])
        for member in members:
            shutil.rmtree(self._place(member), ignore_errors=True)
            self._record.pids.pop(member.name, None)
        for server in {member.server for member in members}:
            with contextlib.suppress(OSError):  # Others of the same server stay.
                (self.directory / server).rmdir()
        return [member.name for member in members]

    def _put_in_place(self, strangers: Sequence[Member]) -> None:
        """Have processes without their past join as copies of what others hold."""
        if not strangers:
            return
        shards = sorted({member.shard for member in strangers})
        unserved = forming.await_served(self.blueprint, shards)
        if unserved:
            forming.promote(self.blueprint, unserved)
            unserved = forming.await_served(self.blueprint, unserved)
        if unserved:
            processes.end(self.running(strangers))
            raise StoreUnavailable(
                f"{', '.join(m.name for m in strangers)} lost their data, and nobody serves "
                f"{', '.join(unserved)}: start the servers first that hold a copy."
            )
        forming.join_as_copies(self.blueprint, strangers)


def _host(_server: int, _ring: int) -> str:
    return HOST


class _Ports:
    """Free ports for all processes of a layout."""

    def __init__(self, rings: Rings) -> None:
        count = sum(map(len, rings.placement()))
        self._free = iter(processes.free_ports(2 * count, HOST))

    def __call__(self, _server: int, _ring: int, _rank: int) -> tuple[int, int]:
        return next(self._free), next(self._free)


def _read(directory: Path) -> _Record:
    """What was written to cluster.json."""
    path = directory / "cluster.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"There is no cluster in {directory}. Make one with "
            f"'ringdove cluster up --dir {directory}'."
        ) from error
    try:
        raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        decode_blueprint(bytes(raw["blueprint"]), str(path))
        return msgspec.json.decode(data, type=_Record)
    except (msgspec.DecodeError, KeyError) as error:
        raise InvalidArgument(f"{path} describes no cluster: {error}.") from error
