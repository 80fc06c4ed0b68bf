"""The command line: `python -m experiments NAME`, from the top of the repository."""

from __future__ import annotations

import importlib
import inspect
import json as codec
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from experiments import NAMES, results
from ringdove.cli import EXIT_INTERRUPTED, EXIT_OK, EXIT_STORE, EXIT_USAGE
from ringdove.cli.output import table, tables
from ringdove.errors import RingdoveError

app = App(
    name="python -m experiments",
    help="Repeat the experiments of the source documents, their figures beside ours.",
    version_flags=[],
)


@app.default
def run(
    name: str | None = None,
    *,
    json: Path | None = None,
    plot: Path | None = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
    spark: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run an experiment and print its tables; without a name, list them.

    Parameters
    ----------
    name
        Which one.
    json
        Write all figures to this file.
    plot
        Draw a picture into this PNG file.
    quick
        A run of seconds, to see that it works; its figures mean little.
    spark
        Spread simulations over Spark, not over processes; the figures are the same.
    """
    if name is None:
        table(None, ["experiment", "what"], [[known, _title(known)] for known in NAMES])
        return EXIT_OK
    if name not in NAMES:
        print(f"There is no experiment {name!r}; there are: {', '.join(NAMES)}.", file=sys.stderr)
        return EXIT_USAGE
    experiment = _module(name)
    if spark and "spark" not in inspect.signature(experiment.run).parameters:
        print(f"Experiment {name} runs real processes; there is nothing to spread over Spark.",
              file=sys.stderr)  # fmt: skip
        return EXIT_USAGE
    result: dict[str, Any] = experiment.run(quick=quick, **({"spark": True} if spark else {}))
    if json is not None:
        json.write_text(codec.dumps(result, indent=1) + "\n")
    if plot is not None:
        experiment.plot(result, plot)
    tables(result)
    return EXIT_OK


@app.command(name="results")
def fill_results(*, measured: Path = Path("experiments/out"), docs: Path = Path("docs")) -> int:
    """Put what experiments have found into the results page, beside the documents' figures.

    Parameters
    ----------
    measured
        Where their JSON files are.
    docs
        Where results.md is; what it shows is kept in results/ beside it.
    """
    kept, page = docs / "results", docs / "results.md"
    names = results.keep(measured, kept)
    page.write_text(results.fill(page.read_text(), kept))
    print(f"{page}: {', '.join(names) or 'nothing new'}")
    return EXIT_OK


def _module(name: str) -> Any:
    return importlib.import_module(f"experiments.{name.replace('-', '_')}")


def _title(name: str) -> str:
    """The first line of the module's description."""
    return str(_module(name).__doc__).partition("\n")[0]


def main(arguments: list[str]) -> int:
    """Run one command; answers the exit code."""
    try:
        return int(
            app(arguments, exit_on_error=False, print_error=True, result_action="return_value")
            or EXIT_OK
        )
    except CycloptsError:
        return EXIT_USAGE
    except RingdoveError as error:
        print(f"experiments: {error}", file=sys.stderr)
        return EXIT_STORE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
