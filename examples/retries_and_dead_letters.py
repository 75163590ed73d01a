"""A message that keeps failing is retried, becomes a dead letter, and is put back once its cause is repaired.

python examples/retries_and_dead_letters.py [url]       memory:// (the default), or postgresql://…
"""

import asyncio
import sys

import lockstep
from lockstep import Ack, Batch, DeadLetterFilter, Engine, Message, PopRequest, queue_options

QUEUE = "example.invoices"


def handle(message: Message, *, repaired: bool) -> None:
    if message.json() == "bad" and not repaired:
        raise ValueError("cannot print this invoice")


async def work(engine: Engine, *, repaired: bool = False) -> None:
    """Handle messages, one at a time, until the queue is empty."""
    while (await engine.queue(QUEUE)).pending:
        [popped] = await engine.pop([PopRequest(queue=QUEUE)])
        for message in popped.messages():
            try:
                handle(message, repaired=repaired)
            except ValueError as error:
                [outcome] = await engine.nack([Ack(lease_id=popped.lease_id, error=str(error))])
                what = "gave it up" if outcome.dead else "will try again"
                print(f"{message.json()}: attempt {message.attempt} failed, {what}")
            else:
                await engine.ack([Ack(lease_id=popped.lease_id)])
                print(f"{message.json()}: done")
        if not popped:
            await asyncio.sleep(0.02)  # the retry is not due yet


async def main(url: str) -> None:
    async with lockstep.open_engine(url) as engine:
        await engine.delete_queue(QUEUE)  # what an earlier run left
        await engine.configure(QUEUE, queue_options(retry_limit=2, retry_delay_ms=50, retry_backoff=2))

        await engine.push([Batch.of(QUEUE, [b'"first"', b'"bad"', b'"last"'])])
        await work(engine)

        page = await engine.dead_letters(DeadLetterFilter(queue=QUEUE))
        for letter in page.items:
            print(f"dead letter: {letter.message.json()}, after {letter.attempts} attempts: {letter.error}")

        count = await engine.redrive(DeadLetterFilter(queue=QUEUE))
        print(f"the printer is repaired; put back: {count}")
        await work(engine, repaired=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory://"))
