"""A consumer for tests to kill: leases messages briefly, and logs what it received and what it did.

    python -m support.chaos_consumer PLAN

The group `audit` acknowledges, in several ways. The group `relay` moves each message on, in one transaction with
its ack.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from lockstep import Ack, AckOutcome, Batch, Engine, Message, NextRequest, Popped, PopRequest
from lockstep.core.records import AckStatus
from lockstep.errors import TransactionRolledBack, Unavailable
from support.chaos_client import RETRY_SECONDS, DurableLog, argument, input_ended
from support.chaos_load import NAMESPACE, QUEUES, RELAY, RELAYED, ConsumerPlan, relayed_partition
from support.chaos_remote import opened
from support.history import Lane

IDLE_SECONDS = 0.02
BATCH = 100
PARTITIONS = 4

Lanes = dict[Lane, list[Message]]


class Ending(msgspec.Struct, frozen=True):
    """An ack of all messages of a lane up to one, with its place in the log."""

    logged_as: str
    ack: Ack


class Consumer:
    def __init__(self, plan: ConsumerPlan, engine: Engine, log: DurableLog) -> None:
        self._plan = plan
        self._engine = engine
        self._log = log

    async def run(self, ended: asyncio.Event) -> None:
        popped: Popped | None = None
        while not ended.is_set():
            popped = popped or await self._pop()
            if not popped:
                await asyncio.sleep(IDLE_SECONDS)
            elif self._plan.holds:
                await ended.wait()
            else:
                await asyncio.sleep(random.uniform(0, self._plan.work_seconds_max))
                popped = await self._finish(popped)

    async def _pop(self) -> Popped | None:
        sent_at = self._log.now()
        try:
            [popped] = await self._engine.pop([self._request()])
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
            return None
        if popped:
            self._log.delivered(popped, sent_at=sent_at, lease_seconds=self._plan.lease_seconds)
            self._log.sync()
        return popped

    def _request(self) -> PopRequest:
        plan = self._plan
        # Over the namespace, or one queue: the two take different paths through the store.
        queue = random.choice([None, *QUEUES])
        return PopRequest(
            queue=queue,
            namespace=NAMESPACE if queue is None else None,
            group=plan.group,
            batch=BATCH,
            partitions=PARTITIONS,
            lease_seconds=plan.lease_seconds,
        )

    async def _finish(self, popped: Popped) -> Popped | None:
        """The next messages, if it continued."""
        lanes: Lanes = {}
        for message in popped.messages():
            lanes.setdefault(Lane(message.queue, message.partition, popped.group), []).append(message)
        assert popped.lease_id is not None
        if self._plan.goes_on and random.random() < 0.9:
            return await self._go_on(lanes, popped.lease_id)
        if self._plan.group == RELAY:
            await self._relay(lanes, popped.lease_id)
        else:
            await self._acknowledge(lanes, popped.lease_id)
        return None

    async def _go_on(self, lanes: Lanes, lease_id: str) -> Popped | None:
        endings = [self._ending(lane, found[-1], lease_id) for lane, found in lanes.items()]
        sent_at = self._log.now()
        try:
            [continued] = await self._engine.next([NextRequest(lease_id=lease_id, pop=self._request())])
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
            return None
        if continued.acked.success:  # otherwise it is unknown which of them were completed
            self._settled(endings, [continued.acked] * len(endings))
        if continued.popped:
            self._log.delivered(continued.popped, sent_at=sent_at, lease_seconds=self._plan.lease_seconds)
            self._log.sync()
        return continued.popped

    async def _acknowledge(self, lanes: Lanes, lease_id: str) -> None:
        """All at once, or in two halves, or not at all."""
        way = random.random()
        if way < 0.1:
            status = random.choice(("retry", "released"))
            await self._ack([self._ending(lane, found[0], lease_id, status) for lane, found in lanes.items()])
            return
        if way < 0.3:
            halves = {lane: found[len(found) // 2] for lane, found in lanes.items()}
            await self._ack([self._ending(lane, message, lease_id) for lane, message in halves.items()])
        await self._ack([self._ending(lane, found[-1], lease_id) for lane, found in lanes.items()])

    async def _relay(self, lanes: Lanes, lease_id: str) -> None:
        endings = [self._ending(lane, found[-1], lease_id) for lane, found in lanes.items()]
        batches = [
            Batch.of(RELAYED, [message.payload for message in found], partition=relayed_partition(lane))
            for lane, found in lanes.items()
        ]
        sent_at = self._log.now()
        try:
            result = await self._engine.transaction([ending.ack for ending in endings], batches)
        except TransactionRolledBack:
            self._settled(endings, [AckOutcome(index=i, success=False) for i in range(len(endings))])
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            payloads = [payload for batch in batches for payload in batch.columns.payloads]
            self._log.pushed(result.pushed, payloads, sent_at=sent_at)
            self._settled(endings, result.acks)

    async def _ack(self, endings: list[Ending]) -> None:
        try:
            outcomes = await self._engine.ack([ending.ack for ending in endings])
        except Unavailable:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            self._settled(endings, outcomes)

    def _ending(self, lane: Lane, message: Message, lease_id: str, status: AckStatus = "completed") -> Ending:
        logged_as = self._log.settling(lane, message.seq, lease_id=lease_id, status=status)
        ack = Ack(
            lease_id=lease_id,
            partition_id=message.partition_id,
            seq=message.seq,
            group=lane.group,
            status=status,
        )
        return Ending(logged_as, ack)

    def _settled(self, endings: list[Ending], outcomes: list[AckOutcome]) -> None:
        for ending, outcome in zip(endings, outcomes, strict=True):
            self._log.settled(ending.logged_as, outcome)
        self._log.sync()


async def main() -> None:
    plan = msgspec.json.decode(argument(), type=ConsumerPlan)
    ended = input_ended()
    async with opened(plan) as engine:
        await Consumer(plan, engine, DurableLog(plan.log)).run(ended)


if __name__ == "__main__":
    asyncio.run(main())
