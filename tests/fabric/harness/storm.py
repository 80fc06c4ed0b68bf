"""Does to a fabric what a plan says (schedule.py)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fabric.harness.network import CLIENTS, Weather
from fabric.harness.schedule import HEAVY, LIGHT

if TYPE_CHECKING:
    from fabric.harness.schedule import Step
    from fabric.harness.trial import Fabric, Trial
    from ringdove.cluster.layout import Member

#: Late enough for a node to count as slow now and then; lost often enough to break connections.
DELAY_S, LOSS = 0.25, 0.02


def run(trial: Trial, rounds: list[list[Step]]) -> None:
    """Go through a plan; after every round all senders go on."""
    trial.schedule = [list(steps) for steps in rounds]
    for steps in rounds:
        for step in steps:
            trial.broke(step.kind, step.target)
            strike(trial.fabric, step)
            time.sleep(step.seconds)
        trial.mend()
        trial.await_sends(5)


def strike(fabric: Fabric, step: Step) -> None:
    """Cause one fault."""
    cluster, target = fabric.cluster, step.target
    match step.kind:
        case "kill server" | "kill neighbours":
            for server in target:
                cluster.kill(server)
                cluster.await_taken_over(server)
        case "kill process":
            cluster.kill_process(_member(fabric, target))
        case "kill controller":
            fabric.controllers[int(target)].kill()
        case "bounce master":
            cluster.bounce(cluster.master(target))
        case "bounce server":
            for member in cluster.blueprint.on(target):
                cluster.bounce(member)
        case "pause server":
            cluster.pause(target)
        case "pause process":
            cluster.pause_process(_member(fabric, target))
        case "pause controller":
            fabric.pause_controller(int(target))
        case _:
            spoil(fabric, step)


def spoil(fabric: Fabric, step: Step) -> None:
    """Cause one fault of the network."""
    cluster, target = fabric.cluster, step.target
    network = cluster.network
    everybody = [*cluster.others(target), CLIENTS]
    match step.kind:
        case "partition":
            cluster.partition(*target)
        case "isolate":
            cluster.partition(target, clients=True)
        case "mute":  # It hears, and is not heard.
            network.spoil([target], cluster.others(target), Weather(blocked=True))
        case "delay":
            network.spoil([target], everybody, Weather(delay_s=DELAY_S))
        case "lose":
            network.spoil([target], [CLIENTS], Weather(loss=LOSS))
            network.spoil([CLIENTS], [target], Weather(loss=LOSS))
        case "cut":
            network.cut([target], everybody)
        case _:
            raise AssertionError(f"{step.kind!r} is none of {[*HEAVY, *LIGHT]}")


def _member(fabric: Fabric, name: str) -> Member:
    return next(m for m in fabric.cluster.blueprint.members if m.name == name)
