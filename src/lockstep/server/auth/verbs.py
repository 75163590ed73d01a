"""The rights that each verb of the engine needs: a rule for every verb that a route may call.

A rule finds the queues of a call, by name or through its ids, and requires a right on all of them; or it removes from
the answer what the caller may not browse. Anything that sends messages to a queue needs the push right there: a cron, a
redrive, a dead queue, the sink of a stream query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from lockstep.core import refusals
from lockstep.core.policy import QueueOptions
from lockstep.core.records import DeadLetterFilter
from lockstep.core.rights import Right
from lockstep.errors import CronNotFound, InvalidRequest, StreamQueryNotFound
from lockstep.server.auth import lists
from lockstep.server.auth.guard import GuardedCall, Rule
from lockstep.server.auth.rules import (
    by_cursor,
    everywhere,
    found,
    free,
    in_partition,
    listed,
    of_message,
    of_queue,
    on_queue,
    paged,
)


def configuring(options_of: Callable[[Any], Mapping[str, Any]]) -> Rule:
    """Requires rights on the queue, and the push right on its dead queue."""

    async def rule(call: GuardedCall) -> Any:
        queue = call.arguments["queue"]
        call.need("manage", [queue])
        _check_labels(call, queue)
        dead_queue = options_of(call.arguments).get("dead_queue")
        if isinstance(dead_queue, str) and dead_queue:
            call.need("push", [dead_queue])
        return await call.run()

    return rule


def _check_labels(call: GuardedCall, queue: str) -> None:
    """Consumers of a namespace or task would pop from a queue that is moved there. Every caller may pass None and the
    parts of the queue's own name, which are its defaults."""
    pieces = dict(zip(("namespace", "task"), [*queue.split("."), "", ""], strict=False))
    if any(call.arguments.get(label) not in (None, "", piece) for label, piece in pieces.items()):
        call.guard.need_everywhere("manage")


def _options(arguments: Any) -> Mapping[str, Any]:
    given = arguments.get("options")
    return msgspec.structs.asdict(given) if isinstance(given, QueueOptions) else {}


def _changes(arguments: Any) -> Mapping[str, Any]:
    given = arguments.get("changes")
    return given if isinstance(given, Mapping) else {}


async def _has_pending(call: GuardedCall) -> Any:
    call.need(("pop", "browse"), [request.queue for request in call.arguments["requests"]])
    return await call.run()


async def _subscribe(call: GuardedCall) -> Any:
    call.need("pop", [call.arguments["queue"]])
    return await call.run()


async def _message(call: GuardedCall) -> Any:
    view = await call.run()
    call.need("browse", [view.message.queue])
    return view


async def _record_trace(call: GuardedCall) -> Any:
    owners = await call.guard.guards.owners.of_partitions([call.arguments["event"].partition_id])
    call.need("pop", list(owners.values()))
    if not owners and not call.guard.everywhere("pop"):
        raise refusals.no_partition_id(call.arguments["event"].partition_id)
    return await call.run()


async def _register_stream_query(call: GuardedCall) -> Any:
    query = call.arguments["query"]
    known = await call.guard.guards.owners.of("stream_query_name", [query.name])
    call.need("pop", {query.source_queue, *known})
    if query.sink_queue is not None:
        call.need("push", [query.sink_queue])
    return await call.run()


async def _stream_state(call: GuardedCall) -> Any:
    if not call.guard.everywhere("browse"):
        where = call.arguments["where"]
        owners = call.guard.guards.owners
        queries = await owners.of("stream_query", [str(where.query_id)])
        if not queries:
            raise StreamQueryNotFound(f"there is no stream query {where.query_id}")
        partitions = await owners.of_partitions([where.partition_id])
        call.need(("browse", "pop"), {*queries, *partitions.values()})
    return await call.run()


async def _schedule(call: GuardedCall) -> Any:
    if (queue := call.arguments["which"].queue) is not None:
        call.need(("browse", "push"), [queue])
    schedule = await call.run()
    call.need(("browse", "push"), [schedule.queue])
    return schedule


async def _change_schedule(call: GuardedCall) -> Any:
    which = call.arguments["which"]
    queue = which.queue
    if queue is None and not call.guard.everywhere("push"):
        queue = (await call.guard.engine.schedule(which)).queue
    if queue is not None:
        call.need("push", [queue])
    return await call.run()


async def _set_cron(call: GuardedCall) -> Any:
    cron = call.arguments["cron"]
    call.need("push", [cron.queue])
    await _need_cron(call, cron.name)
    return await call.run()


async def _change_cron(call: GuardedCall) -> Any:
    await _need_cron(call, call.arguments["name"])
    return await call.run()


async def _need_cron(call: GuardedCall, name: str) -> None:
    """Requires the push right on the queue of a cron, if there is one with this name."""
    try:
        known = await call.guard.engine.cron(name)
    except (CronNotFound, InvalidRequest):
        return
    call.need("push", [known.queue])


