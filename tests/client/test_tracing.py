"""OpenTelemetry over real HTTP, with real workers: which spans there are, and how they belong together."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import lockstep
from lockstep.config import Config
from lockstep.core.messages import Batch
from lockstep.engine.engine import Engine
from lockstep.engine.tracing import TracedEngine
from lockstep.storage.memory import MemoryStore
from support.http import Http
from support.server import running_server
from support.serving import serving_engine
from support.spans import ids_of, is_below, is_linked, one, span_exporter, spans

CONFIG = Config(tracing=True)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Empty at first."""
    span_exporter().clear()
    return span_exporter()


@pytest.fixture(scope="session")
def reader() -> InMemoryMetricReader:
    made = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([made]))
    return made


@pytest.fixture
def url(exporter: InMemorySpanExporter) -> Iterator[str]:
    """A server that traces."""
    with serving_engine(TracedEngine(MemoryStore(), CONFIG), CONFIG) as made:
        exporter.clear()
        yield made


@pytest.fixture
def plain_url(exporter: InMemorySpanExporter) -> Iterator[str]:
    """A server that does not."""
    with serving_engine(Engine(MemoryStore(), Config()), Config()) as made:
        exporter.clear()
        yield made


def named_in(message: Any) -> tuple[str, str]:
    """Trace and span in the headers of a message."""
    _, trace_id, span_id, _ = message.headers["traceparent"].split("-")
    return trace_id, span_id


def root(name: str = "order placed") -> Any:
    return trace.get_tracer("tests").start_as_current_span(name)


