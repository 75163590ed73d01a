"""Our own pages work under their content security policy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from lockstep.server import dashboard, documentation
from support.browser import Watch
from support.server import ServerProcess, running_server

built = pytest.mark.skipif(dashboard.page() is None, reason="the dashboard is not built (make setup)")
documented = pytest.mark.skipif(not documentation.is_built(), reason="the documentation is not built (make docs)")

SCHEMES = {"light": "default", "dark": "slate"}
"""As the theme of the documentation calls them."""


def _complaints(page: Page) -> list[str]:
    """What the browser refuses, or scripts fail with, from now on."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints


def test_documentation_of_the_routes_works(page: Page, server: ServerProcess) -> None:
    complaints = _complaints(page)
    page.goto(f"{server.url}/docs/api")
    expect(page.locator("#nouns a").first).to_be_visible()
    assert page.locator("nav").evaluate("node => getComputedStyle(node).position") == "sticky"
    page.locator("#find").fill("/health")
    shown = page.locator("details:not([hidden])", has_text="/health").first
    shown.locator("summary").click()
    shown.get_by_role("button", name="Send").click()
    expect(shown.locator("pre").last).to_contain_text("200")
    assert complaints == []


@documented
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_documentation_works(browser: Browser, server: ServerProcess, scheme: Literal["light", "dark"]) -> None:
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    watch = Watch(server.url)
    watch.follow(page)
    page.goto(f"{server.url}/docs")
    expect(page).to_have_url(f"{server.url}/docs/")
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", SCHEMES[scheme])
    page.get_by_role("link", name="concepts", exact=True).click()
    page.get_by_role("link", name="failure", exact=True).first.click()
    assert page.locator("svg.diagram").evaluate("node => getComputedStyle(node).color") == page.locator(
        "article"
    ).evaluate("node => getComputedStyle(node).color")
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("redrive")
    page.locator(".md-search-result__link").first.click()
    expect(page.locator("article")).to_contain_text("edrive")
    assert (watch.errors, watch.foreign) == ([], [])
    context.close()


@documented
def test_chosen_colours_stay(browser: Browser, server: ServerProcess) -> None:
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    page.goto(f"{server.url}/docs/")
    page.get_by_title("Switch to light mode").click()
    page.get_by_title("Switch to dark mode").click()
    page.goto(f"{server.url}/docs/comparison.html")
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", SCHEMES["dark"])
    context.close()


@built
def test_dashboard_works(page: Page, server: ServerProcess) -> None:
    complaints = _complaints(page)
    page.goto(f"{server.url}/")
    expect(page.get_by_role("link", name="Queues").first).to_be_visible()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    assert page.get_by_role("alert").count() == 0
    assert complaints == []


@built
def test_dashboard_of_an_insecure_server_says_so(page: Page, tmp_path: Path) -> None:
    with running_server("memory://", tmp_path, host="0.0.0.0", insecure="true") as server:
        page.goto(f"{server.url}/")
        expect(page.get_by_role("alert")).to_contain_text("asks nobody who they are")
