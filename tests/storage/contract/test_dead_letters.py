"""Dead letters: list, look at, redrive, purge."""

from __future__ import annotations

import pytest

from lockstep.core.messages import Message
from lockstep.core.policy import GroupMode
from lockstep.core.records import DeadLetter, DeadLetterFilter, Subscription
from lockstep.errors import DeadLetterNotFound
from lockstep.storage.base import Store
from support.builders import (
    ack,
    ack_of,
    attempts_of,
    batch,
    configure,
    dead_letter_by_dlq,
    listed,
    numbers,
    pop,
    pop_all,
    push_n,
    push_tagged,
    seqs,
)
from support.clock import SetClock

ALL = DeadLetterFilter()
TRACE = "0190a1b2-c3d4-7e5f-8a6b-00000000000a"


async def letters(store: Store, where: DeadLetterFilter = ALL) -> list[DeadLetter]:
    page = await store.dead_letters(where)
    assert page.total == len(page.items)
    return page.items


async def four_letters(store: Store, clock: SetClock) -> None:
    """A second apart: q/a 1 and 2, q/b 1, r/Default 1."""
    for queue, partition in [("q", "a"), ("q", "a"), ("q", "b"), ("r", "Default")]:
        await dead_letter_by_dlq(store, queue, partition=partition)
        clock.advance(1)


def places(found: list[DeadLetter]) -> list[tuple[str, str, int]]:
    return [(letter.message.queue, letter.message.partition, letter.message.seq) for letter in found]


async def test_dead_letter_has_everything_about_its_message(store: Store, clock: SetClock) -> None:
    created_at = clock.now
    await push_n(
        store,
        "q",
        1,
        partition="p",
        transaction_ids=["order-1"],
        trace_ids=[TRACE],
        kinds=["k"],
        references=["r"],
        encodings=["avro"],
        headers=[b'{"tenant":"m\xc3\xbcller"}'],
        producer_subs=["anna"],
    )
    popped = await pop(store, "q")
    [message] = popped.messages()
    clock.advance(5)
    await ack(store, lease_id=popped.lease_id, status="dlq", error="poison")
    [letter] = await letters(store)
    assert (letter.group, letter.attempts, letter.error) == ("__QUEUE_MODE__", 1, "poison")
    assert letter.failed_at == clock.now
    found = letter.message
    assert (found.id, found.queue, found.partition, found.partition_id, found.seq) == (
        message.id,
        "q",
        "p",
        message.partition_id,
        1,
    )
    assert (found.payload, found.created_at, found.transaction_id) == (message.payload, created_at, "order-1")
    assert (found.trace_id, found.kind, found.reference, found.encoding) == (TRACE, "k", "r", "avro")
    assert (found.headers, found.producer_sub) == ({"tenant": "müller"}, "anna")
    assert await store.dead_letter(letter.id) == letter


async def test_dead_letter_that_is_not_there(store: Store) -> None:
    with pytest.raises(DeadLetterNotFound):
        await store.dead_letter(12345)


async def test_dead_letters_come_newest_first(store: Store, clock: SetClock) -> None:
    await four_letters(store, clock)
    assert places(await letters(store)) == [("r", "Default", 1), ("q", "b", 1), ("q", "a", 2), ("q", "a", 1)]


async def test_dead_letters_of_the_same_time_come_by_falling_id(store: Store) -> None:
    await dead_letter_by_dlq(store, "q", 5)
    ids = [letter.id for letter in await letters(store)]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == 5


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_dead_letters_of_one_call_have_the_order_of_its_acks(store: Store, mode: GroupMode) -> None:
    """Also those of one message, whichever group was there first."""
    await push_n(store, "q")
    for group in ("a", "b", "c"):
        await store.subscribe("q", group, Subscription(), mode=mode)
    message = (await listed(store, "q"))[0].message
    popped = [await pop(store, "q", group=group) for group in ("b", "c", "a")]
    await store.ack([ack_of(message, "dlq", lease_id=one.lease_id, group=one.group) for one in popped])
    assert [letter.group for letter in reversed(await letters(store))] == ["b", "c", "a"]


