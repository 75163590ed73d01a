"""Every page of the dashboard over the seeded shop, and when one is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from playwright.sync_api import Page, expect

from support.browser import Watch
from support.http import Http
from support.server import ServerProcess
from support.shop import ORDERS, PAYMENTS, TOLD, Shop

NAMES = (
    "overview",
    "queues",
    "queue",
    "partitions",
    "options",
    "groups",
    "group",
    "leases",
    "dead-letters",
    "dead-letter",
    "errors",
    "messages",
    "tail",
    "message",
    "traces",
    "trace",
    "schedules",
    "crons",
    "pipelines",
    "load",
    "operations",
    "database",
    "system",
    "settings",
    "keys",
    "audit",
    "sign-in",
)


def addresses(shop: Shop) -> dict[str, str]:
    """By the name that its picture gets."""
    message = shop.http.get(f"/api/v1/traces/{shop.traces[TOLD]}").json()["messages"][0]
    letter = shop.http.get("/api/v1/dlq", limit=1).json()["messages"][0]
    which = f"{message['partitionId']}/{quote(message['transactionId'], safe='')}"
    return {
        "overview": "/",
        "queues": "/queues",
        "queue": f"/queues/{PAYMENTS}",
        "partitions": f"/queues/{PAYMENTS}?tab=partitions",
        "options": f"/queues/{PAYMENTS}?tab=options",
        "groups": "/groups",
        "group": f"/groups/payments?queue={PAYMENTS}",
        "leases": f"/groups/payments?queue={PAYMENTS}&tab=leases",
        "dead-letters": "/dead-letters",
        "dead-letter": f"/dead-letters?id={letter['id']}",
        "errors": "/dead-letters?by=error",
        "messages": "/messages",
        "tail": f"/messages?queue={ORDERS}&live=true",
        "message": f"/messages/{which}",
        "traces": "/traces",
        "trace": f"/traces?trace={shop.traces[TOLD]}",
        "schedules": "/schedules",
        "crons": "/schedules?tab=cron",
        "pipelines": "/pipelines",
        "load": "/load",
        "operations": "/load?tab=operations",
        "database": "/database",
        "system": "/system",
        "settings": "/system?tab=settings",
        "keys": "/system?tab=keys",
        "audit": "/system?tab=audit",
        "sign-in": "/sign-in",
    }


def addresses_of_large(queue: str, group: str) -> dict[str, str]:
    """The pages whose work could follow the number of partitions and queues."""
    return {
        "overview": "/",
        "queue": f"/queues/{queue}",
        "hot": f"/queues/{queue}?tab=partitions&only=hot",
        "groups": "/groups",
        "group": f"/groups/{group}?queue={queue}",
        "leases": f"/groups/g3?queue={queue}&tab=leases",
        "messages": f"/messages?queue={queue}",
        "database": "/database",
    }


def settled(page: Page) -> None:
    """Wait until the page shows what it was asked for: a title, and nothing that is still loading."""
    page.wait_for_selector("h1")
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=30_000)
    page.evaluate("document.fonts.ready.then(() => true)")


@dataclass
class Dashboard:
    """The pages of a server, in a browser that watches what they say and ask for."""

    page: Page
    server: ServerProcess
    shop: Shop
    watch: Watch

    @property
    def http(self) -> Http:
        return self.shop.http

    def open(self, path: str) -> Page:
        self.page.goto(self.server.url + path)
        settled(self.page)
        return self.page
