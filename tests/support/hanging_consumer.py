"""A consumer that leases what there is, says how much, and does nothing with it.

hanging_consumer.py DSN QUEUE
"""

from __future__ import annotations

import asyncio
import sys

import lockstep
from lockstep import PopRequest


async def main(dsn: str, queue: str) -> None:
    async with lockstep.open_engine(dsn) as engine:
        [popped] = await engine.pop([PopRequest(queue=queue, batch=100)])
        print(sum(len(run) for run in popped.runs), flush=True)
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
