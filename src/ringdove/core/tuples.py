"""Named tuples of the hot path, made by C alone.

Calling a class of `NamedTuple` runs a function in Python that only passes its arguments on; that is
most of what making one costs. `maker` goes around it: the caller gives all fields, in their order.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", bound=tuple[Any, ...])


def maker(kind: type[T]) -> Callable[[tuple[Any, ...]], T]:
    """What makes a `kind` of a tuple of all its fields."""
    return cast("Callable[[tuple[Any, ...]], T]", partial(tuple.__new__, kind))
