"""The password of a DSN is in no plan, and in no error of a read that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import lockstep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "open-sesame-902"


def test_plan_and_error_have_no_password(
    spark: SparkSession, database_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with lockstep.connect(database_dsn) as client:
        client.push("q", 1)
    parts = urlsplit(database_dsn)
    user, _, host = parts.netloc.rpartition("@")
    dsn = parts._replace(netloc=f"{user or 'x'}:{PASSWORD}@{host}").geturl()
    frame = spark.read.format("lockstep").option("dsn", dsn).option("queue", "q").load()
    frame.explain(mode="extended")
    frame.explain(mode="formatted")
    plans = capsys.readouterr().out
    plans += str(frame._jdf.queryExecution().toString())  # type: ignore[operator]
    away = spark.read.format("lockstep").option("dsn", f"postgresql://ann:{PASSWORD}@127.0.0.1:1/db")
    with pytest.raises(Exception) as failed:  # noqa: PT011 - Spark has many, and it is the text that matters
        away.option("queue", "q").load().collect()
    assert "lockstep" in plans.lower()
    assert PASSWORD not in plans
    assert PASSWORD not in str(failed.value)
