"""Stage and commit: a batch is written once, wholly or not at all, whatever is retried, doubled or in the way."""

from __future__ import annotations

import base64
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from lockstep.core.messages import Batch
from lockstep.errors import Conflict, InvalidOption, InvalidRequest, LockstepError, QueueFull, TooLarge, Unavailable
from lockstep.spark.read.offsets import Offset
from lockstep.spark.write import writer
from lockstep.spark.write.write_options import WriteOptions
from lockstep.spark.write.writer import Staged, abort, commit, stage
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.conversation import push_now
from lockstep.storage.postgres.within import converse
from support.spark_reads import Query
from support.spark_writes import (
    committed,
    left_on_stage,
    numbered,
    numbers,
    options,
    problems,
    query,
    rows,
    staged,
    stored,
    wait_for_waiter,
    written,
)


def test_batch_is_visible_only_after_its_commit(database_dsn: str) -> None:
    part = staged(database_dsn, numbered(10, partitions=2))
    assert query(database_dsn, "select count(*) from lockstep.queue") == [(0,)]
    assert committed(database_dsn, part).messages == 10
    assert numbers(database_dsn) == {"p0": [2, 4, 6, 8, 10], "p1": [1, 3, 5, 7, 9]}
    assert left_on_stage(database_dsn) == 0
    assert not problems(database_dsn)


def test_every_column_arrives(database_dsn: str) -> None:
    trace = str(uuid4())
    written(
        database_dsn,
        rows(
            payload=['{"a":1}', "AP8="],
            transaction_id=["t1", None],
            trace_id=[None, trace],
            kind=["k", None],
            reference=["r", None],
            encoding=[None, "raw"],
            headers=['{"h":"v"}', None],
            producer_sub=["me", None],
        ),
        delivery="ids",
    )
    first, second = stored(database_dsn)["Default"]
    assert (first.json(), first.transaction_id, first.kind, first.reference) == ({"a": 1}, "t1", "k", "r")
    assert (first.headers, first.producer_sub, first.trace_id, first.encoding) == ({"h": "v"}, "me", None, None)
    assert (second.payload, second.encoding, second.trace_id) == (b"\x00\xff", "raw", trace)
    assert query(database_dsn, "select trace_id::text, seq from lockstep.trace_index") == [(trace, 2)]
    assert query(database_dsn, "select transaction_id, seq from lockstep.dedup_text") == [("t1", 1)]


def test_names_and_ids_may_have_any_character(database_dsn: str) -> None:
    names = ['"', "\\", "{a,b}", "null", " x ", "ä", "'", 'a"\\"b']
    written(
        database_dsn, rows(payload=["1"] * 8, partition=names, transaction_id=list(reversed(names))), delivery="ids"
    )
    assert {name: messages[0].transaction_id for name, messages in stored(database_dsn).items()} == dict(
        zip(names, reversed(names), strict=True)
    )
    assert not problems(database_dsn)


def test_rows_say_their_queue(database_dsn: str) -> None:
    given = WriteOptions.of({"dsn": database_dsn})
    part = stage(given, [rows(payload=list("123"), queue=["a", "b", "a"])], sink="s", batch_id=0, task=0)
    commit(given, [part], batch=("s", 0))
    assert [message.payload for message in stored(database_dsn, "a")["Default"]] == [b"1", b"3"]
    assert [message.payload for message in stored(database_dsn, "b")["Default"]] == [b"2"]


def test_commit_that_comes_again_writes_nothing(database_dsn: str) -> None:
    part = staged(database_dsn, numbered(3))
    assert committed(database_dsn, part).new
    assert not committed(database_dsn, part).new
    # A restart that does not know of the commit runs the whole batch again, cut into other tasks.
    again = [staged(database_dsn, numbered(2), task=0), staged(database_dsn, numbered(1, start=3), task=1)]
    assert not committed(database_dsn, *again).new
    assert numbers(database_dsn) == {"p0": [1, 2, 3]}
    assert left_on_stage(database_dsn) == 0
    assert written(database_dsn, numbered(1, start=4), batch_id=1).new
    assert numbers(database_dsn) == {"p0": [1, 2, 3, 4]}


