"""For each route and each verb: a request about one queue, and what it needs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from asking import Things

Need = Literal["push", "pop", "browse", "manage", "configure", "admin"]
Asked = Callable[[Things], tuple[str, object]]
"""The target and the body."""


@dataclass(frozen=True)
class Case:
    """A request, and who may send it."""

    asked: Asked
    needs: tuple[tuple[Need, ...], ...] = ()
    """All of these rights on the queue; one of each group."""
    everywhere: bool = False
    """The rights are needed on all queues: it is about no single one."""
    lists: bool = False
    """Everybody who may enter gets an answer, with what they may browse."""
    enter: tuple[Need, ...] = ("browse",)
    """One of these is needed on some queue to be let in; with `browse` any right does."""


def on(asked: Asked, *needs: Need | tuple[Need, ...], **fields: Any) -> Case:
    return Case(asked, tuple((need,) if isinstance(need, str) else need for need in needs), **fields)


def _items(t: Things) -> list[dict[str, object]]:
    return [{"queue": t.queue, "payload": 1}]


def _ack(t: Things) -> dict[str, object]:
    named = {"transactionId": t.transaction_id, "partitionId": str(t.partition_id)}
    return {**named, "leaseId": t.lease_id, "consumerGroup": "g"}


def _message(t: Things, tail: str = "") -> str:
    return f"/api/v1/messages/{t.partition_id}/{t.transaction_id}{tail}"


def _list(target: str) -> Case:
    return Case(lambda _: (target, None), lists=True)


_PAST = "2020-01-01T00:00:00Z"
_TRACE = "00000000-0000-4000-8000-000000000000"

ROUTES: Mapping[tuple[str, str], Case] = {
    ("POST", "/api/v1/push"): on(lambda t: ("/api/v1/push", {"items": _items(t)}), "push"),
    ("GET", "/api/v1/pop/queue/:queue"): on(lambda t: (f"/api/v1/pop/queue/{t.queue}?consumerGroup=n", None), "pop"),
    ("GET", "/api/v1/pop/queue/:queue/partition/:partition"): on(
        lambda t: (f"/api/v1/pop/queue/{t.queue}/partition/Default?wait=true&timeout=1", None), "pop"
    ),
    ("GET", "/api/v1/pop"): on(lambda _: ("/api/v1/pop?namespace=own", None), "pop", everywhere=True),
    ("POST", "/api/v1/ack"): on(lambda t: ("/api/v1/ack", _ack(t)), "pop"),
    ("POST", "/api/v1/ack/batch"): on(lambda t: ("/api/v1/ack/batch", {"acknowledgments": [_ack(t)]}), "pop"),
    ("POST", "/api/v1/lease/:leaseId/ack"): on(lambda t: (f"/api/v1/lease/{t.lease_id}/ack", None), "pop"),
    ("POST", "/api/v1/lease/:leaseId/next"): on(
        lambda t: (f"/api/v1/lease/{t.lease_id}/next", {"queue": t.queue, "consumerGroup": "g"}), "pop"
    ),
    ("POST", "/api/v1/lease/:leaseId/extend"): on(lambda t: (f"/api/v1/lease/{t.lease_id}/extend", None), "pop"),
    ("POST", "/api/v1/transaction"): on(
        lambda t: (
            "/api/v1/transaction",
            {"operations": [{"type": "push", "items": _items(t)}, {"type": "ack", **_ack(t)}]},
        ),
        "push",
        "pop",
    ),
    ("GET", "/api/v1/queues"): _list("/api/v1/queues"),
    ("PATCH", "/api/v1/queues/:queue"): on(
        lambda t: (f"/api/v1/queues/{t.queue}", {"options": {"leaseTime": 60}}), "manage"
    ),
    ("GET", "/api/v1/queues/:queue/stats"): on(lambda t: (f"/api/v1/queues/{t.queue}/stats", None), "browse"),
    ("POST", "/api/v1/queues/:queue/redrive"): on(
        lambda t: (f"/api/v1/queues/{t.queue}/redrive", None), "pop", enter=("push",)
    ),
    ("POST", "/api/v1/configure"): on(lambda t: ("/api/v1/configure", {"queue": t.queue, "options": {}}), "manage"),
    ("DELETE", "/api/v1/resources/queues/:queue"): on(
        lambda t: (f"/api/v1/resources/queues/{t.queue}", None), "configure"
    ),
    ("DELETE", "/api/v1/queues/:queue/clear"): on(lambda t: (f"/api/v1/queues/{t.queue}/clear", None), "configure"),
    ("GET", "/api/v1/consumer-groups"): _list("/api/v1/consumer-groups"),
    ("GET", "/api/v1/consumer-groups/lagging"): _list("/api/v1/consumer-groups/lagging?minLagSeconds=0"),
    ("GET", "/api/v1/spark-streams"): _list("/api/v1/spark-streams"),
    ("GET", "/api/v1/consumer-groups/:group"): _list("/api/v1/consumer-groups/g"),
    ("DELETE", "/api/v1/consumer-groups/:group"): on(
        lambda _: ("/api/v1/consumer-groups/g", None), "configure", everywhere=True
    ),
    ("DELETE", "/api/v1/consumer-groups/:group/queues/:queue"): on(
        lambda t: (f"/api/v1/consumer-groups/g/queues/{t.queue}", None), "configure"
    ),
    ("POST", "/api/v1/consumer-groups/:group/subscription"): on(
        lambda _: ("/api/v1/consumer-groups/g/subscription", {"subscriptionTimestamp": _PAST}),
        "manage",
        everywhere=True,
    ),
    ("POST", "/api/v1/consumer-groups/:group/queues/:queue/pause"): on(
        lambda t: (f"/api/v1/consumer-groups/g/queues/{t.queue}/pause", {"paused": False}), "manage"
    ),
    ("GET", "/api/v1/consumer-groups/:group/queues/:queue/seek"): on(
        lambda t: (f"/api/v1/consumer-groups/g/queues/{t.queue}/seek?toEnd=true", None), "browse"
    ),
    ("GET", "/api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek"): on(
        lambda t: (f"/api/v1/consumer-groups/g/queues/{t.queue}/partitions/Default/seek?toEnd=true", None), "browse"
    ),
    ("POST", "/api/v1/consumer-groups/:group/queues/:queue/seek"): on(
        lambda t: (f"/api/v1/consumer-groups/g/queues/{t.queue}/seek", {"toEnd": True}), "manage"
    ),
    ("POST", "/api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek"): on(
        lambda t: (f"/api/v1/consumer-groups/g/queues/{t.queue}/partitions/Default/seek", {"toEnd": True}), "manage"
    ),
    ("GET", "/api/v1/dlq"): _list("/api/v1/dlq"),
    ("GET", "/api/v1/dlq/:id"): on(lambda t: (f"/api/v1/dlq/{t.dead_letter_id}", None), "browse"),
    ("POST", "/api/v1/dlq/redrive"): on(
        lambda t: ("/api/v1/dlq/redrive", {"ids": [str(t.dead_letter_id)]}), "push", "pop", enter=("push",)
    ),
    ("POST", "/api/v1/dlq/purge"): on(lambda t: ("/api/v1/dlq/purge", {"queue": t.queue}), "configure"),
    ("GET", "/api/v1/schedules"): _list("/api/v1/schedules"),
    ("DELETE", "/api/v1/schedules"): on(lambda t: (f"/api/v1/schedules?queue={t.queue}&key=key", None), "push"),
    ("PATCH", "/api/v1/schedules"): on(
        lambda t: (f"/api/v1/schedules?queue={t.queue}&key=key", {"delaySeconds": 9}), "push"
    ),
    ("GET", "/api/v1/schedules/:id"): on(lambda t: (f"/api/v1/schedules/{t.schedule_id}", None), ("browse", "push")),
    ("DELETE", "/api/v1/schedules/:id"): on(lambda t: (f"/api/v1/schedules/{t.schedule_id}", None), "push"),
    ("PATCH", "/api/v1/schedules/:id"): on(
        lambda t: (f"/api/v1/schedules/{t.schedule_id}", {"delaySeconds": 9}), "push"
    ),
    ("GET", "/api/v1/crons"): _list("/api/v1/crons"),
    ("POST", "/api/v1/crons"): on(
        lambda t: ("/api/v1/crons", {"name": t.cron, "queue": t.queue, "expression": "0 0 1 1 *"}), "push"
    ),
    ("GET", "/api/v1/crons/:name"): on(lambda t: (f"/api/v1/crons/{t.cron}", None), ("browse", "push")),
    ("DELETE", "/api/v1/crons/:name"): on(lambda t: (f"/api/v1/crons/{t.cron}", None), "push"),
    ("GET", "/api/v1/traces/:traceId"): _list(f"/api/v1/traces/{_TRACE}"),
    ("POST", "/api/v1/traces"): on(
        lambda t: (
            "/api/v1/traces",
            {"transactionId": t.transaction_id, "partitionId": str(t.partition_id), "data": 1},
        ),
        "pop",
    ),
    ("GET", "/api/v1/traces/names"): _list("/api/v1/traces/names"),
    ("GET", "/api/v1/traces/by-name/:name"): _list("/api/v1/traces/by-name/name"),
    ("GET", "/api/v1/traces/:partitionId/:transactionId"): on(
        lambda t: (f"/api/v1/traces/{t.partition_id}/{t.transaction_id}", None), "browse"
    ),
    ("GET", "/api/v1/messages"): _list("/api/v1/messages"),
    ("GET", "/api/v1/messages/:partitionId/:transactionId"): on(lambda t: (_message(t), None), "browse"),
    ("DELETE", "/api/v1/messages/:partitionId/:transactionId"): on(lambda t: (_message(t), None), "manage"),
    ("POST", "/api/v1/messages/:partitionId/:transactionId/retry"): on(lambda t: (_message(t, "/retry"), None), "push"),
    ("POST", "/api/v1/messages/:partitionId/:transactionId/dlq"): on(lambda t: (_message(t, "/dlq"), None), "pop"),
    ("GET", "/api/v1/resources/overview"): _list("/api/v1/resources/overview"),
    ("GET", "/api/v1/resources/namespaces"): _list("/api/v1/resources/namespaces"),
    ("GET", "/api/v1/resources/tasks"): _list("/api/v1/resources/tasks"),
    ("GET", "/api/v1/resources/queues"): _list("/api/v1/resources/queues"),
    ("GET", "/api/v1/resources/queues/:queue"): on(lambda t: (f"/api/v1/resources/queues/{t.queue}", None), "browse"),
    ("GET", "/api/v1/resources/queues/:queue/depth"): on(
        lambda t: (f"/api/v1/resources/queues/{t.queue}/depth?group=g", None), ("browse", "pop")
    ),
    ("GET", "/api/v1/resources/partitions"): _list("/api/v1/resources/partitions"),
    ("GET", "/api/v1/status"): _list("/api/v1/status"),
    ("GET", "/api/v1/status/queues"): _list("/api/v1/status/queues?recent=true"),
    ("GET", "/api/v1/status/queues/:queue"): on(lambda t: (f"/api/v1/status/queues/{t.queue}", None), "browse"),
    ("GET", "/api/v1/status/queues/:queue/messages"): on(
        lambda t: (f"/api/v1/status/queues/{t.queue}/messages", None), "browse"
    ),
    ("GET", "/api/v1/status/analytics"): _list("/api/v1/status/analytics"),
    ("GET", "/api/v1/status/buffers"): _list("/api/v1/status/buffers"),
    ("POST", "/api/v1/stats/refresh"): on(lambda _: ("/api/v1/stats/refresh", None), "admin", everywhere=True),
    ("GET", "/api/v1/analytics/queue-ops"): _list("/api/v1/analytics/queue-ops"),
    ("GET", "/api/v1/analytics/queue-lag"): _list("/api/v1/analytics/queue-lag"),
    ("GET", "/api/v1/analytics/retention"): _list("/api/v1/analytics/retention"),
    ("GET", "/api/v1/analytics/utilisation"): _list("/api/v1/analytics/utilisation"),
    ("GET", "/api/v1/pipelines"): _list("/api/v1/pipelines"),
    ("GET", "/api/v1/pipelines/jobs"): _list("/api/v1/pipelines/jobs"),
    ("GET", "/api/v1/analytics/postgres-activity"): on(
        lambda _: ("/api/v1/analytics/postgres-activity", None), "browse", everywhere=True
    ),
    ("GET", "/api/v1/analytics/postgres-stats"): _list("/api/v1/analytics/postgres-stats"),
    ("GET", "/api/v1/analytics/requests"): _list("/api/v1/analytics/requests"),
    ("GET", "/api/v1/analytics/system-metrics"): _list("/api/v1/analytics/system-metrics"),
    ("GET", "/api/v1/analytics/worker-metrics"): _list("/api/v1/analytics/worker-metrics"),
    ("POST", "/streams/v1/queries"): on(
        lambda t: (
            "/streams/v1/queries",
            {"name": t.stream, "source_queue": t.queue, "config_hash": "hash", "sink_queue": t.queue},
        ),
        "pop",
        "push",
        enter=("pop",),
    ),
    ("POST", "/streams/v1/state/get"): on(
        lambda t: ("/streams/v1/state/get", {"query_id": t.query_id, "partition_id": t.partition_id}),
        ("browse", "pop"),
    ),
    ("POST", "/streams/v1/cycle"): on(
        lambda t: ("/streams/v1/cycle", {"query_id": t.query_id, "partition_id": t.partition_id}), "pop"
    ),
    ("GET", "/api/v1/operations"): _list("/api/v1/operations"),
    ("GET", "/api/v1/operations/stats"): _list("/api/v1/operations/stats"),
    ("GET", "/api/v1/operations/:operationId"): on(
        lambda t: (f"/api/v1/operations/{t.operation_id}", None), ("browse", "push")
    ),
    ("POST", "/api/v1/operations/:operationId/retry"): on(
        lambda t: (f"/api/v1/operations/{t.operation_id}/retry", None), "push"
    ),
    ("GET", "/api/v1/system/settings"): on(lambda _: ("/api/v1/system/settings", None), enter=("admin",)),
    ("POST", "/api/v1/system/verify"): on(lambda _: ("/api/v1/system/verify", {}), "admin", everywhere=True),
    ("GET", "/api/v1/system/maintenance"): on(lambda _: ("/api/v1/system/maintenance", None), enter=("admin",)),
    ("POST", "/api/v1/system/maintenance"): on(
        lambda _: ("/api/v1/system/maintenance", {"enabled": False}), "admin", everywhere=True
    ),
    ("GET", "/api/v1/system/maintenance/pop"): on(lambda _: ("/api/v1/system/maintenance/pop", None), enter=("admin",)),
    ("POST", "/api/v1/system/maintenance/pop"): on(
        lambda _: ("/api/v1/system/maintenance/pop", {"enabled": False}), "admin", everywhere=True
    ),
    ("GET", "/api/v1/leases"): _list("/api/v1/leases"),
    ("GET", "/api/v1/attention"): _list("/api/v1/attention"),
    ("GET", "/api/v1/events"): _list("/api/v1/events?watch=/api/v1/resources/queues"),
    ("GET", "/api/v1/whoami"): _list("/api/v1/whoami"),
    ("GET", "/api/v1/keys"): on(lambda _: ("/api/v1/keys", None), "admin", everywhere=True),
    ("POST", "/api/v1/keys"): on(
        lambda _: ("/api/v1/keys", {"name": "x", "role": "read-only"}), "admin", everywhere=True
    ),
    ("DELETE", "/api/v1/keys/:key"): on(lambda _: ("/api/v1/keys/none", None), "admin", everywhere=True),
    ("GET", "/api/v1/audit"): on(lambda _: ("/api/v1/audit", None), "admin", everywhere=True),
}


def _where(t: Things) -> dict[str, object]:
    return {"where": {"queue": t.queue}}


def _verb(arguments: Callable[[Things], object], *needs: Need | tuple[Need, ...], **fields: Any) -> Case:
    return on(lambda t: ("", arguments(t)), *needs, **fields)


def _all(arguments: object = None) -> Case:
    return Case(lambda _: ("", arguments), lists=True)


def _of_queue(*needs: Need | tuple[Need, ...], **more: object) -> Case:
    return _verb(lambda t: {"queue": t.queue, **more}, *needs)


def _everywhere(need: Need, arguments: object = None) -> Case:
    return _verb(lambda _: arguments, need, everywhere=True)


def _of_message(t: Things) -> dict[str, object]:
    return {"partition_id": t.partition_id, "transaction_id": t.transaction_id}


_CRON = {"expression": "0 0 1 1 *", "payload": "MQ=="}
_SPAN = {"from_at": _PAST, "to_at": "2099-01-01T00:00:00Z"}

VERBS: Mapping[str, Case] = {
    "configure": _of_queue("manage"),
    "update_queue": _of_queue("manage", changes={"lease_seconds": 60}),
    "stop_encryption": _of_queue("admin"),
    "delete_queue": _of_queue("configure"),
    "clear": _of_queue("configure"),
    "queues": _all(),
    "queue": _of_queue(("browse", "push", "pop", "manage")),
    "partitions": _of_queue("browse"),
    "partition": _of_queue(("browse", "manage"), partition="Default"),
    "stats": _of_queue("browse"),
    "has_pending": _verb(lambda t: {"requests": [{"queue": t.queue}]}, ("pop", "browse")),
    "ack": _verb(
        lambda t: {"acks": [{"partition_id": t.partition_id, "transaction_id": t.transaction_id, "group": "g"}]}, "pop"
    ),
    "subscribe": _of_queue("pop", group="new-group"),
    "set_subscription": _of_queue("manage", group="g", subscription={"mode": "new"}),
    "seek": _of_queue("manage", group="g", position={"kind": "end"}),
    "pause_group": _of_queue("manage", group="g", paused=False),
    "delete_group": _of_queue("configure", group="g"),
    "groups": _all(),
    "lag": _of_queue(("browse", "pop")),
    "depth": _of_queue(("browse", "pop"), group="g"),
    "preview_seek": _of_queue("browse", group="g", position={"kind": "end"}),
    "spark_streams": _all(),
    "forget_spark_stream": _everywhere("admin", {"stream_id": "none"}),
    "accept_spark_stream": _everywhere("admin", {"stream_id": "none"}),
    "messages": _all({"where": {}}),
    "message": _verb(lambda t: {"identity": t.transaction_id, "partition_id": t.partition_id}, "browse"),
    "trace": _all({"trace_id": _TRACE}),
    "remove_message": _verb(_of_message, "manage"),
    "retry_message": _verb(_of_message, "push"),
    "bury_message": _verb(_of_message, "pop"),
    "record_trace": _verb(lambda t: {"event": {**_of_message(t), "data": "MQ=="}}, "pop"),
    "traces_of_message": _verb(_of_message, "browse"),
    "traces_by_name": _all({"name": "name"}),
    "trace_names": _all(),
    "register_stream_query": _verb(
        lambda t: {"query": {"name": t.stream, "source_queue": t.queue, "config_hash": "hash"}}, "pop"
    ),
    "stream_state": _verb(
        lambda t: {"where": {"query_id": t.query_id, "partition_id": t.partition_id}}, ("browse", "pop")
    ),
    "schedules": _all({"where": {}}),
    "schedule": _verb(lambda t: {"which": {"id": t.schedule_id}}, ("browse", "push")),
    "cancel_schedule": _verb(lambda t: {"which": {"id": t.schedule_id}}, "push"),
    "reschedule": _verb(lambda t: {"which": {"id": t.schedule_id}, "schedule": {"delay_seconds": 9}}, "push"),
    "set_cron": _verb(lambda t: {"cron": {"name": t.cron, "queue": t.queue, **_CRON}}, "push"),
    "crons": _all(),
    "cron": _verb(lambda t: {"name": t.cron}, ("browse", "push")),
    "enable_cron": _verb(lambda t: {"name": t.cron, "enabled": False}, "push"),
    "remove_cron": _verb(lambda t: {"name": t.cron}, "push"),
    "dead_letters": _all({"where": {}}),
    "dead_letter": _verb(lambda t: {"dead_letter_id": t.dead_letter_id}, "browse"),
    "redrive": _verb(_where, "push", "pop", enter=("push",)),
    "redrive_queue": _verb(lambda t: {"queue": t.queue}, "pop", enter=("push",)),
    "purge": _verb(lambda t: {"where": {"ids": [t.dead_letter_id]}}, "configure"),
    "operations": _all(),
    "operation": _verb(lambda t: {"operation_id": t.operation_id}, ("browse", "push")),
    "operation_stats": _all(),
    "retry_operation": _verb(lambda t: {"operation_id": t.operation_id}, "push"),
    "maintenance_mode": _verb(lambda _: None, enter=("admin",)),
    "set_maintenance_mode": _everywhere("admin", {"push": False}),
    "retry_rejected": _everywhere("admin"),
    "accept_buffer_loss": _everywhere("admin"),
    "leases": _all(),
    "utilisation": _all(),
    "namespaces": _all(),
    "tasks": _all(),
    "overview": _all(),
    "verify": _everywhere("admin"),
    "repair": _everywhere("admin"),
    "rotate_encryption": _everywhere("admin", {"count_only": True}),
    "duties": _all(),
    "samples": _all(),
    "sample_spans": _all({"seconds": 60, **_SPAN}),
    "server_spans": _all({"seconds": 60, **_SPAN}),
    "removals": _all(),
    "database_stats": _all(),
    "database_activity": _everywhere("browse"),
    "pipeline_steps": _all(),
    "job_runs": _all(),
    "create_key": _everywhere("admin", {"key": {"name": "x", "role": "read-only"}}),
    "keys": _everywhere("admin"),
    "revoke_key": _everywhere("admin", {"key_id": "none"}),
    "audit": _everywhere("admin"),
}
