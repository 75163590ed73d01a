"""Messages go back under the ids that they had: whole segments, parts of them, twice, and into queues with limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from uuid import uuid4

import msgspec
import pytest

from lockstep.config import load
from lockstep.core.messages import Batch, Columns, Message
from lockstep.core.policy import queue_options
from lockstep.core.records import MessageFilter
from lockstep.errors import EncryptionUnavailable, QueueFull
from lockstep.spark.database import Access
from lockstep.spark.jobs import restoring
from lockstep.spark.jobs.restoring import Archived, Restored, Restorer
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, pop, push_n

KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


def archived(messages: Iterable[Message], *, queue: str | None = None) -> list[Archived]:
    return [
        Archived(
            queue=queue or message.queue,
            partition=message.partition,
            message_id=message.id,
            created_at=message.created_at,
            payload=message.payload,
            transaction_id=None if message.transaction_id == message.id else message.transaction_id,
            trace_id=message.trace_id,
            kind=message.kind,
            reference=message.reference,
            encoding=message.encoding,
            headers=None if message.headers is None else msgspec.json.encode(message.headers),
            producer_sub=message.producer_sub,
        )
        for message in messages
    ]


async def stored(store: PostgresStore, queue: str) -> list[Message]:
    """All messages of a queue, by id."""
    page = await store.messages(MessageFilter(queue=queue), limit=1000)
    return sorted((view.message for view in page.items), key=lambda message: message.id)


def same(messages: Iterable[Message]) -> list[Message]:
    """What of a message is kept: all but the ids of its partition and the time at which it came."""
    return [msgspec.structs.replace(one, partition_id=0, seq=0, created_at=None) for one in messages]


def restore(
    dsn: str, messages: Sequence[Archived], *, keep_created_at: bool = False, key: str | None = None
) -> Restored:
    config = load({"encryption_key": key}, environ={})
    with Access(dsn=dsn).connect() as connection:
        restorer = Restorer(connection, encryption=Encryption.of(config), keep_created_at=keep_created_at)
        return restorer.restore(messages)


@pytest.fixture
def rich() -> list[Batch]:
    """Messages of three partitions, with all that a message can have."""
    columns = Columns(
        [b'{"n":1}', b"\x00\xff", b"null"],
        transaction_ids=["order-1", str(uuid4()), None],
        trace_ids=[str(uuid4()), None, str(uuid4())],
        kinds=["created", None, None],
        references=[None, "ref", None],
        encodings=[None, "raw", None],
        headers=[b'{"a":"b"}', None, None],
        producer_subs=[None, None, "shop"],
    )
    return [batch("q", 3, partition="a"), Batch("q", "b", columns), batch("q", 2, partition="c", start=7)]


@pytest.fixture
def store(database_dsn: str) -> Iterator[PostgresStore]:
    return PostgresStore(database_dsn)


async def test_deleted_queue_comes_back_with_its_ids(
    store: PostgresStore, database_dsn: str, rich: list[Batch]
) -> None:
    await store.push(rich)
    await push_n(store, "q", 2, partition="a", start=4)
    before = await stored(store, "q")
    await store.delete_queue("q")
    assert restore(database_dsn, archived(before)) == Restored(restored=10, duplicates=0, segments=2)
    after = await stored(store, "q")
    assert same(after) == same(before)
    assert [m.seq for m in after] == [m.seq for m in before]
    assert after[0].created_at > before[0].created_at
    assert await store.verify() == []
    await store.close()


async def test_created_at_is_kept_on_request(store: PostgresStore, database_dsn: str, rich: list[Batch]) -> None:
    await store.push(rich)
    before = await stored(store, "q")
    await store.delete_queue("q")
    restore(database_dsn, archived(before), keep_created_at=True)
    after = await stored(store, "q")
    assert [m.created_at for m in after] == [m.created_at for m in before]
    await store.close()


async def test_kept_time_is_not_before_what_is_there(store: PostgresStore, database_dsn: str) -> None:
    """A seek to a time finds its place by times that rise with the seqs."""
    await push_n(store, "q", 1)
    before = await stored(store, "q")
    await store.delete_queue("q")
    await push_n(store, "q", 1, start=2)
    restore(database_dsn, archived(before), keep_created_at=True)
    page = await store.messages(MessageFilter(queue="q"), limit=10)
    newer, older = (view.message for view in page.items)
    assert (newer.seq, older.seq) == (1, 2)
    assert older.created_at == newer.created_at
    await store.close()


async def test_what_is_stored_is_not_restored_again(store: PostgresStore, database_dsn: str, rich: list[Batch]) -> None:
    await store.push(rich)
    before = await stored(store, "q")
    assert restore(database_dsn, archived(before)) == Restored(restored=0, duplicates=8, segments=0)
    await store.delete_queue("q")
    twice = archived(before) + archived(before)
    assert restore(database_dsn, twice) == Restored(restored=8, duplicates=8, segments=1)
    assert restore(database_dsn, archived(before)).restored == 0
    assert same(await stored(store, "q")) == same(before)
    await store.close()


async def test_segment_comes_back_in_parts(store: PostgresStore, database_dsn: str, rich: list[Batch]) -> None:
    """Every second message first, then the rest: each has its id, and what lies between them is nobody's."""
    await store.push(rich)
    before = await stored(store, "q")
    await store.delete_queue("q")
    assert restore(database_dsn, archived(before[::2])).restored == 4
    assert same(await stored(store, "q")) == same(before[::2])
    assert await store.verify() == []
    assert restore(database_dsn, archived(before)) == Restored(restored=4, duplicates=4, segments=1)
    assert same(await stored(store, "q")) == same(before)
    for message in before:
        view = await store.message(message.id)
        assert view.message.payload == message.payload
    assert await store.verify() == []
    await store.close()