async def test_dead_letters_have_limit_offset_and_total(store: Store, clock: SetClock) -> None:
    await four_letters(store, clock)
    everything = await letters(store)
    for offset, limit in [(0, 2), (2, 2), (1, 100), (4, 2), (0, 1)]:
        page = await store.dead_letters(ALL, limit=limit, offset=offset)
        assert page.items == everything[offset : offset + limit]
        assert page.total == 4


async def test_dead_letters_filtered_by_place(store: Store, clock: SetClock) -> None:
    await four_letters(store, clock)
    assert places(await letters(store, DeadLetterFilter(queue="r"))) == [("r", "Default", 1)]
    assert places(await letters(store, DeadLetterFilter(queue="q", partition="a"))) == [
        ("q", "a", 2),
        ("q", "a", 1),
    ]
    assert await letters(store, DeadLetterFilter(queue="nowhere")) == []
    assert await letters(store, DeadLetterFilter(queue="r", partition="a")) == []


async def test_dead_letters_filtered_by_group(store: Store) -> None:
    await push_n(store, "q", 1)
    for group in ("g", "h"):
        popped = await pop(store, "q", group=group)
        await ack(store, lease_id=popped.lease_id, status="dlq")
    [letter] = await letters(store, DeadLetterFilter(group="g"))
    assert letter.group == "g"
    assert len(await letters(store)) == 2
    assert await letters(store, DeadLetterFilter(group="never-seen")) == []


async def test_dead_letters_filtered_by_time(store: Store, clock: SetClock) -> None:
    await four_letters(store, clock)
    where = DeadLetterFilter(from_at=clock.ago(3), to_at=clock.ago(1))
    assert places(await letters(store, where)) == [("q", "b", 1), ("q", "a", 2)]


async def test_dead_letters_filtered_by_id(store: Store, clock: SetClock) -> None:
    await four_letters(store, clock)
    everything = await letters(store)
    wanted = (everything[3].id, everything[1].id, 999_999)
    assert await letters(store, DeadLetterFilter(ids=wanted)) == [everything[1], everything[3]]
    assert await letters(store, DeadLetterFilter(ids=())) == []


async def test_filters_are_joined_by_and(store: Store, clock: SetClock) -> None:
    await four_letters(store, clock)
    [b] = await letters(store, DeadLetterFilter(queue="q", partition="b"))
    assert await letters(store, DeadLetterFilter(ids=(b.id,), partition="b", queue="q")) == [b]
    assert await letters(store, DeadLetterFilter(ids=(b.id,), partition="a", queue="q")) == []


# --- Redrive


async def test_redriven_message_comes_again_at_the_end(store: Store, clock: SetClock) -> None:
    [old] = await dead_letter_by_dlq(
        store,
        "q",
        1,
        start=7,
        transaction_ids=["order-1"],
        trace_ids=[TRACE],
        kinds=["k"],
        references=["r"],
        encodings=["avro"],
        headers=[b'{"tenant":"a"}'],
    )
    await push_n(store, "q", 1, start=8)
    clock.advance(60)
    assert await store.redrive(ALL) == 1
    assert await letters(store) == []

    found = list((await pop(store, "q", batch=10)).messages())
    assert seqs(found) == [2, 3]
    new: Message = found[-1]
    assert new.payload == old.payload
    assert (new.trace_id, new.kind, new.reference, new.encoding) == (TRACE, "k", "r", "avro")
    assert new.headers == {"tenant": "a", "lockstep-redriven-from": old.id}
    assert new.transaction_id == new.id != old.id
    assert (new.created_at, new.attempt) == (clock.now, 1)
    assert [m.seq for m in await store.trace(TRACE)] == [1, 3]


async def test_redriven_message_without_headers_gets_one(store: Store) -> None:
    [old] = await dead_letter_by_dlq(store, "q")
    await store.redrive(ALL)
    [new] = (await pop(store, "q")).messages()
    assert new.headers == {"lockstep-redriven-from": old.id}


async def test_redriven_message_leaves_the_old_transaction_id_used_up(store: Store) -> None:
    [old] = await dead_letter_by_dlq(store, "q", 1, transaction_ids=["order-1"])
    await store.redrive(ALL)
    [again] = await push_tagged(store, "q", "order-1")
    assert (again.status, again.message_id) == ("duplicate", old.id)


