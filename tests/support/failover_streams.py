"""Spark streams that live through a failover: one driven as Spark does it, without a JVM, and one in a real Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import CheckpointAhead, Unavailable
from lockstep.spark.session import worker_program
from support.embedded_tools import wait_until
from support.spark_driver import kill
from support.spark_reads import Query

_PATIENCE_SECONDS = 240.0
_COMMAND = re.compile(r"run (lockstep streams accept [0-9a-f]+),")


@dataclass(frozen=True)
class ReadBatch:
    """The rows of a batch. It was planned after `began`, and read before `ended`."""

    number: int
    began: float
    ended: float
    rows: list[dict[str, Any]]


class Stream(ABC):
    """A streaming query that keeps what it has read, and stops when its checkpoint is ahead of the database."""

    @property
    @abstractmethod
    def batches(self) -> list[ReadBatch]: ...

    @property
    @abstractmethod
    def refusal(self) -> str | None:
        """What it said when it stopped because it is ahead."""

    @abstractmethod
    def go_on(self) -> None:
        """Start the query again after a refusal."""

    @abstractmethod
    def finish(self) -> list[dict[str, Any]]:
        """Read what is left; all rows that it has ever read. A batch that was read again counts once."""

    @abstractmethod
    def close(self) -> None: ...

    def wait_for_batch(self) -> None:
        """Until it has read something that was planned after this call."""
        now = time.monotonic()
        wait_until(lambda: any(one.began > now and one.rows for one in self.batches), timeout=_PATIENCE_SECONDS)

    def wait_for_start(self) -> None:
        """Until its first batch, which may be empty. Spark takes long to start on a machine that does other things."""
        wait_until(lambda: self.batches, timeout=_PATIENCE_SECONDS)

    def wait_for_refusal(self) -> str:
        """The command that the error names."""
        wait_until(lambda: self.refusal is not None, timeout=_PATIENCE_SECONDS)
        found = _COMMAND.search(self.refusal or "")
        assert found is not None, self.refusal
        return found[1]

    def rows(self) -> list[dict[str, Any]]:
        last = {one.number: one.rows for one in self.batches}
        return [row for rows in last.values() for row in rows]


class BareStream(Stream):
    """Driven by a thread, each batch until it is done, on one checkpoint."""

    def __init__(self, dsn: str, queues: str) -> None:
        self._query = Query(dsn, queue=queues)
        self._batches: list[ReadBatch] = []
        self._refusal: str | None = None
        self._failure: BaseException | None = None
        self._end = threading.Event()
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._end.wait(0.02):
                self._step()
        except CheckpointAhead as error:
            self._refusal = str(error)
        except BaseException as error:
            self._failure = error
            raise

    def _step(self) -> None:
        began, done = time.monotonic(), len(self._query.batches)
        try:
            self._query.step()
        except Unavailable:
            self._query.restart()
        # A batch that is in the checkpoint counts, even if the database went away before its commit was answered.
        for rows in self._query.batches[done:]:
            self._batches.append(ReadBatch(len(self._batches), began, time.monotonic(), rows))

    @property
    def batches(self) -> list[ReadBatch]:
        return list(self._batches)

    @property
    def refusal(self) -> str | None:
        assert self._failure is None, self._failure
        return self._refusal

    def go_on(self) -> None:
        self._thread.join()
        self._refusal = None
        self._query.restart()
        self._start()

    def finish(self) -> list[dict[str, Any]]:
        self._stop()
        assert self.refusal is None
        self._query.restart()
        now = time.monotonic()
        self._batches.append(ReadBatch(len(self._batches), now, now, self._query.drain()))
        return self.rows()

    def _stop(self) -> None:
        self._end.set()
        self._thread.join()

    def close(self) -> None:
        self._stop()
        self._query.close()


class SparkStream(Stream):
    """A query in a Spark of its own (chaos_spark.py)."""

    def __init__(self, dsn: str, queues: str, folder: Path) -> None:
        folder.mkdir()
        self._log = folder / "batches.log"
        self._errors = folder / "spark.err"
        tests = Path(__file__).parents[1]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")},
            "PYTHONPATH": os.pathsep.join(filter(None, [str(tests), os.environ.get("PYTHONPATH", "")])),
            "PYSPARK_PYTHON": worker_program(folder),
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        command = [sys.executable, "-m", "support.chaos_spark", dsn, queues, str(folder / "checkpoint"), str(self._log)]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, env=environment, cwd="/"
            )
        self._went_on = 0
        self._records: list[dict[str, Any]] = []

    def _read(self) -> list[dict[str, Any]]:
        code = self._process.poll()
        assert code in (None, 0), self._errors.read_text()[-4000:]
        lines = self._log.read_bytes().split(b"\n")[:-1] if self._log.exists() else []
        self._records += map(json.loads, lines[len(self._records) :])
        return self._records

    @property
    def batches(self) -> list[ReadBatch]:
        found = [one for one in self._read() if "batch" in one]
        return [ReadBatch(one["batch"], one["began"], one["ended"], one["rows"]) for one in found]

    @property
    def refusal(self) -> str | None:
        refusals: list[str] = [one["ahead"] for one in self._read() if "ahead" in one]
        return refusals[-1] if len(refusals) > self._went_on else None

    def go_on(self) -> None:
        self._went_on += 1
        assert self._process.stdin is not None
        self._process.stdin.write(b"go on\n")
        self._process.stdin.flush()

    def finish(self) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_PATIENCE_SECONDS)
        assert self.refusal is None
        return self.rows()

    def close(self) -> None:
        kill(self._process)
        assert self._process.stdin is not None
        self._process.stdin.close()


def java_is_there() -> bool:
    return shutil.which("java") is not None or "JAVA_HOME" in os.environ
