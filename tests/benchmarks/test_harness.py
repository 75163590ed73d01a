"""The arithmetic of the benchmarks: bars, ratios, percentiles, tables and result files."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import CALLERS, Bar, Measurement, Outcome, Side, Slice, Table


def slice_of(messages: int, *, seconds: float = 1.0, wal_bytes: int = 0, cpu_seconds: float = 0.0) -> Slice:
    return Slice(messages, seconds, [0.001, 0.002], wal_bytes, cpu_seconds)


async def no_wal() -> int:
    return 0


@pytest.mark.parametrize(("value", "ok"), [(4.9, False), (5.0, True), (5.1, True)])
def test_bar_at_least(value: float, ok: bool) -> None:
    bar = Bar.at_least("push", value, 5.0)
    assert (bar.ok, bar.target, bar.name) == (ok, 5.0, "push, at least")


@pytest.mark.parametrize(("value", "ok"), [(79.0, True), (80.0, True), (80.1, False)])
def test_bar_at_most(value: float, ok: bool) -> None:
    assert Bar.at_most("WAL", value, 80.0).ok is ok


def test_value_that_is_no_number_reaches_no_bar() -> None:
    assert not Bar.at_least("push", float("nan"), 0.0).ok
    assert not Bar.at_most("push", float("nan"), 9.0).ok


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 5.0), (90, 9.0), (99, 10.0), (100, 10.0)])
def test_percentile(percent: float, expected: float) -> None:
    assert harness.percentile([float(number) for number in range(10, 0, -1)], percent) == expected


def test_percentile_of_nothing_fails() -> None:
    with pytest.raises(ValueError, match="nothing"):
        harness.percentile([], 50)


def test_measurement_takes_medians_so_that_one_bad_slice_does_not_count() -> None:
    slices = [
        slice_of(100, wal_bytes=5_000, cpu_seconds=0.01),
        slice_of(300, seconds=2.0, wal_bytes=15_000, cpu_seconds=0.03),
        slice_of(1, wal_bytes=1_000_000, cpu_seconds=0.9),
    ]
    row = Measurement("push", slices, ratios=[2.0, 9.0, 3.0]).row()
    assert row["messages_per_second"] == 100
    assert row["wal_bytes_per_message"] == 50
    assert row["client_cpu_us_per_message"] == 100
    assert row["ratio"] == 3.0
    assert (row["calls"], row["p50_ms"], row["p99_ms"]) == (6, 1.0, 2.0)


async def test_measure_counts_what_all_callers_moved() -> None:
    wal = itertools.count(1000, 500)

    async def read_wal() -> int:
        return next(wal)

    calls: list[int] = []

    async def work(caller: int) -> int:
        await asyncio.sleep(0)
        calls.append(caller)
        return 10

    measured = await harness.measure(Side("work", work), 0.01, read_wal)
    assert set(calls) == set(range(CALLERS))
    assert measured.messages == 10 * len(calls) == 10 * len(measured.latencies)
    assert measured.wal_bytes == 500


async def test_measure_ends_when_there_is_nothing_left() -> None:
    left = 7

    async def work(_caller: int) -> int:
        nonlocal left
        left -= 1
        return int(left >= 0)

    assert (await harness.measure(Side("work", work), 60, no_wal)).messages == 7


async def test_measure_of_nothing_fails() -> None:
    async def work(_caller: int) -> int:
        return 0

    with pytest.raises(RuntimeError, match="idle: no message"):
        await harness.measure(Side("idle", work), 0.01, no_wal)


async def test_compare_relates_each_slice_to_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    # An unmeasured slice of each, then base, push, base, push, base.
    rates = iter([1, 1, 100, 450, 200, 900, 100])

    async def measure(side: Side, _seconds: float, _wal: harness.ReadWal) -> Slice:
        order.append(side.name)
        return slice_of(next(rates))

    monkeypatch.setattr(harness, "measure", measure)
    sides = [Side(name, lambda _caller: no_wal()) for name in ("plain", "push")]
    base, push = await harness.compare(sides[0], sides[1:], rounds=2, seconds=1, wal=no_wal)
    assert order == ["plain", "push", "plain", "push", "plain", "push", "plain"]
    assert push.ratios == [pytest.approx(3.0), pytest.approx(6.0)]
    assert push.ratio == pytest.approx(4.5)
    assert (base.rate, base.ratio) == (100, 1.0)


def test_table_aligns_numbers_and_leaves_lists_out() -> None:
    rows = [
        {"name": "plain INSERT", "messages_per_second": 1234567, "ratios": [1.0], "p50_ms": 0.5},
        {"name": "push", "messages_per_second": 89, "ratios": [2.0], "p50_ms": 1234.5},
    ]
    assert harness.render(Table("Push", rows)).splitlines() == [
        "Push",
        "  name              msg/s    p50 ms",
        "  plain INSERT  1,234,567      0.50",
        "  push                 89  1,234.50",
    ]


def test_report_prints_and_writes_the_bars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    bars = [Bar.at_least("push", 6.0, 5.0), Bar.at_most("WAL", 90.0, 80.0)]
    outcomes = {"push": Outcome([Table("Push", [{"name": "push", "messages_per_second": 1}])], bars)}
    assert harness.report("some", outcomes, environment={"cpus": 2}) == bars
    printed = capsys.readouterr().out
    assert "MISSED  WAL, at most" in printed
    assert "cpus 2" in printed
    written = json.loads((tmp_path / "results" / "some.json").read_text())
    assert written["environment"] == {"cpus": 2}
    assert written["measurements"]["push"][0]["rows"] == [{"name": "push", "messages_per_second": 1}]
    assert written["bars"] == [
        {"name": "push, at least", "value": 6.0, "target": 5.0, "ok": True},
        {"name": "WAL, at most", "value": 90.0, "target": 80.0, "ok": False},
    ]
