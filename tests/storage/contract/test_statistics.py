"""What a store tells about itself."""

from __future__ import annotations

import msgspec

from lockstep.core.messages import Batch
from lockstep.core.records import PopRequest
from lockstep.core.statistics import DatabaseStats, ServerSample, StoreCounts
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore
from support.builders import pop, push_n
from support.clock import SetClock


async def test_the_database_is_described(store: Store) -> None:
    stats = await store.database_stats()
    if isinstance(store, MemoryStore):
        assert stats == DatabaseStats()
        return
    assert stats.version is not None
    assert int(stats.version.split(".")[0]) >= 15
    assert stats.bytes > 0
    assert 1 <= stats.connections <= stats.connections_max
    assert stats.cache_hit_rate is None or 0 <= stats.cache_hit_rate <= 1
    sizes = [table.bytes for table in stats.tables]
    assert sizes == sorted(sizes, reverse=True)
    assert {"queue", "partition", "segment", "run", "cursor"} <= {table.name for table in stats.tables}


async def test_connections_and_cache_are_counted(store: Store) -> None:
    await store.push([Batch.of("q", [b"1", b"2"])])
    await store.pop([PopRequest(queue="q")])
    counts = store.counts()
    if isinstance(store, MemoryStore):
        assert counts == StoreCounts()
        return
    assert 1 <= counts.connections_open <= counts.connections_max
    assert counts.connections_idle == counts.connections_open
    assert counts.connection_waiters == 0
    assert (counts.cache_segments, counts.cache_hits, counts.cache_misses) == (1, 1, 0)
    assert 0 < counts.cache_bytes <= counts.cache_bytes_max


async def test_samples_are_joined_into_spans(store: Store, clock: SetClock) -> None:
    begin = clock.now
    for queue in ("a.mail", "b.mail"):
        await push_n(store, queue, 4)
    for _ in range(3):
        clock.advance(60)
        await pop(store, "a.mail", auto_ack=True)
        await store.sample()
    until = clock.ahead(1)

    [whole] = await store.sample_spans(seconds=10**8, from_at=begin, to_at=until)
    assert (whole.pushed, whole.completed, whole.dead, whole.seconds) == (8, 3, 0, 180)
    assert (whole.pending, whole.lag_seconds) == (5, 180)
    assert whole.rate(whole.completed) == 3 / 180

    minutes = await store.sample_spans(seconds=60, from_at=begin, to_at=until, queue="a.mail")
    assert [(span.pushed, span.completed, span.pending) for span in minutes] == [(4, 1, 3), (0, 1, 2), (0, 1, 1)]
    assert [span.at.second for span in minutes] == [0, 0, 0]


async def test_spans_are_filtered_by_namespace_task_and_time(store: Store, clock: SetClock) -> None:
    begin = clock.now
    await push_n(store, "a.mail", 1)
    await push_n(store, "b.bill", 2)
    clock.advance(60)
    await store.sample()

    async def pushed(**where: str) -> int:
        spans = await store.sample_spans(seconds=60, from_at=begin, to_at=clock.ahead(1), **where)  # type: ignore[arg-type]
        return sum(span.pushed for span in spans)

    assert (await pushed(), await pushed(namespace="a"), await pushed(task="bill")) == (3, 1, 2)
    assert await pushed(namespace="a", task="bill") == 0
    assert await store.sample_spans(seconds=60, from_at=begin, to_at=clock.now) == []
    await store.delete_queue("a.mail")
    assert (await pushed(), await pushed(namespace="a")) == (3, 0)


def server_sample(server: str, **changes: float) -> ServerSample:
    first = ServerSample(
        server=server, seconds=60, requests=10, client_errors=2, server_errors=1, queued=3, rejected=4, load=0.5
    )
    return msgspec.structs.replace(first, **changes)


async def test_samples_of_servers_are_joined_into_spans(store: Store, clock: SetClock) -> None:
    begin = clock.now
    await store.record_server(server_sample("a"))
    await store.record_server(server_sample("b", seconds=30, load=0.25))
    clock.advance(3600)
    await store.record_server(server_sample("a", requests=7))

    first, second = await store.server_spans(seconds=3600, from_at=begin, to_at=clock.ahead(1))
    assert (first.servers, first.seconds, first.requests, first.client_errors, first.server_errors) == (2, 60, 20, 4, 2)
    assert (first.queued, first.rejected, first.load) == (6, 8, 0.5)
    assert first.at <= begin < second.at
    assert (second.servers, second.requests, second.rate(second.requests)) == (1, 7, 7 / 60)
    assert await store.server_spans(seconds=3600, from_at=begin, to_at=begin) == []


async def test_old_samples_of_servers_are_removed(store: Store, clock: SetClock) -> None:
    begin = clock.now
    await store.record_server(server_sample("a"))
    clock.advance(7200)
    await store.record_server(server_sample("a"))
    assert await store.prune_history(3600, limit=10) == 1
    [span] = await store.server_spans(seconds=60, from_at=begin, to_at=clock.ahead(1))
    assert span.requests == 10
