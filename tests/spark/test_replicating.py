"""Simulations of the experiments over Spark."""

from functools import partial

import pytest

from experiments.replicating import replicate
from ringdove.errors import InvalidArgument
from ringdove.models.visibility import Setup, simulate

SHORT = partial(simulate, seconds=3.0, warm_s=1.0)


def test_spark_and_processes_give_the_same_numbers(spark):
    grid = [Setup(), Setup(in_order=True)]
    over_spark = replicate(SHORT, grid, range(2), spark=True)
    assert over_spark == replicate(SHORT, grid, range(2))
    assert len(over_spark) == 2
    assert spark.range(3).count() == 3  # The session is still there for others.


def fail(point, seed):
    raise ValueError(f"{point} with {seed}")


def test_a_run_that_fails_is_told(spark):
    with pytest.raises(InvalidArgument, match="A run failed: ValueError: 7 with 1"):
        replicate(partial(fail), [7], [1], spark=True)
