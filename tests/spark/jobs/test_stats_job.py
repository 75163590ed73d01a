"""Statistics: what the windows count, that they lose nothing when they are computed again, and the report."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from lockstep.core.policy import queue_options
from lockstep.core.records import Ack
from lockstep.errors import InvalidOption, QueueNotFound
from lockstep.spark.database import Access
from lockstep.spark.jobs import report, stats
from lockstep.spark.jobs.report import ReportSpan, StatWindow
from lockstep.spark.jobs.stats import CURSORS, SAMPLES, StatsOptions
from lockstep.storage.postgres.store import PostgresStore
from support.builders import pop, push_n

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

NOW = datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC)
START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def second(number: float) -> datetime:
    return START + timedelta(seconds=number)


def messages(spark: SparkSession, *rows: tuple[str, float, str | None]) -> DataFrame:
    """By queue, second and trace."""
    full = [(queue, second(at), trace) for queue, at, trace in rows]
    return spark.createDataFrame(full, "queue string, created_at timestamp, trace_id string")


def rows(found: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """With the second at which the window began."""
    from pyspark.sql import functions as sf

    begun = (sf.unix_seconds("window_start") - int(START.timestamp())).alias("begun")
    names = ["queue", "group_name", *columns]
    return sorted(tuple(row) for row in found.select(begun, *names).collect())


def test_messages_are_counted_by_window(spark: SparkSession) -> None:
    given = messages(spark, ("q", 0, None), ("q", 59.9, None), ("q", 60, None), ("r", 61, None))
    assert rows(stats.pushed(given, 60), "pushed") == [(0, "q", "", 2), (60, "q", "", 1), (60, "r", "", 1)]


def test_age_of_a_trace_is_that_of_its_later_messages(spark: SparkSession) -> None:
    given = messages(spark, ("a", 0, "t"), ("b", 2, "t"), ("c", 70, "t"), ("b", 5, "u"), ("b", 6, None))
    found = rows(stats.trace_ages(given, 60), "trace_samples", "trace_seconds_p50", "trace_seconds_max")
    assert found == [(0, "b", "", 1, 2.0, 2.0), (60, "c", "", 1, 70.0, 70.0)]


def test_what_a_sample_counts_is_dealt_out_to_the_windows_that_it_spans(spark: SparkSession) -> None:
    given = [("q", second(70), 60.0, 7, 3, 1.5), ("q", second(75), 5.0, 2, 0, 0.0), ("r", second(5), 0.0, 1, 0, 0.0)]
    columns = [pa.array([row[i] for row in given], field.type) for i, field in enumerate(SAMPLES)]
    samples = spark.createDataFrame(pa.Table.from_arrays(columns, schema=SAMPLES))
    found = rows(stats.joined([stats.sampled(samples, 10)]), "completed", "pending", "lag_seconds")
    assert found == [
        (0, "r", "", 1, 0, 0.0),
        *((10 * number, "q", "", 1, None, None) for number in range(1, 6)),
        (60, "q", "", 2, None, None),
        (70, "q", "", 2, 3, 1.5),
    ]


def test_latency_and_backlog_are_of_the_cursors(spark: SparkSession) -> None:
    given = [
        ("q", "g", second(10), second(4), 0, None, 0),
        ("q", "g", second(20), second(10), 3, second(15), 2),
        ("q", "g", None, None, 5, second(25), 0),
        ("q", "h", second(70), second(69), 0, None, 0),
    ]
    columns = [pa.array([row[i] for row in given], field.type) for i, field in enumerate(CURSORS)]
    cursors = spark.createDataFrame(pa.Table.from_arrays(columns, schema=CURSORS))
    found = rows(stats.latencies(cursors, 60), "latency_samples", "latency_seconds_p50", "latency_seconds_max")
    assert found == [(0, "q", "g", 2, 8.0, 10.0), (60, "q", "h", 1, 1.0, 1.0)]
    found = rows(stats.backlog(cursors, NOW, 60), "pending", "lag_seconds", "attempts_max")
    assert found == [(0, "q", "g", 8, 15.0, 2), (0, "q", "h", 0, 0.0, 0)]


def stored_windows(dsn: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By queue and group, where there is one window of each."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        found = connection.execute("select * from lockstep.stat_window").fetchall()
    assert len({(row["queue"], row["group_name"]) for row in found}) == len(found)
    return {(row["queue"], row["group_name"]): row for row in found}


async def test_windows_are_written_and_lose_nothing(spark: SparkSession, database_dsn: str) -> None:
    store = PostgresStore(database_dsn)
    trace = str(uuid4())
    await store.configure("q", queue_options(retry_limit=0))
    await push_n(store, "q", 3, trace_ids=[trace, None, None])
    popped = await pop(store, "q", group="g")
    await store.ack([Ack(lease_id=popped.lease_id, status="dlq", error="bad", group="g")])
    await pop(store, "q", group="g", auto_ack=True)
    await push_n(store, "next", 2, trace_ids=[trace, None])
    await store.sample()
    # A window so long that the test does not cross its end, unless it runs at the end of a week.
    options = StatsOptions(access=Access(dsn=database_dsn), window_seconds=7 * 86_400)
    done = stats.job(spark, options)
    assert (done.queues, done.windows, done.removed) == (2, 3, 0)
    found = stored_windows(database_dsn)
    whole, group, after = found["q", ""], found["q", "g"], found["next", ""]
    assert (whole["pushed"], whole["completed"], whole["dead"], whole["pending"]) == (3, 1, 1, 1)
    assert (group["pushed"], group["dead"], group["attempts_max"], group["pending"]) == (None, 1, 1, 1)
    assert group["latency_samples"] == 1
    assert 0 < group["latency_seconds_p95"] < 3600
    assert (after["pushed"], after["trace_samples"], group["trace_samples"]) == (2, 1, None)
    assert 0 < after["trace_seconds_max"] < 3600

    await store.delete_queue("next")
    await store.clear("q")
    await push_n(store, "q", 1)
    assert stats.job(spark, options).queues == 1
    again = stored_windows(database_dsn)
    assert (again["q", ""]["pushed"], again["q", ""]["dead"], again["next", ""]["pushed"]) == (3, 1, 2)
    assert again["q", "g"]["latency_seconds_p95"] == group["latency_seconds_p95"]
    assert again["q", ""]["computed_at"] > whole["computed_at"]

    with Access(dsn=database_dsn).connect() as connection:
        span = ReportSpan(done.from_at, done.to_at, done.window_seconds)
        windows = report.read_windows(connection, span)
        assert [(window.queue, window.group_name) for window in windows] == [("next", ""), ("q", ""), ("q", "g")]
        assert report.read_windows(connection, span, ["next"]) == windows[:1]
    page = check_page(report.render(windows, span, title="This week"))
    assert page.texts["title"] == ["This week"]
    headings, *lines = page.table
    shown = {line[0]: dict(zip(headings, line, strict=True)) for line in lines}
    for queue, row in (("q", again["q", ""]), ("next", again["next", ""])):
        numbers = [f"{row[name] or 0:,}" for name in ("pushed", "completed", "dead")]
        assert [shown[queue][name] for name in ("pushed", "completed", "dead")] == numbers
        assert page.plots[queue]
    assert shown["q"]["p95 latency"] == report._duration(group["latency_seconds_p95"])
    tiles = dict(zip(page.texts["span"], page.texts["b"], strict=True))
    # What a group passes because it is cleared counts as completed in samples.
    assert {name: tiles[name] for name in ("pushed", "completed", "dead letters", "queues")} == {
        "pushed": "5",
        "completed": "2",
        "dead letters": "1",
        "queues": "2",
    }
    await store.close()


def test_old_windows_are_removed(spark: SparkSession, database_dsn: str) -> None:
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute(
            "insert into lockstep.stat_window (queue, group_name, window_seconds, window_start, computed_at) "
            "select 'q', '', 60, now() - make_interval(days => d), now() from generate_series(1, 3) d"
        )
    done = stats.job(spark, StatsOptions(access=Access(dsn=database_dsn), keep_days=2))
    assert (done.queues, done.windows, done.removed) == (0, 0, 2)


def test_bad_input_is_a_clear_error(spark: SparkSession, database_dsn: str) -> None:
    with pytest.raises(QueueNotFound, match="'nowhere'"):
        stats.job(spark, StatsOptions(access=Access(dsn=database_dsn), queues=("nowhere",)))
    with pytest.raises(InvalidOption, match="window_seconds"):
        StatsOptions(window_seconds=0)
    with pytest.raises(InvalidOption, match="keep_days"):
        StatsOptions(keep_days=0)
    with pytest.raises(InvalidOption, match="more than 10000 windows"):
        StatsOptions(window_seconds=1).span(NOW)
    assert StatsOptions(window_seconds=60).span(NOW) == (START - timedelta(days=1), NOW)


# --- The report ---------------------------------------------------------------------------------------------


ADDRESSES = ("src", "srcset", "href", "xlink:href", "data", "poster", "action", "background")
"""Attributes that make a browser fetch something."""
PLOTS = ["Messages per second", "Seconds from push to completion, p95", "Pending messages", "Dead letters"]


class Page(HTMLParser):
    """Checks that what is opened is closed, and keeps what a reader sees and what would be fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.texts: dict[str, list[str]] = {}
        """By the innermost tag that they are in."""
        self.table: list[list[str]] = []
        self.plots: dict[str, list[list[str]]] = {}
        """By the heading before them: the texts of each picture."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.fetched += [
            value or "" for name, value in attrs if name in ADDRESSES and not (value or "").startswith("#")
        ]
        self.fetched += [value or "" for name, value in attrs if name == "style" and "url(" in (value or "")]
        if tag == "tr":
            self.table.append([])
        if tag == "svg":
            self.plots.setdefault(self.texts["h2"][-1], []).append([])
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if not self.open or not data.strip():
            return
        self.texts.setdefault(self.open[-1], []).append(data.strip())
        if self.open[-1] in ("th", "td"):
            self.table[-1].append(data)
        if "svg" in self.open and self.open[-1] == "text":
            self.plots[self.texts["h2"][-1]][-1].append(data)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(html: str) -> Page:
    page = Page()
    page.feed(html)
    assert page.open == []
    assert page.fetched == []
    assert len(set(page.ids)) == len(page.ids)
    assert set(re.findall(r"""(?:url\(|href=")#([^")]+)""", html)) <= set(page.ids)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.count)
    assert "@import" not in html
    assert set(re.findall(r"url\((.)", html)) <= {"#"}
    assert page.texts["title"] == page.texts["h1"]
    for queue, pictures in page.plots.items():
        titles = [title for texts in pictures for title in PLOTS if title in texts]
        assert titles == [title for title in PLOTS if title in titles], queue
        assert len(titles) == len(pictures), queue
    return page


def windows_of(queue: str, group: str, count: int, **measures: Any) -> list[StatWindow]:
    return [
        StatWindow(queue=queue, group_name=group, window_start=START + timedelta(minutes=n), **measures)
        for n in range(count)
    ]


def test_report_is_one_page_that_needs_nothing_else() -> None:
    odd = "<b>$odd$</b>"
    windows = [
        *windows_of("q", "", 5, pushed=60, completed=50, dead=1, pending=7, lag_seconds=90.0, trace_seconds_p95=3.0),
        *windows_of("q", "__QUEUE_MODE__", 5, pending=3, latency_samples=4, latency_seconds_p95=0.25),
        *windows_of("q", odd, 2, latency_samples=1, latency_seconds_p95=7200.0),
        *windows_of(odd, "", 1, pushed=1),
    ]
    html = report.render(windows, ReportSpan(START, START + timedelta(minutes=5), 60))
    page = check_page(html)
    # A plot of nothing is left out: of the second queue only pushes are known.
    assert page.count["svg"] == 5
    assert page.count["tr"] == 3
    assert "<b>$odd$" not in html
    assert "&lt;b&gt;$odd$" in html
    assert "__QUEUE_MODE__" in html
    assert '<td class="name">q</td><td>300</td><td>1.0</td><td>250</td><td>5</td><td>7</td><td>1.5 min</td>' in html
    assert "<b>2 h</b><span>worst p95 latency</span>" in html
    # Every colour is one of the page's own, so that it is readable in light and in dark.
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", html)) <= {"#ffffff"}
    assert "prefers-color-scheme: dark" in html


def test_report_of_nothing_says_so() -> None:
    html = report.render([], ReportSpan(START, START + timedelta(minutes=5), 60))
    check_page(html)
    assert "Nothing is known of this time" in html


def test_report_draws_the_busiest_queues() -> None:
    windows = [w for n in range(15) for w in windows_of(f"q{n:02}", "", 1, pushed=n)]
    page = check_page(html := report.render(windows, ReportSpan(START, START + timedelta(minutes=5), 60)))
    assert page.count["svg"] == report.QUEUES_DRAWN_MAX
    assert "Plots of the 12 busiest of 15 queues" in html
    assert "<h2>q14</h2>" in html
    assert "<h2>q00</h2>" not in html