def test_from_the_producer_through_the_server_to_the_worker(url: str) -> None:
    trace_ids = []
    with lockstep.connect(url, tracing=True) as client:
        with root():
            client.push("orders", {"id": 1}, partition="berlin")

        @client.worker("orders", group="billing")
        def handle(message: Any) -> None:
            with root("charge"):
                trace_ids.append(message.trace_id)
            client.stop()

        client.run(stop_on_signals=False)
    placed, push, work = one("order placed"), one("push orders"), one("process orders")
    assert is_below(push, placed)
    assert is_below(one("POST /api/v1/push"), push)
    assert is_below(work, push)
    assert is_below(one("charge"), work)
    assert is_linked(one("pop orders"), push)
    assert (push.kind, work.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert one("POST /api/v1/push").kind is SpanKind.SERVER
    assert trace_ids == [str(UUID(int=push.context.trace_id))]
    assert dict(push.attributes or {}) == {
        "messaging.system": "lockstep",
        "messaging.operation.name": "push",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 1,
    }
    found = dict(work.attributes or {})
    assert UUID(found.pop("messaging.message.id"))
    assert found == {
        "messaging.system": "lockstep",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "berlin",
        "messaging.consumer.group.name": "billing",
        "messaging.message.body.size": len('{"id":1}'),
        "lockstep.seq": 1,
        "lockstep.attempt": 1,
        "lockstep.trace_id": trace_ids[0],
    }
    assert [span.attributes["messaging.operation.type"] for span in spans("ack") if span.attributes]


async def test_asyncio_client(url: str) -> None:
    async with lockstep.connect_async(url, tracing=True) as client:
        with root():
            await client.push("orders", 1)

        @client.worker("orders")
        async def handle(message: Any) -> None:
            await client.push("invoices", message.payload)
            client.stop()

        await client.run(stop_on_signals=False)
    work = one("process orders")
    assert is_below(work, one("push orders"))
    assert is_below(one("push invoices"), work)
    assert len({span.context.trace_id for span in (work, one("order placed"))}) == 1


def test_error_of_a_handler_is_in_its_span(url: str) -> None:
    with lockstep.connect(url, tracing=True) as client:
        client.push("orders", 1)

        @client.worker("orders")
        def handle(_: Any) -> None:
            client.stop()
            raise ValueError("no stock")

        client.run(stop_on_signals=False)
    work = one("process orders")
    assert work.status.status_code is StatusCode.ERROR
    assert (work.attributes or {})["error.type"] == "ValueError"
    assert [event.name for event in work.events] == ["exception"]


def test_worker_for_whole_deliveries_links_to_each_message(url: str) -> None:
    with lockstep.connect(url, tracing=True) as client:
        client.push("orders", 1)
        client.push("orders", 2)

        @client.worker("orders", whole=True)
        def handle(_: Any) -> None:
            client.stop()

        client.run(stop_on_signals=False)
    work = one("process orders")
    assert all(is_linked(work, push) for push in spans("push orders"))
    assert (work.attributes or {})["messaging.batch.message_count"] == 2


def test_loop_over_messages_has_a_span_for_each(url: str) -> None:
    with lockstep.connect(url, tracing=True) as client:
        for number in range(3):
            client.push("orders", number)
        with client.consume("orders", idle_timeout_seconds=0.05) as messages:
            for message in messages:
                with root(f"work {message.payload}"):
                    pass
    works = spans("process orders")
    assert len(works) == 3
    assert all(is_below(work, push) for work, push in zip(works, spans("push orders"), strict=True))
    assert all(is_below(one(f"work {number}"), works[number]) for number in range(3))
    assert not trace.get_current_span().get_span_context().is_valid


def test_error_in_a_loop_is_in_the_span(url: str) -> None:
    with lockstep.connect(url, tracing=True) as client:
        client.push("orders", 1)

        def work() -> None:
            with client.consume("orders") as messages:
                for _ in messages:
                    raise ValueError("no stock")

        with pytest.raises(ValueError, match="no stock"):
            work()
    assert one("process orders").status.status_code is StatusCode.ERROR


def test_background_producer_has_a_span_for_each_message(url: str) -> None:
    with lockstep.connect(url, tracing=True) as client:
        with root(), client.producer("orders", linger_seconds=5) as producer:
            producer.push(1)
            producer.push(2, headers={"shop": "1"})
        messages = list(client.pop("orders", batch=10))
    created, placed = spans("create orders"), one("order placed")
    assert all(is_below(span, placed) for span in created)
    assert all(is_linked(push, span) for push in spans("push orders") for span in created)
    assert [named_in(message) for message in messages] == [ids_of(span) for span in created]
    assert messages[1].headers["shop"] == "1"


def test_batches_and_transactions_carry_the_context(url: str) -> None:
    given = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    with lockstep.connect(url, tracing=True) as client:
        headers = [None, b'{"a":"b"}', json.dumps({"traceparent": given}).encode()]
        client.push_many([Batch.of("orders", [b"1", b"2", b"3"], headers=headers)])
        first = client.pop("orders", batch=3)
        with client.transaction() as transaction:
            transaction.ack(first)
            transaction.push("invoices", 1)
        [invoice] = client.pop("invoices")
    push = one("push orders")
    assert [named_in(message) for message in first] == [*[ids_of(push)] * 2, ("a" * 32, "b" * 16)]
    assert first[1].headers["a"] == "b"
    sent = one("transaction invoices")
    assert named_in(invoice) == ids_of(sent)


def test_client_without_tracing_is_traced_from_the_server_on(url: str) -> None:
    http = Http(url)
    http.push("orders", 1)
    upstream = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    body = b'{"items": [{"queue": "orders", "payload": 2}]}'
    http.send("POST", "/api/v1/push", body, {"traceparent": upstream})
    with lockstep.connect(url) as client:
        alone, below = client.pop("orders", batch=2)
    first, second = spans("POST /api/v1/push")
    assert named_in(alone) == ids_of(first)
    assert named_in(below) == ids_of(second)
    assert ids_of(second)[0] == "a" * 32
    assert below.trace_id == str(UUID("a" * 32))
    assert (first.attributes or {})["http.response.status_code"] == 201


def test_trace_context_that_is_not_one_is_ignored(url: str) -> None:
    with lockstep.connect(url, tracing=True) as client:
        client.push("orders", 1, headers={"traceparent": "nonsense"})

        @client.worker("orders")
        def handle(_: Any) -> None:
            client.stop()

        client.run(stop_on_signals=False)
    assert one("process orders").parent is None


def test_database_without_a_server(exporter: InMemorySpanExporter) -> None:
    exporter.clear()
    with lockstep.connect("memory://", tracing=True) as client:
        client.push("orders", 1)
        [message] = client.pop("orders")
    push = one("push orders")
    assert named_in(message) == ids_of(push)


def test_metrics_have_the_names_of_the_conventions(url: str, reader: InMemoryMetricReader) -> None:
    with lockstep.connect(url, tracing=True) as client:
        client.push("counted", 1)

        @client.worker("counted")
        def handle(_: Any) -> None:
            client.stop()

        client.run(stop_on_signals=False)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: {
            point.attributes["messaging.operation.name"]
            for point in metric.data.data_points
            if (point.attributes or {}).get("messaging.destination.name") == "counted"
        }
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found["messaging.client.sent.messages"] == {"push"}
    assert found["messaging.client.consumed.messages"] == {"pop"}
    assert found["messaging.client.operation.duration"] == {"push", "pop"}
    assert found["messaging.process.duration"] == {"process"}


def test_nothing_happens_while_it_is_off(plain_url: str, exporter: InMemorySpanExporter) -> None:
    with lockstep.connect(plain_url) as client:
        with root():
            client.push("orders", 1)
        [message] = client.pop("orders")
    assert (dict(message.headers), message.trace_id) == ({}, None)
    assert [span.name for span in exporter.get_finished_spans()] == ["order placed"]


_OFF = """
import sys, lockstep
from lockstep.server import serving
with lockstep.connect("memory://") as client:
    client.push("q", 1)
print([name for name in sys.modules if name.startswith("opentelemetry") or name.endswith("tracing")])
"""
_MISSING = """
import sys
sys.modules["opentelemetry"] = None
import lockstep
try:
    lockstep.connect("memory://", tracing=True)
except lockstep.errors.InvalidOption as error:
    print(error)
"""


def _printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_off_means_that_nothing_of_it_is_loaded() -> None:
    assert _printed(_OFF) == "[]"


def test_missing_extra_is_named() -> None:
    assert "pip install 'lockstep[otel]'" in _printed(_MISSING)


class _Collector(BaseHTTPRequestHandler):
    received: list[ExportTraceServiceRequest]
    arrived: threading.Event

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.received.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()
        self.arrived.set()

    def log_message(self, *_: object) -> None:
        pass


def test_server_process_sends_its_spans_to_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Collector", (_Collector,), {"received": [], "arrived": threading.Event()})
    with HTTPServer(("127.0.0.1", 0), kind) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        with running_server("memory://", tmp_path, tracing=True, log_level="debug", log_format="json") as server:
            Http(server.url).push("orders", 1)
            assert server.stop() == 0  # which sends what is left
        collector.shutdown()
        thread.join()
    found = [
        (span.name, attribute.value.string_value)
        for request in kind.received
        for resource in request.resource_spans
        for attribute in resource.resource.attributes
        if attribute.key == "service.name"
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert ("POST /api/v1/push", "lockstep-server") in found
    lines = [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines() if line.startswith("{")]
    [pushed] = [line for line in lines if line.get("route") == "/api/v1/push"]
    assert len(pushed["trace_id"]) == 32
    assert len(pushed["span_id"]) == 16
