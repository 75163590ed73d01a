"""What a store remembers: segments up to a limit of bytes, and ids by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from lockstep.config import load
from lockstep.core.crons import NewCron
from lockstep.core.messages import Batch, Columns
from lockstep.core.wire import delivery as wire
from lockstep.errors import QueueFull
from lockstep.storage.postgres.cache import NameCache, QueueNames, Segment, SegmentCache, forgetting_on_failure
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, binary_payload, configure, numbers, pop, pop_all, push_n
from support.databases import Databases

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def segment(content_bytes: int, *, count: int = 1) -> Segment:
    return Segment(UUID(int=0), NOW, Columns([b""] * count), content_bytes)


def size_of(content_bytes: int) -> int:
    return segment(content_bytes).memory_bytes()


# --- Segments -------------------------------------------------------------------------------------------------


def test_segment_is_found_again() -> None:
    cache = SegmentCache(10_000)
    kept = segment(100)
    cache.put(1, kept)
    assert cache.get(1) is kept
    assert cache.get(2) is None
    assert (cache.hits, cache.misses, len(cache)) == (1, 1, 1)


def test_least_recently_used_segments_make_room() -> None:
    cache = SegmentCache(3 * size_of(1000))
    for number in (1, 2, 3):
        cache.put(number, segment(1000))
    assert cache.get(1) is not None
    cache.put(4, segment(1000))
    assert [number for number in (1, 2, 3, 4) if cache.get(number)] == [1, 3, 4]
    assert cache.bytes == 3 * size_of(1000)


def test_large_segment_makes_several_others_go() -> None:
    cache = SegmentCache(5 * size_of(1000))
    for number in range(5):
        cache.put(number, segment(1000))
    cache.put(9, segment(4000))
    assert cache.get(9) is not None
    assert cache.bytes <= cache.bytes_max
    assert len(cache) == 1 + (cache.bytes - size_of(4000)) // size_of(1000)


def test_segment_that_is_larger_than_the_cache_is_not_kept() -> None:
    cache = SegmentCache(size_of(1000))
    cache.put(1, segment(1000))
    cache.put(2, segment(1001))
    assert (cache.get(1) is not None, cache.get(2)) == (True, None)


def test_segment_that_is_there_is_not_counted_twice() -> None:
    cache = SegmentCache(10_000)
    for _ in range(3):
        cache.put(1, segment(1000))
    assert (len(cache), cache.bytes) == (1, size_of(1000))


def test_many_small_messages_weigh_more_than_their_bytes() -> None:
    assert segment(1000, count=1000).memory_bytes() > 10 * segment(1000).memory_bytes()


def test_cache_without_room_keeps_nothing() -> None:
    cache = SegmentCache(0)
    cache.put(1, segment(0))
    assert cache.get(1) is None
    assert (len(cache), cache.bytes) == (0, 0)


# --- Names ----------------------------------------------------------------------------------------------------


def names(queue_id: int, *, limited: bool = False) -> QueueNames:
    return QueueNames(queue_id, "zstd", False, limited)


def put_partitions(cache: NameCache, queue: str, partitions: dict[str, int]) -> None:
    known = cache.get(queue)
    assert known is not None
    cache.put_partitions(queue, partitions, of=known)


def test_partitions_of_a_queue_that_was_forgotten_are_not_remembered() -> None:
    cache = NameCache(100)
    old = cache.put("q", names(1))
    cache.forget("q")
    cache.put_partitions("q", {"p": 7}, of=old)
    assert cache.get("q") is None
    new = cache.put("q", names(2))
    cache.put_partitions("q", {"p": 7}, of=old)
    assert new.partitions == {}


def test_queue_that_is_the_same_keeps_what_is_known_of_it() -> None:
    cache = NameCache(100)
    cache.put("q", names(1))
    put_partitions(cache, "q", {"p": 7})
    again = cache.put("q", names(1, limited=True))
    assert again is cache.get("q")
    assert (again.partitions, again.limited) == ({"p": 7}, True)


def test_queue_that_is_another_one_knows_nothing() -> None:
    cache = NameCache(100)
    cache.put("q", names(1)).groups["g"] = 3
    put_partitions(cache, "q", {"p": 7})
    again = cache.put("q", names(2))
    assert (again.partitions, again.groups) == ({}, {})


def test_forgotten_queue_is_unknown() -> None:
    cache = NameCache(100)
    cache.put("q", names(1))
    cache.forget("q")
    cache.forget("q")
    assert cache.get("q") is None


def test_partitions_beyond_the_limit_make_all_others_go() -> None:
    cache = NameCache(3)
    for queue_id, queue in enumerate(("a", "b"), 1):
        cache.put(queue, names(queue_id))
    put_partitions(cache, "a", {"p1": 1, "p2": 2})
    put_partitions(cache, "b", {"p1": 3})
    put_partitions(cache, "b", {"p2": 4})
    known = [cache.get(queue) for queue in ("a", "b")]
    assert [queue.partitions for queue in known if queue] == [{}, {"p2": 4}]


def learn(cache: NameCache) -> None:
    known = cache.get("known")
    assert known is not None
    put_partitions(cache, "known", {"p3": 3})
    known.put_group("h", 2, "ordered", True)
    known.note_expiring()
    cache.put("new", names(2))
    put_partitions(cache, "new", {"p": 4})


def fail_after_learning(cache: NameCache) -> None:
    with forgetting_on_failure():
        learn(cache)
        raise ZeroDivisionError


def fail_after_a_part_learned(cache: NameCache) -> None:
    with forgetting_on_failure():
        with forgetting_on_failure():
            learn(cache)
        raise ZeroDivisionError


@pytest.mark.parametrize("fail", [fail_after_learning, fail_after_a_part_learned])
def test_what_a_transaction_that_failed_has_learned_is_forgotten(fail: Callable[[NameCache], None]) -> None:
    cache = NameCache(4)
    known = cache.put("known", names(1))
    put_partitions(cache, "known", {"p1": 1, "p2": 2})
    known.put_group("g", 1, "ordered", True)
    with pytest.raises(ZeroDivisionError):
        fail(cache)
    assert cache.get("new") is None
    assert cache.get("known") is known
    assert (known.partitions, known.groups, known.expiring) == ({"p1": 1, "p2": 2}, {"g": 1}, False)
    put_partitions(cache, "known", {"p3": 3, "p4": 4})
    assert list(known.partitions) == ["p1", "p2", "p3", "p4"], "there is room for four"


def test_what_a_transaction_has_learned_stays() -> None:
    cache = NameCache(4)
    with forgetting_on_failure():
        known = cache.put("q", names(1))
        put_partitions(cache, "q", {"p": 1})
        known.note_expiring()
    assert cache.get("q") is known
    assert (known.partitions, known.expiring) == ({"p": 1}, True)


def test_forgotten_partitions_leave_room() -> None:
    cache = NameCache(2)
    cache.put("a", names(1))
    cache.put("b", names(2))
    put_partitions(cache, "b", {"p": 9})
    for turn in range(5):
        cache.put("a", names(10 + turn))
        put_partitions(cache, "a", {"p": turn})
        cache.forget("a")
    kept = cache.get("b")
    assert kept is not None
    assert kept.partitions == {"p": 9}


# --- In a store -----------------------------------------------------------------------------------------------


class Seen:
    """The names of the queries that were made."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str, _seconds: float, _error: BaseException | None) -> None:
        self.names.append(name)


