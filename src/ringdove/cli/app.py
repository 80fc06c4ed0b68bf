"""The tree of commands, and the options that all of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from ringdove.cli import (
    accounts,
    bench,
    care,
    cluster,
    dead,
    demo,
    fleet,
    messages,
    model,
    pipeline,
    plan,
    queues,
    serve,
    session,
    tier,
    trace,
)
from ringdove.config import environment, find_url
from ringdove.version import __version__

app = App(
    name="ringdove",
    help="""A message queue: durable, fast, at home in your process.

To begin:

    ringdove queue create readings
    ringdove send readings hello world
    ringdove receive readings --max 10 --ack
    ringdove demo
""",
    version=__version__,
    help_format="markdown",
    # A list that is empty is one that is not given.
    default_parameter=Parameter(negative_iterable=()),
    suppress_keyboard_interrupt=False,
)
app.meta.suppress_keyboard_interrupt = False
app.meta.group_parameters = Group("Where the queues are", sort_key=0)

app.command(queues.app)
app.command(accounts.app)
app.command(dead.app)
app.command(bench.app)
app.command(cluster.app)
app.command(tier.app)
app.command(trace.app)
app.command(model.app)
app.command(pipeline.app)
for command in (
    messages.send, messages.receive, messages.peek, messages.replay,
    messages.ack, messages.release, messages.extend,
    care.stats, care.fsck, care.backup, care.compact, demo.demo, fleet.fleet, plan.plan,
    serve.serve,
):  # fmt: skip
    app.command(command)


@app.command
def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the completion script for a shell.

    Example: `ringdove completion bash > ~/.local/share/bash-completion/completions/ringdove`
    """
    print(app.generate_completion(prog_name="ringdove", shell=shell))


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    data: Path | None = None,
    url: str | None = None,
) -> object:
    """Run a command on the queues at a place.

    Parameters
    ----------
    data
        Data directory; short for --url file:DIRECTORY. By default RINGDOVE_DATA of the environment,
        else ./ringdove-data.
    url
        Where the queues are, for example file:./data or ringdove://127.0.0.1:7117. By default
        RINGDOVE_URL of the environment.
    """
    session.told.set(any((data, url, *environment().values())))
    session.url.set(find_url(url, data))
    session.words.set(tokens)
    return app(tokens, exit_on_error=False, print_error=True, result_action="return_value")
