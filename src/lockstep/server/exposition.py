"""Counters as Prometheus reads them: the text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from lockstep.core.wire.metrics import MetricsAnswer

Labels = Mapping[str, str | int]
Sample = tuple[Labels, float]
Family = tuple[str, str]
"""What is said of a metric, and its samples."""


def exposition(processes: Sequence[MetricsAnswer]) -> str:
    """All metrics of the processes, each with the label `worker`, which tells them apart."""
    text = []
    # Every process has the same families, and the samples of one belong together.
    for families in zip(*map(_families, processes), strict=True):
        text += [families[0][0], *[samples for _, samples in families]]
    return "".join(text)


def _families(metrics: MetricsAnswer) -> Iterator[Family]:
    worker = metrics.worker_id
    yield from _family(
        "up_seconds", "gauge", "Seconds since the process began.", worker, [({}, metrics.uptime_seconds)]
    )
    yield from _requests(metrics)
    yield from _messages(metrics)
    yield from _polls(metrics)
    yield from _batching(metrics)
    yield from _resources(metrics)
    yield from _buffer(metrics)
    yield from _load(metrics)
    yield from _queries(metrics)


def _requests(metrics: MetricsAnswer) -> Iterator[Family]:
    requests, worker = metrics.requests, metrics.worker_id
    counts: list[Sample] = [
        ({"method": r.method, "route": r.route, "status": r.status}, r.count) for r in requests.by_route
    ]
    seconds = [({"method": r.method, "route": r.route}, r.seconds) for r in requests.seconds]
    yield from _family("requests_total", "counter", "Answered requests.", worker, counts)
    yield from _family("request_seconds_total", "counter", "Time spent answering.", worker, seconds)
    yield from _family("requests_in_flight", "gauge", "Requests being answered.", worker, [({}, requests.in_flight)])


def _messages(metrics: MetricsAnswer) -> Iterator[Family]:
    messages, worker = metrics.messages, metrics.worker_id
    for name, text, value in (
        ("messages_pushed_total", "Messages pushed, duplicates included.", messages.pushed),
        ("messages_duplicate_total", "Pushed messages that were duplicates.", messages.duplicate),
        ("messages_popped_total", "Messages popped.", messages.popped),
        ("messages_acked_total", "Messages completed.", messages.acked),
    ):
        yield from _family(name, "counter", text, worker, [({}, value)])


def _polls(metrics: MetricsAnswer) -> Iterator[Family]:
    polls, worker = metrics.polls, metrics.worker_id
    checks = [({"result": "hit"}, polls.precheck_hits), ({"result": "miss"}, polls.precheck_misses)]
    yield from _family("polls_waiting", "gauge", "Pops that wait for messages.", worker, [({}, polls.waiting)])
    yield from _family("polls_woken_total", "counter", "Waiting pops that were woken.", worker, [({}, polls.woken)])
    yield from _family(
        "polls_abandoned_total", "counter", "Waiting pops whose client went away.", worker, [({}, polls.abandoned)]
    )
    yield from _family("poll_checks_total", "counter", "Looks for due messages.", worker, checks)


def _batching(metrics: MetricsAnswer) -> Iterator[Family]:
    rows, worker = metrics.batching, metrics.worker_id
    for name, text, field in (
        ("batch_requests_total", "Requests that came to be joined.", "requests"),
        ("batch_calls_total", "Calls of the store that they became.", "calls"),
        ("batch_items_total", "Messages, acks, pops or renewals in them.", "items"),
        ("batch_retried_total", "Requests tried alone after their joined call failed.", "retried_alone"),
    ):
        yield from _family(name, "counter", text, worker, [({"verb": r.verb}, getattr(r, field)) for r in rows])
    largest = [({"verb": row.verb}, row.requests_max) for row in rows]
    yield from _family("batch_requests_max", "gauge", "Most requests that one call carried.", worker, largest)


def _resources(metrics: MetricsAnswer) -> Iterator[Family]:
    pool, cache, worker = metrics.pool, metrics.cache, metrics.worker_id
    connections = [({"state": "idle"}, pool.idle), ({"state": "used"}, pool.open - pool.idle)]
    lookups = [({"result": "hit"}, cache.hits), ({"result": "miss"}, cache.misses)]
    cpu = [({"mode": "user"}, metrics.cpu.user_seconds), ({"mode": "system"}, metrics.cpu.system_seconds)]
    yield from _family("pool_connections", "gauge", "Connections to the database.", worker, connections)
    yield from _family("pool_connections_max", "gauge", "Most connections.", worker, [({}, pool.max)])
    yield from _family("pool_waiters", "gauge", "Calls that wait for a connection.", worker, [({}, pool.waiters)])
    yield from _family("cache_bytes", "gauge", "Memory of cached segments.", worker, [({}, cache.bytes)])
    yield from _family("cache_lookups_total", "counter", "Looks for a segment in the cache.", worker, lookups)
    yield from _family("cpu_seconds_total", "counter", "Processor time of the process.", worker, cpu)
    rss = metrics.memory.rss_bytes_max
    yield from _family("memory_rss_bytes_max", "gauge", "Most memory that the process had.", worker, [({}, rss)])


def _buffer(metrics: MetricsAnswer) -> Iterator[Family]:
    buffer, worker = metrics.buffer, metrics.worker_id
    for name, text, value in (
        ("buffer_messages", "Messages that wait on disk for the database.", buffer.messages),
        ("buffer_bytes", "Bytes on disk that wait for the database.", buffer.bytes),
        ("buffer_bytes_max", "Most bytes that are buffered.", buffer.bytes_max),
        ("buffer_bytes_lost", "Bytes that the database lost and nobody has accepted yet.", buffer.bytes_lost),
        ("breaker_open", "Whether the database is taken for away.", int(buffer.breaker_open)),
    ):
        yield from _family(name, "gauge", text, worker, [({}, value)])
    for name, text, value in (
        ("buffer_messages_total", "Messages that were buffered.", buffer.messages_buffered),
        ("buffer_drained_total", "Buffered messages that the database has.", buffer.messages_drained),
        ("buffer_rejected_total", "Buffered messages that the database refused.", buffer.messages_rejected),
        ("buffer_damaged_bytes_total", "Bytes of the buffer that could not be read.", buffer.bytes_damaged),
    ):
        yield from _family(name, "counter", text, worker, [({}, value)])


_ANSWERS = ("execute", "queue", "shed", "reject")


def _load(metrics: MetricsAnswer) -> Iterator[Family]:
    rows, worker = metrics.load, metrics.worker_id
    answers: list[Sample] = [
        ({"kind": row.kind, "answer": answer}, int(row.answer == answer)) for row in rows for answer in _ANSWERS
    ]
    yield from _family("load_answer", "gauge", "What is done with the next request.", worker, answers)
    for name, kind, text, field in (
        ("load", "gauge", "How busy the process is; 1 is as much as the settings allow.", "load"),
        ("operations_pending", "gauge", "Operations that wait to be applied.", "depth"),
        ("requests_queued_total", "counter", "Requests that were queued as operations.", "queued"),
        ("requests_rejected_total", "counter", "Requests that were refused.", "rejected"),
        ("load_changes_total", "counter", "Changes of what is done with the next request.", "changes"),
    ):
        samples = [({"kind": row.kind}, getattr(row, field)) for row in rows]
        yield from _family(name, kind, text, worker, samples)  # type: ignore[arg-type]
    results = [({"result": "done"}, metrics.operations.applied - metrics.operations.failed)]
    results.append(({"result": "failed"}, metrics.operations.failed))
    yield from _family("operations_applied_total", "counter", "Operations that were applied.", worker, results)


def _queries(metrics: MetricsAnswer) -> Iterator[Family]:
    rows, worker = metrics.queries, metrics.worker_id
    for name, text, field in (
        ("queries_total", "Queries to the database.", "calls"),
        ("query_seconds_total", "Time that queries took.", "seconds"),
        ("query_failures_total", "Queries that failed.", "failures"),
        ("queries_slow_total", "Queries that took at least slow_query_seconds.", "slow"),
    ):
        samples = [({"query": row.query}, getattr(row, field)) for row in rows]
        yield from _family(name, "counter", text, worker, samples)


def _family(
    name: str, kind: Literal["counter", "gauge"], text: str, worker: str, samples: Iterable[Sample]
) -> Iterator[Family]:
    lines = []
    for labels, value in samples:
        pairs = ",".join([f'{label}="{_escaped(str(given))}"' for label, given in {"worker": worker, **labels}.items()])
        lines.append(f"lockstep_{name}{{{pairs}}} {value}\n")
    yield f"# HELP lockstep_{name} {text}\n# TYPE lockstep_{name} {kind}\n", "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
