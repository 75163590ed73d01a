"""Stream queries: registration, state, and cycles that apply wholly, once, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Ack, DeadLetterFilter, Popped, Renewal
from lockstep.core.streams import NewStreamQuery, StateFilter, StateOp, StateRow, StreamAck, StreamCycle, StreamQuery
from lockstep.errors import (
    PartitionNotFound,
    QueueFull,
    StreamConfigMismatch,
    StreamQueryNotFound,
    TransactionRolledBack,
)
from lockstep.storage.base import Store
from support.builders import ack, batch, configure, lag_of, numbers, pop, pop_all, push_n, seqs, tagged
from support.clock import SetClock


async def register(store: Store, name: str = "query", config_hash: str = "1", **fields: Any) -> StreamQuery:
    given = {"source_queue": "in", **fields}
    return await store.register_stream_query(NewStreamQuery(name=name, config_hash=config_hash, **given))


def upsert(key: str, value: bytes = b"1") -> StateOp:
    return StateOp(type="upsert", key=key, value=value)


def delete(key: str) -> StateOp:
    return StateOp(type="delete", key=key)


async def state(store: Store, query: StreamQuery, partition_id: int, **where: Any) -> dict[str, bytes]:
    found = await store.stream_state(StateFilter(query_id=query.id, partition_id=partition_id, **where))
    return {row.key: row.value for row in found}


async def change(store: Store, query: StreamQuery, partition_id: int, *ops: StateOp) -> None:
    await store.stream_cycle(StreamCycle(query_id=query.id, partition_id=partition_id, state_ops=ops), [])


async def begun(store: Store, messages: int = 2, **request: Any) -> tuple[StreamQuery, Popped, int]:
    """A query, what was popped for its first cycle, and the partition."""
    query = await register(store)
    [receipt, *_] = await push_n(store, "in", messages)
    popped = await pop(store, "in", batch=messages, **request)
    return query, popped, receipt.partition_id


def cycle(
    query: StreamQuery, popped: Popped, *ops: StateOp, last: int = -1, release_lease: bool = True, **fields: Any
) -> StreamCycle:
    """A cycle that acknowledges up to the message at `last` of what was popped."""
    message = list(popped.messages())[last]
    given = {"transaction_id": message.transaction_id, "lease_id": popped.lease_id, **fields}
    return StreamCycle(
        query_id=query.id,
        partition_id=message.partition_id,
        group=popped.group,
        state_ops=ops,
        ack=StreamAck(**given),
        release_lease=release_lease,
    )


# --- Registration


async def test_query_is_fresh_once(store: Store) -> None:
    first = await register(store, sink_queue="out")
    assert (first.name, first.source_queue, first.sink_queue, first.config_hash) == ("query", "in", "out", "1")
    assert (first.fresh, first.reset) == (True, False)
    again = await register(store, sink_queue="elsewhere")
    assert (again.id, again.fresh, again.reset, again.sink_queue) == (first.id, False, False, "elsewhere")
    assert (await register(store, "another")).id != first.id
    assert await store.queues() == []


@pytest.mark.parametrize(
    ("other", "text"),
    [({"config_hash": "2"}, "config_hash mismatch"), ({"source_queue": "else"}, "source_queue mismatch")],
)
async def test_query_with_another_configuration_is_refused(store: Store, other: dict[str, str], text: str) -> None:
    query = await register(store)
    [receipt] = await push_n(store, "in")
    await change(store, query, receipt.partition_id, upsert("a"))
    with pytest.raises(StreamConfigMismatch, match=text):
        await register(store, **other)
    assert (await register(store)).id == query.id
    assert await state(store, query, receipt.partition_id) == {"a": b"1"}


@pytest.mark.parametrize("config_hash", ["1", "2"])
async def test_reset_removes_the_state_of_this_query_alone(store: Store, config_hash: str) -> None:
    query, other = await register(store), await register(store, "other")
    [receipt] = await push_n(store, "in")
    for one in (query, other):
        await change(store, one, receipt.partition_id, upsert("a"))
    again = await register(store, config_hash=config_hash, reset=True)
    assert (again.id, again.fresh, again.reset) == (query.id, False, True)
    assert await state(store, query, receipt.partition_id) == {}
    assert await state(store, other, receipt.partition_id) == {"a": b"1"}
    assert not (await register(store, config_hash=config_hash)).reset


async def test_reset_of_a_new_query_is_no_reset(store: Store) -> None:
    assert not (await register(store, reset=True)).reset


# --- State


async def test_state_is_kept_by_query_and_partition(store: Store, clock: SetClock) -> None:
    query, other = await register(store), await register(store, "other")
    here, there = await store.push([batch("in", partition="a"), batch("in", partition="b")])
    value = '{"n": 1.50,  "text": "é\\u0000"}'.encode()
    await change(store, query, here.partition_id, upsert("k", value))
    written_at = clock.now
    clock.advance(1)
    where = StateFilter(query_id=query.id, partition_id=here.partition_id)
    assert await store.stream_state(where) == [StateRow(key="k", value=value, updated_at=written_at)]
    assert await state(store, query, there.partition_id) == {}
    assert await state(store, other, here.partition_id) == {}
    await change(store, query, here.partition_id, upsert("k", b"null"))
    [row] = await store.stream_state(where)
    assert (row.value, row.updated_at) == (b"null", clock.now)


async def test_last_change_of_a_key_counts(store: Store) -> None:
    query = await register(store)
    [receipt] = await push_n(store, "in")
    ops = [upsert("a", b"1"), upsert("a", b"2"), upsert("b"), delete("b"), delete("c"), upsert("c", b"3"), delete("d")]
    done = await store.stream_cycle(
        StreamCycle(query_id=query.id, partition_id=receipt.partition_id, state_ops=tuple(ops)), []
    )
    assert (done.state_ops, done.queue, done.partition, done.ack, len(done.pushed)) == (7, "in", "Default", None, 0)
    assert await state(store, query, receipt.partition_id) == {"a": b"2", "c": b"3"}


async def test_state_is_found_by_keys_prefix_and_ripeness(store: Store) -> None:
    query = await register(store)
    [receipt] = await push_n(store, "in")
    values = {
        "w/2": b'{"windowEnd":2000}',
        "w/10": b'{"windowEnd":10000.5}',
        "w%": b'{"windowEnd":"1"}',
        "W/1": b'{"windowEnd":1000}',
        "é": b'{"windowEnd":true}',
        "list": b"[1]",
        "huge": b'{"windowEnd":1' + b"0" * 400 + b"}",
    }
    await change(store, query, receipt.partition_id, *(upsert(key, value) for key, value in values.items()))

    async def found(**where: Any) -> list[str]:
        return list(await state(store, query, receipt.partition_id, **where))

    assert await found() == ["W/1", "huge", "list", "w%", "w/10", "w/2", "é"]
    assert await found(keys=("w/2", "é", "no such")) == ["w/2", "é"]
    assert await found(key_prefix="w/") == ["w/10", "w/2"]
    assert await found(key_prefix="w%") == ["w%"]
    assert await found(ripe_at_or_before_ms=1999) == ["W/1"]
    assert await found(ripe_at_or_before_ms=2000) == ["W/1", "w/2"]
    assert await found(ripe_at_or_before_ms=10**15, key_prefix="w") == ["w/10", "w/2"]
    assert await found(ripe_at_or_before_ms=10**15, keys=("w/10", "list")) == ["w/10"]
    where = StateFilter(query_id=query.id, partition_id=receipt.partition_id)
    assert [row.key for row in await store.stream_state(where, limit=2)] == ["W/1", "huge"]


async def test_unknown_query(store: Store) -> None:
    [receipt] = await push_n(store, "in")
    with pytest.raises(StreamQueryNotFound):
        await store.stream_state(StateFilter(query_id=77, partition_id=receipt.partition_id))
    with pytest.raises(StreamQueryNotFound):
        await store.stream_cycle(StreamCycle(query_id=77, partition_id=receipt.partition_id), [batch("out")])
    assert [queue.name for queue in await store.queues()] == ["in"]


async def test_unknown_partition(store: Store) -> None:
    query = await register(store)
    assert await state(store, query, 77) == {}
    with pytest.raises(PartitionNotFound):
        await store.stream_cycle(
            StreamCycle(query_id=query.id, partition_id=77, state_ops=(upsert("a"),)), [batch("out")]
        )
    assert await store.queues() == []


async def test_state_goes_with_its_queue(store: Store) -> None:
    query = await register(store)
    [receipt] = await push_n(store, "in")
    await change(store, query, receipt.partition_id, upsert("a"))
    await store.clear("in")
    assert await state(store, query, receipt.partition_id) == {"a": b"1"}
    await store.delete_queue("in")
    assert await state(store, query, receipt.partition_id) == {}
    assert not (await register(store)).fresh


# --- Cycles


async def test_cycle_changes_state_pushes_and_acknowledges(store: Store) -> None:
    query, popped, partition_id = await begun(store, 3)
    done = await store.stream_cycle(cycle(query, popped, upsert("sum", b"6")), [batch("out", 2), batch("log")])
    assert done.ack is not None
    assert (done.ack.success, done.ack.messages, done.ack.released, done.ack.dead) == (True, 3, True, False)
    assert [(r.queue, r.seq, r.status) for r in done.pushed] == [
        ("out", 1, "queued"),
        ("out", 2, "queued"),
        ("log", 1, "queued"),
    ]
    assert await state(store, query, partition_id) == {"sum": b"6"}
    place = await lag_of(store, "in")
    assert (place.lag, place.leased, place.due_at) == (0, False, None)
    assert numbers(await pop(store, "out", batch=5)) == [1, 2]


async def test_duplicates_in_a_cycle_are_no_failure(store: Store) -> None:
    query, popped, _ = await begun(store)
    await store.push([tagged("out", ["t"])])
    done = await store.stream_cycle(cycle(query, popped), [tagged("out", ["t", "u"])])
    assert [r.status for r in done.pushed] == ["duplicate", "queued"]


async def test_cycle_may_push_to_its_own_partition(store: Store) -> None:
    query, popped, _ = await begun(store, 1)
    await store.stream_cycle(cycle(query, popped), [batch("in", start=9)])
    assert numbers(await pop(store, "in")) == [9]


@pytest.mark.parametrize("bad", ["garbage-lease", "unknown-message", "expired", "unknown-group"])
async def test_failing_ack_rolls_the_cycle_back(store: Store, clock: SetClock, bad: str) -> None:
    query, popped, partition_id = await begun(store, lease_seconds=10)
    await change(store, query, partition_id, upsert("kept"))
    if bad == "expired":
        clock.advance(10)
    fields = {"garbage-lease": {"lease_id": "garbage"}, "unknown-message": {"transaction_id": "no such"}}.get(bad, {})
    step = cycle(query, popped, upsert("new"), delete("kept"), **fields)
    if bad == "unknown-group":
        step = StreamCycle(
            query_id=query.id, partition_id=partition_id, group="nobody", state_ops=step.state_ops, ack=step.ack
        )
    before = await store.lag("in"), await store.leases()
    with pytest.raises(TransactionRolledBack) as raised:
        await store.stream_cycle(step, [batch("out")])
    [outcome] = raised.value.details["outcomes"]
    expected = "unresolvable" if bad == "unknown-message" else "lease_lost"
    assert (outcome.success, outcome.error) == (False, expected)
    assert (await store.lag("in"), await store.leases()) == before
    assert await state(store, query, partition_id) == {"kept": b"1"}
    assert [queue.name for queue in await store.queues()] == ["in"]


async def test_full_queue_rolls_the_cycle_back(store: Store) -> None:
    await configure(store, "out", max_size=1)
    query, popped, partition_id = await begun(store)
    with pytest.raises(QueueFull):
        await store.stream_cycle(cycle(query, popped, upsert("a")), [batch("out", 2)])
    assert await state(store, query, partition_id) == {}
    assert (await lag_of(store, "in")).leased
    assert (await store.stream_cycle(cycle(query, popped), [batch("out", 1)])).pushed[0].depth == 1


@pytest.mark.parametrize("release_lease", [True, False])
@pytest.mark.parametrize("last", [0, -1])
async def test_cycle_that_is_sent_twice_is_applied_once(store: Store, release_lease: bool, last: int) -> None:
    query, popped, partition_id = await begun(store, 2)
    await store.stream_cycle(cycle(query, popped, last=last, release_lease=release_lease), [batch("out")])
    again = cycle(query, popped, upsert("a"), last=last, release_lease=release_lease)
    with pytest.raises(TransactionRolledBack):
        await store.stream_cycle(again, [batch("out")])
    assert (await store.queue("out")).messages == 1
    assert await state(store, query, partition_id) == {}


async def test_failed_cycle_charges_an_attempt_and_keeps_its_state(store: Store, clock: SetClock) -> None:
    query, popped, partition_id = await begun(store, 2)
    step = cycle(query, popped, upsert("seen"), last=0, status="failed", error="bad", release_lease=False)
    done = await store.stream_cycle(step, [])
    assert done.ack is not None
    assert (done.ack.success, done.ack.released) == (True, True)
    assert await state(store, query, partition_id) == {"seen": b"1"}
    clock.advance(1)
    [first, _] = (await pop(store, "in", batch=2)).messages()
    assert first.attempt == 2


async def test_cycle_may_bury_its_head(store: Store) -> None:
    query, popped, _ = await begun(store, 2)
    done = await store.stream_cycle(cycle(query, popped, last=0, status="dlq", error="bad"), [])
    assert done.ack is not None
    assert (done.ack.dead, done.ack.released) == (True, True)
    assert (await store.dead_letters(DeadLetterFilter())).items[0].error == "bad"
    assert seqs(await pop(store, "in", batch=2)) == [2]


# --- The lease of a cycle


async def test_completed_ack_of_a_part_ends_the_lease(store: Store) -> None:
    query, popped, _ = await begun(store, 3)
    done = await store.stream_cycle(cycle(query, popped, last=0), [])
    assert done.ack is not None
    assert (done.ack.released, done.ack.messages) == (True, 1)
    assert await store.leases() == []
    assert seqs(await pop(store, "in", batch=5)) == [2, 3]


async def test_lease_is_kept_while_cycles_go_through_it(store: Store) -> None:
    query, popped, _ = await begun(store, 3)
    for last in (0, 1, 2):
        done = await store.stream_cycle(cycle(query, popped, last=last, release_lease=False), [])
        assert done.ack is not None
        assert (done.ack.released, done.ack.messages) == (False, 1)
        [lease] = await store.leases()
        assert (lease.lease_id, lease.expires_at) == (popped.lease_id, popped.expires_at)
    await push_n(store, "in", 1, start=4)
    assert not await pop(store, "in")
    place = await lag_of(store, "in")
    assert (place.acked, place.lag, place.leased) == (3, 1, True)
    assert await store.verify() == []


async def test_lease_with_nothing_left_can_be_renewed_and_acknowledged(store: Store, clock: SetClock) -> None:
    query, popped, _ = await begun(store, 1, lease_seconds=10)
    await store.stream_cycle(cycle(query, popped, release_lease=False), [])
    await push_n(store, "in", 1, start=2)
    assert (await store.queue("in")).processing == 0
    assert (await store.utilisation())[0].partitions_leased == 1
    clock.advance(5)
    [renewed] = await store.renew([Renewal(lease_id=popped.lease_id or "", seconds=10)])
    assert renewed.partitions == 1
    clock.advance(9)
    assert not await pop(store, "in")
    outcome = await ack(store, lease_id=popped.lease_id)
    assert (outcome.success, outcome.messages, outcome.released) == (True, 0, True)
    assert numbers(await pop(store, "in")) == [2]


async def test_lease_with_nothing_left_expires_without_an_attempt(store: Store, clock: SetClock) -> None:
    await configure(store, "in", retry_limit=0, on_exhausted="dead")
    query, popped, _ = await begun(store, 1, lease_seconds=10)
    await store.stream_cycle(cycle(query, popped, release_lease=False), [])
    await push_n(store, "in", 1, start=2)
    clock.advance(10)
    [message] = (await pop(store, "in")).messages()
    assert (message.json(), message.attempt) == ({"n": 2}, 1)
    assert (await store.dead_letters(DeadLetterFilter())).total == 0


async def test_lease_with_nothing_left_survives_a_clear_of_the_rest(store: Store, clock: SetClock) -> None:
    query, popped, _ = await begun(store, 1, lease_seconds=10)
    await store.stream_cycle(cycle(query, popped, release_lease=False), [])
    await push_n(store, "in", 2, start=2)
    assert await store.clear("in", scope="unleased") == 3
    assert len(await store.leases()) == 1
    clock.advance(10)
    assert not await pop(store, "in")
    await push_n(store, "in", 1, start=9)
    assert numbers(await pop(store, "in")) == [9]


async def test_ack_without_a_lease_id_is_not_fenced(store: Store) -> None:
    query, popped, _ = await begun(store, 2)
    done = await store.stream_cycle(cycle(query, popped, lease_id=None, release_lease=False), [])
    assert done.ack is not None
    assert not done.ack.released
    assert [lease.lease_id for lease in await store.leases()] == [popped.lease_id]


@pytest.mark.parametrize("release_lease", [True, False])
async def test_ack_where_no_lease_is_held(store: Store, release_lease: bool) -> None:
    query = await register(store)
    receipts = await push_n(store, "in", 2)
    await pop(store, "in", auto_ack=True)
    step = StreamCycle(
        query_id=query.id,
        partition_id=receipts[1].partition_id,
        ack=StreamAck(transaction_id=receipts[1].message_id),
        release_lease=release_lease,
    )
    done = await store.stream_cycle(step, [])
    assert done.ack is not None
    assert (done.ack.messages, done.ack.released) == (1, False)
    assert await store.leases() == []
    assert (await lag_of(store, "in")).due_at is None


async def test_cycles_of_groups_do_not_disturb_each_other(store: Store) -> None:
    query = await register(store)
    await push_n(store, "in", 2)
    mine, other = [await pop(store, "in", group=group, batch=2) for group in ("g", "h")]
    await store.stream_cycle(cycle(query, mine), [])
    assert [(lease.group, lease.lease_id) for lease in await store.leases()] == [("h", other.lease_id)]
    [outcome] = await store.ack([Ack(lease_id=other.lease_id)])
    assert outcome.messages == 2


async def test_cycle_counts_in_a_limited_queue(store: Store) -> None:
    await configure(store, "in", max_size=3)
    query, popped, _ = await begun(store, 3)
    await store.stream_cycle(cycle(query, popped, last=1, release_lease=False), [])
    [receipt] = await push_n(store, "in", 1)
    assert (receipt.depth, receipt.remaining) == (2, 1)
    assert (await store.depth("in", QUEUE_MODE)).pending == 2
    assert await pop_all(store, "in") == []
