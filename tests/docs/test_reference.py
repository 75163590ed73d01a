"""The generated pages are those that the code generates."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from blocks import ROOT

GENERATOR = ROOT / "tools/reference"


def generate(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(root / "tools/reference"), *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_reference_is_up_to_date() -> None:
    checked = generate("--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_stale_page_is_named_and_not_changed_by_a_check(tmp_path: Path) -> None:
    for folder in ("tools", "docs/reference", "src/lockstep/storage/postgres/sql", "tests/storage/postgres/snapshots"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    stale = tmp_path / "docs/reference/settings.md"
    stale.write_text("# Settings of yesterday\n")
    checked = generate("--check", root=tmp_path)
    assert checked.returncode == 1
    assert checked.stdout == "docs/reference/settings.md is out of date: run tools/reference\n"
    assert stale.read_text() == "# Settings of yesterday\n"
    assert generate(root=tmp_path).returncode == 0
    assert stale.read_text() == (ROOT / "docs/reference/settings.md").read_text()