def test_only_the_attempts_that_the_commit_names_count(database_dsn: str) -> None:
    loser = staged(database_dsn, numbered(5))
    winner = staged(database_dsn, numbered(5))
    failed = staged(database_dsn, numbered(2))
    assert len({one.place.attempt for one in (loser, winner, failed)}) == 3
    committed(database_dsn, winner)
    assert numbers(database_dsn) == {"p0": [1, 2, 3, 4, 5]}
    assert left_on_stage(database_dsn) == 0


def test_attempt_that_ends_after_the_commit_is_swept_by_the_next(database_dsn: str) -> None:
    written(database_dsn, numbered(1))
    staged(database_dsn, numbered(1), batch_id=0)
    staged(database_dsn, numbered(1), sink="other", batch_id=0)
    assert left_on_stage(database_dsn) == 2
    written(database_dsn, numbered(1, start=2), batch_id=1)
    assert query(database_dsn, "select distinct sink from lockstep.spark_stage") == [("other",)]


@pytest.mark.parametrize(
    "sweep",
    ["lockstep.spark_sweep('query', 0, 0, null)", "lockstep.spark_prune(now() + interval '1 day')"],
)
def test_stage_that_is_being_committed_is_not_swept(
    database_dsn: str, sweep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a zombie of the same sink, or by one who finds it old: after the commit has looked, and before it pushes."""
    part = staged(database_dsn, numbered(3))
    push_staged = writer._push

    def swept_first(*arguments: Any) -> int:
        query(database_dsn, f"select {sweep}")
        return push_staged(*arguments)

    monkeypatch.setattr(writer, "_push", swept_first)
    assert committed(database_dsn, part).messages == 3
    assert numbers(database_dsn) == {"p0": [1, 2, 3]}
    assert left_on_stage(database_dsn) == 0


def test_stage_that_is_swept_while_the_commit_waits_for_it_is_missed(database_dsn: str) -> None:
    part = staged(database_dsn, numbered(3))
    with psycopg.connect(database_dsn) as sweeper, ThreadPoolExecutor(1) as threads:
        sweeper.execute("select lockstep.spark_sweep('query', 0, 0, null)")
        commits = threads.submit(committed, database_dsn, part)
        wait_for_waiter(database_dsn, "spark_open")
        sweeper.commit()
        with pytest.raises(Conflict, match="removed meanwhile"):
            commits.result()
    assert query(database_dsn, "select count(*) from lockstep.spark_batch") == [(0,)]


def test_stage_of_the_dead_is_removed_by_age(database_dsn: str) -> None:
    staged(database_dsn, numbered(1), sink="dead")
    query(database_dsn, "update lockstep.spark_stage set staged_at = now() - interval '2 days' where sink = 'dead'")
    staged(database_dsn, numbered(1), sink="living")
    written(database_dsn, numbered(1))
    assert query(database_dsn, "select distinct sink from lockstep.spark_stage") == [("living",)]


def test_crash_between_stage_and_commit_leaves_nothing_behind(database_dsn: str) -> None:
    staged(database_dsn, numbered(3))
    again = staged(database_dsn, numbered(3))
    committed(database_dsn, again)
    assert numbers(database_dsn) == {"p0": [1, 2, 3]}
    assert left_on_stage(database_dsn) == 0


def test_commit_fails_if_the_stage_is_not_complete(database_dsn: str) -> None:
    first, second = staged(database_dsn, numbered(3)), staged(database_dsn, numbered(2, start=4), task=1)
    query(database_dsn, "delete from lockstep.spark_stage where attempt = %s", second.place.attempt)
    with pytest.raises(Conflict, match="staged 2 messages, and 0 of them are there"):
        committed(database_dsn, first, second)
    assert not stored(database_dsn)
    assert query(database_dsn, "select count(*) from lockstep.spark_batch") == [(0,)]


def test_abort_empties_the_stage(database_dsn: str) -> None:
    part = staged(database_dsn, numbered(3))
    abort(options(database_dsn), [part])
    abort(options(database_dsn), [part])
    assert left_on_stage(database_dsn) == 0
    assert not stored(database_dsn)


def test_tasks_are_written_in_their_order(database_dsn: str) -> None:
    second = staged(database_dsn, numbered(2, start=3), task=1)
    first = staged(database_dsn, numbered(2), task=0)
    committed(database_dsn, second, first)
    assert numbers(database_dsn) == {"p0": [1, 2, 3, 4]}


def test_task_without_rows_stages_nothing(database_dsn: str) -> None:
    empty = staged(database_dsn, task=1)
    assert (empty.parts, empty.messages) == (0, 0)
    assert committed(database_dsn, empty).messages == 0
    assert not stored(database_dsn)


@pytest.mark.parametrize(
    "column",
    [
        {"payload": ["1", None]},
        {"payload": ["1", "2"], "trace_id": [None, "x"]},
        {"payload": ["1", "2"], "kind": ["", "\x00"]},
    ],
)
def test_bad_row_stages_nothing_that_could_be_committed(database_dsn: str, column: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidRequest, match="row 3 of task 7"):
        staged(database_dsn, rows(payload=["0"]), rows(**column), task=7)
    assert not stored(database_dsn)
    assert left_on_stage(database_dsn) == 0


def test_transaction_ids_are_stored_once_where_that_is_asked_for(database_dsn: str) -> None:
    ids = [str(uuid4()) for _ in range(4)]
    by_ids = {"delivery": "ids"}
    written(database_dsn, rows(payload=["1", "2", "3"], transaction_id=[ids[0], "text", ids[1]]), **by_ids)
    # Stored before, doubled in the batch itself by another task, and new.
    first = staged(
        database_dsn,
        rows(payload=["10", "11", "12", "13", "14"], transaction_id=["text", ids[2], ids[0], None, ids[2]]),
        batch_id=1,
        task=0,
        **by_ids,
    )
    second = staged(
        database_dsn, rows(payload=["20", "21"], transaction_id=[ids[2], ids[3]]), batch_id=1, task=1, **by_ids
    )
    gone = staged(database_dsn, rows(payload=["30"], transaction_id=[ids[3]]), batch_id=1, task=2, **by_ids)
    done = committed(database_dsn, first, second, gone, batch_id=1)
    assert [message.payload for message in stored(database_dsn)["Default"]] == [b"1", b"2", b"3", b"11", b"13", b"21"]
    # Those that were left out are counted: two that were stored, two of other tasks, and one of its own task.
    assert (done.messages, done.duplicates) == (3, 5)
    counted = query(database_dsn, "select messages, messages_total, duplicates_total from lockstep.spark_batch")
    assert counted == [(3, 6, 5)]
    # Not asked for: every row is a message of its own.
    again = written(database_dsn, rows(payload=["40", "41"], transaction_id=["text", "text"]), batch_id=2)
    assert (again.messages, again.duplicates) == (2, 0)
    last = stored(database_dsn)["Default"][-1]
    assert last.transaction_id == last.id
    assert not problems(database_dsn)
    assert left_on_stage(database_dsn) == 0


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("encryption", [False, True])
def test_rows_of_several_tasks_are_brought_into_order(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch, compression: str, encryption: bool
) -> None:
    key = os.urandom(32)
    if encryption:
        monkeypatch.setenv("LOCKSTEP_ENCRYPTION_KEY", base64.b64encode(key).decode())
    _configure(database_dsn, compression=f"'{compression}'", encryption=str(encryption))
    count, tasks = 600, 4
    numbers_of = random.Random(5).sample(range(2, count + 2), count)
    parts = [
        staged(
            database_dsn,
            *(
                rows(
                    payload=[f'{{"n":{n}}}' for n in some],
                    partition=[f"p{n % 7}" for n in some],
                    hour=[n // 50 for n in some],
                    n=some,
                )
                for some in (numbers_of[task::tasks][:100], numbers_of[task::tasks][100:])
            ),
            task=task,
            orderBy="hour, N",
            segmentBytes="64k",
        )
        for task in range(tasks)
    ]
    done = committed(database_dsn, *parts, orderBy="hour, N")
    assert (done.messages, done.duplicates) == (count, 0)
    found = {name: [one.json()["n"] for one in messages] for name, messages in stored(database_dsn, key=key).items()}
    expected = {f"p{lane}": [n for n in range(2, count + 2) if n % 7 == lane] for lane in range(7)}
    assert found == {**expected, "p0": [1, *expected["p0"]]}
    assert not problems(database_dsn)
    assert left_on_stage(database_dsn) == 0


def test_rows_that_are_in_order_stay_as_their_tasks_have_packed_them(database_dsn: str) -> None:
    def part(task: int, numbered: Sequence[int], lane: str) -> Staged:
        made = rows(payload=[str(n) for n in numbered], partition=[lane] * len(numbered), n=numbered)
        return staged(database_dsn, made, task=task, orderBy="n")

    done = committed(database_dsn, part(0, [3, 1, 2], "a"), part(1, [1], "b"), part(2, [4, 3], "a"), orderBy="n")
    assert done.messages == 6
    assert {name: [int(one.payload) for one in messages] for name, messages in stored(database_dsn).items()} == {
        "a": [1, 2, 3, 3, 4],
        "b": [1],
    }
    assert query(database_dsn, "select count(*) from lockstep.segment") == [(3,)]


def test_order_that_cannot_be_restored_is_refused(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="column 'n', by which the rows are ordered, has no value in some row"):
        staged(database_dsn, rows(payload=["1", "2"], n=[1, None]), orderBy="n")
    large = [str(n) for n in range(2000)]
    parts = [staged(database_dsn, rows(payload=large, n=[*range(2000)]), task=task, orderBy="n") for task in range(2)]
    monkeypatch.setenv("LOCKSTEP_SPARK_ORDER_BYTES_MAX", "1024")
    with pytest.raises(TooLarge, match=r"spark_order_bytes_max \(1024\): repartition by queue and partition"):
        committed(database_dsn, *parts, orderBy="n")
    assert not stored(database_dsn)


def test_dedupe_makes_a_batch_write_repeatable(database_dsn: str) -> None:
    for _ in range(2):
        part = staged(database_dsn, numbered(5, partitions=2), delivery="dedupe")
        committed(database_dsn, part, batch_id=None)
    assert numbers(database_dsn) == {"p0": [2, 4], "p1": [1, 3, 5]}


def test_append_without_a_batch_writes_each_time(database_dsn: str) -> None:
    for _ in range(2):
        committed(database_dsn, staged(database_dsn, numbered(2)), batch_id=None)
    assert numbers(database_dsn) == {"p0": [1, 2, 1, 2]}


def _configure(dsn: str, **changes: str) -> None:
    written(dsn, numbered(1), batch_id=0, sink="set-up")
    changes |= {"sealed_after": "1::bigint << 62"} if "encryption" in changes else {}
    assignments = ", ".join(f"{name} = {value}" for name, value in changes.items())
    query(dsn, f"update lockstep.queue set {assignments} where name = 'orders'")
    query(dsn, "select lockstep.recount(id) from lockstep.queue")


def test_full_queue_fails_the_batch_and_takes_it_later(database_dsn: str) -> None:
    _configure(database_dsn, max_size="5")
    parts = [staged(database_dsn, numbered(3, start=2), task=0), staged(database_dsn, numbered(3, start=5), task=1)]
    with pytest.raises(QueueFull, match="queue 'orders' holds 4 of at most 5 pending messages; 3 more do not fit"):
        committed(database_dsn, *parts)
    assert numbers(database_dsn) == {"p0": [1]}
    query(database_dsn, "update lockstep.queue set max_size = 7")
    assert committed(database_dsn, *parts).new
    assert numbers(database_dsn) == {"p0": [1, 2, 3, 4, 5, 6, 7]}
    assert not problems(database_dsn)


def test_readable_queue_is_written_plainly(database_dsn: str) -> None:
    _configure(database_dsn, compression="'none'")
    trace = str(uuid4())
    batch = rows(payload=["7", "8"], kind=["k", None], trace_id=[trace, None], transaction_id=["x", "y"])
    written(database_dsn, batch, batch_id=1, delivery="ids")
    second = rows(payload=["9", "10"], transaction_id=["x", "z"], trace_id=[trace, trace])
    written(database_dsn, second, batch_id=2, delivery="ids")
    found = query(
        database_dsn, "select payload, kind, trace_id::text from lockstep.messages where readable order by seq"
    )
    assert found == [("7", "k", trace), ("8", None, None), ("10", None, trace)]
    assert not problems(database_dsn)


def test_encrypted_queue_is_sealed(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = os.urandom(32)
    _configure(database_dsn, encryption="true")
    with pytest.raises(LockstepError, match="encrypted, but no encryption_key"):
        staged(database_dsn, numbered(1))
    monkeypatch.setenv("MY_KEY", base64.b64encode(key).decode())
    written(database_dsn, numbered(2, start=2), encryptionKeyEnv="MY_KEY")
    assert query(database_dsn, "select codec from lockstep.segment order by id") == [(1,), (7,)]
    assert [message.json()["n"] for message in stored(database_dsn, key=key)["p0"]] == [1, 2, 3]


def test_queue_that_becomes_encrypted_before_the_commit(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_ENCRYPTION_KEY", base64.b64encode(os.urandom(32)).decode())
    part = staged(database_dsn, numbered(2, start=2))
    _configure(database_dsn, encryption="true")
    query(database_dsn, "delete from lockstep.spark_batch")
    committed(database_dsn, part)
    assert query(database_dsn, "select codec from lockstep.segment order by id") == [(1,), (7,)]


def test_queue_that_is_deleted_before_the_commit_is_made_again(database_dsn: str) -> None:
    written(database_dsn, numbered(1))
    part = staged(database_dsn, numbered(2, start=2), batch_id=1)
    query(database_dsn, "select lockstep.delete_queue('orders')")
    committed(database_dsn, part, batch_id=1)
    assert numbers(database_dsn) == {"p0": [2, 3]}
    assert not problems(database_dsn)


def test_rows_of_a_balanced_queue_go_to_its_partitions(database_dsn: str) -> None:
    _configure(database_dsn, partitions="2")
    written(database_dsn, rows(payload=["1", "2"]), batch_id=1)
    assert set(stored(database_dsn)) & {"0", "1"}
    assert "Default" not in stored(database_dsn)


def _at_once(*work: Callable[[], object]) -> list[object]:
    """Run functions at the same time; what they return."""
    start = threading.Barrier(len(work))

    def run(one: Callable[[], object]) -> object:
        start.wait()
        return one()

    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(run, one) for one in work]]


def test_two_commits_of_one_batch_write_it_once(database_dsn: str) -> None:
    # A driver that was thought dead commits beside its successor.
    mine, his = staged(database_dsn, numbered(50)), staged(database_dsn, numbered(50))
    results = _at_once(lambda: committed(database_dsn, mine), lambda: committed(database_dsn, his))
    assert sorted(result.new for result in results) == [False, True]  # type: ignore[attr-defined]
    assert numbers(database_dsn) == {"p0": list(range(1, 51))}


def test_commits_of_two_sinks_and_ordinary_pushes_share_partitions(database_dsn: str) -> None:
    rounds, partitions = 15, 5

    def write(sink: str) -> None:
        for batch_id in range(rounds):
            parts = [
                staged(
                    database_dsn,
                    rows(
                        payload=[f'{{"by":"{sink}{task}","n":{batch_id * 20 + n}}}' for n in range(20)],
                        partition=[f"p{(n + task) % partitions}" for n in range(20)],
                    ),
                    sink=sink,
                    batch_id=batch_id,
                    task=task,
                )
                for task in range(2)
            ]
            committed(database_dsn, *parts, sink=sink, batch_id=batch_id)

    def produce(name: str) -> None:
        names = NameCache(1000)
        with psycopg.connect(database_dsn) as connection:
            for n in range(rounds * 4):
                payload = f'{{"by":"{name}","n":{n}}}'.encode()
                batches = [Batch.of("orders", [payload], partition=f"p{(n + i) % partitions}") for i in (3, 1)]
                converse(connection, push_now(batches, names, encryption=Encryption(), at=None))
                if n % 5 == 4:
                    connection.rollback()
                else:
                    connection.commit()

    _at_once(lambda: write("a"), lambda: write("b"), lambda: produce("x"), lambda: produce("y"))
    found = stored(database_dsn)
    assert not problems(database_dsn)
    for messages in found.values():
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
        by: dict[str, list[int]] = {}
        for message in messages:
            by.setdefault(message.json()["by"], []).append(message.json()["n"])
        assert all(values == sorted(values) for values in by.values())
    assert sum(map(len, found.values())) == 2 * rounds * 40 + 2 * (rounds * 4 * 4 // 5) * 2


def test_commit_waits_for_a_push_that_is_open(database_dsn: str) -> None:
    written(database_dsn, numbered(1))
    part = staged(database_dsn, numbered(1, start=3), batch_id=1)
    with psycopg.connect(database_dsn) as connection, ThreadPoolExecutor(1) as pool:
        held = [Batch.of("orders", [b'{"n":2}'], partition="p0")]
        converse(connection, push_now(held, NameCache(10), encryption=Encryption(), at=None))
        waiting = pool.submit(committed, database_dsn, part, batch_id=1)
        wait_for_waiter(database_dsn, "spark_open")
        connection.commit()
        assert waiting.result(timeout=60).new
    assert numbers(database_dsn) == {"p0": [1, 2, 3]}


def test_database_that_is_not_there(database_dsn: str) -> None:
    part = staged(database_dsn, numbered(1))
    with pytest.raises(Unavailable, match="cannot be reached"):
        committed("postgresql://me:secret@127.0.0.1:1/none", part)
    with pytest.raises(Unavailable) as raised:
        staged("postgresql://me:secret@127.0.0.1:1/none", numbered(1))
    assert "secret" not in str(raised.value)


def test_database_that_goes_away_in_mid_batch(database_dsn: str) -> None:
    def batches() -> object:
        yield numbered(70_000)
        query(
            database_dsn,
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
            "where application_name = 'lockstep-spark' and datname = current_database()",
        )
        yield numbered(70_000)

    with pytest.raises(Unavailable):
        stage(options(database_dsn), batches(), sink="query", batch_id=0, task=0)  # type: ignore[arg-type]
    assert not stored(database_dsn)
    again = staged(database_dsn, numbered(2))
    committed(database_dsn, again)
    assert numbers(database_dsn) == {"p0": [1, 2]}
    assert left_on_stage(database_dsn) == 0


def test_no_database_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_DSN", raising=False)
    with pytest.raises(InvalidOption, match="no database: give the option dsn"):
        stage(WriteOptions.of({"queue": "orders"}), [numbered(1)], sink="s", batch_id=0, task=0)


def test_waiting_consumers_are_told(database_dsn: str) -> None:
    with psycopg.connect(database_dsn, autocommit=True) as listener:
        listener.execute("listen lockstep_push")
        written(database_dsn, numbered(1))
        assert [notification.channel for notification in listener.notifies(timeout=10, stop_after=1)] == [
            "lockstep_push"
        ]


def test_wide_batch_has_a_run_for_each_partition(database_dsn: str) -> None:
    written(database_dsn, numbered(3000, partitions=1500))
    assert query(database_dsn, "select count(*), count(distinct segment_id) from lockstep.run") == [(1500, 1)]
    assert not problems(database_dsn)


def test_sink_says_in_its_transaction_what_its_stream_has_read(database_dsn: str) -> None:
    written(database_dsn, numbered(5), sink="set-up")
    reading = Query(database_dsn, queue="orders", streamName="s")
    start, end = reading.start(), reading.latest()
    assert end is not None
    reading.stream.plan(Offset.of(start), Offset.of(end))
    position = "select read_upto::text, committed_upto::text from lockstep.spark_position"
    [[read, kept]] = query(database_dsn, position)
    assert read != end["to"]
    part = staged(database_dsn, numbered(5), queue="sink", commitStream="s")
    committed(database_dsn, part, queue="sink", commitStream="s")
    assert query(database_dsn, position) == [(end["to"], kept)], "Spark may still ask for the batch"
    reading.close()


def test_history_forgets_what_the_dead_have_left(database_dsn: str) -> None:
    staged(database_dsn, numbered(1), sink="dead")
    prune = "select lockstep.prune_history(%s, 100, now() + make_interval(hours => %s))"
    query(database_dsn, prune, 60, 23)
    assert left_on_stage(database_dsn) == 1, "whatever the history is: its batch may still run"
    query(database_dsn, prune, 30 * 86_400, 25)
    assert left_on_stage(database_dsn) == 1
    query(database_dsn, prune, 60, 25)
    assert left_on_stage(database_dsn) == 0


# --- What is known of a query, and for how long ----------------------------------------------------------------


def known(dsn: str) -> list[str]:
    return [sink for (sink,) in query(dsn, "select sink from lockstep.spark_batch order by sink")]


def prune_in(dsn: str, days: int) -> None:
    query(dsn, "select lockstep.prune_history(1e9, 100, now() + make_interval(days => %s))", days)


def commit_once(dsn: str, sink: str, batch_id: int) -> None:
    committed(
        dsn, staged(dsn, numbered(1, start=batch_id + 1), sink=sink, batch_id=batch_id), sink=sink, batch_id=batch_id
    )


def test_query_that_is_long_silent_is_forgotten_when_another_has_followed(database_dsn: str) -> None:
    first, second = str(uuid4()), str(uuid4())
    sinks = [first, second, f"left/{first}", f"left/{second}", f"orders.charge/{first}", "daily", "nightly"]
    for sink in sinks:
        commit_once(database_dsn, sink, 0)
    prune_in(database_dsn, 364)
    assert known(database_dsn) == sorted(sinks)
    prune_in(database_dsn, 366)
    assert known(database_dsn) == sorted([second, f"left/{second}", f"orders.charge/{first}", "daily", "nightly"])


def test_query_that_goes_on_is_not_forgotten(database_dsn: str) -> None:
    first, second = str(uuid4()), str(uuid4())
    commit_once(database_dsn, first, 0)
    query(database_dsn, "update lockstep.spark_batch set kept_until = now() - interval '1 second'")
    commit_once(database_dsn, second, 0)
    commit_once(database_dsn, first, 1)
    prune_in(database_dsn, 1)
    assert known(database_dsn) == sorted([first, second])


def test_query_that_was_forgotten_is_refused_instead_of_writing_twice(database_dsn: str) -> None:
    gone, last, new = str(uuid4()), str(uuid4()), str(uuid4())
    commit_once(database_dsn, gone, 7)
    commit_once(database_dsn, last, 0)
    # As long as nothing was forgotten, a query may begin to write here in the midst of its life.
    commit_once(database_dsn, f"other/{gone}", 7)
    prune_in(database_dsn, 366)
    assert known(database_dsn) == sorted([last, f"other/{gone}"])
    with pytest.raises(Conflict, match=rf"of query '{gone}', which comes with batch 7: .*spark_batch_seconds_max"):
        commit_once(database_dsn, gone, 7)
    assert numbers(database_dsn) == {"p0": [8, 1, 8]}
    # One that begins, and one under a name that is new, are known to be none that was forgotten.
    commit_once(database_dsn, new, 1)
    commit_once(database_dsn, f"anew/{gone}", 8)
    commit_once(database_dsn, last, 3)
    assert numbers(database_dsn) == {"p0": [8, 1, 8, 2, 9, 4]}
    assert problems(database_dsn) == []
