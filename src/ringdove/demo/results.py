"""What the demo's pipeline has found: figures from its tables, and a picture."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def look(project: Path, pictures: Path) -> dict[str, Any]:
    """Rows of the tables, the windows summed up, and where tables and picture are."""
    from ringdove.spark.pipeline.project import Project  # noqa: PLC0415
    from ringdove.spark.pipeline.status import tables  # noqa: PLC0415

    opened = Project.open(project)
    rows = {own["table"]: own["rows"] for own in tables(opened)}
    windows = _windows(opened.tables / "windows")
    found: dict[str, Any] = {
        "spark_readings": rows.get("readings", 0),
        "spark_windows": rows.get("windows", 0),
        "spark_flagged": sum(window["flagged"] for window in windows),
        "windows": windows,
        "tables": str(opened.tables),
    }
    if windows and importlib.util.find_spec("matplotlib") is not None:
        picture = pictures / "windows.png"
        _draw(windows, picture)
        found["picture"] = str(picture)
    return found


def _windows(table: Path) -> list[dict[str, Any]]:
    """By window: readings, energy, and device windows that were flagged."""
    from pyarrow import compute, dataset  # noqa: PLC0415

    if not list(table.glob("*.parquet")):
        return []
    rows = dataset.dataset(table, format="parquet").to_table(
        columns=["start", "readings", "kwh_sum", "flags"]
    )
    rows = rows.append_column(
        "flagged", compute.greater(compute.list_value_length(rows["flags"]), 0)
    )
    summed = rows.group_by("start").aggregate(
        [("readings", "sum"), ("kwh_sum", "sum"), ("flagged", "sum")]
    )
    return [
        {
            "start": row["start"].strftime("%H:%M:%S"),
            "readings": row["readings_sum"],
            "kwh": round(row["kwh_sum_sum"], 2),
            "flagged": int(row["flagged_sum"] or 0),
        }
        for row in sorted(summed.to_pylist(), key=lambda row: row["start"])
    ]


def _draw(windows: list[dict[str, Any]], path: Path) -> None:
    from ringdove.bench.plots import figure_of, save  # noqa: PLC0415

    figure, panels = figure_of(2, "The demo's windows, as Spark has summed them up")
    times = [window["start"] for window in windows]
    for axes, name, text in zip(
        panels, ("readings", "kwh"), ("readings per window", "kWh per window"), strict=True
    ):
        axes.bar(times, [window[name] for window in windows], label=name)
        axes.set_title(text)
        axes.tick_params(axis="x", rotation=60)
    save(figure, panels, path)
