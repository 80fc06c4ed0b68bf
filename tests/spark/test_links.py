"""Connections of Spark's Python workers."""

import gc

from ringdove.pending import run
from ringdove.spark.links import linked
from ringdove.spark.options import Place


def test_one_is_kept_and_what_was_imported_is_not_looked_through_after_each_task(server):
    place = Place(server.url)
    with linked(place) as first:
        assert run(first.list_queues()) == []
    try:
        assert gc.get_freeze_count() > 10_000
        with linked(place) as second:
            assert second is first
    finally:
        gc.unfreeze()
        run(first.close())
