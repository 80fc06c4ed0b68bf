"""Lets the site list every decision below docs/adr, so that a new one need not be named."""

from pathlib import Path
from typing import Any


def on_config(config: Any) -> None:
    """Add the decisions to the last part of the navigation; called by MkDocs."""
    decisions = sorted(Path(config.docs_dir, "adr").glob("*.md"))
    [design] = config.nav[-1].values()
    design.append({"Decisions": [f"adr/{path.name}" for path in decisions]})
