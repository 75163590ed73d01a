"""Shell commands in the documents, executed as they are written, and the answers below them.

A block `sh run` is executed, and `python run` is a program of its own. The blocks of a page run in one bash, in order,
so that one uses the variables of those before it. A block `json answer` has what they print, in part: objects may have
more fields, an empty list stands for any list, and `…` for any text. A block `text answer` is what they print.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blocks import ROOT

SERVER = "http://localhost:6632"
_BLOCK = re.compile(r"^```(sh|python|json|text) (run|answer)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "\x1e"
"""Printed between blocks."""


@dataclass
class Step:
    """Commands, and what is said to come of them."""

    line: int
    commands: str
    language: str
    answer: str | None = None
    kind: str = ""


def steps_of(path: Path) -> list[Step]:
    text = path.read_text(encoding="utf-8")
    steps: list[Step] = []
    for found in _BLOCK.finditer(text):
        language, use, content = found.groups()
        if use == "run":
            steps.append(Step(text.count("\n", 0, found.start()) + 1, content, language))
        else:
            assert steps, "an answer has no commands before it"
            assert steps[-1].answer is None, "two answers to the same commands"
            steps[-1].answer, steps[-1].kind = content, language
    return steps


def script_of(steps: list[Step], url: str) -> str:
    """All steps as one bash script."""
    written = ["set -euo pipefail", "curl() { command curl --silent --show-error --noproxy '*' \"$@\"; }"]
    for step in steps:
        commands = step.commands if step.language == "sh" else f"python - <<'PYTHON'\n{step.commands}PYTHON\n"
        commands = commands.replace(SERVER, url).replace(".venv/bin/lockstep", "lockstep")
        written += [commands, f"printf '{_END}'"]
    return "\n".join(written)


def run(steps: list[Step], url: str, folder: Path) -> list[str]:
    """What each step prints."""
    paths = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    environ = {"PATH": ":".join(paths), "HOME": str(folder), "LOCKSTEP_URL": url, "PYTHONPATH": str(ROOT / "src")}
    command = ["bash", "-c", script_of(steps, url)]
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    said = ended.stdout.split(_END)
    assert ended.returncode == 0, f"line {steps[min(len(said), len(steps)) - 1].line}: {said[-1]}{ended.stderr}"
    return said[:-1]


def values_of(text: str) -> list[Any]:
    """The JSON values in a text, one after the other."""
    values = []
    decoder = json.JSONDecoder()
    rest = text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return values


def fits(expected: Any, actual: Any) -> bool:
    """Whether an answer has all that a document shows of it."""
    if expected == "…":
        return actual is not None
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            name in actual and fits(value, actual[name]) for name, value in expected.items()
        )
    if isinstance(expected, list) and expected:
        return (
            isinstance(actual, list)
            and len(expected) == len(actual)
            and all(fits(one, other) for one, other in zip(expected, actual, strict=True))
        )
    return isinstance(actual, list) if isinstance(expected, list) else expected == actual
