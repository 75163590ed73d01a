"""Every page shows what the shop has, in light and dark, wide and as on a phone, and to a screen reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from support.http import Http
from support.pages import NAMES, Dashboard, settled
from support.server import ServerProcess, running_server
from support.shop import Shop

AXE = Path(__file__).parents[2] / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
SHOWN = {
    "overview": "Group payments is behind in shop.payments",
    "queues": "mail.outbox",
    "queue": "Messages per second",
    "partitions": "customer-003",
    "options": "Lease time",
    "groups": "Behind, nobody works",
    "group": "customer-005",
    "leases": "Release",
    "dead-letters": "card declined: insufficient funds",
    "dead-letter": "Edit and redrive",
    "errors": "payment provider timed out after # s",
    "messages": "billing.invoices",
    "tail": "The newest 100, as they come",
    "message": "order.placed",
    "traces": "checkout",
    "trace": "customer-004 #1",
    "schedules": "newsletter-1",
    "crons": "nightly-report",
    "pipelines": "carrier API did not answer",
    "load": "Executes at once",
    "operations": "Nothing waits",
    "database": "dead_letter",
    "system": "Server processes",
    "settings": "ack_calls_max",
    "keys": "checkout-service",
    "audit": "revoke_key",
    "sign-in": "This server asks nobody who they are",
}
SERIOUS = """
async () => {
    const found = await axe.run(document, { resultTypes: ["violations"] });
    return found.violations
        .filter((one) => one.impact === "serious" || one.impact === "critical")
        .map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160)).slice(0, 3).join(" | ")}`);
}
"""


def serious(page: Page) -> list[str]:
    """What axe finds that keeps somebody out."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[str] = page.evaluate(SERIOUS)
    return found


def test_every_page_is_tried() -> None:
    assert set(SHOWN) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_page_shows_what_the_shop_has(dashboard: Dashboard, pages: dict[str, str], name: str) -> None:
    page = dashboard.open(pages[name])
    expect(page.locator("body")).to_contain_text(SHOWN[name])
    expect(page.locator("[role=alert]")).to_have_count(0)
    assert serious(page) == []


@pytest.mark.parametrize(
    "dashboard",
    [{"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "has_touch": True}],
    indirect=True,
    ids=["phone"],
)
def test_pages_fit_on_a_phone_and_follow_the_dark_scheme(dashboard: Dashboard, pages: dict[str, str]) -> None:
    for name, path in pages.items():
        page = dashboard.open(path)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        assert page.locator("html").get_attribute("data-mantine-color-scheme") == "dark"
        assert serious(page) == [], name


def test_dialogs_can_be_used_with_a_screen_reader(dashboard: Dashboard) -> None:
    page = dashboard.open("/queues/shop.payments")
    page.get_by_role("button", name="Push a message").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert serious(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert serious(page) == []


def test_history_is_older_than_the_server(dashboard: Dashboard) -> None:
    page = dashboard.open("/?range=24h")
    expect(page.get_by_role("img", name="Messages per second, in and out")).to_be_visible()
    expect(page.get_by_text("No history yet")).to_have_count(0)
    [worker] = dashboard.http.get("/api/v1/analytics/worker-metrics").json()["workers"]
    points = dashboard.http.get("/api/v1/status/analytics", interval="hour", lastSeconds=86_400).json()["dataPoints"]
    assert points[0]["timestamp"] < worker["startedAt"]


def test_empty_server_says_what_to_do_next(browser: Browser, tmp_path: Path) -> None:
    said = {
        "/": "There are no queues yet",
        "/queues": "The first push to a queue makes it",
        "/groups": "A group is there from its first pop on",
        "/dead-letters": "A message that keeps failing becomes one",
        "/messages": "push a test message",
        "/schedules": "Push one with a delay or a time",
        "/traces": "the same trace id",
        "/pipelines": "lockstep pipeline run",
    }
    with running_server("memory://", tmp_path) as server:
        page = browser.new_page()
        for path, text in said.items():
            page.goto(server.url + path)
            settled(page)
            expect(page.get_by_role("main")).to_contain_text(text)
        page.context.close()


def test_queue_that_does_not_exist_is_said(browser: Browser, shop_server: tuple[ServerProcess, Shop]) -> None:
    page = browser.new_page()
    page.goto(shop_server[0].url + "/queues/no.such.queue")
    settled(page)
    expect(page.locator("[role=alert]").first).to_contain_text("queue_not_found")
    page.context.close()


def test_server_that_restarts_is_found_again(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()
    with running_server("memory://", tmp_path, events_interval_seconds=0.1) as first:
        http = Http(first.url)
        http.push("before", 1)
        page.goto(first.url + "/queues")
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        expect(page.locator("body")).to_contain_text("before")
    expect(page.get_by_text("Reconnecting")).to_be_visible(timeout=30_000)
    with running_server("memory://", tmp_path, events_interval_seconds=0.1, port=http.port):
        http.push("after", 1)
        expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=30_000)
        expect(page.locator("body")).to_contain_text("after")
        expect(page.locator("body")).not_to_contain_text("before")
    page.context.close()
