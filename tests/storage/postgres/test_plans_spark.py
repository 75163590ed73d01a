"""What Spark's reads and writes cost among many partitions, segments, streams and files: they read what they are about.

The statistics are those of an almost empty database, or those of now. Each call runs on the connections that it makes
itself, with their settings; PostgreSQL counts the blocks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from lockstep.core.ids import message_id
from lockstep.spark.database import Access, rows_of
from lockstep.spark.jobs.manifest import Manifest, NewFile
from lockstep.spark.jobs.restoring import Archived, Restorer
from lockstep.spark.lease.lease_stream import LeasedReader, LeaseStream
from lockstep.spark.lease.leases import StreamLeases
from lockstep.spark.pipelines.committing import BatchOutcome, StepBatch, commit, is_committed
from lockstep.spark.pipelines.pipeline import Pipeline, Step
from lockstep.spark.pipelines.rejects import Rejected
from lockstep.spark.pipelines.status import StepRecord
from lockstep.spark.read import positions
from lockstep.spark.read.offsets import EARLIEST, Mark, SnapshotPlace
from lockstep.spark.read.segments import Scope, list_segments
from lockstep.spark.transactions import prepare
from lockstep.spark.write.writer import CommittedBatch, Staged, abort
from lockstep.storage.postgres.encryption import Encryption
from support.builders import batch
from support.costs import COUNTERS, SMALL_TABLES, Cost
from support.databases import Databases
from support.spark_reads import Producer, Query, numbers_of, read_batch, read_options, row_schema
from support.spark_writes import committed, numbered, query, rows, staged

# One worker makes the databases of these tests, and not each that happens to get some of them.
pytestmark = pytest.mark.xdist_group("plans_spark")

MANY = 10_000
"""Partitions, segments, traces, removed ranges, marks, staged parts, batches, files and so on that are none of a call's
business."""
_SCHEMA = row_schema(["partition", "seq", "payload"])
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

# Of these there are as many rows as queues, streams or steps, or a call is about all of them.
_SMALL = SMALL_TABLES | {"spark_position", "pipeline_step", "system", "deleted_queue"}

_NO_AUTOVACUUM = """
do $$
declare
    _table text;
begin
    for _table in select tablename from pg_tables where schemaname = 'lockstep' loop
        execute format('alter table lockstep.%I set (autovacuum_enabled = off)', _table);
    end loop;
