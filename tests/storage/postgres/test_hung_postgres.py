"""Each verb of the store while PostgreSQL hangs: it fails by itself, whether it has a connection or waits for one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from lockstep.config import Config
from lockstep.core.access import NewApiKey, NewAuditEntry
from lockstep.core.crons import NewCron
from lockstep.core.messages import NewSchedule
from lockstep.core.operations import NewOperation
from lockstep.core.policy import QueueOptions
from lockstep.core.records import (
    Ack,
    DeadLetterFilter,
    MessageFilter,
    NextRequest,
    PendingRequest,
    PopRequest,
    Position,
    Renewal,
    Subscription,
)
from lockstep.core.schedules import ScheduleFilter, ScheduleName
from lockstep.core.statistics import ServerSample
from lockstep.core.streams import NewStreamQuery, StateFilter, StreamCycle
from lockstep.core.traces import NewTraceEvent
from lockstep.errors import Unavailable
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, pop, push_n
from support.databases import scratch_directory
from support.relay import relay, through

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVER_SAMPLE = ServerSample(
    server="s", seconds=60, requests=1, client_errors=0, server_errors=0, queued=0, rejected=0, load=0.0
)
LEASE = str(UUID(int=7))
OTHERS = {
    *("open", "ready", "listen", "close"),  # the life of a store
    *("apply_operations", "balance", "balanced", "claim_duty", "finish_duty", "drain", "due_in", "promote"),
    *("prune", "prune_groups", "prune_history", "prune_operations", "prune_partitions", "prune_queues"),
    *("follow_clock", "sample", "verify_slice", "prune_audit"),
}
"""What is not tried here: what servers do among themselves, which no caller waits for."""

Verb = Callable[[PostgresStore], Awaitable[Any]]
VERBS: dict[str, Verb] = {
    "push": lambda store: store.push([batch("q")]),
    "push that creates a queue": lambda store: store.push([batch("new")]),
    "pop": lambda store: store.pop([PopRequest(queue="q")]),
    "pop by a new group": lambda store: store.pop([PopRequest(queue="q", group="new")]),
    "ack": lambda store: store.ack([Ack(lease_id=LEASE)]),
    "ack of a message": lambda store: store.ack([Ack(lease_id=LEASE, partition_id=1, seq=1)]),
    "renew": lambda store: store.renew([Renewal(lease_id=LEASE)]),
    "transaction": lambda store: store.transaction([Ack(lease_id=LEASE)], [batch("q")]),
    "has_pending": lambda store: store.has_pending([PendingRequest(queue="q")]),
    "seek": lambda store: store.seek("q", "g", Position("start")),
    "clear": lambda store: store.clear("q"),
    "configure": lambda store: store.configure("q", QueueOptions()),
    "update_queue": lambda store: store.update_queue("q", {"lease_seconds": 9}),
    "delete_queue": lambda store: store.delete_queue("q"),
    "subscribe": lambda store: store.subscribe("q", "g", Subscription()),
    "set_subscription": lambda store: store.set_subscription("g", Subscription()),
    "pause_group": lambda store: store.pause_group("q", "g"),
    "delete_group": lambda store: store.delete_group("g"),
    "queue": lambda store: store.queue("q"),
    "queues": lambda store: store.queues(),
    "namespaces": lambda store: store.namespaces(),
    "tasks": lambda store: store.tasks(),
    "groups": lambda store: store.groups(),
    "partition": lambda store: store.partition("q", "p"),
    "partitions": lambda store: store.partitions("q"),
    "lag": lambda store: store.lag("q"),
    "depth": lambda store: store.depth("q", "g"),
    "stats": lambda store: store.stats("q"),
    "overview": lambda store: store.overview(),
    "utilisation": lambda store: store.utilisation(),
    "leases": lambda store: store.leases(),
    "message": lambda store: store.message("7", partition_id=1),
    "messages": lambda store: store.messages(MessageFilter(queue="q")),
    "remove_message": lambda store: store.remove_message(1, "7"),
    "retry_message": lambda store: store.retry_message(1, "7"),
    "bury_message": lambda store: store.bury_message(1, "7"),
    "dead_letter": lambda store: store.dead_letter(1),
    "dead_letters": lambda store: store.dead_letters(DeadLetterFilter()),
    "redrive": lambda store: store.redrive(DeadLetterFilter()),
    "redrive_queue": lambda store: store.redrive_queue("q"),
    "purge": lambda store: store.purge(DeadLetterFilter()),
    "record_trace": lambda store: store.record_trace(NewTraceEvent(partition_id=1, transaction_id="7", data=b"{}")),
    "trace": lambda store: store.trace("7"),
    "trace_names": lambda store: store.trace_names(),
    "traces_by_name": lambda store: store.traces_by_name("n"),
    "traces_of_message": lambda store: store.traces_of_message(1, "7"),
    "schedule": lambda store: store.schedule(ScheduleName(id=1)),
    "schedules": lambda store: store.schedules(ScheduleFilter()),
    "reschedule": lambda store: store.reschedule(ScheduleName(id=1), NewSchedule(delay_seconds=1)),
    "cancel_schedule": lambda store: store.cancel_schedule(ScheduleName(id=1)),
    "cron": lambda store: store.cron("c"),
    "crons": lambda store: store.crons(),
    "set_cron": lambda store: store.set_cron(NewCron(name="c", queue="q", expression="* * * * *", payload=b"1")),
    "enable_cron": lambda store: store.enable_cron("c", True),
    "remove_cron": lambda store: store.remove_cron("c"),
    "queue_operations": lambda store: store.queue_operations([NewOperation(batches=[batch("q")])]),
    "operation": lambda store: store.operation(str(UUID(int=7))),
    "operations": lambda store: store.operations(),
    "operation_counts": lambda store: store.operation_counts(),
    "operation_outcomes": lambda store: store.operation_outcomes([UUID(int=7)]),
    "retry_operation": lambda store: store.retry_operation(str(UUID(int=7))),
    "register_stream_query": lambda store: store.register_stream_query(
        NewStreamQuery(name="s", source_queue="q", config_hash="1")
    ),
    "stream_state": lambda store: store.stream_state(StateFilter(query_id=1, partition_id=1)),
    "stream_cycle": lambda store: store.stream_cycle(StreamCycle(query_id=1, partition_id=1), [batch("q")]),
    "spark_streams": lambda store: store.spark_streams(),
    "accept_spark_stream": lambda store: store.accept_spark_stream("7"),
    "forget_spark_stream": lambda store: store.forget_spark_stream("7"),
    "samples": lambda store: store.samples(),
    "sample_spans": lambda store: store.sample_spans(seconds=60, from_at=NOW, to_at=NOW),
    "server_spans": lambda store: store.server_spans(seconds=60, from_at=NOW, to_at=NOW),
    "record_server": lambda store: store.record_server(SERVER_SAMPLE),
    "removals": lambda store: store.removals(),
    "duties": lambda store: store.duties(),
    "system": lambda store: store.system(),
    "set_maintenance_mode": lambda store: store.set_maintenance_mode(push=True),
    "database_stats": lambda store: store.database_stats(),
    "verify": lambda store: store.verify(),
    "repair": lambda store: store.repair(),
    "ping": lambda store: store.ping(),
    "next": lambda store: store.next(
        [NextRequest(lease_id=LEASE, pop=PopRequest(queue="q"))], hold_seconds=1.0, lock_seconds=None
    ),
    "job_runs": lambda store: store.job_runs(),
    "database_activity": lambda store: store.database_activity(),
    "pipeline_steps": lambda store: store.pipeline_steps(),
    "preview_seek": lambda store: store.preview_seek("q", "g", Position("start")),
    "keys": lambda store: store.keys(),
    "find_keys": lambda store: store.find_keys(["7"]),
    "create_key": lambda store: store.create_key(NewApiKey(name="k", role="admin"), key_id="7", digest=b"7"),
    "revoke_key": lambda store: store.revoke_key("7"),
    "queues_of": lambda store: store.queues_of("partition", ["7"]),
    "audit": lambda store: store.audit(),
    "record_audit": lambda store: store.record_audit(NewAuditEntry(who="w", act="clear", outcome="done")),
    "rotate_encryption": lambda store: store.rotate_encryption(count_only=True),
    "stop_encryption": lambda store: store.stop_encryption("q"),
}


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    with scratch_directory() as path:
        yield path


def silent_store(dsn: str, *, breaker: bool, **settings: Any) -> PostgresStore:
    """Only the time of silence is short: what waits for anything else does not end within the test."""
    config = Config(breaker_silent_seconds=0.3, connect_timeout_seconds=3600, breaker_open_seconds=0.01, **settings)
    return PostgresStore(dsn, config=config, breaker=breaker)


@pytest.mark.parametrize("breaker", [True, False])
@pytest.mark.parametrize("connections", [2, len(VERBS)])
async def test_each_verb_fails_when_postgres_hangs(
    dsn: str, socket_directory: Path, connections: int, breaker: bool
) -> None:
    awake = asyncio.Event()
    awake.set()
    store = silent_store(through(dsn, socket_directory), breaker=breaker, pool_connections_max=connections)
    async with relay(dsn, socket_directory, awake=awake):
        await store.open()
        await push_n(store, "q")
        await pop(store, "q")
        awake.clear()
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*[verb(store) for verb in VERBS.values()], return_exceptions=True)
        told = {
            verb: outcome
            for verb, outcome in zip(VERBS, outcomes, strict=True)
            if not isinstance(outcome, Unavailable) or not outcome.details.get("unreachable")
        }
        assert told == {}
        awake.set()
        async with asyncio.timeout(60):
            while True:
                with suppress(Unavailable):
                    await store.ping()
                    break
                await asyncio.sleep(0.001)
        await store.close()


def test_no_verb_is_left_out() -> None:
    store = PostgresStore("postgresql://nowhere")
    members = inspect.getmembers(PostgresStore, inspect.iscoroutinefunction) + list(vars(store.verbs).items())
    verbs = {name for name, verb in members if name[0] != "_" and inspect.iscoroutinefunction(verb)}
    assert verbs - set(VERBS) == OTHERS
