"""Ships what was ordered.

DATABASE_URL=postgresql://… python examples/fastapi-outbox/worker.py
"""

import os

import lockstep
from lockstep import Message

client = lockstep.connect(os.environ["DATABASE_URL"])


@client.worker("orders", group="shipping", concurrency=2)
def ship(message: Message) -> None:
    print(f"shipping {message.payload['item']} to {message.partition}", flush=True)


if __name__ == "__main__":
    client.run()
