"""The command line, called in this process or as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner, Result

from lockstep.cli.main import cli

PROGRAM = [sys.executable, "-m", "lockstep"]


@dataclass(frozen=True)
class CommandLine:
    """Runs commands on one target."""

    target: tuple[str, ...] = ()

    def __call__(self, *arguments: str, stdin: str | bytes | None = None, code: int = 0) -> Result:
        """The command's result, with this exit code."""
        result = CliRunner().invoke(cli, [*self.target, *arguments], input=stdin)
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, stdin: str | None = None, code: int = 0) -> Any:
        return json.loads(self(*arguments, "-o", "json", stdin=stdin, code=code).stdout)

    def ndjson(self, *arguments: str, stdin: str | None = None) -> list[Any]:
        return [json.loads(line) for line in self(*arguments, "-o", "ndjson", stdin=stdin).stdout.splitlines()]


def run_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False, **options)