def selecting(*rights: Right) -> Rule:
    """For dead letters selected by a filter: requires a right on its queue, on the queues of its ids, or else on all
    queues.
    """

    async def rule(call: GuardedCall) -> Any:
        where: DeadLetterFilter = call.arguments["where"]
        queues = {where.queue} if where.queue is not None else set()
        if where.ids is not None:
            queues |= await call.guard.guards.owners.of("dead_letter", [str(one) for one in where.ids])
        for right in rights:
            if queues or where.ids is not None:
                call.need(right, queues)
            else:
                call.guard.need_everywhere(right)
        return await call.run()

    return rule


async def _redrive_queue(call: GuardedCall) -> Any:
    queue = call.arguments["queue"]
    call.need("pop", [queue])
    if not call.guard.everywhere("push"):
        call.need("push", await call.guard.guards.owners.of("dead_queue", [queue]))
    return await call.run()


async def _operation(call: GuardedCall) -> Any:
    info = await call.run()
    if info.queues:
        call.need(("push", "browse"), info.queues)
    return info


async def _retry_operation(call: GuardedCall) -> Any:
    info = await call.guard.engine.operation(call.arguments["operation_id"])
    if info.queues:
        call.need("push", info.queues)
    else:
        call.guard.need_everywhere("pop")
    return await call.run()


RULES: Mapping[str, Rule] = {
    "configure": configuring(_options),
    "update_queue": configuring(_changes),
    "stop_encryption": on_queue("admin"),
    "delete_queue": on_queue("configure"),
    "clear": on_queue("configure"),
    "queues": paged(lambda info: info.name, after=lambda info: info.name),
    "queue": on_queue("browse", "push", "pop", "manage"),
    "partitions": on_queue("browse"),
    "partition": on_queue("browse", "manage"),
    "stats": on_queue("browse"),
    "has_pending": _has_pending,
    "subscribe": _subscribe,
    "set_subscription": on_queue("manage"),
    "seek": on_queue("manage"),
    "preview_seek": on_queue("browse"),
    "pause_group": on_queue("manage"),
    "delete_group": on_queue("configure"),
    "groups": listed(of_queue),
    "lag": on_queue("browse", "pop"),
    "depth": on_queue("browse", "pop"),
    "spark_streams": listed(of_queue),
    "forget_spark_stream": everywhere("admin"),
    "accept_spark_stream": everywhere("admin"),
    "messages": by_cursor(lambda view: [view.message.queue]),
    "message": _message,
    "trace": listed(of_queue),
    "remove_message": in_partition("manage"),
    "retry_message": in_partition("push"),
    "bury_message": in_partition("pop"),
    "record_trace": _record_trace,
    "traces_of_message": in_partition("browse"),
    "traces_by_name": lists.traces_by_name,
    "trace_names": lists.trace_names,
    "register_stream_query": _register_stream_query,
    "stream_state": _stream_state,
    "schedules": by_cursor(lambda schedule: [schedule.queue]),
    "schedule": _schedule,
    "cancel_schedule": _change_schedule,
    "reschedule": _change_schedule,
    "set_cron": _set_cron,
    "crons": paged(of_queue, after=lambda cron: cron.name),
    "cron": found(("browse", "push"), of_queue),
    "enable_cron": _change_cron,
    "remove_cron": _change_cron,
    "dead_letters": lists.dead_letters,
    "dead_letter": found("browse", of_message),
    "redrive": selecting("push", "pop"),
    "redrive_queue": _redrive_queue,
    "purge": selecting("configure"),
    "operations": by_cursor(lambda info: info.queues),
    "operation": _operation,
    "operation_stats": free(),
    "retry_operation": _retry_operation,
    "maintenance_mode": free(),
    "set_maintenance_mode": everywhere("admin"),
    "retry_rejected": everywhere("admin"),
    "accept_buffer_loss": everywhere("admin"),
    "leases": lists.leases,
    "utilisation": listed(of_queue),
    "namespaces": lists.labels("namespace"),
    "tasks": lists.labels("task"),
    "overview": lists.overview,
    "verify": everywhere("admin"),
    "repair": everywhere("admin"),
    "rotate_encryption": everywhere("admin"),
    "duties": free(),
    "samples": paged(of_queue, after=lambda sample: sample),
    "sample": everywhere("admin"),
    "sample_spans": lists.sample_spans,
    "server_spans": free(),
    "removals": paged(of_queue, after=lambda removal: removal),
    "database_stats": free(),
    "database_activity": everywhere("browse"),
    "pipeline_steps": lists.pipeline_steps,
    "job_runs": lists.job_runs,
    "create_key": everywhere("admin"),
    "keys": everywhere("admin"),
    "revoke_key": everywhere("admin"),
    "audit": everywhere("admin"),
}
"""By verb. Those of the busy verbs are in guard.py."""

AUDITED = frozenset(
    {
        "configure",
        "update_queue",
        "stop_encryption",
        "delete_queue",
        "clear",
        "set_subscription",
        "seek",
        "pause_group",
        "delete_group",
        "forget_spark_stream",
        "accept_spark_stream",
        "remove_message",
        "retry_message",
        "bury_message",
        "set_cron",
        "enable_cron",
        "remove_cron",
        "redrive",
        "redrive_queue",
        "purge",
        "retry_operation",
        "set_maintenance_mode",
        "retry_rejected",
        "accept_buffer_loss",
        "repair",
        "create_key",
        "revoke_key",
    }
)
"""Administrative acts, which the audit log records."""