async def test_restored_messages_are_delivered_in_order_and_acknowledged(
    store: PostgresStore, database_dsn: str, rich: list[Batch]
) -> None:
    await store.push(rich)
    before = await stored(store, "q")
    await store.delete_queue("q")
    await store.configure("q", queue_options())
    assert not await pop(store, "q")
    restore(database_dsn, archived(before))
    popped = await pop(store, "q", batch=100, partitions=10, auto_ack=True)
    by_partition: dict[str, list[str]] = {}
    for message in popped.messages():
        by_partition.setdefault(message.partition, []).append(message.id)
    assert by_partition == {p: [m.id for m in before if m.partition == p] for p in ("a", "b", "c")}
    assert await store.verify() == []
    await store.close()


async def test_restored_messages_can_be_removed(store: PostgresStore, database_dsn: str, rich: list[Batch]) -> None:
    """Retention and clear find what belongs to a message also where its segment has gaps."""
    await store.push(rich)
    before = await stored(store, "q")
    await store.delete_queue("q")
    restore(database_dsn, archived(before[1::2]))
    await store.configure("q", queue_options(retention_enabled=True, retention_seconds=1))
    await store.database.fetch("age", "update lockstep.segment set created_at = created_at - interval '1 hour'")
    pruned = await store.prune("retention", limit=100)
    assert pruned.messages == 4
    assert await store.verify() == []
    # Their transaction ids are forgotten with them.
    assert restore(database_dsn, archived(before)).restored == 8
    await store.close()


async def test_transaction_id_in_use_is_a_duplicate(store: PostgresStore, database_dsn: str) -> None:
    await store.push([batch("q", 2, transaction_ids=["one", str(uuid4())])])
    before = await stored(store, "q")
    await store.delete_queue("q")
    await store.push([batch("q", 1, transaction_ids=["one"])])
    assert restore(database_dsn, archived(before)) == Restored(restored=1, duplicates=1, segments=1)
    assert await store.verify() == []
    await store.close()


async def test_copy_in_another_queue_has_the_ids_too(
    store: PostgresStore, database_dsn: str, rich: list[Batch]
) -> None:
    await store.push(rich)
    before = await stored(store, "q")
    assert restore(database_dsn, archived(before, queue="copy")).restored == 8
    copies = await stored(store, "copy")
    assert same(copies) == [msgspec.structs.replace(one, queue="copy") for one in same(before)]
    await store.delete_queue("q")
    assert same(await stored(store, "copy")) == same(copies)
    assert await store.verify() == []
    await store.close()


