"""What every benchmark shares: bars, alternating measurement, tables and the result file.

The machines that this runs on are noisy, so two things are compared in alternating short slices, and what counts
is the median of the ratios of neighbouring slices, not the ratio of two long measurements.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median
from typing import Any

RESULTS = Path(__file__).parent / "results"
CALLERS = 4


_began = time.monotonic()


def progress(text: str) -> None:
    """A line for people who wait, with the seconds since the start."""
    print(f"{time.monotonic() - _began:6.1f}  {text}", file=sys.stderr, flush=True)


# --- Bars -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """A value that has to be reached. Its name says in which direction."""

    name: str
    value: float
    target: float
    ok: bool

    @classmethod
    def at_least(cls, name: str, value: float, target: float) -> Bar:
        return cls(f"{name}, at least", value, target, value >= target)

    @classmethod
    def at_most(cls, name: str, value: float, target: float) -> Bar:
        return cls(f"{name}, at most", value, target, value <= target)


# --- Measuring --------------------------------------------------------------------------------------------

ReadWal = Callable[[], Awaitable[int]]
"""How many bytes of WAL the server has written since it was made."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the things that are compared."""

    name: str
    work: Callable[[int], Awaitable[int]]
    """One call by the caller of that number; returns how many messages it moved, 0 when there are none left."""
    prepare: Callable[[float], Awaitable[None]] | None = None
    """Makes ready for a slice of so many seconds; not measured."""
    callers: int = CALLERS


