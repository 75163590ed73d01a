"""What follows a failed delivery: retry delay, backoff, and the end of attempts."""

from __future__ import annotations

import pytest

from lockstep.core.endings import AckStatus
from lockstep.core.policy import UNLIMITED, GroupMode
from lockstep.core.records import Ack, AckOutcome, DeadLetterFilter, Popped, Position
from lockstep.core.rules import LEASE_EXPIRED
from lockstep.storage.base import Store
from support.builders import (
    ack,
    ack_of,
    attempts_of,
    batch,
    configure,
    lag_of,
    partitions_of,
    pop,
    push_n,
    seqs,
)
from support.clock import SetClock

ALL = DeadLetterFilter()


async def fail(store: Store, popped: Popped, error: str = "no") -> AckOutcome:
    return await ack(store, lease_id=popped.lease_id, status="failed", error=error)


async def exhaust(store: Store, clock: SetClock, *, by: str, deliveries: int, queue: str = "q") -> None:
    """Let every delivery of the queue's head fail, by a nack or by letting its lease expire."""
    for attempt in range(1, deliveries + 1):
        popped = await pop(store, queue, batch=1, lease_seconds=10)
        assert attempts_of(popped) == [attempt]
        if by == "failed":
            await fail(store, popped)
        else:
            clock.advance(10)


async def test_failure_waits_for_the_retry_delay(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retry_delay_ms=2500)
    await push_n(store, "q", 2)
    outcome = await fail(store, await pop(store, "q", batch=2))
    assert (outcome.success, outcome.released, outcome.dead, outcome.messages) == (True, True, False, 0)
    lag = await lag_of(store, "q")
    assert (lag.attempts, lag.leased, lag.due_at) == (1, False, clock.ahead(2.5))
    clock.advance(2.499_999)
    assert not await pop(store, "q", batch=2)
    clock.advance(0.000_001)
    again = await pop(store, "q", batch=2)
    assert (seqs(again), attempts_of(again)) == ([1, 2], [2, 2])


async def test_retry_is_delivered_at_once_and_not_counted(store: Store) -> None:
    await configure(store, "q", retry_delay_ms=60_000, retry_limit=1)
    await push_n(store, "q", 2)
    for _ in range(5):
        popped = await pop(store, "q", batch=2)
        assert (seqs(popped), attempts_of(popped)) == ([1, 2], [1, 1])
        outcome = await ack(store, lease_id=popped.lease_id, status="retry")
        assert (outcome.success, outcome.released, outcome.dead) == (True, True, False)
    assert (await store.dead_letters(ALL)).total == 0


async def test_push_does_not_shorten_the_retry_delay(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retry_delay_ms=5000)
    await push_n(store, "q")
    await fail(store, await pop(store, "q"))
    await push_n(store, "q")
    assert not await pop(store, "q")
    clock.advance(5)
    assert seqs(await pop(store, "q", batch=2)) == [1, 2]


@pytest.mark.parametrize(
    ("backoff", "longest", "expected"),
    [
        (1.0, 3_600_000, [1, 1, 1, 1]),
        (2.0, 3_600_000, [1, 2, 4, 8]),
        (2.0, 3_000, [1, 2, 3, 3]),
        (1.5, 3_600_000, [1, 1.5, 2.25, 3.375]),
        (3.0, 0, [1, 1, 1, 1]),
    ],
    ids=["fixed", "doubled", "capped", "by-half", "cap-below-delay"],
)
async def test_backoff_lengthens_the_retry_delay(
    store: Store, clock: SetClock, backoff: float, longest: int, expected: list[float]
) -> None:
    await configure(store, "q", retry_limit=10, retry_delay_ms=1000, retry_backoff=backoff, retry_delay_ms_max=longest)
    await push_n(store, "q")
    for seconds in expected:
        await fail(store, await pop(store, "q"))
        assert (await lag_of(store, "q")).due_at == clock.ahead(seconds)
        clock.advance(seconds)


async def test_expired_lease_is_delivered_without_retry_delay(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=10, retry_delay_ms=60_000)
    await push_n(store, "q")
    await pop(store, "q")
    clock.advance(10)
    assert attempts_of(await pop(store, "q")) == [2]


