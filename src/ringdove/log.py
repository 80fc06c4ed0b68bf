"""Events of a server, with their fields, for whichever log its process keeps.

`ringdove serve` sets up structlog, and a program may have done so too. Where nobody has, structlog
would print to standard output, which belongs to the program that runs a server in its process: so
events go to `logging` there, as those of any library do.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

_PROCESSORS: list[Any] = [
    structlog.stdlib.filter_by_level,
    structlog.processors.KeyValueRenderer(key_order=["event"]),
]


def event_logger(name: str) -> Any:
    """What takes events: `logger.info("serving", port=7117)`."""
    if structlog.is_configured():
        return structlog.get_logger(name)
    return structlog.wrap_logger(
        logging.getLogger(name), _PROCESSORS, wrapper_class=structlog.stdlib.BoundLogger
    )