end $$
"""
# Queue `wide`: one message in each of many partitions, all of them due for the group `spark`. Queue `long`: many
# segments of one message each, in ten partitions, whose traces, dead letters and removed ranges nobody asks for.
_GROW = (
    """
    with made as (
        insert into lockstep.partition (queue_id, name, created_at)
        select q.id, 'p' || n, clock_timestamp()
        from lockstep.queue q, generate_series(1, %(many)s) n where q.name = 'wide'
        returning id, queue_id
    ), cursors as (
        insert into lockstep.cursor (partition_id, group_id, acked, due_at)
        select m.id, g.id, 0, clock_timestamp() from made m join lockstep.consumer_group g on g.queue_id = m.queue_id
    ), segments as (
        insert into lockstep.segment (
            queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads
        )
        select m.queue_id, lockstep.segment_uuid(), clock_timestamp(), 0, count(*), array_agg(m.id order by m.id),
               array_agg(1::bigint order by m.id), array_agg(1 order by m.id), array_agg('{"n":1}'::bytea order by m.id)
        from (select m.*, row_number() over (order by m.id) / 100 as wave from made m) m group by m.queue_id, m.wave
        returning id, partition_ids
    )
    insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
    select t.id, 1, 1, s.id, t.o - 1 from segments s
    cross join lateral unnest(s.partition_ids) with ordinality t (id, o)
    """,
    """
    with lane as (
        insert into lockstep.partition (queue_id, name, created_at)
        select q.id, 'l' || n, clock_timestamp() from lockstep.queue q, generate_series(1, 10) n where q.name = 'long'
        returning id, queue_id
    ), numbered as (
        select l.*, row_number() over (order by l.id) - 1 as k from lane l
    ), segments as (
        insert into lockstep.segment (
            queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads
        )
        select l.queue_id, lockstep.segment_uuid(), clock_timestamp(), 0, 1, array[l.id], array[n / 10 + 1], array[1],
               array['{"n":1}'::bytea]
        from generate_series(0, %(many)s - 1) n join numbered l on l.k = n %% 10 order by n
        returning id, queue_id, txid, partition_ids[1] as partition_id, first_seqs[1] as seq
    ), runs as (
        insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
        select s.partition_id, s.seq, s.seq, s.id, 0 from segments s
    ), traces as (
        insert into lockstep.trace_index (trace_id, partition_id, seq)
        select gen_random_uuid(), s.partition_id, s.seq from segments s
    ), dead_letters as (
        insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, error, failed_at)
        select s.queue_id, s.partition_id, s.seq, 'other', 1, 'e', clock_timestamp() from segments s
    ), removed as (
        insert into lockstep.spark_removal (queue_id, segment_id, partition_id, txid, messages, removed_at)
        select s.queue_id, -s.id, s.partition_id, s.txid, 1, clock_timestamp() from segments s
    )
    insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, lease_id, leased_at, due_at, attempts)
    select s.partition_id, g.id, s.seq, s.seq, gen_random_uuid(), clock_timestamp(), clock_timestamp(), 0
    from segments s join lockstep.consumer_group g on g.queue_id = s.queue_id
    """,
    # A stream that has read nothing for a while, so that what was removed has to be noted.
    """
    select lockstep.publish_position('slow', 'slow', array[q.id], 1e6, '1:1:', '1:1:', 0, '1:1:', '1:1:', 0)
    from lockstep.queue q where q.name = 'long'
    """,
    """
    insert into lockstep.spark_mark (stream_id, ordinal, mark, marked_at)
    select 's' || n %% 10, n / 10, gen_random_uuid(), clock_timestamp() from generate_series(1, %(many)s) n
    """,
    """
    with s as (
        insert into lockstep.segment (
            queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads
        )
        select 0, gen_random_uuid(), clock_timestamp(), 0, 1, '{}', '{}', '{}', array['{}'::bytea]
        from generate_series(1, %(many)s / 10)
        returning id
    )
    insert into lockstep.spark_stage (
        attempt, part, sink, batch_id, task, queue, codec, message_count, partitions, counts, segment_id, staged_at
    )
    select gen_random_uuid(), 0, 'others', s.id, 0, 'long', 0, 1, array['l1'], array[1], s.id, clock_timestamp() from s
    """,
    """
    insert into lockstep.spark_batch (sink, batch_id, messages, committed_at, kept_until)
    select 'others/' || gen_random_uuid(), 9, 1, clock_timestamp(), clock_timestamp() + interval '1 year'
    from generate_series(1, %(many)s)
    """,
    """
    insert into lockstep.spark_lease (
        stream, ordinal, queue_id, group_id, lease_id, leased_at,
        partition_ids, first_seqs, last_seqs, segment_ids, ordinals
    )
    select 's' || n, 1, 1, 1, gen_random_uuid(), clock_timestamp(), '{1}', '{1}', '{1}', '{1}', '{0}'
    from generate_series(1, %(many)s) n
    """,
    """
    insert into lockstep.sample (at, queue, seconds, pushed, completed, dead, pending, lag_seconds)
    select clock_timestamp() - n * interval '1 min', 'queue' || n %% 100, 60, 1, 1, 0, 0, 0
    from generate_series(1, %(many)s) n
    """,
    """
    insert into lockstep.stat_window (queue, group_name, window_seconds, window_start, pushed, computed_at)
    select 'queue', '', 60, clock_timestamp() - n * interval '1 min', 1, clock_timestamp()
    from generate_series(1, %(many)s) n
    """,
    """
    with b as (
        insert into lockstep.archive_batch (archive, query, batch, committed_at)
        select case n %% 2 when 0 then 'archive' else 'other' end, 'q', n, clock_timestamp()
        from generate_series(1, %(many)s) n
        returning id
    )
    insert into lockstep.archive_file (batch_id, path, queue, day, messages, bytes, first_at, last_at)
    select b.id, 'f', 'long', current_date, 1, 1, clock_timestamp(), clock_timestamp() from b
    """,
)


def make(databases: Databases, *, is_known: bool) -> str:
    """A database with much in it, of which the statistics know or not."""
    dsn = databases.clone()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_NO_AUTOVACUUM)
    with_producer(dsn, lambda producer: producer.pushed(batch("wide", 1), batch("long", 1), batch("small", 5)))
    for name, group, mode in (("wide", "spark", "ordered"), ("long", "other", "shared")):
        query(
            dsn,
            "select lockstep.subscribe(q.id, %s, 'all', null, %s, null) from lockstep.queue q where q.name = %s",
            group,
            mode,
            name,
        )
    query(dsn, "select lockstep.place_slice(g.id, null, 1000, null) from lockstep.consumer_group g")
    query(dsn, "analyze")
    with psycopg.connect(dsn) as connection:
        for statement in _GROW:
            connection.execute(statement, {"many": MANY})
    if is_known:
        query(dsn, "vacuum analyze")
    return dsn


@pytest.fixture(scope="module", params=["known", "bare"])
def dsn(databases: Databases, request: pytest.FixtureRequest) -> Iterator[str]:
    """Known: the statistics are those of now. Bare: they are of a time when every table had a row or none."""
    made = make(databases, is_known=request.param == "known")
    yield made
    databases.drop(made)


def await_others(dsn: str) -> None:
    """Until all other sessions have ended: one has counted what it read before it leaves the list."""
    others = (
        "select application_name from pg_stat_activity "
        "where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
    )
    until = time.monotonic() + 30
    while found := query(dsn, others):
        assert time.monotonic() < until, f"a session is still open: {found}"


def cost(dsn: str, call: Callable[[], Any]) -> Cost:
    """What a call reads on the connections that it makes and closes."""
    await_others(dsn)  # what prepared the call counts before it
    before = {name: counts for name, *counts in query(dsn, COUNTERS)}
    call()
    await_others(dsn)
    after = query(dsn, COUNTERS)
    return Cost(
        sum(blocks - before[name][1] for name, _, blocks in after),
        frozenset(name for name, scans, _ in after if scans > before[name][0]) - _SMALL,
    )


# --- The calls ----------------------------------------------------------------------------------------------

Call = Callable[[], Any]


@dataclass(frozen=True)
class Scenario:
    """A call, what has to be there before it, and how many blocks it may read at most."""

    name: str
    prepare: Callable[[str], Call]
    blocks_max: int


def with_producer(dsn: str, work: Callable[[Producer], Any]) -> None:
    producer = Producer(dsn)
    try:
        work(producer)
    finally:
        producer.close()


def push(dsn: str, *, queue: str = "long", lanes: int = 10, **columns: Any) -> None:
    """A message for each of ten partitions."""
    batches = [batch(queue, partition=f"{queue[0]}{number}", **columns) for number in range(1, lanes + 1)]
    with_producer(dsn, lambda producer: producer.pushed(*batches))


def asking(question: Callable[[psycopg.Connection[Any]], Any]) -> Callable[[str], Call]:
    """A question on a connection as the driver makes it."""

    def prepare(dsn: str) -> Call:
        def ask() -> None:
            with Access(dsn=dsn).connect() as connection:
                question(connection)

        return ask

    return prepare


def queue_ids(connection: psycopg.Connection[Any], *names: str) -> list[int]:
    return list(positions.find_queues(connection, names).values())


def here(connection: psycopg.Connection[Any]) -> SnapshotPlace:
    return SnapshotPlace.at(positions.look(connection, []).snapshot)


def look(connection: psycopg.Connection[Any]) -> None:
    positions.look(connection, queue_ids(connection, "long", "wide"))


def scope_of_ten_partitions(connection: psycopg.Connection[Any]) -> None:
    queues = positions.find_queues(connection, ["wide"])
    positions.find_scope(connection, queues, [f"p{n * 100}" for n in range(1, 11)], None)


def publish(connection: psycopg.Connection[Any]) -> None:
    """Which also forgets what was removed and is read by all streams."""
    publish_as(connection, "p")


def publish_as(connection: psycopg.Connection[Any], name: str) -> None:
    place = here(connection)
    ids = queue_ids(connection, "long")
    positions.publish(connection, stream=name, name=name, queue_ids=ids, hold_seconds=1e6, read=place, committed=place)
    positions.note_plan(connection, stream=name, place=place)
    positions.begun_at(connection, name)
    positions.published(connection, name)


def count_lost(connection: psycopg.Connection[Any]) -> None:
    place = here(connection)
    ids = queue_ids(connection, "long")
    found = positions.count_lost(
        connection, queue_ids=ids, partition_ids=None, since=_LONG_AGO, place=place, upto=place.to
    )
    assert found == 0


def marks(connection: psycopg.Connection[Any]) -> None:
    mark = positions.mark(connection, "s3")
    assert positions.mark_state(connection, "s3", mark) == "known"
    assert positions.mark_state(connection, "s3", Mark(mark.ordinal, str(uuid4()))) == "lost"


def stream_at_the_end(dsn: str, **options: Any) -> Query:
    """A stream that has read what there is, and is asked no more."""
    stream = Query(dsn, queue="long", startingPosition="latest", **options)
    stream.checkpoint.append(stream.start())
    stream.step()
    return stream


def batch_of_a_stream(dsn: str) -> Call:
    stream = stream_at_the_end(dsn)
    push(dsn)
    stream.restart()

    def read() -> None:
        assert numbers_of(stream.step() or []) == [1] * 10
        stream.close()

    return read


def idle_stream(dsn: str) -> Call:
    stream = stream_at_the_end(dsn)
    stream.restart()

    def ask() -> None:
        assert stream.latest() is None
        stream.close()

    return ask


def batch_of_some_partitions(dsn: str) -> Call:
    stream = stream_at_the_end(dsn, partitions="l3,l4")
    push(dsn)
    stream.restart()

    def read() -> None:
        assert len(stream.step() or []) == 2
        stream.close()

    return read


def read_of_a_trace(dsn: str) -> Call:
    trace_id = str(uuid4())
    push(dsn, trace_ids=[trace_id])

    def read() -> None:
        assert len(read_batch(dsn, queue="long", traceId=trace_id)) == 10

    return read


def read_after_a_removal(dsn: str) -> Call:
    """Segments of which something is gone."""
    stream = stream_at_the_end(dsn, failOnDataLoss="false")
    push(dsn)
    query(
        dsn,
        "update lockstep.run r set segment_id = null from lockstep.partition p "
        "where p.id = r.partition_id and p.name = 'l5' and r.last_seq = "
        "(select max(l.last_seq) from lockstep.run l where l.partition_id = p.id)",
    )
    stream.restart()

    def read() -> None:
        assert len(stream.step() or []) == 9
        stream.close()

    return read


def list_from_a_time(connection: psycopg.Connection[Any]) -> None:
    """What a batch read with a starting time lists: all segments of the queue, once."""
    scope = Scope({id_: "small" for id_ in queue_ids(connection, "small")}, from_at=_LONG_AGO)
    assert len(list_segments(connection, scope, EARLIEST.base, here(connection).to))


def stage_of_a_task(dsn: str) -> Call:
    return lambda: staged(dsn, wide_rows(), sink=f"q-{uuid4()}", queue="wide")


def wide_rows() -> Any:
    return rows(payload=['{"n":1}'] * 10, partition=[f"p{n * 100}" for n in range(1, 11)])


def commit_of_a_batch(dsn: str) -> Call:
    sink = f"q-{uuid4()}"
    part = staged(dsn, wide_rows(), sink=sink, queue="wide")

    def push_it() -> None:
        assert committed(dsn, part, sink=sink, queue="wide") == CommittedBatch(10)

    return push_it


def commit_that_comes_again(dsn: str) -> Call:
    sink = f"q-{uuid4()}"
    committed(dsn, staged(dsn, wide_rows(), sink=sink, queue="wide"), sink=sink, queue="wide")
    part = staged(dsn, wide_rows(), sink=sink, queue="wide")

    def push_it() -> None:
        assert not committed(dsn, part, sink=sink, queue="wide").new

    return push_it


def commit_of_duplicates(dsn: str) -> Call:
    """Which takes the part off the stage, packs it anew and stages it again."""
    ids = [str(uuid4()) for _ in range(10)]
    columns = {"payload": ['{"n":1}'] * 10, "partition": [f"p{n * 100}" for n in range(1, 11)]}

    def part(sink: str, ids: Sequence[str]) -> Staged:
        return staged(dsn, rows(**columns, transaction_id=ids), sink=sink, queue="wide")

    committed(dsn, part("first", ids), sink=f"q-{uuid4()}", queue="wide")
    again = part("again", [*ids[:5], *[str(uuid4()) for _ in range(5)]])
    return lambda: committed(dsn, again, sink=f"q-{uuid4()}", queue="wide")


def end_of_an_attempt(dsn: str) -> Call:
    part = staged(dsn, numbered(10), sink=f"q-{uuid4()}")
    options = read_options(dsn, queue="orders")
    from lockstep.spark.write.write_options import WriteOptions

    return lambda: abort(WriteOptions(access=options.access), [part])


def leasing(dsn: str, name: str) -> LeaseStream:
    return LeaseStream(
        read_options(dsn, queue="wide", mode="lease", group="spark", streamName=name, maxMessagesPerTrigger=10)
    )


def batch_of_leases(dsn: str) -> Call:
    """Claim, lease, plan, read, ack, and let go."""
    leasing(dsn, "warm").close()

    def run() -> None:
        name = f"s-{uuid4()}"
        stream = leasing(dsn, name)
        start = stream.initial().as_json()
        end = stream.latest(start, messages_max=10).as_json()
        options = read_options(dsn, queue="wide")
        found = [
            batch.num_rows
            for task in stream.plan(start, end)
            for batch in LeasedReader.of(options, _SCHEMA, task).read(task.segments)
        ]
        assert sum(found) == 10
        stream.commit(end)
        stream.close()

    return run


def restart_of_leases(dsn: str) -> Call:
    """What was planned has failed, what was not is taken again; then a commit in the sink's transaction."""
    name = f"s-{uuid4()}"
    stream = leasing(dsn, name)
    start = stream.initial().as_json()
    end = stream.latest(start, messages_max=10).as_json()
    stream.plan(start, end)
    stream.close()
    part = staged(dsn, wide_rows(), sink=name, queue="wide")

    def run() -> None:
        again = leasing(dsn, name)
        again.plan(start, end)
        committed(dsn, part, sink=name, queue="wide", commitStream=name)
        again.close()

    return run


