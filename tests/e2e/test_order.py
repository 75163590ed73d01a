"""Order and delivery over real sockets, with what can be switched off on and off."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from support.broker import Broker, Json, data

Lanes = dict[str, list[int]]


async def push_lanes(broker: Broker, queue: str, lanes: Lanes, *, call: int) -> None:
    """Every lane in its order, the lanes at random among each other, some messages a call."""
    left = {name: iter(numbers) for name, numbers in lanes.items()}
    names = [name for name, numbers in lanes.items() for _ in numbers]
    random.shuffle(names)
    items = [{"queue": queue, "partition": name, "payload": next(left[name])} for name in names]
    for start in range(0, len(items), call):
        await broker.push(items[start : start + call])


async def consume(broker: Broker, queue: str, seen: Lanes, count: int, **query: object) -> None:
    """Pop and ack until all consumers together have seen so many messages."""
    while sum(map(len, seen.values())) < count:
        popped = await broker.pop(queue, wait="true", timeout=200, **query)
        if popped is not None:
            for message in popped["messages"]:
                seen[message["partition"]].append(message["data"])
            assert all([result["success"] for result in await broker.ack(popped["messages"])])


async def test_ten_workers_keep_every_partition_in_order(any_broker: Broker, queue: str) -> None:
    lanes = {f"p{number}": list(range(30)) for number in range(20)}
    seen: Lanes = defaultdict(list)
    workers = [
        asyncio.create_task(consume(any_broker, queue, seen, 600, batch=1 + number, partitions=1 + number % 3))
        for number in range(10)
    ]
    await push_lanes(any_broker, queue, lanes, call=7)
    await asyncio.gather(*workers)
    assert seen == lanes


async def test_ten_thousand_messages_over_many_partitions(broker: Broker, queue: str) -> None:
    lanes = {f"p{number}": list(range(50)) for number in range(200)}
    seen: Lanes = defaultdict(list)
    workers = [asyncio.create_task(consume(broker, queue, seen, 10_000, batch=200, partitions=20)) for _ in range(4)]
    await push_lanes(broker, queue, lanes, call=500)
    await asyncio.gather(*workers)
    assert seen == lanes


async def test_concurrent_producers_each_keep_their_order(any_broker: Broker, queue: str) -> None:
    async def produce(name: str) -> None:
        for number in range(20):
            await any_broker.push_to(queue, [name, number], partition="shared")

    names = [f"producer-{number}" for number in range(10)]
    await asyncio.gather(*[produce(name) for name in names])
    pushed = data(await any_broker.pop(queue, batch=1000))
    assert len(pushed) == 200
    for name in names:
        assert [number for by, number in pushed if by == name] == list(range(20))


async def test_two_groups_each_see_everything(any_broker: Broker, queue: str) -> None:
    lanes = {f"p{number}": list(range(20)) for number in range(5)}
    seen: dict[str, Lanes] = {group: defaultdict(list) for group in ("billing", "audit")}
    consumers = [
        asyncio.create_task(consume(any_broker, queue, seen[group], 100, consumerGroup=group, batch=7))
        for group in seen
        for _ in range(2)
    ]
    await push_lanes(any_broker, queue, lanes, call=10)
    await asyncio.gather(*consumers)
    assert seen == {"billing": lanes, "audit": lanes}


async def test_expired_lease_is_delivered_again(any_broker: Broker, queue: str) -> None:
    await any_broker.configure(queue, leaseTime=1)
    await any_broker.push_to(queue, 1, 2)
    lost = await any_broker.pop(queue, batch=2)
    assert lost is not None
    found = await any_broker.poll(queue, batch=2)
    assert found is not None
    assert data(found) == data(lost) == [1, 2]
    assert [message["attempt"] for message in found["messages"]] == [2, 2]
    assert not any([result["success"] for result in await any_broker.ack(lost["messages"])])
    assert all([result["success"] for result in await any_broker.ack(found["messages"])])


async def test_requests_for_one_partition_never_both_get_it(any_broker: Broker, queue: str) -> None:
    await any_broker.push_to(queue, *range(10), partition="p")
    path = f"/api/v1/pop/queue/{queue}/partition/p"
    answers = await asyncio.gather(*[any_broker.send("GET", path, batch=2) for _ in range(10)])
    given: list[Json] = [answer for status, answer in answers if status == 200]
    assert [data(answer) for answer in given] == [[0, 1]]


async def test_bad_request_does_not_disturb_its_neighbours(any_broker: Broker, queue: str) -> None:
    await any_broker.configure(queue, maxSize=1)
    await any_broker.push_to(queue, "full")
    other = f"{queue}-other"

    async def refused() -> int:
        body = {"items": [{"queue": queue, "payload": 1}, {"queue": other, "payload": "not this"}]}
        return (await any_broker.send("POST", "/api/v1/push", body=body))[0]

    pushes = [any_broker.push_to(other, number) for number in range(20)]
    *_, status = await asyncio.gather(*pushes, refused())
    assert status == 429
    assert sorted(data(await any_broker.pop(other, batch=100))) == list(range(20))
