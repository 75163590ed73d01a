"""The OpenTelemetry spans of this process. It takes a provider only once, so all tests share this one."""

from __future__ import annotations

from functools import cache

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@cache
def span_exporter() -> InMemorySpanExporter:
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


def spans(name: str) -> list[ReadableSpan]:
    return [span for span in span_exporter().get_finished_spans() if span.name == name]


def one(name: str) -> ReadableSpan:
    [found] = spans(name)
    return found


def is_below(child: ReadableSpan, parent: ReadableSpan) -> bool:
    return child.parent is not None and (child.parent.trace_id, child.parent.span_id) == (
        parent.context.trace_id,
        parent.context.span_id,
    )


def is_linked(span: ReadableSpan, to: ReadableSpan) -> bool:
    return (to.context.trace_id, to.context.span_id) in {
        (link.context.trace_id, link.context.span_id) for link in span.links
    }


def ids_of(span: ReadableSpan) -> tuple[str, str]:
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
