"""Operations on the command line."""

from __future__ import annotations

import asyncio

from command_lines import CommandLine

from lockstep.core.applying import ApplyLimits
from lockstep.core.messages import Batch
from lockstep.core.operations import NewOperation
from lockstep.core.policy import QueueOptions
from lockstep.storage.postgres.store import PostgresStore


async def failed_operation(dsn: str, queue: str) -> str:
    store = PostgresStore(dsn)
    await store.open()
    await store.configure(queue, QueueOptions(max_size=1))
    await store.push([Batch.of(queue, [b"1"])])
    [operation_id] = await store.queue_operations([NewOperation([Batch.of(queue, [b"2"])])])
    while (await store.operation(operation_id)).status == "pending":
        await store.apply_operations("push", by="test", limits=ApplyLimits(retries_max=0))
    await store.close()
    return operation_id


def test_operations_are_listed_shown_and_tried_again(lockstep: CommandLine, shared_dsn: str, queue: str) -> None:
    operation_id = asyncio.run(failed_operation(shared_dsn, queue))
    listed = lockstep.ndjson("operations", "ls", "--status", "failed", "--limit", "5000")
    assert operation_id in [row["id"] for row in listed]
    assert operation_id in lockstep("operations", "ls", "--limit", "5000").stdout
    assert "QUEUE_FULL" in lockstep("operations", "show", operation_id).stdout
    lockstep("pop", queue, "--auto-ack")
    assert lockstep.json("operations", "retry", operation_id)["id"] == operation_id


def test_stats_tell_what_the_server_does(lockstep: CommandLine) -> None:
    stats = lockstep.json("operations", "stats")
    assert [row["kind"] for row in stats["load"]] == ["push", "ack", "pop"]
    assert "execute" in lockstep("operations", "stats").stdout


def test_unknown_operation_is_explained(lockstep: CommandLine) -> None:
    unknown = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
    assert "operation_not_found" in lockstep("operations", "show", unknown, code=3).stderr
    assert "not a UUID" in lockstep("operations", "show", "nonsense", code=2).stderr
