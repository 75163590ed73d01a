"""The metrics of all processes behind a port, in Prometheus' text format.

Every metric is a row of `PROCESS_METRICS`. Requests update plain Python numbers (counters.py), and prometheus_client
writes the text when somebody scrapes: its own counters cost 12 µs per request in multiprocess mode, plain numbers
0.4 µs (docs/decisions/0040-plain-counters.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lockstep.core.wire.metrics import MetricsAnswer
from lockstep.server.figures import Figures
from lockstep.server.store_exposition import QUEUE

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

WORKER = "worker"
VERB = "messaging_operation_name"
"""A label with the name of OpenTelemetry's attribute."""
_FIELDS = {VERB: "verb"}
"""Names of labels in the rows, where they differ."""

_Sample = tuple[Sequence[str | int], float]
"""The values of the labels, and the figure."""


@dataclass(frozen=True)
class ProcessMetric:
    """A counter if its name ends in `_total`, otherwise a gauge."""

    name: str
    text: str
    labels: tuple[str, ...]
    samples: Callable[[Figures], Iterable[_Sample]]


def _figure(name: str, text: str, path: str) -> ProcessMetric:
    value = attrgetter(path)
    return ProcessMetric(name, text, (), lambda figures: [((), value(figures.metrics))])


def _rows(name: str, text: str, path: str, labels: tuple[str, ...], field: str) -> ProcessMetric:
    """A sample for each row of a list; the labels are fields of the row."""
    rows, value = attrgetter(path), attrgetter(field)
    fields = [_FIELDS.get(label, label) for label in labels]
    return ProcessMetric(
        name,
        text,
        labels,
        lambda figures: [([getattr(row, one) for one in fields], value(row)) for row in rows(figures.metrics)],
    )


def _by_queue(name: str, text: str, field: str) -> ProcessMetric:
    sums = attrgetter(field)
    return ProcessMetric(name, text, (QUEUE,), lambda figures: [((queue,), n) for queue, n in sums(figures).items()])


def _parts(name: str, text: str, label: str, **parts: Callable[[MetricsAnswer], float]) -> ProcessMetric:
    """A sample for each value of a label."""
    return ProcessMetric(
        name, text, (label,), lambda figures: [((part,), value(figures.metrics)) for part, value in parts.items()]
    )


def _load_answers(figures: Figures) -> list[_Sample]:
    answers = ("execute", "queue", "shed", "reject")
    return [((row.kind, answer), row.answer == answer) for row in figures.metrics.load for answer in answers]


