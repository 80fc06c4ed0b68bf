"""What a fabric promises while its servers, processes, controllers and networks fail.

1 random fault by default; `RINGDOVE_FABRIC_FAULTS=200` for torture. `RINGDOVE_FABRIC_SEED` repeats
a plan that failed.
"""

import os

import pytest

import ringdove
from fabric.harness import storm
from fabric.harness.load import until
from fabric.harness.schedule import plan
from fabric.harness.trial import Fabric, Trial
from fabric.harness.verdict import longest_silence_s
from ringdove.cluster.asking import ask_each
from ringdove.errors import ReceiptStale, StoreUnavailable
from ringdove.stores.fabric.records import RECORDS_SLOT

FAULTS = int(os.environ.get("RINGDOVE_FABRIC_FAULTS", "1"))
SEED = int(os.environ.get("RINGDOVE_FABRIC_SEED", "1"))

#: Faults of one trial: then its queues are drained and judged.
FAULTS_PER_TRIAL = 10

LOOSE = {"stripes": 30}
KEYED = {"stripes": 10, "order": "key", "delivery": "exactly-once"}
ONCE = {"stripes": 10, "delivery": "exactly-once"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Fabric(tmp_path_factory.mktemp("fabric")) as fabric:
        yield fabric


@pytest.fixture
def fabric(shared):
    """Five servers and three controllers in order, whatever an earlier test has left."""
    shared.mend()
    return shared


@pytest.fixture
def trial(fabric, tmp_path):
    return Trial(fabric, tmp_path)


def test_one_server_of_five_is_killed_and_no_sender_of_a_loose_queue_is_told(
    fabric, trial, record_property
):
    with trial:
        trial.queue("loose", **LOOSE)
        trial.queue("two", **LOOSE, copies=2)
        trial.queue("keyed", **KEYED)
        trial.queue("once", **ONCE)
        trial.load()
        trial.broke("kill", "C")
        fabric.cluster.kill("C")
        assert fabric.cluster.await_taken_over("C")
        trial.await_sends(20)
    [kill] = trial.history.faults
    silence_s = longest_silence_s(trial.sends("loose"), kill.from_s, kill.to_s)
    record_property("longest time without an acknowledgement (s)", silence_s)
    assert trial.faults() == []
    assert [trial.verdicts[name].error_replies for name in ("loose", "two")] == [0, 0]


def test_two_neighbours_are_killed_one_after_the_other_and_nothing_is_lost(fabric, trial):
    with trial:
        trial.queue("loose", **LOOSE)
        trial.queue("once", **ONCE)
        trial.load()
        for server in "DE":
            trial.broke("kill", server)
            fabric.cluster.kill(server)
            assert fabric.cluster.await_taken_over(server)
            # Shards of which one server is left stand still, and who is bound to them waits.
            trial.await_sends(5, "loose")
    assert trial.faults() == []


def test_masters_killed_and_started_at_once_have_lost_nothing(fabric, trial, record_property):
    """Each is back before its copies have noticed, and has its append-only file."""
    away_s = []
    with trial:
        trial.queue("loose", **LOOSE)
        trial.queue("two", **LOOSE, copies=2)
        trial.queue("keyed", **KEYED)
        trial.load()
        for shard in ("A1", "C2", "D1"):
            trial.broke("bounce", shard)
            away_s.append(fabric.cluster.bounce(fabric.cluster.master(shard)))
            trial.await_sends(5)
    record_property("longest absence (s)", max(away_s))
    assert trial.faults() == []


def test_all_servers_killed_at_once_and_started_again_have_everything(fabric, trial):
    with trial:
        trial.queue("loose", **LOOSE)
        trial.queue("once", **ONCE)
        trial.load()
        trial.broke("kill", "ABCDE")
        for server in "ABCDE":
            fabric.cluster.kill(server)
        fabric.cluster.up()
        trial.await_sends(5)
    assert trial.faults() == []


def test_a_cut_off_master_with_a_copy_takes_away_only_what_too_few_copies_have(fabric, trial):
    """A and B, which hold A1, are cut off from C, which holds it too; clients reach both sides."""
    with trial:
        trial.queue_on("A1", "refuse", copies=3, when_short="refuse")
        trial.queue_on("A1", "degrade", copies=3)
        trial.queue_on("A1", "two", copies=2)
        trial.queue("loose", **LOOSE, when_short="refuse")
        trial.load(receivers=False)
        trial.broke("partition", "AB")
        fabric.cluster.partition("A", "B")
        until(lambda: fabric.cluster.master("A1").server == "C", "C serves A1")
        trial.await_sends(5, "loose")
    [cut] = trial.history.faults
    assert trial.verdicts["refuse"].lost == []
    assert trial.verdicts["loose"].lost == []
    assert trial.verdicts["two"].lost
    for queue in ("two", "degrade"):
        ended_s = {send.body: send.ended_s for send in trial.sends(queue)}
        assert all(cut.from_s <= ended_s[body] <= cut.to_s for body in trial.verdicts[queue].lost)


def test_with_one_copy_a_killed_master_takes_along_what_no_copy_has(fabric, trial):
    cluster = fabric.cluster
    with trial:
        one = trial.queue_on("B1", "one", copies=1)
        two = trial.queue_on("B1", "two", copies=2)
        with ringdove.connect(cluster.url) as connection:
            cluster.partition("B")
            connection.queue(one).send("alone")
            with pytest.raises(StoreUnavailable, match="copies could be reached"):
                connection.queue(two).send("alone")
            cluster.kill("B")
            assert cluster.await_taken_over("B")
            assert not list(connection.queue(one).replay())
            assert not list(connection.queue(two).replay())


def test_with_degrade_a_copy_that_was_behind_takes_messages_away_when_it_is_promoted(fabric, trial):
    """E does not hear from the master C; D, which does, stands still when C is killed."""
    cluster = fabric.cluster
    _, second, third = cluster.blueprint.holding("C1")
    with trial, ringdove.connect(cluster.url) as connection:
        degrade = connection.queue(trial.queue_on("C1", "degrade"))
        refuse = connection.queue(trial.queue_on("C1", "refuse", when_short="refuse"))
        cluster.network.block("C", third.server)
        degrade.send("on C and D")
        with pytest.raises(StoreUnavailable, match="copies could be reached"):
            refuse.send("on C and D")
        cluster.pause_process(second)
        cluster.kill("C")
        until(lambda: cluster.master("C1") == third, "E serves C1")
        fabric.mend()
        assert not list(degrade.replay())
        assert not list(refuse.replay())


def test_after_a_take_over_old_receipts_are_refused_and_their_messages_come_back(fabric, trial):
    cluster = fabric.cluster
    with trial, ringdove.connect(cluster.url) as connection:
        queue = connection.queue(trial.queue_on("E2", "one", lease_ms=1_000))
        queue.send("x")
        batch = queue.receive()
        master = cluster.master("E2")
        cluster.kill_process(master)
        until(lambda: cluster.master("E2") != master, "another serves")
        with pytest.raises(ReceiptStale):
            batch.ack()
        again = queue.receive(wait=30)
        assert again.bodies() == [b"x"]
        again.ack()


def test_a_message_that_its_sender_did_not_live_to_announce_reaches_who_waits(
    fabric, trial, monkeypatch
):
    """A sender, or the master with the mark, is gone after the copies have it."""
    with (
        trial,
        ringdove.connect(fabric.cluster.url) as waiting,
        ringdove.connect(fabric.cluster.url) as dying,
    ):
        name = trial.queue("two", copies=2, stripes=2)
        assert not waiting.queue(name).receive(wait=0.1)
        monkeypatch.setattr(dying.backend.store, "_show", lambda *_: None)
        dying.queue(name).send("x")
        assert waiting.queue(name).receive(wait=30)


def test_loose_queues_never_stop_even_if_nobody_takes_over(fabric, trial):
    """The server killed also has the records of the queues."""
    cluster = fabric.cluster
    shards = cluster.blueprint.shards
    home = next(n for n, s in shards.items() if RECORDS_SLOT in cluster.blueprint.rings.slots(s))
    with trial:
        trial.queue("degrade", **LOOSE)
        trial.queue("refuse", **LOOSE, when_short="refuse")
        trial.load()
        no_failover(cluster, "yes")
        server = cluster.master(home).server
        trial.broke("kill", server)
        cluster.kill(server)
        trial.await_sends(50)
        assert not cluster.status().serving
        no_failover(cluster, "no")
        assert cluster.await_taken_over(server)
    assert trial.faults() == []
    assert [verdict.error_replies for verdict in trial.verdicts.values()] == [0, 0]


def no_failover(cluster, choice):
    command = ("CONFIG", "SET", "cluster-replica-no-failover", choice)
    ask_each({member.address: [command] for member in cluster.blueprint.members})


def test_controllers_are_killed_one_after_the_other_and_no_client_is_told(fabric, trial):
    with trial:
        trial.queue("loose", **LOOSE)
        trial.queue("keyed", **KEYED)
        trial.queue("once", **ONCE)
        trial.load(direct=False)
        for number, controller in enumerate(fabric.controllers):
            trial.broke("kill controller", str(number))
            controller.kill()
            trial.await_sends(10)
            controller.start()
    assert trial.faults() == []
    assert [verdict.error_replies for verdict in trial.verdicts.values()] == [0, 0, 0]


def test_random_faults_lose_nothing_and_double_nothing(fabric, tmp_path):
    """Every change is on three servers before it is acknowledged: any two may fail in any way."""
    left, seed = FAULTS, SEED
    while left:
        faults = min(left, FAULTS_PER_TRIAL)
        with Trial(fabric, tmp_path, seed) as trial:
            trial.queue("loose", **LOOSE, when_short="refuse")
            trial.queue("keyed", **KEYED, when_short="refuse")
            trial.queue("once", **ONCE, when_short="refuse")
            trial.load()
            storm.run(trial, plan(seed, faults))
        assert trial.faults() == []
        print(f"seed {seed}: {faults} faults,", *map(str, summary(trial)))
        left -= faults
        seed += 1


def summary(trial):
    for name, verdict in trial.verdicts.items():
        yield f"{name} {verdict.acknowledged} acknowledged, {verdict.error_replies} errors;"
