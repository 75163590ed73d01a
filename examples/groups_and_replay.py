"""Two groups read the same messages, each at its own pace; one of them goes back.

python examples/groups_and_replay.py [url]       memory:// (the default), or postgresql://…
"""

import asyncio
import sys

import lockstep
from lockstep import Batch, Engine, PopRequest, Position, Subscription
from lockstep.core.records import SubscriptionMode

QUEUE = "example.readings"


async def read(engine: Engine, group: str, *, batch: int = 100, mode: SubscriptionMode = "all") -> list[int]:
    """What the group has not read yet, acknowledged at once. The mode counts for the first read of a group."""
    request = PopRequest(queue=QUEUE, group=group, batch=batch, auto_ack=True, subscription=Subscription(mode))
    [popped] = await engine.pop([request])
    return [message.json() for message in popped.messages()]


async def main(url: str) -> None:
    async with lockstep.open_engine(url) as engine:
        await engine.delete_queue(QUEUE)  # what an earlier run left

        await engine.push([Batch.of(QUEUE, [b"1", b"2", b"3"])])
        print("billing reads", await read(engine, "billing"))
        print("reports reads", await read(engine, "reports", batch=2))
        for lag in await engine.lag(QUEUE):
            print(f"{lag.group} has {lag.lag} before it")

        print("alerts, which wants only what is new, reads", await read(engine, "alerts", mode="new"))
        await engine.push([Batch.of(QUEUE, [b"4"])])
        print("after one more push alerts reads", await read(engine, "alerts"))

        await engine.seek(QUEUE, "billing", Position("start"))
        print("billing went back to the start and reads", await read(engine, "billing"))
        await engine.seek(QUEUE, "billing", Position("seq", seq=3))
        print("billing went back to seq 3 and reads", await read(engine, "billing"))
        await engine.seek(QUEUE, "reports", Position("end"))
        print("reports skipped to the end and reads", await read(engine, "reports"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory://"))
