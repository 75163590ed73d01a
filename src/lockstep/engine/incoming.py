"""Checks of pushed messages.

This is the hot path, so a column is checked as a whole, by functions that loop in C; single messages are
checked only to find out which one is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NoReturn, TypeVar

import msgspec

from lockstep.config import Config
from lockstep.core.gathering import canonical_trace_ids, check_schedule, gather
from lockstep.core.messages import Batch, Columns, NewMessage, check_shape, counts_of
from lockstep.core.names import NAME_LENGTH_MAX, TRANSACTION_ID_LENGTH_MAX, check_name, check_names, storable
from lockstep.core.operations import Order
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.times import check_seconds, check_time
from lockstep.errors import InvalidRequest, TooLarge

_Value = TypeVar("_Value")

_TEXT = {str, type(None)}
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


def check_push(messages: Sequence[Batch] | Sequence[NewMessage], config: Config) -> tuple[list[Batch], Order | None]:
    """The batches to store, checked; and the order of the messages, if they were given singly."""
    check_list(messages, what="messages")
    first = messages[0] if len(messages) == 1 else None
    if type(first) is Batch and first.schedule is None and _payloads_alone([first]):
        return _check_lone(first, config), None
    kinds = set(map(type, messages))
    if kinds <= {Batch}:
        return check_batches(messages, config), None  # type: ignore[arg-type]
    if kinds == {NewMessage}:
        _check_count(len(messages), config)
        batches, order = gather(messages)  # type: ignore[arg-type]
        return check_batches(batches, config), order
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InvalidRequest(f"a push takes batches, or messages, and not a mix or anything else: {names}")


def check_list(given: object, *, what: str) -> None:
    """All batches of a call, in order; they can be iterated over more than once."""
    if type(given) is not list and (isinstance(given, str | bytes) or not isinstance(given, Sequence)):
        raise InvalidRequest(f"{what} must come as a list, not {type(given).__name__}")


def _check_lone(batch: Batch, config: Config) -> list[Batch]:
    """The same checks for one batch that has payloads only, as most pushes do."""
    check_name(batch.queue, what="queue")
    check_name(batch.partition, what="partition")
    columns = batch.columns
    _check_size(_check_payloads_of([columns], config), config)
    count = len(columns)
    _check_count(count, config)
    return [batch] if count else []


def check_batches(batches: Sequence[Batch], config: Config) -> list[Batch]:
    """The batches without empty ones, each checked, and all together against the limits of a call."""
    for queue in dict.fromkeys([batch.queue for batch in batches]):
        check_name(queue, what="queue")
    check_names([batch.partition for batch in batches], what="partition")
    if _payloads_alone(batches):
        # A push to many partitions has many small batches, so their payloads are checked together.
        checked = list(batches)
        size = _check_payloads_of([batch.columns for batch in batches], config)
    else:
        checked, size = _check_each(batches, config)
    counts = counts_of([batch.columns for batch in checked])
    _check_count(sum(counts), config)
    _check_size(size, config)
    for batch in [batch for batch in checked if batch.schedule is not None]:
        check_schedule(batch.schedule, messages=len(batch.columns))
    return [batch for batch, count in zip(checked, counts, strict=True) if count]


def _payloads_alone(batches: Sequence[Batch]) -> bool:
    if len(batches) == 1:
        only = batches[0].columns
        return type(only) is Columns and only.bare() and (only.part is not None or type(only.payloads) is list)
    columns = [batch.columns for batch in batches]
    return (
        set(map(type, columns)) == {Columns}
        and all([one.bare() for one in columns])
        and {type(one.payloads) for one in columns if one.part is None} <= {list}
    )


def _check_each(batches: Sequence[Batch], config: Config) -> tuple[list[Batch], int]:
    checked = []
    size = 0
    for batch in batches:
        columns, batch_size = _check_columns(batch.columns, config)
        checked.append(batch if columns is batch.columns else replace(batch, columns=columns))
        size += batch_size
    return checked, size


def _check_size(size: int, config: Config) -> None:
    if size > config.push_bytes_max:
        limit = config.push_bytes_max
        raise TooLarge(f"the push has {size} bytes of payloads and headers; at most {limit} are allowed")


def _check_count(messages: int, config: Config) -> None:
    if messages > config.push_messages_max:
        limit = config.push_messages_max
        raise InvalidRequest(f"the push has {messages} messages; at most {limit} are allowed")


def _check_columns(columns: Columns, config: Config) -> tuple[Columns, int]:
    """The columns, with trace ids in their canonical spelling, and the bytes of payloads and headers."""
    check_shape(columns)
    size = _check_payloads_of([columns], config)
    if columns.transaction_ids is not None:
        _check_transaction_ids(columns.transaction_ids)
    for column, what, length_max in (
        (columns.kinds, "kind", config.kind_length_max),
        (columns.references, "reference", config.reference_length_max),
        (columns.encodings, "encoding", config.encoding_length_max),
        (columns.producer_subs, "producer_sub", NAME_LENGTH_MAX),
    ):
        if column is not None:
            check_texts(column, what=what, length_max=length_max)
    if columns.headers is not None:
        size += _check_headers(columns.headers, config)
    if columns.expires_at is not None:
        columns = replace(columns, expires_at=_times(columns.expires_at))
    if columns.trace_ids is not None:
        trace_ids = canonical_trace_ids(columns.trace_ids)
        if trace_ids is not columns.trace_ids:
            columns = replace(columns, trace_ids=trace_ids)
    return columns, size


def _check_payloads_of(given: Sequence[Columns], config: Config) -> int:
    """The bytes of all payloads. Those of blocks are not unpacked for it."""
    loose = [one.payloads for one in given if one.part is None]
    size = _check_payloads(loose[0] if len(loose) == 1 else list(chain.from_iterable(loose)), config)
    if len(loose) == len(given):
        return size
    parts = [one.part for one in given if one.part is not None]
    _check_payload_size(max([part.block.payload_bytes_max for part in parts], default=0), config)
    return size + sum([part.payload_bytes for part in parts])


def _check_payload_size(size: int, config: Config) -> None:
    if size > config.payload_bytes_max:
        limit = config.payload_bytes_max
        raise TooLarge(f"a payload has {size} bytes; at most {limit} are allowed")


def _check_payloads(payloads: list[bytes], config: Config) -> int:
    if not payloads:
        return 0
    if set(map(type, payloads)) != {bytes}:
        index, wrong = _first(payloads, lambda payload: type(payload) is not bytes)
        raise InvalidRequest(f"message {index}: the payload must be bytes, not {type(wrong).__name__}")
    sizes = list(map(len, payloads))
    _check_payload_size(max(sizes), config)
    return sum(sizes)


def _check_transaction_ids(transaction_ids: list[str | None]) -> None:
    check_texts(transaction_ids, what="transaction id", length_max=TRANSACTION_ID_LENGTH_MAX)
    if "" in transaction_ids:
        raise InvalidRequest(f"message {transaction_ids.index('')}: the transaction id must not be empty")


def check_texts(column: Sequence[str | None], *, what: str, length_max: int) -> None:
    """Every text has at most `length_max` characters, and PostgreSQL can store all of them."""
    if not set(map(type, column)) <= _TEXT:
        _fail(column, what, length_max)
    texts = [text for text in column if text is not None]
    if texts and (max(map(len, texts)) > length_max or not storable("".join(texts))):
        _fail(column, what, length_max)


def _fail(column: Sequence[object], what: str, length_max: int) -> NoReturn:
    """Raise the error of the first invalid text."""
    for index, text in enumerate(column):
        if text is None:
            continue
        if type(text) is not str:
            raise InvalidRequest(f"{what} {index} must be a string, not {type(text).__name__}")
        if len(text) > length_max:
            raise InvalidRequest(f"{what} {index} has {len(text)} characters; at most {length_max} are allowed")
        if not storable(text):
            raise InvalidRequest(f"{what} {index} contains a NUL character or a lone surrogate")
    raise AssertionError(what)


def _check_headers(headers: list[bytes | None], config: Config) -> int:
    given = [encoded for encoded in headers if encoded is not None]
    if not given:
        return 0
    if set(map(type, given)) != {bytes}:
        _, wrong = _first(given, lambda encoded: type(encoded) is not bytes)
        raise InvalidRequest(f"headers in a column must be encoded JSON, not {type(wrong).__name__}")
    largest = max(map(len, given))
    if largest > config.headers_bytes_max:
        limit = config.headers_bytes_max
        raise TooLarge(f"headers have {largest} bytes; at most {limit} are allowed")
    try:
        for encoded in given:
            _decode_headers(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"headers must be a JSON object of strings: {error}") from error
    # JSON can contain a NUL, which PostgreSQL's jsonb cannot store.
    if any(b"\\u0000" in encoded and _has_nul(encoded) for encoded in given):
        raise InvalidRequest("headers contain a NUL character")
    return sum(map(len, given))


def _has_nul(encoded: bytes) -> bool:
    return any("\x00" in name + value for name, value in _decode_headers(encoded).items())


def _first(values: Iterable[Any], wrong: Callable[[Any], bool]) -> tuple[int, Any]:
    return next((index, value) for index, value in enumerate(values) if wrong(value))


def _times(expiries: list[datetime | timedelta | None]) -> list[datetime | timedelta | None]:
    """When messages expire; durations count from now, by this process's clock."""
    now = datetime.now(UTC)
    return [now + _span(expiry) if isinstance(expiry, timedelta) else _time(expiry) for expiry in expiries]


def _span(expiry: timedelta) -> timedelta:
    check_seconds(expiry.total_seconds(), what="expires_at", high=SECONDS_MAX)
    return expiry


def _time(at: datetime | None) -> datetime | None:
    if at is not None:
        check_time(at, what="expires_at")
    return at
