"""The example of orders: run once on what was pushed, as its README says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import connect, new_message

pytestmark = pytest.mark.xdist_group("spark-pipelines")

ROOT = Path(__file__).parents[3]


def test_orders_go_to_the_warehouse_and_bad_ones_to_the_dead_letters(database_dsn: str, tmp_path: Path) -> None:
    with connect(database_dsn) as client:
        ordered = [(1, "lamp", 10), (2, "gift", 0), (3, "table", 100)]
        client.push_many(
            [
                new_message("example.orders", {"number": number, "item": item, "total": total}, partition="ann")
                for number, item, total in ordered
            ]
        )
        command = [sys.executable, "-m", "lockstep", "pipeline", "run", "examples/orders/pipeline.py", "--once"]
        command += ["--dsn", database_dsn, "--checkpoints", str(tmp_path / "checkpoints")]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
        for queue in ("example.warehouse", "example.mails"):
            told = client.pop(queue, batch=10)
            assert [(one.payload["item"], one.payload["gross"]) for one in told] == [("lamp", 11.9), ("table", 119.0)]
        [letter] = client.dead_letters(queue="example.orders").items
        assert (letter.message.json()["item"], letter.error) == ("gift", "an order must cost something")
        [first, *_] = client.pop("example.charged", group="test", batch=1)
        assert {message.queue for message in client.trace(first.trace_id)} == {
            "example.checked",
            "example.charged",
            "example.warehouse",
            "example.mails",
        }
