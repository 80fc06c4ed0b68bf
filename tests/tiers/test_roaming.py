"""Clients of tiers: they go where the manager says, and take their position along."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import ringdove
from ringdove import aio
from ringdove.client.address import parse, with_token, without_token
from ringdove.errors import InvalidArgument, OffsetTrimmed, StoreUnavailable
from ringdove.pending import run
from ringdove.tiers import manager as manager_module
from ringdove.tiers import routing
from server.running import ServerProcess, ServerThread, wait_for
from tiers.brokers import bodies, copied


class Tiers:
    """A manager and a core broker; edges are added."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._stack = stack
        self.manager = self.add("manager", manager=True)
        self.core = self.add("core", managers=self.manager.url)
        self.core_rd = stack.enter_context(ringdove.connect(self.core.url))

    def add(self, name: str, **options: Any) -> ServerThread:
        """A server in a thread."""
        server = ServerThread(self._path / name, name=name, http=-1, **options)
        return self._stack.enter_context(server)

    def edge(self, name: str, region: str, **options: Any) -> ServerThread:
        """A broker of level 1 in a thread."""
        return self.add(name, managers=self.manager.url, **self.place(region), **options)

    def place(self, region: str) -> dict[str, Any]:
        """Where an edge stands."""
        return {"level": 1, "region": region, "upstream": self.core.url}

    def edge_process(self, name: str, region: str) -> ServerProcess:
        """A broker of level 1 that can be killed."""
        flags = {**self.place(region), "name": name, "managers": self.manager.url}
        words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
        return self._stack.enter_context(ServerProcess(self._path / name, *words))

    def url(self, role: str = "consumer", region: str = "eu-west") -> str:
        """What clients are told."""
        return f"tiers://127.0.0.1:{self.manager.port}?role={role}&region={region}"

    def wait_for(self, *names: str) -> None:
        """Wait until the manager hears these brokers."""

        def heard() -> bool:
            views = run(self.asker.tier("brokers", {}))
            return set(names) <= {view["name"] for view in views if view["state"] != "lost"}

        wait_for(heard, f"{names} report")

    @property
    def asker(self) -> Any:
        """A connection to the manager itself."""
        if not hasattr(self, "_asker"):
            self._asker = self._stack.enter_context(ringdove.connect(self.manager.url))
        return self._asker.backend


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with ExitStack() as stack:
        yield Tiers(tmp_path, stack)


def at(connection: ringdove.Connection | aio.Connection) -> str:
    """The name of the broker that a client is connected to."""
    name: str = connection.backend.link.endpoints._at
    return name


def take(stream: ringdove.Stream, count: int) -> list[bytes]:
    """So many messages, in the order in which they came."""
    found: list[bytes] = []
    for batch in stream:
        found += [message.body for message in batch]
        stream.ack(batch)
        if len(found) >= count:
            break
    return found


def test_a_reader_of_a_killed_broker_goes_on_at_another_without_loss_or_repetition(
    tiers: Tiers,
) -> None:
    origin = tiers.core_rd.create_queue(
        "readings", order="key", delivery="exactly-once", stripes=2, bytes_max=1 << 30
    )
    origin.subscribe("billing", "earliest")
    doomed = tiers.edge_process("doomed", "eu-west")
    lacking = tiers.edge("lacking", "eu-west-2", relay_queues="others")
    spare = tiers.edge("spare", "eu")
    tiers.wait_for("core", "doomed", "lacking", "spare")
    with (
        ringdove.connect(tiers.url("producer")) as sender,
        ringdove.connect(doomed.url) as direct,
        ringdove.connect(tiers.url()) as consumer,
    ):
        assert (at(sender), at(consumer)) == ("core", "doomed")
        copied(direct, "readings", 0).subscribe("billing", "earliest")
        queue = sender.queue("readings")

        def send(start: int, stop: int) -> None:
            queue.send_many(
                ringdove.NewMessage(body, key=b"%d" % (int(body) % 5))
                for body in bodies(start, stop)
            )

        send(0, 400)
        with consumer.queue("readings").stream("billing", ack="manual", wait=30) as stream:
            found = take(stream, 400)
            send(400, 600)
            doomed.kill()
            send(600, 1000)
            found += take(stream, 600)
            assert at(consumer) == "spare"
            assert sorted(map(int, found)) == list(range(1000))
            for key in range(5):
                of_key = [int(body) for body in found if int(body) % 5 == key]
                assert of_key == sorted(of_key)
            with ringdove.connect(spare.url) as there:
                wait_for(
                    lambda: not sum(there.queue("readings").stats().subscriptions["billing"]),
                    "what was done is done at the next broker",
                )
        assert lacking.running


def test_a_client_of_a_broker_that_drains_moves_and_the_broker_is_not_missed(tiers: Tiers) -> None:
    tiers.core_rd.create_queue("readings", order="strict").send_many(bodies(0, 10))
    leaving, spare = tiers.edge("leaving", "eu-west"), tiers.edge("spare", "eu")
    tiers.wait_for("leaving", "spare")
    for edge in (leaving, spare):
        with ringdove.connect(edge.url) as direct:
            copied(direct, "readings", 10)

    async def scenario() -> None:
        async with aio.connect(tiers.url()) as rd:
            assert at(rd) == "leaving"
            async with rd.queue("readings").stream(wait=30) as stream:
                assert len(await stream.next_batch()) == 10
                await asyncio.to_thread(leaving.stop)
                await asyncio.to_thread(tiers.core_rd.queue("readings").send, b"10")
                assert [message.body for message in await stream.next_batch()] == [b"10"]
                assert at(rd) == "spare"

    asyncio.run(scenario())
    assert "leaving" not in {view["name"] for view in run(tiers.asker.tier("brokers", {}))}


