"""Names of streams: each belongs to one query at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from lockstep.errors import Conflict
from lockstep.spark.database import cursor_of
from lockstep.storage.postgres import sql

_PATIENCE = "set local lock_timeout = '5s'"


def claim(connection: psycopg.Connection[Any], stream: str, queues: Sequence[str] = ()) -> None:
    """Hold the name of a stream, or its name for some queues, while the connection lasts. Two queries with the same
    name would commit each other's positions, or take each other's leases. Raises Conflict. A killed driver holds the
    name until PostgreSQL notices; this waits for that."""
    cursor = cursor_of(connection)
    try:
        with connection.transaction():
            cursor.execute(_PATIENCE)
            for name in [f"{stream}/{queue}" for queue in sorted(queues)] or [stream]:
                cursor.execute(sql.query("spark_lease_claim"), [name])
    except psycopg.errors.LockNotAvailable:
        raise Conflict(
            f"the option streamName is {stream!r}, which another query that runs now has, too: each needs its own",
            stream=stream,
        ) from None
