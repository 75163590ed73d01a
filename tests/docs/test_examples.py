"""The examples run, and say the same on every store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from blocks import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# The last line of each: what it was all about.
ENDS = {
    "groups_and_replay": "reports skipped to the end and reads []",
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
    assert ended.stderr == ""
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