async def test_progress_starts_the_count_again(store: Store) -> None:
    await configure(store, "q", retry_limit=1, retry_delay_ms=0)
    await push_n(store, "q", 2)
    await fail(store, await pop(store, "q", batch=2))
    popped = await pop(store, "q", batch=2)
    assert attempts_of(popped) == [2, 2]
    await ack(store, lease_id=popped.lease_id, seq=1)
    outcome = await fail(store, popped)
    assert outcome.dead is False
    again = await pop(store, "q", batch=2)
    assert (seqs(again), attempts_of(again)) == ([2], [2])


async def test_failure_in_the_middle_commits_nothing_before_it(store: Store) -> None:
    await configure(store, "q", retry_delay_ms=0)
    await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=3)
    [_, second, _] = popped.messages()
    await store.ack([ack_of(second, "failed", lease_id=popped.lease_id)])
    assert seqs(await pop(store, "q", batch=3)) == [1, 2, 3]


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("by", ["failed", "expired"])
async def test_without_a_limit_a_message_is_delivered_again_and_again(
    store: Store, clock: SetClock, by: str, mode: GroupMode
) -> None:
    await configure(store, "q", retry_limit=UNLIMITED, retry_delay_ms=0, on_exhausted="stop", group_mode=mode)
    await push_n(store, "q")
    await exhaust(store, clock, by=by, deliveries=70)
    assert not (await store.dead_letters(ALL)).items
    assert (await ack(store, lease_id=(await pop(store, "q")).lease_id, status="dlq")).dead


async def test_retry_delay_without_a_limit_stays_at_its_longest(store: Store, clock: SetClock) -> None:
    await configure(
        store, "q", retry_limit=UNLIMITED, retry_delay_ms=1000, retry_backoff=10.0, retry_delay_ms_max=60_000
    )
    await push_n(store, "q")
    for seconds in (1, 10, 60, 60, 60):
        await fail(store, await pop(store, "q"))
        assert (await lag_of(store, "q")).due_at == clock.ahead(seconds)
        clock.advance(seconds)


@pytest.mark.parametrize("retry_limit", [0, 1, 3])
@pytest.mark.parametrize("by", ["failed", "expired"])
async def test_exhausted_message_becomes_a_dead_letter(
    store: Store, clock: SetClock, by: str, retry_limit: int
) -> None:
    await configure(store, "q", retry_limit=retry_limit, retry_delay_ms=0)
    await push_n(store, "q", 2)
    await exhaust(store, clock, by=by, deliveries=retry_limit + 1)
    again = await pop(store, "q", batch=5)
    assert (seqs(again), attempts_of(again)) == ([2], [1])
    [letter] = (await store.dead_letters(ALL)).items
    assert (letter.message.seq, letter.attempts, letter.group) == (1, retry_limit + 1, "__QUEUE_MODE__")
    assert letter.error == ("no" if by == "failed" else LEASE_EXPIRED)
    assert letter.failed_at == clock.now


async def test_last_failure_says_that_the_message_is_dead(store: Store) -> None:
    await configure(store, "q", retry_limit=0)
    await push_n(store, "q", 3)
    outcome = await fail(store, await pop(store, "q", batch=3))
    assert (outcome.success, outcome.dead, outcome.released) == (True, True, True)
    assert (await lag_of(store, "q")).attempts == 0
    # No retry delay: the message behind it has not failed.
    assert seqs(await pop(store, "q", batch=3)) == [2, 3]


@pytest.mark.parametrize("by", ["failed", "expired"])
async def test_dropped_message_leaves_no_dead_letter(store: Store, clock: SetClock, by: str) -> None:
    await configure(store, "q", retry_limit=1, retry_delay_ms=0, on_exhausted="drop")
    await push_n(store, "q", 2)
    await exhaust(store, clock, by=by, deliveries=2)
    assert seqs(await pop(store, "q", batch=5)) == [2]
    assert (await store.dead_letters(ALL)).total == 0


async def test_dropping_failure_succeeds_without_being_dead(store: Store) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="drop")
    await push_n(store, "q")
    outcome = await fail(store, await pop(store, "q"))
    assert (outcome.success, outcome.dead, outcome.released) == (True, False, True)


