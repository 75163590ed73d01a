"""The public Python client of the protocol, `queen-mq`, which nobody here wrote, against a running server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest
import pytest_asyncio
from queen import Queen

from support.broker import Broker
from support.server import ServerProcess
from support.until import until

GROUP = "workers"
POLL_MS = 500
"""How long a consumer's polls wait, and so how long it may take to stop."""


@pytest_asyncio.fixture
async def queen(server: ServerProcess) -> AsyncIterator[Queen]:
    async with Queen(server.url) as queen:
        yield queen


def items(*payloads: object) -> list[dict[str, Any]]:
    return [{"data": payload} for payload in payloads]


def data(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["data"] for message in messages]


@asynccontextmanager
async def consuming(builder: Any, handler: Any) -> AsyncIterator[None]:
    """A consumer that runs for the length of a block."""
    stop = asyncio.Event()

    async def run() -> None:
        await builder.timeout_millis(POLL_MS).consume(handler, signal=stop)

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        stop.set()
        await running


# Push


async def test_pushed_messages_come_back_in_order(queen: Queen, queue: str) -> None:
    await queen.queue(queue).create()
    receipts = await queen.queue(queue).partition("p").push(items({"n": 1}, [2, None], "drei"))
    messages = await queen.queue(queue).batch(10).pop()
    assert data(messages) == [{"n": 1}, [2, None], "drei"]
    assert [message["id"] for message in messages] == [receipt["message_id"] for receipt in receipts]
    assert {message["partition"] for message in messages} == {"p"}


async def test_buffered_pushes_come_in_order(queen: Queen, queue: str) -> None:
    for number in range(250):
        buffered = await queen.queue(queue).buffer({"message_count": 100, "time_millis": 60_000}).push(items(number))
        assert buffered["buffered"]
    await queen.flush_all_buffers()
    assert data(await queen.queue(queue).batch(1000).pop()) == list(range(250))


async def test_repeated_transaction_id_is_a_duplicate(queen: Queen, queue: str) -> None:
    told: dict[str, list[str]] = {}

    async def fresh(pushed: list[dict[str, Any]]) -> None:
        told["fresh"] = [item["transactionId"] for item in pushed]

    async def duplicate(pushed: list[dict[str, Any]], _: Exception) -> None:
        told["duplicate"] = [item["transactionId"] for item in pushed]

    await queen.queue(queue).push([{"transactionId": "order-1", "data": 1}])
    again = [{"transactionId": "order-1", "data": 1}, {"transactionId": "order-2", "data": 2}]
    await queen.queue(queue).push(again).on_duplicate(duplicate).on_success(fresh)
    assert told == {"duplicate": ["order-1"], "fresh": ["order-2"]}
    assert data(await queen.queue(queue).batch(10).pop()) == [1, 2]


async def test_refused_push_says_why(queen: Queen, queue: str) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="at most 255 are allowed") as refused:
        await queen.queue(queue).push([{"transactionId": "x" * 300, "data": 1}])
    assert refused.value.response.status_code == 400


async def test_push_to_a_full_queue_is_repeated_until_there_is_room(queen: Queen, broker: Broker, queue: str) -> None:
    await queen.queue(queue).config({"maxSize": 1}).create()
    await queen.queue(queue).push(items(1))
    [first] = await queen.queue(queue).batch(1).pop()

    async def push() -> None:
        await queen.queue(queue).push(items(2))

    refused = (await broker.worker())["clientErrors"]
    pushing = asyncio.create_task(push())
    await broker.wait_for(lambda worker: worker["clientErrors"] > refused)
    await queen.ack(first)
    await pushing
    assert data(await queen.queue(queue).pop()) == [2]


# Pop


async def test_nothing_to_pop(queen: Queen, queue: str) -> None:
    assert await queen.queue(queue).wait(False).pop() == []
    await queen.queue(queue).create()
    assert await queen.queue(queue).wait(False).pop() == []
    assert await queen.queue(queue).wait(True).timeout_millis(50).pop() == []


