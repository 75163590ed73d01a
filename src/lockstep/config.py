"""Every setting, its limits, its default and what it is for, in one table; and where a value comes from.

A value given in code or by a flag wins over the environment variable `LOCKSTEP_<NAME>`, that over the TOML
file, that over the default. A name that is not in the table is an error wherever it stands.
"""

from __future__ import annotations

import os
import tomllib
from base64 import b64decode
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import Meta
from msgspec.inspect import BoolType, FloatType, IntType, LiteralType, Metadata, Type, type_info

from lockstep.errors import InvalidOption

ENVIRONMENT_PREFIX = "LOCKSTEP_"
OTHER_VARIABLES = frozenset({"LOCKSTEP_TEST_DSN", "LOCKSTEP_POSTGRES_USER", "LOCKSTEP_SOAK", "LOCKSTEP_URL"})
"""Environment variables that begin like settings and are none."""

ENCRYPTION_KEY_BYTES = 32
_HIDDEN = "***"
_KIB, _MIB = 1024, 1024**2
_LIFETIME_SECONDS = 10 * 366 * 86_400
# A message id has 16 bits for the place in its segment.
_SEGMENT_MESSAGES = 65_536

# PostgreSQL takes no value over 1 GiB, and a segment has to fit into one with all that surrounds it.
_Bytes = Annotated[int, Meta(ge=1, le=512 * _MIB)]
_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Length = Annotated[int, Meta(ge=1, le=_MIB)]
_Seconds = Annotated[float, Meta(ge=0.001, le=86_400)]
_Interval = Annotated[float, Meta(ge=1, le=86_400)]
_Ratio = Annotated[float, Meta(gt=0, le=1_000)]


