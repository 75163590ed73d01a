"""Checks of requests about trace events and stream queries."""

from __future__ import annotations

from typing import Any

import msgspec

from lockstep.config import Config
from lockstep.core.endings import AckStatus
from lockstep.core.names import NAME_LENGTH_MAX, check_label, check_name, check_names
from lockstep.core.records import Ack
from lockstep.core.streams import NewStreamQuery, StateFilter, StateOp, StateOpType, StreamAck, StreamCycle
from lockstep.core.traces import NewTraceEvent
from lockstep.engine.checks import (
    BIGINT_MAX,
    check_acks,
    check_boolean,
    check_choice,
    check_count,
    check_group,
    check_integer,
    check_kind,
    check_queue,
    check_transaction_id,
)
from lockstep.errors import InvalidRequest, TooLarge


def check_json(value: object, *, what: str, bytes_max: int) -> bytes:
    """Encoded JSON that is not too large."""
    if not isinstance(value, bytes):
        raise InvalidRequest(f"{what} must be encoded JSON, not {type(value).__name__}")
    if len(value) > bytes_max:
        raise TooLarge(f"{what} has {len(value)} bytes; at most {bytes_max} are allowed")
    try:
        value.decode()
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{what} is not JSON: {error}") from error
    return value


# --- Trace events -----------------------------------------------------------------------------------------


def check_trace(event: object, config: Config) -> NewTraceEvent:
    """The event, with each name once."""
    event = check_kind(event, NewTraceEvent)
    check_message(event.partition_id, event.transaction_id)
    check_json(event.data, what="data", bytes_max=config.trace_data_bytes_max)
    check_name(event.event_type, what="event type")
    if event.group is not None:
        check_group(event.group)
    if event.worker is not None:
        check_label(event.worker, what="worker", length_max=NAME_LENGTH_MAX)
    names = _check_list(event.names, what="names")
    check_count(names, what="trace names", limit=config.trace_names_max)
    check_names(names, what="trace name")
    return msgspec.structs.replace(event, names=tuple(dict.fromkeys(names)))


def check_message(partition_id: object, transaction_id: object) -> None:
    """The identification of a message in a partition."""
    check_integer(partition_id, what="partition id", low=1)
    check_transaction_id(transaction_id)


def _check_list(values: object, *, what: str) -> list[Any]:
    if not isinstance(values, list | tuple):
        raise InvalidRequest(f"{what} must be a list, not {type(values).__name__}")
    return list(values)


# --- Stream queries ---------------------------------------------------------------------------------------


def check_stream_query(query: object) -> NewStreamQuery:
    query = check_kind(query, NewStreamQuery)
    check_name(query.name, what="stream query")
    check_queue(query.source_queue)
    if query.sink_queue is not None:
        check_name(query.sink_queue, what="sink queue")
    check_name(query.config_hash, what="config hash")
    check_boolean(query.reset, what="reset")
    return query


def check_state_filter(where: object, config: Config) -> StateFilter:
    where = check_kind(where, StateFilter)
    _check_place(where.query_id, where.partition_id)
    keys = _check_list(where.keys, what="keys")
    check_count(keys, what="keys", limit=config.stream_keys_max)
    for key in keys:
        _check_key(key, config)
    if where.key_prefix is not None:
        _check_text(where.key_prefix, what="key prefix", config=config)
    if where.ripe_at_or_before_ms is not None:
        check_integer(where.ripe_at_or_before_ms, what="ripe_at_or_before_ms", low=-BIGINT_MAX)
    return msgspec.structs.replace(where, keys=tuple(keys))


def check_cycle(cycle: object, config: Config) -> StreamCycle:
    """The cycle, with its lease id in the canonical spelling and an error text that fits."""
    cycle = check_kind(cycle, StreamCycle)
    _check_place(cycle.query_id, cycle.partition_id)
    check_group(cycle.group)
    check_boolean(cycle.release_lease, what="release_lease")
    ops = _check_list(cycle.state_ops, what="state_ops")
    check_count(ops, what="state ops", limit=config.stream_ops_max)
    size = sum(_check_op(op, config) for op in ops)
    if size > config.stream_cycle_bytes_max:
        limit = config.stream_cycle_bytes_max
        raise TooLarge(f"the cycle has {size} bytes of values; at most {limit} are allowed")
    ack = None if cycle.ack is None else _check_ack(cycle.ack, cycle, config)
    return msgspec.structs.replace(cycle, state_ops=tuple(ops), ack=ack)


def _check_place(query_id: object, partition_id: object) -> None:
    check_integer(query_id, what="query id", low=1)
    check_integer(partition_id, what="partition id", low=1)


def _check_op(op: object, config: Config) -> int:
    """The bytes of its value."""
    op = check_kind(op, StateOp)
    check_choice(op.type, StateOpType, what="type of a state op")
    _check_key(op.key, config)
    if op.type == "delete":
        return 0
    if op.value is None:
        raise InvalidRequest("an upsert needs a value")
    return len(check_json(op.value, what="value", bytes_max=config.stream_value_bytes_max))


def _check_key(key: object, config: Config) -> None:
    if not _check_text(key, what="key", config=config):
        raise InvalidRequest("key must not be empty")


def _check_text(text: object, *, what: str, config: Config) -> str:
    limit = config.stream_key_bytes_max
    text = check_label(text, what=what, length_max=limit)
    size = len(text.encode())
    if size > limit:
        raise InvalidRequest(f"{what} has {size} bytes; at most {limit} are allowed")
    return text


def _check_ack(ack: object, cycle: StreamCycle, config: Config) -> StreamAck:
    ack = check_kind(ack, StreamAck)
    check_transaction_id(ack.transaction_id)
    check_choice(ack.status, AckStatus, what="status")
    plain = Ack(
        lease_id=ack.lease_id,
        partition_id=cycle.partition_id,
        transaction_id=ack.transaction_id,
        status=ack.status,
        error=ack.error,
    )
    [checked] = check_acks([plain], config)
    return msgspec.structs.replace(ack, lease_id=checked.lease_id, error=checked.error)