async def test_full_queue_stops_it_and_the_rest_comes_later(
    store: PostgresStore, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "MESSAGES_MAX", 4)
    for number in range(10):
        await push_n(store, "q", 1, start=number)
    before = await stored(store, "q")
    await store.delete_queue("q")
    await store.configure("q", queue_options(max_size=6))
    with pytest.raises(QueueFull, match="queue q holds 6 of at most 6 pending messages; 1 more do not fit"):
        restore(database_dsn, archived(before))
    assert len(await stored(store, "q")) == 4
    assert await store.verify() == []
    await store.update_queue("q", {"max_size": 100})
    assert restore(database_dsn, archived(before)) == Restored(restored=6, duplicates=4, segments=6)
    assert same(await stored(store, "q")) == same(before)
    assert await store.verify() == []
    await store.close()


async def test_encrypted_queue_needs_the_key(database_dsn: str) -> None:
    store = PostgresStore(database_dsn, config=load({"encryption_key": KEY}, environ={}))
    await push_n(store, "q", 3)
    before = await stored(store, "q")
    await store.delete_queue("q")
    await store.configure("q", queue_options(encryption=True))
    with pytest.raises(EncryptionUnavailable):
        restore(database_dsn, archived(before))
    assert restore(database_dsn, archived(before), key=KEY).restored == 3
    assert same(await stored(store, "q")) == same(before)
    codecs = await store.database.fetch("codecs", "select distinct codec from lockstep.segment")
    assert [row[0] for row in codecs] == [7]
    await store.close()


async def test_queue_without_compression_stays_readable_in_sql(
    store: PostgresStore, database_dsn: str, rich: list[Batch]
) -> None:
    await store.push(rich)
    before = await stored(store, "q")
    await store.delete_queue("q")
    await store.configure("q", queue_options(compression="none"))
    restore(database_dsn, archived(before[1:]))
    rows = await store.database.fetch(
        "view", "select payload from lockstep.messages where readable order by message_id"
    )
    assert [row[0] for row in rows][:2] == ['{"n":2}', '{"n":3}']
    assert same(await stored(store, "q")) == same(before[1:])
    await store.close()


async def test_producers_and_a_replay_share_a_partition(
    store: PostgresStore, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "MESSAGES_MAX", 7)
    for number in range(30):
        await store.push([batch("q", 2, partition=name, start=number) for name in ("a", "b", "c")])
    before = await stored(store, "q")
    await store.delete_queue("q")
    restoring_ends = asyncio.create_task(asyncio.to_thread(restore, database_dsn, archived(before)))
    pushed = 0
    while not restoring_ends.done():
        await store.push([batch("q", 1, partition=name) for name in ("c", "a")])
        pushed += 2
    assert (await restoring_ends).restored == len(before)
    after = await stored(store, "q")
    ids = {message.id for message in before}
    for partition in ("a", "b", "c"):
        lane = sorted((m for m in after if m.partition == partition), key=lambda message: message.seq)
        assert [m.seq for m in lane] == list(range(1, len(lane) + 1))
        assert [m.id for m in lane if m.id in ids] == [m.id for m in before if m.partition == partition]
    assert len(after) == len(before) + pushed
    assert await store.verify() == []
    await store.close()


async def test_queue_deleted_between_two_transactions_is_made_again(
    store: PostgresStore, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "MESSAGES_MAX", 2)
    await push_n(store, "q", 4)
    before = archived(await stored(store, "q"))
    await store.delete_queue("q")

    def deleting() -> Iterator[Archived]:
        import psycopg

        yield from before[:2]
        yield before[2]
        with psycopg.connect(database_dsn, autocommit=True) as other:
            other.execute("select lockstep.delete_queue('q')")
        yield before[3]

    config = load({}, environ={})
    with Access(dsn=database_dsn).connect() as connection:
        done = Restorer(connection, encryption=Encryption.of(config)).restore(deleting())
    assert done.restored == 4
    assert [m.id for m in await stored(store, "q")] == [m.message_id for m in before[2:]]
    await store.close()
