"""Push, pop, acknowledge.

python examples/quickstart.py [url]       memory:// (the default), or postgresql://…
"""

import asyncio
import sys

import lockstep
from lockstep import Ack, NewMessage, PopRequest

QUEUE = "example.orders"


async def main(url: str) -> None:
    async with lockstep.open_engine(url) as engine:
        await engine.delete_queue(QUEUE)  # what an earlier run left

        receipts = await engine.push(
            [
                NewMessage(queue=QUEUE, partition="customer-1", payload=b'{"total": 10}'),
                NewMessage(queue=QUEUE, partition="customer-2", payload=b'{"total": 20}'),
                NewMessage(queue=QUEUE, partition="customer-1", payload=b'{"total": 30}'),
            ]
        )
        for receipt in receipts:
            print(f"pushed to {receipt.partition}, seq {receipt.seq}")

        [popped] = await engine.pop([PopRequest(queue=QUEUE, batch=100, partitions=10)])
        for message in popped.messages():
            print(f"got {message.json()['total']} for {message.partition}, seq {message.seq}")

        [other] = await engine.pop([PopRequest(queue=QUEUE, batch=100, partitions=10)])
        print(f"another consumer gets {len(other)} messages: both partitions are leased")

        [outcome] = await engine.ack([Ack(lease_id=popped.lease_id)])
        print(f"acknowledged {outcome.messages} messages")

        [popped] = await engine.pop([PopRequest(queue=QUEUE)])
        print("nothing is left" if not popped else "something is left")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory://"))
