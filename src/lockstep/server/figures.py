"""The figures of a process, and of all processes on its port."""

from __future__ import annotations

import msgspec

from lockstep.core.wire import metrics as wire
from lockstep.core.wire.analytics import WorkerRow
from lockstep.server.node import Node
from lockstep.server.process import buffer_rows, system_metrics, worker_row
from lockstep.version import VERSION


class Figures(msgspec.Struct):
    """The figures that a process shares with the others on its port."""

    metrics: wire.MetricsAnswer
    worker: WorkerRow
    pushed: dict[str, int]
    """Messages by queue. Not part of the answer of `/metrics`, which is public."""
    popped: dict[str, int]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Figures).decode


def encoded_figures(node: Node) -> bytes:
    return _encode(_own(node))


def _own(node: Node) -> Figures:
    return Figures(metrics_of(node), worker_row(node), node.counters.pushed.sums, node.counters.popped.sums)


async def all_figures(node: Node) -> list[Figures]:
    """The figures of this process, and of the other processes on its port."""
    own = _own(node)
    if node.siblings is None:
        return [own]
    return [own, *map(_decode, await node.siblings.ask())]


def metrics_of(node: Node) -> wire.MetricsAnswer:
    counters, waiting, system = node.counters, node.engine.counts.waiting, system_metrics(node)
    return wire.MetricsAnswer(
        worker_id=node.name,
        version=VERSION,
        uptime_seconds=system.uptime_seconds,
        requests=_requests(node),
        messages=wire.MessageSums(
            counters.messages_pushed,
            counters.messages_duplicate,
            counters.messages_popped,
            counters.messages_acked,
            counters.messages_redelivered,
        ),
        polls=wire.Polls(
            waiting.polls, waiting.woken, counters.polls_abandoned, waiting.precheck_hits, waiting.precheck_misses
        ),
        batching=buffer_rows(node),
        pool=system.pool,
        cache=system.cache,
        buffer=_buffer(node),
        load=_load(node),
        operations=_operations(node),
        queries=_queries(node),
        cpu=system.cpu,
        memory=system.memory,
    )


def _buffer(node: Node) -> wire.Buffer:
    counts = node.engine.counts
    away = counts.breaker == "open"
    if counts.buffer is None:
        return wire.Buffer(breaker_open=away)
    buffered = {name: getattr(counts.buffer, name) for name in wire.Buffer.__struct_fields__ if name != "breaker_open"}
    return wire.Buffer(**buffered, breaker_open=away)


def _requests(node: Node) -> wire.RequestSums:
    counters = node.counters
    return wire.RequestSums(
        total=sum(counters.requests.values()),
        in_flight=counters.in_flight,
        by_route=[wire.RequestRow(*key, count) for key, count in sorted(counters.requests.items())],
        seconds=[wire.RouteSeconds(*key, seconds) for key, seconds in sorted(counters.seconds.items())],
        durations=[
            wire.DurationRow(
                verb, durations.seconds, dict(durations.buckets()), durations.bytes_in, durations.bytes_out
            )
            for verb, durations in sorted(counters.durations.items())
        ],
    )


def _operations(node: Node) -> wire.OperationsRow:
    counts = node.engine.counts
    return wire.OperationsRow(counts.operations_applied, counts.operations_failed)


def _queries(node: Node) -> list[wire.QueryRow]:
    queries = node.engine.counts.store.queries
    return [
        wire.QueryRow(name, one.calls, round(one.seconds, 6), one.failures, one.slow)
        for name, one in sorted(queries.items())
    ]


def _load(node: Node) -> list[wire.LoadFigures]:
    return [
        wire.LoadFigures(
            kind, state.answer.value, round(state.load, 4), state.depth, state.queued, state.rejected, state.changes
        )
        for kind, state in node.engine.counts.load.items()
    ]