MakeStore = Callable[..., PostgresStore]


@pytest_asyncio.fixture
async def make_store(databases: Databases) -> AsyncIterator[MakeStore]:
    dsn = databases.emptied()
    made: list[PostgresStore] = []

    def make(on_query: Any = None, **settings: Any) -> PostgresStore:
        made.append(PostgresStore(dsn, config=load(settings, environ={}), on_query=on_query))
        return made[-1]

    yield make
    for store in made:
        await store.close()


async def test_what_was_pushed_here_is_popped_without_reading_it_back(make_store: MakeStore) -> None:
    seen = Seen()
    store = make_store(seen)
    await push_n(store, "q", 200)
    assert numbers(await pop(store, "q", batch=200)) == list(range(1, 201))
    assert "segment_load" not in seen.names


async def test_segment_of_many_partitions_is_read_once(make_store: MakeStore) -> None:
    await make_store().push([batch("q", 50, partition=f"p{number}") for number in range(5)])
    seen = Seen()
    store = make_store(seen)
    for number in range(5):
        assert len(await pop(store, "q", partition=f"p{number}", batch=50)) == 50
    assert seen.names.count("segment_load") == 1


@pytest.mark.parametrize("bytes_max", [0, 10_000])
async def test_small_cache_serves_everything_all_the_same(make_store: MakeStore, bytes_max: int) -> None:
    store = make_store(segment_cache_bytes_max=bytes_max)
    for start in range(1, 21):
        await push_n(store, "q", start=start)
    await push_n(store, "q", 2, start=21, headers=[b'{"large":"%s"}' % (b"x" * 20_000), None])
    assert numbers(await pop_all(store, "q")) == list(range(1, 23))
    assert store.context.segments.bytes <= bytes_max


