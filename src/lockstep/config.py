"""Every setting, its limits, its default and what it is for, in one table; and where a value comes from.

A value given in code or by a flag wins over the environment variable `LOCKSTEP_<NAME>`, that over the TOML
file, that over the default. A name that is not in the table is an error wherever it stands. A setting that is, or may
contain, a secret can be given as a file instead: `<name>_file`, in each of these places.
"""

from __future__ import annotations

import os
import re
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
from lockstep.secret_files import FILE_SUFFIX, read_secret

ENVIRONMENT_PREFIX = "LOCKSTEP_"
OTHER_VARIABLES = frozenset({"LOCKSTEP_TEST_DSN", "LOCKSTEP_POSTGRES_USER", "LOCKSTEP_SOAK", "LOCKSTEP_URL"})
"""Environment variables that begin like settings but are not settings."""

ENCRYPTION_KEY_BYTES = 32
_HIDDEN = "***"
_PASSWORD_WORD = re.compile(r"\b(?:ssl)?password\s*=", re.IGNORECASE)
_KIB, _MIB = 1024, 1024**2
_LIFETIME_SECONDS = 10 * 366 * 86_400
# A message id has 16 bits for the place in its segment.
_SEGMENT_MESSAGES = 65_536

# PostgreSQL takes no value over 1 GiB, and a segment must fit into one with everything around it.
_Bytes = Annotated[int, Meta(ge=1, le=512 * _MIB)]
_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Length = Annotated[int, Meta(ge=1, le=_MIB)]
_Seconds = Annotated[float, Meta(ge=0.001, le=86_400)]
_Interval = Annotated[float, Meta(ge=1, le=86_400)]
_Ratio = Annotated[float, Meta(gt=0, le=1_000)]


def _help(text: str) -> Meta:
    return Meta(description=text)


