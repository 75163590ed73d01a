"""The blocks of the guide to metrics, logs and traces do what it says."""

from __future__ import annotations

from typing import Any

from blocks import ROOT, blocks_of

from lockstep.config import Config
from lockstep.engine.tracing import TracedEngine
from lockstep.storage.memory import MemoryStore
from support.serving import serving_engine
from support.spans import is_below, one, span_exporter


def test_trace_leads_from_the_order_to_the_invoice() -> None:
    config = Config(tracing=True)
    span_exporter().clear()
    with serving_engine(TracedEngine(MemoryStore(), config), config) as url:
        names: dict[str, Any] = {"url": url}
        for block in blocks_of(ROOT / "docs/guides/observability.md"):
            exec(block.compile(), names)
    work = one("process orders")
    assert is_below(one("push orders"), one("place order"))
    assert is_below(work, one("push orders"))
    assert is_below(one("push invoices"), work)