def _help(text: str) -> Meta:
    return Meta(description=text)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. Units and limits come last in the names."""

    dsn: Annotated[str | None, _help("PostgreSQL to use; without one, an embedded PostgreSQL is started.")] = None
    data_dir: Annotated[str | None, _help("Data directory of the embedded PostgreSQL.")] = None

    host: Annotated[str, _help("Address on which the server listens.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535), _help("Port on which the server listens; 0 is any free one.")] = 6632
    workers: Annotated[int, Meta(ge=1, le=256), _help("Server processes, all on the same port.")] = 1
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _help("What the server logs.")] = "info"
    log_format: Annotated[Literal["text", "json"], _help("How the server writes its log lines.")] = "text"
    log_summary_seconds: Annotated[
        _Seconds, _help("How often the server logs how many requests failed, while the database is away.")
    ] = 60.0
    body_bytes_max: Annotated[_Bytes, _help("Largest body of an HTTP request.")] = 96 * _MIB
    request_headers_bytes_max: Annotated[_Bytes, _help("Most bytes of the headers of an HTTP request.")] = 32 * _KIB
    request_timeout_seconds: Annotated[_Seconds, _help("Longest wait for the next part of an HTTP request.")] = 30.0
    health_timeout_seconds: Annotated[_Seconds, _help("Longest wait of /health and /ready for the database.")] = 2.0
    keep_alive_seconds: Annotated[_Seconds, _help("How long an idle HTTP connection stays open.")] = 75.0
    shutdown_timeout_seconds: Annotated[_Seconds, _help("Longest wait, at shutdown, for requests in flight.")] = 20.0
    pop_wait_seconds_max: Annotated[_Seconds, _help("Longest time that a pop may wait for messages.")] = 300.0

    batching: Annotated[bool, _help("Join requests of one kind that come together into one call of the store.")] = True
    push_calls_max: Annotated[
        _Count, _help("Push calls that the batching keeps in flight at a time, unless they take long.")
    ] = 2
    pop_calls_max: Annotated[_Count, _help("Pop calls that the batching keeps in flight at a time.")] = 2
    ack_calls_max: Annotated[_Count, _help("Ack and renew calls, each, that the batching keeps in flight.")] = 2
    call_requests_max: Annotated[_Count, _help("Most requests that the batching joins into one call.")] = 256
    call_messages_max: Annotated[int, Meta(ge=1, le=_SEGMENT_MESSAGES), _help("Most messages of a joined push.")] = (
        10_000
    )
    call_bytes_max: Annotated[_Bytes, _help("Most bytes of payloads of a joined push.")] = 4 * _MIB
    call_messages_min: Annotated[
        _Count, _help("A further call of a kind is begun, beside one in flight, for no fewer messages than this.")
    ] = 200
    call_messages_large: Annotated[
        _Count, _help("A push of so many messages to few partitions does not wait to be joined with others.")
    ] = 500
    call_patience_seconds: Annotated[
        _Seconds, _help("Calls in flight that take longer than this no longer hold up the next.")
    ] = 0.05
    call_lock_seconds: Annotated[
        _Seconds, _help("Longest wait of joined pushes or acks for a lock; then each request is tried alone.")
    ] = 0.25
    first_polls_max: Annotated[
        _Count,
        _help(
            "Most groups with the subscription `new` that are remembered for having polled a queue before it exists."
        ),
    ] = 10_000
    first_poll_seconds_max: Annotated[
        int, Meta(ge=60, le=_LIFETIME_SECONDS), _help("How long such a group is remembered after its last poll.")
    ] = 86_400
    pop_precheck: Annotated[bool, _help("Ask whether a waiting pop would find something before it is tried.")] = True
    pop_check_seconds_min: Annotated[_Seconds, _help("First wait between two such checks; it doubles.")] = 0.05
    pop_check_seconds_max: Annotated[_Seconds, _help("Longest wait between two such checks.")] = 1.0

    payload_bytes_max: Annotated[_Bytes, _help("Largest payload of one message.")] = 16 * _MIB
    push_messages_max: Annotated[int, Meta(ge=1, le=_SEGMENT_MESSAGES), _help("Most messages of one push call.")] = (
        10_000
    )
    push_bytes_max: Annotated[_Bytes, _help("Most bytes of payloads and headers of one push call.")] = 64 * _MIB
    pop_messages_max: Annotated[_Count, _help("Largest batch of one pop request.")] = 10_000
    pop_partitions_max: Annotated[_Count, _help("Most partitions that one pop request may claim.")] = 1_000
    ack_items_max: Annotated[_Count, _help("Most acks, or renewals, of one call.")] = 10_000
    # Not below 1,000, which is the page that the verbs ask for where nobody says how long it should be.
    page_items_max: Annotated[int, Meta(ge=1_000, le=1_000_000), _help("Longest page of any listing.")] = 1_000
    analytics_rows_max: Annotated[
        int, Meta(ge=1_000, le=10_000_000), _help("Most samples, or removals, that one request may look at.")
    ] = 100_000
    error_text_length_max: Annotated[_Length, _help("An error text that is longer is cut.")] = 10_000
    reference_length_max: Annotated[_Length, _help("Longest reference of a message.")] = 2_000
    kind_length_max: Annotated[_Length, _help("Longest kind of a message.")] = 255
    encoding_length_max: Annotated[_Length, _help("Longest encoding of a message.")] = 64
    headers_bytes_max: Annotated[_Bytes, _help("Most bytes of a message's encoded headers.")] = 16 * _KIB

    trace_data_bytes_max: Annotated[_Bytes, _help("Largest data of a trace event.")] = 64 * _KIB
    trace_names_max: Annotated[int, Meta(ge=1, le=1_000), _help("Most names of a trace event.")] = 50
    stream_keys_max: Annotated[_Count, _help("Most keys of one look into the state of a stream query.")] = 10_000
    stream_rows_max: Annotated[_Count, _help("Most rows that one look into the state of a stream query may find.")] = (
        100_000
    )
    stream_ops_max: Annotated[_Count, _help("Most changes of state in one cycle of a stream query.")] = 10_000
    # A key is part of an index, which takes no more than a third of a page.
    stream_key_bytes_max: Annotated[int, Meta(ge=1, le=2_000), _help("Longest key in a stream query's state.")] = 1_000
    stream_value_bytes_max: Annotated[_Bytes, _help("Largest value in a stream query's state.")] = _MIB
    stream_cycle_bytes_max: Annotated[_Bytes, _help("Most bytes of values in one cycle of a stream query.")] = 64 * _MIB

    segment_cache_bytes_max: Annotated[
        int, Meta(ge=0, le=2**40), _help("Memory for segments that were read or written lately.")
    ] = 128 * _MIB
    partition_cache_entries_max: Annotated[
        int, Meta(ge=1, le=100_000_000), _help("Partitions whose ids are remembered by name.")
    ] = 1_000_000
    pool_connections_max: Annotated[int, Meta(ge=1, le=10_000), _help("Most connections to PostgreSQL at a time.")] = 10
    connect_timeout_seconds: Annotated[_Seconds, _help("Longest wait for one connection attempt.")] = 10.0
    connect_attempts_max: Annotated[_Count, _help("Connection attempts before PostgreSQL is unavailable.")] = 8
    statement_timeout_seconds: Annotated[_Seconds, _help("Longest time that a statement may run.")] = 30.0
    lock_timeout_seconds: Annotated[_Seconds, _help("Longest wait of a statement for a lock.")] = 10.0
    lock_watch_seconds: Annotated[
        _Seconds,
        _help("A call that waits for a lock for longer than this is told, when it fails, who holds the lock."),
    ] = 1.0
    slow_query_seconds: Annotated[
        float, Meta(ge=0, le=86_400), _help("Queries that take at least this long are logged; 0 logs none.")
    ] = 1.0
    transaction_attempts_max: Annotated[
        _Count, _help("Attempts at a transaction that meets a deadlock or a serialization failure.")
    ] = 10
    idle_transaction_timeout_seconds: Annotated[
        _Seconds,
        _help("PostgreSQL ends a session whose process hangs in the middle of a transaction for this long."),
    ] = 5.0
    client_check_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400),
        _help("How often PostgreSQL checks during a statement that the client is still connected; 0 is never."),
    ] = 2.0
    keepalive_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400),
        _help("PostgreSQL ends a session over TCP whose machine does not answer for this long; 0 is never."),
    ] = 15.0

    breaker_failures_max: Annotated[
        _Count,
        _help("Connection attempts of a server that fail, one after the other, before it takes PostgreSQL for away."),
    ] = 3
    breaker_open_seconds: Annotated[
        _Seconds, _help("How often a server then looks whether PostgreSQL is back; meanwhile its calls fail at once.")
    ] = 0.5
    breaker_silent_seconds: Annotated[
        _Seconds,
        _help("When PostgreSQL answers nothing for this long, waiting calls fail, and a server takes it for away."),
    ] = 3.0
    spool_dir: Annotated[
        str | None,
        _help("Directory in which a server buffers pushes while PostgreSQL is away, or in maintenance mode."),
    ] = None
    spool_bytes_max: Annotated[
        int, Meta(ge=_MIB, le=2**50), _help("Most bytes that are buffered there; beyond, pushes are refused.")
    ] = 1024 * _MIB
    spool_refusal_seconds_max: Annotated[
        float,
        Meta(ge=0, le=86_400),
        _help("A buffered push that PostgreSQL refuses is tried for this long, and then set aside."),
    ] = 60.0

    load_management: Annotated[bool, _help("Whether a server queues, and then refuses, requests while it is busy.")] = (
        True
    )
    load_interval_seconds: Annotated[_Seconds, _help("How often a server looks at its load.")] = 0.5
    load_wait_seconds_max: Annotated[
        _Seconds, _help("How long requests of a kind wait for their call, and for the process, when its load is 1.")
    ] = 2.0
    load_latency_seconds_max: Annotated[
        _Seconds, _help("How long even the fastest call of a kind takes when its load is 1.")
    ] = 1.5
    load_refuse_seconds: Annotated[
        _Seconds,
        _help("A request that has waited this long for its call is refused by a server that manages its load."),
    ] = 5.0
    load_requests_max: Annotated[
        _Count, _help("How many requests of a kind wait for their call when its load is 1.")
    ] = 5_000
    load_bytes_max: Annotated[_Bytes, _help("How many bytes of payloads wait for their call when the load is 1.")] = (
        128 * _MIB
    )
    load_push_threshold: Annotated[_Ratio, _help("Load from which on pushes are queued.")] = 0.7
    load_ack_threshold: Annotated[_Ratio, _help("Load from which on acks are queued.")] = 0.8
    load_pop_threshold: Annotated[_Ratio, _help("Load from which on pops are refused.")] = 0.95
    load_late_seconds: Annotated[
        _Seconds, _help("How long everything waits for its turn in a server that is short of time itself.")
    ] = 0.03
    load_busy_messages_max: Annotated[
        _Count, _help("Messages of pushes that wait for their call in a busy server before further pushes are refused.")
    ] = 10_000
    load_leave_ratio: Annotated[
        float, Meta(gt=0, le=1), _help("What begins at a threshold ends below this part of it.")
    ] = 0.8
    load_stay_seconds: Annotated[
        float,
        Meta(ge=0, le=3_600),
        _help("A server that is busy with a kind of request stays so for at least this long."),
    ] = 2.0
    operation_push_depth_max: Annotated[_Count, _help("Most pushes that wait to be applied; more are refused.")] = (
        10_000
    )
    operation_ack_depth_max: Annotated[_Count, _help("Most acks that wait to be applied; more are refused.")] = 50_000
    operation_bytes_max: Annotated[
        int, Meta(ge=1, le=2**40), _help("Most bytes of operations of a kind that wait to be applied.")
    ] = 256 * _MIB
    operation_wait_seconds_max: Annotated[
        _Seconds, _help("Longest wait for a queued request of a client that does not know of operations.")
    ] = 25.0
    operation_interval_seconds: Annotated[
        _Seconds, _help("How often a server looks for operations that wait, beside those that it has queued itself.")
    ] = 1.0
    operation_call_messages_max: Annotated[
        int, Meta(ge=1, le=_SEGMENT_MESSAGES), _help("Most messages of operations that are applied together.")
    ] = 20_000
    operation_call_bytes_max: Annotated[_Bytes, _help("Most bytes of operations that are applied together.")] = (
        16 * _MIB
    )
    operation_retries_max: Annotated[
        int, Meta(ge=0, le=10_000), _help("How often an operation is tried again whose queue is full.")
    ] = 20
    operation_retry_seconds_max: Annotated[
        _Seconds, _help("Longest wait before that; it begins short, and doubles.")
    ] = 10.0
    operation_timeout_seconds: Annotated[
        _Seconds, _help("A server that hangs for so long while it applies operations loses them to another.")
    ] = 30.0
    operation_keep_seconds: Annotated[
        int, Meta(ge=0, le=_LIFETIME_SECONDS), _help("How long operations are kept that were applied.")
    ] = 3_600
    operation_failed_keep_seconds: Annotated[
        int, Meta(ge=0, le=_LIFETIME_SECONDS), _help("How long operations are kept that failed.")
    ] = 7 * 86_400
    operation_clean_interval_seconds: Annotated[
        _Interval, _help("How often operations are removed that have ended.")
    ] = 60.0

    client_timeout_seconds: Annotated[_Seconds, _help("Longest wait of a client for an answer of the server.")] = 30.0
    client_retry_attempts_max: Annotated[_Count, _help("How often a client sends a request that fails.")] = 4
    client_retry_delay_seconds_max: Annotated[_Seconds, _help("Longest wait of a client before it tries again.")] = 30.0
    client_failover_cooldown_seconds: Annotated[
        _Seconds, _help("How long a client leaves a server alone that failed, while it has others.")
    ] = 10.0
    client_connections_max: Annotated[
        _Count, _help("Most HTTP connections of a client at a time; each poll has one.")
    ] = 1000
    client_queued: Annotated[
        Literal["wait", "return"],
        _help("Whether a push that a busy server has queued waits until it is applied, or returns at once."),
    ] = "wait"
    client_queued_seconds_max: Annotated[
        _Seconds, _help("Longest wait of a client for a push that was queued to be applied.")
    ] = 300.0
    client_retry_on_429: Annotated[
        bool, _help("Whether a client sends a request again that a busy server has refused.")
    ] = True
    client_honor_retry_after: Annotated[
        bool, _help("Whether a client waits for as long as the server asks, up to its own longest wait.")
    ] = True
    client_exactly_once: Annotated[
        bool, _help("Give each message that is pushed over HTTP a transaction id, so that the push can be repeated.")
    ] = True

    schedule_min_seconds: Annotated[
        float, Meta(ge=0, le=60), _help("A message that is scheduled less far ahead is delivered now.")
    ] = 0.1
    promotion_interval_seconds: Annotated[
        float, Meta(ge=0.05, le=60), _help("How often a server looks for scheduled messages that are due.")
    ] = 0.5
    promotion_messages_max: Annotated[
        int, Meta(ge=1, le=_SEGMENT_MESSAGES), _help("Most scheduled messages that one transaction makes deliverable.")
    ] = 1_000
    cron_late_seconds_max: Annotated[
        float,
        Meta(ge=1, le=86_400),
        _help("A recurring message that does not catch up is still pushed if it is no later than this."),
    ] = 60.0

    retention_interval_seconds: Annotated[_Interval, _help("How often old messages are removed.")] = 60.0
    retention_batch_messages_max: Annotated[_Count, _help("Most messages, about, that one transaction removes.")] = (
        10_000
    )
    slice_messages_max: Annotated[
        _Count, _help("Most messages, about, that one transaction of a clear, or of a deletion of a queue, removes.")
    ] = 10_000
    slice_partitions_max: Annotated[
        _Count,
        _help("Maximum number of partitions that one transaction of a clear, a deletion or a new group goes over."),
    ] = 1_000
    expire_messages_max: Annotated[
        _Count, _help("Most messages that one transaction of a pop, or of maintenance, passes because they expired.")
    ] = 2_000
    slices_seconds_max: Annotated[
        float,
        Meta(ge=0, le=60),
        _help("How long a call goes on with the cursors of a group before it leaves the rest to maintenance."),
    ] = 0.25
    expire_seconds_max: Annotated[
        _Seconds, _help("A pop passes expired messages for this long; then it looks for what is fresh behind them.")
    ] = 0.5
    names_allow_whitespace: Annotated[bool, _help("Whether the name of a work queue may contain whitespace.")] = False
    balance_interval_seconds: Annotated[
        float, Meta(ge=0.01, le=3600), _help("How often a server asks how full the partitions of a balanced queue are.")
    ] = 1.0
    eviction_interval_seconds: Annotated[_Interval, _help("How often messages that waited too long are removed.")] = (
        10.0
    )
    idle_partition_seconds: Annotated[
        float, Meta(ge=0, le=_LIFETIME_SECONDS), _help("Partitions empty for this long are removed; 0 is never.")
    ] = 0.0
    idle_partitions_interval_seconds: Annotated[_Interval, _help("How often idle partitions are removed.")] = 300.0
    idle_partitions_batch_max: Annotated[_Count, _help("Most partitions that one transaction removes.")] = 1_000
    deleted_queues_interval_seconds: Annotated[
        _Interval, _help("How often it is looked for what is left of deleted queues.")
    ] = 60.0
    groups_interval_seconds: Annotated[
        _Interval, _help("How often maintenance looks for groups that lack cursors, or that were deleted.")
    ] = 5.0
    samples_interval_seconds: Annotated[_Interval, _help("How often a sample of every queue is taken.")] = 60.0
    samples_seconds_max: Annotated[
        _Seconds,
        _help(
            "Longest time that samples take in a row. Walks over large queues then pause, and their figures get older."
        ),
    ] = 15.0
    samples_partitions_max: Annotated[
        _Count, _help("Most partitions of a queue that one transaction of a sample looks into.")
    ] = 1_000
    figures_exact_max: Annotated[
        int,
        Meta(ge=0, le=10_000_000),
        _help(
            "A list of queues or groups counts up to this many partitions and cursors itself; above, it shows samples."
        ),
    ] = 2_000
    verify_interval_seconds: Annotated[_Interval, _help("How often the stored data is verified.")] = 3_600.0
    verify_partitions_max: Annotated[_Count, _help("Most partitions that are verified by one call.")] = 1_000
    history_interval_seconds: Annotated[_Interval, _help("How often old samples and removals are forgotten.")] = 3_600.0
    history_seconds_max: Annotated[
        int, Meta(ge=60, le=_LIFETIME_SECONDS), _help("How long samples and the history of removals are kept.")
    ] = 30 * 86_400
    spark_position_seconds_max: Annotated[
        int,
        Meta(ge=60, le=_LIFETIME_SECONDS),
        _help("A Spark stream that was not heard of for this long no longer holds messages back from retention."),
    ] = 7 * 86_400
    spark_stage_seconds_max: Annotated[
        int,
        Meta(ge=60, le=_LIFETIME_SECONDS),
        _help("What a Spark task has staged and nobody has committed for this long is removed."),
    ] = 86_400
    spark_batch_seconds_max: Annotated[
        int,
        Meta(ge=60, le=_LIFETIME_SECONDS),
        _help("How long the last batch of a Spark query is known, so that it is not written again. Keep it long."),
    ] = 365 * 86_400
    spark_statement_timeout_seconds: Annotated[
        _Seconds, _help("Longest time that a statement of a Spark task may run.")
    ] = 300.0
    spark_lock_timeout_seconds: Annotated[
        _Seconds, _help("Longest wait of a statement of a Spark task for a lock.")
    ] = 60.0
    spark_idle_transaction_timeout_seconds: Annotated[
        _Seconds,
        _help("PostgreSQL ends a session of Spark whose process hangs in the middle of a transaction for this long."),
    ] = 60.0
    pipeline_batch_attempts_max: Annotated[
        int,
        Meta(ge=1, le=100),
        _help("How often a batch of a pipeline is tried whose Spark workers crash."),
    ] = 3
    pipeline_stop_timeout_seconds: Annotated[
        _Seconds,
        _help("Longest wait, when a pipeline or an archive is stopped, for the batches that it is working on."),
    ] = 60.0
    duty_pass_seconds_max: Annotated[_Seconds, _help("A duty that takes longer goes on in another pass.")] = 10.0
    duty_hold_seconds: Annotated[
        float, Meta(ge=1, le=86_400), _help("After this, another server takes over the duty of one that is gone.")
    ] = 300.0
    duty_stop_seconds_max: Annotated[_Seconds, _help("Longest wait, at shutdown, for a duty that is being done.")] = 5.0

    encryption_key: Annotated[
        str | None, _help("Base64 of the 32 bytes that encrypt the payloads of queues with encryption.")
    ] = None
    encryption_allow_plain: Annotated[
        bool, _help("Without a key, store the payloads of queues with encryption plainly.")
    ] = False
    embedded_start_timeout_seconds: Annotated[_Seconds, _help("Longest wait for the embedded PostgreSQL to start.")] = (
        60.0
    )

    @property
    def encryption_key_bytes(self) -> bytes | None:
        return None if self.encryption_key is None else _decode_key(self.encryption_key)

    def shown(self) -> dict[str, Any]:
        """All settings by name, without their secrets."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["dsn"] = None if self.dsn is None else without_password(self.dsn)
        shown["encryption_key"] = None if self.encryption_key is None else _HIDDEN
        return shown

    def __repr__(self) -> str:
        """All settings, without their secrets: this is what ends up in logs."""
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"


