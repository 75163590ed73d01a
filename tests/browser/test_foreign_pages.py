"""What a page from elsewhere gets done with a server on loopback: nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from playwright.sync_api import Page

from conftest import Elsewhere
from support.http import Http
from support.server import ServerProcess

# Each resolves when the browser has an answer, or has given up.
ATTACKS = {
    "fetch without CORS": "url => fetch(url, {mode: 'no-cors'}).catch(() => null)",
    "fetch with CORS": "url => fetch(url).then(answer => answer.text()).catch(() => null)",
    "image": "url => new Promise(done => { const i = new Image(); i.onload = i.onerror = done; i.src = url; })",
    "script": """url => new Promise(done => {
        const node = document.createElement('script'); node.onload = node.onerror = done;
        node.src = url; document.body.append(node); })""",
    "frame": """url => new Promise(done => {
        const node = document.createElement('iframe'); node.onload = node.onerror = done;
        node.src = url; document.body.append(node); })""",
    "no referrer": "url => fetch(url, {mode: 'no-cors', referrerPolicy: 'no-referrer'}).catch(() => null)",
    "sandboxed frame": """url => new Promise(done => {
        const f = document.createElement('iframe'); f.sandbox = 'allow-scripts'; onmessage = done;
        f.srcdoc = `<script>fetch(${JSON.stringify(url)}, {mode: 'no-cors'}).catch(() => 0)
            .then(() => parent.postMessage(1, '*'))<` + `/script>`;
        document.body.append(f); })""",
}
SENDING = {
    "fetch of text": """([url, body]) => fetch(url, {
        method: 'POST', mode: 'no-cors', body, headers: {'content-type': 'text/plain'}}).catch(() => null)""",
    "fetch of JSON": """([url, body]) => fetch(url, {
        method: 'POST', body, headers: {'content-type': 'application/json'}}).catch(() => null)""",
    "beacon": "async ([url, body]) => { navigator.sendBeacon(url, body); }",
    "form": """([url, body]) => new Promise(done => {
        const frame = document.createElement('iframe'); frame.name = 'there'; document.body.append(frame);
        const form = document.createElement('form');
        Object.assign(form, {method: 'POST', action: url, enctype: 'text/plain', target: 'there'});
        // What a form of this kind sends is name=value, so the = has to be in a string.
        const field = document.createElement('input'); const at = body.indexOf('=');
        field.name = body.slice(0, at); field.value = body.slice(at + 1);
        form.append(field); document.body.append(form); frame.onload = done; form.submit(); })""",
}
HOSTS = ["127.0.0.1", "localhost", "evil.example", "evil.localhost"]


@pytest.fixture
def queue(http: Http) -> str:
    name = f"queue-{uuid4().hex[:12]}"
    http.push(name, "mine")
    return name


def _check_untouched(http: Http, queue: str) -> None:
    [message] = http.pop(queue, batch=10)["messages"]
    assert message["data"] == "mine"
    assert http.get("/api/v1/system/maintenance").json()["maintenanceMode"] is False


def _pop_url(server: ServerProcess, queue: str) -> str:
    return f"{server.url}/api/v1/pop/queue/{queue}?autoAck=true"


@contextmanager
def _refused(http: Http) -> Iterator[None]:
    """Something comes to the server in this block, and is refused."""
    before = _errors(http)
    yield
    until = time.monotonic() + 30
    while _errors(http) == before:
        assert time.monotonic() < until, "nothing came"
        time.sleep(0.01)


def _errors(http: Http) -> int:
    [worker] = http.get("/api/v1/analytics/worker-metrics").json()["workers"]
    return int(worker["clientErrors"])


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_page_from_elsewhere_takes_no_message(
    page: Page, elsewhere: Elsewhere, server: ServerProcess, http: Http, queue: str, host: str, attack: str
) -> None:
    page.goto(elsewhere.url(host))
    with _refused(http):
        page.evaluate(attack, _pop_url(server, queue))
    _check_untouched(http, queue)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("attack", SENDING.values(), ids=SENDING.keys())
def test_page_from_elsewhere_sends_nothing(
    page: Page, elsewhere: Elsewhere, server: ServerProcess, http: Http, queue: str, host: str, attack: str
) -> None:
    page.goto(elsewhere.url(host))
    push = f'{{"items":[{{"queue":"{queue}","payload":"a=b"}}]}}'
    with _refused(http):
        page.evaluate(attack, [f"{server.url}/api/v1/push", push])
    page.goto(elsewhere.url(host))
    with _refused(http):
        page.evaluate(attack, [f"{server.url}/api/v1/system/maintenance", '{"enabled":true,"reason":"a=b"}'])
    _check_untouched(http, queue)


@pytest.mark.parametrize("host", HOSTS)
def test_link_from_elsewhere_takes_no_message(
    page: Page, elsewhere: Elsewhere, server: ServerProcess, http: Http, queue: str, host: str
) -> None:
    page.goto(elsewhere.url(host))
    with page.expect_navigation(url=f"{server.url}/**") as arrived:
        page.evaluate("url => { location.href = url }", _pop_url(server, queue))
    assert arrived.value is not None
    assert arrived.value.status == 403
    _check_untouched(http, queue)


def test_name_that_was_made_to_lead_here_is_of_no_use(page: Page, http: Http, queue: str) -> None:
    """DNS rebinding: the page came from the attacker, and now its name leads to us. A browser sees one origin."""
    origin = f"http://rebound.example:{http.port}"
    page.route(f"{origin}/trap", lambda route: route.fulfill(body="<body></body>", content_type="text/html"))
    page.goto(f"{origin}/trap")
    path = f"/api/v1/pop/queue/{queue}?autoAck=true"
    told = page.evaluate("async path => { const a = await fetch(path); return [a.status, await a.text()] }", path)
    assert told[0] == 403
    assert "host_not_allowed" in told[1]
    assert page.evaluate("async () => (await fetch('/')).status") == 403
    _check_untouched(http, queue)


def test_allowed_page_sends_and_reads(page: Page, elsewhere: Elsewhere, server: ServerProcess, queue: str) -> None:
    page.goto(elsewhere.url("friend.example"))
    script = """async url => {
        const answer = await fetch(url, {headers: {'x-request-id': 'mine', authorization: 'Bearer x'}});
        return [answer.status, answer.headers.get('x-request-id'), (await answer.json()).messages.length] }"""
    assert page.evaluate(script, _pop_url(server, queue)) == [200, "mine", 1]


@pytest.mark.parametrize("host", ["127.0.0.1", "friend.example"])
def test_pages_are_not_shown_in_frames_of_others(
    page: Page, elsewhere: Elsewhere, server: ServerProcess, host: str
) -> None:
    page.goto(elsewhere.url(host))
    page.evaluate(ATTACKS["frame"], f"{server.url}/docs/api")
    shown = page.frames[1]
    assert "Lockstep" not in shown.content()
