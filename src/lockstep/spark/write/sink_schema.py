"""The columns that a DataFrame must, and may, have to be written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lockstep.errors import InvalidRequest

COLUMNS = {
    "queue": ("string",),
    "partition": ("string",),
    "payload": ("string", "binary"),
    "transaction_id": ("string",),
    "trace_id": ("string",),
    "kind": ("string",),
    "reference": ("string",),
    "encoding": ("string",),
    "headers": ("string", "map<string,string>"),
    "producer_sub": ("string",),
}
"""The columns that are written, and the types that each may have."""

GIVEN_ANEW = ("seq", "message_id", "created_at", "expires_at")
"""Columns of a read that every message gets anew: they are dropped silently."""


_ORDERED = ("tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz")
"""Types of columns that can order rows."""


def check_schema(
    fields: Sequence[tuple[str, str]],
    *,
    queue: str | None,
    ignore_unknown: bool,
    payload_format: str = "json",
    order_by: Sequence[str] = (),
) -> None:
    """Check that rows with these columns, given by name and type, can be written. `queue` is the queue of all rows,
    `order_by` the ordering columns."""
    names = {name.lower(): type_name for name, type_name in fields}
    if "payload" not in names:
        raise InvalidRequest(f"the sink needs a column 'payload'; the DataFrame has {', '.join(names) or 'none'}")
    if queue is None and "queue" not in names:
        raise InvalidRequest("the sink needs the option 'queue', or a column 'queue'")
    twice = [
        name for name, count in Counter(name.lower() for name, _ in fields).items() if count > 1 and name in COLUMNS
    ]
    if twice:
        raise InvalidRequest(f"the DataFrame has {', '.join(map(repr, twice))} more than once: drop all but one")
    for name in order_by:
        if names.get(name.lower()) not in _ORDERED:
            found = f"is {names[name.lower()]}" if name.lower() in names else "is not there"
            raise InvalidRequest(
                f"column {name!r}, by which the rows are to be ordered, {found}: it must be {', '.join(_ORDERED)}"
            )
    ordering = {name.lower() for name in order_by}
    unknown = [name for name in names if name not in COLUMNS and name not in GIVEN_ANEW and name not in ordering]
    if unknown and not ignore_unknown:
        raise InvalidRequest(
            f"the sink has no column {', '.join(map(repr, unknown))}: drop what should not be written, put it into the "
            f"payload with to_json(...), or set ignoreUnknownColumns=true; the columns are {', '.join(COLUMNS)}"
        )
    for name, allowed in COLUMNS.items():
        if name == "payload" and payload_format != "json":
            _check_struct(names[name], payload_format)
        elif name in names and not _is_allowed(names[name], allowed):
            hint = ": make a string of it with to_json(...)" if name == "payload" else ""
            raise InvalidRequest(f"column {name!r} is {names[name]}, and must be {' or '.join(allowed)}{hint}")


def _check_struct(type_name: str, payload_format: str) -> None:
    if not type_name.startswith("struct<"):
        raise InvalidRequest(f"column 'payload' is {type_name}, and must be a struct to be written as {payload_format}")


def _is_allowed(type_name: str, allowed: Sequence[str]) -> bool:
    # A column without any value has no type of its own; varchar and char count as strings.
    base = type_name.lower().partition("(")[0]
    return base == "void" or {"varchar": "string", "char": "string"}.get(base, type_name.lower()) in allowed
