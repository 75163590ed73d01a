"""Whoever signs in sees what they may browse, and is offered what they may do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import jwt
import pytest
from playwright.sync_api import Browser, Page, expect

from support.databases import Databases
from support.http import Http
from support.pages import settled
from support.server import ServerProcess, running_server

SECRET = "a secret of more than 64 bytes, because that is what the longest hash wants"
SIGN_IN = re.compile("/sign-in")
SHOP, BANK = "shop.orders", "bank.transfers"
RIGHTS: dict[str, dict[str, object]] = {
    "reader": {"role": "read-only"},
    "seller": {"rules": ["push,pop,browse shop.*"]},
    "boss": {"role": "admin"},
}


@dataclass(frozen=True)
class Guarded:
    """A server that asks, and keys for it by name."""

    server: ServerProcess
    keys: dict[str, str]


@pytest.fixture(scope="module")
def guarded(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    dsn, directory = databases.clone(), tmp_path_factory.mktemp("guarded")
    with running_server(dsn, directory) as server:
        http = Http(server.url)
        for queue in (SHOP, BANK):
            http.push(queue, 1, 2)
            [message] = http.pop(queue, consumerGroup="g", batch=1, wait="true", timeout=20_000)["messages"]
            http.ack(message, "dlq", error="it broke")
        keys = {
            name: http.post("/api/v1/keys", {"name": name, **given}).json()["token"] for name, given in RIGHTS.items()
        }
    with running_server(dsn, directory, auth="required", auth_jwt_secret=SECRET, events_interval_seconds=0.1) as server:
        yield Guarded(server, keys)
    databases.drop(dsn)


@pytest.fixture
def visitor(browser: Browser, guarded: Guarded) -> Iterator[Page]:
    context = browser.new_context(base_url=guarded.server.url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


def sign_in(page: Page, token: str) -> None:
    page.goto("/sign-in")
    page.get_by_label("API key or token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def look_at(page: Page, path: str) -> None:
    page.goto(path)
    settled(page)
    expect(page.locator("[role=alert]")).to_have_count(0)


def buttons(page: Page) -> set[str]:
    return {text.strip() for text in page.get_by_role("main").get_by_role("button").all_inner_texts()}


def test_nobody_sees_anything_before_they_sign_in_and_a_wrong_key_is_refused(visitor: Page, guarded: Guarded) -> None:
    visitor.goto("/queues?sort=lag")
    expect(visitor).to_have_url(SIGN_IN)
    expect(visitor.locator("body")).not_to_contain_text(SHOP)
    visitor.get_by_label("API key or token").fill("lsk_0000000000000000_wrong")
    visitor.get_by_role("button", name="Sign in").click()
    expect(visitor.get_by_role("alert").first).to_contain_text("401")
    visitor.get_by_label("API key or token").fill(guarded.keys["reader"])
    visitor.get_by_role("button", name="Sign in").click()
    expect(visitor).to_have_url("/queues?sort=lag")
    expect(visitor.get_by_role("main")).to_contain_text(SHOP)


def test_reader_looks_at_everything_and_is_offered_nothing_that_changes_it(visitor: Page, guarded: Guarded) -> None:
    sign_in(visitor, guarded.keys["reader"])
    expect(visitor.get_by_text("Live", exact=True)).to_be_visible()
    look_at(visitor, "/queues")
    expect(visitor.get_by_role("main")).to_contain_text(BANK)
    assert "New queue" not in buttons(visitor)
    look_at(visitor, f"/queues/{SHOP}")
    assert "Push a message" not in buttons(visitor)
    look_at(visitor, f"/queues/{SHOP}?tab=options")
    assert "Save" not in buttons(visitor)
    look_at(visitor, f"/groups/g?queue={SHOP}")
    assert buttons(visitor).isdisjoint({"Pause", "Seek"})
    look_at(visitor, "/dead-letters")
    expect(visitor.get_by_role("main")).to_contain_text("it broke")
    assert buttons(visitor).isdisjoint({"Redrive all…", "Purge all…"})
    look_at(visitor, "/schedules?tab=cron")
    assert "New" not in buttons(visitor)
    look_at(visitor, "/load")
    assert "Switch on…" not in buttons(visitor)
    look_at(visitor, "/database")
    assert "Verify now" not in buttons(visitor)
    look_at(visitor, "/system?tab=keys")
    expect(visitor.get_by_role("tab")).to_have_text(["Servers"])


def test_seller_has_the_queues_of_their_rules_alone(visitor: Page, guarded: Guarded) -> None:
    sign_in(visitor, guarded.keys["seller"])
    for path in ("/", "/queues", "/groups", "/messages?span=all", "/dead-letters"):
        look_at(visitor, path)
        expect(visitor.get_by_role("main")).to_contain_text(SHOP)
        expect(visitor.get_by_role("main")).not_to_contain_text(BANK)
    look_at(visitor, f"/queues/{SHOP}")
    assert "Push a message" in buttons(visitor)
    visitor.goto(f"/queues/{BANK}")
    expect(visitor.get_by_role("alert").first).to_contain_text("403")


def test_token_of_an_issuer_signs_in_too_and_signing_out_forgets_it(visitor: Page) -> None:
    claims = {"sub": "carol", "role": "read-write", "exp": time.time() + 600}
    sign_in(visitor, jwt.encode(claims, SECRET, "HS256"))
    look_at(visitor, f"/groups/g?queue={SHOP}")
    assert {"Pause", "Seek"} <= buttons(visitor)
    visitor.get_by_role("button", name="carol").click()
    expect(visitor).to_have_url(SIGN_IN)
    visitor.goto("/queues")
    expect(visitor).to_have_url(SIGN_IN)


def _await_refusal(http: Http, headers: dict[str, str]) -> None:
    """A revoked key is refused within some seconds."""
    until = time.monotonic() + 60
    while http.send("GET", "/api/v1/queues", headers=headers).status != 401:
        assert time.monotonic() < until, "the key is still taken"


def test_key_is_made_shown_once_revoked_and_written_down(visitor: Page, guarded: Guarded) -> None:
    sign_in(visitor, guarded.keys["boss"])
    look_at(visitor, "/system?tab=keys")
    visitor.get_by_role("button", name="New key").click()
    visitor.get_by_label("Name").fill("intern")
    visitor.get_by_role("button", name="Make the key").click()
    token = visitor.get_by_role("dialog").locator("code").inner_text()
    headers = {"authorization": f"Bearer {token}"}
    assert Http(guarded.server.url).send("GET", "/api/v1/queues", headers=headers).status == 200
    visitor.get_by_role("button", name="Done").click()
    expect(visitor.locator("body")).not_to_contain_text(token)
    visitor.get_by_role("row").filter(has_text="intern").get_by_role("button", name="Revoke").click()
    revoke = visitor.get_by_role("button", name="Revoke it")
    expect(revoke).to_be_disabled()
    visitor.get_by_label("Type intern to confirm").fill("intern")
    revoke.click()
    expect(visitor.get_by_role("row").filter(has_text="intern")).to_contain_text("Revoked")
    _await_refusal(Http(guarded.server.url), headers)
    visitor.get_by_role("tab", name="Audit log").click()
    expect(visitor.get_by_role("row").filter(has_text="revoke_key")).to_contain_text("boss")