@pytest.mark.parametrize("by", ["failed", "expired"])
async def test_stopped_partition_waits_for_an_operator(store: Store, clock: SetClock, by: str) -> None:
    await configure(store, "q", retry_limit=1, retry_delay_ms=0, on_exhausted="stop")
    await store.push([batch("q", 2, partition="bad")])
    await exhaust(store, clock, by=by, deliveries=2)
    assert not await pop(store, "q", batch=5)
    lag = await lag_of(store, "q", partition="bad")
    assert (lag.stopped, lag.acked, lag.lag, lag.leased, lag.attempts) == (True, 0, 2, False, 2)
    assert (await store.dead_letters(ALL)).total == 0

    # Neither time nor a push wakes it, and others are not held up.
    clock.advance(10 * 366 * 86_400)
    await store.push([batch("q", 1, partition="bad"), batch("q", 1, partition="good")])
    assert partitions_of(await pop(store, "q", batch=5, partitions=5)) == ["good"]

    assert await store.seek("q", "__QUEUE_MODE__", Position("current"), partition="bad") == 1
    assert not (await lag_of(store, "q", partition="bad")).stopped
    again = await pop(store, "q", batch=5)
    assert (seqs(again), attempts_of(again)) == ([1, 2, 3], [1, 1, 1])


async def test_stop_clamps_what_follows(store: Store) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop")
    await push_n(store, "q", 2)
    popped = await pop(store, "q", batch=2)
    first, second = popped.messages()
    outcomes = await store.ack(
        [ack_of(first, "failed", lease_id=popped.lease_id), ack_of(second, lease_id=popped.lease_id)]
    )
    assert [(o.success, o.error, o.dead) for o in outcomes] == [
        (True, None, False),
        (False, "clamped", False),
    ]
    assert (await lag_of(store, "q")).stopped


async def test_seek_past_the_failure_frees_a_stopped_partition(store: Store) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop")
    await push_n(store, "q", 2)
    await fail(store, await pop(store, "q", batch=2))
    await store.seek("q", "__QUEUE_MODE__", Position("seq", seq=2))
    assert not (await lag_of(store, "q")).stopped
    assert seqs(await pop(store, "q", batch=2)) == [2]


@pytest.mark.parametrize(("status", "expected"), [("completed", [2, 3]), ("retry", [1, 2, 3]), ("dlq", [2, 3])])
async def test_ack_of_what_stopped_a_partition_lets_it_go_on(
    store: Store, status: AckStatus, expected: list[int]
) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop")
    await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=3)
    [first, *_] = popped.messages()
    await fail(store, popped)
    [outcome] = await store.ack([ack_of(first, status)])
    assert outcome.success
    assert not (await lag_of(store, "q")).stopped
    assert seqs(await pop(store, "q", batch=5)) == expected


@pytest.mark.parametrize("on_exhausted", ["dead", "drop"])
async def test_exhausted_message_does_not_clamp(store: Store, on_exhausted: str) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted=on_exhausted)
    await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=3)
    first, second, third = popped.messages()
    outcomes = await store.ack(
        [
            ack_of(first, lease_id=popped.lease_id),
            ack_of(second, "failed", lease_id=popped.lease_id),
            ack_of(third, lease_id=popped.lease_id),
        ]
    )
    assert [o.success for o in outcomes] == [True, True, True]
    assert (await lag_of(store, "q")).lag == 0


@pytest.mark.parametrize("on_exhausted", ["dead", "drop", "stop"])
async def test_dlq_is_recorded_whatever_the_policy(store: Store, clock: SetClock, on_exhausted: str) -> None:
    await configure(store, "q", on_exhausted=on_exhausted, retry_limit=3)
    await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=3)
    first, *_ = popped.messages()
    [outcome] = await store.ack([ack_of(first, "dlq", lease_id=popped.lease_id, error="poison")])
    assert (outcome.success, outcome.dead, outcome.released) == (True, True, True)
    [letter] = (await store.dead_letters(ALL)).items
    assert (letter.message.id, letter.error, letter.attempts, letter.failed_at) == (
        first.id,
        "poison",
        1,
        clock.now,
    )
    assert seqs(await pop(store, "q", batch=3)) == [2, 3]


