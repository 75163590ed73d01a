"""Bad input gets a clear error, and never reaches the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from lockstep.config import Config
from lockstep.core.ids import uuid7
from lockstep.core.messages import Batch
from lockstep.core.policy import QueueOptions
from lockstep.core.records import (
    Ack,
    DeadLetterFilter,
    MessageFilter,
    PendingRequest,
    PopRequest,
    Position,
    Renewal,
    Subscription,
)
from lockstep.engine.engine import Engine
from lockstep.errors import EncryptionUnavailable, InvalidName, InvalidOption, InvalidRequest
from lockstep.storage.memory import MemoryStore
from support.clock import START, SetClock

LEASE = str(uuid7(0))
NAIVE = datetime(2026, 5, 1)  # noqa: DTZ001
BEYOND_UTC = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))

Call = Callable[[Engine], Awaitable[Any]]


def pop(**request: Any) -> Call:
    return lambda engine: engine.pop([PopRequest(**request)])


def ack(**fields: Any) -> Call:
    return lambda engine: engine.ack([Ack(**fields)])


def call(verb: str, *args: Any, **named: Any) -> Call:
    return lambda engine: getattr(engine, verb)(*args, **named)


BAD_NAMES: dict[str, Call] = {
    "configure": call("configure", ""),
    "configure namespace": call("configure", "q", namespace="a\x00"),
    "configure task": call("configure", "q", task=5),
    "delete_queue": call("delete_queue", "\n"),
    "clear": call("clear", None),
    "clear partition": call("clear", "q", partition=""),
    "queue": call("queue", "q" * 256),
    "queues": call("queues", namespace="\n"),
    "queues after": call("queues", after="\x00"),
    "partitions": call("partitions", ""),
    "partition": call("partition", "q", None),
    "pop queue": pop(queue=""),
    "pop partition": pop(queue="q", partition="\ud800"),
    "pop group": pop(queue="q", group=""),
    "pop group none": pop(queue="q", group=None),
    "pop namespace": pop(namespace="a\nb"),
    "pending": lambda engine: engine.has_pending([PendingRequest(queue="")]),
    "pending group": lambda engine: engine.has_pending([PendingRequest(queue="q", group="\n")]),
    "ack group": ack(lease_id=LEASE, group=""),
    "ack group none": ack(lease_id=LEASE, group=None),
    "ack group list": ack(lease_id=LEASE, group=["g"]),
    "subscribe": call("subscribe", "q", ""),
    "set_subscription": call("set_subscription", "g", Subscription(), queue=""),
    "seek": call("seek", "q", "", Position("start")),
    "seek partition": call("seek", "q", "g", Position("start"), partition="\n"),
    "pause_group": call("pause_group", "q", ""),
    "delete_group": call("delete_group", ""),
    "groups": call("groups", group=""),
    "spark_streams": call("spark_streams", queue=""),
    "forget_spark_stream": call("forget_spark_stream", ""),
    "accept_spark_stream": call("accept_spark_stream", ""),
    "lag": call("lag", "q", group=5),
    "depth": call("depth", "q", ""),
    "messages": call("messages", MessageFilter(queue="")),
    "messages partition": call("messages", MessageFilter(queue="q", partition="")),
    "dead_letters": call("dead_letters", DeadLetterFilter(queue="")),
    "leases": call("leases", queue=""),
    "utilisation": call("utilisation", queue=""),
    "verify": call("verify", queue=""),
    "repair": call("repair", queue=""),
}


@pytest.mark.parametrize("bad", BAD_NAMES.values(), ids=BAD_NAMES)
async def test_bad_name_is_refused(guarded: Engine, bad: Call) -> None:
    with pytest.raises(InvalidName):
        await bad(guarded)


BAD_REQUESTS: dict[str, tuple[Call, str]] = {
    "pop of nothing": (pop(), "names a queue, or"),
    "pop of both": (pop(queue="q", namespace="n"), "not both"),
    "pop of queue and task": (pop(queue="q", task="t"), "not both"),
    "pop of partition without queue": (pop(namespace="n", partition="p"), "must name its queue"),
    "pop batch 0": (pop(queue="q", batch=0), "batch must be between 1 and 20"),
    "pop batch too large": (pop(queue="q", batch=21), "batch must be between"),
    "pop batch true": (pop(queue="q", batch=True), "batch must be a whole number"),
    "pop batch text": (pop(queue="q", batch="5"), "batch must be a whole number"),
    "pop partitions": (pop(queue="q", partitions=6), "partitions must be between 1 and 5"),
    "pop lease 0": (pop(queue="q", lease_seconds=0), "lease seconds"),
    "pop lease negative": (pop(queue="q", lease_seconds=-1), "lease seconds"),
    "pop lease endless": (pop(queue="q", lease_seconds=float("inf")), "lease seconds"),
    "pop lease nan": (pop(queue="q", lease_seconds=float("nan")), "lease seconds"),
    "pop lease text": (pop(queue="q", lease_seconds="5"), "lease seconds"),
    "pop auto_ack": (pop(queue="q", auto_ack="yes"), "auto_ack"),
    "pop subscription": (pop(queue="q", subscription="new"), "expected Subscription, not str"),
    "pop mode": (pop(queue="q", subscription=Subscription("newest")), "must be one of all, new, from"),  # type: ignore[arg-type]
    "pop from nowhere": (pop(queue="q", subscription=Subscription("from")), "from_at must be a datetime"),
    "pop from naive": (
        pop(queue="q", subscription=Subscription("from", NAIVE)),
        "from_at must have a time zone",
    ),
    "pop all from": (pop(queue="q", subscription=Subscription("all", START)), "goes with the mode from"),
    "pop group mode": (pop(queue="q", mode="parallel"), "mode must be one of ordered, shared"),
    "subscribe group mode": (call("subscribe", "q", "g", mode=1), "mode must be one of ordered, shared"),
    "ack retry_at naive": (ack(lease_id=LEASE, status="retry", retry_at=NAIVE), "retry_at must have a time zone"),
    "ack retry_at completed": (ack(lease_id=LEASE, retry_at=START), "goes with the status failed or retry"),
    "ack retry_at dlq": (ack(lease_id=LEASE, status="dlq", retry_at=START), "goes with the status failed or retry"),
    "ack retry_at never": (
        ack(lease_id=LEASE, status="retry", retry_at=START.replace(year=9999)),
        "before the year 9000",
    ),
    "ack atomic": (call("ack", [], atomic="yes"), "atomic must be true or false"),
    "pop of no request": (call("pop", ["q"]), "expected PopRequest, not str"),
    "ack of nothing": (ack(), "names a lease, or"),
    "ack of partition alone": (ack(partition_id=1), "names a lease, or"),
    "ack of seq alone": (ack(seq=1), "names a lease, or"),
    "ack of partition and seq": (ack(partition_id=1, seq=1), "names a lease, or"),
    "ack of transaction alone": (ack(transaction_id="t"), "needs a partition id"),
    "ack of transaction and lease": (ack(transaction_id="t", lease_id=LEASE), "needs a partition id"),
    "ack of both forms": (ack(lease_id=LEASE, partition_id=1, seq=1, transaction_id="t"), "has no seq"),
    "ack lease": (ack(lease_id="lease-1"), "lease id is not a UUID"),
    "ack lease number": (ack(lease_id=5), "lease id is not a UUID"),
    "ack partition 0": (ack(lease_id=LEASE, partition_id=0), "partition id must be between"),
    "ack partition too large": (ack(partition_id=2**63, transaction_id="t"), "partition id must be between"),
    "ack partition text": (ack(partition_id="1", transaction_id="t"), "partition id must be a whole number"),
    "ack partition true": (ack(partition_id=True, transaction_id="t"), "partition id must be a whole number"),
    "ack seq 0": (ack(lease_id=LEASE, seq=0), "seq must be between"),
    "ack empty transaction": (ack(partition_id=1, transaction_id=""), "transaction id must not be empty"),
    "ack long transaction": (ack(partition_id=1, transaction_id="t" * 256), "transaction id 0 has 256"),
    "ack long transaction after a lease": (
        call("ack", [Ack(lease_id=LEASE), Ack(partition_id=1, transaction_id="t" * 256)]),
        "transaction id 1 has 256",
    ),
    "ack NUL transaction": (ack(partition_id=1, transaction_id="\x00"), "NUL"),
    "ack number transaction": (ack(partition_id=1, transaction_id=7), "must be a string"),
    "ack status": (ack(lease_id=LEASE, status="done"), "status must be one of completed, failed, retry, released, dlq"),
    "ack status list": (ack(lease_id=LEASE, status=[]), "status must be one of"),
    "ack error": (ack(lease_id=LEASE, status="failed", error=5), "error must be a string"),
    "ack too many": (call("ack", [Ack(lease_id=LEASE)] * 21), "21 acks"),
    "ack no ack": (call("ack", [Ack(lease_id=LEASE), {}]), "expected Ack, not dict"),
    "nack no ack": (call("nack", [{}]), "expected Ack, not dict"),
    "transaction ack": (call("transaction", [Ack()], []), "names a lease, or"),
    "renew lease": (call("renew", [Renewal(lease_id="x")]), "lease id is not a UUID"),
    "renew seconds": (call("renew", [Renewal(lease_id=LEASE, seconds=0)]), "lease seconds"),
    "renew long": (call("renew", [Renewal(lease_id=LEASE, seconds=1e12)]), "lease seconds"),
    "renew too many": (call("renew", [Renewal(lease_id=LEASE)] * 21), "21 renewals"),
    "clear scope": (call("clear", "q", scope="some"), "scope must be one of all, unleased"),
    "queues limit 0": (call("queues", limit=0), "limit must be between 1 and 1000"),
    "queues limit": (call("queues", limit=1001), "limit must be between 1 and 1000"),
    "partitions limit": (call("partitions", "q", limit=-1), "limit must be between"),
    "lag limit": (call("lag", "q", limit="9"), "limit must be a whole number"),
    "lag after": (call("lag", "q", after_partition_id=-1), "after_partition_id must be between"),
    "set_subscription queue mode": (call("set_subscription", "__QUEUE_MODE__", Subscription()), "queue mode"),
    "set_subscription naive": (call("set_subscription", "g", Subscription("from", NAIVE)), "time zone"),
    "seek kind": (call("seek", "q", "g", Position("middle")), "position must be one of"),  # type: ignore[arg-type]
    "seek no time": (call("seek", "q", "g", Position("time")), "at must be a datetime"),
    "seek naive": (call("seek", "q", "g", Position("time", NAIVE)), "at must have a time zone"),
    "seek out of range": (call("seek", "q", "g", Position("time", BEYOND_UTC)), "at is out of range"),
    "seek no seq": (call("seek", "q", "g", Position("seq")), "seq must be a whole number"),
    "seek seq 0": (call("seek", "q", "g", Position("seq", seq=0)), "seq must be between"),
    "seek end at": (call("seek", "q", "g", Position("end", START)), "at goes with"),
    "seek end seq": (call("seek", "q", "g", Position("end", seq=5)), "seq goes with"),
    "delete_group": (call("delete_group", "g", forget_subscription="no"), "forget_subscription"),
    "messages status": (call("messages", MessageFilter(queue="q", status="lost")), "status must be one of"),  # type: ignore[arg-type]
    "messages naive": (
        call("messages", MessageFilter(queue="q", from_at=NAIVE)),
        "from_at must have a time zone",
    ),
    "messages to": (call("messages", MessageFilter(queue="q", to_at="2026")), "to_at must be a datetime"),  # type: ignore[arg-type]
    "messages cursor": (call("messages", MessageFilter(queue="q"), cursor="\x00"), "cursor"),
    "messages limit": (call("messages", MessageFilter(queue="q"), limit=0), "limit"),
    "message id": (call("message", "no-uuid"), "message id is not a UUID"),
    "message transaction": (call("message", "", partition_id=1), "transaction id must not be empty"),
    "message partition": (call("message", "t", partition_id=-1), "partition id must be between"),
    "trace": (call("trace", "x"), "trace id is not a UUID"),
    "dead_letters offset": (call("dead_letters", DeadLetterFilter(), offset=-1), "offset must be between"),
    "dead_letters ids": (call("dead_letters", DeadLetterFilter(ids=(0,))), "dead letter id must be between"),
    "purge ids": (call("purge", DeadLetterFilter(ids=0)), "dead letter ids must come as a list"),  # type: ignore[arg-type]
    "push of nothing": (call("push", None), "messages must come as a list, not NoneType"),
    "push of one": (call("push", Batch.of("q", [b"1"])), "messages must come as a list, not Batch"),
    "push of a mapping": (call("push", {"a": 1}), "messages must come as a list, not dict"),
    "push of a generator": (call("push", (n for n in ())), "messages must come as a list, not generator"),
    "pop of one": (call("pop", PopRequest(queue="q")), "pops must come as a list, not PopRequest"),
    "pop of text": (call("pop", "q"), "pops must come as a list, not str"),
    "ack of none": (call("ack", None), "acks must come as a list, not NoneType"),
    "ack of one": (call("ack", Ack(lease_id=LEASE)), "acks must come as a list, not Ack"),
    "nack of one": (call("nack", Ack(lease_id=LEASE)), "acks must come as a list, not Ack"),
    "renew of one": (call("renew", Renewal(lease_id=LEASE)), "renewals must come as a list, not Renewal"),
    "pending of one": (call("has_pending", PendingRequest(queue="q")), "requests must come as a list"),
    "transaction of nothing": (call("transaction", None, []), "acks must come as a list"),
    "transaction without leases": (call("transaction", [], [], required_leases=None), "leases must come as a list"),
    "transaction with a bad lease": (call("transaction", [], [], required_leases=["x"]), "lease id is not a UUID"),
    "dead_letters naive": (
        call("dead_letters", DeadLetterFilter(to_at=NAIVE)),
        "to_at must have a time zone",
    ),
    "dead_letter": (call("dead_letter", "1"), "dead letter id must be a whole number"),
    "redrive limit": (call("redrive", DeadLetterFilter(), limit=1001), "limit must be between"),
    "redrive ids": (call("redrive", DeadLetterFilter(ids=("1",))), "dead letter id"),  # type: ignore[arg-type]
    "purge": (call("purge", None), "expected DeadLetterFilter, not NoneType"),
    "leases within": (call("leases", expiring_within=5), "expiring_within must be a timedelta"),
    "leases past": (call("leases", expiring_within=timedelta(-1)), "expiring_within must be between"),
}


@pytest.mark.parametrize(("bad", "text"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
async def test_bad_request_is_refused(guarded: Engine, bad: Call, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        await bad(guarded)


async def test_bad_option_is_refused(guarded: Engine) -> None:
    with pytest.raises(InvalidOption, match="retry_limit"):
        await guarded.configure("q", QueueOptions(retry_limit=-2))
    with pytest.raises(InvalidOption, match="dict"):
        await guarded.configure("q", {})  # type: ignore[arg-type]


async def test_encryption_needs_a_key_unless_plain_is_allowed() -> None:
    options = QueueOptions(encryption=True)
    with pytest.raises(EncryptionUnavailable):
        await Engine(MemoryStore(), Config()).configure("q", options)
    for config in (Config(encryption_key="a"), Config(encryption_allow_plain=True)):
        info = await Engine(MemoryStore(), config).configure("q", options)
        assert info.options.encryption


async def test_one_bad_ack_keeps_out_all_of_them(engine: Engine) -> None:
    await engine.push([Batch.of("q", [b"1"])])
    [leased] = await engine.pop([PopRequest(queue="q")])
    with pytest.raises(InvalidRequest):
        await engine.ack([Ack(lease_id=leased.lease_id), Ack()])
    assert (await engine.depth("q", "__QUEUE_MODE__")).pending == 1


async def test_ids_may_be_spelled_in_any_way(engine: Engine) -> None:
    [receipt] = await engine.push([Batch.of("q", [b"1"])])
    [leased] = await engine.pop([PopRequest(queue="q")])
    assert leased.lease_id is not None
    shouted = leased.lease_id.upper()
    assert (await engine.message(receipt.message_id.upper())).message.id == receipt.message_id
    [renewed] = await engine.renew([Renewal(lease_id=shouted, seconds=900)])
    assert (renewed.lease_id, renewed.partitions) == (leased.lease_id, 1)
    [outcome] = await engine.ack([Ack(lease_id=shouted)])
    assert outcome.success


@pytest.mark.parametrize(("error", "kept"), [("0123456789abc", "0123456789"), ("a\x00b\ud800", "a\ufffdb?")])
async def test_error_text_that_does_not_fit_is_cut_and_not_refused(engine: Engine, error: str, kept: str) -> None:
    await engine.push([Batch.of("q", [b"1"])])
    [leased] = await engine.pop([PopRequest(queue="q")])
    [outcome] = await engine.ack([Ack(lease_id=leased.lease_id, status="dlq", error=error)])
    assert outcome.dead
    assert [letter.error for letter in (await engine.dead_letters(DeadLetterFilter())).items] == [kept]


async def test_nack_is_a_failed_ack(engine: Engine, clock: SetClock) -> None:
    await engine.configure("q", QueueOptions(retry_limit=1, retry_delay_ms=1000))
    await engine.push([Batch.of("q", [b"1"])])
    for attempt in (1, 2):
        [leased] = await engine.pop([PopRequest(queue="q")])
        assert [message.attempt for message in leased.messages()] == [attempt]
        [outcome] = await engine.nack([Ack(lease_id=leased.lease_id, error="bad")])
        assert (outcome.success, outcome.dead) == (True, attempt == 2)
        clock.advance(1)
    assert (await engine.dead_letters(DeadLetterFilter(queue="q"))).total == 1


async def test_times_of_any_zone_are_understood(engine: Engine, clock: SetClock) -> None:
    await engine.push([Batch.of("q", [b"1"])])
    clock.advance(10)
    await engine.push([Batch.of("q", [b"2"])])
    tokyo = START.astimezone(timezone(timedelta(hours=9))) + timedelta(seconds=5)
    page = await engine.messages(MessageFilter(queue="q", from_at=tokyo))
    assert [view.message.payload for view in page.items] == [b"2"]
    assert page.items[0].message.created_at.tzinfo is UTC


async def test_every_verb_of_the_store_is_reached(engine: Engine, clock: SetClock) -> None:
    await engine.ping()
    assert (await engine.configure("q", namespace="", task="t")).task == "t"
    await engine.push([Batch.of("q", [b"1", b"2"], trace_ids=[LEASE, None])])
    assert await engine.has_pending([PendingRequest(queue="q"), PendingRequest(queue="r")]) == [True, False]
    assert (await engine.subscribe("q", "g")).lag == 2
    assert await engine.set_subscription("g", Subscription("new")) == 1
    assert await engine.seek("q", "g", Position("end")) == 1
    assert [place.lag for place in await engine.lag("q", group="g")] == [0]
    assert [group.name for group in await engine.groups(queue="q")] == ["g"]
    assert await engine.delete_group("g") == 1
    [leased] = await engine.pop([PopRequest(task="t", namespace="", batch=2, lease_seconds=0.5)])
    assert leased.expires_at == clock.ahead(0.5)
    assert (await engine.utilisation())[0].partitions_leased == 1
    assert [lease.lease_id for lease in await engine.leases(expiring_within=timedelta(seconds=1))] == [leased.lease_id]
    await engine.ack([Ack(lease_id=leased.lease_id, status="dlq")])
    page = await engine.dead_letters(DeadLetterFilter(group="__QUEUE_MODE__"))
    assert (await engine.dead_letter(page.items[0].id)).message.payload == b"1"
    assert await engine.redrive(DeadLetterFilter(ids=(page.items[0].id,))) == 1
    assert await engine.purge(DeadLetterFilter()) == 0
    assert len(await engine.trace(LEASE)) == 2
    default = await engine.partition("q", "Default")
    assert default.messages == 3
    assert (await engine.message(leased.runs[0].message(1).id, partition_id=default.id)).message.seq == 2
    assert [info.name for info in await engine.partitions("q")] == ["Default"]
    assert [info.name for info in await engine.queues(task="t")] == ["q"]
    assert (await engine.queue("q")).messages == 3
    assert await engine.clear("q", scope="unleased") == 3
    assert await engine.verify() == []
    assert await engine.repair(queue="q") == []
    assert await engine.delete_queue("q")
