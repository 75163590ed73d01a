"""Messages in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import msgspec
import pydantic
import pytest

from lockstep import AsyncClient, Batch, NewMessage, new_message
from lockstep.errors import InvalidName, InvalidPayload, InvalidRequest, QueueFull


class Order(msgspec.Struct):
    id: int


@dataclass
class Parcel:
    order: Order
    weight: float


class Invoice(pydantic.BaseModel):
    total: int


async def test_push_gives_a_receipt(client: AsyncClient) -> None:
    first = await client.push("orders", {"id": 1}, partition="ann")
    second = await client.push("orders", {"id": 2}, partition="ann", transaction_id="two")
    assert (first.queue, first.partition, first.seq, first.status) == ("orders", "ann", 1, "queued")
    assert (second.seq, second.transaction_id, second.index) == (2, "two", 0)
    assert (await client.message(second.message_id)).message.payload == b'{"id":2}'


async def test_every_field_comes_back(client: AsyncClient) -> None:
    trace_id = str(uuid4())
    await client.push(
        "orders",
        [1, "é", None],
        partition="p",
        transaction_id="t-1",
        trace_id=trace_id,
        kind="order",
        reference="4711",
        headers={"source": "shop", "a": "ü"},
    )
    [message] = await client.pop("orders")
    assert (message.payload, message.partition, message.transaction_id) == ([1, "é", None], "p", "t-1")
    assert (message.trace_id, message.kind, message.reference) == (trace_id, "order", "4711")
    assert message.headers == {"source": "shop", "a": "ü"}
    assert (message.queue, message.seq, message.attempt, message.encoding) == ("orders", 1, 1, None)
    assert [found.id for found in await client.trace(trace_id)] == [message.id]


async def test_bytes_come_back_as_they_were(client: AsyncClient) -> None:
    await client.push("images", b"\x89PNG\x00\xff", encoding="image/png")
    [message] = await client.pop("images")
    assert (message.payload, message.raw, message.encoding) == (b"\x89PNG\x00\xff", b"\x89PNG\x00\xff", "image/png")


async def test_typed_payloads_become_json(client: AsyncClient) -> None:
    for payload in (Order(1), Parcel(Order(2), 0.5), Invoice(total=3), {"invoices": [Invoice(total=4)]}, "text", None):
        await client.push("mixed", payload)
    raw = [message.raw for message in await client.pop("mixed", batch=10)]
    assert raw == [
        b'{"id":1}',
        b'{"order":{"id":2},"weight":0.5}',
        b'{"total":3}',
        b'{"invoices":[{"total":4}]}',
        b'"text"',
        b"null",
    ]


async def test_push_many_keeps_the_order_of_the_input(client: AsyncClient) -> None:
    messages = [new_message("orders", i, partition=f"p{i % 3}") for i in range(9)]
    receipts = await client.push_many(messages)
    assert [(receipt.partition, receipt.seq) for receipt in receipts] == [(f"p{i % 3}", i // 3 + 1) for i in range(9)]
    assert [receipt.index for receipt in receipts] == list(range(9))


async def test_push_many_takes_batches(client: AsyncClient) -> None:
    batches = [
        Batch.of("orders", [b"1", b"2"], partition="a", kinds=["x", None], headers=[None, b'{"h":"1"}']),
        Batch.of("orders", [b"3"], partition="b"),
    ]
    receipts = await client.push_many(batches)
    assert [(receipt.partition, receipt.seq) for receipt in receipts] == [("a", 1), ("a", 2), ("b", 1)]
    messages = await client.pop("orders", partition="a", batch=2)
    assert [(message.payload, message.kind, message.headers) for message in messages] == [
        (1, "x", {}),
        (2, None, {"h": "1"}),
    ]


async def test_push_of_nothing_is_nothing(client: AsyncClient) -> None:
    assert list(await client.push_many([])) == []
    assert await client.queues() == []


async def test_second_push_with_a_transaction_id_is_a_duplicate(client: AsyncClient) -> None:
    first = await client.push("orders", 1, transaction_id="same")
    second = await client.push("orders", 2, transaction_id="same")
    assert (second.status, second.message_id, second.seq) == ("duplicate", first.message_id, first.seq)
    assert (await client.queue("orders")).messages == 1


async def test_full_queue_is_told_with_its_depth(client: AsyncClient) -> None:
    await client.configure("small", max_size=2)
    receipt = await client.push("small", 1)
    assert (receipt.depth, receipt.remaining) == (1, 1)
    await client.push("small", 2)
    with pytest.raises(QueueFull) as caught:
        await client.push("small", 3)
    assert (caught.value.details["queue"], caught.value.details["max_size"]) == ("small", 2)


class Measured(pydantic.BaseModel):
    at: float
    by: str | None = None


@pytest.mark.parametrize(
    "payload",
    [
        math.nan,
        {"reading": [1.5, {"at": math.inf}], "by": None},
        Parcel(Order(1), -math.inf),
        Measured(at=math.nan),
        [Measured(at=math.inf)],
    ],
)
async def test_number_that_json_does_not_have_is_refused_instead_of_lost(client: AsyncClient, payload: object) -> None:
    with pytest.raises(InvalidPayload, match="NaN"):
        await client.push("orders", payload)
    assert await client.queues() == []


async def test_nulls_are_no_numbers_that_json_does_not_have(client: AsyncClient) -> None:
    typed = {"by": None, "on": datetime(2026, 1, 2, tzinfo=UTC), "as": {1, 2}}
    for payload in (None, typed, "null", Measured(at=1.5), [msgspec.Raw(b"null")]):
        await client.push("orders", payload)
    assert (await client.queue("orders")).messages == 5


async def test_bad_input_is_refused_and_stores_nothing(client: AsyncClient) -> None:
    with pytest.raises(InvalidPayload, match="needs an encoding"):
        await client.push("orders", b"bytes")
    with pytest.raises(InvalidPayload, match="must be bytes, not dict"):
        await client.push("orders", {}, encoding="text/plain")
    with pytest.raises(InvalidPayload, match="cannot be encoded"):
        await client.push("orders", object())
    with pytest.raises(InvalidName):
        await client.push("", 1)
    with pytest.raises(InvalidRequest, match="trace id"):
        await client.push_many([new_message("orders", 1), new_message("orders", 1, trace_id="none")])
    assert await client.queues() == []


async def test_message_built_by_hand_is_already_encoded(client: AsyncClient) -> None:
    await client.push_many([NewMessage(queue="orders", payload=b'{"id": 1}')])
    [message] = await client.pop("orders")
    assert (message.raw, message.payload) == (b'{"id": 1}', {"id": 1})