async def test_dlq_in_the_middle_passes_everything_before_it(store: Store) -> None:
    await push_n(store, "q", 5)
    popped = await pop(store, "q", batch=5)
    third = list(popped.messages())[2]
    await store.ack([ack_of(third, "dlq", lease_id=popped.lease_id)])
    assert (await lag_of(store, "q")).acked == 3
    assert (await store.dead_letters(ALL)).total == 1
    assert seqs(await pop(store, "q", batch=5)) == [4, 5]


async def test_completed_and_dlq_in_one_call(store: Store) -> None:
    await push_n(store, "q", 4)
    popped = await pop(store, "q", batch=4)
    m1, m2, m3, m4 = popped.messages()
    outcomes = await store.ack(
        [
            ack_of(m1, lease_id=popped.lease_id),
            ack_of(m2, "dlq", lease_id=popped.lease_id),
            ack_of(m3, lease_id=popped.lease_id),
            ack_of(m4, "dlq", lease_id=popped.lease_id),
        ]
    )
    assert [(o.success, o.dead) for o in outcomes] == [
        (True, False),
        (True, True),
        (True, False),
        (True, True),
    ]
    letters = (await store.dead_letters(ALL)).items
    assert sorted(letter.message.seq for letter in letters) == [2, 4]
    assert (await lag_of(store, "q")).lag == 0


async def test_failures_of_one_group_do_not_touch_another(store: Store) -> None:
    await configure(store, "q", retry_limit=0)
    await push_n(store, "q", 2)
    theirs = await pop(store, "q", batch=2, group="g")
    await fail(store, await pop(store, "q", batch=2))
    assert (await ack(store, lease_id=theirs.lease_id)).messages == 2
    [letter] = (await store.dead_letters(ALL)).items
    assert letter.group == "__QUEUE_MODE__"


async def test_poisoned_partition_does_not_hold_up_another(store: Store) -> None:
    await configure(store, "q", retry_delay_ms=60_000)
    await store.push([batch("q", 1, partition="bad"), batch("q", 3, partition="good")])
    await fail(store, await pop(store, "q", partition="bad"))
    popped = await pop(store, "q", batch=10, partitions=10)
    assert partitions_of(popped) == ["good"]


async def test_expiry_is_charged_once_however_long_it_takes(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=10, retry_limit=5)
    await push_n(store, "q")
    await pop(store, "q")
    clock.advance(1000)
    assert attempts_of(await pop(store, "q")) == [2]


async def test_several_dead_heads_are_found_by_later_pops(store: Store, clock: SetClock) -> None:
    await configure(store, "q", lease_seconds=10, retry_limit=0)
    await push_n(store, "q", 3)
    for expected in ([1, 2, 3], [2, 3], [3], []):
        assert seqs(await pop(store, "q", batch=3)) == expected
        clock.advance(10)
    letters = (await store.dead_letters(ALL)).items
    assert sorted(letter.message.seq for letter in letters) == [1, 2, 3]


async def test_error_may_be_any_text_or_none(store: Store) -> None:
    await push_n(store, "q", 2)
    for error in ("schlecht: ‘日本’\n" + "x" * 5000, None):
        popped = await pop(store, "q", batch=1)
        await ack(store, lease_id=popped.lease_id, status="dlq", error=error)
        assert (await store.dead_letters(ALL)).items[0].error == error
        await store.purge(ALL)


async def test_ack_that_changes_nothing_does_not_end_the_retry_delay(store: Store, clock: SetClock) -> None:
    await configure(store, "q", retry_delay_ms=5000)
    await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=3)
    first, second, _ = popped.messages()
    await ack(store, lease_id=popped.lease_id, seq=1)
    await fail(store, popped)
    outcomes = await store.ack(
        [
            ack_of(second, lease_id=popped.lease_id),
            ack_of(second, "retry", lease_id="garbage"),
            ack_of(first),
            ack_of(first, "failed"),
            Ack(partition_id=first.partition_id, transaction_id="no such"),
        ]
    )
    assert [o.error for o in outcomes] == ["lease_lost", "lease_lost", None, "committed", "unresolvable"]
    lag = await lag_of(store, "q")
    assert (lag.acked, lag.attempts, lag.due_at) == (1, 1, clock.ahead(5))
    assert not await pop(store, "q", batch=3)
