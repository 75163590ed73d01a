"""Pages from elsewhere, and names that lead to loopback: what a browser would send on behalf of an attacker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.http import Answer, Http
from support.server import running_server

EVIL, APP = "https://evil.example", "https://app.example:8443"
CROSS_SITE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"}
FOREIGN_PAGES = [
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Origin": ""},
    CROSS_SITE,
    CROSS_SITE | {"Origin": EVIL},
    {"Sec-Fetch-Site": "same-site"},  # another port of the same host
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    {"Sec-Fetch-Site": "whatever"},
]


@pytest.fixture(scope="module")
def open_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """A server that allows a page and a name."""
    names = {"allowed_origins": f"{APP}, http://other.example", "allowed_hosts": "queue.internal"}
    with running_server("memory://", tmp_path_factory.mktemp("open-server"), **names) as server:
        yield Http(server.url)


def _pop(http: Http, queue: str, headers: dict[str, str]) -> Answer:
    return http.send("GET", f"/api/v1/pop/queue/{queue}?autoAck=true", headers=headers)


def _check_refused(answer: Answer, code: str = "cross_site") -> None:
    assert (answer.status, answer.code) == (403, code)
    assert not {name for name in answer.headers if name.startswith("access-control-")}


@pytest.mark.parametrize("page", FOREIGN_PAGES)
def test_page_from_elsewhere_takes_no_messages(memory_http: Http, queue: str, page: dict[str, str]) -> None:
    memory_http.push(queue, "mine")
    _check_refused(_pop(memory_http, queue, page))
    assert memory_http.pop(queue)["messages"][0]["data"] == "mine"


@pytest.mark.parametrize("page", FOREIGN_PAGES)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/json"])
def test_page_from_elsewhere_changes_nothing(memory_http: Http, page: dict[str, str], kind: str) -> None:
    headers = page | {"Content-Type": kind}
    _check_refused(memory_http.send("POST", "/api/v1/system/maintenance", b'{"enabled":true}', headers))
    assert memory_http.get("/api/v1/system/maintenance").json()["maintenanceMode"] is False


@pytest.mark.parametrize("path", ["/api/v1/resources/queues", "/health", "/metrics", "/nothing", "/openapi.json"])
def test_page_from_elsewhere_reads_nothing(memory_http: Http, path: str) -> None:
    _check_refused(memory_http.send("GET", path, headers={"Origin": EVIL}))


def test_preflight_allows_a_page_from_elsewhere_nothing(memory_http: Http) -> None:
    asked = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    _check_refused(memory_http.send("OPTIONS", "/api/v1/push", headers=asked))


@pytest.mark.parametrize(
    "host",
    ["rebound.evil.example", "rebound.evil.example:6632", "localhost.evil.example", "10.0.0.1", "[fe80::1]:6632"],
)
def test_name_that_was_made_to_lead_to_loopback_is_refused(memory_http: Http, queue: str, host: str) -> None:
    memory_http.push(queue, "mine")
    same_origin = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    for headers in (same_origin, {"Host": host}):
        _check_refused(_pop(memory_http, queue, headers), "host_not_allowed")
    assert memory_http.pop(queue)["messages"][0]["data"] == "mine"


@pytest.mark.parametrize(
    "host", ["a b", "user@localhost", "localhost:x", "localhost/x", "", "[::1", "localhost:123456"]
)
def test_what_is_no_host_is_refused(memory_http: Http, host: str) -> None:
    answer = memory_http.send("GET", "/health", headers={"Host": host})
    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:6632", "127.8.9.10", "[::1]:6632", "shop.localhost"]
)
def test_names_of_loopback_are_taken(memory_http: Http, host: str) -> None:
    assert memory_http.send("GET", "/health", headers={"Host": host}).status == 200


def test_own_pages_may_ask(memory_http: Http, queue: str) -> None:
    memory_http.push(queue, 1, 2, 3)
    own = f"localhost:{memory_http.port}"
    for page in ({"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": f"http://{own}"}):
        assert _pop(memory_http, queue, {"Host": own} | page).status == 200


@pytest.mark.parametrize(
    ("path", "status"), [("/", 200), ("/docs/", 200), ("/docs/api", 200), ("/queues/a", 200), ("/openapi.json", 403)]
)
def test_link_from_elsewhere_leads_to_pages_only(memory_http: Http, path: str, status: int) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert memory_http.send("GET", path, headers=link).status == status
    frame = link | {"Sec-Fetch-Dest": "iframe"}
    assert memory_http.send("GET", path, headers=frame).status == 403


def test_allowed_page_may_ask_and_read(open_http: Http, queue: str) -> None:
    page = {"Origin": APP, "Sec-Fetch-Site": "cross-site"}
    body = b'{"items": [{"queue": "%b", "payload": 1}]}' % queue.encode()
    pushed = open_http.send("POST", "/api/v1/push", body, page)
    assert (pushed.status, pushed.headers["access-control-allow-origin"]) == (201, APP)
    assert pushed.headers["vary"] == "origin"
    for path in ("/api/v1/nothing", "/api/v1/resources/queues/nowhere"):
        missing = open_http.send("GET", path, headers=page)
        assert (missing.status, missing.headers["access-control-allow-origin"]) == (404, APP)
    _check_refused(open_http.send("POST", "/api/v1/push", body, page | {"Origin": APP + "0"}))


def test_preflight_tells_an_allowed_page_what_it_may_send(open_http: Http) -> None:
    asked = {"Origin": "http://other.example", "Access-Control-Request-Method": "POST"}
    answer = open_http.send("OPTIONS", "/api/v1/push", headers=asked)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "http://other.example"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "DELETE" in answer.headers["access-control-allow-methods"]


def test_allowed_names_are_taken(open_http: Http) -> None:
    assert open_http.send("GET", "/health", headers={"Host": "queue.internal:80"}).status == 200
    _check_refused(open_http.send("GET", "/health", headers={"Host": "other.internal"}), "host_not_allowed")


def test_programs_notice_nothing(memory_http: Http, queue: str) -> None:
    """As curl sends it: no origin, and the content type of a form."""
    form = {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "curl/7.88.1", "Accept": "*/*"}
    body = b'{"items": [{"queue": "%b", "payload": 1}]}' % queue.encode()
    answer = memory_http.send("POST", "/api/v1/push", body, form)
    assert answer.status == 201
    assert not {name for name in answer.headers if name.startswith("access-control-")}
    assert memory_http.send("OPTIONS", "/api/v1/push").status == 204


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_origins", "*"),
        ("allowed_origins", "app.example"),
        ("allowed_origins", "https://app.example/page"),
        ("allowed_origins", "ftp://app.example"),
        ("allowed_origins", "null"),
        ("allowed_hosts", "http://a"),
        ("allowed_hosts", "a:6632"),
    ],
)
def test_lists_are_checked_at_start(tmp_path: Any, name: str, value: str) -> None:
    with pytest.raises(RuntimeError, match=name), running_server("memory://", tmp_path, **{name: value}):
        pass


# --- Listening to others ------------------------------------------------------------------------------------


def test_server_without_auth_does_not_listen_to_others(tmp_path: Any) -> None:
    with pytest.raises(RuntimeError, match="--insecure"), running_server("memory://", tmp_path, host="0.0.0.0"):
        pass


def test_server_that_listens_to_others_says_so(tmp_path: Any) -> None:
    with running_server("memory://", tmp_path, host="0.0.0.0", insecure="true") as server:
        http = Http(server.url)
        assert http.get("/health").json()["insecure"] is True
        assert http.get("/api/v1/status").json()["insecure"] is True
        assert "server_insecure" in (tmp_path / "server.log").read_text()
        assert http.send("GET", "/health", headers={"Host": "192.168.1.5:6632"}).status == 200
        _check_refused(http.send("GET", "/health", headers={"Host": "rebound.example"}), "host_not_allowed")
        _check_refused(http.send("GET", "/health", headers={"Origin": EVIL}))


def test_server_on_loopback_is_not_insecure(memory_http: Http) -> None:
    assert "insecure" not in memory_http.get("/health").json()
    assert memory_http.get("/api/v1/status").json()["insecure"] is False
