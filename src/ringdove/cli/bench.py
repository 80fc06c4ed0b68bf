"""The command `bench`: measures this machine, side by side with what limits it."""

from __future__ import annotations

import json as codec
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ringdove.cli.flags import Flag, JsonFlag
from ringdove.cli.output import emit_json, tables

app = App(name="bench", help="Measure Ringdove on this machine; ratios matter more than absolutes.")


def _names(_: Any, tokens: Any) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name for token in tokens for name in token.value.split(",") if name)


Quick = Annotated[bool, Parameter(negative="", help="A short run.")]


@app.command
def engine(*, dir: Path | None = None, quick: Quick = False, json: JsonFlag = False) -> None:
    """Append, lease+acknowledge and end to end, synced and not, beside the raw disk.

    Parameters
    ----------
    dir
        Where to put the test data; by default a temporary directory beside the working directory.
    quick
        A short run.
    json
        Print one JSON object.
    """
    from ringdove.bench import engine as bench

    _report(bench.run(dir, quick=quick), json)


@app.command
def million(
    *,
    messages: int = 1_000_000,
    consumers: int = 3,
    dir: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Send a million messages through the engine while a consumer dies, and check every one.

    Parameters
    ----------
    messages
        How many to send.
    consumers
        How many receive; one of them dies half way, with messages in its hands.
    dir
        Keep the data here; by default it goes to a temporary directory.
    json
        Print the report as JSON.
    """
    from ringdove.bench.million import run, show

    report = run(messages, consumers, dir)
    if json:
        emit_json(report)
    else:
        show(report)
    return int(bool(report["lost"] or report["unexpected"]))


@app.command
def backlog(*, messages: int = 10_000_000, dir: Path | None = None, json: JsonFlag = False) -> None:
    """Cost of lease+acknowledge at a small and at a huge backlog.

    Parameters
    ----------
    messages
        The huge backlog.
    dir
        Where to put the test data.
    json
        Print one JSON object.
    """
    from ringdove.bench import backlog as bench

    _report(bench.run(dir, messages), json)


@app.command
def leases(*, count: int = 100_000, dir: Path | None = None, json: JsonFlag = False) -> None:
    """Cost of lease, acknowledge and expiry with many single-message leases outstanding.

    Parameters
    ----------
    count
        Leases outstanding at the end.
    dir
        Where to put the test data.
    json
        Print one JSON object.
    """
    from ringdove.bench import leases as bench

    _report(bench.run(dir, count), json)


@app.command
def groups(
    *,
    messages: int = 200_000,
    groups: int = 20_000,
    dir: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Receive+acknowledge in batches of 10 from a key-ordered queue with many groups.

    Parameters
    ----------
    messages
        Messages waiting at the start.
    groups
        Keys among which they are spread.
    dir
        Where to put the test data.
    json
        Print one JSON object.
    """
    from ringdove.bench import groups as bench

    _report(bench.run(dir, messages, groups), json)


Dir = Annotated[
    Path | None,
    Parameter(help="Where to put the test data; by default a temporary directory beside this one."),
]
Names = Annotated[tuple[str, ...], Parameter(converter=_names, n_tokens=1)]
Plot = Annotated[Path | None, Parameter(help="Draw a picture into this PNG file.")]
Seconds = Annotated[float, Parameter(help="How long each figure is measured.")]


@app.command
def e2e(
    *,
    messages: int = 4_000_000,
    size: tuple[int, ...] = (100, 1000),
    producers: tuple[int, ...] = (1, 50, 200),
    durability: tuple[str, ...] = ("disk", "memory"),
    dir: Dir = None,
    plot: Plot = None,
    json: JsonFlag = False,
) -> None:
    """Producers, server and consumer in processes of their own: messages per second, end to end.

    Example: `ringdove bench e2e --messages 1000000 --size 100 --producers 1 --durability disk`

    Parameters
    ----------
    messages
        Messages of 100 bytes; of larger ones as many as make the same bytes.
    size
        Bytes of a message; may be given several times.
    producers
        Connections that send; may be given several times.
    durability
        disk: every send is synced before its acknowledgement; memory: not.
    """
    from ringdove.bench import e2e as bench

    _report(bench.run(dir, messages, size, producers, durability), json, plot, "e2e")


@app.command
def fabric(
    *,
    messages: int = 2_000_000,
    rounds: int = 3,
    seconds: Seconds = 5.0,
    fsync: Literal["always", "everysec"] = "always",
    dir: Dir = None,
    json: JsonFlag = False,
) -> None:
    """Blocks of 100-byte messages through one controller, on three copies, beside bare Redis.

    Parameters
    ----------
    messages
        Messages of each run.
    rounds
        Runs of each kind, in turn; the ratio is that of their medians.
    fsync
        When the Redis processes sync their files.
    """
    from ringdove.bench import fabric as bench

    _report(bench.run(dir, messages, rounds, seconds, fsync), json)


@app.command
def latency(
    *,
    size: int = 100,
    count: int = 2000,
    dir: Dir = None,
    plot: Plot = None,
    json: JsonFlag = False,
) -> None:
    """Time from send to receiver with one message in flight, and at half of the peak rate.

    Parameters
    ----------
    size
        Bytes of a message.
    count
        Messages per figure.
    """
    from ringdove.bench import latency as bench

    _report(bench.run(dir, size=size, count=count), json, plot, "latency")


@app.command
def load(
    *,
    seconds: Seconds = 3.0,
    quick: Quick = False,
    dir: Dir = None,
    plot: Plot = None,
    json: JsonFlag = False,
) -> None:
    """Response time of single sends against load, up to saturation (B6)."""
    from ringdove.bench import load as bench

    _report(bench.run(dir, seconds=seconds, quick=quick), json, plot, "load")


@app.command
def rds(
    *,
    seconds: Seconds = 4.0,
    quick: Quick = False,
    dir: Dir = None,
    plot: Plot = None,
    json: JsonFlag = False,
) -> None:
    """The four dequeue methods under ten back ends (T4.5): throughput, hits, latency."""
    from ringdove.bench import rds as bench

    _report(bench.run(dir, seconds=seconds, quick=quick), json, plot, "rds")


@app.command
def parked(
    *,
    receivers: int = 10_000,
    seconds: Seconds = 10.0,
    quick: Quick = False,
    dir: Dir = None,
    plot: Plot = None,
    json: JsonFlag = False,
) -> None:
    """What thousands of parked receivers cost a server, and how fast one of them is woken.

    Parameters
    ----------
    receivers
        Receivers, each on a connection of its own.
    """
    from ringdove.bench import parked as bench

    result = bench.run(dir, receivers=receivers, seconds=seconds, quick=quick)
    _report(result, json, plot, "parked")


@app.command
def sqs(
    *,
    connections: int = 100,
    seconds: Seconds = 5.0,
    parked: int = 2_000,
    quick: Quick = False,
    dir: Dir = None,
    plot: Plot = None,
    json: JsonFlag = False,
) -> None:
    """The SQS dialect over many connections, beside moto's server if that is installed.

    Parameters
    ----------
    connections
        Keep-alive connections that send and receive.
    parked
        Long polls that wait while the server is watched.
    """
    from ringdove.bench import sqs as bench

    _report(bench.run(dir, connections, seconds, parked, quick=quick), json, plot, "sqs")


@app.command
def mqtt(
    *,
    connections: int = 100,
    seconds: Seconds = 5.0,
    idle: int = 10_000,
    quick: Quick = False,
    dir: Dir = None,
    plot: Plot = None,
    json: JsonFlag = False,
) -> None:
    """The MQTT gateway under many connections, beside mosquitto if that is installed.

    Parameters
    ----------
    connections
        Connections that publish.
    idle
        Devices that only stay connected while the server's memory is measured.
    """
    from ringdove.bench import mqtt as bench

    _report(bench.run(dir, connections, seconds, idle, quick=quick), json, plot, "mqtt")


@app.command
def spark(
    *,
    messages: int = 20_000_000,
    size: tuple[int, ...] = (100, 1000),
    cores: tuple[int, ...] = (1, 2),
    rounds: int = 1,
    case: tuple[str, ...] = (),
    kafka: bool = True,
    quick: Quick = False,
    dir: Dir = None,
    json: JsonFlag = False,
) -> None:
    """Spark reads from a running server, and writes to it; beside memory, tuples and Kafka.

    Parameters
    ----------
    messages
        Messages of 100 bytes; of larger ones as many as make the same bytes.
    size
        Bytes of a message; may be given several times.
    cores
        Cores that Spark may use; may be given several times.
    rounds
        Runs of each kind; medians are given.
    case
        One figure instead of all, such as ringdove/batch/noop; may be given several times.
    kafka
        Fetch a Kafka (40 MB, once) and measure it too.
    """
    from ringdove.bench import spark as bench

    if quick:
        messages = min(messages, 2_000_000)
    _report(bench.run(dir, messages, size, cores, rounds, case, with_kafka=kafka), json)


@app.command
def traces(
    *,
    rows: int = 10_000_000,
    queues: int = 4,
    master: str = "local[2]",
    dir: Dir = None,
    json: JsonFlag = False,
) -> None:
    """Trace analytics on Spark over traces that were made up, with a count that must come out.

    Parameters
    ----------
    rows
        Rows of the traces; half of them sends.
    queues
        Queues that they are of.
    master
        Where Spark runs.
    """
    from ringdove.bench import traces as bench

    _report(bench.run(dir, rows, queues, master), json)


@app.command
def peers(
    *,
    peers: Names = (),
    workloads: Names = (),
    durability: tuple[str, ...] = ("unsynced", "synced"),
    messages: int = 2_000_000,
    seconds: float = 1.0,
    rounds: int = 3,
    backlog: int = 1_000_000,
    idle: int = 10_000,
    quick: Quick = False,
    dir: Dir = None,
    plot: Plot = None,
    save: Path | None = None,
    load: Path | None = None,
    markdown: Flag = False,
    json: JsonFlag = False,
) -> None:
    """Ringdove beside Kafka, Redis, NATS, RabbitMQ, beanstalkd and servers of SQS; ratios first.

    Peers that are missing are installed: programs with apt-get, clients and jars into the cache.

    Example: `ringdove bench peers --peers redis,beanstalkd --workloads 100-bytes,latency --quick`

    Parameters
    ----------
    peers
        Names with commas between them: kafka, redis, nats, rabbitmq, beanstalkd, moto, elasticmq.
    workloads
        Likewise: 100-bytes, 1-kb, 50-producers, latency, backlog, idle.
    durability
        synced: every send is synced before its acknowledgement; unsynced: not.
    messages
        Messages of a run, at most.
    seconds
        How long a run takes, about; tools in Java have runs of a fixed size.
    rounds
        Runs of each rate, in turns; medians are given.
    backlog
        Messages that wait before they are drained, at most; and at most what five runs send.
    idle
        Consumers that wait.
    save
        Write all figures to this JSON file.
    load
        Report what such a file says instead of measuring.
    markdown
        Print the tables of docs/peers-results.md.
    """
    from ringdove.bench.peers import report
    from ringdove.bench.peers import rounds as bench
    from ringdove.bench.peers.workloads import QUICK, WORKLOADS, Options

    if load is None:
        options = QUICK if quick else Options(messages, seconds, rounds, backlog, idle)
        result = bench.run(dir, peers or bench.NAMES, workloads or tuple(WORKLOADS), options,
                           durability)  # fmt: skip
    else:
        result = codec.loads(load.read_text())
    if save is not None:
        save.write_text(codec.dumps(result) + "\n")
    if plot is not None:
        report.plot(result, plot)
    if markdown:
        print(report.markdown(result), end="")
    elif json:
        emit_json(result)
    else:
        report.show(result)


def _report(
    result: dict[str, Any], as_json: bool, plot: Path | None = None, kind: str = ""
) -> None:
    if plot is not None:
        from ringdove.bench import plots

        getattr(plots, f"plot_{kind}")(result, plot)
    if as_json:
        emit_json(result)
    else:
        tables(result)
