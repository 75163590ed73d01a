"""Pushes while the store is away or in maintenance mode: buffered, and drained in order and exactly once."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
import pytest_asyncio

from lockstep import Batch, Engine, NewMessage, PopRequest
from lockstep.config import Config
from lockstep.core.applying import ApplyLimits
from lockstep.core.messages import Columns, NewSchedule
from lockstep.core.operations import NewOperation
from lockstep.core.outage import BufferStats
from lockstep.core.policy import QueueOptions
from lockstep.core.records import Ack
from lockstep.core.schedules import ScheduleFilter
from lockstep.engine import spooling
from lockstep.errors import (
    Buffering,
    CorruptSegment,
    EncryptionUnavailable,
    OperationPending,
    QueueFull,
    SpoolAhead,
    SpoolFull,
    SpoolUnusable,
    Unavailable,
)
from support.away import AwayStore
from support.disks import files_of_at_most
from support.until import until

QUEUE = "orders"


@pytest.fixture
def away() -> AwayStore:
    return AwayStore()


@pytest_asyncio.fixture
async def engine(away: AwayStore, tmp_path: Path) -> AsyncIterator[Engine]:
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        yield engine


def message(payload: str, *, partition: str = "p", transaction_id: str | None = None) -> NewMessage:
    return NewMessage(queue=QUEUE, partition=partition, payload=payload.encode(), transaction_id=transaction_id)


async def push(engine: Engine, *payloads: str, partition: str = "p", ids: bool = False) -> list[str]:
    """The statuses of the receipts."""
    messages = [message(one, partition=partition, transaction_id=f"id-{one}" if ids else None) for one in payloads]
    return [receipt.status for receipt in await engine.push(messages)]


async def stored(engine: Engine, partition: str = "p") -> list[str]:
    [popped] = await engine.pop([PopRequest(queue=QUEUE, partition=partition, batch=1000, auto_ack=True)])
    return [payload.decode() for payload in popped.payloads()]


def stats_of(engine: Engine) -> BufferStats:
    stats = engine.counts.buffer
    assert stats is not None
    return stats


def buffered(engine: Engine) -> int:
    return stats_of(engine).messages


def files(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.rglob(pattern))


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files(directory, "*") if path.is_file()}


def put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def drained(engine: Engine) -> None:
    await until(lambda: buffered(engine) == 0)


# --- Outage -------------------------------------------------------------------------------------------------


async def test_pushes_are_buffered_while_the_store_is_away_and_pushed_when_it_is_back(
    engine: Engine, away: AwayStore
) -> None:
    assert await push(engine, "1") == ["queued"]
    away.leave()
    assert await push(engine, "2", "3") == ["buffered", "buffered"]
    assert await push(engine, "4") == ["buffered"]
    assert buffered(engine) == 3
    away.come_back()
    await drained(engine)
    assert await push(engine, "5") == ["queued"]
    assert await stored(engine) == ["1", "2", "3", "4", "5"]


async def test_buffered_receipt_names_what_is_known(engine: Engine, away: AwayStore) -> None:
    away.leave()
    [first, second] = await engine.push([message("1", transaction_id="t"), message("2", partition="q")])
    assert (first.index, first.status, first.queue, first.partition) == (0, "buffered", QUEUE, "p")
    assert (first.transaction_id, first.message_id, first.seq, first.partition_id) == ("t", "", 0, 0)
    assert (second.index, second.partition, second.transaction_id) == (1, "q", "")


async def test_bad_input_is_refused_and_not_buffered(engine: Engine, away: AwayStore) -> None:
    away.leave()
    with pytest.raises(Exception, match="partition"):
        await engine.push([message("1", partition="")])
    assert buffered(engine) == 0


async def test_push_that_meets_the_outage_first_is_buffered(engine: Engine, away: AwayStore) -> None:
    """Nobody knew yet that the store is away."""
    away.is_away = True
    assert await push(engine, "1") == ["buffered"]
    assert await push(engine, "2") == ["buffered"]
    away.come_back()
    await drained(engine)
    assert await stored(engine) == ["1", "2"]


async def test_concurrent_pushes_share_a_write_and_none_is_lost(engine: Engine, away: AwayStore) -> None:
    away.leave()
    lanes = [f"p{number}" for number in range(50)]
    for turn in range(3):
        answers = await asyncio.gather(*[push(engine, f"{lane}-{turn}", partition=lane) for lane in lanes])
        assert answers == [["buffered"]] * 50
    away.come_back()
    await drained(engine)
    for lane in lanes:
        assert await stored(engine, lane) == [f"{lane}-{turn}" for turn in range(3)]
    assert max(away.drains) > 1, "records are drained together"


async def test_lost_push_is_repeated_only_if_a_second_one_would_be_a_duplicate(engine: Engine, away: AwayStore) -> None:
    away.fail_next = ["unanswered"]
    assert await push(engine, "1", ids=True) == ["duplicate"]
    away.fail_next = ["unanswered"]
    with pytest.raises(Unavailable) as caught:
        await push(engine, "2")
    assert caught.value.details["maybe_applied"]
    assert await stored(engine) == ["1", "2"]


async def test_lost_push_with_transaction_ids_is_buffered_when_the_store_stays_away(
    engine: Engine, away: AwayStore
) -> None:
    away.fail_next = ["unanswered", "lost"]
    assert await push(engine, "1", ids=True) == ["buffered"]
    await drained(engine)
    assert await push(engine, "2", ids=True) == ["queued"]
    assert await stored(engine) == ["1", "2"]


async def test_other_failures_are_not_buffered(engine: Engine, away: AwayStore) -> None:
    for error in (QueueFull(), Unavailable("too slow")):
        away.error, away.fail_next = error, ["refused"]
        with pytest.raises(type(error)):
            await push(engine, "1", ids=True)
    assert buffered(engine) == 0


async def waiting_operation(away: AwayStore, payload: str) -> None:
    """An earlier push to the partition, which another server has queued."""
    await away.queue_operations([NewOperation([Batch(QUEUE, "p", Columns([payload.encode()]))])])


async def test_push_behind_an_operation_is_buffered_when_the_store_is_lost(engine: Engine, away: AwayStore) -> None:
    await waiting_operation(away, "1")
    away.fail_next = ["pass", "lost", "lost"]
    assert await push(engine, "2", ids=True) == ["buffered"]
    assert buffered(engine) == 1
    await away.apply_operations("push", by="another", limits=ApplyLimits())
    await drained(engine)
    assert await stored(engine) == ["1", "2"]


@pytest.mark.parametrize(("fate", "status"), [("lost", "queued"), ("unanswered", "duplicate")])
async def test_push_behind_an_operation_is_queued_again_if_only_its_connection_was_lost(
    engine: Engine, away: AwayStore, fate: str, status: str
) -> None:
    await waiting_operation(away, "1")
    away.fail_next = ["pass", fate]
    assert await push(engine, "2", ids=True) == [status]
    assert await stored(engine) == ["1", "2"]


async def test_transactions_with_pushes_wait_for_what_is_buffered(engine: Engine, away: AwayStore) -> None:
    await push(engine, "1")
    [popped] = await engine.pop([PopRequest(queue=QUEUE)])
    await engine.set_maintenance_mode(push=True)
    await push(engine, "2")
    ack = Ack(lease_id=popped.lease_id)
    with pytest.raises(Buffering):
        await engine.transaction([ack], [message("3")])
    await engine.set_maintenance_mode(push=False)
    await drained(engine)
    result = await engine.transaction([ack], [message("3")])
    assert result.acks[0].success
    assert await stored(engine) == ["2", "3"]
    assert away.drains


async def test_full_spool_refuses_and_takes_again_when_it_is_drained(away: AwayStore, tmp_path: Path) -> None:
    async with Engine(away, Config(spool_bytes_max=1024 * 1024), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        away.leave()
        large = base64.b64encode(os.urandom(300_000)).decode()
        accepted = 0
        while stats_of(engine).bytes + 250_000 < 1024 * 1024:
            await push(engine, large)
            accepted += 1
        with pytest.raises(SpoolFull, match="spool_bytes_max"):
            await push(engine, large)
        away.come_back()
        await drained(engine)
        assert await push(engine, "last") == ["queued"]
        assert await stored(engine) == [large] * accepted + ["last"]


async def test_engine_that_starts_while_the_store_is_away_buffers_until_it_comes(
    away: AwayStore, tmp_path: Path
) -> None:
    away.leave()
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert await push(engine, "1") == ["buffered"]
        assert (await engine.maintenance_mode()).breaker == "open"
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert await push(engine, "2") == ["buffered"]
        assert buffered(engine) == 2
        away.come_back()
        await drained(engine)
        assert await push(engine, "3") == ["queued"]
        assert await stored(engine) == ["1", "2", "3"]
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        away.leave()
        assert await push(engine, "4") == ["buffered"], "it is the same spool"
        assert stats_of(engine).messages_buffered == 3


async def test_maintenance_mode_that_is_not_known_yet_is_learned_before_anything_is_pushed(
    away: AwayStore, tmp_path: Path
) -> None:
    await away.set_maintenance_mode(push=True)
    away.leave()
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert not (await engine.maintenance_mode()).push
        away.come_back()
        assert await push(engine, "1") == ["buffered"]
        async with asyncio.timeout(30):
            while not (await engine.maintenance_mode()).push:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.001)
        assert await push(engine, "2") == ["buffered"]
        await engine.set_maintenance_mode(push=False)
        await drained(engine)
        assert await stored(engine) == ["1", "2"]


async def test_what_was_buffered_for_an_address_goes_to_the_store_that_comes(
    away: AwayStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(AwayStore(), Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()  # another store, which is known here
    away.leave()
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert await push(engine, "1") == ["buffered"]
        away.come_back()
        await drained(engine)
        assert await stored(engine) == ["1"]
    assert "spool_of_other_store" in [record.getMessage() for record in caplog.records]


async def test_pushes_for_an_address_that_was_never_reached_are_told_of(
    away: AwayStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away.leave()
    async with Engine(away, Config(dsn="postgresql://wrong/lockstep"), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert await push(engine, "1") == ["buffered"]
    caplog.clear()
    away.come_back()
    async with Engine(away, Config(dsn="postgresql://right/lockstep"), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        [told] = [record for record in caplog.records if record.action == "spool_unclaimed"]  # type: ignore[attr-defined]
        assert [Path(told.directory)] == [path.parent for path in files(tmp_path, "*.log")]  # type: ignore[attr-defined]


async def test_engine_that_does_not_buffer_fails(away: AwayStore) -> None:
    async with Engine(away, Config()) as engine:
        away.leave()
        with pytest.raises(Unavailable):
            await push(engine, "1", ids=True)
        assert engine.counts.buffer is None


async def test_directory_that_cannot_be_used_leaves_a_server_without_a_buffer(
    away: AwayStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "file", b"")
    async with Engine(away, Config(), spool_dir=tmp_path / "file") as engine:
        await engine.start_buffering()
        assert [record.action for record in caplog.records] == ["spool_unusable"]
        assert await push(engine, "1") == ["queued"]
        away.leave()
        with pytest.raises(Unavailable, match="cannot be reached"):
            await push(engine, "2")
        away.come_back()
        await engine.set_maintenance_mode(push=True)
        with pytest.raises(SpoolUnusable):
            await push(engine, "3")


async def test_full_disk_refuses_pushes_until_there_is_room(engine: Engine, away: AwayStore, tmp_path: Path) -> None:
    away.leave()
    await push(engine, "1")
    [log] = files(tmp_path, "*.log")
    with files_of_at_most(log.stat().st_size + 10), pytest.raises(SpoolUnusable, match="cannot be written"):
        await push(engine, "2")
    assert await push(engine, "3") == ["buffered"]
    away.come_back()
    await drained(engine)
    assert await stored(engine) == ["1", "3"]


async def test_directory_that_could_not_be_used_is_used_when_it_can_be(
    away: AwayStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "_LOOK_SECONDS", 0.001)
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        with files_of_at_most(0):
            await engine.start_buffering()
        assert [record.action for record in caplog.records] == ["spool_unusable"]
        await until(lambda: engine.counts.buffer is not None)
        assert [record.action for record in caplog.records] == ["spool_unusable", "spool_usable"]
        away.leave()
        assert await push(engine, "1") == ["buffered"]
        away.come_back()
        await drained(engine)
        assert await stored(engine) == ["1"]


# --- What is buffered ---------------------------------------------------------------------------------------


async def test_all_of_a_message_survives(engine: Engine, away: AwayStore) -> None:
    expires_at = datetime(2100, 1, 1, tzinfo=UTC)
    given = NewMessage(
        queue=QUEUE,
        partition="p",
        payload=b"\x00opaque",
        transaction_id="t",
        trace_id="0190a7c4-0000-7000-8000-000000000001",
        kind="k",
        reference="r",
        encoding="bin",
        headers={"a": "b"},
        producer_sub="ann",
        expires_at=expires_at,
    )
    away.leave()
    await engine.push([given])
    away.come_back()
    await drained(engine)
    [popped] = await engine.pop([PopRequest(queue=QUEUE)])
    [found] = list(popped.messages())
    for name in NewMessage.__struct_fields__:
        if hasattr(found, name):
            assert getattr(found, name) == getattr(given, name)


async def test_delay_counts_from_the_push(engine: Engine, away: AwayStore) -> None:
    away.leave()
    began = datetime.now(UTC)
    batch = Batch.of(QUEUE, [b"later"])
    batch.schedule = NewSchedule(delay_seconds=3600, key="k")
    await engine.push([batch])
    asked = datetime.now(UTC)
    away.come_back()
    await drained(engine)
    [waiting] = (await engine.schedules(ScheduleFilter(queue=QUEUE))).items
    assert waiting.key == "k"
    assert began <= waiting.due_at - timedelta(seconds=3600) <= asked


async def test_balanced_queue_is_balanced_when_it_is_drained(engine: Engine, away: AwayStore) -> None:
    await engine.configure(QUEUE, QueueOptions(partitions=2))
    away.leave()
    assert await push(engine, "1", partition="Default") == ["buffered"]
    away.come_back()
    await drained(engine)
    assert sorted(await stored(engine, "0") + await stored(engine, "1")) == ["1"]


async def test_buffer_is_encrypted_where_there_is_a_key(away: AwayStore, tmp_path: Path) -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    async with Engine(away, Config(encryption_key=key), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        away.leave()
        await push(engine, "sesame")
        assert b"sesame" not in b"".join(contents(tmp_path).values())
        away.come_back()
        await drained(engine)
        assert await stored(engine) == ["sesame"]


async def test_directory_and_files_are_private(engine: Engine, away: AwayStore, tmp_path: Path) -> None:
    away.leave()
    await push(engine, "1")
    assert {path.is_dir(): mode(path) for path in files(tmp_path, "*")} == {True: 0o700, False: 0o600}


# --- Draining -----------------------------------------------------------------------------------------------


async def test_what_is_left_by_one_process_is_drained_by_the_next(away: AwayStore, tmp_path: Path) -> None:
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        away.leave()
        await push(engine, "1", "2")
    away.come_back()
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        await push(engine, "3")
        await drained(engine)
        assert await stored(engine) == ["1", "2", "3"]


@pytest.mark.parametrize("fates", [["lost"], ["unanswered"], ["lost", "lost", "unanswered"]])
async def test_lost_answer_of_a_drain_neither_loses_nor_doubles(
    engine: Engine, away: AwayStore, fates: list[str]
) -> None:
    away.leave()
    for number in range(5):
        await push(engine, str(number))
    away.fail_next = list(fates)
    away.come_back()
    await drained(engine)
    assert away.fail_next == []
    assert await stored(engine) == ["0", "1", "2", "3", "4"]


async def test_crash_between_commit_and_removal_of_the_files_doubles_nothing(away: AwayStore, tmp_path: Path) -> None:
    """The next process finds the files as they were, and asks the store how far it is."""
    first = Engine(away, Config(), spool_dir=tmp_path)
    await first.start_buffering()
    away.leave()
    await push(first, "1", "2")
    await push(first, "3")
    kept = contents(tmp_path)
    away.come_back()
    await drained(first)
    await first.close()
    for path, content in kept.items():
        put(path, content)
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert await push(engine, "4") == ["queued"]
        assert await stored(engine) == ["1", "2", "3", "4"]


async def test_pushes_go_behind_what_another_process_has_buffered(
    engine: Engine, away: AwayStore, tmp_path: Path
) -> None:
    """It reaches the store itself, and must not overtake."""
    async with Engine(away, Config(), spool_dir=tmp_path) as other:
        await other.start_buffering()
        await other.set_maintenance_mode(push=True)
        assert await push(other, "1") == ["buffered"]
        assert await push(engine, "2") == ["buffered"]
        await other.set_maintenance_mode(push=False)
        await drained(other)
        assert await push(engine, "3") == ["queued"]
        assert await stored(engine) == ["1", "2", "3"]


async def test_pushes_never_overtake_while_engines_flip(away: AwayStore, tmp_path: Path) -> None:
    """Producers that go from one process to the other with every push, while the store comes and goes."""
    engines = [Engine(away, Config(), spool_dir=tmp_path) for _ in range(2)]
    for engine in engines:
        await engine.start_buffering()
    statuses: set[str] = set()
    flipping = True

    async def flip() -> None:
        while flipping:
            await engines[0].set_maintenance_mode(push=True)
            await asyncio.sleep(0.005)
            await engines[0].set_maintenance_mode(push=False)
            await asyncio.sleep(0.01)

    async def produce(lane: str) -> None:
        for number in range(60):
            statuses.update(await push(engines[number % 2], f"{number}", partition=lane))

    flipper = asyncio.create_task(flip())
    lanes = [f"lane-{number}" for number in range(8)]
    await asyncio.gather(*[produce(lane) for lane in lanes])
    flipping = False
    await flipper
    await drained(engines[0])
    assert statuses == {"queued", "buffered"}
    for lane in lanes:
        assert await stored(engines[0], lane) == [str(number) for number in range(60)]
    for engine in engines:
        await engine.close()


async def test_refused_record_is_tried_again_and_holds_its_place(engine: Engine, away: AwayStore) -> None:
    await engine.configure(QUEUE, QueueOptions(max_size=1))
    await push(engine, "0")
    away.leave()
    await push(engine, "1")
    await push(engine, "2", partition="q")
    away.come_back()
    await until(lambda: stats_of(engine).waiting_for is not None)
    assert (await engine.maintenance_mode()).buffer is not None
    assert await stored(engine) == ["0"]
    await until(lambda: buffered(engine) == 1)
    assert await stored(engine) == ["1"]
    await drained(engine)
    assert await stored(engine, "q") == ["2"]
    stats = stats_of(engine)
    assert (stats.messages_rejected, stats.waiting_for) == (0, None)


async def test_record_that_stays_refused_is_set_aside_and_can_be_pushed_again(
    away: AwayStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(away, Config(spool_refusal_seconds_max=0), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        await engine.configure(QUEUE, QueueOptions(max_size=1))
        await push(engine, "0")
        away.leave()
        await push(engine, "1")
        await engine.push([NewMessage(queue="other", payload=b"2")])
        away.come_back()
        await drained(engine)
        stats = stats_of(engine)
        assert (stats.messages_rejected, stats.messages_drained) == (1, 1)
        assert [record.messages for record in caplog.records if record.action == "spool_rejected"] == [1]
        assert len(files(tmp_path, "*.rejected")) == 1

        assert await stored(engine) == ["0"]
        assert await engine.retry_rejected() == 1
        await drained(engine)
        assert await stored(engine) == ["1"]
        assert files(tmp_path, "*.rejected") == []


@pytest.mark.parametrize(
    ("fates", "set_aside"),
    [
        (["lost"], False),
        (["lost", "unanswered"], False),
        (["lost", "lost"], False),
        (["unanswered"], True),
        (["lost", "refused", "unanswered"], True),
    ],
)
async def test_record_is_set_aside_or_pushed_whatever_answers_are_lost(
    away: AwayStore, tmp_path: Path, fates: list[str], set_aside: bool
) -> None:
    """The first fate is that of telling the store that a refused record is passed; then it may be taken after all."""
    async with Engine(away, Config(spool_refusal_seconds_max=0), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        away.leave()
        await push(engine, "1")
        await push(engine, "2")
        away.error, away.fail_next = QueueFull("full"), ["refused", "refused", *fates]
        away.come_back()
        await drained(engine)
        assert away.fail_next == []
        assert len(files(tmp_path, "*.rejected")) == set_aside
        assert files(tmp_path, "*.refused") == []
        assert await stored(engine) == (["2"] if set_aside else ["1", "2"])
        assert await engine.retry_rejected() == set_aside
        assert await stored(engine) == (["1"] if set_aside else [])


async def test_record_that_was_set_aside_is_pushed_again_once(away: AwayStore, tmp_path: Path) -> None:
    """Whoever is told to push it may die before the file is gone."""
    async with Engine(away, Config(spool_refusal_seconds_max=0), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        away.leave()
        await push(engine, "1")
        away.error, away.fail_next = QueueFull("full"), ["refused"]
        away.come_back()
        await drained(engine)
        [path] = files(tmp_path, "*.rejected")
        kept = path.read_bytes()
        away.fail_next = ["refused"]
        with pytest.raises(QueueFull):
            await engine.retry_rejected()
        assert await engine.retry_rejected() == 1
        put(path, kept)
        assert await engine.retry_rejected() == 1
        assert files(tmp_path, "*.rejected") == []
        assert await stored(engine) == ["1"]


async def test_what_was_set_aside_waits_for_the_end_of_maintenance_mode(engine: Engine) -> None:
    await engine.set_maintenance_mode(push=True)
    with pytest.raises(Buffering, match="maintenance mode is on"):
        await engine.retry_rejected()


@pytest.mark.parametrize("error", [EncryptionUnavailable(), OperationPending(), RuntimeError("surprise")])
async def test_passing_refusal_loses_nothing(engine: Engine, away: AwayStore, error: Exception) -> None:
    away.leave()
    for number in range(3):
        await push(engine, str(number))
    away.error, away.fail_next = error, ["refused", "refused", "refused"]
    away.come_back()
    await drained(engine)
    assert await stored(engine) == ["0", "1", "2"]
    assert stats_of(engine).messages_rejected == 0


async def test_hopeless_record_is_set_aside_at_once(engine: Engine, away: AwayStore) -> None:
    away.leave()
    for number in range(3):
        await push(engine, str(number))
    away.error, away.fail_next = CorruptSegment(), ["refused", "refused"]
    away.come_back()
    await drained(engine)
    assert await stored(engine) == ["1", "2"]
    assert stats_of(engine).messages_rejected == 1


async def test_damaged_record_is_reported_and_the_rest_is_drained(
    engine: Engine, away: AwayStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away.leave()
    for number in range(3):
        await push(engine, str(number))
    [log] = files(tmp_path, "*.log")
    flip_a_bit(log)
    away.come_back()
    await drained(engine)
    assert await stored(engine) == ["0", "2"]
    assert [record.action for record in caplog.records if record.levelname == "ERROR"] == ["spool_damaged"]
    assert len(files(tmp_path, "*.damaged")) == 1
    assert stats_of(engine).bytes_damaged > 0
    assert await push(engine, "3") == ["queued"]


# --- Maintenance mode ---------------------------------------------------------------------------------------


async def test_maintenance_mode_buffers_and_pops_go_on(engine: Engine) -> None:
    await push(engine, "1")
    mode = await engine.set_maintenance_mode(push=True)
    assert (mode.push, mode.pop) == (True, False)
    assert await push(engine, "2") == ["buffered"]
    assert await stored(engine) == ["1"]
    mode = await engine.set_maintenance_mode(push=False)
    await drained(engine)
    assert await stored(engine) == ["2"]


async def test_mode_holds_for_the_next_process(away: AwayStore, tmp_path: Path) -> None:
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        await engine.set_maintenance_mode(push=True)
    async with Engine(away, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert await push(engine, "1") == ["buffered"]


async def test_mode_can_be_set_while_the_store_is_away(engine: Engine, away: AwayStore) -> None:
    away.leave()
    mode = await engine.set_maintenance_mode(push=True, pop=True)
    assert (mode.push, mode.pop, mode.breaker) == (True, True, "open")
    await push(engine, "1")
    away.come_back()
    system = await away.system()
    await until(lambda: away._spools.mode.push_maintenance and away._spools.mode.pop_maintenance)
    assert not system.push_maintenance
    assert await push(engine, "2") == ["buffered"]
    await engine.set_maintenance_mode(push=False, pop=False)
    await drained(engine)
    assert await stored(engine) == ["1", "2"]


async def test_paused_pops_find_nothing_at_once(engine: Engine) -> None:
    poll = asyncio.create_task(engine.wait_pop(PopRequest(queue=QUEUE), 60))
    await until(lambda: engine.counts.waiting.polls == 1)
    await engine.set_maintenance_mode(pop=True)
    assert (await poll).payloads() == []
    await push(engine, "1")
    assert (await engine.pop([PopRequest(queue=QUEUE)]))[0].payloads() == []
    assert (await engine.wait_pop(PopRequest(queue=QUEUE), 60)).payloads() == []
    await engine.set_maintenance_mode(pop=False)
    assert (await engine.wait_pop(PopRequest(queue=QUEUE), 60)).payloads() == [b"1"]


async def test_drained_messages_wake_polls(engine: Engine, away: AwayStore) -> None:
    poll = asyncio.create_task(engine.wait_pop(PopRequest(queue=QUEUE), 60))
    await until(lambda: engine.counts.waiting.polls == 1)
    away.leave()
    await push(engine, "1")
    away.come_back()
    assert (await poll).payloads() == [b"1"]


# --- A store that has lost what it had last --------------------------------------------------------------------


def restored(away: AwayStore, copy: dict[UUID, tuple[int, int | None]]) -> AwayStore:
    """The store as a backup of it has it, that knows the spools up to these places. It is away."""
    store = AwayStore()
    store._spools.mode = away._spools.mode
    store._spools.drained = dict(copy)
    store.is_away = True
    return store


def spools(away: AwayStore) -> dict[UUID, tuple[int, int | None]]:
    return dict(away._spools.drained)


def told(caplog: pytest.LogCaptureFixture, action: str) -> list[int]:
    return [record.bytes for record in caplog.records if record.message == action]  # type: ignore[attr-defined]


async def test_what_the_store_has_lost_and_the_spool_still_has_is_pushed_again(
    away: AwayStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(call_messages_max=1, spool_refusal_seconds_max=0)
    async with Engine(away, config, spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        away.leave()
        for payload in ("1", "2", "3"):
            await push(engine, payload)
        copy = spools(away)
        away.error, away.fail_next = Unavailable("away again", unreachable=True), ["pass", "refused"]
        away.come_back()
        await until(lambda: away.fail_next == [])
        away.leave()
        assert buffered(engine) == 2
    store = restored(away, copy)
    async with Engine(store, config, spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert await push(engine, "4") == ["buffered"]
        store.come_back()
        await drained(engine)
        assert await stored(engine) == ["1", "2", "3", "4"]
        assert await push(engine, "5") == ["queued"]
        stats = stats_of(engine)
        assert (stats.bytes, stats.bytes_lost, stats.messages_drained) == (0, 0, 4)
    assert len(told(caplog, "spool_again")) == 1
    assert told(caplog, "spool_ahead") == []


async def test_record_that_was_set_aside_and_comes_again_is_pushed_once(away: AwayStore, tmp_path: Path) -> None:
    config = Config(spool_refusal_seconds_max=0)
    async with Engine(away, config, spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        away.leave()
        await push(engine, "1")
        await push(engine, "2")
        copy = spools(away)
        # Together, the first alone, which is set aside, and the second.
        away.error, away.fail_next = QueueFull("full"), ["refused", "refused", "pass", "lost", "lost"]
        away.come_back()
        await until(lambda: len(files(tmp_path, "*.rejected")) == 1)
        away.leave()
        await until(lambda: not stats_of(engine).draining)
        assert buffered(engine) == 1
    store = restored(away, copy)
    async with Engine(store, config, spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        store.come_back()
        await drained(engine)
        assert files(tmp_path, "*.rejected") == []
        assert await stored(engine) == ["1", "2"]


async def lost_all(away: AwayStore, directory: Path) -> AwayStore:
    """A store that has lost what was drained, of which nothing is left here. It is away."""
    async with Engine(away, Config(), spool_dir=directory) as engine:
        await engine.start_buffering()
        away.leave()
        await push(engine, "lost")
        copy = spools(away)
        away.come_back()
        await drained(engine)
    return restored(away, copy)


async def test_spool_stops_if_what_the_store_has_lost_is_gone_until_that_is_accepted(
    away: AwayStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await lost_all(away, tmp_path)
    async with Engine(store, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        await push(engine, "1")
        store.come_back()
        await until(lambda: stats_of(engine).bytes_lost > 0)
        assert await push(engine, "2") == ["buffered"], "it goes behind, although the store is there"
        stats = stats_of(engine)
        assert stats.messages == 2
        assert stats.waiting_for is not None
        assert f"lost {stats.bytes_lost} bytes" in stats.waiting_for
        assert "lockstep maintenance accept" in stats.waiting_for
        with pytest.raises(SpoolAhead):
            await engine.transaction([], [message("3")])
        assert await engine.accept_buffer_loss() == stats.bytes_lost
        await drained(engine)
        assert await stored(engine) == ["1", "2"]
        assert await push(engine, "4") == ["queued"]
        after = stats_of(engine)
        assert (after.bytes, after.bytes_lost, after.waiting_for) == (0, 0, None)
        assert await engine.accept_buffer_loss() == 0
    assert told(caplog, "spool_ahead") == told(caplog, "spool_loss_accepted") == [stats.bytes_lost]


async def test_empty_spool_stops_too_and_all_processes_of_the_machine_with_it(away: AwayStore, tmp_path: Path) -> None:
    store = await lost_all(away, tmp_path)
    store.come_back()
    async with (
        Engine(store, Config(), spool_dir=tmp_path) as one,
        Engine(store, Config(), spool_dir=tmp_path) as other,
    ):
        await one.start_buffering()
        await other.start_buffering()
        assert await push(one, "1") == ["buffered"]
        assert await push(other, "2") == ["buffered"]
        assert stats_of(one).bytes_lost == stats_of(other).bytes_lost > 0
        assert stats_of(one).bytes > 0, "what is lost does not count as buffered"
        await other.accept_buffer_loss()
        await drained(one)
        assert await stored(one) == ["1", "2"]
        assert (stats_of(one).waiting_for, stats_of(other).waiting_for) == (None, None)


async def test_loss_that_was_not_accepted_is_known_to_the_next_process(away: AwayStore, tmp_path: Path) -> None:
    store = await lost_all(away, tmp_path)
    store.come_back()
    for payload in ("1", "2"):
        async with Engine(store, Config(), spool_dir=tmp_path) as engine:
            await engine.start_buffering()
            assert await push(engine, payload) == ["buffered"]
    async with Engine(store, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert await engine.accept_buffer_loss() > 0
        await drained(engine)
        assert await stored(engine) == ["1", "2"]


async def test_spool_goes_on_by_itself_if_the_store_has_all_after_all(away: AwayStore, tmp_path: Path) -> None:
    """The old primary came back."""
    store = await lost_all(away, tmp_path)
    store.come_back()
    async with Engine(store, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        assert await push(engine, "1") == ["buffered"]
        store._spools.drained = spools(away)
        await drained(engine)
        assert stats_of(engine).bytes_lost == 0
        assert await stored(engine) == ["1"]


async def test_another_store_at_the_same_address_has_lost_nothing(away: AwayStore, tmp_path: Path) -> None:
    await lost_all(away, tmp_path)
    other = AwayStore()
    other.is_away = True
    async with Engine(other, Config(), spool_dir=tmp_path) as engine:
        await engine.start_buffering()
        await push(engine, "1")
        other.come_back()
        await drained(engine)
        assert stats_of(engine).bytes_lost == 0
        assert await stored(engine) == ["1"]
