"""The columns of a queue, as Spark sees them."""

from __future__ import annotations

from typing import Final

#: Columns that a reader may ask for, in the order of its default schema, with their types in Spark.
COLUMNS: Final = {
    "body": "binary",
    "key": "binary",
    "attributes": "map<string,string>",
    "stripe": "int",
    "priority": "int",
    "offset": "bigint",
    "sent": "timestamp",
    "stored": "timestamp",
}

#: Those that a writer may give, with the types that each may have; the first one it must give.
WRITTEN: Final = {
    "body": ("binary", "string"),
    "key": ("binary", "string"),
    "attributes": ("map<string,string>",),
}
