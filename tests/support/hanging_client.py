"""A process that locks a partition in a transaction of the store, says so, and goes no further.

hanging_client.py DSN QUEUE PARTITION IDLE_SECONDS
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import asyncpg

from lockstep.storage.postgres.database import Database
from lockstep.storage.postgres.pool import PoolSettings

_LOCK = """
select p.id from lockstep.partition p join lockstep.queue q on q.id = p.queue_id
where q.name = $1 and p.name = $2 for update of p
"""


async def main(dsn: str, queue: str, partition: str, idle_seconds: str) -> None:
    database = Database(dsn, PoolSettings(idle_transaction_timeout_seconds=float(idle_seconds)))

    async def hang(connection: asyncpg.Connection[Any]) -> None:
        assert await connection.fetchval(_LOCK, queue, partition)
        print(await connection.fetchval("select pg_backend_pid()"), flush=True)
        await asyncio.Event().wait()

    await database.transaction(hang)


asyncio.run(main(*sys.argv[1:]))