async def test_redriven_message_is_seen_by_every_group(store: Store) -> None:
    await push_n(store, "q", 1, start=7)
    await pop_all(store, "q", group="other")
    popped = await pop(store, "q", group="g")
    await ack(store, lease_id=popped.lease_id, status="dlq")
    await store.redrive(ALL)
    for group in ("g", "other"):
        found = await pop_all(store, "q", group=group)
        assert (numbers(found), seqs(found)) == ([7], [2])


async def test_redriven_message_may_fail_again(store: Store) -> None:
    await configure(store, "q", retry_limit=0)
    await dead_letter_by_dlq(store, "q")
    await store.redrive(ALL)
    popped = await pop(store, "q")
    assert attempts_of(popped) == [1]
    await ack(store, lease_id=popped.lease_id, status="failed")
    [letter] = await letters(store)
    assert letter.message.seq == 2


async def test_redrive_of_one(store: Store) -> None:
    await dead_letter_by_dlq(store, "q", 3)
    _, second, _ = await letters(store)
    assert await store.redrive(DeadLetterFilter(ids=(second.id,))) == 1
    assert [letter.message.seq for letter in await letters(store)] == [3, 1]
    assert numbers(await pop_all(store, "q")) == [2]


async def test_redrive_keeps_the_order_of_death(store: Store) -> None:
    await dead_letter_by_dlq(store, "q", 4)
    assert await store.redrive(ALL) == 4
    assert numbers(await pop_all(store, "q")) == [1, 2, 3, 4]


async def test_redrive_has_a_limit(store: Store) -> None:
    await dead_letter_by_dlq(store, "q", 5)
    assert await store.redrive(ALL, limit=2) == 2
    assert numbers(await pop_all(store, "q")) == [1, 2]
    assert await store.redrive(ALL, limit=100) == 3
    assert numbers(await pop_all(store, "q")) == [3, 4, 5]
    assert await store.redrive(ALL) == 0


async def test_redrive_over_partitions_and_queues(store: Store, clock: SetClock) -> None:
    await four_letters(store, clock)
    assert await store.redrive(DeadLetterFilter(queue="q")) == 3
    found = await pop_all(store, "q")
    assert sorted((m.partition, m.seq) for m in found) == [("a", 3), ("a", 4), ("b", 2)]
    assert places(await letters(store)) == [("r", "Default", 1)]


async def test_redriven_original_is_completed(store: Store) -> None:
    await dead_letter_by_dlq(store, "q")
    await store.redrive(ALL)
    assert [view.status for view in await listed(store, "q")] == ["completed", "pending"]


# --- Purge


async def test_purge_removes_matching_dead_letters_and_keeps_messages(store: Store, clock: SetClock) -> None:
    await four_letters(store, clock)
    assert await store.purge(DeadLetterFilter(queue="q", partition="a")) == 2
    assert places(await letters(store)) == [("r", "Default", 1), ("q", "b", 1)]
    assert (await store.partition("q", "a")).messages == 2
    assert await store.purge(ALL) == 2
    assert await store.purge(ALL) == 0


async def test_purged_dead_letter_cannot_be_redriven(store: Store) -> None:
    await dead_letter_by_dlq(store, "q")
    [letter] = await letters(store)
    await store.purge(DeadLetterFilter(ids=(letter.id,)))
    assert await store.redrive(DeadLetterFilter(ids=(letter.id,))) == 0
    with pytest.raises(DeadLetterNotFound):
        await store.dead_letter(letter.id)
    assert not await pop(store, "q")


async def test_one_message_may_be_dead_for_several_groups(store: Store) -> None:
    await store.push([batch("q", 1)])
    for group in ("g", "h"):
        popped = await pop(store, "q", group=group)
        await ack(store, lease_id=popped.lease_id, status="dlq", error=group)
    assert [(letter.group, letter.error) for letter in await letters(store)] == [("h", "h"), ("g", "g")]
    assert await store.redrive(DeadLetterFilter(group="g")) == 1
    assert [letter.group for letter in await letters(store)] == ["h"]