def renewal_of_leases(dsn: str) -> Call:
    name = f"s-{uuid4()}"
    stream = leasing(dsn, name)
    start = stream.initial().as_json()
    stream.plan(start, stream.latest(start, messages_max=10).as_json())
    stream.close()

    def renew(connection: psycopg.Connection[Any]) -> None:
        assert StreamLeases(connection, name, Access(dsn=dsn).config()).renew() == 10

    return asking(renew)(dsn)


def orders_step() -> Step:
    pipeline = Pipeline("orders")
    pipeline.step(source="long", sink="wide", name="copy")(lambda frame: frame)
    return pipeline.steps[0]


def batch_of_a_step(dsn: str) -> Call:
    """With a message that is rejected."""
    step, access = orders_step(), Access(dsn=dsn)
    place = StepBatch(f"q-{uuid4()}", 0)
    part = staged(dsn, wide_rows(), sink=place.sink, queue="wide")
    push(dsn, lanes=1)
    [[segment, ordinal]] = query(
        dsn,
        "select s.uuid, 0 from lockstep.segment s join lockstep.queue q on q.id = s.queue_id "
        "where q.name = 'long' order by s.id desc limit 1",
    )
    outcome = BatchOutcome([part], [Rejected(message_id(segment, ordinal), "bad")])
    asking(lambda connection: publish_as(connection, step.full_name))(dsn)()
    begun = StepRecord(step, access)
    begun.lock()
    begun.begin("query", "here:/checkpoint")
    begun.close()

    def run() -> None:
        assert not is_committed(access, place)
        commit(step, access, place, outcome)

    return run


