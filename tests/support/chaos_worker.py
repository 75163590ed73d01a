"""A worker of the SDK for chaos tests: handles whole deliveries or single messages, and logs both.

    python -m support.chaos_worker PLAN

It uses servers if the plan names some, else its own engine.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict
from dataclasses import dataclass

import msgspec

from lockstep import Message, connect_async
from lockstep.client import AsyncDelivery
from support.chaos_client import DurableLog, argument, input_ended
from support.chaos_load import NAMESPACE, WorkerPlan
from support.history import Lane

CONCURRENCY = 2
BATCH = 50
PARTITIONS = 4


@dataclass
class Turn:
    """The current messages of one loop of the worker."""

    delivery: AsyncDelivery | None
    since: float
    """The delivery was asked for after this time."""


class Worker:
    def __init__(self, plan: WorkerPlan, log: DurableLog) -> None:
        self._plan = plan
        self._log = log
        self._began_at = log.now()
        self._turns: dict[asyncio.Task[object] | None, Turn] = {}

    async def handle_whole(self, delivery: AsyncDelivery) -> None:
        self._begin(delivery)
        await self._work()
        self._end([message.record for message in delivery], delivery)

    async def handle_each(self, message: object) -> None:
        delivery: AsyncDelivery = message.delivery  # type: ignore[attr-defined]
        if self._turn().delivery is not delivery:
            self._begin(delivery)
        await self._work()
        self._end([message.record], delivery)  # type: ignore[attr-defined]

    def _turn(self) -> Turn:
        return self._turns.setdefault(asyncio.current_task(), Turn(None, self._began_at))

    def _begin(self, delivery: AsyncDelivery) -> None:
        turn = self._turn()
        turn.delivery = delivery
        lanes: dict[Lane, list[Message]] = defaultdict(list)
        for message in delivery:
            lanes[Lane(message.queue, message.partition, self._plan.group)].append(message.record)
        for lane, messages in lanes.items():
            self._log.delivered_to(
                lane, messages, lease_id=delivery.lease_id, sent_at=turn.since, lease_seconds=self._plan.lease_seconds
            )
        self._log.sync()

    async def _work(self) -> None:
        await asyncio.sleep(random.uniform(0, self._plan.work_seconds_max))

    def _end(self, messages: list[Message], delivery: AsyncDelivery) -> None:
        """The worker acknowledges from now on what was handled; whether that succeeds, it does not say."""
        for message in messages:
            lane = Lane(message.queue, message.partition, self._plan.group)
            self._log.settling(lane, message.seq, lease_id=delivery.lease_id)
        self._log.sync()
        self._turn().since = self._log.now()


async def main() -> None:
    plan = msgspec.json.decode(argument(), type=WorkerPlan)
    ended = input_ended()
    worker = Worker(plan, DurableLog(plan.log))
    async with connect_async(list(plan.urls) or plan.dsn) as client:
        client.worker(
            namespace=NAMESPACE,
            group=plan.group,
            concurrency=CONCURRENCY,
            batch=BATCH,
            partitions=PARTITIONS,
            whole=plan.whole,
            lease_seconds=plan.lease_seconds,
        )(worker.handle_whole if plan.whole else worker.handle_each)
        running = asyncio.ensure_future(client.run(stop_on_signals=False))
        await asyncio.wait((running, asyncio.ensure_future(ended.wait())), return_when=asyncio.FIRST_COMPLETED)
        client.stop()
        await running
    if not ended.is_set():
        sys.exit("the worker ended by itself")


if __name__ == "__main__":
    asyncio.run(main())
