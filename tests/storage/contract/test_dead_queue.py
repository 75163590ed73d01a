"""Dead queues: what dies is recorded and pushed there in one transaction, and can be sent back once."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.core.messages import REDRIVEN_FROM, Batch
from lockstep.core.records import Ack, Arrival, DeadLetterFilter, Subscription
from lockstep.errors import Conflict, InvalidOption, QueueFull, QueueNotFound, TransactionRolledBack
from lockstep.storage.base import Store
from support.builders import ack, ack_of, configure, numbers, pop, pop_all, push_n
from support.clock import SetClock

FROM = "lockstep-dead-from-"


async def with_dead_queue(store: Store, **options: object) -> None:
    await configure(store, "dead")
    await configure(store, "q", dead_queue="dead", **options)


async def dead_letters(store: Store, queue: str = "q") -> int:
    return (await store.dead_letters(DeadLetterFilter(queue=queue))).total


async def test_exhausted_message_is_recorded_and_pushed(store: Store) -> None:
    await with_dead_queue(store, retry_limit=0)
    await push_n(store, "q", 2, partition="p", kinds=["k", None], headers=[b'{"a":"b"}', None])
    popped = await pop(store, "q")
    [message] = popped.messages()
    outcome = await ack(store, lease_id=popped.lease_id, status="failed", error="no luck")
    assert outcome.dead
    assert await dead_letters(store) == 1
    [copy] = (await pop(store, "dead")).messages()
    assert (copy.payload, copy.partition, copy.kind) == (message.payload, "p", "k")
    assert copy.headers == {
        "a": "b",
        FROM + "queue": "q",
        FROM + "partition": "p",
        FROM + "group": "__QUEUE_MODE__",
        FROM + "seq": "1",
        FROM + "message-id": message.id,
        FROM + "attempts": "1",
        FROM + "error": "no luck",
    }


async def test_dlq_acks_of_many_partitions_and_packed_bodies(store: Store) -> None:
    await with_dead_queue(store)
    long = b'"%s"' % (b"x" * 3000)
    await store.push([Batch.of("q", [long, b"1"], partition="a"), Batch.of("q", [long, b"2"], partition="b")])
    popped = await pop(store, "q", batch=10, partitions=10)
    messages = list(popped.messages())
    outcomes = await store.ack([ack_of(message, "dlq", lease_id=popped.lease_id) for message in messages])
    assert all(outcome.dead for outcome in outcomes)
    found = await pop_all(store, "dead")
    assert [(m.partition, m.payload) for m in found] == [(m.partition, m.payload) for m in messages]


async def test_expired_lease_and_expired_message_go_there_by_a_pop(store: Store, clock: SetClock) -> None:
    await with_dead_queue(store, retry_limit=0, lease_seconds=10, expire_seconds=100)
    await push_n(store, "q", 1, partition="a")
    await push_n(store, "q", 2, partition="b")
    await pop(store, "q", partition="a")
    clock.advance(50)
    await push_n(store, "q", 1, partition="c", start=9)
    clock.advance(50)
    assert numbers(await pop(store, "q", batch=10, partitions=10)) == [9]
    stories = [(m.partition, (m.headers or {})[FROM + "error"]) for m in await pop_all(store, "dead")]
    assert sorted(stories) == [("a", "lease expired"), ("b", "expired"), ("b", "expired")]
    assert await dead_letters(store) == 3


async def test_expired_message_goes_there_by_the_duty(store: Store, clock: SetClock) -> None:
    await with_dead_queue(store, lease_seconds=10, expire_seconds=100)
    await pop(store, "q")
    await push_n(store, "q", 2)
    clock.advance(100)
    pruned = await store.prune("expiry", limit=100)
    while pruned.next is not None:
        pruned = await store.prune("expiry", after=pruned.next, limit=100)
    assert numbers(await pop(store, "dead", batch=10)) == [1, 2]


async def test_buried_message_goes_there(store: Store) -> None:
    await with_dead_queue(store)
    await push_n(store, "q")
    await pop(store, "q", auto_ack=True)
    [receipt] = await push_n(store, "q", start=2)
    await store.bury_message(receipt.partition_id, receipt.transaction_id, error="by hand")
    assert numbers(await pop(store, "dead")) == [2]


async def test_dropped_message_goes_nowhere(store: Store) -> None:
    await with_dead_queue(store, retry_limit=0, on_exhausted="drop")
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="failed")
    assert numbers(await pop(store, "dead")) == []


async def test_transaction_pushes_what_dies_in_it_or_nothing(store: Store) -> None:
    await with_dead_queue(store)
    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    await push_n(store, "q")
    popped = await pop(store, "q")
    dlq = [Ack(lease_id=popped.lease_id, status="dlq")]
    with pytest.raises(QueueFull):
        await store.transaction(dlq, [Batch.of("full", [b"1"])])
    assert numbers(await pop(store, "dead")) == []
    assert await dead_letters(store) == 0
    result = await store.transaction(dlq, [Batch.of("other", [b"1"])])
    assert result.acks[0].dead
    assert numbers(await pop(store, "dead")) == [1]


async def test_refused_transaction_pushes_nothing(store: Store) -> None:
    await with_dead_queue(store)
    await push_n(store, "q")
    popped = await pop(store, "q")
    lost = Ack(lease_id="00000000-0000-7000-8000-000000000000")
    with pytest.raises(TransactionRolledBack):
        await store.transaction([Ack(lease_id=popped.lease_id, status="dlq"), lost], [])
    assert numbers(await pop(store, "dead")) == []


async def test_message_that_dies_in_the_dead_queue_stays_there(store: Store) -> None:
    await with_dead_queue(store)
    await push_n(store, "q")
    popped = await pop(store, "q")
    await ack(store, lease_id=popped.lease_id, status="dlq")
    popped = await pop(store, "dead")
    await ack(store, lease_id=popped.lease_id, status="dlq")
    assert await dead_letters(store, "dead") == 1
    assert (await store.queue("dead")).messages == 1


# --- Which queue may be one ---------------------------------------------------------------------------------


async def test_dead_queue_must_exist_and_be_another(store: Store) -> None:
    with pytest.raises(InvalidOption):
        await configure(store, "q", dead_queue="q")
    with pytest.raises(InvalidOption):
        await configure(store, "q", dead_queue="nowhere")
    with pytest.raises(QueueNotFound):
        await store.queue("q")


async def test_dead_queue_has_none_of_its_own_in_both_directions(store: Store) -> None:
    await configure(store, "c")
    await configure(store, "b")
    await configure(store, "a", dead_queue="b")
    with pytest.raises(InvalidOption):
        await configure(store, "b", dead_queue="c")
    with pytest.raises(InvalidOption):
        await configure(store, "c", dead_queue="a")
    assert (await store.queue("b")).options.dead_queue is None
    assert (await store.queue("a")).options.dead_queue == "b"


async def test_dead_queue_has_no_max_size_in_both_directions(store: Store) -> None:
    await configure(store, "small", max_size=5)
    with pytest.raises(InvalidOption):
        await configure(store, "q", dead_queue="small")
    await with_dead_queue(store)
    with pytest.raises(InvalidOption):
        await configure(store, "dead", max_size=5)


async def test_two_that_would_make_a_chain_do_not_both_succeed(store: Store) -> None:
    for name in ("a", "b", "c"):
        await configure(store, name)
    answers = await asyncio.gather(
        configure(store, "a", dead_queue="b"), configure(store, "b", dead_queue="c"), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["InvalidOption", "QueueInfo"]


async def test_dead_queue_is_not_deleted_while_it_is_needed(store: Store) -> None:
    await with_dead_queue(store)
    with pytest.raises(Conflict):
        await store.delete_queue("dead")
    await configure(store, "q")
    assert await store.delete_queue("dead")


# --- Back -----------------------------------------------------------------------------------------------------


async def killed(store: Store, count: int, *, partition: str = "Default") -> None:
    await push_n(store, "q", count, partition=partition)
    popped = await pop(store, "q", partition=partition, batch=count)
    acks = [ack_of(message, "dlq", lease_id=popped.lease_id) for message in popped.messages()]
    assert all(outcome.dead for outcome in await store.ack(acks))


async def test_redrive_queue_sends_back_in_order_with_its_dead_letters(store: Store) -> None:
    await with_dead_queue(store)
    await killed(store, 3)
    await killed(store, 2, partition="p")
    await push_n(store, "dead", 1, start=7)  # nobody put it there for being dead
    assert await store.redrive_queue("dead", limit=4) == 4
    assert await store.redrive_queue("dead", limit=4) == 1
    assert await store.redrive_queue("dead", limit=4) == 0
    assert await dead_letters(store) == 0
    back = await pop(store, "q", batch=10, partitions=10)
    assert sorted((m.partition, m.json()["n"]) for m in back.messages()) == [
        ("Default", 1), ("Default", 2), ("Default", 3), ("p", 1), ("p", 2),
    ]  # fmt: skip
    assert all(set(m.headers or {}) == {REDRIVEN_FROM} for m in back.messages())
    assert numbers(await pop(store, "dead", batch=10)) == [7]


async def test_redrive_queue_leaves_what_is_leased_or_done(store: Store) -> None:
    await with_dead_queue(store)
    await killed(store, 3)
    popped = await pop(store, "dead", batch=1)
    assert await store.redrive_queue("dead") == 2
    assert (await ack(store, lease_id=popped.lease_id)).messages == 1
    assert await store.redrive_queue("dead") == 0
    assert await dead_letters(store) == 1


async def test_redrive_queue_to_a_full_queue_changes_nothing(store: Store) -> None:
    await with_dead_queue(store, max_size=2)
    await killed(store, 2)
    await push_n(store, "q", 2, start=3)
    with pytest.raises(QueueFull):
        await store.redrive_queue("dead")
    assert (await store.queue("dead")).messages == 2
    assert await dead_letters(store) == 2


async def test_redrive_queue_skips_what_came_from_a_queue_that_is_gone(store: Store) -> None:
    await with_dead_queue(store)
    await killed(store, 2)
    await store.delete_queue("q")
    assert await store.redrive_queue("dead") == 0
    with pytest.raises(QueueNotFound):
        await store.redrive_queue("q")


async def test_redrive_queue_by_several_at_once_doubles_nothing(store: Store) -> None:
    await with_dead_queue(store)
    await killed(store, 20)
    counts = await asyncio.gather(*(store.redrive_queue("dead") for _ in range(5)))
    assert sum(counts) == 20
    assert len(await pop_all(store, "q")) == 20


async def test_redrive_takes_the_copy_with_the_dead_letter(store: Store) -> None:
    await with_dead_queue(store)
    await killed(store, 2)
    await killed(store, 1, partition="p")
    [first, *_] = sorted((await store.dead_letters(DeadLetterFilter())).items, key=lambda letter: letter.id)
    assert await store.redrive(DeadLetterFilter(ids=(first.id,))) == 1
    assert (await store.queue("dead")).messages == 2
    assert await store.redrive(DeadLetterFilter(queue="q")) == 2
    assert (await store.queue("dead")).messages == 0
    assert await store.redrive_queue("dead") == 0
    assert len(await pop_all(store, "q")) == 3
    assert await pop_all(store, "dead") == []


async def test_redrive_leaves_a_dead_letter_whose_copy_is_leased(store: Store, clock: SetClock) -> None:
    await with_dead_queue(store)
    await killed(store, 3)
    popped = await pop(store, "dead", batch=1, lease_seconds=10)
    assert await store.redrive(DeadLetterFilter(), limit=1) == 1, "it does not stand in the way of others"
    assert await store.redrive(DeadLetterFilter()) == 1
    assert await store.redrive(DeadLetterFilter()) == 0
    assert await dead_letters(store) == 1
    assert numbers(popped) == [1]
    clock.advance(10)
    assert await store.redrive(DeadLetterFilter()) == 1
    assert await dead_letters(store) == 0
    assert await pop_all(store, "dead") == []
    assert sorted(m.json()["n"] for m in await pop_all(store, "q")) == [1, 2, 3]


async def test_redrive_leaves_a_dead_letter_whose_copy_is_done(store: Store) -> None:
    """It was seen to in the dead queue; who names it by its id wants it even so."""
    await with_dead_queue(store)
    await killed(store, 3)
    await pop(store, "dead", batch=2, auto_ack=True)
    assert await store.redrive(DeadLetterFilter(queue="q")) == 1
    assert await store.redrive(DeadLetterFilter()) == await store.redrive_queue("dead") == 0
    assert await dead_letters(store) == 2
    [first, second] = sorted(one.id for one in (await store.dead_letters(DeadLetterFilter())).items)
    assert await store.redrive(DeadLetterFilter(ids=(first,)), done=False) == 0
    assert await store.redrive(DeadLetterFilter(ids=(first,))) == 1
    assert await store.redrive(DeadLetterFilter(queue="q"), done=True) == 1
    assert await store.redrive(DeadLetterFilter(ids=(second,))) == 0
    assert (await store.queue("dead")).messages == 2
    assert len(await pop_all(store, "q")) == 3


async def test_redrive_passes_over_many_that_are_done(store: Store) -> None:
    await with_dead_queue(store)
    await killed(store, 7)
    await pop(store, "dead", batch=5, auto_ack=True)
    assert await store.redrive(DeadLetterFilter(), limit=1) == 1
    assert await store.redrive(DeadLetterFilter(), limit=1) == 1
    assert await store.redrive(DeadLetterFilter(), limit=1) == 0


async def test_copy_that_retention_removed_stays_done(store: Store, clock: SetClock) -> None:
    await with_dead_queue(store)
    await configure(store, "dead", retention_enabled=True, completed_retention_seconds=60, retention_seconds=600)
    await killed(store, 2)
    await pop(store, "dead", auto_ack=True)
    await pop(store, "dead", auto_ack=True)
    clock.advance(10)
    await killed(store, 1)
    clock.advance(60)
    assert (await store.prune("completed_retention", limit=100)).messages == 2
    clock.advance(600)
    assert (await store.prune("retention", limit=100)).messages == 1
    assert await dead_letters(store) == 3
    assert await store.redrive(DeadLetterFilter(queue="q")) == 1, "nobody has seen to the copy that is gone"
    assert await store.redrive(DeadLetterFilter(queue="q")) == 0


async def test_copy_that_died_itself_is_not_done(store: Store) -> None:
    await with_dead_queue(store)
    await killed(store, 1)
    popped = await pop(store, "dead")
    assert (await ack(store, lease_id=popped.lease_id, status="dlq")).dead
    assert await store.redrive(DeadLetterFilter(queue="q")) == 1


async def test_copies_in_flight_of_a_shared_queue_mode_are_not_done(store: Store) -> None:
    await with_dead_queue(store)
    await configure(store, "dead", group_mode="shared")
    await killed(store, 2)
    popped = await pop(store, "dead", batch=2)
    [first, _] = popped.messages()
    await store.ack([ack_of(first, lease_id=popped.lease_id)])
    assert await store.redrive(DeadLetterFilter()) == 0
    assert (await ack(store, lease_id=popped.lease_id, status="released")).success
    assert await store.redrive(DeadLetterFilter()) == 1
    assert await dead_letters(store) == 1


async def test_redrive_of_a_copy_that_is_gone(store: Store) -> None:
    await with_dead_queue(store)
    await killed(store, 2)
    await store.clear("dead")
    assert await store.redrive(DeadLetterFilter(), limit=1) == 1
    await configure(store, "q")
    await store.delete_queue("dead")
    assert await store.redrive(DeadLetterFilter()) == 1


async def test_redrive_of_a_message_and_of_its_copy_that_died_too(store: Store) -> None:
    """The dead letter of the copy goes with the copy, and both messages are pushed again."""
    await with_dead_queue(store)
    await killed(store, 1)
    popped = await pop(store, "dead", group="g")
    assert (await ack(store, lease_id=popped.lease_id, status="dlq")).dead
    assert await store.redrive(DeadLetterFilter()) == 2
    assert (await store.dead_letters(DeadLetterFilter())).total == 0
    assert numbers(await pop(store, "q")) == [1]
    assert numbers(await pop(store, "dead", batch=10)) == [1]


async def test_redrive_to_a_full_queue_leaves_the_copies(store: Store) -> None:
    await with_dead_queue(store, max_size=2)
    await killed(store, 2)
    await push_n(store, "q", 2, start=3)
    with pytest.raises(QueueFull):
        await store.redrive(DeadLetterFilter())
    assert (await store.queue("dead")).messages == 2
    assert await dead_letters(store) == 2


async def test_redrive_takes_a_copy_that_a_shared_group_has_in_flight(store: Store, clock: SetClock) -> None:
    await with_dead_queue(store)
    await killed(store, 2)
    popped = await pop(store, "dead", group="s", mode="shared", batch=2, lease_seconds=10)
    assert await store.redrive(DeadLetterFilter()) == 0
    clock.advance(10)
    assert await store.redrive(DeadLetterFilter()) == 2
    assert numbers(await pop(store, "dead", group="s", batch=2)) == []
    assert (await ack(store, lease_id=popped.lease_id)).error == "lease_lost"


async def test_retried_message_takes_its_copies(store: Store) -> None:
    await with_dead_queue(store)
    await store.subscribe("q", "g", Subscription())
    await killed(store, 1)
    popped = await pop(store, "q", group="g")
    [message] = popped.messages()
    await ack(store, lease_id=popped.lease_id, status="dlq")
    assert (await store.queue("dead")).messages == 2
    popped = await pop(store, "dead", batch=1)
    with pytest.raises(Conflict):
        await store.retry_message(message.partition_id, message.transaction_id)
    assert (await store.queue("dead")).messages == 2
    await ack(store, lease_id=popped.lease_id, status="retry")
    await store.retry_message(message.partition_id, message.transaction_id)
    assert (await store.queue("dead")).messages == 0
    assert await dead_letters(store) == 0


async def test_purge_leaves_the_copy(store: Store) -> None:
    await with_dead_queue(store)
    await killed(store, 1)
    assert await store.purge(DeadLetterFilter()) == 1
    assert await store.redrive_queue("dead") == 1


@pytest.mark.parametrize("_", range(3))
async def test_redrive_from_both_ends_at_once_doubles_nothing(store: Store, _: int) -> None:
    await with_dead_queue(store)
    await killed(store, 20)
    calls = [store.redrive_queue("dead", limit=7) for _ in range(3)]
    calls += [store.redrive(DeadLetterFilter(queue="q"), limit=7) for _ in range(3)]
    moved = sum(await asyncio.gather(*calls))
    moved += await store.redrive_queue("dead") + await store.redrive(DeadLetterFilter())
    assert moved == 20
    assert len(await pop_all(store, "q")) == 20
    assert (await store.queue("dead")).messages == 0
    assert await dead_letters(store) == 0


# --- Told to who waits --------------------------------------------------------------------------------------


async def test_what_the_store_pushes_itself_is_told(store: Store) -> None:
    heard: list[tuple[str | None, Arrival]] = []
    # That a queue has changed is heard, too, but then nothing has come to it.
    await store.listen(
        lambda queue, arrival: heard.append((queue, arrival)) if arrival.messages else None, waiting=lambda: False
    )
    await with_dead_queue(store, retry_limit=0)
    await killed(store, 2)
    assert heard == [("dead", Arrival(1, 2))]
    assert await store.redrive(DeadLetterFilter(), limit=1) == 1
    assert await store.redrive_queue("dead") == 1
    assert heard == [("dead", Arrival(1, 2)), ("q", Arrival(1, 1)), ("q", Arrival(1, 1))]
    assert await store.redrive_queue("dead") == 0
    assert len(heard) == 3