@dataclass(frozen=True, slots=True)
class Slice:
    """A short stretch of one side at work."""

    messages: int
    seconds: float
    latencies: list[float]
    wal_bytes: int
    cpu_seconds: float
    """Of this process, so without the database."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


@dataclass(slots=True)
class Measurement:
    """All slices of one side."""

    name: str
    slices: list[Slice] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """Of each slice to the mean of the base's slices before and after it; empty for the base itself."""

    @property
    def rate(self) -> float:
        return median(each.rate for each in self.slices)

    @property
    def ratio(self) -> float:
        return median(self.ratios) if self.ratios else 1.0

    @property
    def wal_bytes_per_message(self) -> float:
        return median(each.wal_bytes / max(each.messages, 1) for each in self.slices)

    @property
    def cpu_us_per_message(self) -> float:
        return median(1e6 * each.cpu_seconds / max(each.messages, 1) for each in self.slices)

    def latency_ms(self, percent: float) -> float:
        return 1000 * percentile([x for each in self.slices for x in each.latencies], percent)

    def row(self) -> dict[str, Any]:
        """What the table and the result file show."""
        return {
            "name": self.name,
            "messages_per_second": round(self.rate),
            "ratio": round(self.ratio, 3),
            "ratios": [round(ratio, 3) for ratio in self.ratios],
            "calls": sum(len(each.latencies) for each in self.slices),
            "p50_ms": round(self.latency_ms(50), 3),
            "p99_ms": round(self.latency_ms(99), 3),
            "wal_bytes_per_message": round(self.wal_bytes_per_message, 1),
            "client_cpu_us_per_message": round(self.cpu_us_per_message, 3),
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of the values do not exceed."""
    if not values:
        raise ValueError("there is no percentile of nothing")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


async def measure(side: Side, seconds: float, wal: ReadWal) -> Slice:
    """Let the callers work for that long, all at once; a call that was begun is finished and counted."""
    if side.prepare is not None:
        await side.prepare(seconds)
    gc.collect()
    wal_before, cpu_before = await wal(), time.process_time()
    began = time.perf_counter()
    deadline = began + seconds
    counts = await asyncio.gather(*[_calls(side, caller, deadline) for caller in range(side.callers)])
    elapsed = time.perf_counter() - began
    cpu = time.process_time() - cpu_before
    latencies = [latency for _, each in counts for latency in each]
    messages = sum(count for count, _ in counts)
    if not messages:
        raise RuntimeError(f"{side.name}: no message was moved")
    return Slice(messages, elapsed, latencies, await wal() - wal_before, cpu)


async def _calls(side: Side, caller: int, deadline: float) -> tuple[int, list[float]]:
    messages = 0
    latencies: list[float] = []
    began = time.perf_counter()
    while began < deadline:
        count = await side.work(caller)
        if not count:
            break
        ended = time.perf_counter()
        messages += count
        latencies.append(ended - began)
        began = ended
    return messages, latencies


async def compare(
    base: Side, others: Sequence[Side], *, rounds: int, seconds: float, wal: ReadWal
) -> list[Measurement]:
    """Measure the base before and after each slice of every other side; the base's measurement comes first.

    An unmeasured slice of every side comes before all, because connections, plans and caches warm up in it, and
    because pages that are touched for the first time since a checkpoint are written to the WAL whole.
    """
    # The prepared input is no garbage and no part of what is measured: the collector need not look at it.
    gc.collect()
    gc.freeze()
    for side in (base, *others):
        await measure(side, seconds / 2, wal)
    of_base = Measurement(base.name, [await measure(base, seconds, wal)])
    measured = [Measurement(side.name) for side in others]
    for number in range(1, rounds + 1):
        for side, of_side in zip(others, measured, strict=True):
            of_side.slices.append(await measure(side, seconds, wal))
            of_base.slices.append(await measure(base, seconds, wal))
            of_side.ratios.append(_ratio(of_side.slices[-1], of_base.slices[-2:]))
            shown = f"{of_side.slices[-1].rate:12,.0f} /s {of_side.ratios[-1]:6.2f} x"
            progress(f"  {number}/{rounds}  {side.name:44} {shown}")
    gc.unfreeze()
    return [of_base, *measured]


def _ratio(slice_: Slice, neighbours: Sequence[Slice]) -> float:
    return slice_.rate / mean(each.rate for each in neighbours)


# --- Output -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind, for people and for the result file."""

    title: str
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario found out."""

    tables: list[Table]
    bars: list[Bar] = field(default_factory=list)


_HEADINGS = {
    "messages_per_second": "msg/s",
    "ratio": "x plain",
    "times_direct": "x direct",
    "wal_bytes_per_message": "WAL B/msg",
    "client_cpu_us_per_message": "our CPU µs/msg",
}
_HIDDEN = {"ratios"}


def render(table: Table) -> str:
    """The table as text: the first column to the left, numbers to the right, lists left out."""
    if not table.rows:
        return table.title
    columns = [key for key in table.rows[0] if key not in _HIDDEN]
    lines = [[_HEADINGS.get(key, key.replace("_", " ")) for key in columns]]
    lines += [[_shown(row.get(key)) for key in columns] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for first, *rest in lines:
        cells = [first.ljust(widths[0]), *[c.rjust(w) for c, w in zip(rest, widths[1:], strict=True)]]
        texts.append("  " + "  ".join(cells).rstrip())
    return "\n".join([table.title, *texts])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value or "")


def render_bars(bars: Sequence[Bar]) -> str:
    if not bars:
        return "No bars"
    width = max(len(bar.name) for bar in bars)
    lines = [
        f"  {'ok    ' if bar.ok else 'MISSED'}  {bar.name:{width}} {bar.target:8g}: {bar.value:8.2f}" for bar in bars
    ]
    return "\n".join(["Bars", *lines])


def report(name: str, outcomes: Mapping[str, Outcome], *, environment: Mapping[str, Any]) -> list[Bar]:
    """Print everything, write it to `results/<name>.json`, and return the bars."""
    bars = [bar for outcome in outcomes.values() for bar in outcome.bars]
    print("\n" + ", ".join(f"{key} {value}" for key, value in environment.items()))
    for outcome in outcomes.values():
        for table in outcome.tables:
            print("\n" + render(table))
    print("\n" + render_bars(bars), flush=True)
    written = write(name, outcomes, bars, environment)
    progress(f"written to {written}")
    return bars


def write(name: str, outcomes: Mapping[str, Outcome], bars: Sequence[Bar], environment: Mapping[str, Any]) -> Path:
    measurements = {scenario: [asdict(table) for table in outcome.tables] for scenario, outcome in outcomes.items()}
    result = {
        "benchmark": name,
        "environment": dict(environment),
        "measurements": measurements,
        "bars": [asdict(bar) for bar in bars],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path


def environment() -> dict[str, Any]:
    """Where and when this runs; a benchmark adds what else matters to it."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
