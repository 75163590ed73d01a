"""The commands in the quick start and the guides, typed as they are written, do what the page says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from blocks import DOCUMENTS, ROOT, name_of
from shell import Step, fits, run, steps_of, values_of

from support.server import running_server

PAGES = [path for path in DOCUMENTS if steps_of(path)]


def test_pages_with_commands_are_found() -> None:
    assert {"docs/quick-start.md", "docs/guides/http.md"} <= {name_of(path) for path in PAGES}


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_do_what_the_page_says(path: Path, database_dsn: str, tmp_path: Path) -> None:
    steps = steps_of(path)
    with running_server(database_dsn, tmp_path) as server:
        folder = tmp_path / "home"
        folder.mkdir()
        for step, said in zip(steps, run(steps, server.url, folder), strict=True):
            _check(path, step, said)


def _check(path: Path, step: Step, said: str) -> None:
    where = f"{path.relative_to(ROOT)}:{step.line}"
    if step.language == "python":
        shown = re.findall(r"\bprint\(.*\)  # (.*)$", step.commands, re.MULTILINE)
        assert not shown or said.splitlines() == shown, where
    if step.kind == "text":
        assert said.strip() == (step.answer or "").strip(), where
    elif step.kind == "json":
        expected_values, values = values_of(step.answer or ""), values_of(said)
        assert len(expected_values) == len(values), f"{where}: {said}"
        for shown, value in zip(expected_values, values, strict=True):
            assert fits(shown, value), f"{where}: {value} is not {shown}"


def test_answers_are_compared() -> None:
    assert fits({"a": [{"b": "…"}]}, {"a": [{"b": 1, "c": 2}], "d": 3})
    assert fits({"a": []}, {"a": [1]})
    for wrong in ({"a": 2}, {"a": None}, {}, [1], {"a": [1]}):
        assert not fits({"a": 1}, wrong)
    assert not fits({"a": [1]}, {"a": [1, 2]})
