"""Messages out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TypedDict

import msgspec
import pydantic
import pytest

from lockstep import AsyncClient, Subscription, connect_async, new_message
from lockstep.client._async.concurrency import Task
from lockstep.errors import InvalidPayload, InvalidRequest
from support.clock import SetClock

from .support import ended


class Order(msgspec.Struct):
    id: int


@dataclass
class Parcel:
    id: int


class Row(TypedDict):
    id: int


class Invoice(pydantic.BaseModel):
    id: int


@dataclass
class Folder:
    invoice: Invoice | None


async def test_pop_of_nothing_is_empty(client: AsyncClient) -> None:
    delivery = await client.pop("orders")
    assert not delivery
    assert (len(delivery), delivery.lease_id) == (0, None)
    await delivery.ack()


async def test_pop_leases_in_order(client: AsyncClient, clock: SetClock) -> None:
    await client.push_many([new_message("orders", i) for i in range(5)])
    delivery = await client.pop("orders", batch=3, lease_seconds=20)
    assert delivery.payloads() == [0, 1, 2]
    assert delivery.expires_at == clock.ahead(20)
    assert (delivery[0].seq, [message.seq for message in delivery[1:]]) == (1, [2, 3])
    assert not await client.pop("orders")


async def test_pop_of_one_partition_and_of_several(client: AsyncClient) -> None:
    await client.push_many([new_message("orders", i, partition=f"p{i}") for i in range(4)])
    assert (await client.pop("orders", partition="p2")).payloads() == [2]
    assert sorted((await client.pop("orders", batch=10, partitions=10)).payloads()) == [0, 1, 3]


async def test_pop_may_wait_for_ever(server_url: str) -> None:
    for url in ("memory://", server_url):
        async with connect_async(url) as client:
            await client.push("orders", 1)
            assert (await client.pop("orders", wait=True, timeout_seconds=inf)).payloads() == [1]


async def test_pop_of_a_namespace(client: AsyncClient) -> None:
    await client.push("shop.orders", 1)
    await client.push("shop.bills", 2)
    await client.push("other.orders", 3)
    delivery = await client.pop(namespace="shop", batch=10, partitions=10)
    assert sorted((message.queue, message.payload) for message in delivery) == [("shop.bills", 2), ("shop.orders", 1)]
    assert [message.queue for message in await client.pop(task="orders", batch=10, partitions=10)] == ["other.orders"]


async def test_pop_without_a_place_is_refused(client: AsyncClient) -> None:
    with pytest.raises(InvalidRequest):
        await client.pop()
    with pytest.raises(InvalidRequest, match="batch"):
        await client.pop("orders", batch=0)


@pytest.mark.parametrize("name", ["a/b", "..", ".", "ü %2F?#&+", "a b", "%"])
async def test_any_name_finds_its_way(client: AsyncClient, name: str) -> None:
    await client.push(name, 1, partition=name)
    [message] = await client.pop(name, partition=name, group=name)
    assert (message.queue, message.partition) == (name, name)


async def test_waiting_pop_is_woken_by_a_push(client: AsyncClient) -> None:
    pushing = Task(partial(client.push, "orders", 1), name="test-push")
    delivery = await client.pop("orders", wait=True, timeout_seconds=30)
    await ended(pushing)
    assert delivery.payloads() == [1]


async def test_waiting_pop_ends_at_its_timeout(client: AsyncClient) -> None:
    assert not await client.pop("orders", wait=True, timeout_seconds=0.05)


async def test_auto_ack_leaves_nothing_to_say(client: AsyncClient) -> None:
    await client.push_many([new_message("orders", i) for i in range(2)])
    delivery = await client.pop("orders", batch=10, auto_ack=True)
    assert (delivery.payloads(), delivery.lease_id) == ([0, 1], None)
    with pytest.raises(InvalidRequest, match="auto_ack"):
        await delivery.ack()
    with pytest.raises(InvalidRequest, match="auto_ack"):
        await delivery[0].ack()
    [lag] = await client.lag("orders")
    assert lag.lag == 0


async def test_groups_begin_where_they_say(client: AsyncClient, clock: SetClock) -> None:
    await client.push("orders", 1)
    middle = clock.advance(10)
    await client.push("orders", 2)
    clock.advance(10)
    assert not await client.pop("orders", group="new", subscription="new")
    await client.push("orders", 3)
    assert (await client.pop("orders", group="new", batch=10)).payloads() == [3]
    assert (await client.pop("orders", group="time", batch=10, subscription=middle)).payloads() == [2, 3]
    assert (await client.pop("orders", group="all", batch=10)).payloads() == [1, 2, 3]
    beginning = Subscription("from", middle)
    assert (await client.pop("orders", group="record", batch=1, subscription=beginning)).payloads() == [2]
    with pytest.raises(InvalidRequest, match="begins with"):
        await client.pop("orders", group="none", subscription="yesterday")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Order, Parcel, Row, Invoice, dict[str, int]])
async def test_payloads_are_decoded_to_the_type(client: AsyncClient, kind: type) -> None:
    await client.push("orders", {"id": 7})
    [message] = await client.pop("orders", as_type=kind)
    assert message.payload == (kind(id=7) if kind in (Order, Parcel, Invoice) else {"id": 7})
    assert message.payload is message.payload


async def test_models_inside_of_other_types(memory_client: AsyncClient) -> None:
    await memory_client.push("orders", [Folder(Invoice(id=7)), Folder(None)])
    [message] = await memory_client.pop("orders", as_type=list[Folder])
    assert message.payload == [Folder(Invoice(id=7)), Folder(None)]
    await memory_client.push("bills", {"first": {"id": "secret"}})
    [message] = await memory_client.pop("bills", as_type=dict[str, Invoice])
    with pytest.raises(InvalidPayload, match="valid integer") as caught:
        message.payload  # noqa: B018
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [Order, Parcel, Row, Invoice, list[int]])
async def test_payload_of_another_type_is_told_when_it_is_looked_at(client: AsyncClient, kind: type) -> None:
    await client.push("orders", {"name": "x"})
    [message] = await client.pop("orders", as_type=kind)
    with pytest.raises(InvalidPayload, match="the payload is no "):
        message.payload  # noqa: B018
    assert message.raw == b'{"name":"x"}'


@pytest.mark.parametrize("kind", [Order, Parcel, Row, Invoice])
async def test_payload_that_does_not_fit_is_not_part_of_the_error(client: AsyncClient, kind: type) -> None:
    """Errors of consumers are logged, and payloads must not be."""
    await client.push("orders", {"id": "secret"})
    [message] = await client.pop("orders", as_type=kind)
    with pytest.raises(InvalidPayload, match=r"the payload is no .*id") as caught:
        message.payload  # noqa: B018
    assert "secret" not in caught.value.message
    assert "\n" not in caught.value.message


async def test_opaque_payload_has_no_type(client: AsyncClient) -> None:
    await client.push("images", b"\x01", encoding="image/png")
    [message] = await client.pop("images", as_type=Order)
    with pytest.raises(InvalidPayload, match="image/png"):
        message.payload  # noqa: B018


async def test_type_that_cannot_be_decoded_is_refused_at_once(client: AsyncClient) -> None:
    with pytest.raises(InvalidPayload, match="cannot be decoded"):
        await client.pop("orders", as_type=dict[Order, int] | list[int] | set[int])
