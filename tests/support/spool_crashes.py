"""Kills a process that buffers and drains at every line of the spool, and looks at what the next process makes of it.

    python spool_crashes.py DIRECTORY [STRIDE [OFFSET]]

A child appends records, drains them, sets one aside that the store refuses, and pushes that again. Every child is
killed by SIGKILL at another line. The next child recovers, and is killed at a line of its own; a third one goes on to
the end.
The script prints how many crashes it made, and what was wrong after which of them, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, cast
from uuid import UUID

import lockstep.engine
from lockstep.config import Config
from lockstep.core.codec import NO_KEYS
from lockstep.core.messages import Batch, Columns, PushResult
from lockstep.core.outage import Drained
from lockstep.engine.arrivals import Arrivals
from lockstep.engine.balancing import Balancing
from lockstep.engine.draining import Draining
from lockstep.engine.spool.contents import contents_of
from lockstep.engine.spool.spool import Spool
from lockstep.errors import QueueFull
from lockstep.storage.base import Store

_ENGINE = str(Path(lockstep.engine.__file__).parent)
_TRACED = (os.path.join(_ENGINE, "spool", ""), os.path.join(_ENGINE, "draining.py"), __file__)
_REFUSED = 2
"""The record that the store refuses until all else is drained."""
_RECORDS = 6

Line = tuple[str, int, int]
"""A line, and the how-manieth time it is run."""


class FileStore:
    """As much of a store as a spool needs; what is committed survives the process."""

    def __init__(self, directory: Path, *, accepts_all: bool) -> None:
        self._accepts_all = accepts_all
        self._database = sqlite3.connect(directory / "store", isolation_level=None, check_same_thread=False)
        self._database.execute("pragma synchronous = off")  # the process is killed, and not the machine
        self._database.execute("create table if not exists spool (id text primary key, place int, aside int)")
        self._database.execute("create table if not exists pushed (number int)")

    async def drain(
        self, spool: UUID, batches: Sequence[Batch], *, start: int, end: int, set_aside: bool = False
    ) -> Drained:
        self._database.execute("begin immediate")
        try:
            return self._drain(str(spool), _numbers(batches), start, end, set_aside)
        except BaseException:
            self._database.execute("rollback")
            raise

    def _drain(self, spool: str, numbers: Sequence[int], start: int, end: int, set_aside: bool) -> Drained:
        row = self._database.execute("select place, aside from spool where id = ?", (spool,)).fetchone()
        place, aside = row or (0, None)
        if place > start:
            self._database.execute("rollback")
            return Drained(place, set_aside_from=aside)
        if _REFUSED in numbers and not self._accepts_all:
            raise QueueFull("full")
        self._database.executemany("insert into pushed values (?)", [(number,) for number in numbers])
        if place < end:
            place, aside = end, start if set_aside else aside
        self._database.execute("insert or replace into spool values (?, ?, ?)", (spool, place, aside))
        self._database.execute("commit")
        return Drained(place, PushResult([], []) if numbers else None, aside)

    def announce(self, arrivals: object) -> None:
        """Nobody listens."""

    def pushed(self) -> list[int]:
        return [row[0] for row in self._database.execute("select number from pushed order by rowid")]


def _numbers(batches: Sequence[Batch]) -> list[int]:
    return [int(bytes(payload)) for batch in batches for payload in batch.columns.payloads]


def _draining(spool: Spool, store: FileStore) -> Draining:
    config = Config(spool_refusal_seconds_max=0)
    whole = cast("Store", store)
    return Draining(spool, whole, config, Balancing(whole, config), Arrivals(whole, config))


def _spool(directory: Path) -> Spool:
    return Spool(directory / "spool", bytes_max=1_000_000, file_bytes=150)


def work(directory: Path) -> None:
    """Buffer, drain, buffer again what was not acknowledged yet, drain, and push what was set aside."""
    store, spool = FileStore(directory, accepts_all=False), _spool(directory)
    draining = _draining(spool, store)
    for half in (range(1, 4), range(4, _RECORDS + 1)):
        for number in half:
            if number > len(_acknowledged(directory)):
                batch = Batch("q", "p", Columns([str(number).encode()]))
                spool.append([contents_of([batch], keys=NO_KEYS, now=datetime.now(UTC))], only_behind=False)
                _acknowledge(directory, number)
        asyncio.run(_to_the_end(draining))
    asyncio.run(_draining(spool, FileStore(directory, accepts_all=True)).retry_rejected())
    spool.close()


async def _to_the_end(draining: Draining) -> None:
    while await draining.run() is not None:
        pass


def _acknowledge(directory: Path, number: int) -> None:
    with (directory / "acknowledged").open("a") as file:
        file.write(f"{number}\n")


def _acknowledged(directory: Path) -> list[str]:
    path = directory / "acknowledged"
    return path.read_text().split() if path.exists() else []


def _wrong(directory: Path) -> str | None:
    """What is wrong once all is done. A record that was not acknowledged was pushed again by its producer, and may be
    there twice: first comes the one that nobody heard of, then the other."""
    store, spool = FileStore(directory, accepts_all=True), _spool(directory)
    pushed = store.pushed()
    left = [path.name for path in spool.directory.iterdir() if path.suffix in (".refused", ".rejected", ".damaged")]
    told = Counter(pushed)
    in_order = [number for number in pushed if number != _REFUSED]
    crashes = len((directory / "crashes").read_text().split())
    repeated = sum(told.values()) - _RECORDS
    if set(told) != set(range(1, _RECORDS + 1)) or repeated > _unheard(directory):
        return f"pushed {pushed} with {crashes} crashes, {_unheard(directory)} of them before an answer"
    if in_order != sorted(in_order):
        return f"order {pushed}"
    if left or spool.gate[0] or spool.counts().messages:
        return f"left {left}, {spool.counts()}"
    return None


def _unheard(directory: Path) -> int:
    """How many crashes may have hit between a write and its answer."""
    return (directory / "crashes").read_text().split().count("append")


class Crash:
    """Kills this process at a line; or counts the lines, if it is given none."""

    def __init__(self, directory: Path, at: Line | None) -> None:
        self._directory = directory
        self._at = at
        self.seen: Counter[tuple[str, int]] = Counter()

    def run(self, body: Callable[[Path], None]) -> None:
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        body(self._directory)
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if event == "call" and frame.f_code.co_filename.startswith(_TRACED) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            self.seen[line] += 1
            if self._at == (*line, self.seen[line]):
                with (self._directory / "crashes").open("a") as file:
                    file.write(("append " if _appends(frame) else "other ") + "\n")
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def _appends(frame: FrameType | None) -> bool:
    """Whether the producer waits for an answer: the frame is below `work`, in `append` or `_acknowledge`."""
    while frame is not None:
        if frame.f_code.co_name in ("append", "_acknowledge", "work"):
            return True
        if frame.f_code.co_name in ("run", "retry_rejected", "run_forever"):
            return False
        frame = frame.f_back
    return False


def _in_child(body: Callable[[], str | None]) -> tuple[bool, str | None]:
    """Whether a child ended by itself, and what it returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(body()).encode())
        except BaseException as error:
            os.write(writing, json.dumps(f"{type(error).__name__}: {error}").encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return bool(said), json.loads(said) if said else None


def _lines(directory: Path) -> list[Line]:
    """All lines that an undisturbed run goes through: the first time, and the last."""

    def body() -> str:
        crash = Crash(directory, None)
        crash.run(work)
        return json.dumps([(*line, time) for line, times in crash.seen.items() for time in sorted({1, times})])

    _, said = _in_child(body)
    return [(name, number, time) for name, number, time in json.loads(said or "[]")]


def _crashed(directory: Path, first: Line, second: Line) -> tuple[int, str | None]:
    """How many children were killed, and what is wrong in the end."""
    killed = 0
    (directory / "crashes").touch()
    for line in (first, second, None):
        ended, said = _in_child(lambda line=line: Crash(directory, line).run(work))  # type: ignore[misc]
        killed += not ended
        if said is not None:
            return killed, said
    _, wrong = _in_child(lambda: _wrong(directory))
    return killed, wrong


def main(directory: Path, stride: int = 1, offset: int = 0) -> None:
    (directory / "first").mkdir()
    lines = _lines(directory / "first")
    killed, wrong = 0, []
    for index in range(offset, len(lines), stride):
        first, second = lines[index], lines[index * 7 % len(lines)]
        place = directory / str(index)
        place.mkdir()
        crashes, found = _crashed(place, first, second)
        killed += crashes
        if found is not None:
            wrong.append([first, second, found])
        shutil.rmtree(place)
    print(json.dumps({"lines": len(lines), "crashes": killed, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *[int(argument) for argument in sys.argv[2:]])
