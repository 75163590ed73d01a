"""What is wrong is refused in the same way wherever it goes: nothing is lost or twisted on its way to a server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import Any, cast
from uuid import uuid4

import pytest

from lockstep import Ack, AsyncClient, Batch, Columns, NewMessage, Renewal, Subscription, new_message
from lockstep.errors import InvalidName, InvalidPayload, InvalidRequest, LockstepError, TransactionRolledBack

NAIVE = datetime(2026, 5, 1)  # noqa: DTZ001
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


async def refusal(verb: Callable[..., Any], *arguments: Any, **named: Any) -> LockstepError:
    with pytest.raises(LockstepError) as caught:
        await verb(*arguments, **named)
    return caught.value


BAD_PUSHES: list[tuple[dict[str, Any], type[LockstepError]]] = [
    ({"queue": ""}, InvalidName),
    ({"queue": "\ud800"}, InvalidName),
    ({"queue": 5}, InvalidName),
    ({"partition": None}, InvalidName),
    ({"kind": "\ud800"}, InvalidRequest),
    ({"headers": {5: "x"}}, InvalidRequest),
    ({"headers": ["x"]}, InvalidRequest),
    ({"expires_at": NAIVE}, InvalidRequest),
    ({"expires_at": "tomorrow"}, InvalidRequest),
    ({"expire_seconds": nan}, InvalidRequest),
    ({"deliver_at": "tomorrow"}, InvalidRequest),
    ({"deliver_at": LAST}, InvalidRequest),
    ({"delay_seconds": nan}, InvalidRequest),
    ({"delay_seconds": inf}, InvalidRequest),
]


async def test_bad_pushes(client: AsyncClient) -> None:
    for arguments, kind in BAD_PUSHES:
        error = await refusal(client.push, **{"queue": "orders", "payload": 1, **arguments})
        assert isinstance(error, kind), (arguments, error)
    assert await client.queues() == []


async def test_dead_letters_are_not_taken_by_mistake(client: AsyncClient) -> None:
    await client.push("orders", 1)
    await (await client.pop("orders")).dead()
    for verb in (client.redrive, client.purge):
        assert "all=True" in (await refusal(verb)).message
    assert (await client.dead_letters()).total == 1
    assert await client.redrive(all=True) == 1
    assert await client.purge(queue="orders") == 0
    assert await client.purge(all=True) == 0


async def test_options_without_effect_are_refused(client: AsyncClient) -> None:
    await client.push("orders", 1)
    assert "wait=True" in (await refusal(client.pop, "orders", timeout_seconds=5)).message
    assert "from_at" in (await refusal(client.messages, "orders", from_at=LAST, to_at=FIRST)).message
    assert "from_at" in (await refusal(client.dead_letters, from_at=LAST, to_at=FIRST)).message


BAD_MESSAGES: list[tuple[Any, type[LockstepError]]] = [
    (NewMessage(queue="orders", payload=b"{"), InvalidPayload),
    (NewMessage(queue="orders", payload=b""), InvalidPayload),
    (NewMessage(queue="orders", payload=b'1},{"queue":"other"'), InvalidPayload),
    (NewMessage(queue="orders", payload=b"\xff"), InvalidPayload),
    (NewMessage(queue="orders", payload=b"[" * 10_000 + b"]" * 10_000), InvalidPayload),
    (NewMessage(queue="orders", payload=cast(bytes, "1")), InvalidRequest),
    (NewMessage(queue="orders", payload=cast(bytes, None)), InvalidRequest),
    (Batch("orders", "p", Columns([b"1", b"{"])), InvalidPayload),
    (Batch("orders", "p", Columns([b"\x00", b"{"], encodings=["png", None])), InvalidPayload),
    (Batch("orders", "p", Columns([b"1", b"2"], kinds=["a"])), InvalidRequest),
    (Batch("orders", "p", cast(Columns, 5)), InvalidRequest),
    (Batch("orders", "p", Columns([b"1"], headers=[b'{"a":"b"},"kind":"x"'])), InvalidRequest),
    (Batch("orders", "p", Columns([b"1"], expires_at=[NAIVE])), InvalidRequest),
    (Batch("orders", "p", Columns([b"1"], expires_at=[timedelta(seconds=-1)])), InvalidRequest),
    (Batch("orders", "p", Columns([b"1"], expires_at=[timedelta.max])), InvalidRequest),
    (5, InvalidRequest),
]


async def test_bad_messages(client: AsyncClient) -> None:
    for message, kind in BAD_MESSAGES:
        error = await refusal(client.push_many, [message])
        assert isinstance(error, kind), (message, error)
    good: list[Any] = [Batch("orders", "p", Columns([b"1"])), NewMessage(queue="orders", payload=b"1")]
    for wrong in (good, iter(good[:1]), good[1]):
        assert isinstance(await refusal(client.push_many, wrong), InvalidRequest), wrong
    assert await client.queues() == []


async def test_bad_dead_letter_ids(client: AsyncClient) -> None:
    for ids in (5, "5", ["5"], [0], {1}):
        for verb in (client.dead_letters, client.redrive, client.purge):
            assert isinstance(await refusal(verb, ids=ids), InvalidRequest), (verb, ids)


async def test_payload_with_an_encoding_may_be_anything(client: AsyncClient) -> None:
    await client.push_many([Batch("orders", "p", Columns([b"{", b"2"], encodings=["text", None]))])
    assert (await client.pop("orders", batch=2)).payloads() == [b"{", 2]


BAD_POPS: list[tuple[dict[str, Any], type[LockstepError]]] = [
    ({"queue": ""}, InvalidName),
    ({"queue": "\ud800"}, InvalidName),
    ({"queue": 5}, InvalidName),
    ({"queue": "orders", "partition": ""}, InvalidName),
    ({"queue": "orders", "partition": "\ud800"}, InvalidName),
    ({"queue": "orders", "group": ""}, InvalidName),
    ({"queue": "orders", "group": None}, InvalidName),
    ({"queue": "orders", "namespace": "shop"}, InvalidRequest),
    ({"namespace": "shop", "partition": "p"}, InvalidRequest),
    ({"namespace": 5}, InvalidName),
    ({"task": 5}, InvalidName),
    ({"queue": "orders", "auto_ack": "no"}, InvalidRequest),
    ({"queue": "orders", "auto_ack": None}, InvalidRequest),
    ({}, InvalidRequest),
    ({"queue": "orders", "batch": 0}, InvalidRequest),
    ({"queue": "orders", "lease_seconds": nan}, InvalidRequest),
    ({"queue": "orders", "group": "g", "subscription": NAIVE}, InvalidRequest),
    ({"queue": "orders", "group": "g", "subscription": Subscription("from")}, InvalidRequest),
    ({"queue": "orders", "group": "g", "subscription": FIRST}, InvalidRequest),
]


async def test_bad_pops(client: AsyncClient) -> None:
    await client.push("orders", 1)
    for arguments, kind in BAD_POPS:
        error = await refusal(client.pop, **arguments)
        assert isinstance(error, kind), (arguments, error)
    assert await client.leases() == []
    assert await client.groups() == []


async def test_group_may_begin_at_any_other_time(client: AsyncClient) -> None:
    await client.push("orders", 1)
    begin = FIRST + timedelta(microseconds=1)
    assert (await client.pop("orders", group="g", subscription=begin)).payloads() == [1]
    [group] = await client.groups()
    assert group.subscription.from_at == begin


async def test_bad_acks_and_renewals(client: AsyncClient) -> None:
    await client.push("orders", 1, transaction_id="t")
    delivery = await client.pop("orders")
    place, lease_id = delivery[0].partition_id, delivery.lease_id
    bad = [
        Ack(),
        Ack(lease_id=""),
        Ack(lease_id="nobody"),
        Ack(transaction_id="t"),
        Ack(transaction_id="t", partition_id=place, seq=1),
        Ack(transaction_id="t", partition_id=-1),
        Ack(transaction_id="t", partition_id=2**63),
        Ack(transaction_id="t", partition_id=cast(int, str(place))),
        Ack(lease_id=lease_id, partition_id=cast(int, str(place)), seq=1),
        Ack(lease_id=lease_id, status="failed", retry_at=NAIVE),
        Ack(lease_id=lease_id, status="failed", retry_at=cast(datetime, "soon")),
    ]
    for ack in bad:
        assert isinstance(await refusal(client.ack, [ack]), InvalidRequest), ack
    for renewal in (Renewal(lease_id=""), Renewal(lease_id="nobody"), Renewal(lease_id=str(lease_id), seconds=nan)):
        assert isinstance(await refusal(client.renew, [renewal]), InvalidRequest), renewal
    for wrong in (lease_id, uuid4(), [lease_id], [uuid4()], iter([Ack(lease_id=lease_id)])):
        for verb in (client.ack, client.renew):
            assert isinstance(await refusal(verb, wrong), InvalidRequest), wrong
        assert isinstance(await refusal(client.ack, wrong, atomic=True), InvalidRequest), wrong
    [lease] = await client.leases()
    assert lease.expires_at == delivery.expires_at


async def test_bad_argument_of_another_verb(client: AsyncClient) -> None:
    assert isinstance(await refusal(client.queue, "\ud800"), InvalidRequest)
    assert isinstance(await refusal(client.message, str(uuid4()), partition_id=cast(int, nan)), InvalidRequest)


async def test_bad_arguments_of_consumers_and_producers(client: AsyncClient) -> None:
    for seconds in (-1, nan, "1"):
        with pytest.raises(InvalidRequest, match="idle_timeout_seconds"):
            client.consume("orders", idle_timeout_seconds=cast(float, seconds))
    with pytest.raises(InvalidRequest, match="delivery or one of its messages, not str"):
        client.transaction().ack(cast(Any, "orders"))
    assert "QueueOptions" in str(await refusal(client.configure, "orders", {"lease_seconds": 5}))


async def test_acks_by_lease_come_in_lists(client: AsyncClient) -> None:
    for queue in ("orders", "bills"):
        await client.push_many([new_message(queue, number) for number in range(3)])
    orders, bills = [await client.pop(queue, batch=3) for queue in ("orders", "bills")]
    outcomes = await client.ack([Ack(lease_id=orders.lease_id), Ack(lease_id=bills.lease_id, seq=2)])
    assert [(outcome.success, outcome.messages) for outcome in outcomes] == [(True, 3), (True, 2)]


async def test_acks_by_lease_are_applied_together(client: AsyncClient) -> None:
    await client.push_many([new_message("orders", number) for number in range(3)])
    delivery = await client.pop("orders", batch=3)
    lost = Ack(lease_id=str(uuid4()))
    with pytest.raises(TransactionRolledBack) as caught:
        await client.ack([Ack(lease_id=delivery.lease_id), lost], atomic=True)
    assert [outcome.success for outcome in caught.value.details["outcomes"]][1:] == [False]
    assert caught.value.details["outcomes"][1].error == "lease_lost"
    [outcome] = await client.ack([Ack(lease_id=delivery.lease_id)], atomic=True)
    assert (outcome.success, outcome.messages) == (True, 3)


async def test_error_that_is_no_utf8_still_ends_the_delivery(client: AsyncClient) -> None:
    await client.configure("orders", retry_limit=0)
    await client.push("orders", 1)
    await (await client.pop("orders")).nack("no such file: \udcff")
    [letter] = (await client.dead_letters()).items
    assert letter.error == "no such file: ?"