PROCESS_METRICS = (
    _figure("up_seconds", "Seconds since the process started.", "uptime_seconds"),
    _rows("requests_total", "Answered requests.", "requests.by_route", ("method", "route", "status"), "count"),
    _rows("request_seconds_total", "Time spent answering.", "requests.seconds", ("method", "route"), "seconds"),
    _figure("requests_in_flight", "Requests being answered.", "requests.in_flight"),
    _by_queue("messages_pushed_total", "Messages pushed, including duplicates.", "pushed"),
    _figure("messages_duplicate_total", "Pushed messages that were duplicates.", "messages.duplicate"),
    _by_queue("messages_popped_total", "Messages popped.", "popped"),
    _figure("messages_acked_total", "Messages completed.", "messages.acked"),
    _figure("messages_redelivered_total", "Messages popped for the second time or more.", "messages.redelivered"),
    _rows("request_bytes_total", "Bytes of the bodies of requests.", "requests.durations", (VERB,), "bytes_in"),
    _rows("answer_bytes_total", "Bytes of the bodies of answers.", "requests.durations", (VERB,), "bytes_out"),
    _figure("polls_waiting", "Pops that wait for messages.", "polls.waiting"),
    _figure("polls_woken_total", "Waiting pops that were woken.", "polls.woken"),
    _figure("polls_abandoned_total", "Waiting pops whose client disconnected.", "polls.abandoned"),
    _parts(
        "poll_checks_total",
        "Checks for due messages.",
        "result",
        hit=attrgetter("polls.precheck_hits"),
        miss=attrgetter("polls.precheck_misses"),
    ),
    _rows("batch_requests_total", "Requests that can be joined.", "batching", ("verb",), "requests"),
    _rows("batch_calls_total", "Store calls that carried them.", "batching", ("verb",), "calls"),
    _rows("batch_items_total", "Messages, acks, pops or renewals in them.", "batching", ("verb",), "items"),
    _rows(
        "batch_retried_total",
        "Requests tried alone after their joined call failed.",
        "batching",
        ("verb",),
        "retried_alone",
    ),
    _rows("batch_requests_max", "Most requests in one store call.", "batching", ("verb",), "requests_max"),
    _parts(
        "pool_connections",
        "Database connections.",
        "state",
        idle=attrgetter("pool.idle"),
        used=lambda metrics: metrics.pool.open - metrics.pool.idle,
    ),
    _figure("pool_connections_max", "Maximum number of database connections.", "pool.max"),
    _figure("pool_waiters", "Calls that wait for a database connection.", "pool.waiters"),
    _figure("cache_bytes", "Memory used by cached segments.", "cache.bytes"),
    _parts(
        "cache_lookups_total",
        "Lookups of segments in the cache.",
        "result",
        hit=attrgetter("cache.hits"),
        miss=attrgetter("cache.misses"),
    ),
    _parts(
        "cpu_seconds_total",
        "Processor time used by the process.",
        "mode",
        user=attrgetter("cpu.user_seconds"),
        system=attrgetter("cpu.system_seconds"),
    ),
    _figure("memory_rss_bytes_max", "Peak resident memory of the process.", "memory.rss_bytes_max"),
    _figure("buffer_messages", "Buffered messages that wait on disk for the database.", "buffer.messages"),
    _figure("buffer_bytes", "Buffered bytes that wait on disk for the database.", "buffer.bytes"),
    _figure("buffer_bytes_max", "Maximum size of the buffer.", "buffer.bytes_max"),
    _figure("buffer_bytes_lost", "Bytes that the database lost and no operator has accepted yet.", "buffer.bytes_lost"),
    _figure("breaker_open", "1 while the process considers the database unavailable.", "buffer.breaker_open"),
    _figure("buffer_messages_total", "Messages that were buffered.", "buffer.messages_buffered"),
    _figure("buffer_drained_total", "Buffered messages written to the database.", "buffer.messages_drained"),
    _figure("buffer_rejected_total", "Buffered messages that the database rejected.", "buffer.messages_rejected"),
    _figure("buffer_damaged_bytes_total", "Bytes of the buffer that could not be read.", "buffer.bytes_damaged"),
    ProcessMetric("load_answer", "1 for what happens to the next request.", ("kind", "answer"), _load_answers),
    _rows("load", "Load of the process; 1 is as much as the settings allow.", "load", ("kind",), "load"),
    _rows("operations_pending", "Operations that wait to be applied.", "load", ("kind",), "depth"),
    _rows("requests_queued_total", "Requests queued as operations.", "load", ("kind",), "queued"),
    _rows("requests_rejected_total", "Requests that were rejected.", "load", ("kind",), "rejected"),
    _rows("load_changes_total", "Changes of what happens to the next request.", "load", ("kind",), "changes"),
    _parts(
        "operations_applied_total",
        "Operations that were applied.",
        "result",
        done=lambda metrics: metrics.operations.applied - metrics.operations.failed,
        failed=attrgetter("operations.failed"),
    ),
    _rows("queries_total", "Database queries.", "queries", ("query",), "calls"),
    _rows("query_seconds_total", "Time spent in database queries.", "queries", ("query",), "seconds"),
    _rows("query_failures_total", "Database queries that failed.", "queries", ("query",), "failures"),
    _rows("queries_slow_total", "Queries that took at least slow_query_seconds.", "queries", ("query",), "slow"),
)


DURATIONS = (
    "lockstep_request_duration_seconds",
    "Time from the head of a request to its answer; that of wait_pop includes the wait.",
)


def exposition(processes: Sequence[Figures]) -> bytes:
    """All metrics of the processes; the label `worker` names the process."""
    return generate_latest(_Processes(processes))


class _Processes(Collector):
    def __init__(self, processes: Sequence[Figures]) -> None:
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        for metric in PROCESS_METRICS:
            kind = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
            family = kind(f"lockstep_{metric.name}", metric.text, labels=[WORKER, *metric.labels])
            for process in self._processes:
                for labels, value in metric.samples(process):
                    family.add_metric([process.metrics.worker_id, *map(str, labels)], value)
            yield family
        yield self._durations()

    def _durations(self) -> Metric:
        family = HistogramMetricFamily(*DURATIONS, labels=[WORKER, VERB])
        for process in self._processes:
            for row in process.metrics.requests.durations:
                family.add_metric([process.metrics.worker_id, row.verb], list(row.buckets.items()), row.seconds)
        return family
