"""Commands that run on Spark until they are ended, as programs which may live several times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE_SECONDS = 300


class SparkProgram:
    """A command in a process group of its own."""

    def __init__(self, command: Sequence[object], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-m", "lockstep", *map(str, command)]
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def check_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.said()[-4000:]

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """It ends cleanly, though the whole group gets the signal."""
        assert self._signal(signal.SIGTERM) == 0, self.said()[-4000:]
        # A process of Spark's own that asks a source may find its driver gone first, and says so with a traceback.
        assert "src/lockstep/" not in self.said(), "no traceback of ours"

    def end_and_start(self) -> None:
        self.end()
        self.start()

    def kill_and_start(self) -> None:
        self.kill()
        self.start()

    def _signal(self, number: signal.Signals) -> int:
        assert self._process is not None
        os.killpg(self._process.pid, number)
        return self._process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


class PipelineProgram(SparkProgram):
    """A pipeline that runs until it is ended."""

    def __init__(
        self,
        text: str,
        dsn: str,
        folder: Path,
        *more: object,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`text` is its file."""
        self.dsn = dsn
        file = folder / "orders.py"
        file.write_text(text)
        command = ["pipeline", "run", file, "--dsn", dsn, "--checkpoints", folder / "checkpoints", "--trigger", "100ms"]
        super().__init__([*command, *more], folder / "pipeline.log", environment)
