"""The example of Declarative Pipelines, run twice: the second run does what is new."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from lockstep.core.messages import Batch, Columns
from support.spark_reads import Producer
from support.spark_writes import problems, stored

pytestmark = [
    pytest.mark.xdist_group("spark-pipelines"),
    pytest.mark.skipif(find_spec("grpc") is None, reason="spark-pipelines needs pyspark[pipelines]"),
]

EXAMPLE = Path(__file__).parents[2] / "examples/declarative"
PROGRAM = Path(pyspark.__file__).parent / "bin/spark-pipelines"


def run(folder: Path, environment: Mapping[str, str]) -> None:
    ended = subprocess.run(
        [str(PROGRAM), "run"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]


def orders(*totals: int, start: int) -> Batch:
    payloads = [b'{"number": %d, "total": %d}' % (number, total) for number, total in enumerate(totals, start)]
    return Batch("orders", "customer-1", Columns(payloads))


def table(folder: Path, name: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(folder / "spark-warehouse" / name).to_pylist()
    return rows


def test_second_run_does_what_is_new(tmp_path: Path, database_dsn: str) -> None:
    folder = tmp_path / "declarative"
    shutil.copytree(EXAMPLE, folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/lockstep-declarative", (tmp_path / "storage").as_uri()))
    environment = {
        "LOCKSTEP_DSN": database_dsn,
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    producer = Producer(database_dsn)
    producer.pushed(orders(120, 80, start=1))
    run(folder, environment)
    assert sorted(row["number"] for row in table(folder, "orders")) == [1, 2]  # type: ignore[type-var]
    producer.pushed(orders(30, 500, start=3))
    producer.close()
    run(folder, environment)
    assert sorted(row["number"] for row in table(folder, "orders")) == [1, 2, 3, 4]  # type: ignore[type-var]
    assert table(folder, "totals") == [{"customer": "customer-1", "orders": 4, "total": 730.0}]
    large = stored(database_dsn, "large-orders")
    assert {name: [one.json()["number"] for one in messages] for name, messages in large.items()} == {
        "customer-1": [1, 4]
    }
    assert problems(database_dsn) == []
