"""The page about Spark does what it says."""

import ringdove
from ringdove.spark.columns import COLUMNS
from ringdove.spark.options import _KNOWN
from server.running import ServerThread
from test_docs import ON_SPARK, ROOT, blocks, python_blocks

PAGE = ROOT / "docs" / "spark.md"


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


def test_the_tour_of_the_guide_comes_to_results(spark, tmp_path, capfd):
    tour = [b for b in blocks(ROOT / "docs" / "guide.md") if b.section == ON_SPARK]
    assert [block.kind for block in tour] == ["python", "console"]
    with ServerThread(tmp_path) as server, ringdove.connect(server.url) as rd:
        rd.create_queue("readings").send_many([b"1", b"2", b"3"])
        exec(tour[0].text.replace("127.0.0.1:7117", f"127.0.0.1:{server.port}"), {})
    assert "|    3|" in capfd.readouterr().out


def test_every_option_and_column_is_explained():
    text = PAGE.read_text()
    assert [name for name in (*_KNOWN, *COLUMNS) if f"`{name}`" not in text] == []
