"""OpenTelemetry spans of steps: linked to where their messages come from, and carried by what they push."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lockstep
from lockstep.spark import Pipeline
from support.spans import ids_of, is_linked, one, span_exporter, spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark-pipelines")


def test_context_goes_through_a_step(
    spark: SparkSession, database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_TRACING", "true")
    span_exporter().clear()
    orders = Pipeline("orders")

    @orders.step(source="intake", sink="payment")
    def keeps_headers(df: DataFrame) -> DataFrame:
        return df

    @orders.step(source="intake", sink="audit")
    def drops_headers(df: DataFrame) -> DataFrame:
        return df.drop("headers")

    with lockstep.connect(database_dsn) as client:
        client.push("intake", 1, partition="a", headers={"shop": "berlin"})
        client.push("intake", 2, partition="a")
        orders.run(spark, once=True, dsn=database_dsn, checkpoints=str(tmp_path / "checkpoints"))
        paid, audited = list(client.pop("payment", batch=10)), list(client.pop("audit", batch=10))
    kept, dropped = one("process orders.keeps_headers"), one("process orders.drops_headers")
    assert len(spans("push intake")) == 2
    assert all(is_linked(step, push) for step in (kept, dropped) for push in spans("push intake"))
    assert [message.headers["traceparent"].split("-")[1:3] for message in paid] == [list(ids_of(kept))] * 2
    assert [message.headers.get("shop") for message in paid] == ["berlin", None]
    assert [message.headers["traceparent"].split("-")[1:3] for message in audited] == [list(ids_of(dropped))] * 2
    assert paid[0].trace_id == f"{_uuid(spans('push intake')[0].context.trace_id)}"


def _uuid(number: int) -> str:
    from uuid import UUID

    return str(UUID(int=number))


def test_off_leaves_headers_alone(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    span_exporter().clear()
    orders = Pipeline("orders")

    @orders.step(source="intake", sink="payment")
    def pass_on(df: DataFrame) -> DataFrame:
        return df

    with lockstep.connect(database_dsn) as client:
        client.push("intake", 1, headers={"shop": "berlin"})
        orders.run(spark, once=True, dsn=database_dsn, checkpoints=str(tmp_path / "checkpoints"))
        [paid] = client.pop("payment")
    assert dict(paid.headers) == {"shop": "berlin"}
    assert span_exporter().get_finished_spans() == ()