@pytest.mark.parametrize("entries_max", [1, 2, 3])
async def test_store_that_remembers_few_partitions_pushes_to_many(make_store: MakeStore, entries_max: int) -> None:
    store = make_store(partition_cache_entries_max=entries_max)
    for count in (1, 2, 5, 3, 8):
        await store.push([batch("q", partition=f"p{number}") for number in range(count)])
    await store.push([batch("r", partition="p1"), batch("q", partition="p1"), batch("q", partition="p9")])
    assert len(await pop_all(store, "q")) == 21
    assert len(await pop_all(store, "r")) == 1


async def test_names_are_looked_up_once(make_store: MakeStore) -> None:
    seen = Seen()
    store = make_store(seen)
    for start in range(5):
        await push_n(store, "q", start=start, partition="p")
        await pop(store, "q", partition="p", auto_ack=True)
    assert {name: seen.names.count(name) for name in ("resolve", "subscribe")} == {"resolve": 1, "subscribe": 1}


async def test_payload_from_the_cache_is_the_one_that_was_pushed(make_store: MakeStore) -> None:
    store, other = make_store(), make_store()
    payload = binary_payload(5000)
    await store.push([Batch.of("q", [payload, payload[::-1]], encodings=["raw", "raw"])])
    for reader, group in ((store, "here"), (other, "there")):
        assert (await pop(reader, "q", group=group, batch=9)).payloads() == [payload, payload[::-1]]


async def test_block_that_was_stored_is_kept_as_it_came(dsn: str) -> None:
    store = PostgresStore(dsn)
    body = wire.write_push([Batch.of("q", [binary_payload(2_000)] * 10, encodings=["raw"] * 10)])
    pushed = wire.PackedPush(body, items_max=100).batches()
    await store.push(pushed)
    [run] = (await pop(store, "q", batch=10)).runs
    await store.close()
    assert run.columns.part is not None
    assert run.columns.part == pushed[0].columns.part
    assert run.columns.payloads == pushed[0].columns.payloads


async def test_refused_push_leaves_others_what_they_know(make_store: MakeStore) -> None:
    store = make_store()
    await store.open()
    await configure(store, "q", max_size=1)
    await push_n(store, "q", partition="p")
    known = store.context.names.get("q")
    assert known is not None
    with pytest.raises(QueueFull):
        await push_n(store, "q", partition="new")
    assert store.context.names.get("q") is known
    assert list(known.partitions) == ["p"]
    assert not await pop(store, "q", partition="new")
    await pop_all(store, "q")
    assert [receipt.seq for receipt in await push_n(store, "q", partition="new")] == [1]


async def test_refused_recurring_message_leaves_no_partition_that_is_not_there(make_store: MakeStore) -> None:
    store = make_store()
    await store.open()
    await configure(store, "q", max_size=1)
    await push_n(store, "q", partition="p")
    await store.set_cron(NewCron(name="c", queue="q", expression="0 0 1 1 *", payload=b"{}", partition="new"))
    known = store.context.names.get("q")
    assert known is not None
    await store.context.database.fetch("due", "update lockstep.cron set next_at = clock_timestamp()")
    assert "QueueFull" in (await store.promote(limit=10)).postponed["cron c"]
    assert "new" not in known.partitions
