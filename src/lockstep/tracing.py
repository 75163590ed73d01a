"""OpenTelemetry: spans for pushes, pops and processing, and W3C trace context in the headers of messages.

This module is imported only if the setting `tracing` is on. Clients, servers and steps are then composed of traced
parts instead of plain ones, so that tracing costs nothing when it is off
(docs/decisions/0066-tracing-by-composition.md).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from lockstep.core.messages import Batch, Message, NewMessage
from lockstep.errors import InvalidOption
from lockstep.version import VERSION

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise InvalidOption("the setting tracing needs OpenTelemetry: pip install 'lockstep[otel]'") from error

Messages = Sequence[NewMessage] | Sequence[Batch]

LINKS_MAX = 128
"""Maximum number of links of a span: this many messages of a batch are linked."""

_PARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("lockstep", VERSION)
_meter = metrics.get_meter("lockstep", VERSION)
_sent = _meter.create_counter("messaging.client.sent.messages", "{message}", "Messages that were pushed.")
_consumed = _meter.create_counter("messaging.client.consumed.messages", "{message}", "Messages that were popped.")
_seconds = _meter.create_histogram("messaging.client.operation.duration", "s", "Duration of pushes, pops and acks.")
_work_seconds = _meter.create_histogram("messaging.process.duration", "s", "Duration of the work on messages.")
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


# --- The context --------------------------------------------------------------------------------------------


def own_context() -> dict[str, str]:
    """The current span as headers; empty without one."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier


def context_of(headers: Mapping[str, str] | None) -> contexts.Context:
    """The context in the headers, and nothing of the current context."""
    return _propagator.extract(headers or {}, context=contexts.Context())


def links_to(headers: Iterable[Mapping[str, str] | None]) -> list[Link]:
    """Links to the spans in the headers of the first messages, without repetitions."""
    found: dict[tuple[int, int], Link] = {}
    for one in headers:
        if one and _PARENT in one:
            spot = trace.get_current_span(context_of(one)).get_span_context()
            if spot.is_valid:
                found.setdefault((spot.trace_id, spot.span_id), Link(spot))
                if len(found) == LINKS_MAX:
                    break
    return list(found.values())


def trace_id_of(headers: Mapping[str, str]) -> str | None:
    """The trace in the headers, in the form of our trace ids."""
    spot = trace.get_current_span(context_of(headers)).get_span_context()
    return str(UUID(int=spot.trace_id)) if spot.is_valid else None


def carrying(messages: Messages) -> Messages:
    """The messages with the current span in their headers, and with its trace if they have no trace id."""
    own = own_context()
    if not own:
        return messages
    trace_id = trace_id_of(own)
    given: Sequence[NewMessage | Batch] = messages
    return [
        _carrying_batch(one, own, trace_id) if isinstance(one, Batch) else _carrying_one(one, own, trace_id)
        for one in given
    ]  # type: ignore[return-value]


def _carrying_one(message: NewMessage, own: Mapping[str, str], trace_id: str | None) -> NewMessage:
    headers = message.headers or {}
    if not isinstance(message, NewMessage) or not isinstance(headers, Mapping) or _PARENT in headers:
        return message
    return msgspec.structs.replace(message, headers={**headers, **own}, trace_id=message.trace_id or trace_id)


def _carrying_batch(batch: Batch, own: Mapping[str, str], trace_id: str | None) -> Batch:
    columns, count = batch.columns, len(batch.columns)
    alone = msgspec.json.encode(own)
    headers: list[bytes | None] = [
        alone if one is None else _merged(one, own) for one in columns.headers or [None] * count
    ]
    trace_ids = [one or trace_id for one in columns.trace_ids or [None] * count]
    return replace(batch, columns=replace(columns, headers=headers, trace_ids=trace_ids))


