"""The dashboard over very many partitions and queues. `make soak` has 1,000,000 and 10,000."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect

from support.browser import Watch
from support.databases import Databases
from support.many import fill
from support.pages import addresses_of_large, settled
from support.server import running_server

SOAK = bool(os.environ.get("LOCKSTEP_SOAK"))
PARTITIONS = 1_000_000 if SOAK else 20_000
QUEUES = 10_000 if SOAK else 1_000
ROWS_DRAWN_MAX = 60
"""Of a list, however long it is."""


@pytest.fixture(scope="module")
def large(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    dsn = databases.clone()
    fill(dsn, PARTITIONS)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "select lockstep.create_queue('many.' || n, null, null, clock_timestamp()) from generate_series(1, %s) n",
            (QUEUES,),
        )
    with running_server(dsn, tmp_path_factory.mktemp("large"), events_interval_seconds=0.5) as server:
        yield server.url
    databases.drop(dsn)


@pytest.fixture
def page(browser: Browser, large: str) -> Iterator[Page]:
    context = browser.new_context(base_url=large, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    page = context.new_page()
    watch = Watch(large)
    watch.follow(page)
    yield page
    context.close()
    assert watch.errors == []


def test_partition_is_found_among_very_many(page: Page) -> None:
    page.goto("/queues/q?tab=partitions")
    settled(page)
    assert page.locator("tbody tr").count() <= ROWS_DRAWN_MAX
    page.get_by_label("Search partitions").fill(f"p{PARTITIONS - 1}")
    expect(page.get_by_role("link", name=f"p{PARTITIONS - 1}")).to_be_visible()


def test_list_of_partitions_goes_on_as_one_scrolls(page: Page) -> None:
    page.goto("/queues/q?tab=partitions")
    settled(page)
    rows = page.get_by_role("table", name="Partitions")
    before = int(rows.get_attribute("aria-rowcount") or 0)
    page.get_by_role("region", name="Partitions").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    expect(rows).not_to_have_attribute("aria-rowcount", str(before))
    assert page.locator("tbody tr").count() <= ROWS_DRAWN_MAX


def test_queue_is_found_among_very_many(page: Page) -> None:
    page.goto("/queues")
    settled(page)
    assert page.locator("tbody tr").count() <= ROWS_DRAWN_MAX
    expect(page.get_by_text(f"{QUEUES + 1:,} queues")).to_be_visible()
    page.get_by_label("Search queues").fill(f"many.{QUEUES - 1}")
    expect(page.get_by_role("link", name=f"many.{QUEUES - 1}")).to_be_visible()


@pytest.mark.parametrize("path", addresses_of_large("q", "g2").values(), ids=addresses_of_large("q", "g2").keys())
def test_page_is_drawn_whatever_there_is(page: Page, path: str) -> None:
    page.goto(path)
    settled(page)
    expect(page.locator("[role=alert]")).to_have_count(0)
    assert page.locator("tbody tr").count() <= 6 * ROWS_DRAWN_MAX
