"""Checks of all requests except pushed messages.

Each returns the checked value, or raises InvalidRequest (InvalidName for a name) with a text that says what is wrong.
Acks come by the thousand, so they are checked column by column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Literal, TypeVar, get_args

import msgspec

from lockstep.config import Config
from lockstep.core.endings import ACK_STATUSES, TIMED_STATUSES, AckStatus
from lockstep.core.ids import all_canonical_uuids, parse_uuid
from lockstep.core.names import (
    NAME_LENGTH_MAX,
    QUEUE_MODE,
    TRANSACTION_ID_LENGTH_MAX,
    check_label,
    check_name,
)
from lockstep.core.policy import SECONDS_MAX, GroupMode, QueueOptions, check_option, check_options
from lockstep.core.records import (
    Ack,
    ClearScope,
    DeadLetterFilter,
    MessageFilter,
    MessageStatus,
    NextRequest,
    PendingRequest,
    PopRequest,
    Position,
    Renewal,
    Subscription,
    SubscriptionMode,
)
from lockstep.core.times import check_kept_time, check_time
from lockstep.engine.incoming import check_list, check_texts
from lockstep.errors import EncryptionUnavailable, InvalidName, InvalidOption, InvalidRequest

LEASE_SECONDS_MIN = 0.001
BIGINT_MAX = 2**63 - 1
RETRY_YEAR_MAX = 9000
"""Far below the time that stands for never."""

_Request = TypeVar("_Request")
_STATUSES = frozenset(ACK_STATUSES)


# --- Single values ----------------------------------------------------------------------------------------


def check_queue(name: object) -> str:
    return check_name(name, what="queue")


def check_group(name: object) -> str:
    return check_name(name, what="group")


def check_names(*, queue: object = None, partition: object = None, group: object = None) -> None:
    """Names that may be missing."""
    for what, name in (("queue", queue), ("partition", partition), ("group", group)):
        if name is not None:
            check_name(name, what=what)


def check_labels(*, namespace: object = None, task: object = None, after: object = None) -> None:
    """Like names, but they may also be empty: a queue without a dot in its name has an empty task."""
    for what, text in (("namespace", namespace), ("task", task), ("after", after)):
        if text not in (None, ""):
            check_name(text, what=what)


def check_integer(value: object, *, what: str, low: int, high: int = BIGINT_MAX) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{what} must be a whole number, not {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidRequest(f"{what} must be between {low} and {high}, not {value}")


def check_limit(limit: object, config: Config) -> None:
    check_integer(limit, what="limit", low=1, high=config.page_items_max)


def check_boolean(value: object, *, what: str) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{what} must be true or false, not {type(value).__name__}")


def check_lease_seconds(seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidRequest(f"lease seconds must be a number, not {type(seconds).__name__}")
    if not LEASE_SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise InvalidRequest(f"lease seconds must be between {LEASE_SECONDS_MIN} and {SECONDS_MAX}, not {seconds}")


def check_duration(duration: object, *, what: str) -> None:
    if not isinstance(duration, timedelta):
        raise InvalidRequest(f"{what} must be a timedelta, not {type(duration).__name__}")
    if not timedelta(0) <= duration <= timedelta(seconds=SECONDS_MAX):
        raise InvalidRequest(f"{what} must be between 0 and {SECONDS_MAX} seconds, not {duration}")


def check_choice(value: object, choices: Any, *, what: str) -> None:
    """`choices` is a Literal."""
    if value not in get_args(choices):
        raise InvalidRequest(f"{what} must be one of {', '.join(get_args(choices))}, not {str(value)[:64]!r}")


def check_kind(value: object, kind: type[_Request]) -> _Request:
    if not isinstance(value, kind):
        raise InvalidRequest(f"expected {kind.__name__}, not {type(value).__name__}")
    return value


def check_count(requests: Sequence[object], *, what: str, limit: int) -> None:
    check_list(requests, what=what)
    if len(requests) > limit:
        raise InvalidRequest(f"there are {len(requests)} {what}; at most {limit} are allowed in one call")


def check_transaction_id(text: object) -> None:
    if not check_label(text, what="transaction id", length_max=TRANSACTION_ID_LENGTH_MAX):
        raise InvalidRequest("transaction id must not be empty")


def check_page_cursor(cursor: object) -> None:
    if cursor is not None:
        check_label(cursor, what="cursor", length_max=NAME_LENGTH_MAX)


# --- Queues -----------------------------------------------------------------------------------------------


def check_queue_options(options: object, config: Config) -> QueueOptions:
    if not isinstance(options, QueueOptions):
        raise InvalidOption(f"options must be QueueOptions, not {type(options).__name__}")
    options = check_options(options)
    if options.encryption and not config.encryption_key and not config.encryption_allow_plain:
        raise EncryptionUnavailable()
    return options


def check_option_changes(changes: object, config: Config) -> None:
    """Options to change, by name. Only the store can check whether they are compatible with the unchanged ones."""
    if not isinstance(changes, dict):
        raise InvalidOption(f"changes must be a mapping, not {type(changes).__name__}")
    for name, value in changes.items():
        check_option(name, value)
    if changes.get("encryption") and not config.encryption_key and not config.encryption_allow_plain:
        raise EncryptionUnavailable()


_WORK_OPTIONS = ("expire_seconds", "dead_queue", "partitions")


def check_work_queue_name(queue: str, options: Mapping[str, Any], config: Config) -> None:
    """A queue that is used as a work queue has a name without whitespace, unless a setting allows it: such a name is a
    mistake more often than not, but existing queues of the protocol may have one."""
    used = any(options.get(name) for name in _WORK_OPTIONS) or options.get("group_mode") == "shared"
    if used and not config.names_allow_whitespace and any(map(str.isspace, queue)):
        raise InvalidName(f"the name of a work queue must not contain whitespace: {queue!r}")


def check_shared_name(queue: str | None, mode: GroupMode | None, config: Config) -> None:
    """A caller that requests a shared group uses the queue as a work queue."""
    if queue is not None and mode == "shared":
        check_work_queue_name(queue, {"group_mode": mode}, config)


def check_scope(scope: object) -> None:
    check_choice(scope, ClearScope, what="scope")


# --- Pop --------------------------------------------------------------------------------------------------


def check_pop(request: object, config: Config) -> PopRequest:
    request = check_kind(request, PopRequest)
    check_names(queue=request.queue, partition=request.partition)
    check_group(request.group)
    check_labels(namespace=request.namespace, task=request.task)
    by_queue = request.queue is not None
    by_namespace = request.namespace is not None or request.task is not None
    if by_queue == by_namespace:
        raise InvalidRequest("a pop names a queue, or a namespace and/or a task, and not both")
    if request.partition is not None and not by_queue:
        raise InvalidRequest("a pop that names a partition must name its queue")
    check_integer(request.batch, what="batch", low=1, high=config.pop_messages_max)
    check_integer(request.partitions, what="partitions", low=1, high=config.pop_partitions_max)
    if request.lease_seconds is not None:
        check_lease_seconds(request.lease_seconds)
    check_boolean(request.auto_ack, what="auto_ack")
    check_mode(request.mode)
    check_shared_name(request.queue, request.mode, config)
    check_subscription(request.subscription)
    return request


def check_next(request: object, config: Config) -> NextRequest:
    request = check_kind(request, NextRequest)
    pop = check_pop(request.pop, config)
    if pop.auto_ack:
        raise InvalidRequest("what comes next under a lease is not acknowledged at once (auto_ack)")
    check_boolean(request.give_way, what="give_way")
    [ack] = check_acks([Ack(lease_id=request.lease_id)], config)
    return NextRequest(lease_id=ack.lease_id or "", pop=pop, give_way=request.give_way)


def check_mode(mode: object) -> None:
    if mode is not None:
        check_choice(mode, GroupMode, what="mode")


def check_wait_seconds(seconds: object, config: Config) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidRequest(f"the wait must be a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds <= config.pop_wait_seconds_max:
        raise InvalidRequest(f"the wait must be between 0 and {config.pop_wait_seconds_max} seconds, not {seconds}")


def check_pending(request: object) -> PendingRequest:
    request = check_kind(request, PendingRequest)
    check_queue(request.queue)
    check_names(partition=request.partition)
    check_group(request.group)
    return request


def check_subscription(subscription: object) -> Subscription:
    subscription = check_kind(subscription, Subscription)
    check_choice(subscription.mode, SubscriptionMode, what="subscription mode")
    if subscription.mode == "from":
        check_kept_time(subscription.from_at, what="from_at")
    elif subscription.from_at is not None:
        raise InvalidRequest(f"from_at goes with the mode from, not {subscription.mode}")
    return subscription


# --- Ack and renew ----------------------------------------------------------------------------------------


_ACK_FIELDS = attrgetter("status", "group", "transaction_id", "partition_id", "seq")


def check_acks(acks: Sequence[Ack], config: Config) -> Sequence[Ack]:
    """The acks, with lease ids in their canonical spelling and error texts that fit."""
    check_count(acks, what="acks", limit=config.ack_items_max)
    if not set(map(type, acks)) <= {Ack}:
        for ack in acks:
            check_kind(ack, Ack)
    if not acks:
        return acks
    _check_forms(acks)
    statuses, groups, transaction_ids, partition_ids, seqs = map(list, zip(*map(_ACK_FIELDS, acks), strict=True))
    _check_statuses(statuses)
    for group in set(groups) if set(map(type, groups)) == {str} else groups:
        check_group(group)
    check_texts(transaction_ids, what="transaction id", length_max=TRANSACTION_ID_LENGTH_MAX)
    if "" in transaction_ids:
        raise InvalidRequest("transaction id must not be empty")
    _check_numbers(partition_ids, what="partition id")
    _check_numbers(seqs, what="seq")
    _check_retries(acks)
    return _normal_errors(_normal_leases(acks), config)


def _check_forms(acks: Sequence[Ack]) -> None:
    """Each ack is by lease or by message."""
    if any([ack.lease_id is None for ack in acks if ack.transaction_id is None]):
        raise InvalidRequest("an ack names a lease, or a partition id and a transaction id")
    if any([ack.partition_id is None or ack.seq is not None for ack in acks if ack.transaction_id is not None]):
        raise InvalidRequest("an ack by transaction id needs a partition id, and has no seq")


def _check_statuses(statuses: list[AckStatus]) -> None:
    if set(map(type, statuses)) <= {str} and _STATUSES.issuperset(statuses):
        return
    for status in statuses:
        check_choice(status, AckStatus, what="status")


def _check_retries(acks: Sequence[Ack]) -> None:
    for ack in [ack for ack in acks if ack.retry_at is not None]:
        check_time(ack.retry_at, what="retry_at")
        if ack.status not in TIMED_STATUSES:
            raise InvalidRequest(f"retry_at goes with the status {' or '.join(TIMED_STATUSES)}, not {ack.status}")
        if ack.retry_at is not None and ack.retry_at.year >= RETRY_YEAR_MAX:
            raise InvalidRequest(f"retry_at must be before the year {RETRY_YEAR_MAX}: {ack.retry_at.isoformat()}")


def _check_numbers(column: list[int | None], *, what: str) -> None:
    if column.count(None) == len(column):
        return
    numbers = [number for number in column if number is not None]
    if set(map(type, numbers)) == {int} and min(numbers) >= 1 and max(numbers) <= BIGINT_MAX:
        return
    for number in numbers:
        check_integer(number, what=what, low=1)


def _normal_leases(acks: Sequence[Ack]) -> Sequence[Ack]:
    lease_ids = [ack.lease_id for ack in acks if ack.lease_id is not None]
    if set(map(type, lease_ids)) <= {str} and all_canonical_uuids(lease_ids):
        return acks
    return [
        ack if ack.lease_id is None else msgspec.structs.replace(ack, lease_id=check_lease_id(ack.lease_id))
        for ack in acks
    ]


def check_leases(lease_ids: Sequence[str], config: Config) -> list[str]:
    """The lease ids in their canonical spelling."""
    check_count(lease_ids, what="leases", limit=config.ack_items_max)
    return [check_lease_id(lease_id) for lease_id in lease_ids]


def check_lease_id(lease_id: object) -> str:
    return str(parse_uuid(lease_id, what="lease id"))


def _normal_errors(acks: Sequence[Ack], config: Config) -> Sequence[Ack]:
    """An error text is for people. One that is too long, or cannot be stored, must not make the ack fail."""
    if all([ack.error is None for ack in acks]):
        return acks
    return [
        ack if ack.error is None else msgspec.structs.replace(ack, error=_normal_error(ack.error, config))
        for ack in acks
    ]


def check_error(error: object, config: Config) -> str | None:
    """An optional error text, cut to fit."""
    return None if error is None else _normal_error(error, config)


def _normal_error(error: object, config: Config) -> str:
    if not isinstance(error, str):
        raise InvalidRequest(f"error must be a string, not {type(error).__name__}")
    text = error[: config.error_text_length_max]
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def check_renewals(renewals: Sequence[Renewal], config: Config) -> list[Renewal]:
    check_count(renewals, what="renewals", limit=config.ack_items_max)
    return [_check_renewal(renewal) for renewal in renewals]


def _check_renewal(renewal: object) -> Renewal:
    renewal = check_kind(renewal, Renewal)
    if renewal.seconds is not None:
        check_lease_seconds(renewal.seconds)
    return msgspec.structs.replace(renewal, lease_id=check_lease_id(renewal.lease_id))


# --- Groups -----------------------------------------------------------------------------------------------


def check_subscribable(group: object) -> None:
    """A group that can start somewhere other than at the first message."""
    if check_group(group) == QUEUE_MODE:
        raise InvalidRequest("queue mode always begins with the first message")


def check_position(position: object) -> Position:
    position = check_kind(position, Position)
    check_choice(position.kind, Literal["start", "end", "time", "seq", "current"], what="position")
    if position.kind == "time":
        check_time(position.at, what="at")
    elif position.at is not None:
        raise InvalidRequest(f"at goes with the position time, not {position.kind}")
    if position.kind == "seq":
        check_integer(position.seq, what="seq", low=1)
    elif position.seq is not None:
        raise InvalidRequest(f"seq goes with the position seq, not {position.kind}")
    return position


# --- Looking in -------------------------------------------------------------------------------------------


def check_message_filter(where: object) -> MessageFilter:
    where = check_kind(where, MessageFilter)
    check_names(queue=where.queue, partition=where.partition)
    check_labels(namespace=where.namespace, task=where.task)
    if where.partition is not None and where.queue is None:
        raise InvalidRequest("a filter that names a partition must name its queue")
    if where.status is not None:
        check_choice(where.status, MessageStatus, what="status")
    check_period(where.from_at, where.to_at)
    return where


def check_dead_letter_filter(where: object) -> DeadLetterFilter:
    where = check_kind(where, DeadLetterFilter)
    check_names(queue=where.queue, partition=where.partition, group=where.group)
    if where.ids is not None:
        check_list(where.ids, what="dead letter ids")
    for dead_letter_id in where.ids or ():
        check_integer(dead_letter_id, what="dead letter id", low=1)
    check_period(where.from_at, where.to_at)
    return where


def check_period(from_at: datetime | None, to_at: datetime | None) -> None:
    if from_at is not None:
        check_time(from_at, what="from_at")
    if to_at is not None:
        check_time(to_at, what="to_at")
    if from_at is not None and to_at is not None and from_at > to_at:
        raise InvalidRequest(f"from_at must not be after to_at: {from_at} > {to_at}")
