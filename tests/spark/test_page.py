"""The page about Spark does what it says."""

from pathlib import Path

import ringdove
from ringdove.spark.columns import COLUMNS
from ringdove.spark.options import _KNOWN
from test_docs import python_blocks

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.md"


def test_the_python_on_the_page_runs(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "page"}
    blocks = python_blocks(PAGE)
    # Spark's Java is where the tests are: a relative directory would be there, too.
    for block in blocks:
        text = block.replace("file:./ringdove-data", f"file:{tmp_path}")
        text = text.replace(
            '.format("ringdove")', f'.format("ringdove").option("url", "file:{tmp_path}")'
        )
        exec(
            compile(text.replace("checkpoints/", f"{tmp_path}/checkpoints/"), "spark.md", "exec"),
            scope,
        )
    with ringdove.connect(f"file:{tmp_path}") as rd:
        found = [message.body for message in rd.queue("averages").replay()]
    assert found == [b"21.0", b"21.5", b"22.0", b"19.5", b"22.1"]


def test_every_option_and_column_is_explained():
    text = PAGE.read_text()
    assert [name for name in (*_KNOWN, *COLUMNS) if f"`{name}`" not in text] == []