def life_of_a_step(dsn: str) -> Call:
    def run() -> None:
        record = StepRecord(orders_step(), Access(dsn=dsn))
        record.lock()
        record.begin("query", "here:/checkpoint")
        record.seen(1.0)
        record.end(None)
        record.close()

    return run


def batch_of_an_archive(connection: psycopg.Connection[Any]) -> None:
    manifest = Manifest(connection, "archive")
    manifest.lock()
    assert not manifest.left_over()
    manifest.discard()
    batch_id, _ = manifest.begin("q", MANY + 1)
    now = datetime.now(UTC)
    manifest.stage(batch_id, [NewFile("f", "long", now.date(), 1, 1, now, now)])
    manifest.commit(batch_id)
    manifest.unlock()


def compaction_target(connection: psycopg.Connection[Any]) -> None:
    assert Manifest(connection, "archive").has_others("compact ")


def replay_of_ten_messages(connection: psycopg.Connection[Any]) -> None:
    segment = uuid4()
    prepare(connection)
    restorer = Restorer(connection, encryption=Encryption())
    messages = [
        Archived(
            "wide", f"p{(n + 1) * 100}", message_id(segment, n), datetime.now(UTC), b"{}", transaction_id=str(uuid4())
        )
        for n in range(10)
    ]
    assert restorer.restore(messages).restored == 10


