"""RabbitMQ by aio-pika: a quorum queue, publisher confirms, and a consumer that acknowledges several at once."""

from __future__ import annotations

import asyncio

import aio_pika

from benchmarks.peers.drive import Take

QUEUE = "bench"
PREFETCH = 2000
ACK_EVERY = 100


class Driver:
    def __init__(self, address: str) -> None:
        self._address = address

    async def setup(self) -> None:
        await self.open()
        await self.close()

    async def open(self) -> None:
        self._connection = await aio_pika.connect(self._address)
        self._channels = [await self._connection.channel(publisher_confirms=True) for _ in range(10)]
        self._queue = await self._channels[0].declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})

    async def close(self) -> None:
        await self._connection.close()

    async def push(self, caller: int, bodies: list[bytes]) -> None:
        exchange = self._channels[caller % 10].default_exchange
        mode = aio_pika.DeliveryMode.PERSISTENT
        await asyncio.gather(
            *[exchange.publish(aio_pika.Message(each, delivery_mode=mode), routing_key=QUEUE) for each in bodies]
        )

    async def consume(self, take: Take) -> None:
        await self._channels[0].set_qos(prefetch_count=PREFETCH)
        arrived: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
        await self._queue.consume(arrived.put)  # type: ignore[arg-type]
        while True:
            batch = [await arrived.get()]
            while len(batch) < ACK_EVERY and not arrived.empty():
                batch.append(arrived.get_nowait())
            await batch[-1].ack(multiple=True)
            take([each.body for each in batch])
