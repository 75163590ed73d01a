"""A program that makes or deletes the group g of the queue q in many small slices, for tests to kill.

group_slices.py DSN make MODE GROUP_MODE | delete
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from lockstep.core.records import Subscription
from lockstep.storage.postgres.store import PostgresStore


async def main(dsn: str, verb: str, *modes: Any) -> None:
    store = PostgresStore(dsn)
    store.context.limits.slice_partitions_max = 2
    store.context.limits.slices_seconds_max = 3600
    if verb == "make":
        await store.subscribe("q", "g", Subscription(modes[0]), mode=modes[1])
    else:
        await store.delete_group("g", queue="q")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
