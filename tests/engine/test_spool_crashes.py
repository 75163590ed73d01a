"""Processes that are killed while they buffer, drain, set aside and push again lose, double and reorder nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support import spool_crashes

STRIDE = 17
"""Every so many lines are tried here; the script tries all of them without an argument."""


def test_process_that_is_killed_at_any_line_loses_and_doubles_nothing(tmp_path: Path) -> None:
    script = [sys.executable, spool_crashes.__file__, str(tmp_path), str(STRIDE)]
    ended = subprocess.run(script, capture_output=True, text=True, check=True)
    found = json.loads(ended.stdout)
    assert found["wrong"] == []
    assert found["crashes"] > found["lines"] / STRIDE, "each case has been killed at least once"
