"""Redis Streams: a pipeline of XADD, and a consumer group that reads batches, acknowledges and deletes them."""

from __future__ import annotations

import asyncio

import redis.asyncio
from redis.exceptions import ResponseError

from benchmarks.peers.drive import Take

STREAM = "bench"
GROUP = "workers"
BATCH = 1000
CONSUMERS = 2


class Driver:
    def __init__(self, address: str) -> None:
        self._address = address

    async def setup(self) -> None:
        await self.open()
        try:
            await self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        await self.close()

    async def open(self) -> None:
        self._client = redis.asyncio.Redis.from_url(self._address, max_connections=20)

    async def close(self) -> None:
        await self._client.aclose()

    async def push(self, _caller: int, bodies: list[bytes]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for each in bodies:
                pipeline.xadd(STREAM, {b"b": each})
            await pipeline.execute()

    async def consume(self, take: Take) -> None:
        await asyncio.gather(*[self._consume(f"c{number}", take) for number in range(CONSUMERS)])

    async def _consume(self, name: str, take: Take) -> None:
        while True:
            found = await self._client.xreadgroup(GROUP, name, {STREAM: ">"}, count=BATCH, block=1000)
            entries = _entries(found)
            if entries:
                ids = [entry[0] for entry in entries]
                async with self._client.pipeline(transaction=False) as pipeline:
                    pipeline.xack(STREAM, GROUP, *ids)
                    pipeline.xdel(STREAM, *ids)
                    await pipeline.execute()
                take([entry[1][b"b"] for entry in entries])


def _entries(found: object) -> list:
    """Of the one stream; the shape depends on the version of the protocol."""
    if not found:
        return []
    if isinstance(found, dict):
        (of_stream,) = found.values()
        return of_stream[0] if of_stream and isinstance(of_stream[0], list) else of_stream
    return found[0][1]  # type: ignore[index]