def samples_of_an_hour(connection: psycopg.Connection[Any]) -> None:
    now = datetime.now(UTC)
    assert not rows_of(connection, "stats_samples", ["small"], now - timedelta(hours=1), now)


def dead_letters_of_an_hour(connection: psycopg.Connection[Any]) -> None:
    now = datetime.now(UTC)
    assert not rows_of(
        connection, "stats_dead_letters", ["small", "long"], now + timedelta(hours=1), now + timedelta(hours=2)
    )


def windows(connection: psycopg.Connection[Any]) -> None:
    at = "2026-01-01T00:00:00Z"
    row = {"queue": "small", "group_name": "", "window_seconds": 60, "window_start": at, "computed_at": at}
    connection.execute("select lockstep.put_stat_windows(%s::jsonb)", [json.dumps([row])])


def jobs_on_a_small_queue(connection: psycopg.Connection[Any]) -> None:
    """What became of the messages of one queue, beside queues with many."""
    for name in ("stats_cursors", "trace_cursors", "trace_deliveries", "trace_dead_letters"):
        assert not rows_of(connection, name, ["small"])
    assert not rows_of(connection, "dead_letter_errors", "small", None, None, None)


# The figure is about twice what was measured.
SCENARIOS = [
    Scenario("look", asking(look), 40),
    Scenario("scope", asking(scope_of_ten_partitions), 80),
    Scenario("publish", asking(publish), 90),
    Scenario("lost", asking(count_lost), 40),
    Scenario("marks", asking(marks), 60),
    Scenario("batch", batch_of_a_stream, 280),
    Scenario("idle", idle_stream, 90),
    Scenario("batch-partitions", batch_of_some_partitions, 320),
    Scenario("read-trace", read_of_a_trace, 290),
    Scenario("read-removed", read_after_a_removal, 340),
    Scenario("list-from", asking(list_from_a_time), 40),
    Scenario("stage", stage_of_a_task, 80),
    Scenario("commit", commit_of_a_batch, 900),
    Scenario("commit-again", commit_that_comes_again, 110),
    Scenario("commit-duplicates", commit_of_duplicates, 1000),
    Scenario("abort", end_of_an_attempt, 80),
    Scenario("lease", batch_of_leases, 2000),
    Scenario("lease-restart", restart_of_leases, 2600),
    Scenario("lease-renew", renewal_of_leases, 400),
    Scenario("step-batch", batch_of_a_step, 1100),
    Scenario("step-life", life_of_a_step, 40),
    Scenario("archive", asking(batch_of_an_archive), 120),
    Scenario("compact", asking(compaction_target), 20),
    Scenario("replay", asking(replay_of_ten_messages), 500),
    Scenario("samples", asking(samples_of_an_hour), 40),
    Scenario("dead-letters", asking(dead_letters_of_an_hour), 50),
    Scenario("windows", asking(windows), 40),
    Scenario("jobs", asking(jobs_on_a_small_queue), 150),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_call_reads_what_it_is_about(dsn: str, scenario: Scenario) -> None:
    found = cost(dsn, scenario.prepare(dsn))
    assert not found.scanned, f"read from end to end: {sorted(found.scanned)}"
    assert found.blocks <= scenario.blocks_max
