"""Lockstep: ordered partitions, one per caller, pushed in batches; consumers pop a batch and continue their lease."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.peers.drive import Take
from lockstep import Batch, connect_async

QUEUE = "bench.peers"
CONSUMERS = 2
BATCH = 1000
PARTITIONS = 10


class Driver:
    def __init__(self, address: str, **settings: Any) -> None:
        self._client = connect_async(address, **settings)

    async def setup(self) -> None:
        async with self._client as client:
            await client.configure(QUEUE)
            await client.subscribe(QUEUE, "workers")

    async def open(self) -> None:
        await self._client.open()

    async def close(self) -> None:
        await self._client.close()

    async def push(self, caller: int, bodies: list[bytes]) -> None:
        await self._client.push_many([Batch.of(QUEUE, bodies, partition=f"p{caller % PARTITIONS}")])

    async def consume(self, take: Take) -> None:
        await asyncio.gather(*[self._consume(take) for _ in range(CONSUMERS)])

    async def _consume(self, take: Take) -> None:
        options = {"group": "workers", "batch": BATCH, "partitions": PARTITIONS}
        while True:
            batch = await self._client.pop(QUEUE, wait=True, timeout_seconds=10, **options)
            while batch:
                payloads = [message.raw for message in batch]
                batch = await batch.next()
                take(payloads)
