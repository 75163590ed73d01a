"""A message that exists if and only if a row of yours does: pushed in the transaction that writes the row.

python examples/outbox.py [postgresql://…]       without an address, on an embedded PostgreSQL that goes afterwards
"""

import asyncio
import json
import sys
import tempfile

import psycopg

import lockstep
from lockstep import NewMessage, PopRequest
from lockstep.storage.postgres.embedded import EmbeddedPostgres

QUEUE = "example.sales"


def sell(connection: psycopg.Connection, item: str) -> None:
    """Write the sale and tell the others about it; whoever calls commits, or does not."""
    connection.execute("insert into example_sale (item) values (%s)", [item])
    payload = json.dumps({"sold": item}).encode()
    lockstep.push_within(connection, [NewMessage(queue=QUEUE, partition=item, payload=payload)])


def sell_things(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        sell(connection, "lamp")
    print("sold a lamp, and committed")

    try:
        with psycopg.connect(dsn) as connection:
            sell(connection, "chair")
            raise RuntimeError("the card was refused")
    except RuntimeError as error:
        print(f"sold a chair, but {error}: rolled back")

    with psycopg.connect(dsn) as connection:
        connection.execute("insert into example_sale (item) values ('table')")
        connection.execute("select lockstep.push(%s, 'table', '{\"sold\": \"table\"}')", [QUEUE])
    print("sold a table, and pushed its message in SQL")


async def main(dsn: str) -> None:
    async with lockstep.open_engine(dsn) as engine:  # creates Lockstep's tables, the first time
        await engine.delete_queue(QUEUE)  # what an earlier run left
        with psycopg.connect(dsn) as connection:
            connection.execute("create table if not exists example_sale (item text)")
        sell_things(dsn)

        [popped] = await engine.pop([PopRequest(queue=QUEUE, batch=10, partitions=10, auto_ack=True)])
        with psycopg.connect(dsn) as connection:
            rows = connection.execute("select item from example_sale order by item").fetchall()
            connection.execute("drop table example_sale")
    print("rows:", ", ".join(item for (item,) in rows))
    print("messages:", ", ".join(sorted(message.json()["sold"] for message in popped.messages())))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="lockstep-") as directory, EmbeddedPostgres(directory) as server:
            asyncio.run(main(server.dsn))
