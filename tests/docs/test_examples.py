"""The examples run, and say the same on every store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from blocks import ROOT

EXAMPLES = [
    *sorted((ROOT / "examples").glob("*.py")),
    *(ROOT / f"examples/{name}.py" for name in ("agents/agents", "cron/jobs", "devices/devices")),
]
"""Those that are applications have tests in tests/e2e/test_example_apps.py, those on Spark in tests/spark."""

# The last line of each: what it was all about.
ENDS = {
    "agents": "cleo: hello to you, thanks to you",
    "devices": "fridge: minute 0, 5.0 degrees",
    "groups_and_replay": "reports skipped to the end and reads []",
    "jobs": "left: []",
    "outbox": "messages: lamp, table",
    "quickstart": "nothing is left",
    "retries_and_dead_letters": "bad: done",
    "trace": "  example.shipped: forwarded, pending",
}


def said_by(example: Path, *arguments: str) -> list[str]:
    """What the example prints."""
    program = [sys.executable, "-W", "error", str(example), *arguments]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    # A busy machine makes queries slow. A worker warns of a handler that fails, and in two examples one does.
    warnings = [line for line in ended.stderr.splitlines() if "[query_slow " not in line]
    if example.stem in ("agents", "jobs"):
        warnings = [line for line in warnings if not line.startswith("WARNING lockstep.client: The handler")]
    assert warnings == []
    return ended.stdout.splitlines()


def test_every_example_has_an_expected_end() -> None:
    assert {path.stem for path in EXAMPLES} == set(ENDS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_says_the_same_on_every_store_and_again(example: Path, database_dsn: str) -> None:
    said = said_by(example, database_dsn)
    assert said[-1] == ENDS[example.stem]
    assert said_by(example, database_dsn) == said
    # Without an address: the memory store, or an embedded PostgreSQL.
    assert said_by(example) == said