def _secret(text: str) -> Meta:
    """For a secret setting: it is never shown, and accepted from a file but not on the command line."""
    return Meta(description=text, extra={"secret": True})


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. Units and limits come last in the names."""

    dsn: Annotated[str | None, _help("PostgreSQL to use; without one, an embedded PostgreSQL is started.")] = None
    data_dir: Annotated[str | None, _help("Data directory of the embedded PostgreSQL.")] = None

    host: Annotated[str, _help("Address on which the server listens.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535), _help("Port on which the server listens; 0 is any free one.")] = 6632
    workers: Annotated[int, Meta(ge=1, le=256), _help("Server processes, all on the same port.")] = 1
    tls_cert_file: Annotated[
        str | None, _help("File with the certificate chain of the server, as PEM; with it, the server speaks HTTPS.")
    ] = None
    tls_key_file: Annotated[str | None, _help("File with the private key of that certificate, as PEM.")] = None
    insecure: Annotated[
        bool, _help("Without auth, listen on more than loopback: serve everybody who can reach the server.")
    ] = False
    allowed_hosts: Annotated[
        str,
        _help(
            "Comma-separated host names that requests to a server without auth may use, besides those of loopback; "
            "* allows any name."
        ),
    ] = ""
    allowed_origins: Annotated[
        str, _help("Comma-separated origins of other sites whose web pages may send requests.")
    ] = ""
    auth: Annotated[
        Literal["none", "required"],
        _help("Whether callers must authenticate, with an API key or a token: `required`, or `none`."),
    ] = "none"
    auth_jwt_secret: Annotated[
        str | None, _secret("Secret of at least 32 bytes with which tokens are signed (HS256).")
    ] = None
    auth_jwt_public_key: Annotated[
        str | None,
        _help("PEM file with the public key that tokens are verified with (RS256, ES256 or EdDSA, by its type)."),
    ] = None
    auth_jwks: Annotated[
        str | None,
        _help("File with a JSON Web Key Set, or its https:// address, with the keys that tokens are verified with."),
    ] = None
    auth_jwks_ca_file: Annotated[
        str | None,
        _help("PEM file with the certificate authorities to trust for that address; by default those of the system."),
    ] = None
    auth_jwks_refresh_seconds: Annotated[_Interval, _help("How often the key set is fetched again.")] = 300.0
    auth_jwks_seconds_max: Annotated[
        _Interval, _help("How long a key set stays in use if it cannot be fetched again; then its tokens are refused.")
    ] = 86_400.0
    auth_issuer: Annotated[str | None, _help("Issuer (`iss`) that tokens must have.")] = None
    auth_audience: Annotated[str | None, _help("Audience (`aud`) that tokens must have.")] = None
    auth_roles_file: Annotated[
        str | None, _help("TOML file with roles for tokens, each a list of rules, such as `push,pop billing.*`.")
    ] = None
    audit_interval_seconds: Annotated[_Interval, _help("How often old entries of the audit log are removed.")] = 3_600.0
    audit_seconds_max: Annotated[
        int, Meta(ge=60, le=_LIFETIME_SECONDS), _help("How long entries of the audit log are kept.")
    ] = 90 * 86_400
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _help("What the server logs.")] = "info"
    log_format: Annotated[Literal["text", "json"], _help("How the server writes its log lines.")] = "text"
    tracing: Annotated[
        bool, _help("Make OpenTelemetry spans of what is pushed, popped and worked on; needs the extra `otel`.")
    ] = False
    metrics_items_max: Annotated[
        int,
        Meta(ge=0, le=1_000_000),
        _help(
            "Maximum number of queues, of groups on queues, and of Spark steps and streams, that have metrics of their "
            "own for Prometheus; all others are summed as `other`."
        ),
    ] = 500
    metrics_timeout_seconds: Annotated[
        _Seconds, _help("Longest wait of a Prometheus scrape for figures of the database.")
    ] = 5.0
    log_summary_seconds: Annotated[
        _Seconds, _help("How often the server logs how many requests failed, while the database is away.")
    ] = 60.0
    body_bytes_max: Annotated[_Bytes, _help("Largest body of an HTTP request.")] = 16 * _MIB
    bodies_bytes_max: Annotated[
        int,
        Meta(ge=1, le=2**40),
        _help("Maximum total size of the HTTP request bodies that a process holds at a time, in bytes."),
    ] = 256 * _MIB
    body_items_max: Annotated[
        int,
        Meta(ge=100, le=10_000_000),
        _help("Maximum number of values in the body of an HTTP request, not counting its payloads."),
    ] = 200_000
    unpacked_bytes_max: Annotated[
        _Bytes, _help("Maximum bytes of the messages of a packed body, once they are not compressed any more.")
    ] = 64 * _MIB
    request_headers_bytes_max: Annotated[_Bytes, _help("Maximum size of the headers of an HTTP request, in bytes.")] = (
        32 * _KIB
    )
    request_headers_max: Annotated[_Count, _help("Maximum number of headers of an HTTP request.")] = 100
    request_timeout_seconds: Annotated[_Seconds, _help("Longest wait for the next part of an HTTP request.")] = 30.0
    request_seconds_max: Annotated[_Seconds, _help("Longest time that an HTTP request takes to arrive.")] = 60.0
    requests_per_second_max: Annotated[
        float,
        Meta(ge=0, le=1_000_000),
        _help("Maximum number of HTTP requests per second from one caller; 0 is no limit."),
    ] = 0.0
    connections_max: Annotated[
        _Count,
        _help("Maximum number of HTTP connections of a process; beyond it, only /health and /ready are answered."),
    ] = 10_000
    connections_per_address_max: Annotated[
        _Count, _help("Maximum number of HTTP connections of a process from one address.")
    ] = 5_000
    polls_waiting_max: Annotated[
        _Count, _help("Maximum number of pops of a process that wait for messages at a time.")
    ] = 10_000
    health_timeout_seconds: Annotated[_Seconds, _help("Longest wait of /health and /ready for the database.")] = 2.0
    keep_alive_seconds: Annotated[_Seconds, _help("How long an idle HTTP connection stays open.")] = 75.0
    shutdown_timeout_seconds: Annotated[_Seconds, _help("Longest wait, at shutdown, for requests in flight.")] = 20.0
    pop_wait_seconds_max: Annotated[_Seconds, _help("Longest time that a pop may wait for messages.")] = 300.0

    events_interval_seconds: Annotated[
        _Seconds, _help("How often the server checks whether the data on open pages has changed.")
    ] = 2.0
    events_streams_max: Annotated[
        _Count, _help("Maximum number of event streams open at a time; each open page has one.")
    ] = 256

    batching: Annotated[bool, _help("Join requests of one kind that come together into one call of the store.")] = True
    push_calls_max: Annotated[
        _Count, _help("Push calls that batching keeps in flight at a time, unless they are slow.")
    ] = 2
    pop_calls_max: Annotated[_Count, _help("Pop calls that batching keeps in flight at a time.")] = 2
    next_calls_max: Annotated[
        _Count, _help("Calls that complete leases and pop on, which batching keeps in flight at a time.")
    ] = 2
    ack_calls_max: Annotated[_Count, _help("Ack calls, and renew calls, that batching keeps in flight at a time.")] = 2
    call_requests_max: Annotated[_Count, _help("Maximum number of requests that batching joins into one call.")] = 256
    call_messages_max: Annotated[
        int, Meta(ge=1, le=_SEGMENT_MESSAGES), _help("Maximum number of messages in a joined push.")
    ] = 10_000
    call_bytes_max: Annotated[_Bytes, _help("Maximum bytes of payloads in a joined push.")] = 4 * _MIB
    call_messages_min: Annotated[
        _Count,
        _help("While a call of the same kind is in flight, another one starts only for at least this many messages."),
    ] = 200
    call_messages_large: Annotated[
        _Count, _help("A push of at least this many messages to few partitions does not wait to be joined with others.")
    ] = 500
    call_patience_seconds: Annotated[
        _Seconds, _help("Calls in flight that take longer than this no longer hold up the next.")
    ] = 0.05
    call_lock_seconds: Annotated[
        _Seconds,
        _help(
            "Longest wait of joined pushes or acks for a lock; then each request is tried alone. Also that of a pop of "
            "a new group for somebody else who makes the group's cursors."
        ),
    ] = 0.25
    first_polls_max: Annotated[
        _Count,
        _help(
            "Maximum number of groups with the subscription `new` that are remembered for polling queues before they "
            "exist."
        ),
    ] = 10_000
    first_poll_seconds_max: Annotated[
        int, Meta(ge=60, le=_LIFETIME_SECONDS), _help("How long such a group is remembered after its last poll.")
    ] = 86_400
    pop_precheck: Annotated[bool, _help("Check whether a waiting pop would find something before running it.")] = True
    pop_check_seconds_min: Annotated[_Seconds, _help("First wait between two such checks; it doubles.")] = 0.05
    pop_check_seconds_max: Annotated[_Seconds, _help("Longest wait between two such checks.")] = 1.0

    next_hold_seconds: Annotated[
        _Seconds,
        _help("How long a consumer that continues its lease keeps a partition while other partitions are due."),
    ] = 0.25

    payload_bytes_max: Annotated[_Bytes, _help("Largest payload of one message.")] = 16 * _MIB
    push_messages_max: Annotated[
        int, Meta(ge=1, le=_SEGMENT_MESSAGES), _help("Maximum number of messages in one push call.")
    ] = 10_000
    push_bytes_max: Annotated[_Bytes, _help("Maximum bytes of payloads and headers in one push call.")] = 64 * _MIB
    pop_messages_max: Annotated[_Count, _help("Largest batch of one pop request.")] = 10_000
    queue_groups_max: Annotated[_Count, _help("Maximum number of consumer groups of a queue.")] = 10_000
    queue_partitions_max: Annotated[
        int, Meta(ge=1, le=1_000_000_000), _help("Maximum number of partitions that pushes create in a queue.")
    ] = 10_000_000
    pop_partitions_max: Annotated[_Count, _help("Maximum number of partitions that one pop request may lease.")] = 1_000
    ack_items_max: Annotated[_Count, _help("Maximum number of acks, or renewals, in one call.")] = 10_000
    # Not below 1,000, the default page size of the verbs.
    page_items_max: Annotated[
        int, Meta(ge=1_000, le=1_000_000), _help("Maximum number of items on a page of any list.")
    ] = 1_000
    page_looked_into_max: Annotated[
        int,
        Meta(ge=10, le=1_000_000),
        _help(
            "Maximum number of messages, or of bundles of operations, that a page of a list looks at for its filter. A "
            "page that did not find enough among them is short, or empty, and has a cursor that continues."
        ),
    ] = 10_000
    analytics_rows_max: Annotated[
        int, Meta(ge=1_000, le=10_000_000), _help("Maximum number of samples, or removals, that one request may read.")
    ] = 100_000
    error_text_length_max: Annotated[_Length, _help("Maximum length of an error text; longer texts are cut.")] = 10_000
    reference_length_max: Annotated[_Length, _help("Longest reference of a message.")] = 2_000
    kind_length_max: Annotated[_Length, _help("Longest kind of a message.")] = 255
    encoding_length_max: Annotated[_Length, _help("Longest encoding of a message.")] = 64
    headers_bytes_max: Annotated[_Bytes, _help("Maximum size of a message's encoded headers, in bytes.")] = 16 * _KIB

    trace_data_bytes_max: Annotated[_Bytes, _help("Largest data of a trace event.")] = 64 * _KIB
    trace_names_max: Annotated[int, Meta(ge=1, le=1_000), _help("Maximum number of names of a trace event.")] = 50
    stream_keys_max: Annotated[_Count, _help("Maximum number of keys in one look-up of a stream query's state.")] = (
        10_000
    )
    stream_rows_max: Annotated[
        _Count, _help("Maximum number of rows that one look-up of a stream query's state may find.")
    ] = 100_000
    stream_ops_max: Annotated[_Count, _help("Maximum number of state changes in one cycle of a stream query.")] = 10_000
    # A key is part of an index, which takes no more than a third of a page.
    stream_key_bytes_max: Annotated[int, Meta(ge=1, le=2_000), _help("Longest key in a stream query's state.")] = 1_000
    stream_value_bytes_max: Annotated[_Bytes, _help("Largest value in a stream query's state.")] = _MIB
    stream_cycle_bytes_max: Annotated[_Bytes, _help("Maximum bytes of values in one cycle of a stream query.")] = (
        64 * _MIB
    )

    segment_cache_bytes_max: Annotated[
        int, Meta(ge=0, le=2**40), _help("Memory for recently read or written segments.")
    ] = 128 * _MIB
    partition_cache_entries_max: Annotated[
        int, Meta(ge=1, le=100_000_000), _help("Number of partitions whose ids are cached by name.")
    ] = 1_000_000
    pool_connections_max: Annotated[
        int, Meta(ge=1, le=10_000), _help("Maximum number of connections to PostgreSQL.")
    ] = 10
    connect_timeout_seconds: Annotated[_Seconds, _help("Longest wait for one connection attempt.")] = 10.0
    connect_attempts_max: Annotated[_Count, _help("Connection attempts before PostgreSQL counts as unavailable.")] = 8
    primary_search_seconds: Annotated[
        _Seconds,
        _help(
            "With several hosts in the address: how long a process that does not know yet which of them is the newest "
            "primary waits for the others, once one has answered."
        ),
    ] = 2.0
    primary_check_seconds: Annotated[
        _Seconds,
        _help(
            "With several hosts in the address: how often a busy process checks whether another server has taken over."
        ),
    ] = 30.0
    statement_timeout_seconds: Annotated[_Seconds, _help("Longest time that a statement may run.")] = 30.0
    lock_timeout_seconds: Annotated[_Seconds, _help("Longest wait of a statement for a lock.")] = 10.0
    lock_watch_seconds: Annotated[
        _Seconds,
        _help("If a call fails after waiting for a lock for longer than this, its error names the holder of the lock."),
    ] = 1.0
    slow_query_seconds: Annotated[
        float, Meta(ge=0, le=86_400), _help("Queries that take at least this long are logged; 0 logs none.")
    ] = 1.0
    transaction_attempts_max: Annotated[
        _Count, _help("Attempts at a transaction that fails with a deadlock or a serialization failure.")
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
        _help("Failed connection attempts in a row after which a server considers PostgreSQL unavailable."),
    ] = 3
    breaker_open_seconds: Annotated[
        _Seconds, _help("How often a server then checks whether PostgreSQL is back; until then its calls fail at once.")
    ] = 0.5
    breaker_silent_seconds: Annotated[
        _Seconds,
        _help(
            "When PostgreSQL answers nothing for this long, waiting calls fail and the server considers it unavailable."
        ),
    ] = 3.0
    spool_dir: Annotated[
        str | None,
        _help("Directory in which a server buffers pushes while PostgreSQL is away, or in maintenance mode."),
    ] = None
    spool_bytes_max: Annotated[
        int, Meta(ge=_MIB, le=2**50), _help("Maximum bytes to buffer there; beyond this, pushes are refused.")
    ] = 1024 * _MIB
    spool_refusal_seconds_max: Annotated[
        float,
        Meta(ge=0, le=86_400),
        _help("How long a buffered push that PostgreSQL refuses is retried before it is set aside."),
    ] = 60.0

    load_management: Annotated[bool, _help("Queue, and then refuse, requests while the server is busy.")] = True
    load_interval_seconds: Annotated[_Seconds, _help("How often a server measures its load.")] = 0.5
    load_wait_seconds_max: Annotated[
        _Seconds, _help("Wait of requests of one kind, for their call and for the process, that counts as a load of 1.")
    ] = 2.0
    load_latency_seconds_max: Annotated[
        _Seconds, _help("Duration of the fastest recent call of one kind that counts as a load of 1.")
    ] = 1.5
    load_refuse_seconds: Annotated[
        _Seconds,
        _help("A server that manages its load refuses a request that has waited this long for its call."),
    ] = 5.0
    load_requests_max: Annotated[
        _Count, _help("Number of waiting requests of one kind that counts as a load of 1.")
    ] = 5_000
    load_bytes_max: Annotated[_Bytes, _help("Bytes of waiting payloads that count as a load of 1.")] = 128 * _MIB
    load_push_threshold: Annotated[_Ratio, _help("Load at which pushes start to be queued.")] = 0.7
    load_ack_threshold: Annotated[_Ratio, _help("Load at which acks start to be queued.")] = 0.8
    load_pop_threshold: Annotated[_Ratio, _help("Load at which pops start to be refused.")] = 0.95
    load_late_seconds: Annotated[
        _Seconds, _help("Wait of everything in the process beyond which the server itself is short of CPU time.")
    ] = 0.03
    load_busy_messages_max: Annotated[
        _Count, _help("Waiting messages beyond which a server that is short of CPU time refuses further pushes.")
    ] = 10_000
    load_leave_ratio: Annotated[
        float, Meta(gt=0, le=1), _help("Fraction of a threshold below which queueing or refusing requests ends again.")
    ] = 0.8
    load_stay_seconds: Annotated[
        float,
        Meta(ge=0, le=3_600),
        _help("Minimum time that a server stays busy with one kind of request."),
    ] = 2.0
    operation_push_depth_max: Annotated[
        _Count, _help("Maximum number of pushes that wait to be applied; further pushes are refused.")
    ] = 10_000
    operation_ack_depth_max: Annotated[
        _Count, _help("Maximum number of acks that wait to be applied; further acks are refused.")
    ] = 50_000
    operation_bytes_max: Annotated[
        int, Meta(ge=1, le=2**40), _help("Maximum bytes of operations of one kind that wait to be applied.")
    ] = 256 * _MIB
    operation_wait_seconds_max: Annotated[
        _Seconds, _help("Longest wait for a queued request when the client does not support operations.")
    ] = 25.0
    operation_interval_seconds: Annotated[
        _Seconds, _help("How often a server looks for operations that other servers have queued.")
    ] = 1.0
    operation_call_messages_max: Annotated[
        int,
        Meta(ge=1, le=_SEGMENT_MESSAGES),
        _help("Maximum number of messages in operations that are applied together."),
    ] = 20_000
    operation_call_bytes_max: Annotated[_Bytes, _help("Maximum bytes of operations that are applied together.")] = (
        16 * _MIB
    )
    operation_retries_max: Annotated[
        int, Meta(ge=0, le=10_000), _help("Number of retries of an operation whose queue is full.")
    ] = 20
    operation_retry_seconds_max: Annotated[
        _Seconds, _help("Longest wait between these retries; the first wait is short, and each one doubles.")
    ] = 10.0
    operation_timeout_seconds: Annotated[
        _Seconds, _help("Another server takes over the operations that a server has not applied within this time.")
    ] = 30.0
    operation_keep_seconds: Annotated[
        int, Meta(ge=0, le=_LIFETIME_SECONDS), _help("How long applied operations are kept.")
    ] = 3_600
    operation_failed_keep_seconds: Annotated[
        int, Meta(ge=0, le=_LIFETIME_SECONDS), _help("How long failed operations are kept.")
    ] = 7 * 86_400
    operation_clean_interval_seconds: Annotated[_Interval, _help("How often finished operations are removed.")] = 60.0

    token: Annotated[str | None, _secret("API key or token with which a client authenticates to a server.")] = None
    ca_file: Annotated[
        str | None,
        _help(
            "PEM file with the certificate authorities to trust for https:// servers; by default those of the system."
        ),
    ] = None
    client_timeout_seconds: Annotated[_Seconds, _help("Longest wait of a client for an answer from the server.")] = 30.0
    client_retry_attempts_max: Annotated[
        _Count, _help("How many times a client sends a request that keeps failing.")
    ] = 4
    client_retry_delay_seconds_max: Annotated[_Seconds, _help("Longest wait of a client before it tries again.")] = 30.0
    client_failover_cooldown_seconds: Annotated[
        _Seconds, _help("How long a client avoids a server that failed, while others are available.")
    ] = 10.0
    client_connections_max: Annotated[
        _Count, _help("Maximum number of HTTP connections of a client; each waiting poll has one.")
    ] = 1000
    client_queued: Annotated[
        Literal["wait", "return"],
        _help("Whether a push that a busy server has queued waits until it is applied, or returns at once."),
    ] = "wait"
    client_queued_seconds_max: Annotated[
        _Seconds, _help("Longest wait of a client for a push that was queued to be applied.")
    ] = 300.0
    client_retry_on_429: Annotated[bool, _help("Repeat a request that a busy server has refused.")] = True
    client_honor_retry_after: Annotated[
        bool, _help("Wait for as long as the server asks before a retry, up to the longest wait of the client.")
    ] = True
    client_exactly_once: Annotated[
        bool, _help("Give each message that is pushed over HTTP a transaction id, so that the push can be repeated.")
    ] = True
    client_packed: Annotated[
        bool, _help("Send many messages over HTTP as columns, and receive them so, instead of as JSON.")
    ] = True

    schedule_min_seconds: Annotated[
        float, Meta(ge=0, le=60), _help("A message scheduled for sooner than this is delivered at once.")
    ] = 0.1
    promotion_interval_seconds: Annotated[
        float, Meta(ge=0.05, le=60), _help("How often a server looks for scheduled messages that are due.")
    ] = 0.5
    promotion_messages_max: Annotated[
        int,
        Meta(ge=1, le=_SEGMENT_MESSAGES),
        _help("Maximum number of scheduled messages that one transaction makes deliverable."),
    ] = 1_000
    cron_late_seconds_max: Annotated[
        float,
        Meta(ge=1, le=86_400),
        _help("How late a recurring message that does not catch up may still be pushed."),
    ] = 60.0

    retention_interval_seconds: Annotated[_Interval, _help("How often old messages are removed.")] = 60.0
    retention_batch_messages_max: Annotated[
        _Count, _help("Approximate maximum number of messages removed per transaction.")
    ] = 10_000
    slice_messages_max: Annotated[
        _Count,
        _help("Approximate maximum number of messages that one transaction of a clear or a queue deletion removes."),
    ] = 10_000
    slice_partitions_max: Annotated[
        _Count,
        _help("Maximum number of partitions that one transaction of a clear, a deletion or a new group processes."),
    ] = 1_000
    expire_messages_max: Annotated[
        _Count, _help("Maximum number of expired messages that one transaction of a pop, or of maintenance, skips.")
    ] = 2_000
    slices_seconds_max: Annotated[
        float,
        Meta(ge=0, le=60),
        _help("How long a call works on the cursors of a group before it leaves the rest to maintenance."),
    ] = 0.25
    expire_seconds_max: Annotated[
        _Seconds, _help("How long a pop skips expired messages before it looks for fresh ones behind them.")
    ] = 0.5
    names_allow_whitespace: Annotated[bool, _help("Whether the name of a work queue may contain whitespace.")] = False
    balance_interval_seconds: Annotated[
        float,
        Meta(ge=0.01, le=3600),
        _help("How often a server looks up how full the partitions of a balanced queue are."),
    ] = 1.0
    eviction_interval_seconds: Annotated[_Interval, _help("How often messages that waited too long are removed.")] = (
        10.0
    )
    idle_partition_seconds: Annotated[
        float, Meta(ge=0, le=_LIFETIME_SECONDS), _help("Partitions empty for this long are removed; 0 is never.")
    ] = 0.0
    idle_partitions_interval_seconds: Annotated[_Interval, _help("How often idle partitions are removed.")] = 300.0
    idle_partitions_batch_max: Annotated[
        _Count, _help("Maximum number of partitions that one transaction removes.")
    ] = 1_000
    deleted_queues_interval_seconds: Annotated[
        _Interval, _help("How often maintenance removes what is left of deleted queues.")
    ] = 60.0
    groups_interval_seconds: Annotated[
        _Interval, _help("How often maintenance looks for groups that lack cursors or were deleted.")
    ] = 5.0
    clock_interval_seconds: Annotated[
        _Interval, _help("How often maintenance checks whether the database's clock was set back.")
    ] = 5.0
    samples_interval_seconds: Annotated[_Interval, _help("How often every queue is sampled.")] = 60.0
    samples_seconds_max: Annotated[
        _Seconds,
        _help(
            "Longest time spent on samples in a row; beyond it, walks over large queues pause and their figures age."
        ),
    ] = 15.0
    samples_partitions_max: Annotated[
        _Count, _help("Maximum number of partitions of a queue that one transaction of a sample reads.")
    ] = 1_000
    figures_exact_max: Annotated[
        int,
        Meta(ge=0, le=10_000_000),
        _help(
            "A list of queues or groups counts up to this many partitions and cursors itself; above, it shows samples."
        ),
    ] = 2_000
    verify_interval_seconds: Annotated[_Interval, _help("How often the stored data is verified.")] = 3_600.0
    verify_partitions_max: Annotated[_Count, _help("Maximum number of partitions that one call verifies.")] = 1_000
    history_interval_seconds: Annotated[_Interval, _help("How often old samples and removals are deleted.")] = 3_600.0
    history_seconds_max: Annotated[
        int, Meta(ge=60, le=_LIFETIME_SECONDS), _help("How long samples and the history of removals are kept.")
    ] = 30 * 86_400
    spark_position_seconds_max: Annotated[
        int,
        Meta(ge=60, le=_LIFETIME_SECONDS),
        _help("A Spark stream that has been silent for this long no longer holds messages back from retention."),
    ] = 7 * 86_400
    spark_unnamed_position_seconds_max: Annotated[
        int,
        Meta(ge=60, le=_LIFETIME_SECONDS),
        _help("The same for a Spark stream without a streamName, such as an experiment."),
    ] = 86_400
    spark_pattern_queues_max: Annotated[
        int,
        Meta(ge=1, le=100_000),
        _help("Most queues that a Spark stream reads by a pattern of their names; each adds to its position."),
    ] = 1_000
    spark_stage_seconds_max: Annotated[
        int,
        Meta(ge=60, le=_LIFETIME_SECONDS),
        _help("How long messages staged by a Spark task are kept without a commit."),
    ] = 86_400
    spark_batch_seconds_max: Annotated[
        int,
        Meta(ge=60, le=_LIFETIME_SECONDS),
        _help("How long the last batch of a Spark query is remembered, so that it is not written twice. Keep it long."),
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
    spark_order_bytes_max: Annotated[
        int,
        Meta(ge=1024, le=2**40),
        _help(
            "Maximum stored bytes of a batch that a Spark driver sorts for orderBy, if a partition is in several tasks."
        ),
    ] = 256 * 1024**2
    pipeline_batch_attempts_max: Annotated[
        int,
        Meta(ge=1, le=100),
        _help("Number of attempts at a pipeline batch whose Spark workers crash."),
    ] = 3
    pipeline_restart_seconds_max: Annotated[
        float,
        Meta(ge=0, le=_LIFETIME_SECONDS),
        _help(
            "How long a pipeline restarts a step that fails because the database is away, a queue is full "
            "or a machine is lost, before the pipeline ends; 0 ends it at once."
        ),
    ] = 3_600.0
    pipeline_restart_pause_seconds_max: Annotated[
        _Seconds, _help("Longest pause before a failed step is restarted; pauses double up to it.")
    ] = 30.0
    pipeline_stop_timeout_seconds: Annotated[
        _Seconds,
        _help("Longest wait for the current batches when a pipeline or an archive job is stopped."),
    ] = 60.0
    duty_pass_seconds_max: Annotated[
        _Seconds, _help("How long one pass of a duty may take; the rest is done in another pass.")
    ] = 10.0
    duty_hold_seconds: Annotated[
        float,
        Meta(ge=1, le=86_400),
        _help("How long a duty stays claimed by a server that is gone before another one takes it over."),
    ] = 300.0
    duty_stop_seconds_max: Annotated[_Seconds, _help("Longest wait, at shutdown, for a running duty.")] = 5.0

    encryption_key: Annotated[
        str | None,
        _secret(
            "Base64 of the 32 bytes that encrypt the messages of queues with encryption; several are separated by "
            "commas or lines. The first encrypts, all of them decrypt."
        ),
    ] = None
    encryption_allow_plain: Annotated[
        bool, _help("Without a key, store the payloads of encrypted queues unencrypted.")
    ] = False
    embedded_start_timeout_seconds: Annotated[_Seconds, _help("Longest wait for the embedded PostgreSQL to start.")] = (
        60.0
    )

    @property
    def encryption_keys(self) -> tuple[bytes, ...]:
        """The keys of `encryption_key`, the active one first."""
        return () if self.encryption_key is None else _decode_keys(self.encryption_key) or ()

    def shown(self) -> dict[str, Any]:
        """All settings by name, with secrets hidden."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["dsn"] = None if self.dsn is None else without_password(self.dsn)
        shown.update({name: _HIDDEN for name in SECRETS if shown[name] is not None})
        return shown

    def __repr__(self) -> str:
        """All settings with secrets hidden, because this text ends up in logs."""
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"


