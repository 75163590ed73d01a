"""A producer for tests to kill: pushes without a pause, and logs what was acknowledged.

    python -m support.chaos_producer PLAN

With transaction ids it repeats a push until it is acknowledged, even a push of an earlier life. Without, a push with an
unknown outcome is neither repeated nor counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import msgspec

from lockstep import Batch, Engine
from lockstep.errors import Unavailable
from support.chaos_client import RETRY_SECONDS, DurableLog, argument, input_ended
from support.chaos_load import Content, ProducerPlan, transaction_id
from support.chaos_remote import opened
from support.history import Lane, Push, load

PARTITIONS_AT_FIRST = 4
PUSHES_PER_NEW_PARTITION = 10
PADDING_MAX = 600


class Producer:
    def __init__(self, plan: ProducerPlan, engine: Engine, log: DurableLog) -> None:
        self._plan = plan
        self._engine = engine
        self._log = log
        self._by = plan.name if plan.transaction_ids else f"{plan.name}.{plan.life}"
        self._sent: dict[Lane, int] = defaultdict(int)
        if plan.transaction_ids:
            self._resume()
        self._pushes = 0

    def _resume(self) -> None:
        """Continue after what earlier lives know to be stored."""
        for event in load(self._plan.logs()):
            if isinstance(event, Push):
                lane = Lane(event.queue, event.partition)
                number = msgspec.json.decode(event.payload, type=Content).n
                self._sent[lane] = max(self._sent[lane], number)

    async def run(self, ended: asyncio.Event) -> None:
        left = self._plan.messages_max
        while left > 0 and not ended.is_set():
            batches = self._next_push()
            left -= sum(len(batch.columns) for batch in batches)
            await self._push(batches, ended)
            await asyncio.sleep(random.uniform(0, self._plan.pause_seconds_max))
        await ended.wait()

    async def _push(self, batches: list[Batch], ended: asyncio.Event) -> None:
        payloads = [payload for batch in batches for payload in batch.columns.payloads]
        while not ended.is_set():
            sent_at = self._log.now()
            try:
                receipts = await self._engine.push(batches)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
                if not self._plan.transaction_ids:
                    self._change_name()
                    return
            else:
                if receipts[0].status == "buffered":
                    # Its position is not known yet. With transaction ids it can be found by pushing again.
                    await asyncio.sleep(RETRY_SECONDS)
                    if self._plan.transaction_ids:
                        continue
                    for batch in batches:
                        self._log.buffered(batch.queue, batch.partition, batch.columns.payloads, sent_at=sent_at)
                    self._log.sync()
                    return
                self._log.pushed(receipts, payloads, sent_at=sent_at)
                self._log.sync()
                return

    def _change_name(self) -> None:
        """A push with an unknown outcome may still be stored, after messages that are pushed from now on."""
        self._by = f"{self._plan.name}.{self._plan.life}.{self._pushes}"
        self._sent.clear()

    def _next_push(self) -> list[Batch]:
        self._pushes += 1
        counts = {lane: random.randint(1, 3) for lane in self._some_lanes()}
        return [self._batch(lane, count, push_size=sum(counts.values())) for lane, count in counts.items()]

    def _some_lanes(self) -> list[Lane]:
        # New partitions keep coming, because what creates them is part of what is interrupted.
        partitions = min(PARTITIONS_AT_FIRST + self._pushes // PUSHES_PER_NEW_PARTITION, self._plan.partitions_max)
        lanes = [Lane(queue, f"p{number}") for queue in self._plan.queues for number in range(partitions)]
        return random.sample(lanes, k=min(len(lanes), random.randint(1, 3)))

    def _batch(self, lane: Lane, count: int, *, push_size: int) -> Batch:
        first = self._sent[lane] + 1
        self._sent[lane] += count
        numbers = range(first, first + count)
        padding = "." * random.choice([0, 0, PADDING_MAX])
        payloads = [
            msgspec.json.encode(
                Content(
                    place=f"{lane.queue}/{lane.partition}",
                    by=self._by,
                    n=number,
                    push=self._pushes,
                    push_size=push_size,
                    padding=padding,
                )
            )
            for number in numbers
        ]
        ids = self._plan.transaction_ids
        if ids is None:
            return Batch.of(lane.queue, payloads, partition=lane.partition)
        transaction_ids = [transaction_id(ids, self._by, lane, number) for number in numbers]
        return Batch.of(lane.queue, payloads, partition=lane.partition, transaction_ids=transaction_ids)


async def main() -> None:
    plan = msgspec.json.decode(argument(), type=ProducerPlan)
    ended = input_ended()
    async with opened(plan) as engine:
        await Producer(plan, engine, DurableLog(plan.log)).run(ended)


if __name__ == "__main__":
    asyncio.run(main())
