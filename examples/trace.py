"""Follow one order through three queues by its trace id.

python examples/trace.py [url]       memory:// (the default), or postgresql://…
"""

import asyncio
import sys
from uuid import uuid4

import lockstep
from lockstep import Ack, Engine, NewMessage, PopRequest

STEPS = ["example.ordered", "example.paid", "example.shipped"]


async def forward(engine: Engine, source: str, target: str) -> None:
    """Take one message from a queue and put its successor into the next: both, or neither."""
    [popped] = await engine.pop([PopRequest(queue=source)])
    [message] = popped.messages()
    successor = NewMessage(
        queue=target, partition=message.partition, payload=message.payload, trace_id=message.trace_id, kind="forwarded"
    )
    await engine.transaction([Ack(lease_id=popped.lease_id)], [successor])
    print(f"moved from {source} to {target}")


async def main(url: str) -> None:
    async with lockstep.open_engine(url) as engine:
        for queue in STEPS:
            await engine.delete_queue(queue)  # what an earlier run left

        trace_id = str(uuid4())
        order = NewMessage(
            queue=STEPS[0], partition="customer-42", payload=b'{"total": 99}', trace_id=trace_id, kind="new"
        )
        await engine.push([order])
        await forward(engine, STEPS[0], STEPS[1])
        await forward(engine, STEPS[1], STEPS[2])

        print("the way of the order:")
        for message in await engine.trace(trace_id):
            view = await engine.message(message.id)
            print(f"  {message.queue}: {message.kind}, {view.status}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory://"))