async def test_pop_waits_for_a_push(queen: Queen, broker: Broker, queue: str) -> None:
    waiting = asyncio.create_task(queen.queue(queue).wait(True).pop())
    await broker.wait_for_polls(1)
    await queen.queue(queue).push(items("came later"))
    assert data(await waiting) == ["came later"]


async def test_pop_takes_many_partitions_under_one_lease(queen: Queen, queue: str) -> None:
    for name in ("a", "b", "c", "d"):
        await queen.queue(queue).partition(name).push(items(f"{name}1", f"{name}2"))
    messages = await queen.queue(queue).batch(5).partitions(3).pop()
    assert len(messages) == 5
    assert len({message["partition"] for message in messages}) == 3
    assert len({message["leaseId"] for message in messages}) == 1
    assert (await queen.renew(messages[0]))["renewed"] == 3


async def test_server_sizes_a_pop_that_names_no_sizes(queen: Queen, queue: str) -> None:
    for name in ("a", "b"):
        await queen.queue(queue).partition(name).push(items(1, 2))
    assert data((await queen.queue(queue).pop_result()).messages) == [1, 2, 1, 2]


async def test_pop_without_autopilot_takes_one(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(items(1, 2))
    assert data(await queen.queue(queue).autopilot(False).pop()) == [1]


@pytest.mark.parametrize("name", ["with space", "eu/orders", "50%", "größe", "a.b:c,d"])
async def test_partition_is_popped_by_its_name(queen: Queen, queue: str, name: str) -> None:
    await queen.queue(queue).partition("other").push(items(0))
    await queen.queue(queue).partition(name).push(items(1))
    messages = await queen.queue(queue).partition(name).batch(10).wait(False).pop()
    assert [(message["partition"], message["data"]) for message in messages] == [(name, 1)]


async def test_pop_of_a_namespace(queen: Queen, queue: str) -> None:
    for name in ("x", "y"):
        await queen.queue(f"{queue}.{name}").create()
        await queen.queue(f"{queue}.{name}").push(items(name))
    messages = await queen.queue().namespace(queue).batch(10).partitions(10).pop()
    assert sorted(data(messages)) == ["x", "y"]
    await queen.ack(messages)
    await queen.queue(f"{queue}.y").push(items("again"))
    assert data(await queen.queue().namespace(queue).task("x").wait(False).pop()) == []
    assert data(await queen.queue().namespace(queue).task("y").wait(False).pop()) == ["again"]


async def test_commit_on_delivery_leaves_no_lease(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(items(1, 2))
    for number in (1, 2):
        [message] = await queen.queue(queue).batch(1).commit_on_delivery().wait(False).pop()
        assert (message["data"], message["leaseId"]) == (number, "")
    assert await queen.queue(queue).wait(False).pop() == []


async def test_client_that_asks_for_frames_reads_plain_answers(server: ServerProcess, queue: str) -> None:
    async with Queen(url=server.url, framed_pop=True) as queen:
        await queen.queue(queue).push(items(1, 2))
        assert data(await queen.queue(queue).batch(2).pop()) == [1, 2]


# Ack, retries and dead letters


async def test_failed_message_comes_again_at_once(queen: Queen, queue: str) -> None:
    """The client always sends the default of retryDelay, so that one means no delay."""
    await queen.queue(queue).create()
    await queen.queue(queue).push(items(1, 2))
    first = await queen.queue(queue).batch(2).pop()
    assert (await queen.ack(first[0], False, {"error": "not now"}))["success"]
    assert data(await queen.queue(queue).batch(2).wait(False).pop()) == [1, 2]


async def test_ack_under_a_lost_lease_is_refused(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(items(1))
    [lost] = await queen.queue(queue).pop()
    await queen.ack(lost, "retry")
    [held] = await queen.queue(queue).pop()
    refused = await queen.ack(lost)
    assert not refused["success"]
    assert "lease" in refused["error"]
    assert (await queen.ack(held))["success"]


async def test_exhausted_message_is_a_dead_letter(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"retryLimit": 2, "dlqAfterMaxRetries": True}).create()
    await queen.queue(queue).partition("p").push(items("poison", "food"))
    tried: list[str] = []

    async def handle(message: dict[str, Any]) -> None:
        tried.append(message["data"])
        if message["data"] == "poison":
            raise ValueError("cannot digest this")

    async with consuming(queen.queue(queue).group(GROUP).batch(1).each(), handle):
        await until(lambda: "food" in tried)
    assert tried == ["poison"] * 3 + ["food"]
    dead = await queen.queue(queue).dlq(GROUP).limit(10).get()
    assert dead["total"] == 1
    [letter] = dead["messages"]
    assert (letter["data"], letter["partition"], letter["consumerGroup"]) == ("poison", "p", GROUP)
    assert "cannot digest this" in letter["errorMessage"]


async def test_message_can_be_sent_to_the_dead_letters(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(items(1, 2))
    first = await queen.queue(queue).group(GROUP).batch(2).pop()
    assert (await queen.ack(first[0], "dlq", {"group": GROUP, "error": "useless"}))["success"]
    letters = (await queen.queue(queue).dlq().get())["messages"]
    assert [(letter["data"], letter["errorMessage"]) for letter in letters] == [(1, "useless")]
    assert data(await queen.queue(queue).group(GROUP).wait(False).pop()) == [2]


# Leases


async def test_renewal_moves_the_deadline_until_the_lease_is_over(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(items(1))
    [message] = await queen.queue(queue).pop()
    first, second = await queen.renew(message), await queen.renew(message)
    assert first["success"]
    assert second["success"]
    assert datetime.fromisoformat(second["newExpiresAt"]) > datetime.fromisoformat(first["newExpiresAt"])
    await queen.ack(message)
    assert not (await queen.renew(message))["success"]


async def test_consumer_keeps_its_lease_as_long_as_it_works(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"leaseTime": 2}).create()
    await queen.queue(queue).push(items(1))
    handled: list[int] = []

    async def handle(message: dict[str, Any]) -> None:
        handled.append(message["attempt"])
        identity = message["partitionId"], message["transactionId"]
        begin = (await queen.admin.get_message(*identity))["leaseExpiresAt"]
        while (await queen.admin.get_message(*identity))["leaseExpiresAt"] == begin:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        handled.append(0)

    builder = queen.queue(queue).batch(1).renew_lease(True, 100)
    async with consuming(builder, handle):
        await until(lambda: handled[1:])
    assert handled == [1, 0]
    assert await queen.queue(queue).wait(False).pop() == []


async def test_message_of_an_expired_lease_comes_again(queen: Queen, queue: str) -> None:
    await queen.queue(queue).config({"leaseTime": 1}).create()
    await queen.queue(queue).push(items(1))
    [lost] = await queen.queue(queue).pop()
    [found] = await queen.queue(queue).wait(True).pop()
    assert (found["data"], found["attempt"]) == (1, 2)
    assert not (await queen.ack(lost))["success"]
    assert (await queen.ack(found))["success"]


# Consumers and groups


async def test_several_workers_keep_every_partition_in_order(queen: Queen, queue: str) -> None:
    lanes = {f"p{number}": list(range(20)) for number in range(8)}
    for name, numbers in lanes.items():
        await queen.queue(queue).partition(name).push(items(*numbers))
    handled: dict[str, list[int]] = defaultdict(list)

    async def handle(messages: list[dict[str, Any]]) -> None:
        for message in messages:
            await asyncio.sleep(0)
            handled[message["partition"]].append(message["data"])

    async with consuming(queen.queue(queue).group(GROUP).concurrency(4).batch(3).partitions(1), handle):
        await until(lambda: sum(map(len, handled.values())) >= 160)
    assert handled == lanes


async def test_batch_whose_handler_fails_comes_again(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(items(1, 2, 3))
    handled: list[list[int]] = []

    async def handle(messages: list[dict[str, Any]]) -> None:
        handled.append(data(messages))
        if len(handled) == 1:
            raise ValueError("once")

    async with consuming(queen.queue(queue).batch(3), handle):
        await until(lambda: len(handled) == 2)
    assert handled == [[1, 2, 3], [1, 2, 3]]


async def test_every_group_sees_everything(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(items(1, 2, 3))
    for group in ("billing", "audit"):
        messages = await queen.queue(queue).group(group).batch(10).pop()
        assert data(messages) == [1, 2, 3]
        assert (await queen.ack(messages, True, {"group": group}))["success"]
    assert data(await queen.queue(queue).batch(10).pop()) == [1, 2, 3]


async def test_group_begins_where_its_subscription_says(queen: Queen, queue: str) -> None:
    async def pop(group: str, **subscription: str) -> list[Any]:
        builder = queen.queue(queue).group(group)
        for name, value in subscription.items():
            builder = getattr(builder, name)(value)
        return data(await builder.batch(10).wait(False).pop())

    await queen.queue(queue).push(items("old"))
    [old] = await queen.queue(queue).group("reader").pop()
    assert await pop("new", subscription_mode="new") == []
    assert await pop("new-only", subscription_mode="new-only") == []
    assert await pop("now", subscription_from="now") == []
    await queen.queue(queue).push(items("young"))
    assert await pop("new", subscription_mode="new") == ["young"]
    assert await pop("new-only") == ["young"]
    assert await pop("now", subscription_from="now") == ["young"]
    assert await pop("from", subscription_from=old["createdAt"]) == ["old", "young"]
    assert await pop("future", subscription_from="2999-01-01T00:00:00.000Z") == []
    assert await pop("all", subscription_mode="all") == ["old", "young"]
    assert await pop("whatever", subscription_mode="whatever") == ["old", "young"]


async def test_group_is_moved_and_deleted(queen: Queen, queue: str) -> None:
    group = f"group-of-{queue}"

    async def pop() -> list[Any]:
        return data(await queen.queue(queue).group(group).batch(10).wait(False).pop())

    await queen.queue(queue).push(items(1, 2))
    assert await pop() == [1, 2]
    assert (await queen.admin.seek_consumer_group(group, queue, {"toEnd": True}))["success"]
    assert await pop() == []
    assert (await queen.admin.seek_consumer_group(group, queue, {"timestamp": "2020-01-01T00:00:00Z"}))["success"]
    assert await pop() == [1, 2]
    assert (await queen.delete_consumer_group(group))["success"]
    assert await pop() == [1, 2]


# Transactions


async def test_transaction_moves_messages_on(queen: Queen, queue: str) -> None:
    output = f"{queue}-out"
    await queen.queue(queue).push(items(1, 2))
    messages = await queen.queue(queue).batch(2).pop()
    moving = queen.transaction().ack(messages).queue(output).push(items("moved"))
    result = await moving.queue(output).partition("p").push(items("moved, too")).commit()
    assert result["success"]
    assert [step["type"] for step in result["results"]] == ["ack", "ack", "push", "push"]
    assert await queen.queue(queue).wait(False).pop() == []
    moved = await queen.queue(output).batch(10).partitions(10).pop()
    assert sorted(data(moved)) == ["moved", "moved, too"]


async def test_transaction_over_the_leases_of_two_groups(queen: Queen, queue: str) -> None:
    other = f"{queue}-other"
    for name in (queue, other):
        await queen.queue(name).push(items(name))
    one = await queen.queue(queue).group("one").pop()
    two = await queen.queue(other).group("two").pop()
    both = queen.transaction().ack(one, "completed", {"consumer_group": "one"})
    assert (await both.ack(two, "completed", {"consumer_group": "two"}).commit())["success"]
    for name, group in ((queue, "one"), (other, "two")):
        assert await queen.queue(name).group(group).wait(False).pop() == []


async def test_transaction_under_a_lost_lease_changes_nothing(queen: Queen, queue: str) -> None:
    output = f"{queue}-out"
    for name in ("a", "b"):
        await queen.queue(queue).partition(name).push(items(name))
    kept = await queen.queue(queue).partitions(1).pop()
    lost = await queen.queue(queue).partitions(1).pop()
    await queen.ack(lost, "retry")
    with pytest.raises(Exception, match="transaction rolled back"):
        await queen.transaction().ack(kept).ack(lost).queue(output).push(items("moved")).commit()
    assert await queen.queue(output).wait(False).pop() == []
    assert (await queen.renew(kept))[0]["success"]
    assert data(await queen.queue(queue).wait(False).pop()) == data(lost)


# Traces and looking around


async def test_traces_are_found_by_name_and_by_message(queen: Queen, queue: str) -> None:
    name = f"order of {queue}"
    await queen.queue(queue).push(items({"order": 1}))
    seen: list[dict[str, Any]] = []

    async def handle(message: dict[str, Any]) -> None:
        await message["trace"]({"traceName": name, "eventType": "step", "data": {"text": "begun"}})
        await message["trace"]({"traceName": [name, f"{name} (2)"], "data": {"text": "done"}})
        seen.append(message)

    async with consuming(queen.queue(queue).group(GROUP).batch(1), handle):
        await until(lambda: seen)
    traces = (await queen.admin.get_traces_by_name(name))["traces"]
    assert sorted((trace["event_type"], trace["data"]["text"]) for trace in traces) == [
        ("info", "done"),
        ("step", "begun"),
    ]
    assert {trace["message_payload"]["order"] for trace in traces} == {1}
    identity = seen[0]["partitionId"], seen[0]["transactionId"]
    of_message = (await queen.admin.get_traces_for_message(*identity))["traces"]
    assert [trace["data"]["text"] for trace in of_message] == ["begun", "done"]
    names = {row["trace_name"]: row["trace_count"] for row in (await queen.admin.get_trace_names())["trace_names"]}
    assert (names[name], names[f"{name} (2)"]) == (2, 1)


async def test_admin_calls_are_answered(queen: Queen, queue: str) -> None:
    await queen.queue(queue).push(items(1))
    [message] = await queen.queue(queue).group(GROUP).pop()
    admin = queen.admin
    assert (await admin.health())["status"] == "healthy"
    assert (await admin.get_queue(queue))["name"] == queue
    assert queue in [one["name"] for one in (await admin.list_queues())["queues"]]
    assert (await admin.get_queue_depth(queue, GROUP))["pending"] == 1
    assert (await admin.get_message(message["partitionId"], message["transactionId"]))["payload"] == 1
    assert [one["id"] for one in (await admin.list_messages(queue=queue))["messages"]] == [message["id"]]
    assert (GROUP, queue) in [(one["name"], one["queueName"]) for one in await admin.list_consumer_groups()]
    assert queue in await admin.get_consumer_group(GROUP)
    assert (await admin.refresh_consumer_stats())["success"]
    for call in (
        admin.get_overview,
        admin.get_namespaces,
        admin.get_tasks,
        admin.get_partitions,
        admin.get_status,
        admin.get_queue_stats,
        admin.get_analytics,
        admin.get_system_metrics,
        admin.get_worker_metrics,
        admin.get_lagging_consumers,
        admin.metrics,
    ):
        assert await call() is not None
    assert (await queen.queue(queue).delete())["existed"]
    assert queue not in [one["name"] for one in (await admin.list_queues())["queues"]]


async def test_admin_calls_for_names_with_slashes(queen: Queen, queue: str) -> None:
    """The client leaves slashes as they are."""
    admin, name, group = queen.admin, f"{queue}/eu", f"{queue}/workers"
    await queen.queue(name).push([{"transactionId": "order/1", "data": 1}])
    [message] = await queen.queue(name).group(group).pop()
    identity = message["partitionId"], "order/1"
    assert (await admin.get_queue(name))["name"] == name
    assert (await admin.get_queue_depth(name, group))["pending"] == 1
    assert (await admin.get_queue_detail(name))["queue"]["name"] == name
    assert (await admin.get_message(*identity))["payload"] == 1
    assert (await admin.get_traces_for_message(*identity))["traces"] == []
    assert (await admin.get_traces_by_name(name))["total"] == 0
    assert name in await admin.get_consumer_group(group)
    assert (await queen.update_consumer_group_timestamp(group, "2020-01-01T00:00:00Z"))["rowsUpdated"] == 1
    assert (await admin.seek_consumer_group(group, name, {"toEnd": True}))["partitionsUpdated"] == 1
    assert (await admin.delete_consumer_group_for_queue(group, name))["deletedPartitions"] == 1
    assert (await queen.queue(name).delete())["existed"]
