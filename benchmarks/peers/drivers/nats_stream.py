"""NATS JetStream: a stream in files, published with acknowledgement, consumed by pull and acknowledged singly."""

from __future__ import annotations

import asyncio
import contextlib

import nats
from nats.js.api import RetentionPolicy, StorageType, StreamConfig

from benchmarks.peers.drive import Take

STREAM = "BENCH"
SUBJECT = "bench"
BATCH = 1000


class Driver:
    def __init__(self, address: str) -> None:
        self._address = address

    async def setup(self) -> None:
        await self.open()
        config = StreamConfig(
            name=STREAM, subjects=[SUBJECT], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
        )
        await self._stream.add_stream(config)
        await self.close()

    async def open(self) -> None:
        self._client = await nats.connect(self._address, pending_size=64 * 1024 * 1024)
        self._stream = self._client.jetstream()

    async def close(self) -> None:
        await self._client.close()

    async def push(self, _caller: int, bodies: list[bytes]) -> None:
        await asyncio.gather(*[self._stream.publish(SUBJECT, each, timeout=10) for each in bodies])

    async def consume(self, take: Take) -> None:
        subscription = await self._stream.pull_subscribe(SUBJECT, durable="workers")
        while True:
            messages = []
            with contextlib.suppress(nats.errors.TimeoutError):
                messages = await subscription.fetch(BATCH, timeout=5)
            for each in messages:
                await each.ack()
            if messages:
                await self._client.flush()
                take([each.data for each in messages])
