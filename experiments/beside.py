"""A document's figures beside ours."""

from __future__ import annotations

from typing import Any


def ratio(one: float, other: float) -> float | None:
    """One as a multiple of the other; nothing of nothing."""
    return round(one / other, 2) if other else None


def beside(what: str, document: float | str, here: float | str | None) -> dict[str, Any]:
    """One row: a figure as the document reports it, and as it was found here."""
    return {"what": what, "document": document, "here": here}