def test_a_client_follows_the_manager_to_a_better_broker(tiers: Tiers, monkeypatch: Any) -> None:
    monkeypatch.setattr(manager_module, "CLIENT_EXPIRES_MS", 300)
    monkeypatch.setattr(routing, "SETTLED_MS", 0)
    tiers.edge("far", "us")
    tiers.wait_for("far")
    with ringdove.connect(tiers.url()) as rd:
        assert at(rd) == "far"
        tiers.edge("near", "eu-west")
        wait_for(lambda: at(rd) == "near", "the client has moved")
        clients = run(tiers.asker.tier("clients", {}))
        assert [client["report"]["region"] for client in clients] == ["eu-west"]
    assert run(tiers.asker.tier("clients", {})) == []


def refuse_all(stream: ringdove.Stream) -> None:
    """Want the same again and again."""
    for batch in stream:
        stream.refuse(batch)


def test_a_position_that_the_next_broker_has_trimmed_is_refused(tiers: Tiers) -> None:
    tiers.core_rd.create_queue("readings", order="strict").send_many(bodies(0, 10))
    doomed = tiers.edge("doomed", "eu-west")
    spare = tiers.edge("spare", "eu", relay_keep_ms=0)
    tiers.wait_for("doomed", "spare")
    with ringdove.connect(spare.url) as there, ringdove.connect(doomed.url) as here:
        copied(here, "readings", 10)
        queue = copied(there, "readings", 10)
        assert queue.receive(max=10).ack() == 10
        wait_for(
            lambda: all(stripe.head == 10 for stripe in queue.stats().stripes.values()),
            "the copy is trimmed",
        )
    with ringdove.connect(tiers.url()) as rd, rd.queue("readings").stream(wait=30) as stream:
        first = next(iter(stream))
        assert len(first) == 10
        stream.refuse(first)
        doomed.stop()
        with pytest.raises(OffsetTrimmed, match="trimmed"):
            refuse_all(stream)


def test_without_a_manager_clients_stay_and_try_what_they_were_told_of(tiers: Tiers) -> None:
    home, spare = tiers.edge("home", "eu-west"), tiers.edge("spare", "eu")
    tiers.wait_for("core", "home", "spare")
    with ringdove.connect(tiers.url()) as rd:
        tiers.manager.stop()
        assert rd.queues() == []
        assert at(rd) == "home"
        home.stop()
        assert rd.queues() == []
        assert at(rd) in ("spare", "core")
    assert spare.running


def test_who_finds_no_manager_or_no_broker_is_told(tiers: Tiers) -> None:
    lonely = tiers.add("lonely", manager=True)
    for url, reason in (
        ("tiers://127.0.0.1:1", "No manager says where to connect"),
        (f"tiers://127.0.0.1:{lonely.port}?region=eu", "know no broker for a consumer in eu"),
    ):
        with pytest.raises(StoreUnavailable, match=reason):
            ringdove.connect(url, connect_s=0.5)
    with pytest.raises(InvalidArgument, match="no manager of tiers"):
        ringdove.connect(f"tiers://127.0.0.1:{tiers.core.port}")


def test_the_managers_token_opens_the_brokers(tmp_path: Path) -> None:
    with ExitStack() as stack:
        add = stack.enter_context
        manager = add(ServerThread(tmp_path / "m", manager=True, token="s3cret", http=-1))
        options = {"managers": manager.url, "token": "s3cret", "http": -1}
        add(ServerThread(tmp_path / "core", name="core", **options))
        asker = add(ringdove.connect(manager.url)).backend
        wait_for(lambda: run(asker.tier("brokers", {})), "the core reports")
        url = f"tiers://:s3cret@127.0.0.1:{manager.port}?role=producer"
        with ringdove.connect(url) as rd:
            assert at(rd) == "core"


@pytest.mark.parametrize("query", ["role=relay", "regoin=eu", "role=consumer&x=1"])
def test_a_url_says_role_and_region_and_nothing_else(query: str) -> None:
    with pytest.raises(InvalidArgument, match="role=producer"):
        parse(f"tiers://127.0.0.1:7100?{query}")


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("ringdove://:s3c%40ret@a:1,b:2", "ringdove://a:1,b:2"),
        ("ringdoves://a:1", "ringdoves://a:1"),
        ("ringdove+unix://:s3c%40ret@/run/a@b", "ringdove+unix:///run/a@b"),
        ("ringdove+unix:/run/a@b", "ringdove+unix:/run/a@b"),
        ("", ""),
    ],
)
def test_a_token_is_taken_from_a_url_and_given_to_one_without(url: str, bare: str) -> None:
    assert without_token(url) == bare
    if bare:
        [first, *_] = parse(with_token(bare, "s3c@ret")).endpoints
        assert first.token == "s3c@ret"
        assert parse(with_token(url, "")) == parse(url)
        own = with_token(bare, "own")
        assert with_token(own, "s3c@ret") == own


def test_a_url_names_managers_and_who_asks() -> None:
    address = parse("tiers+tls://:s3cret@a:1,b?region=eu-west")
    assert [(end.host, end.port, end.tls) for end in address.endpoints] == [
        ("a", 1, True), ("b", 7117, True),
    ]  # fmt: skip
    assert address.asker is not None
    assert (address.asker.role, address.asker.region) == ("consumer", "eu-west")
    assert "s3cret" not in repr(address)
