"""API keys and the audit log over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.http import Http
from support.server import running_server


@pytest.fixture(scope="module")
def server_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with running_server("memory://", tmp_path_factory.mktemp("access")) as server:
        yield Http(server.url)


def test_key_is_made_listed_and_revoked(server_http: Http) -> None:
    body = {"name": "ann", "rules": ["push,pop orders.*"], "expiresAt": "2099-01-01T00:00:00Z"}
    made = server_http.post("/api/v1/keys", body).json()
    key = made["key"]
    assert made["token"].startswith(f"lsk_{key['id']}_")
    assert (key["name"], key["role"], key["rules"]) == ("ann", None, ["push,pop orders.*"])
    assert key in server_http.get("/api/v1/keys").json()["keys"]
    assert server_http.delete(f"/api/v1/keys/{key['id']}").json() == {"revoked": key["id"]}
    [listed] = [row for row in server_http.get("/api/v1/keys").json()["keys"] if row["id"] == key["id"]]
    assert listed["revokedAt"] is not None
    assert server_http.delete(f"/api/v1/keys/{key['id']}").code == "api_key_not_found"


def test_key_without_rights_or_with_an_unknown_role_is_refused(server_http: Http) -> None:
    assert server_http.post("/api/v1/keys", {"name": "nobody"}).code == "invalid_request"
    assert server_http.post("/api/v1/keys", {"name": "nobody", "role": "king"}).code == "invalid_request"
    expired = {"name": "x", "role": "admin", "expiresAt": "tomorrow"}
    assert server_http.post("/api/v1/keys", expired).code == "invalid_request"


def test_keys_come_in_pages(server_http: Http) -> None:
    for name in ("a", "b", "c"):
        server_http.post("/api/v1/keys", {"name": name, "role": "read-only"})
    first = server_http.get("/api/v1/keys", limit=2).json()
    assert len(first["keys"]) == 2
    rest = server_http.get("/api/v1/keys", after=first["nextAfter"], limit=100).json()
    assert rest["nextAfter"] is None
    assert {row["id"] for row in first["keys"]}.isdisjoint({row["id"] for row in rest["keys"]})


def test_acts_are_in_the_audit_log_newest_first(server_http: Http) -> None:
    for queue in ("audited.a", "audited.b"):
        server_http.post("/api/v1/configure", {"queue": queue})
    page = server_http.get("/api/v1/audit", act="configure", limit=1).json()
    [entry] = page["entries"]
    assert (entry["queues"], entry["outcome"]) == (["audited.b"], "done")
    [before] = server_http.get("/api/v1/audit", act="configure", before=page["nextBefore"], limit=1).json()["entries"]
    assert before["queues"] == ["audited.a"]
    [mine] = server_http.get("/api/v1/audit", queue="audited.a").json()["entries"]
    assert mine == before
