"""Plans of faults follow from their seed, and ask for no more than three copies promise."""

import pytest

from fabric.harness.schedule import HEAVY, LIGHT, SECONDS_MAX, SECONDS_MIN, plan
from ringdove.core.ring import Rings


def test_a_plan_follows_from_its_seed():
    assert plan(1, 50) == plan(1, 50)
    assert plan(1, 50) != plan(2, 50)


@pytest.mark.parametrize("faults", [1, 2, 7, 200])
def test_a_plan_has_as_many_faults_as_asked_for(faults):
    rounds = plan(3, faults)
    assert sum(map(len, rounds)) == faults
    assert all(1 <= len(steps) <= 2 for steps in rounds)


def test_every_kind_of_fault_comes_with_a_target_that_exists():
    steps = [step for steps in plan(4, 400) for step in steps]
    assert {step.kind for step in steps} == {*HEAVY, *LIGHT}
    processes = {
        f"{rings.names[process.server]}/{process.shard.name}"
        for rings in [Rings(5)]
        for placed in rings.placement()
        for process in placed
    }
    for step in steps:
        assert SECONDS_MIN <= step.seconds <= SECONDS_MAX
        match step.kind.split():
            case [_, "process"]:
                assert step.target in processes
            case [_, "master"]:
                assert step.target in {shard.name for shard in Rings(5).shards}
            case [_, "controller"]:
                assert int(step.target) in range(3)
            case _:
                assert set(step.target) <= set("ABCDE")


def test_at_most_two_servers_are_hit_by_what_takes_copies_away():
    for steps in plan(5, 300):
        heavy = [step for step in steps if step.kind not in LIGHT]
        assert len({name for step in heavy for name in step.target if name in "ABCDE"}) <= 2
