"""A shop in FastAPI: an order and the message about it are one transaction.

DATABASE_URL=postgresql://… uvicorn --app-dir examples/fastapi-outbox app:app
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import psycopg
from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel

import lockstep
from lockstep import NewMessage

DATABASE_URL = os.environ["DATABASE_URL"]
TABLES = """
create table if not exists stock (item text primary key, pieces int not null check (pieces >= 0));
create table if not exists purchase (id bigserial primary key, item text not null, customer text not null);
insert into stock values ('lamp', 2), ('table', 1) on conflict do nothing;
"""


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with lockstep.open_engine(DATABASE_URL):  # creates or upgrades Lockstep's tables
        pass
    async with await psycopg.AsyncConnection.connect(DATABASE_URL) as connection:
        await connection.execute(TABLES)
    yield


async def transaction() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection that commits when the endpoint returns, and rolls back when it raises. Yours comes from a pool."""
    async with await psycopg.AsyncConnection.connect(DATABASE_URL) as connection:
        yield connection


# The scope makes the commit happen before the answer is sent: a customer who reads "created" has an order.
Transaction = Annotated[psycopg.AsyncConnection[Any], Depends(transaction, scope="function")]
app = FastAPI(lifespan=lifespan)


class Order(BaseModel):
    item: str
    customer: str


@app.post("/orders", status_code=201)
async def order(order: Order, connection: Transaction) -> dict[str, int]:
    cursor = await connection.execute(
        "insert into purchase (item, customer) values (%s, %s) returning id", [order.item, order.customer]
    )
    row = await cursor.fetchone()
    assert row is not None
    payload = json.dumps({"order": row[0], "item": order.item}).encode()
    message = NewMessage(queue="orders", partition=order.customer, payload=payload)
    await lockstep.push_within_async(connection, [message])
    # Whatever fails from here on takes the order and its message with it.
    taken = await connection.execute(
        "update stock set pieces = pieces - 1 where item = %s and pieces > 0", [order.item]
    )
    if taken.rowcount == 0:
        raise HTTPException(409, f"there is no {order.item} left")
    return {"order": row[0]}