_TYPES = get_type_hints(Config, include_extras=True)
_VARIABLES = {ENVIRONMENT_PREFIX + name.upper(): name for name in _TYPES}


def load(
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """The settings in force. An override of None and an empty environment variable are as if not given."""
    values: dict[str, Any] = {}
    # From the weakest source to the strongest: the last one to name a setting wins.
    for name, value, source in _given(overrides or {}, os.environ if environ is None else environ, file):
        values[name] = _convert(name, value, source)
    return Config(**values)


def origins(
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> dict[str, str]:
    """Where `load` takes each given setting from: the variable, the place in the file, or the override's own name."""
    given = _given(overrides or {}, os.environ if environ is None else environ, file)
    return {name: source for name, _, source in given}


def _given(
    overrides: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> Iterator[tuple[str, object, str]]:
    """Every given value: its name, itself, and what to call it in an error."""
    in_file = {} if file is None else _read(file)
    _check_known(in_file, _TYPES, f"in {file}")
    for name, value in in_file.items():
        yield name, value, f"{name} in {file}"

    ours = [variable for variable in environ if variable.startswith(ENVIRONMENT_PREFIX)]
    _check_known(ours, _VARIABLES.keys() | OTHER_VARIABLES, "in the environment")
    for variable, name in _VARIABLES.items():
        if environ.get(variable):
            yield name, environ[variable], variable

    _check_known(overrides, _TYPES, "given")
    for name, value in overrides.items():
        if value is not None:
            yield name, value, name


def _check_known(names: Iterable[str], known: Collection[str], where: str) -> None:
    unknown = sorted(set(names).difference(known))
    if unknown:
        raise InvalidOption(f"unknown settings {where}: {', '.join(unknown)}", unknown=unknown)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"the settings in {file} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"the settings in {file} are not TOML: {error}") from error


def _convert(name: str, value: object, source: str) -> Any:
    """The value as the type of its setting. The errors say what it must be and do not repeat what may be a secret."""
    if isinstance(value, Path):
        value = str(value)
    try:
        converted = msgspec.convert(value, _TYPES[name], strict=False)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"{source} is not valid: it must be {_what_fits(type_info(_TYPES[name]))}") from error
    if name == "encryption_key" and len(_decode_key(converted) or b"") != ENCRYPTION_KEY_BYTES:
        raise InvalidOption(f"{source} is not valid: it must be the base64 of {ENCRYPTION_KEY_BYTES} bytes")
    return converted


def _what_fits(kind: Type) -> str:
    match kind:
        case Metadata():
            return _what_fits(kind.type)
        case LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
        case BoolType():
            return "true or false"
        case IntType() | FloatType():
            noun = "a whole number" if isinstance(kind, IntType) else "a number"
            first = f"from {_number(kind.ge)} to" if kind.ge is not None else f"above {_number(kind.gt)} and up to"
            return f"{noun} {first} {_number(kind.le)}"
    return "text"


def _number(limit: float | None) -> str:
    assert limit is not None, "every number among the settings has its limits"
    return str(int(limit) if limit == int(limit) else limit)


def _decode_key(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None


def without_password(dsn: str) -> str:
    """The DSN for people. What cannot be taken apart is hidden whole."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return _HIDDEN
    # An @ further on may be that of a password with a character in it that should have been escaped.
    if not parts.scheme or "@" in parts.path + parts.query + parts.fragment:
        return _HIDDEN
    credentials, at, host = parts.netloc.rpartition("@")
    user, colon, _ = credentials.partition(":")
    query = [(name, _HIDDEN if "password" in name else value) for name, value in parse_qsl(parts.query)]
    shown = f"{parts.scheme}://{user}{colon}{_HIDDEN if colon else ''}{at}{host}{parts.path}"
    return f"{shown}?{urlencode(query, safe='*/:')}" if query else shown
