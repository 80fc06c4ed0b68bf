"""The command line of the experiments."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import experiments
from experiments import __main__ as command

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def tiny(monkeypatch):
    """An experiment that measures nothing."""
    module = SimpleNamespace(
        __doc__="What it is for.\nMore.",
        run=lambda quick: {"rows": [{"a": 1, "b": 2.5}], "beside": [], "quick": quick},
        plot=lambda result, path: path.write_text(str(len(result["rows"]))),
    )
    monkeypatch.setattr(command, "NAMES", ("tiny",))
    monkeypatch.setattr(command, "_module", {"tiny": module}.__getitem__)


def test_without_a_name_the_experiments_are_listed():
    told = subprocess.run(
        [sys.executable, "-m", "experiments"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in experiments.NAMES:
        assert f" {name} " in told.stdout


def test_a_run_prints_tables_and_writes_figures_and_picture(tiny, tmp_path, capsys):
    figures, picture = tmp_path / "tiny.json", tmp_path / "tiny.png"
    arguments = ["tiny", "--quick", "--json", str(figures), "--plot", str(picture)]
    assert command.main(arguments) == 0
    assert json.loads(figures.read_text())["rows"] == [{"a": 1, "b": 2.5}]
    assert json.loads(figures.read_text())["quick"] is True
    assert picture.read_text() == "1"
    assert "2.5" in capsys.readouterr().out


def test_an_unknown_name_is_answered_with_those_there_are(tiny, capsys):
    assert command.main(["big"]) == 2
    assert "'big'; there are: tiny" in capsys.readouterr().err


def test_what_is_no_simulation_cannot_go_over_spark(tiny, capsys):
    assert command.main(["tiny", "--spark"]) == 2
    assert "nothing to spread over Spark" in capsys.readouterr().err


def test_a_missing_server_is_told_in_one_line(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert command.main(["kvs", "--quick"]) == 3
    assert "Install Redis" in capsys.readouterr().err


def test_every_experiment_says_what_it_is_for_and_can_be_drawn():
    for name in experiments.NAMES:
        module = command._module(name)
        assert module.__doc__
        assert callable(module.run)
        assert callable(module.plot)
