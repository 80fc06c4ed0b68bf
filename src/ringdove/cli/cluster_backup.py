"""Commands on backups of clusters: backup, restore."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ringdove.cli.cluster_plan import new_password
from ringdove.cli.cluster_status import DIRECTORY
from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json, human_bytes, progress, say


def backup(
    *,
    out: Path,
    dir: Annotated[Path | None, Parameter(name="--dir")] = None,
    plan: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Take a picture of what every shard holds, while the cluster serves.

    Everything acknowledged before is in it. It is a picture of each shard, some seconds apart, not
    of all at one moment.

    Parameters
    ----------
    out
        A directory that does not exist yet, or is empty.
    dir
        Where the cluster on this machine is, by default ./ringdove-cluster.
    plan
        The plan of a cluster on real hosts, instead.
    json
        Print JSON.
    """
    from ringdove.cluster.local import LocalCluster
    from ringdove.cluster.pictures import back_up
    from ringdove.cluster.plan import read_plan

    blueprint = LocalCluster.open(dir or DIRECTORY).blueprint if plan is None else read_plan(plan)
    begun_s = time.monotonic()
    with progress("taking pictures of the shards", len(blueprint.shards)) as show:
        sizes = back_up(blueprint, out, show)
    took_s = round(time.monotonic() - begun_s, 2)
    if json:
        emit_json({"out": str(out), "bytes": sizes, "seconds": took_s})
    else:
        told = human_bytes(sum(sizes.values()))
        say(f"Backed up {len(sizes)} shards, {told}, to {out} within {took_s} s.")


def restore(
    *,
    backup: Annotated[Path, Parameter(name="--from")],
    dir: Annotated[Path, Parameter(name="--dir")] = DIRECTORY,
    password: Flag = False,
    json: JsonFlag = False,
) -> None:
    """Make a cluster on this machine from a backup, of the same shape, and let it run.

    Receipts from before are refused; what was leased comes again when its lease ends.

    Parameters
    ----------
    backup
        The directory that `cluster backup` has written.
    dir
        Where to keep the new cluster: a directory that does not exist yet, or is empty.
    password
        Make up a password for the new cluster; a backup holds none.
    json
        Print JSON.
    """
    from ringdove.cluster.local import LocalCluster
    from ringdove.cluster.pictures import read_backup

    begun_s = time.monotonic()
    former, _ = read_backup(backup)
    with progress("starting the cluster", len(former.members)) as show:
        cluster = LocalCluster.restore(dir, backup, show, new_password() if password else "")
    took_s = round(time.monotonic() - begun_s, 2)
    if json:
        emit_json({"url": cluster.url, "dir": str(cluster.directory), "seconds": took_s})
    else:
        say(f"The cluster runs with what {backup} holds, after {took_s} s.")
        print(cluster.url)