_TYPES = get_type_hints(Config, include_extras=True)


def _is_secret(hint: Any) -> bool:
    metas = getattr(hint, "__metadata__", ())
    return any(isinstance(meta, Meta) and (meta.extra or {}).get("secret") for meta in metas)


SECRETS = tuple(name for name, hint in _TYPES.items() if _is_secret(hint))
"""Settings whose value is never shown. Of a DSN only the password is hidden."""
IN_FILES = {f"{name}{FILE_SUFFIX}": name for name in ("dsn", *SECRETS)}
"""Settings that a file may hold, by the name of the setting that names the file."""
OF_CLIENTS = ("token",)
"""Secrets that only a client of a server uses: what works on a database does not read their files."""
_NAMES = (*_TYPES, *IN_FILES)
VARIABLES = {ENVIRONMENT_PREFIX + name.upper(): name for name in _NAMES}
"""The environment variables of settings, and the settings that they name."""


def _meaning(hint: Any) -> str:
    metas = getattr(hint, "__metadata__", ())
    return next((meta.description for meta in metas if isinstance(meta, Meta) and meta.description), "")


MEANINGS = {name: _meaning(hint) for name, hint in _TYPES.items()}
"""What each setting is for."""


def sources(config: Config, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where each setting of a running process comes from: the variable, an option or the file, or the default."""
    given = os.environ if environ is None else environ
    variables = {name: variable for variable, name in VARIABLES.items() if given.get(variable)}
    variables |= {held: variables[name] for name, held in IN_FILES.items() if name in variables}
    standard = Config()
    return {
        name: variables.get(name)
        or ("default" if getattr(config, name) == getattr(standard, name) else "option or file")
        for name in _TYPES
    }


def load(
    overrides: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    unused: Collection[str] = (),
) -> Config:
    """The settings in force. An override of None and an empty environment variable are as if not given. Settings that
    are `unused` keep their defaults, and their files are not read.
    """
    values: dict[str, Any] = {}
    # From the weakest source to the strongest: the last source that names a setting wins.
    for name, value, source in _given(overrides or {}, os.environ if environ is None else environ, file, unused):
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
    overrides: Mapping[str, object], environ: Mapping[str, str], file: Path | None, unused: Collection[str] = ()
) -> Iterator[tuple[str, object, str]]:
    """Every given value: its name, itself, and what to call it in an error."""
    in_file = {} if file is None else _read(file)
    _check_known(in_file, _NAMES, f"in {file}")
    yield from _opened({name: (value, f"{name} in {file}") for name, value in in_file.items()}, unused)

    ours = [variable for variable in environ if variable.startswith(ENVIRONMENT_PREFIX)]
    _check_known(ours, VARIABLES.keys() | OTHER_VARIABLES, "in the environment")
    set_ones = {name: variable for variable, name in VARIABLES.items() if environ.get(variable)}
    yield from _opened({name: (environ[variable], variable) for name, variable in set_ones.items()}, unused)

    _check_known(overrides, _NAMES, "given")
    yield from _opened({name: (value, name) for name, value in overrides.items() if value is not None}, unused)


def _opened(given: Mapping[str, tuple[object, str]], unused: Collection[str]) -> Iterator[tuple[str, object, str]]:
    """What one source gives, with the contents of files in place of their names."""
    for name, (value, source) in given.items():
        held = IN_FILES.get(name)
        if (held or name) in unused:
            continue
        if held is None:
            yield name, value, source
        elif held in given:
            raise InvalidOption(f"{given[held][1]} and {source} exclude each other")
        else:
            yield held, read_secret(value, source), source


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
    """The value as the type of its setting. The errors describe valid values and do not repeat the given one, which may
    be a secret."""
    if isinstance(value, Path):
        value = str(value)
    try:
        converted = msgspec.convert(value, _TYPES[name], strict=False)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"{source} is not valid: it must be {_what_fits(type_info(_TYPES[name]))}") from error
    if name == "encryption_key" and converted is not None and _decode_keys(converted) is None:
        raise InvalidOption(
            f"{source} is not valid: it must be the base64 of {ENCRYPTION_KEY_BYTES} bytes, or several of them, each "
            "another one"
        )
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


def _decode_keys(text: str) -> tuple[bytes, ...] | None:
    try:
        keys = tuple([b64decode(key, validate=True) for key in text.replace(",", " ").split()])
    except ValueError:
        return None
    is_right = keys and all(len(key) == ENCRYPTION_KEY_BYTES for key in keys) and len(set(keys)) == len(keys)
    return keys if is_right else None


def has_password(dsn: str) -> bool:
    """Whether a DSN contains a password, in any of its spellings."""
    if _PASSWORD_WORD.search(dsn):
        return True
    return ":" in dsn.partition("://")[2].rpartition("@")[0].partition("/")[0].split("?", 1)[0]


def without_password(dsn: str) -> str:
    """The DSN for people. A DSN that cannot be parsed is hidden as a whole."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return _HIDDEN
    # An @ further on may follow a password that contains an unescaped character.
    if not parts.scheme or "@" in parts.path + parts.query + parts.fragment:
        return _HIDDEN
    credentials, at, host = parts.netloc.rpartition("@")
    user, colon, _ = credentials.partition(":")
    query = [(name, _HIDDEN if "password" in name else value) for name, value in parse_qsl(parts.query)]
    shown = f"{parts.scheme}://{user}{colon}{_HIDDEN if colon else ''}{at}{host}{parts.path}"
    return f"{shown}?{urlencode(query, safe='*/:')}" if query else shown
