"""The functions of `library.lua`, under names that tell one version of them from another.

Every version has its own library on the nodes: a server that is upgraded brings its functions with
it, and servers that are not go on with theirs. Data outlives functions, so a version must be able
to read what the ones before it have written.
"""

from __future__ import annotations

import hashlib
from importlib import resources

_SOURCE = resources.files(__package__).joinpath("library.lua").read_text()
_VERSION = hashlib.sha256(_SOURCE.encode()).hexdigest()[:8]

#: What FUNCTION LOAD takes.
TEXT = _SOURCE.replace("@VERSION@", _VERSION)

NAME = f"ringdove_{_VERSION}"


def function(name: str) -> str:
    """What a function is called on the nodes."""
    return f"rd_{_VERSION}_{name}"
