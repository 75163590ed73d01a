"""A consumer of a shared group for tests to kill: moves each message on, in one transaction with the end of its lease.

    python -m support.chaos_jobs PLAN

It completes some of its messages, releases some, and lets the leases of the rest expire.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from lockstep import Ack, Batch, Engine, Message, Popped, PopRequest
from lockstep.errors import TransactionRolledBack, Unavailable
from support.chaos_client import RETRY_SECONDS, argument, input_ended
from support.chaos_load import JOBS, JOBS_DONE, QUEUES, JobsPlan
from support.chaos_remote import opened

IDLE_SECONDS = 0.02
BATCH = 20
COMPLETED_SHARE, GIVEN_BACK_SHARE = 0.8, 0.1


class JobsConsumer:
    def __init__(self, plan: JobsPlan, engine: Engine) -> None:
        self._plan = plan
        self._engine = engine

    async def run(self, ended: asyncio.Event) -> None:
        with self._plan.log.open("a", buffering=1) as log:
            while not ended.is_set():
                try:
                    done = await self._cycle()
                except (Unavailable, TransactionRolledBack) as error:
                    # Rolled back: the lease expired, or was lost in a crash. The consumer that has the messages now
                    # ends them.
                    log.write(f"{error}\n")
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    log.write(f"{done}\n")
                    if not done:
                        await asyncio.sleep(IDLE_SECONDS)

    async def _cycle(self) -> int:
        request = PopRequest(
            queue=random.choice(QUEUES),
            group=JOBS,
            mode="shared",
            batch=BATCH,
            partitions=random.randint(1, 3),
            lease_seconds=self._plan.lease_seconds,
        )
        [popped] = await self._engine.pop([request])
        if popped:
            await asyncio.sleep(random.uniform(0, self._plan.work_seconds_max))
            await self._end(popped)
        return len(popped)

    async def _end(self, popped: Popped) -> None:
        acks: list[Ack] = []
        batches: list[Batch] = []
        for message in popped.messages():
            way = random.random()
            if way < COMPLETED_SHARE:
                acks.append(self._ack(popped, message, "completed"))
                batches.append(Batch.of(JOBS_DONE, [message.payload], partition=message.queue))
            elif way < COMPLETED_SHARE + GIVEN_BACK_SHARE:
                acks.append(self._ack(popped, message, "released"))
        if acks:
            await self._engine.transaction(acks, batches)

    @staticmethod
    def _ack(popped: Popped, message: Message, status: str) -> Ack:
        return Ack(
            lease_id=popped.lease_id,
            partition_id=message.partition_id,
            seq=message.seq,
            group=JOBS,
            status=status,  # type: ignore[arg-type]
        )


async def main() -> None:
    plan = msgspec.json.decode(argument(), type=JobsPlan)
    ended = input_ended()
    async with opened(plan) as engine:
        await JobsConsumer(plan, engine).run(ended)


if __name__ == "__main__":
    asyncio.run(main())