def _merged(encoded: bytes, own: Mapping[str, str]) -> bytes:
    try:
        headers = _decode_headers(encoded)
    except msgspec.DecodeError:
        return encoded  # the check of the headers will refuse it
    return encoded if _PARENT in headers else msgspec.json.encode({**headers, **own})


# --- Spans --------------------------------------------------------------------------------------------------


def _attributes(operation: str, kind: str, queues: Iterable[str | None], **more: Any) -> dict[str, Any]:
    """Attributes according to the messaging conventions. A span over several queues names none."""
    named = set(queues)
    queue = named.pop() if len(named) == 1 else None
    given = {
        "messaging.system": "lockstep",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        **more,
    }
    return {name: value for name, value in given.items() if value is not None}


def _name(attributes: Mapping[str, Any]) -> str:
    operation, queue = attributes["messaging.operation.name"], attributes.get("messaging.destination.name")
    return str(operation) if queue is None else f"{operation} {queue}"


_OF_METRICS = ("messaging.system", "messaging.operation.name", "messaging.destination.name")


def _of_metrics(attributes: Mapping[str, Any], error: BaseException | None = None) -> dict[str, Any]:
    chosen = {name: attributes[name] for name in _OF_METRICS if name in attributes}
    return chosen if error is None else {**chosen, "error.type": type(error).__name__}


@contextmanager
def _operation(kind: SpanKind, attributes: dict[str, Any], links: Sequence[Link] = ()) -> Iterator[Span]:
    """A span around a call, and its duration."""
    begun = time.perf_counter()
    failed: BaseException | None = None
    with _tracer.start_as_current_span(_name(attributes), kind=kind, attributes=attributes, links=links) as span:
        try:
            yield span
        except BaseException as error:
            failed = error
            span.set_attribute("error.type", type(error).__name__)
            raise
        finally:
            _seconds.record(time.perf_counter() - begun, _of_metrics(attributes, failed))


def _count(messages: Messages) -> int:
    given: Sequence[NewMessage | Batch] = messages
    return sum([len(one.columns) if isinstance(one, Batch) else 1 for one in given])


@contextmanager
def sending(operation: str, messages: Messages) -> Iterator[Messages]:
    """A span around a push; yields the messages to push."""
    given: Sequence[NewMessage | Batch] = messages
    attributes = _attributes(
        operation, "send", [one.queue for one in given], **{"messaging.batch.message_count": _count(messages)}
    )
    links = links_to([one.headers for one in given if isinstance(one, NewMessage) and isinstance(one.headers, Mapping)])
    with _operation(SpanKind.PRODUCER, attributes, links):
        yield carrying(messages)
    _sent.add(_count(messages), _of_metrics(attributes))


@contextmanager
def creating(queue: str) -> Iterator[Mapping[str, str]]:
    """A span for a message that is pushed later, in the background; yields the headers that name it."""
    attributes = _attributes("create", "create", [queue])
    with _tracer.start_as_current_span(_name(attributes), kind=SpanKind.PRODUCER, attributes=attributes):
        yield own_context()


def received(messages: Sequence[Message], group: str, begun_ns: int, *, name: str = "pop") -> None:
    """A span for a pop that found messages, or for a continued lease, with links to the origin of its messages."""
    attributes = _attributes(
        name,
        "receive",
        [message.queue for message in messages],
        **{"messaging.batch.message_count": len(messages), "messaging.consumer.group.name": group},
    )
    links = links_to([message.headers for message in messages])
    span = _tracer.start_span(
        _name(attributes), kind=SpanKind.CLIENT, attributes=attributes, links=links, start_time=begun_ns
    )
    span.end()
    _consumed.add(len(messages), _of_metrics(attributes))
    _seconds.record((time.time_ns() - begun_ns) / 1e9, _of_metrics(attributes))


@contextmanager
def settling(count: int) -> Iterator[None]:
    """A span around acks."""
    attributes = _attributes("ack", "settle", (), **{"messaging.batch.message_count": count})
    with _operation(SpanKind.CLIENT, attributes):
        yield


