"""The verbs of the engine that check their arguments and call the verb of the store with the same name.

Most of them are one line: `checked` makes a verb from the store's, with its signature and its docstring. Each argument
is checked by its type or by its name, from one table. A verb that does more is written out.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import msgspec

from lockstep.config import Config
from lockstep.core.access import (
    KEY_ID_LENGTH,
    KEY_SECRET_BYTES,
    CreatedKey,
    NewApiKey,
    NewAuditEntry,
    OwnedKind,
    StoredKey,
    digest_of,
    key_text,
)
from lockstep.core.crons import Cron
from lockstep.core.ids import parse_uuid
from lockstep.core.maintenance import Removal, Sample
from lockstep.core.messages import NewSchedule, Receipt
from lockstep.core.names import check_name
from lockstep.core.policy import SECONDS_MAX, GroupMode, QueueOptions
from lockstep.core.records import (
    DeadLetterFilter,
    GroupInfo,
    MessageFilter,
    MessageView,
    Position,
    QueueInfo,
    Subscription,
)
from lockstep.core.schedules import Scheduled, ScheduleFilter, ScheduleName
from lockstep.core.statistics import ServerSample
from lockstep.core.streams import NewStreamQuery, StateFilter, StateRow
from lockstep.core.times import check_time
from lockstep.core.traces import NewTraceEvent
from lockstep.engine import access_checks, checks, schedule_checks, stream_checks
from lockstep.engine.arrivals import Arrivals
from lockstep.errors import InvalidRequest, TooLarge
from lockstep.storage.base import Store
from lockstep.storage.base.access import AccessControl
from lockstep.storage.base.consistency import Consistency
from lockstep.storage.base.dead_letters import DeadLetters
from lockstep.storage.base.groups import Groups
from lockstep.storage.base.inspection import Inspection
from lockstep.storage.base.lifecycle import Lifecycle
from lockstep.storage.base.maintenance import Maintenance
from lockstep.storage.base.messages import Messages
from lockstep.storage.base.operations import Operations
from lockstep.storage.base.queues import Queues
from lockstep.storage.base.schedules import Schedules
from lockstep.storage.base.seals import Seals
from lockstep.storage.base.streams import Streams
from lockstep.storage.base.traces import Traces

P = ParamSpec("P")
R = TypeVar("R")

Check = Callable[[Any, Config], Any]
"""Raises InvalidRequest. May return the canonical spelling of the value; None keeps the value."""


def _name(what: str) -> Check:
    return lambda value, _: check_name(value, what=what)


def _label(what: str) -> Check:
    """Like a name, but it may be empty: a queue without a dot in its name has an empty task."""
    return lambda value, _: None if value == "" else check_name(value, what=what)


def _integer(what: str, *, low: int, high: int = checks.BIGINT_MAX) -> Check:
    return lambda value, _: checks.check_integer(value, what=what, low=low, high=high)


def _time(what: str) -> Check:
    return lambda value, _: check_time(value, what=what)


def _flag(what: str) -> Check:
    return lambda value, _: checks.check_boolean(value, what=what)


def _kind(kind: type[Any]) -> Check:
    return lambda value, _: checks.check_kind(value, kind)


def _without_config(check: Callable[[Any], Any]) -> Check:
    return lambda value, _: check(value)


def _check_operation_status(status: object, _: Config) -> None:
    if status not in ("pending", "done", "failed"):
        raise InvalidRequest(f"status must be pending, done or failed, not {status!r}")


def _check_period(arguments: Mapping[str, Any]) -> None:
    checks.check_period(arguments.get("from_at"), arguments.get("to_at"))


_BY_TYPE: dict[Any, Check] = {
    MessageFilter: _without_config(checks.check_message_filter),
    DeadLetterFilter: _without_config(checks.check_dead_letter_filter),
    ScheduleFilter: _without_config(schedule_checks.check_schedule_filter),
    ScheduleName: _without_config(schedule_checks.check_schedule_name),
    NewStreamQuery: _without_config(stream_checks.check_stream_query),
    NewTraceEvent: stream_checks.check_trace,
    Position: _without_config(checks.check_position),
    Subscription: _without_config(checks.check_subscription),
    Sample | None: _kind(Sample),
    Removal | None: _kind(Removal),
}
_BY_NAME: dict[str, Check] = {
    "queue": _name("queue"),
    "partition": _name("partition"),
    "group": _name("group"),
    "pipeline": _name("pipeline"),
    "stream_id": _name("stream_id"),
    "namespace": _label("namespace"),
    "task": _label("task"),
    "after": _label("after"),
    "from_name": _label("after"),
    "prefix": _label("after"),
    "scope": _without_config(checks.check_scope),
    "exact": lambda *_: None,
    "newest_first": _flag("newest_first"),
    "count_only": _flag("count_only"),
    "forget_subscription": _flag("forget_subscription"),
    "paused": _flag("paused"),
    "limit": checks.check_limit,
    "offset": _integer("offset", low=0),
    "cursor": _without_config(checks.check_page_cursor),
    "partition_id": _integer("partition id", low=1),
    "after_partition_id": _integer("after_partition_id", low=0),
    "dead_letter_id": _integer("dead letter id", low=1),
    "transaction_id": _without_config(checks.check_transaction_id),
    "trace_id": lambda value, _: str(parse_uuid(value, what="trace id")),
    "error": checks.check_error,
    "seconds": _integer("seconds", low=1, high=SECONDS_MAX),
    "expiring_within": lambda value, _: checks.check_duration(value, what="expiring_within"),
    "from_at": _time("from_at"),
    "to_at": _time("to_at"),
}


def _checks_of(verb: Callable[..., Any], special: Mapping[str, Check]) -> dict[str, Check]:
    """The check of each parameter. A parameter without one is a mistake, which shows when this module is imported."""
    hints = get_type_hints(verb)
    parameters = list(inspect.signature(verb).parameters)[1:]
    return {name: special.get(name) or _BY_TYPE.get(hints[name]) or _BY_NAME[name] for name in parameters}


def checked(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
    *,
    together: Callable[[Mapping[str, Any]], None] | None = None,
    stirs: bool = False,
    **special: Check,
) -> Callable[Concatenate[Administration, P], Coroutine[Any, Any, R]]:
    """The verb of the store, for unchecked arguments. `special` are checks by parameter, in place of
    those of the tables. A verb that `stirs` makes messages due without a push: it wakes pops that wait."""
    signature = inspect.signature(verb)
    checks_by_name = _checks_of(verb, special)

    @wraps(verb)
    async def check_and_call(self: Administration, /, *args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(self, *args, **kwargs)
        for name, check in checks_by_name.items():
            value = bound.arguments.get(name)
            if name in bound.arguments and (value is not None or signature.parameters[name].default is not None):
                spelled = check(value, self._config)
                bound.arguments[name] = value if spelled is None else spelled
        if together is not None:
            together(bound.arguments)
        result: R = await getattr(self._store, verb.__name__)(*bound.args[1:], **bound.kwargs)
        if stirs:
            self._arrivals.stirred(bound.arguments.get("queue"))
        return result

    return check_and_call


class Administration:
    """Everything about queues, groups and stored messages except their delivery."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._arrivals = Arrivals(store, config)

    ping = checked(Lifecycle.ping)
    ready = checked(Lifecycle.ready)

    # Queues and partitions

    async def configure(
        self,
        queue: str,
        options: QueueOptions | None = None,
        *,
        namespace: str | None = None,
        task: str | None = None,
    ) -> QueueInfo:
        """Create the queue or replace its configuration. Options that are not given take their defaults, except that
        encryption, once on, stays on."""
        checks.check_queue(queue)
        checks.check_labels(namespace=namespace, task=task)
        options = checks.check_queue_options(QueueOptions() if options is None else options, self._config)
        checks.check_work_queue_name(queue, msgspec.structs.asdict(options), self._config)
        info = await self._store.configure(queue, options, namespace=namespace, task=task)
        # A poll for a queue that did not exist learns how its group is served.
        self._arrivals.stirred(queue)
        return info

    async def update_queue(
        self, queue: str, changes: dict[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        """Change the given options, by name; the others stay."""
        checks.check_queue(queue)
        checks.check_labels(namespace=namespace, task=task)
        checks.check_option_changes(changes, self._config)
        checks.check_work_queue_name(queue, changes, self._config)
        info = await self._store.update_queue(queue, changes, namespace=namespace, task=task)
        self._arrivals.stirred(queue)
        return info

    stop_encryption = checked(Queues.stop_encryption)
    delete_queue = checked(Queues.delete_queue)
    clear = checked(Queues.clear)
    queues = checked(Queues.queues)
    queue = checked(Queues.queue)
    partitions = checked(Queues.partitions)
    partition = checked(Queues.partition)
    stats = checked(Queues.stats)

    # Groups

    async def subscribe(
        self, queue: str, group: str, subscription: Subscription | None = None, *, mode: GroupMode | None = None
    ) -> GroupInfo:
        """Create the group on the queue unless it exists. By default it begins with the first message and has the mode
        of the queue."""
        checks.check_queue(queue)
        checks.check_group(group)
        checks.check_mode(mode)
        checks.check_shared_name(queue, mode, self._config)
        subscription = checks.check_subscription(Subscription() if subscription is None else subscription)
        return await self._store.subscribe(queue, group, subscription, mode=mode)

    set_subscription = checked(Groups.set_subscription, group=_without_config(checks.check_subscribable))
    seek = checked(Groups.seek, stirs=True)
    preview_seek = checked(Groups.preview_seek)
    pause_group = checked(Groups.pause_group, stirs=True)
    delete_group = checked(Groups.delete_group, stirs=True)  # waiting polls of the group create it again
    groups = checked(Groups.groups)
    lag = checked(Groups.lag)
    depth = checked(Groups.depth)
    spark_streams = checked(Groups.spark_streams)
    forget_spark_stream = checked(Groups.forget_spark_stream)
    accept_spark_stream = checked(Groups.accept_spark_stream)

    # Stored messages

    messages = checked(Messages.messages)

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        if partition_id is None:
            return await self._store.message(str(parse_uuid(identity, what="message id")))
        checks.check_transaction_id(identity)
        checks.check_integer(partition_id, what="partition id", low=1)
        return await self._store.message(identity, partition_id=partition_id)

    trace = checked(Messages.trace)
    remove_message = checked(Messages.remove_message, stirs=True)

    async def retry_message(self, partition_id: int, transaction_id: str) -> Receipt:
        stream_checks.check_message(partition_id, transaction_id)
        receipt = await self._store.retry_message(partition_id, transaction_id)
        self._arrivals.stirred(receipt.queue)
        return receipt

    bury_message = checked(Messages.bury_message, stirs=True)

    # Dead letters

    dead_letters = checked(DeadLetters.dead_letters)
    dead_letter = checked(DeadLetters.dead_letter)

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000) -> int:
        checks.check_dead_letter_filter(where)
        checks.check_limit(limit, self._config)
        return await self._store.redrive(where, limit=limit)

    redrive_queue = checked(DeadLetters.redrive_queue)
    purge = checked(DeadLetters.purge)

    # Trace events

    record_trace = checked(Traces.record_trace)
    traces_of_message = checked(Traces.traces_of_message)
    traces_by_name = checked(Traces.traces_by_name, name=_name("trace name"))
    trace_names = checked(Traces.trace_names, queues=lambda value, _: access_checks.check_queue_names(value))

    # Stream queries

    register_stream_query = checked(Streams.register_stream_query)

    async def stream_state(self, where: StateFilter) -> list[StateRow]:
        """All rows that match. Raises TooLarge if there are more than the setting stream_rows_max allows."""
        where = stream_checks.check_state_filter(where, self._config)
        rows_max = self._config.stream_rows_max
        rows = await self._store.stream_state(where, limit=rows_max + 1)
        if len(rows) > rows_max:
            raise TooLarge(f"more than {rows_max} rows match; ask by keys, or by a longer prefix")
        return rows

    # Messages that wait for their time

    schedules = checked(Schedules.schedules, cursor=_without_config(schedule_checks.check_schedule_cursor))
    schedule = checked(Schedules.schedule)
    cancel_schedule = checked(Schedules.cancel_schedule)

    async def reschedule(self, which: ScheduleName, schedule: NewSchedule) -> Scheduled:
        schedule_checks.check_schedule_name(which)
        schedule_checks.check_new_time(schedule)
        moved = await self._store.reschedule(which, schedule)
        self._arrivals.scheduled(moved.due_at)
        return moved

    crons = checked(Schedules.crons)
    cron = checked(Schedules.cron, name=_without_config(schedule_checks.check_cron_name))

    async def enable_cron(self, name: str, enabled: bool) -> Cron:
        schedule_checks.check_cron_name(name)
        checks.check_boolean(enabled, what="enabled")
        known = await self._store.enable_cron(name, enabled)
        self._arrivals.scheduled(known.next_at)
        return known

    remove_cron = checked(Schedules.remove_cron, name=_without_config(schedule_checks.check_cron_name))

    # Operations

    operations = checked(Operations.operations, status=_check_operation_status)

    # The store as a whole

    leases = checked(Inspection.leases)
    utilisation = checked(Inspection.utilisation)
    namespaces = checked(Inspection.namespaces)
    tasks = checked(Inspection.tasks)
    overview = checked(Inspection.overview)
    database_stats = checked(Inspection.database_stats)
    database_activity = checked(Inspection.database_activity)
    pipeline_steps = checked(Inspection.pipeline_steps)
    job_runs = checked(Inspection.job_runs)
    samples = checked(Inspection.samples, together=_check_period)
    sample_spans = checked(Inspection.sample_spans)
    server_spans = checked(Inspection.server_spans)
    removals = checked(Inspection.removals, together=_check_period)
    verify = checked(Consistency.verify)
    repair = checked(Consistency.repair, stirs=True)
    rotate_encryption = checked(Seals.rotate_encryption)
    duties = checked(Maintenance.duties)

    # Keys, the audit log, and the owners of ids

    async def create_key(self, key: NewApiKey) -> CreatedKey:
        """Create an API key. Only the answer contains its text."""
        access_checks.check_key(key)
        key_id, secret = secrets.token_hex(KEY_ID_LENGTH // 2), secrets.token_urlsafe(KEY_SECRET_BYTES)
        made = await self._store.create_key(key, key_id=key_id, digest=digest_of(secret))
        return CreatedKey(key=made, token=key_text(key_id, secret))

    keys = checked(AccessControl.keys)
    revoke_key = checked(AccessControl.revoke_key, key_id=_name("key id"))
    audit = checked(
        AccessControl.audit,
        who=_name("who"),
        act=_name("act"),
        before=lambda value, _: str(parse_uuid(value, what="audit entry id")),
    )

    async def find_keys(self, key_ids: Sequence[str]) -> list[StoredKey]:
        """The keys with these ids, and the digests of their secrets."""
        return await self._store.find_keys(key_ids)

    async def record_audit(self, entry: NewAuditEntry) -> None:
        await self._store.record_audit(entry)

    async def record_server(self, sample: ServerSample) -> None:
        """Store what this server process did, for the history."""
        await self._store.record_server(sample)

    async def queues_of(self, kind: OwnedKind, ids: Sequence[str]) -> dict[str, list[str]]:
        """The queues that these ids belong to. Unknown ids are left out."""
        return await self._store.queues_of(kind, access_checks.checked_owned(kind, ids))

    async def sample(self) -> int:
        """Take a sample of every queue now; the walks over large queues go as far as time allows."""
        return await self._store.sample(seconds_max=self._config.samples_seconds_max)