class Processing:
    """A span for processing messages that were popped together; it is the current span until it ends.

    Processing a single message is a child of the span that pushed it. A span that was active before is linked.
    """

    def __init__(self, messages: Sequence[Message], group: str) -> None:
        first = messages[0]
        lone = len(messages) == 1
        self._attributes = _attributes(
            "process",
            "process",
            [message.queue for message in messages],
            **{
                "messaging.consumer.group.name": group,
                "messaging.batch.message_count": None if lone else len(messages),
                "messaging.destination.partition.id": first.partition if lone else None,
                "messaging.message.id": first.id if lone else None,
                "messaging.message.body.size": len(first.payload) if lone else None,
                "lockstep.seq": first.seq if lone else None,
                "lockstep.attempt": first.attempt if lone else None,
                "lockstep.trace_id": first.trace_id if lone else None,
            },
        )
        surrounding = trace.get_current_span().get_span_context()
        links = [Link(surrounding)] if lone and surrounding.is_valid else []
        self._span = _tracer.start_span(
            _name(self._attributes),
            context=context_of(first.headers) if lone else None,
            kind=SpanKind.CONSUMER,
            attributes=self._attributes,
            links=links if lone else links_to([message.headers for message in messages]),
        )
        self._begun = time.perf_counter()
        self._token = contexts.attach(trace.set_span_in_context(self._span))

    def end(self, error: BaseException | None = None) -> None:
        if trace.get_current_span() is self._span:  # not if another context closes the iterator
            contexts.detach(self._token)
        if error is not None:
            self._span.record_exception(error)
            self._span.set_status(StatusCode.ERROR, str(error))
            self._span.set_attribute("error.type", type(error).__name__)
        self._span.end()
        _work_seconds.record(time.perf_counter() - self._begun, _of_metrics(self._attributes, error))


@contextmanager
def processing(messages: Sequence[Message], group: str) -> Iterator[None]:
    """A span around the processing of messages."""
    work = Processing(messages, group)
    try:
        yield
    except BaseException as error:
        work.end(error)
        raise
    work.end()


@contextmanager
def step_batch(name: str, batch_id: int, headers: Iterable[Mapping[str, str] | None]) -> Iterator[None]:
    """A span around a batch of a step, with links to the origin of its messages."""
    attributes = _attributes("process", "process", (), **{"lockstep.step": name, "lockstep.batch": batch_id})
    links = links_to(headers)
    with _tracer.start_as_current_span(f"process {name}", kind=SpanKind.CONSUMER, attributes=attributes, links=links):
        yield


@contextmanager
def answering(method: str, route: str, headers: Mapping[bytes, bytes], request_id: str) -> Iterator[Span]:
    """A span around a request that a server answers, as a child of the client's span."""
    named = {name: value.decode("latin-1") for name, value in _sent_context(headers).items()}
    attributes = {"http.request.method": method, "http.route": route, "lockstep.request_id": request_id}
    with _tracer.start_as_current_span(
        f"{method} {route}", context=context_of(named), kind=SpanKind.SERVER, attributes=attributes
    ) as span:
        yield span


def _sent_context(headers: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(): headers[name] for name in (b"traceparent", b"tracestate") if name in headers}


def answered(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)


# --- Where spans go -----------------------------------------------------------------------------------------


@contextmanager
def exporting(service: str) -> Iterator[None]:
    """Export spans as the OpenTelemetry variables say (OTEL_EXPORTER_OTLP_ENDPOINT), unless the program has configured
    an exporter itself."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    os.environ.setdefault("OTEL_SERVICE_NAME", service)
    provider = TracerProvider(resource=Resource.create(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def name_span(record: logging.LogRecord) -> bool:
    """A logging filter that adds the current span to every line."""
    spot = trace.get_current_span().get_span_context()
    if spot.is_valid:
        record.trace_id = f"{spot.trace_id:032x}"
        record.span_id = f"{spot.span_id:016x}"
    return True
